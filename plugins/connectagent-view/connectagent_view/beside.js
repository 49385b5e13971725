// Two sessions side by side: their sums, and for each turn what was asked, what was done, and the result.
import {markdown} from "./markdown.js";
import {source} from "./source.js";
import {address, at} from "./state.js";
import {duration, el, priceOrUnknown, tokens} from "./text.js";

const MOST_STEPS = 60; // of one turn

/** @param {any} row @param {number} depth how many agents are around it */
function stepNode(row, depth) {
  const words = row.kind === "model" ? row.calls && `→ ${row.calls}` : row.args;
  const node = el(
    "li",
    {class: `${row.kind} bad${row.bad ?? 0}`},
    el("span", {class: "kind"}, row.kind),
    " ",
    el("b", {}, row.name),
    row.status && row.status !== "success" ? el("b", {class: "state"}, ` ${row.status.replaceAll("_", " ")}`) : null,
    words && el("code", {}, ` ${words}`),
    row.ms !== undefined && el("span", {class: "sum"}, ` ${duration(row.ms)}`),
  );
  node.style.setProperty("--depth", String(depth));
  return node;
}

/**
 * The steps of a turn as they began: what an agent did stands below it.
 * @param {any[]} rows
 */
function stepsOf(rows) {
  const ended = new Set(rows.map((row) => row.started));
  const steps = rows
    .filter((row) => ["model", "tool", "agent", "started"].includes(row.kind) && !ended.has(row.n))
    .sort((a, b) => (a.started ?? a.n) - (b.started ?? b.n));
  /** @type {Map<string, any>} */
  const agents = new Map(steps.filter((row) => row.id).map((row) => [row.id, row]));
  /** @param {any} row @returns {number} */
  const depth = (row) => (agents.has(row.in) && row.in !== row.id ? 1 + depth(agents.get(row.in)) : 0);
  return steps.map((row) => stepNode(row.kind === "started" ? {...row, kind: row.of, status: row.status ?? "no end"} : row, depth(row)));
}

/** @param {any} news @param {number} index */
function sideNode(news, index) {
  const turns = news.items.filter((/** @type {any} */ item) => item.status !== "between_turns");
  const item = turns[index];
  if (!item) return el("div", {class: "side none"}, "no such turn");
  const next = news.items[news.items.indexOf(item) + 1]?.first ?? news.rows.length;
  const steps = stepsOf(news.rows.slice(item.first, next));
  const rest = steps.length - MOST_STEPS;
  return el(
    "div",
    {class: "side"},
    el("p", {class: "asked"}, item.input),
    el("ol", {}, ...steps.slice(0, MOST_STEPS), rest > 0 && el("li", {}, `${rest} more`)),
    item.error || !item.result
      ? el("p", {class: item.status === "paused" ? "paused" : item.error ? "failed" : "soft"}, item.error || item.status?.replaceAll("_", " ") || "no end")
      : el("div", {class: "result"}, markdown(item.result)),
  );
}

/**
 * All of a session; a long one comes in parts.
 * @param {string} name
 */
async function wholeOf(name) {
  const whole = await source.news(name, 0, 0);
  for (let news = whole; news.more; ) {
    news = await source.news(name, whole.rows.length, 0, whole.file);
    whole.rows.push(...news.rows);
    for (const row of news.changed ?? []) whole.rows[row.n] = row;
    [whole.items, whole.summary] = [news.items, news.summary];
  }
  return whole;
}

/** @param {string} name @param {string} other */
export async function showBeside(name, other) {
  const box = at("beside");
  const both = await Promise.all([name, other].map(wholeOf));
  const amount = (/** @type {any} */ value) => (typeof value === "number" ? tokens(value) : "?");
  /** @type {[string, (summary: any) => any][]} */
  const lines = [
    ["status", (one) => one.status.replaceAll("_", " ")],
    ["model", (one) => one.model ?? "?"],
    ["turns", (one) => one.turns ?? "?"],
    ["iterations", (one) => one.iterations ?? "?"],
    ["tool calls", (one) => one.tools ?? "?"],
    ["tokens", (one) => amount(one.tokens)],
    ["cost", (one) => priceOrUnknown(one.cost, one.known_cost)],
  ];
  const table = lines.map(([label, value]) => {
    const [one, two] = both.map(({summary}) => String(value(summary)));
    return el("tr", {class: one === two ? "" : "differs"}, el("th", {scope: "row"}, label), el("td", {}, one), el("td", {}, two));
  });
  const heads = [name, other].map((one, at) =>
    el("th", {scope: "col"}, el("a", {href: address({record: one})}, both[at].summary.agent ?? one), el("span", {class: "soft file"}, one)),
  );
  const turns = Math.max(...both.map(({items}) => items.filter((/** @type {any} */ item) => item.status !== "between_turns").length));
  const pairs = Array.from({length: turns}, (_, index) =>
    el("section", {"aria-label": `Turn ${index + 1}`}, el("h2", {}, `Turn ${index + 1}`), el("div", {class: "sides"}, ...both.map((news) => sideNode(news, index)))),
  );
  box.replaceChildren(
    el("a", {class: "back", href: address({record: name})}, "Back to the first one"),
    el("h1", {}, "Two sessions side by side"),
    el("table", {}, el("thead", {}, el("tr", {}, el("td"), ...heads)), el("tbody", {}, ...table)),
    ...pairs,
  );
}
