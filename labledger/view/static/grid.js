// The grid of tasks and variants. The page holds only the rows in view, however many tasks there are.
// Outcomes are requested in blocks of 200 tasks; the most recently seen blocks are kept.
import { counted } from "./format.js";
import { html, show } from "./html.js";

const BLOCK = 200;
const MAX_BLOCKS = 40;
// The delay before a failed block, or the result of a filter, is requested again.
const AGAIN_MS = 2000;
// Rows are created eight at a time, so that most frames of a scroll create none.
const STEP_ROWS = 8;
const SPARE_ROWS = 8;
// Browsers misplace elements much further down than this.
const MAX_HEIGHT_PX = 8_000_000;

// The heights of a row and of the head, as in style.css.
const ROW_REM = 1.75;
const HEAD_REM = 2.25;
const rem = () => parseFloat(getComputedStyle(document.documentElement).fontSize);

// The class and sign of each outcome; the same as in templates/macros.html.j2.
export const OUTCOMES = {
  p: ["pass", "✓"],
  f: ["fail", "✕"],
  m: ["missing", "?"],
  e: ["error", "!"],
  x: ["ungraded", "✕"],
  i: ["left-out", "○"],
  c: ["none", "⊘"],
  ".": ["running", "▸"],
  "-": ["open", "·"],
};
const RUNNING = ["running", "▸"];
const UNKNOWN = ["open", "?"];

// Returns a filter as parameters to append to the address of a page of the grid.
function filterOf(words) {
  const given = new URLSearchParams(Object.entries(words).filter(([, value]) => value));
  return given.size ? `&${given}` : "";
}

export class Grid {
  // `ask` returns the document at an address, or null.
  constructor(place, url, first, ask) {
    this.place = place;
    this.ask = ask;
    this.url = url;
    this.runUrl = url.replace(/\/grid$/, "");
    this.filter = filterOf({ q: first.q, outcome: first.outcome });
    this.hasOutcome = Boolean(first.outcome);
    this.openSlots = new Set();
    this.begun = new Set();
    this.finds = 0;
    this.generation = 0;
    this.changes = 0;
    this.at = { row: 0, column: 0 };
    place.className = "grid";
    place.dataset.virtual = "";
    place.tabIndex = 0;
    place.setAttribute("role", "grid");
    place.setAttribute("aria-labelledby", "grid-title");
    place.replaceChildren();
    place.addEventListener("scroll", () => this.schedule(), { passive: true });
    place.addEventListener("keydown", (event) => this.press(event));
    place.addEventListener("move", (event) => this.step(event.detail));
    new ResizeObserver(() => this.schedule()).observe(place);
    this.listenToFilter();
    this.reset(first);
    this.place.scrollTop = ROW_REM * rem() * first.row;
  }

  // Starts over with a first block after the run has grown or the filter has changed.
  reset(first) {
    this.blocks = new Map();
    this.stale = new Set();
    this.asked = new Set();
    this.rows = new Map();
    this.legend = first.legend;
    this.variants = first.variants;
    this.generation += 1;
    this.changes += 1;
    if (first.row === 0) this.keep(0, first.tasks);
    document.getElementById("grid-paging")?.remove();
    this.resize(first.total_tasks);
    this.place.setAttribute("aria-colcount", this.variants.length + 1);
    this.place.style.setProperty("--variants", this.variants.length);
    this.place.style.setProperty("--variant-width", `${Math.max(5, 1.5 * first.replications)}rem`);
    this.draw();
  }

  resize(total) {
    this.total = total;
    document.getElementById("grid-count").textContent = counted(total, "task");
    this.place.setAttribute("aria-rowcount", total + 1);
  }

