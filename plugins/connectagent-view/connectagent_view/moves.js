// Where in the page a person is: which view, which entry, message or turn.
import {applyFilter, setFilter} from "./filter.js";
import {inlined} from "./source.js";
import {address, at, place, state} from "./state.js";

export const VIEWS = ["timeline", "conversation", "changes"];

/** @param {string} name */
export function view(name) {
  const {shown} = state;
  shown.view = VIEWS.includes(name) ? name : "timeline";
  for (const one of VIEWS) {
    at(one).hidden = one !== shown.view;
    at(`show-${one}`).setAttribute("aria-pressed", String(one === shown.view));
  }
  at("kinds").hidden = shown.view !== "timeline";
  if (shown.view !== "timeline" && shown.file) return shown[shown.view].show().then(applyFilter, trouble);
  applyFilter();
  return Promise.resolve();
}

// Goes to an entry, opens it and gives it the focus.
/** @param {number} number */
export function go(number) {
  const {shown} = state;
  if (!shown?.rows[number]) return;
  if (state.text || state.kind) setFilter("", "");
  view("timeline");
  const node = shown.timeline.nodes[number];
  history.replaceState(null, "", address({record: shown.name, entry: number}));
  if (node.tagName === "DETAILS") node.open = true;
  node.scrollIntoView({block: "center"});
  focusRow(node);
}

// Goes to the entry, the message or the turn that the address names.
export async function goToPlace() {
  const given = place(),
    {shown} = state;
  if (given.get("entry")) return go(Number(given.get("entry")));
  if (given.get("message")) {
    if ((given.get("agent") ?? "") !== shown.conversation.branch) shown.conversation.start(given.get("agent") ?? "");
    await view("conversation");
    return mark(document.getElementById(`m${given.get("message")}`));
  }
  if (given.get("turn"))
    mark(shown.timeline.turns.find((/** @type {any} */ turn) => turn.item.turn === given.get("turn"))?.node);
}

/** @param {any} node */
function mark(node) {
  for (const old of document.querySelectorAll(".found")) old.classList.remove("found");
  node?.scrollIntoView({block: "start"});
  node?.classList.add("found");
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

// Shows what went wrong, or that nothing does any more.
/** @param {any} error */
export function trouble(error) {
  at("trouble").hidden = !error;
  if (!error) return;
  const gone = !inlined && error instanceof TypeError; // of a fetch that nobody answers
  at("trouble").textContent = gone ? `${error.message}. Is connectagent view still running?` : error.message;
}
