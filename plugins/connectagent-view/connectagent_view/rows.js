// One row for each entry; what is in an entry is asked for when it is opened.
import {changeNode} from "./changes.js";
import {textBlock} from "./folded.js";
import {markdown} from "./markdown.js";
import {requestNode} from "./request.js";
import {source} from "./source.js";
import {address} from "./state.js";
import {duration, el, price, tokens} from "./text.js";

/** @type {Record<string, string>} */
const KINDS = {model: "model", tool: "tool", agent: "agent", wait: "wait", handler: "hook", other: "note", input: "input"};
const FIRST = ["error", "content", "arguments", "original_arguments", "result", "prompt", "value", "message", "delta", "would"];
const ASIDE = new Set([
  ...["type", "id", "at", "author", "branch", "timestamp", "started", "timing", "duration_ms", "iteration", "turn"],
  ...["tool_calls_count", "call_id", "index", "by", "tool_name", "model", "status", "error_type", "hook", "of"],
  ...["request", "digest", "tools", "entries_since_request", "attempt"],
]);
const EMPTY = new Set(["null", "[]", "{}", ""]);

/** @param {any} row */
function use(row) {
  const parts = [];
  if (row.tokens_in !== undefined || row.tokens_out !== undefined)
    parts.push(`${tokens(row.tokens_in ?? 0)}→${tokens(row.tokens_out ?? 0)}`);
  if (row.cost !== undefined) parts.push(price(row.cost));
  else if (parts.length) parts.push("cost ?");
  return parts.join("  ");
}

/** @param {any} row */
function rowDetails(row) {
  const details = el("span", {class: "details"});
  if (row.status && row.status !== "success") details.append(el("b", {class: "state"}, row.status.replaceAll("_", " ")), " ");
  if (row.attempt > 1) details.append(el("span", {class: "badge"}, `attempt ${row.attempt}`), " ");
  for (const badge of row.badges ?? []) details.append(el("span", {class: `badge ${badge.split(" ")[0]}`}, badge), " ");
  if ((row.kind === "tool" || row.aside) && row.who) details.append(el("span", {class: "by"}, `by ${row.who} `));
  if (row.did) details.append(el("span", {class: "did"}, row.did), " ");
  if (row.args) details.append(el("code", {dir: "auto"}, row.args), " ");
  if (row.error && !row.text?.includes(row.error)) details.append(el("b", {class: "error-type"}, row.error), " ");
  if (row.text) details.append(el("bdi", {class: "said"}, row.text), " ");
  if (row.calls) details.append(el("code", {class: "calls"}, `→ ${row.calls}`));
  return details;
}

/** @param {any} row @param {any} turn @param {(row: any, node: any) => void} open */
export function rowNode(row, turn, open) {
  const bar = el("span", {class: "track", "aria-hidden": "true"}, el("i", {class: row.ms === undefined ? "tick" : "span"}));
  const since = row.start === undefined ? undefined : row.start - turn.start;
  if (since !== undefined) {
    bar.firstChild.style.setProperty("--from", since.toFixed(6));
    bar.firstChild.style.setProperty("--long", ((row.ms ?? 0) / 1000).toFixed(6));
  } else bar.firstChild.hidden = true;
  const running = row.kind === "started" && row.status !== "held";
  const kind = row.kind === "started" ? row.of : row.kind;
  const node = el(
    "details",
    {class: `row ${kind} ${running ? "running" : ""} bad${row.bad ?? 0}`, id: `e${row.n}`},
    el(
      "summary",
      {tabindex: "-1"},
      el("span", {class: "at"}, since === undefined ? "" : `+${duration(Math.max(0, Math.round(since * 1000)))}`),
      el("span", {class: "kind"}, KINDS[kind]),
      el("span", {class: "name", title: row.name}, row.name),
      rowDetails(row),
      bar,
      el("span", {class: "ms", "data-start": running ? row.start : null}, running ? "started" : row.ms === undefined ? "" : duration(row.ms)),
      el("span", {class: "use"}, use(row)),
    ),
  );
  node.addEventListener("toggle", () => node.open && open(row, node), {once: true});
  return node;
}

