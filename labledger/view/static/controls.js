// Pause, limits, stop of a run, and its cancelled variants. What will happen is asked of the server and said before it is done.
import { announce, ask } from "./connection.js";
import { html, useEffect, useRef, useState } from "./html.js";

const KINDS = {
  pause: ["Pause", "Pause dispatch"],
  unpause: ["Go on", "Go on with what is paused"],
  set: ["Limits", "Change limits"],
  stop: ["Stop", "Stop the run"],
  cancel: ["Cancel", "Cancel a variant"],
};

// A part of a run is chosen in a field of its own, as SCOPE=NAME; without a scope it is the run.
const TASKS = "task=";
const variants = (run) => run.variants.map(
  ({ variant_id: name }) => html`<option value=${`variant=${name}`}>variant ${name}</option>`);

function Pause({ run, change }) {
  const [part, setPart] = useState("");
  useEffect(() => void change(), [part]);
  return html`
    <label>What <select name="part" onChange=${(event) => setPart(event.target.value)}>
      <option value="">the whole run</option>${variants(run)}${run.on && run.hosts.map(
      ({ host }) => html`<option value=${`host=${host}`}>host ${host}</option>`)}
      <option value=${TASKS}>tasks that fit a glob</option></select></label>
    ${part === TASKS && html`<label>Glob <input name="task" required autocomplete="off" onChange=${change} /></label>`}`;
}

const Unpause = ({ run, change }) => html`
  <label>What <select name="part" onChange=${change}>
    <option value="all=yes">everything that is paused</option>${run.latches.map(
    ({ scope, name, text }) => html`<option value=${name && `${scope}=${name}`}>${text}</option>`)}</select></label>`;

const Cancel = ({ run, change }) => html`
  <label>What <select name="part" required onChange=${change}><option value="">choose a variant</option>${variants(run)}</select></label>`;

const Limits = ({ run, change }) => html`
  <label>Trials at once <input name="max_concurrency" inputmode="numeric" placeholder=${run.progress.max_concurrency ?? ""} onChange=${change} /></label>
  <label>Budget in USD <input name="budget_usd" inputmode="decimal" placeholder=${run.budget.cost_usd ?? "none"} onChange=${change} /></label>
  <label>Budget in tokens <input name="budget_tokens" inputmode="numeric" placeholder=${run.budget.tokens ?? "none"} onChange=${change} /></label>
  ${run.on && html`<label>At most on each host <input name="at_most_per_host" inputmode="numeric" onChange=${change} /></label>`}`;

const Stop = ({ change }) => html`
  <label class="row"><input type="checkbox" name="now" value="yes" onChange=${change} /> kill running trials; they run again on resume</label>`;

const FIELDS = { pause: Pause, unpause: Unpause, set: Limits, stop: Stop, cancel: Cancel };

function Dialog({ kind, run, url, done }) {
  const [will, setWill] = useState({});
  const form = useRef(null);
  const dialog = useRef(null);
  const send = (more) => {
    const fields = new URLSearchParams([...new FormData(form.current)].filter(([, value]) => value));
    const [, scope, name] = /^(\w+)=(.+)$/s.exec(fields.get("part")) ?? [];
    fields.delete("part");
    for (const [key, value] of Object.entries({ kind, ...(scope && { [scope]: name }), ...more })) fields.set(key, value);
    return ask(`${url}/control`, { method: "POST", body: fields });
  };
  const preview = async () => {
    if (!form.current.checkValidity()) return setWill({});
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
    // Limits and variants are asked about once there are some.
    if (kind === "unpause" || kind === "stop") preview();
  }, []);
  const title = KINDS[kind][1];
  const isFinal = kind === "stop" || kind === "cancel";
  return html`<dialog ref=${dialog} aria-labelledby="control-title" onClose=${() => done(false)}>
    <h2 id="control-title">${title}</h2>
    <form ref=${form} onSubmit=${submit}>
      <div class="controls">
        <${FIELDS[kind]} run=${run} change=${preview} />
        <label>Why <input name="because" maxlength="1000" placeholder="optional, stored with the request" autocomplete="off" /></label>
      </div>
      <div aria-live="polite">
        ${will.text && html`<p class="will">${will.text}.</p>`}
        ${will.problem && html`<p class="notice">${will.problem}${will.hint && html`<br />${will.hint}`}</p>`}
      </div>
      <div class="actions">
        <button class=${isFinal ? "danger" : "primary"} disabled=${Boolean(will.problem) || !will.text}>${title}</button>
        <button type="button" onClick=${() => dialog.current.close()}>Leave it</button>
      </div>
    </form>
  </dialog>`;
}

export function Controls({ run, url, renew }) {
  const [kind, setKind] = useState(null);
  if (run.status === "completed") return null;
  const shown = ["pause", run.latches.length > 0 && "unpause", "set", run.owned && "stop", run.spent.cost_usd && "cancel"].filter(Boolean);
  const done = (hasChanged) => {
    setKind(null);
    if (hasChanged) renew();
  };
  return html`<span class="actions">
    ${shown.map((each) => html`<button type="button" key=${each} onClick=${() => setKind(each)}>${KINDS[each][0]}</button>`)}
    ${kind && html`<${Dialog} kind=${kind} run=${run} url=${url} done=${done} />`}
  </span>`;
}
