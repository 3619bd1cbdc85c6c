// The connection to the server. Events say that there is something new. The page shows the state of the
// connection, and reconnects with growing delays after it was lost.
import { clockTime, timeOfDay } from "./format.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 30_000;
// The server sends a sign of life every 15 seconds.
const SILENCE_MS = 40_000;

const pill = document.getElementById("connection");
const announcement = document.getElementById("announcement");
const trouble = document.getElementById("trouble");

// Announces a text to screen readers: changes of state, never each tick.
export function announce(text) {
  if (announcement) announcement.textContent = text;
}

// Follows the events of all runs, or of one. `handlers` has the functions `opened(isNewServer)`, called
// after each hello so that the page can request what it lacks, `commit(event)` and `state(event)`.
// Every screen shows problems: that the ledger cannot be read, or else the last error.
export class Connection {
  constructor(run, handlers) {
    this.url = run === null ? "/events" : `/events?run=${encodeURIComponent(run)}`;
    this.handlers = handlers;
    this.server = null;
    this.heard = Date.now();
    this.wait = FIRST_WAIT_MS;
    this.retryAt = 0;
    this.state = "connecting";
    this.ledgerTrouble = null;
    this.answerTrouble = null;
    this.ticker = setInterval(() => this.tick(), 1000);
    // Browsers allow six connections to a host for all tabs together, so a hidden page closes its own.
    document.addEventListener("visibilitychange", () => (document.hidden ? this.rest() : this.open()));
    window.addEventListener("online", () => this.open());
    window.addEventListener("pagehide", () => this.rest());
    window.addEventListener("pageshow", (event) => event.persisted && this.open());
    this.open();
  }

  open() {
    if (this.source || document.hidden || this.state === "over") return;
    clearTimeout(this.timer);
    this.heard = Date.now();
    const source = new EventSource(this.url);
    this.source = source;
    const on = (name, handle) =>
      source.addEventListener(name, (event) => {
        if (source !== this.source) return;
        this.heard = Date.now();
        handle?.(event.data ? JSON.parse(event.data) : null);
      });
    on("hello", (hello) => this.greet(hello));
    on("commit", this.handlers.commit);
    on("state", this.handlers.state);
    on("ledger", (ledger) => this.tellOfLedger(ledger));
    on("alive", () => (this.isWatched = true));
    source.onerror = () => {
      if (source !== this.source) return;
      // An event source is closed for good if the server answered with something other than events.
      const wasAnswered = source.readyState === EventSource.CLOSED;
      this.lose();
      if (wasAnswered) this.explain();
    };
  }

  // Another server has another token, so a retry would not help.
  async explain() {
    const stop = new AbortController();
    const answer = await fetch(this.url, { signal: stop.signal }).catch(() => null);
    if (answer?.status === 403) this.end("the viewer was started again, open the link that it printed");
    stop.abort();
  }

  // Requests a document for this page. On failure, shows the reason and returns null.
  async ask(url) {
    if (this.state === "over") return null;
    let answer = null;
    let problem = null;
    try {
      answer = await ask(url);
    } catch (error) {
      if (error.status === undefined) {
        this.lose();
        return null;
      }
      problem = [error.message, error.hint].filter(Boolean).join(". ");
      if (error.status === 404) this.end("the run is not in the ledger any longer");
    }
    this.answerTrouble = problem;
    this.showTrouble();
    return answer;
  }

  // Ends the connection for good, and shows the reason.
  end(reason) {
    this.rest();
    if (this.state !== "lost") this.lostAt = this.heard;
    this.ending = reason;
    this.set("over");
    announce(`No longer followed: ${reason}.`);
  }

  tellOfLedger({ problem, as_of: asOf }) {
    const hint = problem?.hint ? ` ${problem.hint}.` : "";
    this.ledgerTrouble = problem && `The ledger cannot be read. ${problem.message}.${hint} The page shows what was known at ${timeOfDay(asOf)} UTC.`;
    this.showTrouble();
  }

  showTrouble() {
    const text = this.ledgerTrouble ?? this.answerTrouble ?? "";
    if (trouble.textContent !== text) trouble.textContent = text;
  }

  greet(hello) {
    const isNew = this.server !== null && this.server !== hello.start;
    if (isNew) announce("The viewer was started again; the page has asked for what it missed.");
    else if (this.state === "lost") announce("Connected again.");
    this.server = hello.start;
    this.wait = FIRST_WAIT_MS;
    this.set("live");
    this.tellOfLedger(hello.ledger);
    this.handlers.opened?.(isNew);
  }

  // Called after a request to which the server did not answer.
  lose() {
    // If the connection was lost before, a retry is already planned.
    if (this.state === "over" || (this.state === "lost" && !this.source)) return;
    this.close();
    clearTimeout(this.timer);
    if (this.state !== "lost") {
      this.lostAt = this.heard;
      announce(`The connection to the viewer is lost. The page shows what was known at ${timeOfDay(this.heard)} UTC.`);
    }
    const wait = this.wait * (0.75 + Math.random() / 2);
    this.wait = Math.min(2 * this.wait, LONGEST_WAIT_MS);
    this.retryAt = Date.now() + wait;
    this.timer = setTimeout(() => this.open(), wait);
    this.set("lost");
  }

  rest() {
    clearTimeout(this.timer);
    this.close();
  }

  close() {
    this.source?.close();
    this.source = null;
  }

  tick() {
    if (this.isWatched && this.source && this.state === "live" && Date.now() - this.heard > SILENCE_MS) this.lose();
    this.set(this.state);
  }

  get isLive() {
    return this.state === "live";
  }

  set(state) {
    this.state = state;
    if (!pill) return;
    pill.dataset.state = state;
    const text = this.text();
    if (pill.textContent !== text) pill.textContent = text;
  }

  text() {
    if (this.state === "live") return "live";
    if (this.state === "connecting") return "connecting";
    if (this.state === "over") return `as of ${timeOfDay(this.lostAt)} UTC: ${this.ending}`;
    const next = Math.max(0, this.retryAt - Date.now()) / 1000;
    const again = this.source ? "trying again" : `trying again in ${clockTime(next)}`;
    return `no connection: as of ${timeOfDay(this.lostAt)} UTC, ${again}`;
  }
}

// Requests a document. Raises a `ServerError` with the server's message, or another error without an answer.
export async function ask(url, options = {}) {
  const response = await fetch(url, { headers: { Accept: "application/json" }, ...options }).catch(() => {
    throw new Error("the viewer did not answer");
  });
  const document = await response.json().catch(() => ({}));
  if (!response.ok) throw new ServerError(document.error ?? { message: `the server answered ${response.status}` }, response.status);
  return document;
}

export class ServerError extends Error {
  constructor(error, status) {
    super(error.message);
    this.hint = error.hint ?? null;
    this.status = status;
  }
}

// Returns the document that the server embedded in the page.
export const embedded = () => JSON.parse(document.getElementById("document").textContent);
