// Where the time went, of all agents: a lane for the model, tools, what lies between them, waiting, each inner agent,
// and each plugin: bars for its handlers that took long, marks for what they changed.
import {at} from "./state.js";
import {button, count, duration, el, priceOrUnknown, tokens} from "./text.js";

const MOST_LANES = 10;
const SVG = "http://www.w3.org/2000/svg";

/** @param {any} row */
const timed = (row) => row.start !== undefined && row.kind !== "started";

/**
 * The turns side by side, without the hours between them: each with where it begins and how long it is, in seconds.
 * @param {any} session
 * @returns {any[]}
 */
export function segmentsOf(session) {
  let from = 0;
  return session.items.map((/** @type {any} */ item, /** @type {number} */ index) => {
    const end = session.items[index + 1]?.first ?? session.rows.length;
    const rows = session.rows.slice(item.first, end).filter((/** @type {any} */ row) => row.start !== undefined);
    const start = rows.reduce((/** @type {number} */ least, /** @type {any} */ row) => Math.min(least, row.start), Infinity);
    const last = rows.reduce((/** @type {number} */ most, /** @type {any} */ row) => Math.max(most, row.start + (row.ms ?? 0) / 1000), -Infinity);
    const seconds = rows.length ? Math.max(last - start, (item.duration_ms ?? 0) / 1000, 0.001) : 0;
    const segment = {start, seconds, at: from, rows: rows.filter(timed), handlers: item.handlers ?? []};
    from += seconds;
    return segment;
  });
}

/**
 * The spans of a turn in which neither the model nor a tool was at work, and nothing was waited for.
 * @param {any} segment @param {any[]} waits
 */
function between({start, seconds, rows}, waits) {
  const busy = rows.filter((/** @type {any} */ row) => (row.kind === "model" || row.kind === "tool") && !row.in);
  const spans = [...busy, ...waits].map((row) => [row.start, row.start + (row.ms ?? 0) / 1000]).sort((a, b) => a[0] - b[0]);
  const gaps = [];
  let from = start;
  for (const [begin, end] of [...spans, [start + seconds, start + seconds]]) {
    if (begin - from > 0.002) gaps.push({start: from, ms: (begin - from) * 1000});
    from = Math.max(from, end);
  }
  return gaps;
}

/**
 * The times between a failed attempt and the next one.
 * @param {any} segment
 */
function waitsIn({rows}) {
  /** @type {Map<string, number>} */
  const ends = new Map();
  const waits = [];
  for (const row of rows) {
    if (row.kind !== "model" && row.kind !== "tool") continue;
    const key = `${row.in ?? ""} ${row.kind} ${row.kind === "tool" ? row.call : row.aside}`;
    const before = ends.get(key);
    if (row.attempt > 1 && before !== undefined && row.start - before > 0.002)
      waits.push({start: before, ms: (row.start - before) * 1000, kind: "wait", name: `wait before attempt ${row.attempt}`, n: row.n, in: row.in});
    ends.set(key, row.start + (row.ms ?? 0) / 1000);
  }
  return waits;
}

/**
 * The times in which a person was waited for, between the items of a turn that was paused; they have no room of their own.
 * @param {any} session @param {any[]} segments
 */
function waitsForPeople({items}, segments) {
  return segments.flatMap((segment, index) => {
    const before = segments[index - 1];
    if (items[index - 1]?.status !== "paused" || !items[index].resumed || !before?.seconds || !segment.seconds) return [];
    const ms = Math.max(0, segment.start - before.start - before.seconds) * 1000;
    return [{kind: "wait", name: "waited for a person", x: segment.at, ms, thin: true}];
  });
}

/** @param {any} session @param {any[]} segments */
function lanesOf(session, segments) {
  /** @type {Record<string, any[]>} */
  const lanes = {model: [], tools: [], between: [], waiting: []};
  /** @type {Map<string, any[]>} */
  const inner = new Map(session.agents.map((/** @type {any} */ agent) => [agent.branch, []]));
  /** @type {Map<string, any[]>} */
  const plugins = new Map();
  /** @param {string} plugin @param {any} mark */
  const add = (plugin, mark) => {
    if (!plugins.has(plugin)) plugins.set(plugin, []);
    plugins.get(plugin)?.push(mark);
  };
  for (const segment of segments) {
    if (!segment.seconds) continue;
    const place = (/** @type {any} */ row) => ({...row, x: segment.at + row.start - segment.start});
    /** @type {Map<string, string>} */
    const branches = new Map(segment.rows.filter((/** @type {any} */ row) => row.branch).map((/** @type {any} */ row) => [row.id, row.branch]));
    for (const row of segment.rows) {
      if (row.kind === "agent") inner.get(row.branch)?.unshift({...place(row), kind: "inner"});
      else if (row.kind === "model" && !row.in) lanes.model.push(place(row));
      else if (row.kind === "model") inner.get(branches.get(row.in) ?? "")?.push(place(row));
      else if (row.kind === "tool" && !row.in) lanes.tools.push(place(row));
      if (row.plugin && row.plugin !== "connectagent" && row.hook) add(row.plugin, {...place(row), mark: true});
    }
    for (const bar of segment.handlers) add(bar.plugin, {...place(bar), kind: "handler"});
    const waits = waitsIn(segment);
    lanes.waiting.push(...waits.map(place));
    const gaps = between(segment, waits.filter((wait) => !wait.in));
    lanes.between.push(...gaps.map((gap) => ({...place(gap), kind: "between"})));
  }
  lanes.waiting.push(...waitsForPeople(session, segments));
  return {lanes, inner, plugins};
}

