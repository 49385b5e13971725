// The list of sessions, with what is searched for in it.
import {source} from "./source.js";
import {address, at, state} from "./state.js";
import {count, el, priceOrUnknown, tokens, when} from "./text.js";

const FILTERS = ["text", "agent", "status", "plugin", "tool", "since", "until", "cost"];
/** @type {{signature: string, offered: boolean}} */
const shown = {signature: "", offered: false};

/** @param {any} session */
function sessionNode(session) {
  const isKnown = session.cost > 0 || session.known_cost > 0;
  const unknown = session.cost === null ? "cost ?" : "";
  const sums = [
    typeof session.turns === "number" ? count(session.turns, "turn") : "",
    typeof session.tokens === "number" ? `${tokens(session.tokens)} tok` : "",
    isKnown ? priceOrUnknown(session.cost, session.known_cost) : unknown,
  ];
  return el(
    "li",
    {},
    el(
      "a",
      {href: address({record: session.name}), "data-name": session.name},
      el("span", {class: "line"}, el("b", {}, session.agent ?? session.name), el("time", {}, when(session.started))),
      el("bdi", {class: "first-words"}, session.first_words || "no input yet"),
      el(
        "span",
        {class: "line small"},
        el("span", {class: `pill ${session.status}`}, session.status.replaceAll("_", " ")),
        el("span", {class: "sum"}, sums.filter(Boolean).join("  ")),
      ),
    ),
    el("a", {class: "beside", "data-beside": session.name, href: "#", "aria-label": `Compare with ${session.agent ?? session.name}, ${when(session.started)}`}, "compare"),
  );
}

/** @returns {Record<string, string>} */
function wanted() {
  const pairs = FILTERS.map((name) => [name, at(`list-${name}`)?.value.trim() ?? ""]);
  return Object.fromEntries(pairs.filter(([, value]) => value));
}

export async function showSessions() {
  const filter = wanted();
  const pages = [await source.sessions(filter)];
  for (let from = pages[0].sessions.length; from < state.listed; from += pages.at(-1).sessions.length) {
    pages.push(await source.sessions({...filter, from}));
    if (!pages.at(-1).sessions.length) break;
  }
  const sessions = pages.flatMap((page) => page.sessions);
  const {count: number, all} = pages[0];
  at("older").hidden = sessions.length >= number;
  at("count").textContent = number === all ? count(all, "session") : `${number.toLocaleString("en")} of ${count(all, "session")}`;
  const signature = JSON.stringify(sessions);
  if (signature !== shown.signature) {
    shown.signature = signature;
    const focused = /** @type {any} */ (document.activeElement)?.dataset?.name;
    at("list").replaceChildren(...sessions.map(sessionNode));
    if (focused !== undefined)
      [...at("list").querySelectorAll("a")].find((link) => link.dataset.name === focused)?.focus();
  }
  markCurrent();
  return sessions;
}

// What the filters offer is asked for when they are opened: every record is read for it.
async function offer() {
  if (shown.offered) return;
  shown.offered = true;
  const names = await source.names();
  for (const key of ["agent", "status", "plugin", "tool"])
    at(`list-${key}`).append(...names[key].map((/** @type {string} */ name) => el("option", {value: name}, name.replaceAll("_", " "))));
}

export function beginList() {
  let waiting = 0;
  for (const name of FILTERS)
    at(`list-${name}`).addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => ((state.listed = 0), showSessions().catch(() => {})), 150);
    });
  at("more-filters").addEventListener("toggle", () => offer().catch(() => (shown.offered = false)));
}

export function markCurrent() {
  const name = state.shown?.name;
  for (const link of at("list").querySelectorAll("a[data-name]"))
    if (link.dataset.name === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  for (const link of at("list").querySelectorAll("a[data-beside]")) {
    link.hidden = !name || link.dataset.beside === name;
    link.href = address({record: name ?? "", beside: link.dataset.beside});
  }
}
