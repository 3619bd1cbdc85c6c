// The first script of each page, run before anything is painted. It sets the remembered theme, and loads
// the page again where a script or style did not arrive: Chromium drops requests that wait for a connection
// when a network of the machine comes or goes, as those of containers do. It also loads an error page
// again, for example while a ledger is locked or being upgraded, and the page of a lab that has no run yet.
const remembered = localStorage.getItem("labledger-theme");
if (remembered === "light" || remembered === "dark") {
  document.documentElement.dataset.theme = remembered;
}

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 30_000;
const TRIES = "labledger-tries";
let isWhole = true;

function loadAgain(every) {
  if (!isWhole) return;
  isWhole = false;
  const tries = Number(sessionStorage.getItem(TRIES) ?? 0);
  sessionStorage.setItem(TRIES, tries + 1);
  let wait = every ?? Math.min(FIRST_WAIT_MS * 2 ** tries, LONGEST_WAIT_MS);
  setTimeout(async function look() {
    const pill = document.getElementById("connection");
    if (pill && !every) pill.textContent = "not whole: loading again";
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.status < 500) return void location.reload();
    } catch {
      // The server is not there: later.
    }
    wait = every ?? Math.min(2 * wait, LONGEST_WAIT_MS);
    setTimeout(look, wait);
  }, wait);
}

// Errors of scripts and styles do not bubble.
addEventListener("error", (event) => event.target.matches?.("script, link") && loadAgain(), true);
addEventListener("load", () => isWhole && sessionStorage.removeItem(TRIES));
const unmade = document.querySelector("meta[name=unmade]");
if (unmade) loadAgain(unmade.dataset.every ? Number(unmade.dataset.every) : undefined);