  listenToFilter() {
    const form = document.getElementById("grid-find");
    const submit = async (event) => {
      event?.preventDefault();
      const words = Object.fromEntries(new FormData(form));
      const filter = filterOf(words);
      this.finds += 1;
      const number = this.finds;
      const first = await this.ask(`${this.url}?row=0&limit=${BLOCK}${filter}`);
      if (!first || number !== this.finds) return;
      this.filter = filter;
      this.hasOutcome = Boolean(words.outcome);
      history.replaceState(null, "", filter ? `?${filter.slice(1)}` : location.pathname);
      this.place.scrollTop = 0;
      this.reset(first);
    };
    form.addEventListener("submit", submit);
    form.addEventListener("change", (event) => event.target.matches("select") && submit());
  }

  // -- what is known

  keep(block, tasks) {
    this.blocks.delete(block);
    this.blocks.set(block, tasks);
    if (this.blocks.size > MAX_BLOCKS) this.blocks.delete(this.blocks.keys().next().value);
  }

  task(row) {
    return this.blocks.get(Math.floor(row / BLOCK))?.[row % BLOCK];
  }

  async want(block) {
    if (this.asked.has(block)) return;
    const { asked, generation } = this;
    asked.add(block);
    const answer = await this.ask(`${this.url}?row=${block * BLOCK}&limit=${BLOCK}${this.filter}`);
    if (generation !== this.generation) return;
    if (answer) {
      // If the number of matching tasks has changed, so have the other blocks.
      if (answer.total_tasks !== this.total) this.stale = new Set(this.blocks.keys());
      this.stale.delete(block);
      this.keep(block, answer.tasks);
      this.resize(answer.total_tasks);
    } else {
      await new Promise((later) => setTimeout(later, AGAIN_MS));
    }
    asked.delete(block);
    this.changed();
  }

  // The tasks with an outcome change as trials start and end, so request the visible ones again.
  renewSoon() {
    if (!this.hasOutcome) return;
    this.renewal ??= setTimeout(() => {
      this.renewal = null;
      this.stale = new Set(this.blocks.keys());
      this.changed();
    }, AGAIN_MS);
  }

  // Enters committed slots into their cells.
  apply(slots) {
    for (const slot of slots) {
      const task = this.filter ? this.find(slot.task_id) : this.task(slot.task_idx);
      if (!task || task.task_id !== slot.task_id) continue;
      const place = task.slots[slot.variant_id]?.indexOf(slot.schedule_idx) ?? -1;
      if (place < 0) continue;
      const letters = task.cells[slot.variant_id];
      task.cells[slot.variant_id] = letters.slice(0, place) + slot.outcome + letters.slice(place + 1);
      this.rows.delete(task);
    }
    if (slots.length) this.renewSoon();
    this.changed();
  }

  find(taskId) {
    for (const tasks of this.blocks.values()) {
      const task = tasks.find((each) => each.task_id === taskId);
      if (task) return task;
    }
    return undefined;
  }

  // Marks the cells of running trials. After its trial has ended, a cell stays marked until the commit.
  running(running, waiting) {
    const now = new Set(running.map((slot) => slot.schedule_idx));
    const known = this.begun.size;
    for (const slot of [...running, ...waiting]) this.begun.add(slot.schedule_idx);
    const hasBegun = this.begun.size > known;
    if (!hasBegun && now.size === this.openSlots.size && [...now].every((idx) => this.openSlots.has(idx))) return;
    this.openSlots = now;
    this.rows.clear();
    if (hasBegun) this.renewSoon();
    this.changed();
  }

  // -- what is shown

  changed() {
    this.changes += 1;
    this.schedule();
  }

