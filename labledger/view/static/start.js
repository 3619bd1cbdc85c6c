// The first script of each page, run before anything is painted. It sets the remembered theme. It reloads
// the page if a script or style did not arrive: Chromium drops waiting requests when a network of the
// machine appears or disappears, as container networks do. It also reloads error pages, such as for a
// locked ledger, and the page of a lab without runs.
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
      // The server does not answer; try again later.
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
