// The screen of a run. After an event, the page requests everything from the first slot that it lacks, and
// about once a second it requests what changes between commits.
import { drawSpending, drawThroughput } from "./charts.js";
import { Connection, announce, embedded } from "./connection.js";
import { Controls } from "./controls.js";
import { counted } from "./format.js";
import { Grid } from "./grid.js";
import { html, show } from "./html.js";
import { Answers, Ended, Errors, Figures, Gradings, Hosts, Notices, Owner, Rates, Requests, Running } from "./run_sections.js";
import { RunState } from "./pieces.js";

const PAGE = 200;
const NOW_EVERY_MS = 1000;
const TOTALS_AFTER_MS = 1500;
const MAX_POINTS = 1000;

let run = embedded();
const url = `/runs/${encodeURIComponent(run.run_id)}`;
const connection = new Connection(run.run_id, {
  opened: (isNew) => (isNew ? renew() : follow(run.committed + 1).then(askNow)),
  commit: (event) => follow(event.upto),
  state: renew,
});
const grid = new Grid(document.getElementById("grid"), `${url}/grid`, run.grid, (address) => connection.ask(address));
const controls = document.getElementById("controls");

function draw() {
  show("run-state", html`<${RunState} run=${run} />`);
  show("owner", html`<${Owner} run=${run} />`);
  show("ended", html`<${Ended} run=${run} />`);
  show("gradings", html`<${Gradings} run=${run} />`);
  show("notices", html`<${Notices} run=${run} />`);
  show("progress", html`<${Figures} run=${run} />`);
  show("answers", html`<${Answers} run=${run} url=${url} />`);
  show("now", html`<${Running} run=${run} url=${url} />`);
  show("rates-as-of", html`after ${counted(run.as_of, "trial")}`);
  show("rates", html`<${Rates} run=${run} />`);
  show("errors", html`<${Errors} run=${run} url=${url} />`);
  show("hosts", html`<${Hosts} run=${run} />`);
  show("requests", html`<${Requests} run=${run} />`);
  if (controls) show("controls", html`<${Controls} run=${run} url=${url} renew=${renew} />`);
  document.title = `${Math.floor((100 * run.committed) / Math.max(1, run.total_slots))}% · ${run.name || run.run_id} · labledger`;
}

function drawCharts() {
  drawSpending(document.getElementById("spending"), run);
  drawThroughput(document.getElementById("throughput"), run);
}

// -- new commits

let wanted = run.committed;
let isFollowing = false;
async function follow(upto) {
  wanted = Math.max(wanted, upto);
  if (isFollowing || document.hidden) return;
  isFollowing = true;
  try {
    while (run.committed < wanted) {
      const changes = await connection.ask(`${url}/changes?after=${run.committed}&limit=${PAGE}`);
      if (!changes || changes.next <= run.committed) break;
      take(changes);
    }
  } finally {
    isFollowing = false;
  }
}

function take(changes) {
  const { slots, point, at, version, after, total, ...totals } = changes;
  const before = run.status;
  Object.assign(run, totals, { committed: changes.next, total_slots: total });
  if (point) run.spending.push(point);
  if (run.spending.length > MAX_POINTS) run.spending = run.spending.filter((_, n) => n % 2 === 0 || n > MAX_POINTS - 100);
  grid.apply(slots);
  if (run.status !== before) announce(`The run is ${run.status}.`);
  draw();
  drawCharts();
  completeTotals();
}

// The server counts the totals of a large run only now and then, so the page requests them again until they
// include all slots. After the end of a run it does the same for the decision which variant is ahead.
let totalsTimer = null;
function completeTotals() {
  clearTimeout(totalsTimer);
  const isDecided = run.status === "running" || run.decided_as_of >= run.committed;
  if ((run.as_of >= run.committed && isDecided) || document.hidden) return;
  totalsTimer = setTimeout(async () => {
    const changes = await connection.ask(`${url}/changes?after=${run.committed}&limit=${PAGE}`);
    if (changes?.after === run.committed) take(changes);
  }, TOTALS_AFTER_MS);
}

// -- what changes between commits

let nowTimer = null;
async function askNow() {
  const now = await connection.ask(`${url}/now`);
  if (now) {
    const before = run.status;
    // Request the slots committed in the meantime one by one.
    const { committed, total, at, version, ...changed } = now;
    Object.assign(run, changed);
    follow(committed);
    grid.running(run.running, run.waiting);
    if (run.status !== before) announce(`The run is ${run.status}.`);
    draw();
  }
  // Another call may have been made in the meantime; only one continues.
  clearTimeout(nowTimer);
  if (connection.isLive && !document.hidden && run.status === "running") nowTimer = setTimeout(askNow, NOW_EVERY_MS);
}

// Requests everything again after a change other than a commit, such as an extension of the run.
async function renew() {
  const fresh = await connection.ask(`${url}?format=json${grid.filter}`);
  if (!fresh) return;
  if (fresh.status !== run.status) announce(`The run is ${fresh.status}.`);
  if (fresh.total_slots !== run.total_slots) announce(`The run now has ${counted(fresh.total_slots, "trial")}.`);
  const hasGrown = fresh.total_slots !== run.total_slots;
  run = fresh;
  if (hasGrown) grid.reset(run.grid);
  else grid.renewSoon();
  draw();
  drawCharts();
  completeTotals();
  askNow();
}

draw();
drawCharts();
completeTotals();
document.addEventListener("theme", drawCharts);
