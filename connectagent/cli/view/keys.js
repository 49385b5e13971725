// The filter, and the keys.
import {go, view} from "./page.js";
import {source} from "./source.js";
import {at, kept, state} from "./state.js";
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

function visibleRows() {
  return state.shown?.view === "timeline"
    ? [...document.querySelectorAll("#timeline .turn:not([hidden]) .row:not([hidden])")]
    : [];
}

/** @param {any} node */
export function focusRow(node) {
  const summary = node.querySelector("summary");
  if (!summary) return;
  document.querySelector("#timeline summary[tabindex='0']")?.setAttribute("tabindex", "-1");
  summary.setAttribute("tabindex", "0");
  summary.focus({preventScroll: true});
  const box = summary.getBoundingClientRect(),
    top = at("bar").getBoundingClientRect().bottom;
  if (box.top < top || box.bottom > innerHeight) node.scrollIntoView({block: "center"});
}

/** @param {number} by */
function step(by) {
  const rows = visibleRows(),
    now = rows.indexOf(/** @type {any} */ (document.activeElement)?.closest?.(".row"));
  const next = now < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, now + by));
  if (rows[next]) focusRow(rows[next]);
}

function nextProblem() {
  const problems = [...(state.shown?.problems ?? [])].sort((a, b) => a.n - b.n);
  const now = /** @type {any} */ (document.activeElement)?.closest?.(".row")?.id.slice(1) ?? -1;
  const next = problems.find((problem) => problem.n > Number(now)) ?? problems[0];
  if (next) go(next.n);
}

/** @type {Record<string, [string, () => void]>} */
const KEYS = {
  "/": ["filter", () => at("filter").select()],
  j: ["next row", () => step(1)],
  k: ["row before", () => step(-1)],
  e: ["next problem", nextProblem],
  t: ["timeline", () => view("timeline")],
  c: ["conversation", () => view("conversation")],
  d: ["changes by plugins", () => view("changes")],
  "?": ["these keys", () => at("help").showModal()],
};

export function beginKeys() {
  const letters = at("letters");
  letters.checked = kept.get("keys") !== "off";
  letters.addEventListener("change", () => kept.set("keys", letters.checked ? "on" : "off"));
  at("help-list").replaceChildren(
    ...[...Object.entries(KEYS).map(([key, [what]]) => [key, what]), ["Tab", "everything else"], ["Enter", "open"], ["Esc", "leave the filter"]].flatMap(([key, what]) => {
      const [name, words] = [document.createElement("dt"), document.createElement("dd")];
      const shape = document.createElement("kbd");
      shape.textContent = key;
      name.append(shape);
      words.textContent = what;
      return [name, words];
    }),
  );
  at("show-help").addEventListener("click", () => at("help").showModal());
  addEventListener("keydown", pressed);
}

/** @param {any} event */
function pressed(event) {
  const typing = event.target.matches?.("input, textarea, select");
  if (event.key === "Escape" && event.target === at("filter")) {
    setFilter("", state.kind);
    event.target.blur();
    return step(1);
  }
  if (event.ctrlKey || event.metaKey || event.altKey || at("help").open) return;
  if (typing) {
    if (event.key === "ArrowDown" && event.target === at("filter")) {
      event.preventDefault();
      event.target.blur();
      step(1);
    }
    return;
  }
  /** @type {Record<string, () => void>} */
  const steps = {ArrowDown: () => step(1), ArrowUp: () => step(-1)};
  const arrows = event.target.closest?.("#timeline summary") && steps[event.key];
  const letter = at("letters").checked ? KEYS[event.key]?.[1] : undefined;
  const act = arrows || letter;
  if (!act || (letter && !state.shown)) return;
  event.preventDefault();
  act();
}
