// The live parts of a run's screen. templates/run.html.j2 has the same parts for pages without a script.
import { ago, clockTime, count, counted, dateAndTime, duration, percent, rounded, usd } from "./format.js";
import { html, useState } from "./html.js";
import { Interval, Progress, State } from "./pieces.js";

const MOST_SHOWN = 12;
const LAST_LINES = 3;
const NOTHING = { known: 0, total: null };
const slotUrl = (url, idx) => `${url}/slots/${idx}`;

export const Owner = ({ run }) => run.owner && html`process ${run.owner.pid} on ${run.owner.host}`;

export const Ended = ({ run }) => run.ended_at && html`ended ${dateAndTime(run.ended_at)}`;

const GradingName = ({ grading, shown }) => {
  const name = `grading ${grading.generation}`;
  const page = grading.counts ? grading.root_id : grading.grading_id;
  return grading.generation === shown.generation ? html`<b>${name}</b>` : html`<a href="/runs/${encodeURIComponent(page)}">${name}</a>`;
};

const gradingRank = (grading) => (grading.counts ? " (current)" : grading.complete ? "" : " (not complete)");

export const Gradings = ({ run }) =>
  run.gradings.length > 1 &&
  html`Outcomes by${run.gradings.map(
    (grading, number) => html`<span key=${grading.generation}> <${GradingName} grading=${grading} shown=${run.grading} />${gradingRank(grading)} <span class="quiet">of ${dateAndTime(grading.created_at)}${grading.grader_digest && html`, grader <code>${grading.grader_digest.slice(0, 12)}</code>`}</span>${number < run.gradings.length - 1 && ","}</span>`,
  )}`;

export const Notices = ({ run }) => run.sentences.notices.map((text) => html`<p class="notice" key=${text}>${text}</p>`);

const Figure = ({ name, value, note }) => html`<div><dt>${name}</dt><dd>${value}${note && html`<small>${note}</small>`}</dd></div>`;

export function Figures({ run }) {
  const { cost_usd: cost = NOTHING, tokens = NOTHING } = run.spent;
  const { staged, running } = run.progress;
  const ofBudget = run.budget.cost_usd != null && `of ${usd(run.budget.cost_usd)}`;
  const costNote = [ofBudget, cost.known > 0 && cost.unknown > 0 && `without ${counted(cost.unknown, "attempt")} of unknown cost`].filter(Boolean).join(", ");
  return html`
    <${Progress} total=${run.total_slots} committed=${run.committed} staged=${staged} open=${running} />
    <ul class="key">
      <li><span class="swatch committed"></span>${count(run.committed)} of ${count(run.total_slots)} saved</li>
      ${staged > 0 && html`<li><span class="swatch staged"></span>${count(staged)} finished, waiting to be saved</li>`}
      ${running > 0 && html`<li><span class="swatch open"></span>${count(running)} running</li>`}
    </ul>
    <dl class="figures">
      <${Figure} name="saved" value=${count(run.committed)} note="of ${counted(run.total_slots, "trial")}" />
      <${Figure} name="pace" value=${run.progress.rate_per_h == null ? "–" : count(Math.round(run.progress.rate_per_h))} note="trials an hour" />
      <${Figure} name="time left" value=${run.progress.eta_s == null ? "–" : clockTime(run.progress.eta_s)} />
      <${Figure} name="cost" value=${cost.known ? usd(cost.total) : "–"} note=${costNote} />
      <${Figure} name="tokens" value=${tokens.known ? rounded(tokens.total) : "–"} note=${run.budget.tokens != null && `of ${rounded(run.budget.tokens)}`} />
    </dl>`;
}

// The number of sentences of an answer that are shown without a click.
const ANSWER_SENTENCES = 2;
const QUESTIONS = [
  ["pace", "What sets the pace?"],
  ["cost", "What has it cost?"],
  ["ahead", "Which variant is ahead, and how sure is that?"],
  ["failed", "What failed last?"],
];

export const Answers = ({ run, url }) =>
  QUESTIONS.map(
    ([key, question]) => html`<div key=${key}>
      <h2>${question}</h2>
      ${run.sentences[key].slice(0, ANSWER_SENTENCES).map((text) => html`<p>${text}</p>`)}
      ${key === "failed" &&
      run.last_failed != null &&
      html`<p><a href=${slotUrl(url, run.last_failed.schedule_idx)}>What its agent did: trial ${run.last_failed.schedule_idx}</a></p>`}
      ${run.sentences[key].length > ANSWER_SENTENCES &&
      html`<details><summary>More</summary>${run.sentences[key].slice(ANSWER_SENTENCES).map((text) => html`<p>${text}</p>`)}</details>`}
    </div>`,
  );

// A dispatched trial is prepared before it starts, and may be paused until then.
const phaseOf = ({ phase, paused }) => (paused ? "paused" : phase === "preparing" ? "not started yet" : phase ?? "running");

