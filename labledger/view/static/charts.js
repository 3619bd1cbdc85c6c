// The charts of a run, drawn by uPlot. The figures beside them show the same values.
import { count, rounded, usd } from "./format.js";
import "./language.js";
import uPlot from "./vendor/uplot.js";

const HEIGHT = 190;
const charts = new WeakMap();

const colour = (name) => {
  const probe = document.createElement("span");
  probe.style.setProperty("color", `var(--${name})`);
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
};

const axis = (more) => ({
  stroke: colour("quiet"),
  font: "12px system-ui, sans-serif",
  grid: { stroke: colour("line"), width: 1 },
  ticks: { stroke: colour("line"), width: 1, size: 4 },
  ...more,
});

// Redraws the chart if theme or series changed; otherwise only updates the data.
function draw(place, series, axes, scales, data, label) {
  place.setAttribute("aria-label", label);
  const theme = `${colour("paper")} ${series.map((each) => each.label)}`;
  const drawn = charts.get(place);
  if (drawn?.theme === theme) return void drawn.plot.setData(data);
  drawn?.plot.destroy();
  drawn?.sizes.disconnect();
  place.replaceChildren();
  place.setAttribute("role", "img");
  const options = { width: place.clientWidth, height: HEIGHT, series, axes, scales, tzDate, cursor: { drag: { x: true, y: false } } };
  const plot = new uPlot(options, data, place);
  const sizes = new ResizeObserver(() => {
    if (place.clientWidth && place.clientWidth !== plot.width) plot.setSize({ width: place.clientWidth, height: HEIGHT });
  });
  sizes.observe(place);
  charts.set(place, { plot, theme, sizes });
}
const tzDate = (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC");
const TOO_FEW = "The chart begins with the second saved trial.";
function say(place, text) {
  const words = document.createElement("p");
  words.className = "empty";
  words.textContent = text;
  place.replaceChildren(words);
}

const DAY_S = 86_400;
// Times of day in UTC. A chart of more than a day and a half shows the date, too; a chart so short
// that minutes would repeat shows seconds.
const moments = (plot, ticks) => {
  const length = plot.scales.x.max - plot.scales.x.min;
  const [from, to] = length > 1.5 * DAY_S ? [5, 16] : length < 600 ? [11, 19] : [11, 16];
  return ticks.map((tick) => new Date(tick * 1000).toISOString().slice(from, to).replace("T", " "));
};
const seconds = (time) => Date.parse(time) / 1000;
// The figures below a chart show the values under the pointer, or else the last values.
const pointed = (say) => (plot, value, series, index) => say(index == null ? plot.data[series].at(-1) : value);
const withLine = (name, label, say, more) => ({ label, stroke: colour(name), width: 2, points: { show: false }, value: pointed(say), ...more });
const time = { label: "UTC", value: pointed((value) => (value == null ? "–" : new Date(value * 1000).toISOString().slice(0, 19).replace("T", " "))) };
const noTokens = (points) => points.every((point) => point[3] == null);

export function drawSpending(place, run) {
  const points = run.spending;
  if (points.length < 2) return void say(place, TOO_FEW);
  if (points.every((point) => point[2] == null && point[3] == null)) return void say(place, "No trial has said what it cost.");
  const data = [points.map((point) => seconds(point[1]))];
  const [series, axes] = [[time], [axis({ values: moments, space: 90 })]];
  const hasCost = points.some((point) => point[2] != null);
  if (hasCost || run.budget.cost_usd != null) {
    data.push(points.map((point) => point[2]));
    series.push(withLine("accent", "cost", usd, { scale: "usd" }));
    axes.push(axis({ scale: "usd", size: 64, values: (_, ticks) => ticks.map((tick) => usd(tick, tick < 1 && tick ? 2 : 0)) }));
  }
  const limit = run.budget.cost_usd;
  if (limit != null) {
    data.push(points.map(() => limit));
    series.push(withLine("fail", "budget", usd, { scale: "usd", dash: [6, 4], width: 1.5 }));
  }
  if (!noTokens(points)) {
    data.push(points.map((point) => point[3]));
    series.push(withLine("pass", "tokens", rounded, { scale: "tokens", dash: [2, 3] }));
    const side = axes.length > 1 ? { side: 1, grid: { show: false } } : {};
    axes.push(axis({ scale: "tokens", size: 64, ...side, values: (_, ticks) => ticks.map(short) }));
  }
  const spent = hasCost ? usd(points.at(-1)[2]) : "an unknown cost";
  const label = `Cost and tokens over time: ${spent} so far.`;
  draw(place, series, axes, { usd: { range: fromZero }, tokens: { range: fromZero } }, data, label);
}

export function drawThroughput(place, run) {
  const points = run.spending;
  if (points.length < 2) return void say(place, TOO_FEW);
  const data = [points.map((point) => seconds(point[1])), points.map((point) => point[0] + 1)];
  const series = [time, withLine("accent", "saved", count)];
  const label = `Trials saved over time: ${count(run.committed)} of ${count(run.total_slots)} so far.`;
  draw(place, series, [axis({ values: moments, space: 90 }), axis({ size: 56, values: (_, ticks) => ticks.map(short) })], { y: { range: fromZero } }, data, label);
}

const fromZero = (_, low, high) => [0, high ? high * 1.08 : 1];
function short(value) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (value >= size) return `${+(value / size).toPrecision(3)} ${unit}`;
  return String(value);
}
