// Sets the remembered theme before the page is painted; page.js has the button that changes it.
const remembered = localStorage.getItem("labledger-theme");
if (remembered === "light" || remembered === "dark") {
  document.documentElement.dataset.theme = remembered;
}
