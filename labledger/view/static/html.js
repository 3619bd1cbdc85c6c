// Preact with htm: components without a build step. Everything inserted is text, never HTML.
import htm from "./vendor/htm.js";
import { h, render } from "./vendor/preact.js";

export { useEffect, useMemo, useRef, useState } from "./vendor/preact-hooks.js";
export const html = htm.bind(h);

// Renders into the element with an id, and replaces the server's content there.
const taken = new WeakSet();
export function show(id, component) {
  const place = document.getElementById(id);
  if (!place) return;
  if (!taken.has(place)) {
    taken.add(place);
    place.replaceChildren();
  }
  render(component, place);
}