/** @param {string} tag @param {Record<string, any>} given */
function svg(tag, given) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(given)) node.setAttribute(key, value);
  return node;
}

/** @param {any} mark @param {number} total */
function rect(mark, total) {
  const width = mark.mark || mark.thin ? 2.5 : Math.max(((mark.ms ?? 0) / 1000 / total) * 1000, 1.5);
  const node = svg("rect", {
    x: Math.min((mark.x / total) * 1000, 1000 - width).toFixed(2),
    width: width.toFixed(2),
    y: mark.mark ? 1 : 3,
    height: mark.mark ? 14 : 10,
    class: `${mark.mark ? "handler" : mark.kind} bad${mark.bad ?? 0}`,
  });
  if (mark.n !== undefined) node.dataset.n = mark.n;
  const title = svg("title", {});
  const name = mark.kind === "between" ? "handlers and the loop" : [mark.name, mark.did].filter(Boolean).join(" ");
  title.textContent = mark.ms !== undefined && !mark.mark ? `${name}, ${duration(mark.ms)}` : name;
  node.append(title);
  return node;
}

/** @param {any} name @param {any[]} marks @param {any[]} segments @param {number} total */
function lane(name, marks, segments, total) {
  const box = svg("svg", {viewBox: "0 0 1000 16", preserveAspectRatio: "none", "aria-hidden": "true"});
  for (const segment of segments.slice(1))
    box.append(svg("rect", {x: (segment.at / total) * 1000, width: 0.6, height: 16, class: "edge"}));
  box.append(...marks.map((mark) => rect(mark, total)));
  const whole = marks.some((mark) => mark.kind === "inner") ? marks.filter((mark) => mark.kind === "inner") : marks;
  const ms = whole.reduce((sum, mark) => sum + (mark.mark ? 0 : (mark.ms ?? 0)), 0);
  const changes = marks.filter((mark) => mark.mark).length;
  const label = changes && !ms ? count(changes, "change") : duration(ms);
  return el("div", {class: "lane"}, name, box, el("span", {class: "lane-sum"}, label));
}

/** @type {Record<string, string>} */
const MEANINGS = {between: "between: handlers and the loop", waiting: "waiting: before another attempt, or for a person"};

/** @param {string} name */
const laneName = (name) => el("span", {class: "lane-name", title: MEANINGS[name] ?? name}, name);

/** @param {any} session @param {(plugin: string) => void} choose shows the changes of a plugin */
export function showOverview(session, choose) {
  const box = at("overview");
  const segments = segmentsOf(session);
  const total = segments.reduce((sum, segment) => sum + segment.seconds, 0);
  box.hidden = total === 0;
  if (!total) return;
  const {lanes, inner, plugins} = lanesOf(session, segments);
  const first = [...plugins].slice(0, MOST_LANES);
  const rest = [...plugins].slice(MOST_LANES).flatMap(([, marks]) => marks);
  /** @type {any[]} */
  const all = Object.entries(lanes).map(([name, marks]) => [laneName(name), marks]);
  for (const agent of session.agents.slice(0, MOST_LANES))
    all.push([agentLink(agent, "lane-name"), inner.get(agent.branch) ?? []]);
  for (const [plugin, marks] of first)
    all.push([button(plugin, () => choose(plugin), {class: "lane-name", title: `What ${plugin} changed`}), marks]);
  if (rest.length) all.push([laneName("others"), rest]);
  box.replaceChildren(...all.filter(([, marks]) => marks.length).map(([name, marks]) => lane(name, marks, segments, total)));
}

/** @param {any} agent @param {string} kind */
const agentLink = (agent, kind) => el("a", {href: "#", class: kind, "data-n": agent.n, title: agent.branch}, agent.name);

/**
 * The agents as a tree, each with its sums; those of an agent include the agents that it asked.
 * @param {any} session
 */
export function showAgents(session) {
  const box = at("agents");
  const {agents, summary, rows: all} = session;
  box.hidden = !agents.length;
  if (!agents.length) return;
  /** @param {any} name @param {number} depth @param {any[]} cells */
  const line = (name, depth, cells) => {
    const head = el("th", {scope: "row"}, name);
    head.style.setProperty("--depth", String(depth));
    return el("tr", {}, head, ...cells.map((cell) => el("td", {}, cell)));
  };
  const amount = (/** @type {any} */ value) => (typeof value === "number" ? tokens(value) : "?");
  const rows = agents.map((/** @type {any} */ agent) =>
    line(agentLink(agent, ""), agent.branch.split(".").length - 1, [
      agent.turns, agent.calls ?? 0, amount(agent.tokens), priceOrUnknown(agent.cost, agent.known_cost), agent.ms === null ? "?" : duration(agent.ms),
    ]),
  );
  const calls = all.filter((/** @type {any} */ row) => row.kind === "model").length;
  const ms = segmentsOf(session).reduce((/** @type {number} */ sum, /** @type {any} */ part) => sum + part.seconds, 0) * 1000;
  const root = line(summary.agent, 0, [
    summary.turns ?? "?", calls, amount(summary.tokens), priceOrUnknown(summary.cost, summary.known_cost), duration(ms),
  ]);
  const heads = ["agent", "turns", "model calls", "tokens", "cost", "time"].map((name) => el("th", {scope: "col"}, name));
  box.replaceChildren(
    el("table", {}, el("caption", {class: "unseen"}, "Agents, with those that each asked"),
      el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, root, ...rows)),
  );
}
