// The filter: which rows, messages and changes are shown.
import {source} from "./source.js";
import {at, state} from "./state.js";
import {count} from "./text.js";

/** @param {string} text @param {string} kind */
export function setFilter(text, kind) {
  [state.text, state.kind, state.found] = [text, kind, null];
  at("filter").value = text;
  for (const button of at("kinds").children) button.setAttribute("aria-pressed", String(button.dataset.kind === kind));
  applyFilter();
}

export function applyFilter() {
  const {shown} = state;
  if (!shown) return;
  const [hits, word, many] =
    shown.view === "timeline"
      ? [shown.timeline.filter(state.text, state.kind, state.found), "entry", "entries"]
      : [shown[shown.view].filter(state.text), shown.view === "changes" ? "change" : "message", undefined];
  at("matches").textContent = state.text || (state.kind && shown.view === "timeline") ? count(hits, word, many) : "";
}

let searching = 0;

export function typed() {
  state.text = at("filter").value;
  state.found = null;
  clearTimeout(searching);
  requestAnimationFrame(applyFilter);
  if (state.text.trim().length < 3) return;
  searching = setTimeout(async () => {
    const {text, shown} = state; // rows show the beginnings of texts; the rest is searched here
    const numbers = await source.find(shown.name, text).catch(() => []);
    if (shown !== state.shown || text !== state.text) return;
    state.found = new Set(numbers);
    applyFilter();
  }, 250);
}
