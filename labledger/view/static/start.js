// The first file of each page, run before anything is painted: the remembered theme, and a page that is
// not whole is loaded again. A part of it is missing when the browser drops what it was about to ask for,
// as Chromium does when a network of this machine comes or goes, and with it a container; a page as a
// whole when it could not be made, such as while the ledger was locked or being upgraded.
const remembered = localStorage.getItem("labledger-theme");
if (remembered === "light" || remembered === "dark") {
  document.documentElement.dataset.theme = remembered;
}

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 30_000;
const TRIES = "labledger-tries";
let isWhole = true;

function loadAgain() {
  if (!isWhole) return;
  isWhole = false;
  const tries = Number(sessionStorage.getItem(TRIES) ?? 0);
  sessionStorage.setItem(TRIES, tries + 1);
  let wait = Math.min(FIRST_WAIT_MS * 2 ** tries, LONGEST_WAIT_MS);
  setTimeout(async function look() {
    const pill = document.getElementById("connection");
    if (pill) pill.textContent = "not whole: loading again";
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.status < 500) return void location.reload();
    } catch {
      // The server is not there: later.
    }
    wait = Math.min(2 * wait, LONGEST_WAIT_MS);
    setTimeout(look, wait);
  }, wait);
}

// Errors of scripts and styles do not bubble.
addEventListener("error", (event) => event.target.matches?.("script, link") && loadAgain(), true);
addEventListener("load", () => isWhole && sessionStorage.removeItem(TRIES));
if (document.querySelector("meta[name=unmade]")) loadAgain();