/** @param {any} session @param {any} row @param {any} node */
export async function openEntry(session, row, node) {
  const detail = el("div", {class: "detail"}, el("p", {class: "wait"}, "…"));
  node.append(detail);
  try {
    const {fields, edit} = await source.entry(session.name, row.n);
    const rank = (/** @type {any} */ field) => (FIRST.includes(field.key) ? FIRST.indexOf(field.key) : 50);
    const main = fields.filter((/** @type {any} */ field) => !ASIDE.has(field.key) && !EMPTY.has(field.text));
    main.sort((/** @type {any} */ a, /** @type {any} */ b) => rank(a) - rank(b));
    // A failed tool's error is its result, word for word.
    const error = main.find((/** @type {any} */ field) => field.key === "error")?.text;
    const changed = row.hook ? (await source.changes(session.name, row.n)).changes : [];
    const known = changed.length ? ["value", "message", "delta", "removed"] : [];
    const shown = main.filter((/** @type {any} */ field) => (field.key !== "result" || field.text !== error) && !known.includes(field.key));
    detail.replaceChildren(
      facts(session, row, edit),
      ...(row.found ?? []).map(foundNode),
      ...changed.map((/** @type {any} */ change) => changeNode(change, false)),
      ...shown.map((/** @type {any} */ field) => fieldNode(session, row, field)),
    );
    if (row.type === "llm_call" && row.status !== "stand_in") detail.append(await requestNode(session, row));
    const aside = fields.filter((/** @type {any} */ field) => ASIDE.has(field.key) || known.includes(field.key));
    const lines = aside.map((/** @type {any} */ field) => `${field.key}: ${field.text}`).join("\n");
    detail.append(el("details", {class: "aside"}, el("summary", {}, `entry ${row.n}`), el("pre", {}, lines)));
  } catch (error) {
    detail.replaceChildren(el("p", {class: "trouble"}, `It cannot be read: ${/** @type {Error} */ (error).message}`));
  }
}

/** @param {any} session @param {any} row @param {string | null} edit */
function facts(session, row, edit) {
  const parts = [
    row.by && `by ${row.by}`,
    row.hook && `in ${row.hook}`,
    row.where && (edit ? el("a", {class: "where", href: edit, title: "Open in the editor"}, row.where) : row.where),
    row.waited_ms > 5 && `${duration(row.waited_ms)} of handlers before it began`,
    el("a", {href: address({record: session.name, entry: row.n})}, "link to this entry"),
  ].filter(Boolean);
  return el("p", {class: "facts"}, ...parts.flatMap((part, number) => (number ? ["  ·  ", part] : [part])));
}

/** What `connectagent bisect` found of an entry. @param {any} found */
function foundNode(found) {
  const code = found.where && (found.edit ? el("a", {class: "where", href: found.edit, title: "Open in the editor"}, found.where) : found.where);
  const where = code ? [el("span", {}, "added at ", code)] : [];
  const facts = [found.confirmed ? "confirmed" : "not confirmed", ...where, found.date].filter(Boolean);
  return el(
    "div",
    {class: "field bisected"},
    el("h4", {}, `bisect: ${found.symptom}`),
    el("pre", {}, found.said),
    el("p", {class: "facts"}, ...facts.flatMap((part, number) => (number ? ["  ·  ", part] : [part]))),
  );
}

/** @param {any} session @param {any} row @param {any} field */
function fieldNode(session, row, field) {
  const load = () => source.field(session.name, row.n, field.key);
  const render = row.kind === "model" && field.key === "content" ? markdown : null;
  return el("div", {class: "field"}, el("h4", {}, field.key.replaceAll("_", " ")), textBlock(field, field.key.replaceAll("_", " "), load, render));
}