  schedule() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  draw() {
    const height = ROW_REM * rem();
    const head = HEAD_REM * rem();
    const whole = this.total * height;
    const scrolled = Math.min(whole, MAX_HEIGHT_PX);
    const view = this.place.clientHeight;
    // If all rows together would be too tall, the scroll bar moves over several rows at a time.
    const top = whole > scrolled ? (this.place.scrollTop / Math.max(1, scrolled + head - view)) * Math.max(0, whole + head - view) : this.place.scrollTop;
    const from = Math.max(0, STEP_ROWS * Math.floor(top / height / STEP_ROWS) - SPARE_ROWS);
    const to = Math.min(this.total, STEP_ROWS * Math.ceil((top + view) / height / STEP_ROWS) + SPARE_ROWS);
    const shift = head - (top - this.place.scrollTop);
    for (let block = Math.floor(from / BLOCK); block * BLOCK < to; block += 1) {
      if (!this.blocks.has(block) || this.stale.has(block)) this.want(block);
    }
    const rows = [];
    for (let row = from; row < to; row += 1) rows.push(this.row(row, shift + row * height));
    const shown = [from, to, shift, this.changes].join();
    if (shown === this.shown) return;
    this.shown = shown;
    this.place.style.setProperty("--row", `${height}px`);
    show(this.place.id, html`
      <div class="head" role="row" aria-rowindex="1"><span role="columnheader">Task</span>${this.variants.map(
        (name) => html`<span role="columnheader" title=${name}>${name}</span>`)}</div>
      <div class="filler" role="presentation" style=${{ height: `${scrolled}px` }}></div>
      ${rows}`);
  }

  // Returns the row of a task. An unchanged row is the same object, so that Preact compares nothing.
  row(row, top) {
    const task = this.task(row);
    const style = { top: `${top}px` };
    if (!task) return html`<div class="row" role="row" key=${row} aria-rowindex=${row + 2} style=${style}><span class="task quiet">…</span></div>`;
    const kept = this.rows.get(task);
    if (kept?.top === top) return kept.shown;
    const shown = html`<div class="row" role="row" key=${row} data-row=${row} aria-rowindex=${row + 2} style=${style}>
      <span class="task" role="rowheader" title=${task.task_id}>${task.task_id}</span>
      ${this.variants.map((name) => html`<span class="cells" role="gridcell">${this.cells(task, name)}</span>`)}</div>`;
    if (this.rows.size > 2000) this.rows.clear();
    this.rows.set(task, { top, shown });
    return shown;
  }

  cells(task, name) {
    return [...(task.cells[name] ?? "")].map((known, n) => {
      const slot = task.slots[name][n];
      const letter = known === "-" && this.begun.has(slot) ? "." : known;
      if (slot == null) return html`<span class="cell none">–</span>`;
      const isOpen = this.openSlots.has(slot);
      const [kind, glyph] = isOpen ? RUNNING : (OUTCOMES[letter] ?? UNKNOWN);
      const word = isOpen ? "running" : this.legend[letter];
      const label = `${name}, ${task.task_id}: ${word}`;
      return html`<a class="cell ${kind}" href="${this.runUrl}/slots/${slot}" tabindex="-1" aria-label=${label} title="trial ${slot}: ${word}">${glyph}</a>`;
    });
  }

  // -- the keyboard

  press(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -Infinity, End: Infinity }[event.key];
    const across = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by === undefined && across === undefined) return;
    event.preventDefault();
    this.step(by ?? 0, across ?? 0);
  }

  step(by, across = 0) {
    const isFirst = !this.place.contains(document.activeElement) || document.activeElement === this.place;
    if (!isFirst) this.at.row = Math.min(this.total - 1, Math.max(0, this.at.row + by));
    this.at.column = Math.max(0, this.at.column + across);
    const height = ROW_REM * rem();
    const y = this.at.row * height;
    const view = this.place.clientHeight - HEAD_REM * rem() - height;
    if (this.total * height <= MAX_HEIGHT_PX) {
      if (y < this.place.scrollTop) this.place.scrollTop = y;
      else if (y > this.place.scrollTop + view) this.place.scrollTop = y - view;
    }
    this.draw();
    const row = this.place.querySelector(`[data-row="${this.at.row}"]`);
    const links = row ? [...row.querySelectorAll("a")] : [];
    this.at.column = Math.min(this.at.column, Math.max(0, links.length - 1));
    for (const other of this.place.querySelectorAll(".row.current")) other.classList.remove("current");
    row?.classList.add("current");
    (links[this.at.column] ?? this.place).focus({ preventScroll: true });
  }
}
