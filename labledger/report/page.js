"use strict";
// All content is inserted as text: nothing that a trial wrote is parsed as HTML.
(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const report = JSON.parse($("#data").textContent);
  const PAGE = 50;

  function make(tag, properties = {}, ...children) {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  }
  const number = (value) => value.toLocaleString("en-US");
  // The same as `labledger.text.duration` in Python, so that a time reads the same in every table.
  function duration(ms) {
    if (ms === null) return "–";
    const seconds = ms / 1000;
    if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
    const whole = Math.round(seconds);
    const minutes = Math.floor(whole / 60);
    if (minutes < 60) return `${minutes} min ${whole % 60} s`;
    return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  }
  const figure = (value) => (value === null ? "–" : String(Number(value.toPrecision(6))));

  // -- light and dark

  const theme = $("#theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
  });
  dark.addEventListener("change", nameTheme);
  theme.hidden = false;
  nameTheme();
  $$(".controls").forEach((node) => { node.hidden = false; });

  // -- tables that sort

  function setOrder(head, reset) {
    const descending = head.getAttribute("aria-sort") === "ascending";
    $$("th", head.parentNode).forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    reset(descending ? -1 : 1);
  }
  // Unknown values come last in both directions.
  function compare(a, b, sign) {
    if (a === b) return 0;
    if (a === "" || a === null) return 1;
    if (b === "" || b === null) return -1;
    return sign * (typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  }
  for (const table of $$("table.sortable")) {
    $$("thead th", table).forEach((head, column) => {
      $("button", head)?.addEventListener("click", () => setOrder(head, (sign) => {
        const value = (row) => {
          const cell = row.cells[column];
          const given = cell.dataset.sort;
          return given === undefined ? cell.textContent : given === "" ? "" : Number(given);
        };
        const body = table.tBodies[0];
        body.append(...[...body.rows].sort((a, b) => compare(value(a), value(b), sign)));
      }));
    });
  }

  // -- the heat map

  const heat = $("#heat");
  const rows = [...heat.tBodies[0].rows];
  const share = (row) => (row.dataset.share === "" ? "" : Number(row.dataset.share));
  const position = (row) => Number(row.dataset.position);
  const ORDERS = {
    hard: (a, b) => compare(share(a), share(b), 1) || position(a) - position(b),
    easy: (a, b) => compare(share(a), share(b), -1) || position(a) - position(b),
    differ: (a, b) => b.dataset.spread - a.dataset.spread || position(a) - position(b),
    dataset: (a, b) => position(a) - position(b),
    name: (a, b) => compare(a.dataset.task, b.dataset.task, 1),
  };
  const SHOWN = {
    all: () => true,
    differ: (row) => Number(row.dataset.spread) > 0,
    flaky: (row) => "flaky" in row.dataset,
    never: (row) => row.dataset.share !== "" && Number(row.dataset.share) === 0,
    unscored: (row) => "unscored" in row.dataset,
  };
  function showHeat() {
    const words = $("#heat-find").value.trim().toLowerCase();
    const wanted = SHOWN[$("#heat-show").value];
    let shown = 0;
    for (const row of rows) {
      row.hidden = !(wanted(row) && row.dataset.task.toLowerCase().includes(words));
      shown += row.hidden ? 0 : 1;
    }
    heat.tBodies[0].append(...rows.sort(ORDERS[$("#heat-order").value]));
    $("#heat-count").textContent = `${number(shown)} of ${number(rows.length)} task${rows.length === 1 ? "" : "s"}`;
    rove($("tbody tr:not([hidden]) a", heat));
  }
  // Roving tabindex: only the current cell is a tab stop.
  let current = null;
  function rove(link) {
    if (current) current.tabIndex = -1;
    current = link;
    if (current) current.tabIndex = 0;
  }
  const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  heat.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    const cell = event.target.closest("th, td");
    if (!step || !cell) return;
    let row = cell.parentNode;
    if (step[0]) do { row = step[0] < 0 ? row.previousElementSibling : row.nextElementSibling; } while (row?.hidden);
    const next = row?.cells[cell.cellIndex + step[1]];
    event.preventDefault();
    if (next) { rove($("a", next)); current.focus(); }
  });
  heat.addEventListener("click", (event) => {
    const link = event.target.closest("tbody a");
    if (!link) return;
    event.preventDefault();
    rove(link);
    const task = link.closest("tr").dataset.task;
    const variant = link.dataset.variant ?? "";
    const chosen = trials.filter((t) => t.task_id === task && (!variant || t.variant_id === variant));
    showTrials({ task, variant });
    if (chosen.length === 1) open(chosen[0]);
    else $("#trials").scrollIntoView();
  });
  for (const id of ["#heat-find", "#heat-show", "#heat-order"]) $(id).addEventListener("input", showHeat);

  // -- the list of trials

  const trials = report.trials.map((values) => {
    const trial = Object.fromEntries(report.columns.map((name, i) => [name, values[i]]));
    trial.outcome = trial.counted ? trial.verdict : trial.reason ? `${trial.status}: ${trial.reason}` : trial.status;
    if (trial.counted && trial.status !== "completed") trial.outcome += ` (${trial.status})`;
    return trial;
  });
  const OUTCOMES = {
    "": () => true,
    bad: (t) => t.verdict !== "pass" || !t.counted,
    error: (t) => t.status !== "completed",
    pass: (t) => t.counted && t.verdict === "pass",
    fail: (t) => t.counted && t.verdict === "fail",
  };
  // If several runs are taken as one, a trial's key names its run.
  const key = (trial) => (trial.run_id ? `${trial.run_id}:${trial.schedule_idx}` : String(trial.schedule_idx));
  const view = { task: null, page: 0, key: "schedule_idx", sign: 1 };
  function matching() {
    const words = $("#trial-find").value.trim().toLowerCase();
    const variant = $("#trial-variant").value;
    const fits = OUTCOMES[$("#trial-outcome").value];
    return trials
      .filter((t) => (view.task === null || t.task_id === view.task)
        && (!variant || t.variant_id === variant) && fits(t)
        && (!words || `${key(t)} ${t.task_id} ${t.outcome}`.toLowerCase().includes(words)))
      .sort((a, b) => compare(a[view.key], b[view.key], view.sign) || a.schedule_idx - b.schedule_idx);
  }
  function badge(trial) {
    return make("span", { className: `outcome ${trial.counted ? trial.verdict : "none"}`, textContent: trial.outcome });
  }
  function trialRow(trial) {
    const cell = (text, className = "") => make("td", { className }, text);
    const name = (text) => make("span", { className: "name" }, text);
    const link = make("a", { href: `#trial-${key(trial)}`, textContent: key(trial) });
    const row = make("tr", {}, cell(link, "number"), cell(name(trial.task_id)), cell(name(trial.variant_id)),
      cell(String(trial.repl_idx), "number extra"), cell(badge(trial)),
      cell(figure(trial.metric_value), "number extra"), cell(duration(trial.duration_ms), "number extra"));
    row.addEventListener("click", (event) => { if (!event.target.closest("a")) open(trial); });
    return row;
  }
  function listTrials() {
    const all = matching();
    const pages = Math.max(1, Math.ceil(all.length / PAGE));
    view.page = Math.min(Math.max(view.page, 0), pages - 1);
    const from = view.page * PAGE;
    const shown = all.slice(from, from + PAGE);
    $("#trial-table tbody").replaceChildren(...shown.map(trialRow));
    const of = view.task === null ? "" : ` of task ${view.task}`;
    $("#trial-count").textContent = `${number(all.length)} trial${all.length === 1 ? "" : "s"}${of}`;
    $("#trial-page").textContent = all.length ? `${number(from + 1)} to ${number(from + shown.length)} of ${number(all.length)}` : "";
    $(".pages").hidden = pages === 1;
    $("#trial-back").disabled = view.page === 0;
    $("#trial-next").disabled = view.page === pages - 1;
  }
  function showTrials({ task = null, variant = "" }) {
    Object.assign(view, { task, page: 0 });
    $("#trial-find").value = $("#trial-outcome").value = "";
    $("#trial-variant").value = variant;
    listTrials();
  }
  for (const id of ["#trial-find", "#trial-variant", "#trial-outcome"]) {
    $(id).addEventListener("input", () => { view.page = 0; listTrials(); });
  }
  $("#trial-clear").addEventListener("click", () => showTrials({}));
  $("#trial-back").addEventListener("click", () => { view.page -= 1; listTrials(); });
  $("#trial-next").addEventListener("click", () => { view.page += 1; listTrials(); });
  for (const head of $$("#trial-table th[data-key]")) {
    $("button", head).addEventListener("click", () => setOrder(head, (sign) => {
      Object.assign(view, { key: head.dataset.key, sign, page: 0 });
      listTrials();
    }));
  }

  // -- one trial, with its logs

  const dialog = $("#trial");
  let opened = null;
  const LOG_TITLES = {
    task: "task", metrics: "metrics", events: "events", steps: "what the agent did",
    workspace_patch: "patch of the workspace", agent_stdout: "agent, stdout", agent_stderr: "agent, stderr",
    grader_stdout: "grader, stdout", grader_stderr: "grader, stderr", setup_stdout: "setup, stdout",
    setup_stderr: "setup, stderr", trial_output: "result that the agent wrote",
  };
  async function unpacked(island) {
    const bytes = Uint8Array.from(atob(island.textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }
  function shownText(log) {
    const pre = make("pre", { tabIndex: 0 });
    const isPatch = log.name === "workspace_patch";
    const put = (text) => {
      if (!isPatch) return pre.append(text);
      for (const line of text.split(/(?<=\n)/)) {
        const kind = /^\+(?!\+\+)/.test(line) ? "added" : /^-(?!--)/.test(line) ? "removed" : "";
        pre.append(kind ? make("span", { className: kind, textContent: line }) : line);
      }
    };
    put(log.head);
    if (log.cut) pre.append(make("span", { className: "gap", textContent: `\n… ${number(log.cut)} bytes are left out here …\n` }));
    put(log.tail);
    return pre;
  }
  function logBlock(log) {
    const name = LOG_TITLES[log.name] ?? log.name;
    if (log.problem) return make("p", {}, `${name}: ${log.problem}`);
    const first = ["task", "metrics", "workspace_patch", "agent_stderr", "grader_stderr"].includes(log.name);
    return make("details", { open: first, className: "log" }, make("summary", {}, `${name}, ${number(log.size)} bytes`), shownText(log));
  }
  function facts(trial) {
    const list = make("dl", { className: "facts" });
    const put = (name, value) => {
      if (value !== null && value !== "") list.append(make("div", {}, make("dt", {}, name), make("dd", {}, value)));
    };
    put("outcome", badge(trial));
    if (!trial.counted && trial.verdict) put("verdict, not counted", trial.verdict);
    put("status", trial.reason ? `${trial.status} (${trial.reason})` : trial.status);
    put("message", trial.message);
    put(trial.metric_name ?? "metric", trial.metric_value === null ? null : figure(trial.metric_value));
    put("time", trial.duration_ms === null ? null : `${duration(trial.duration_ms)}, the agent ${duration(trial.agent_ms)}`);
    put("attempt", trial.attempt === null ? null : String(trial.attempt));
    return list;
  }
  async function open(trial) {
    $("#trial-title").textContent = `Trial ${key(trial)}: ${trial.variant_id} on ${trial.task_id}, replication ${trial.repl_idx}`;
    const body = $("#trial-body");
    const command = `labledger show ${trial.run_id ?? report.run_id} ${trial.schedule_idx} --full`;
    const fullCommand = make("p", { className: "small" }, "In full: ", make("code", {}, command));
    opened = trial;
    body.replaceChildren(facts(trial));
    if (!dialog.open) dialog.showModal();
    const island = $(`script[data-trial="${key(trial)}"]`);
    if (!island) {
      const why = trial.attempt === null ? "Nothing was run for this trial." : "The logs of this trial are not in this file.";
      body.append(make("p", {}, why), fullCommand);
      return;
    }
    let blocks;
    try {
      const logs = await unpacked(island);
      blocks = logs.length ? logs.map(logBlock) : [make("p", {}, "The trial left no logs and changed nothing.")];
    } catch (error) {
      blocks = [make("p", {}, `This browser cannot decompress the logs (${error.name}); a current version can.`)];
    }
    if (opened === trial) body.append(...blocks, fullCommand);
  }
  $("#trial-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => {
    if (location.hash === `#trial-${key(opened)}`) history.replaceState(null, "", "#trials");
  });
  function openLinkedTrial() {
    const match = /^#trial-(.+)$/.exec(location.hash);
    const trial = match && trials.find((t) => key(t) === match[1]);
    if (trial) open(trial);
    else if (dialog.open) dialog.close();
  }
  addEventListener("hashchange", openLinkedTrial);

  showHeat();
  listTrials();
  openLinkedTrial();
})();
