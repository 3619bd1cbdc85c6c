// A page that could not be made, such as while the ledger was locked or being upgraded, asks again.
const FIRST_WAIT_MS = 2000;
const LONGEST_WAIT_MS = 30_000;
let wait = FIRST_WAIT_MS;

async function again() {
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.status < 500) return void location.reload();
  } catch {
    // The server is not there: later.
  }
  wait = Math.min(2 * wait, LONGEST_WAIT_MS);
  setTimeout(again, wait);
}
setTimeout(again, wait);
