// Components of several screens; templates/macros.html.j2 has the same for pages without a script.
import { count, counted, usd } from "./format.js";
import { html } from "./html.js";

export const State = ({ word, shape }) => html`<span class="state ${shape ?? word}">${word}</span>`;

export function RunState({ run }) {
  if (run.lost) return html`<${State} word="no coordinator" shape="lost" />`;
  if (run.status === "running" && run.paused?.length)
    return html`<${State} word=${run.paused.includes("the run") ? "paused" : "partly paused"} shape="paused" />`;
  return html`<${State} word=${run.status} />`;
}

export const Progress = ({ total, committed, staged = 0, open = 0 }) => html`
  <svg class="progress" viewBox="0 0 ${Math.max(total, 1)} 1" preserveAspectRatio="none" role="img"
    aria-label="${count(committed)} of ${counted(total, "trial")} saved">
    <rect class="committed" width=${committed} height="1" /><rect class="staged" x=${committed} width=${staged} height="1" /><rect
      class="open" x=${committed + staged} width=${open} height="1" />
  </svg>`;

export const Interval = ({ rate }) => html`
  <svg class="interval" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
    ${[0, 25, 50, 75, 100].map((x) => html`<line class="rule" x1=${x} x2=${x} y1="0" y2="10" />`)}
    ${rate.low != null && html`<line class="band" x1=${100 * rate.low} x2=${100 * rate.high} y1="5" y2="5" />`}
    ${rate.counted > 0 &&
    html`<line class="value" x1=${(100 * rate.passed) / rate.counted} x2=${(100 * rate.passed) / rate.counted} y1="1" y2="9" />`}
  </svg>`;

export const Money = ({ cost, budget, incomplete }) => html`${incomplete && cost != null && "at least "}${usd(cost)}${budget != null && html` <small>of ${usd(budget)}</small>`}`;
