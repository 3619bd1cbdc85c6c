// Pause, limits and stop of a run. What will happen is asked of the server and said before it is done.
import { announce, ask } from "./connection.js";
import { html, useEffect, useRef, useState } from "./html.js";

const KINDS = {
  pause: ["Pause", "Pause dispatch"],
  unpause: ["Go on", "Go on with what is paused"],
  set: ["Limits", "Change limits"],
  stop: ["Stop", "Stop the run"],
};

// The part of a run that is paused or goes on.
const Part = ({ run, change }) => html`
  <label>What <select name="variant" onChange=${change}><option value="">the whole run</option>${run.variants.map(
    ({ variant_id: name }) => html`<option value=${name}>variant ${name}</option>`)}</select></label>
  <label>Only tasks that fit <input name="task" placeholder="glob, optional" autocomplete="off" onChange=${change} /></label>`;

const Limits = ({ run, change }) => html`
  <label>Trials at once <input name="max_concurrency" inputmode="numeric" placeholder=${run.progress.max_concurrency ?? ""} onChange=${change} /></label>
  <label>Budget in USD <input name="budget_usd" inputmode="decimal" placeholder=${run.budget.cost_usd ?? "none"} onChange=${change} /></label>
  <label>Budget in tokens <input name="budget_tokens" inputmode="numeric" placeholder=${run.budget.tokens ?? "none"} onChange=${change} /></label>`;

const Stop = ({ change }) => html`
  <label class="row"><input type="checkbox" name="now" value="yes" onChange=${change} /> kill running trials; they run again on resume</label>`;

const All = ({ change }) => html`
  <label class="row"><input type="checkbox" name="all" value="yes" onChange=${change} /> end every pause</label>`;

function Dialog({ kind, run, url, done }) {
  const [will, setWill] = useState({});
  const form = useRef(null);
  const dialog = useRef(null);
  const send = (more) => {
    const fields = new URLSearchParams([...new FormData(form.current)].filter(([, value]) => value));
    for (const [name, value] of Object.entries({ kind, ...more })) fields.set(name, value);
    return ask(`${url}/control`, { method: "POST", body: fields });
  };
  const preview = async () => {
    try {
      setWill({ text: (await send({ dry_run: "yes" })).text });
    } catch (error) {
      setWill({ problem: error.message, hint: error.hint });
    }
  };
  const submit = async (event) => {
    event.preventDefault();
    try {
      announce((await send({})).text);
      done(true);
    } catch (error) {
      setWill({ problem: error.message, hint: error.hint });
    }
  };
  useEffect(() => {
    dialog.current.showModal();
    // Limits are asked about once there are some.
    if (kind !== "set") preview();
  }, []);
  const title = KINDS[kind][1];
  return html`<dialog ref=${dialog} aria-labelledby="control-title" onClose=${() => done(false)}>
    <h2 id="control-title">${title}</h2>
    <form ref=${form} onSubmit=${submit}>
      <div class="controls">
        ${(kind === "pause" || kind === "unpause") && html`<${Part} run=${run} change=${preview} />`}
        ${kind === "unpause" && html`<${All} change=${preview} />`}
        ${kind === "set" && html`<${Limits} run=${run} change=${preview} />`}
        ${kind === "stop" && html`<${Stop} change=${preview} />`}
        <label>Why <input name="because" maxlength="1000" placeholder="optional, stored with the request" autocomplete="off" /></label>
      </div>
      <div aria-live="polite">
        ${will.text && html`<p class="will">${will.text}.</p>`}
        ${will.problem && html`<p class="notice">${will.problem}${will.hint && html`<br />${will.hint}`}</p>`}
      </div>
      <div class="actions">
        <button class=${kind === "stop" ? "danger" : "primary"} disabled=${Boolean(will.problem) || !will.text}>${title}</button>
        <button type="button" onClick=${() => dialog.current.close()}>Leave it</button>
      </div>
    </form>
  </dialog>`;
}

export function Controls({ run, url, renew }) {
  const [kind, setKind] = useState(null);
  if (run.status === "completed") return null;
  const shown = ["pause", run.paused.length > 0 && "unpause", "set", run.owned && "stop"].filter(Boolean);
  const done = (hasChanged) => {
    setKind(null);
    if (hasChanged) renew();
  };
  return html`<span class="actions">
    ${shown.map((each) => html`<button type="button" key=${each} onClick=${() => setKind(each)}>${KINDS[each][0]}</button>`)}
    ${kind && html`<${Dialog} kind=${kind} run=${run} url=${url} done=${done} />`}
  </span>`;
}
