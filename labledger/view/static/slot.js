// The screen of a trial. It follows the output while the trial runs, and loads the page again once the
// trial's state changes, such as from running to committed.
import { Connection, ask, embedded } from "./connection.js";
import { counted } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { render } from "./vendor/preact.js";

const FOLLOW_EVERY_MS = 1000;
const MAX_SHOWN = 400_000;
const PHASES = ["setup", "agent", "grader"];
const STREAMS = ["stdout", "stderr"];

const slot = embedded();

function Output({ url, isLive, first }) {
  const [phase, setPhase] = useState("agent");
  const [stream, setStream] = useState(first);
  const [text, setText] = useState("");
  const [word, setWord] = useState("asking");
  const box = useRef(null);
  const isAtEnd = useRef(true);

  useEffect(() => {
    let from = 0;
    let of = "";
    let isOver = false;
    let timer = null;
    setText("");
    async function follow() {
      try {
        const piece = await ask(`${url}?phase=${phase}&stream=${stream}&from=${from}${of}`);
        if (isOver) return;
        const hasMore = piece.next > from && piece.next < (piece.size ?? piece.next);
        // Another attempt, or its stored output, starts from the beginning.
        const isContinued = piece.from >= from;
        const gap = piece.skipped ? `\n… ${counted(piece.skipped, "byte")} skipped …\n` : "";
        from = piece.next;
        of = `&of=${encodeURIComponent(piece.of)}`;
        setText((before) => ((isContinued ? before : "") + gap + piece.text).slice(-MAX_SHOWN));
        setWord(piece.withheld ?? (piece.ended ? (from ? "" : "Nothing was printed.") : "follows"));
        if (piece.ended && !hasMore) return;
        timer = setTimeout(follow, hasMore ? 0 : FOLLOW_EVERY_MS);
      } catch (error) {
        if (isOver) return;
        setWord(error.message);
        // A deleted run has no output.
        if (error.status === 404) return;
        timer = setTimeout(follow, 5 * FOLLOW_EVERY_MS);
      }
    }
    follow();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [phase, stream]);

  useEffect(() => {
    if (isAtEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text]);
  const scrolled = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    isAtEnd.current = scrollHeight - scrollTop - clientHeight < 40;
  };

  const choose = (name, value, set, choices) => html`<label>${name} <select value=${value} onChange=${(event) => set(event.target.value)}>${choices.map(
    (choice) => html`<option selected=${choice === value}>${choice}</option>`)}</select></label>`;
  return html`
    <div class="controls">${choose("Phase", phase, setPhase, PHASES)}${choose("Stream", stream, setStream, STREAMS)}
      <span class="small quiet">${word}${isLive && word === "follows" && ": scroll up to stay where you are"}</span></div>
    <pre class="text follow" tabindex="0" ref=${box} onScroll=${scrolled} role="log" aria-live="off" aria-label="Output of the ${phase}, ${stream}">${text}</pre>`;
}

for (const place of document.querySelectorAll("[data-logs]")) {
  const begin = () => {
    if (place.dataset.begun) return;
    place.dataset.begun = "yes";
    place.replaceChildren();
    render(html`<${Output} url=${place.dataset.logs} isLive=${slot.state !== "committed"} first=${place.dataset.stream ?? "stdout"} />`, place);
  };
  const details = place.closest("details");
  if (details && !details.open) details.addEventListener("toggle", begin);
  else begin();
}

// -- watch a trial that is not committed yet

const moving = [slot, slot.beside].filter((side) => side && side.state !== "committed");
let lookTimer = null;
async function look() {
  for (const side of moving) {
    const now = await connection.ask(`/runs/${encodeURIComponent(slot.run_id)}/slots/${side.slot.schedule_idx}/now`);
    const attempt = side.attempts.at(-1)?.attempt ?? null;
    if (now && (now.state !== side.state || now.attempt !== attempt)) return void location.reload();
  }
  clearTimeout(lookTimer);
  if (connection.isLive && !document.hidden) lookTimer = setTimeout(look, FOLLOW_EVERY_MS);
}

const connection = moving.length ? new Connection(slot.run_id, { opened: look }) : null;
