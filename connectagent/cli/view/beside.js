// Two sessions side by side: their sums, and for each turn what was asked, what was done, and the result.
import {source} from "./source.js";
import {address, at} from "./state.js";
import {duration, el, priceOrUnknown, tokens} from "./text.js";

const MOST_STEPS = 60; // of one turn

/** @param {any} row */
function stepNode(row) {
  const words = row.kind === "model" ? row.calls && `→ ${row.calls}` : row.args;
  return el(
    "li",
    {class: `${row.kind} bad${row.bad ?? 0}`},
    el("span", {class: "kind"}, row.kind),
    " ",
    el("b", {}, row.name),
    row.status && row.status !== "success" ? el("b", {class: "state"}, ` ${row.status.replaceAll("_", " ")}`) : null,
    words && el("code", {}, ` ${words}`),
    el("span", {class: "sum"}, ` ${duration(row.ms ?? 0)}`),
  );
}

/** @param {any} news @param {number} index */
function sideNode(news, index) {
  const turns = news.items.filter((/** @type {any} */ item) => item.status !== "between_turns");
  const item = turns[index];
  if (!item) return el("div", {class: "side none"}, "no such turn");
  const next = news.items[news.items.indexOf(item) + 1]?.first ?? news.rows.length;
  const done = news.rows.slice(item.first, next).filter((/** @type {any} */ row) => ["model", "tool", "agent"].includes(row.kind));
  const rest = done.length - MOST_STEPS;
  return el(
    "div",
    {class: "side"},
    el("p", {class: "asked"}, item.input),
    el("ol", {}, ...done.slice(0, MOST_STEPS).map(stepNode), rest > 0 && el("li", {}, `${rest} more`)),
    el("p", {class: item.error ? "failed" : "result"}, item.error || item.result || item.status || "no end"),
  );
}

/** @param {string} name @param {string} other */
export async function showBeside(name, other) {
  const box = at("beside");
  const both = await Promise.all([name, other].map((one) => source.news(one, 0, 0)));
  const amount = (/** @type {any} */ value) => (typeof value === "number" ? tokens(value) : "?");
  /** @type {[string, (summary: any) => any][]} */
  const lines = [
    ["status", (one) => one.status.replaceAll("_", " ")],
    ["model", (one) => one.model ?? "?"],
    ["turns", (one) => one.turns ?? "?"],
    ["iterations", (one) => one.iterations ?? "?"],
    ["tool calls", (one) => one.tools ?? "?"],
    ["tokens", (one) => amount(one.tokens)],
    ["cost", (one) => priceOrUnknown(one.cost)],
  ];
  const table = lines.map(([label, value]) => {
    const [one, two] = both.map(({summary}) => String(value(summary)));
    return el("tr", {class: one === two ? "" : "differs"}, el("th", {scope: "row"}, label), el("td", {}, one), el("td", {}, two));
  });
  const heads = [name, other].map((one, at) =>
    el("th", {scope: "col"}, el("a", {href: address({record: one})}, both[at].summary.agent ?? one), el("span", {class: "soft"}, ` ${one}`)),
  );
  const turns = Math.max(...both.map(({items}) => items.filter((/** @type {any} */ item) => item.status !== "between_turns").length));
  const pairs = Array.from({length: turns}, (_, index) =>
    el("section", {"aria-label": `Turn ${index + 1}`}, el("h2", {}, `Turn ${index + 1}`), el("div", {class: "sides"}, ...both.map((news) => sideNode(news, index)))),
  );
  box.replaceChildren(
    el("h1", {}, "Two sessions side by side"),
    el("table", {}, el("thead", {}, el("tr", {}, el("td"), ...heads)), el("tbody", {}, ...table)),
    ...pairs,
  );
}