const Slot = ({ slot, url }) => html`
  <li data-item>
    <span class="who"><a href=${slotUrl(url, slot.schedule_idx)}>trial ${slot.schedule_idx}</a> ${slot.variant_id} · ${slot.task_id}${
      slot.attempt > 1 && ` · attempt ${slot.attempt}`}</span>
    <span class="where"><span class="phase">${phaseOf(slot)}</span> ${slot.seconds != null && clockTime(slot.seconds)} · ${slot.host}</span>
    ${slot.last_lines.length > 0 && html`<pre>${slot.last_lines.slice(-LAST_LINES).join("\n")}</pre>`}
    ${slot.withheld && html`<p class="small quiet">${slot.withheld}</p>`}
  </li>`;

export function Running({ run, url }) {
  const [isWhole, setWhole] = useState(false);
  const shown = isWhole ? run.running : run.running.slice(0, MOST_SHOWN);
  const more = run.running.length - MOST_SHOWN;
  if (!shown.length) return html`<p class="empty">No trial runs.</p>`;
  return html`
    <ol class="running">${shown.map((slot) => html`<${Slot} slot=${slot} url=${url} key=${slot.schedule_idx} />`)}</ol>
    ${more > 0 &&
    html`<button class="plain" aria-expanded=${isWhole} onClick=${() => setWhole(!isWhole)}>${
      isWhole ? "Show fewer" : `Show ${more} more`}</button>`}`;
}

export const Rates = ({ run }) => html`
  ${run.interim && html`<p class="quiet small">${run.interim}</p>`}
  <div class="scroll"><table>
    <thead><tr><th scope="col">Variant</th><th scope="col" class="number">Passed</th><th scope="col" class="number">Rate</th>
      <th scope="col"><span class="axis"><span>0</span><span>50</span><span>100%</span></span></th>
      <th scope="col" class="number">Interval</th><th scope="col" class="number">Cost</th><th scope="col" class="number">Time</th></tr></thead>
    <tbody>${run.variants.map(({ variant_id: name, role, rate, cost, mean_duration_ms: mean }) => html`
      <tr key=${name}><th scope="row">${name}${role === "baseline" && html` <small>baseline</small>`}</th>
        <td class="number">${count(rate.passed)} of ${count(rate.counted)}</td>
        <td class="number strong">${percent(rate.counted ? rate.passed / rate.counted : null)}</td>
        <td><${Interval} rate=${rate} /></td>
        <td class="number quiet">${rate.low != null && `${(100 * rate.low).toFixed(1)} to ${(100 * rate.high).toFixed(1)}`}</td>
        <td class="number">${usd(cost.known ? cost.total : null)}</td><td class="number">${duration(mean)}</td></tr>`)}</tbody>
  </table></div>`;

export function Errors({ run, url }) {
  if (!run.errors.length) return html`<p class="empty">${run.committed ? "Every saved trial completed." : "No trial is saved yet."}</p>`;
  return html`<div class="scroll"><table>
    <thead><tr><th scope="col">Status</th><th scope="col">Reason</th><th scope="col" class="number">Trials</th><th scope="col">Most recent</th></tr></thead>
    <tbody>${run.errors.map((error) => html`
      <tr key=${error.status + error.reason}><td><${State} word=${error.status} shape="failed" /></td><td>${error.reason ?? "–"}</td>
        <td class="number">${count(error.count)}</td><td class="nowrap"><a href=${slotUrl(url, error.last_slot)}>trial ${error.last_slot}</a></td></tr>`)}</tbody>
  </table></div>`;
}

export function Hosts({ run }) {
  if (!run.hosts.length) return html`<p class="empty">No host has a trial of this run.</p>`;
  return html`<table>
    <thead><tr><th scope="col">Host</th><th scope="col" class="number">Trials</th><th scope="col">State</th></tr></thead>
    <tbody>${run.hosts.map((host) => html`
      <tr key=${host.host}><th scope="row">${host.host}</th><td class="number">${host.trials}${host.slots != null && ` of ${host.slots}`}</td>
        <td>${host.problem ? html`<${State} word=${host.problem} shape="lost" />` : host.paused ? html`<${State} word="paused" />` : html`<${State} word="takes trials" shape="pass" />`}</td></tr>`)}</tbody>
  </table>`;
}

export function Requests({ run }) {
  if (!run.requests.length) return html`<p class="empty">No request was made of this run.</p>`;
  return html`<table class="cards">
    <thead><tr><th scope="col">What</th><th scope="col">By</th><th scope="col">When</th><th scope="col">Applied</th></tr></thead>
    <tbody>${run.requests.map((request) => html`
      <tr key=${request.number}><th scope="row">${request.text}</th>
        <td>${request.requested_by}${request.because && html`<br /><small>${request.because}</small>`}</td>
        <td><time dateTime=${request.requested_at} data-ago>${ago(request.requested_at)}</time></td>
        <td>${request.applied_at ? (request.outcome ?? ago(request.applied_at)) : html`<${State} word="waits" shape="open" />`}</td></tr>`)}</tbody>
  </table>`;
}
