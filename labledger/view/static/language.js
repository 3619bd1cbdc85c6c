// Some browsers have no proper language, as in the locale "C". What takes it for one must not fail:
// imported before such modules.
try {
  new Intl.NumberFormat(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en-US" });
}
