// The rows of a session in turns; those of an inner agent stand below its own row.
import {openEntry, rowNode} from "./rows.js";
import {duration, el, priceOrUnknown, tokens} from "./text.js";

const BATCH = 400; // rows that are made before the browser draws

/** @param {any} item */
function turnNode(item) {
  const between = item.status === "between_turns";
  const title = between
    ? "Between turns"
    : `Turn ${item.turn}${item.resumed ? ", resumed" : ""}${item.from ? `, from ${item.from}` : ""}`;
  const head = el(
    "header",
    {},
    el("h3", {}, el("span", {class: "number"}, title), " ", el("bdi", {class: "prompt"}, item.input ?? "")),
    el("p", {class: "turn-sums"}),
  );
  const foot = el("p", {class: "turn-end", hidden: true});
  const rows = el("div", {class: "rows"});
  const node = el("section", {class: "turn", "data-turn": item.turn}, head, rows, foot);
  return {node, head, rows, foot, item, start: null, end: 0, stale: true, now: ""};
}

/** @param {any} turn @param {any} item @param {string} now */
function showTurn(turn, item, now) {
  [turn.item, turn.stale] = [item, false];
  const seconds = Math.max(turn.end - (turn.start ?? 0), (item.duration_ms ?? 0) / 1000, 0.0001);
  turn.node.style.setProperty("--whole", seconds.toFixed(6));
  const between = item.status === "between_turns",
    status = item.status ?? now;
  for (const started of turn.rows.querySelectorAll(".running .ms"))
    if (status !== "running") started.textContent = "no end";
  const parts = [
    typeof item.duration_ms === "number" && duration(item.duration_ms),
    typeof item.tokens === "number" && `${tokens(item.tokens)} tok`,
    item.cost !== undefined && (item.cost === null ? "cost ?" : priceOrUnknown(item.cost)),
  ];
  turn.head.lastChild.replaceChildren(
    el("span", {class: "sum"}, parts.filter(Boolean).join("  ")),
    between ? "" : el("span", {class: `pill ${status}`}, status.replaceAll("_", " ")),
  );
  turn.foot.hidden = !(item.error || item.result);
  turn.foot.className = `turn-end ${item.error ? (status === "paused" ? "paused" : "failed") : ""}`;
  turn.foot.replaceChildren(
    el("span", {class: "unseen"}, item.error && status !== "paused" ? "Error: " : "Result: "),
    el("bdi", {}, item.error || item.result || ""),
  );
}

/** @param {any} row */
function wordsOf(row) {
  const known = [row.name, row.type, row.text, row.args, row.calls, row.status, row.by, row.who, row.hook, row.did, row.error];
  return [...known, ...(row.badges ?? [])].filter(Boolean).join(" ").toLowerCase();
}

export class Timeline {
  /** @param {any} box @param {any} session */
  constructor(box, session) {
    /** @type {any} */
    this.box = box;
    /** @type {any} */
    this.session = session;
    /** @type {any[]} */
    this.turns = [];
    /** @type {any[]} */
    this.nodes = []; // by the number of the row; a row and the row of its beginning have the same one
    /** @type {string[]} */
    this.words = [];
    /** @type {Set<number>} */
    this.ended = new Set(); // rows of beginnings that have an end
    /** @type {Map<string, any>} */
    this.groups = new Map(); // by the turn of an inner agent: where its rows are
    box.replaceChildren();
  }

  // Adds the rows that are not there yet, some at a time, so that the first ones are seen at once.
  async add() {
    const {rows, items} = this.session;
    while (this.nodes.length < rows.length || this.turns.length < items.length) {
      const end = Math.min(rows.length, this.nodes.length + BATCH);
      this.batch(end);
      if (end < rows.length) await new Promise((done) => setTimeout(done));
    }
    this.turns.forEach((turn, index) => {
      const now = index === items.length - 1 ? this.session.summary.status : "crashed"; // of a turn that has not ended
      if (turn.item !== items[index] || turn.stale || turn.now !== now) showTurn(turn, items[index], now);
      turn.now = now;
    });
    if (!this.box.querySelector("summary[tabindex='0']"))
      this.box.querySelector(".row:not([hidden]) > summary")?.setAttribute("tabindex", "0");
  }

