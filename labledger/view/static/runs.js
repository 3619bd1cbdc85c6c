// The screen of all runs. Progress follows commits; the rest is requested again when it changes.
import { Connection, announce, embedded } from "./connection.js";
import { ago, clockTime, count, counted } from "./format.js";
import { html, show } from "./html.js";
import { Money, Progress, RunState } from "./pieces.js";

const AT_MOST_EVERY_MS = 1000;
let page = embedded();

const Row = ({ run }) => html`
  <tr data-item key=${run.run_id}>
    <td><${RunState} run=${run} />
      ${run.paused.length > 0 && html`<small>${run.paused.join(", ")}</small>`}
      ${run.stop && html`<small>${run.stop.cause}</small>`}
      ${run.waiting_requests > 0 && html`<small>${counted(run.waiting_requests, "request")} waiting</small>`}</td>
    <th scope="row"><a class="name" href="/runs/${encodeURIComponent(run.run_id)}">${run.name || run.run_id}</a>
      <small class="mono">${run.run_id}</small></th>
    <td class="slots">${count(run.committed)} of ${count(run.total_slots)}<${Progress} total=${run.total_slots} committed=${run.committed} /></td>
    <td class=${run.rate_per_h == null ? "absent" : ""}>
      ${run.rate_per_h != null && html`${count(Math.round(run.rate_per_h))} an hour`}
      ${run.eta_s != null && html`<small>about ${clockTime(run.eta_s)} left</small>`}</td>
    <td data-label="cost"><${Money} cost=${run.cost_usd} incomplete=${run.cost_is_incomplete} budget=${run.budget.cost_usd} /></td>
    <td class=${run.owner ? "" : "absent"}>${run.owner && html`${run.owner.host}<small>process ${run.owner.pid}</small>`}</td>
    <td class=${run.tags.length || run.notes ? "" : "absent"}>
      ${run.tags.map((tag) => html`<span class="tag">${tag}</span>${" "}`)}
      ${run.notes > 0 && html`<small>${counted(run.notes, "note")}</small>`}</td>
    <td class="nowrap" data-label="changed"><time dateTime=${run.updated_at} data-ago title=${run.updated_at}>${ago(run.updated_at)}</time></td>
  </tr>`;

function Runs({ runs }) {
  if (!runs.length) return html`<p class="empty">No run matches. <a href="/">Show all runs</a></p>`;
  const heads = ["State", "Run", "Trials saved", "Pace", "Cost", "Coordinator", "Tags and notes", "Changed"];
  return html`<table class="runs cards">
    <thead><tr>${heads.map((head) => html`<th scope="col">${head}</th>`)}</tr></thead>
    <tbody>${runs.map((run) => html`<${Row} run=${run} key=${run.run_id} />`)}</tbody>
  </table>`;
}

const draw = () => show("runs", html`<${Runs} runs=${page.runs} />`);

// -- what changes

let due = null;
let isAsking = false;
function renew() {
  if (due !== null || isAsking) {
    due ??= setTimeout(fetchPage, AT_MOST_EVERY_MS);
    return;
  }
  fetchPage();
}

async function fetchPage() {
  clearTimeout(due);
  due = null;
  isAsking = true;
  const url = new URL(location.href);
  url.searchParams.set("format", "json");
  const fresh = await connection.ask(url);
  isAsking = false;
  if (!fresh) return;
  const words = new Map(page.runs.map((run) => [run.run_id, run.status]));
  page = fresh;
  for (const run of page.runs) {
    if (words.get(run.run_id) !== run.status) announce(`${run.name || run.run_id}: ${run.status}`);
  }
  document.getElementById("runs-total").textContent = counted(page.total, "run");
  draw();
}

// Draw at once, so that no element with the focus is replaced later.
draw();
const connection = new Connection(null, {
  opened: () => renew(),
  commit: (event) => {
    const run = page.runs.find((each) => each.run_id === event.run);
    if (run) {
      Object.assign(run, { committed: event.upto, total_slots: event.total, status: event.status });
      draw();
    }
    renew();
  },
  state: () => renew(),
});
