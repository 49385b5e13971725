// The answer before all else: what the last turn returned, what it waits for, or while what it died.
import {copyButton} from "./folded.js";
import {markdown} from "./markdown.js";
import {source} from "./source.js";
import {address, at} from "./state.js";
import {el} from "./text.js";

const WHOLE = 600; // characters of a result that the list of turns has

/** @param {any} session */
export async function showAnswer(session) {
  const {items, summary} = session;
  const index = items.findLastIndex((/** @type {any} */ one) => one.status !== "between_turns");
  const item = items[index];
  const box = at("answer");
  const signature = item && JSON.stringify([item.result, item.error, item.status, summary.status, session.waits]);
  if (signature === session.answered) return;
  session.answered = signature;
  const node = item && ((await resultNode(session, item, index)) ?? waitNode(session) ?? endNode(session, item));
  if (session.answered !== signature) return;
  box.hidden = !node;
  box.replaceChildren(...(node ? [node] : []));
}

/** @param {any} session @param {any} item @param {number} index */
async function resultNode(session, item, index) {
  if (!item.result) return null;
  const long = item.result.length >= WHOLE;
  const text = long ? await source.end(session.name, index, "result").catch(() => item.result) : item.result;
  return el(
    "div",
    {class: "answered"},
    el("header", {}, el("h2", {}, "Answer"), cutBadge(item), copyButton(() => text, "the answer")),
    el("div", {class: "answer-text", tabindex: "0", role: "group", "aria-label": "Answer"}, markdown(text)),
  );
}

/** @param {any} item */
const cutBadge = (item) => (item.status === "truncated" ? el("span", {class: "badge cut"}, "cut") : null);

/** @param {any} session */
function waitNode(session) {
  if (session.summary.status !== "paused" || !session.waits?.length) return null;
  return el(
    "div",
    {class: "waiting"},
    el("h2", {}, "It waits for a person"),
    ...session.waits.map((/** @type {any} */ wait) =>
      el(
        "div",
        {class: "one-wait"},
        el("p", {}, el("b", {}, wait.reason), wait.call && el("code", {dir: "auto"}, ` ${wait.call}`)),
        ...wait.commands.map((/** @type {string} */ command) =>
          el("p", {class: "command"}, el("code", {tabindex: "0"}, command), copyButton(() => command, "the command")),
        ),
      ),
    ),
  );
}

/** @param {any} session @param {any} item */
function endNode(session, item) {
  const {rows, summary} = session;
  if (!["crashed", "unfinished", "interrupted"].includes(summary.status)) return null;
  const ended = new Set(rows.map((/** @type {any} */ row) => row.started));
  const open = rows.filter((/** @type {any} */ row) => row.n >= item.first && row.kind === "started" && row.status !== "held" && !ended.has(row.n));
  const last = open.findLast((/** @type {any} */ row) => row.of !== "agent") ?? open.at(-1) ?? rows.at(-1);
  if (!last) return null;
  const what = !open.length ? "nothing was running" : last.of === "model" ? "a model call" : `${last.of} ${last.name}`;
  const inside = open.filter((/** @type {any} */ row) => row.of === "agent").map((/** @type {any} */ row) => row.name);
  const word = summary.status === "interrupted" ? "It was interrupted" : "The process ended";
  const link = {href: address({record: session.name, entry: last.n}), "data-n": last.n};
  return el(
    "div",
    {class: "died"},
    el("h2", {}, open.length ? `${word} while this ran` : `${word} here`),
    el("p", {}, el("a", link, el("b", {}, what)), last.args && el("code", {dir: "auto"}, ` ${last.args}`), inside.length > 0 && `, in the agent ${inside.join(", in ")}`),
    session.resume && el("p", {class: "command"}, el("code", {tabindex: "0"}, session.resume), copyButton(() => session.resume, "the command")),
    el("p", {class: "soft"}, `${session.resume ? "This" : "connectagent resume"} goes on with it; a tool that was running is not run again without your word.`),
  );
}
