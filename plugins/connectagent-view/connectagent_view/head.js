// What stands above a session's rows: its sums, and what failed in it.
import {segmentsOf} from "./overview.js";
import {address, at} from "./state.js";
import {count, duration, el, priceOrUnknown, tokens, when} from "./text.js";

const PROBLEMS_AT_ONCE = 5;
const FAILED = ["error", "interrupted", "cancelled", "max_iterations", "truncated", "refused", "crashed", "unfinished", "never ended"];

/** @param {any} session */
export function showHead(session) {
  const {summary, items, rows} = session;
  document.title = `${summary.agent}: ${summary.first_words || items[0]?.input || "connectagent"}`.slice(0, 80);
  at("title").textContent = summary.agent;
  at("status").className = `pill ${summary.status}`;
  at("status").textContent = summary.status.replaceAll("_", " ");
  at("about").replaceChildren(
    el("span", {}, [summary.model, when(summary.started), summary.script].filter(Boolean).join("  ·  ")),
  );
  const of = (/** @type {string} */ kind) => rows.filter((/** @type {any} */ row) => row.kind === kind).length;
  const turns = items.filter((/** @type {any} */ item) => item.status !== "between_turns");
  const time = segmentsOf(session).reduce((/** @type {number} */ sum, /** @type {any} */ segment) => sum + segment.seconds, 0) * 1000;
  const sums = [
    ["turns", new Set(turns.map((/** @type {any} */ item) => item.turn)).size],
    ["model calls", of("model")],
    ["tool calls", of("tool")],
    ["tokens", summary.tokens === null ? "?" : tokens(summary.tokens)],
    ["cost", priceOrUnknown(summary.cost, summary.known_cost)],
    ["time", duration(time)],
  ];
  at("sums").replaceChildren(...sums.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

// What failed, first: turns, model calls, tools and handlers, each with a link to where it is.
/** @param {any} session */
function problemsOf({rows, items, summary}) {
  const problems = rows
    .filter((/** @type {any} */ row) => row.bad === 2 && row.kind !== "other")
    .map((/** @type {any} */ row) => ({
      n: row.n,
      turn: items[row.item]?.turn,
      what: row.kind === "handler" ? `handler ${row.name}` : `${row.kind} ${row.name}`,
      text: [row.error, row.text].filter(Boolean).join(": "),
      state: row.status?.replaceAll("_", " "),
    }));
  items.forEach((/** @type {any} */ item, /** @type {number} */ index) => {
    const open = !item.status && !(index === items.length - 1 && summary.status === "running");
    const status = item.status ?? (open ? (index === items.length - 1 ? summary.status : "never ended") : "");
    if (FAILED.includes(status))
      problems.push({
        n: items[index + 1] ? items[index + 1].first - 1 : rows.length - 1,
        turn: item.turn,
        what: "turn",
        text: item.error ?? "",
        state: status.replaceAll("_", " "),
        first: true,
      });
  });
  return problems.sort((/** @type {any} */ a, /** @type {any} */ b) => Number(b.first ?? false) - Number(a.first ?? false) || a.n - b.n);
}

/** @param {any} session */
export function showProblems(session) {
  session.problems = problemsOf(session);
  const all = at("all-problems"),
    most = all.dataset.all ? Infinity : PROBLEMS_AT_ONCE;
  at("problems").hidden = !session.problems.length;
  at("problems-title").textContent = count(session.problems.length, "problem");
  at("problem-list").replaceChildren(
    ...session.problems
      .slice(0, most)
      .map((/** @type {any} */ problem) =>
        el(
          "li",
          {},
          el(
            "a",
            {href: address({record: session.name, entry: problem.n}), "data-n": problem.n},
            el("span", {class: "which"}, `turn ${problem.turn}`),
            el("b", {}, problem.what),
            " ",
            el("span", {class: "state"}, problem.state ?? "raised"),
            " ",
            el("bdi", {}, problem.text),
          ),
        ),
      ),
  );
  all.hidden = session.problems.length <= most;
  all.textContent = `Show all ${session.problems.length}`;
}
