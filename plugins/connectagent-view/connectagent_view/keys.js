// The keys.
import {setFilter} from "./filter.js";
import {focusRow, go, view} from "./moves.js";
import {at, kept, state} from "./state.js";

function visibleRows() {
  return state.shown?.view === "timeline"
    ? [...document.querySelectorAll("#timeline .turn:not([hidden]) .row:not([hidden])")]
    : [];
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
