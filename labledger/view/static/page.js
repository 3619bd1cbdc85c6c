// Common to all screens: the theme button, relative times, the keyboard and its help.
import { ago } from "./format.js";

const $ = (selector) => document.querySelector(selector);

// Without start.js, other missing files would go unnoticed.
if (typeof loadAgain === "undefined") setTimeout(() => location.reload(), 1000);

// -- light and dark

const button = $("#theme");
const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
function nameTheme() {
  button.textContent = isDark() ? "Light" : "Dark";
  document.dispatchEvent(new CustomEvent("theme"));
}
button.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  localStorage.setItem("labledger-theme", document.documentElement.dataset.theme);
  nameTheme();
});
dark.addEventListener("change", nameTheme);
button.hidden = false;
nameTheme();

// -- show what needs a script, and write times as ages

for (const node of document.querySelectorAll("[data-scripted]")) node.hidden = false;
function age() {
  for (const node of document.querySelectorAll("time[data-ago]")) {
    const text = ago(node.dateTime);
    if (node.textContent !== text) node.textContent = text;
  }
}
setInterval(age, 1000);
age();

// -- forms that are sent on a choice; typed text is sent by Enter

for (const form of document.querySelectorAll("form[data-submit]")) {
  form.addEventListener("change", (event) => event.target.matches("select") && form.requestSubmit());
}
for (const area of document.querySelectorAll("textarea[data-submit]")) {
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) area.form.requestSubmit();
  });
}

// -- keyboard

const help = $("#help");
$("#help-open").hidden = false;
$("#help-open").addEventListener("click", () => help.showModal());

// Returns the element of an item that gets the focus: its link, or the item itself.
const target = (item) => item.querySelector("a[href], button, summary") ?? item;

function move(by) {
  const list = $("[data-virtual]");
  if (list) return void list.dispatchEvent(new CustomEvent("move", { detail: by }));
  const items = [...document.querySelectorAll("[data-item]")];
  const at = items.findIndex((item) => item.contains(document.activeElement));
  const next = items[Math.min(items.length - 1, Math.max(0, at + by))];
  if (!next) return;
  target(next).focus();
  next.scrollIntoView({ block: "nearest" });
}

const keys = {
  j: () => move(1),
  k: () => move(-1),
  "/": () => $("[data-find]")?.focus(),
  "?": () => help.showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const types = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key === "Escape" && types) return void types.blur();
  if (event.key === "Escape" && !$("dialog[open]")) {
    const up = $("[data-up]");
    if (document.activeElement !== document.body) document.activeElement.blur();
    else if (up) up.click();
    return;
  }
  if (types || $("dialog[open]") || !(event.key in keys)) return;
  event.preventDefault();
  keys[event.key]();
});