  /** @param {number} end */
  batch(end) {
    const {rows, items} = this.session;
    const first = this.nodes.length;
    while (this.turns.length < items.length && items[this.turns.length].first <= end) {
      this.turns.push(turnNode(items[this.turns.length]));
      this.box.append(this.turns.at(-1).node);
    }
    /** @type {Map<number, any>} */
    const ends = new Map(); // of beginnings in this batch, the rows that end them
    for (const row of rows.slice(first, end)) if (row.started !== undefined) ends.set(row.started, row);
    for (const row of rows.slice(first, end)) {
      const turn = this.turns[row.item];
      this.time(turn, row);
      if (row.started !== undefined) this.ended.add(row.started);
      this.words.push(wordsOf(row));
      this.nodes.push(this.place(turn, row, ends.get(row.n)));
    }
  }

  /** @param {any} turn @param {any} row */
  time(turn, row) {
    if (row.start === undefined) return;
    turn.start ??= row.start;
    turn.stale = true;
    turn.end = Math.max(turn.end, row.start + (row.ms ?? 0) / 1000);
  }

  /**
   * The node of a row, in its place: what has ended stands where it began.
   * @param {any} turn @param {any} row @param {any} end
   */
  place(turn, row, end) {
    if (row.kind === "input" && !row.in) return turn.head;
    const begun = row.started === undefined ? null : this.nodes[row.started];
    if (begun?.id === `e${row.n}`) return begun; // it was put there with its beginning
    const node = this.make(turn, end ?? row);
    if (begun) this.swap(begun, node);
    else (this.groups.get(row.in) ?? turn.rows).append(node);
    if ((end ?? row).id && !(begun && this.groups.has(row.id))) {
      const group = el("div", {class: "inside", role: "group", "aria-label": `agent ${row.name}`});
      this.groups.set((end ?? row).id, group);
      node.after(group);
    }
    return node;
  }

  /** @param {any} turn @param {any} row */
  make(turn, row) {
    return rowNode(row, turn, (one, node) => openEntry(this.session, one, node));
  }

  // Puts a node where another one was, with what a person has done to it.
  /** @param {any} old @param {any} node */
  swap(old, node) {
    const focused = old.contains(document.activeElement);
    const reached = old.querySelector("summary").getAttribute("tabindex");
    node.querySelector("summary").setAttribute("tabindex", reached);
    old.replaceWith(node);
    node.open = old.open;
    node.hidden = old.hidden;
    if (focused) node.querySelector("summary").focus({preventScroll: true});
  }

  /** @param {any[]} rows that have changed since they were made */
  change(rows) {
    for (const row of rows) {
      const old = this.nodes[row.n];
      if (!old || old.tagName !== "DETAILS" || this.ended.has(row.n)) continue;
      const node = this.make(this.turns[row.item], row);
      this.swap(old, node);
      this.nodes[row.n] = node;
      if (row.started !== undefined) this.nodes[row.started] = node;
      this.words[row.n] = wordsOf(row);
    }
  }

  // Lets what runs move.
  tick() {
    if (this.session.summary?.status !== "running") return;
    for (const node of this.box.querySelectorAll(".running .ms[data-start]")) {
      const ms = Math.max(0, Date.now() - Number(node.dataset.start) * 1000);
      node.textContent = duration(Math.floor(ms / 100) * 100);
    }
  }

  // Shows only rows of that kind that hold all the words, or that the search in whole texts has found.
  /** @param {string} text @param {string} kind @param {Set<number> | null} found */
  filter(text, kind, found) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean),
      seen = new Set();
    let shown = 0;
    this.session.rows.forEach((/** @type {any} */ row, /** @type {number} */ number) => {
      if (this.ended.has(number) || number >= this.nodes.length) return;
      const own = row.kind === "started" ? row.of : row.kind;
      const fits = !kind || (kind === "problem" ? row.bad : own === kind);
      const match = Boolean(
        fits && (!words.length || words.every((word) => this.words[number].includes(word)) || found?.has(number)),
      );
      const head = row.kind === "input" && !row.in;
      if (!head && this.nodes[number].hidden === match) this.nodes[number].hidden = !match;
      shown += Number(match && !head);
      if (match) seen.add(row.item);
    });
    this.turns.forEach((turn, index) => (turn.node.hidden = Boolean(words.length || kind) && !seen.has(index)));
    return shown;
  }
}
