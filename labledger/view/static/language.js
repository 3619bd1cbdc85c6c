// In the locale "C", some browsers say that their language is en-US@posix, which is not a valid language
// tag. uPlot fails to load there, so this module is imported before it.
try {
  new Intl.NumberFormat(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en-US" });
}
