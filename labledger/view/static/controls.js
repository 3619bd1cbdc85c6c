// The dialogs that pause, limit or stop a run or cancel a variant. Each shows what will happen, as the server
// says, before it sends the request.
import { announce, ask } from "./connection.js";
import { html, useEffect, useRef, useState } from "./html.js";

const AGAIN_MS = 1000;
// The delay between the last key press and the request for a preview.
const TYPED_MS = 400;
const KINDS = {
  pause: ["Pause", "Start no more trials"],
  unpause: ["Unpause", "End a pause"],
  set: ["Limits", "Change limits"],
  stop: ["Stop", "Stop the run"],
  cancel: ["Cancel", "Cancel a variant"],
};

// One field chooses the part of a run: SCOPE=NAME, or SCOPE= with the name in a second field. An empty
// value means the whole run.
const TASKS = "task=";
const HOST = "host=";
const variants = (run) => run.variants.map(
  ({ variant_id: name }) => html`<option value=${`variant=${name}`}>variant ${name}</option>`);

function Pause({ run }) {
  const [part, setPart] = useState("");
  return html`
    <label>What <select name="part" onChange=${(event) => setPart(event.target.value)}>
      <option value="">the whole run</option>${variants(run)}${run.on && html`<option value=${HOST}>a host</option>`}
      <option value=${TASKS}>tasks that match a glob</option></select></label>
    ${part === TASKS && html`<label key=${TASKS}>Glob <input name="name" required autocomplete="off" /></label>`}
    ${part === HOST && html`<label key=${HOST}>Host <input name="name" required autocomplete="off" list="known-hosts" />
      <datalist id="known-hosts">${run.hosts.map(({ host }) => html`<option value=${host} />`)}</datalist></label>`}`;
}

const Unpause = ({ run }) => html`
  <label>What <select name="part">
    <option value="all=yes">everything that is paused</option>${run.latches.map(
    ({ scope, name, text }) => html`<option value=${name && `${scope}=${name}`}>${text}</option>`)}</select></label>`;

const Cancel = ({ run }) => html`
  <label>What <select name="part" required><option value="">choose a variant</option>${variants(run)}</select></label>`;

const Limits = ({ run }) => html`
  <label>Trials at once <input name="max_concurrency" inputmode="numeric" placeholder=${run.progress.max_concurrency ?? ""} /></label>
  <label>Budget in USD <input name="budget_usd" inputmode="decimal" placeholder=${run.budget.cost_usd ?? "none"} /></label>
  <label>Budget in tokens <input name="budget_tokens" inputmode="numeric" placeholder=${run.budget.tokens ?? "none"} /></label>
  ${run.on && html`<label>At most on each host <input name="at_most_per_host" inputmode="numeric" /></label>`}`;

const Stop = () => html`
  <label class="row"><input type="checkbox" name="now" value="yes" /> kill running trials; they run again on resume</label>`;

const FIELDS = { pause: Pause, unpause: Unpause, set: Limits, stop: Stop, cancel: Cancel };

// Returns the fields of a form as request parameters for the server.
function asked(kind, form) {
  const fields = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
  const [, scope, chosen] = /^(\w+)=(.*)$/s.exec(fields.get("part")) ?? [];
  if (scope) fields.set(scope, chosen || fields.get("name"));
  for (const name of ["part", "name"]) fields.delete(name);
  fields.set("kind", kind);
  return fields;
}

function Dialog({ kind, run, url, done }) {
  // The choices stay as they were when the dialog opened, although the run continues.
  const [opened] = useState({ ...run });
  // The server's preview of the effect, and the form values that it is for.
  const [will, setWill] = useState({});
  const [isSending, setSending] = useState(false);
  const form = useRef(null);
  const dialog = useRef(null);
  const previewed = useRef(null);
  const pause = useRef(null);
  const hasAsked = useRef(false);
  const send = (fields) => ask(`${url}/control`, { method: "POST", body: fields });
  // The form values without the reason, which has no effect on the preview.
  const meant = () => {
    const fields = asked(kind, form.current);
    fields.delete("because");
    return fields.toString();
  };
  const forget = () => {
    previewed.current = null;
    setWill({});
  };
  const preview = async () => {
    forget();
    // Fields that a choice adds exist after the next drawing.
    await null;
    const of = meant();
    previewed.current = of;
    if (!form.current.checkValidity()) return;
    const said = await send(new URLSearchParams(`${of}&dry_run=yes`)).catch(
      (error) => ({ problem: error.message, hint: error.hint, isLost: error.status === undefined }));
    if (of !== previewed.current) return;
    setWill({ ...said, of });
    if (said.isLost) setTimeout(() => form.current && of === previewed.current && preview(), AGAIN_MS);
  };
  const typed = () => {
    forget();
    clearTimeout(pause.current);
    pause.current = setTimeout(() => form.current && meant() !== previewed.current && preview(), TYPED_MS);
  };
  const changed = (handle) => () => meant() !== previewed.current && handle();
  const submit = async (event) => {
    event.preventDefault();
    if (isSending) return;
    // Send nothing whose effect was not shown before.
    if (meant() !== will.of) return void preview();
    setSending(true);
    try {
      announce((await send(asked(kind, form.current))).text);
      hasAsked.current = true;
      dialog.current?.close();
    } catch (error) {
      setWill({ problem: error.message, hint: error.hint });
      setSending(false);
    }
  };
  useEffect(() => {
    dialog.current.showModal();
    // These two need values before they have a preview.
    if (kind !== "set" && kind !== "cancel") preview();
  }, []);
  const title = KINDS[kind][1];
  const isFinal = kind === "stop" || kind === "cancel";
  return html`<dialog ref=${dialog} aria-labelledby="control-title" onClose=${() => done(hasAsked.current)}>
    <h2 id="control-title">${title}</h2>
    <form ref=${form} onSubmit=${submit} onInput=${changed(typed)} onChange=${changed(preview)}>
      <div class="controls">
        <${FIELDS[kind]} run=${opened} />
        <label>Why <input name="because" maxlength="1000" placeholder="optional, stored with the request" autocomplete="off" /></label>
      </div>
      <div aria-live="polite">
        ${will.text && html`<p class="will">${will.text}.</p>`}
        ${will.problem && html`<p class="notice">${will.problem}${will.hint && html`<br />${will.hint}`}</p>`}
      </div>
      <div class="actions">
        <button class=${isFinal ? "danger" : "primary"} disabled=${isSending || !will.text}>${title}</button>
        <button type="button" onClick=${() => dialog.current.close()}>Leave it</button>
      </div>
    </form>
  </dialog>`;
}

export function Controls({ run, url, renew }) {
  const [kind, setKind] = useState(null);
  if (run.status === "completed") return null;
  // The trials of a regrading cannot be cancelled.
  const isRegrading = run.regrades !== null;
  const shown = ["pause", run.latches.length > 0 && "unpause", "set", run.owned && "stop", !isRegrading && "cancel"].filter(Boolean);
  const done = (hasChanged) => {
    setKind(null);
    if (hasChanged) renew();
  };
  return html`<span class="actions">
    ${shown.map((each) => html`<button type="button" key=${each} onClick=${() => setKind(each)}>${KINDS[each][0]}</button>`)}
    ${kind && html`<${Dialog} kind=${kind} run=${run} url=${url} done=${done} />`}
  </span>`;
}
