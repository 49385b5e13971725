// The rows of a session: one for each entry, in turns; what is in an entry is asked for when it is opened.

const KINDS = {model: "model", tool: "tool", started: "tool", handler: "hook", other: "note", input: "input"};
const FIRST = [
  "error",
  "content",
  "arguments",
  "original_arguments",
  "result",
  "prompt",
  "value",
  "message",
  "delta",
  "would",
];
const ASIDE = [
  "type",
  "timestamp",
  "timing",
  "duration_ms",
  "iteration",
  "tool_calls_count",
  "call_id",
  "index",
  "turn",
  "by",
  "tool_name",
  "model",
  "status",
  "error_type",
  "hook",
  "of",
];
const BATCH = 400; // rows that are made before the browser draws

function use(row) {
  const parts = [];
  if (row.in !== undefined || row.out !== undefined) parts.push(`${tokens(row.in ?? 0)}→${tokens(row.out ?? 0)}`);
  if (row.cost !== undefined) parts.push(price(row.cost));
  else if (parts.length) parts.push("cost ?");
  if (row.attempts > 1) parts.push(`${row.attempts} attempts`);
  return parts.join("  ");
}

function rowDetails(row) {
  const details = el("span", {class: "details"});
  if (row.status && row.status !== "success") details.append(el("b", {class: "state"}, row.status.replace("_", " ")), " ");
  if (row.kind === "tool" && row.who) details.append(el("span", {class: "by"}, `by ${row.who} `));
  if (row.did) details.append(el("span", {class: "did"}, row.did), " ");
  if (row.args) details.append(el("code", {dir: "auto"}, row.args), " ");
  if (row.error && !row.text?.includes(row.error)) details.append(el("b", {class: "error-type"}, row.error), " ");
  if (row.text) details.append(el("bdi", {class: "said"}, row.text), " ");
  if (row.calls) details.append(el("code", {class: "calls"}, `→ ${row.calls}`));
  return details;
}

function rowNode(row, turn, open) {
  const bar = el(
    "span",
    {class: "track", "aria-hidden": "true"},
    el("i", {class: row.ms === undefined ? "tick" : "span"}),
  );
  if (row.start !== undefined) {
    bar.firstChild.style.setProperty("--from", (row.start - turn.start).toFixed(6));
    bar.firstChild.style.setProperty("--long", ((row.ms ?? 0) / 1000).toFixed(6));
  } else bar.firstChild.hidden = true;
  const running = row.kind === "started";
  const node = el(
    "details",
    {class: `row ${running ? "tool running" : row.kind} bad${row.bad ?? 0}`, id: `e${row.n}`},
    el(
      "summary",
      {tabindex: "-1"},
      el(
        "span",
        {class: "at"},
        row.start === undefined ? "" : `+${duration(Math.max(0, Math.round((row.start - turn.start) * 1000)))}`,
      ),
      el("span", {class: "kind"}, KINDS[row.kind]),
      el("span", {class: "name", title: row.name}, row.name),
      rowDetails(row),
      bar,
      el("span", {class: "ms"}, running ? "started" : row.ms === undefined ? "" : duration(row.ms)),
      el("span", {class: "use"}, use(row)),
    ),
  );
  node.addEventListener("toggle", () => node.open && open(row, node), {once: true});
  return node;
}

async function openEntry(session, row, node) {
  const detail = el("div", {class: "detail"}, el("p", {class: "wait"}, "…"));
  node.append(detail);
  try {
    const {fields} = await source.entry(session.name, row.n);
    const rank = (field) => (FIRST.indexOf(field.key) + 100) % 100 || 0;
    const main = fields.filter((field) => !ASIDE.includes(field.key) && !["null", "[]", "{}", ""].includes(field.text));
    main.sort((a, b) => (FIRST.includes(a.key) ? rank(a) : 50) - (FIRST.includes(b.key) ? rank(b) : 50));
    // A failed tool's error is its result, word for word.
    const error = main.find((field) => field.key === "error")?.text;
    const shown = main.filter((field) => field.key !== "result" || field.text !== error);
    detail.replaceChildren(facts(row), ...shown.map((field) => fieldNode(session, row, field)));
    const aside = fields.filter((field) => ASIDE.includes(field.key));
    const lines = aside.map((field) => `${field.key}: ${field.text}`).join("\n");
    detail.append(el("details", {class: "aside"}, el("summary", {}, `entry ${row.n}`), el("pre", {}, lines)));
  } catch (error) {
    detail.replaceChildren(el("p", {class: "trouble"}, `It cannot be read: ${error.message}`));
  }
}

function facts(row) {
  const known = [
    row.by && `by ${row.by}`,
    row.hook && `in ${row.hook}`,
    row.where,
    row.waited_ms > 5 && `${duration(row.waited_ms)} of handlers before it began`,
  ];
  return el("p", {class: "facts"}, known.filter(Boolean).join("  ·  "));
}

function fieldNode(session, row, field) {
  const load = () => source.field(session.name, row.n, field.key);
  return el("div", {class: "field"}, el("h4", {}, field.key.replace("_", " ")), textBlock(field, field.key, load));
}

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
  return {
    node: el("section", {class: "turn"}, head, rows, foot),
    head,
    rows,
    foot,
    item,
    start: null,
    end: 0,
    stale: true,
  };
}

function showTurn(turn, item, now) {
  [turn.item, turn.stale] = [item, false];
  const seconds = Math.max(turn.end - (turn.start ?? 0), (item.duration_ms ?? 0) / 1000, 0.0001);
  turn.node.style.setProperty("--whole", seconds.toFixed(6));
  const between = item.status === "between_turns",
    status = item.status ?? now;
  for (const started of turn.rows.querySelectorAll(".running .ms"))
    started.textContent = status === "running" ? "running" : "no end";
  const parts = [
    item.duration_ms !== undefined && item.duration_ms !== null && duration(item.duration_ms),
    typeof item.tokens === "number" && `${tokens(item.tokens)} tok`,
    item.cost === null ? "cost ?" : typeof item.cost === "number" && price(item.cost),
  ];
  turn.head.lastChild.replaceChildren(
    el("span", {class: "sum"}, parts.filter(Boolean).join("  ")),
    between ? "" : el("span", {class: `pill ${status}`}, status.replace("_", " ")),
  );
  turn.foot.hidden = !(item.error || item.result);
  turn.foot.className = `turn-end ${item.error ? "failed" : ""}`;
  turn.foot.replaceChildren(
    el("span", {class: "unseen"}, item.error ? "Error: " : "Result: "),
    el("bdi", {}, item.error || item.result || ""),
  );
}

class Timeline {
  constructor(box, session) {
    Object.assign(this, {box, session, turns: [], nodes: [], words: [], hidden: new Set()});
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
  }

  batch(end) {
    const {rows, items} = this.session;
    while (this.turns.length < items.length && items[this.turns.length].first <= end) {
      this.turns.push(turnNode(items[this.turns.length]));
      this.box.append(this.turns.at(-1).node);
    }
    for (const row of rows.slice(this.nodes.length, end)) {
      const turn = this.turns[row.item];
      if (row.start !== undefined) {
        turn.start ??= row.start;
        turn.stale = true;
        turn.end = Math.max(turn.end, row.start + (row.ms ?? 0) / 1000);
      }
      const node =
        row.kind === "input" ? turn.head : rowNode(row, turn, (row, node) => openEntry(this.session, row, node));
      if (row.kind !== "input") turn.rows.append(node);
      if (row.started !== undefined) this.hide(row.started);
      this.nodes.push(node);
      this.words.push(
        [row.name, row.type, row.text, row.args, row.calls, row.status, row.by, row.who, row.hook, row.did, row.error]
          .filter(Boolean)
          .join(" ")
          .toLowerCase(),
      );
    }
  }

  hide(number) {
    this.hidden.add(number);
    this.nodes[number].hidden = true;
  }

  // Shows only rows of that kind that hold all the words, or that the search in whole texts has found.
  filter(text, kind, found) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean),
      seen = new Set();
    let shown = 0;
    this.session.rows.forEach((row, number) => {
      if (this.hidden.has(number) || number >= this.nodes.length) return;
      const fits = !kind || (kind === "problem" ? row.bad : (row.kind === "started" ? "tool" : row.kind) === kind);
      const match = Boolean(
        fits && (!words.length || words.every((word) => this.words[number].includes(word)) || found?.has(number)),
      );
      if (row.kind !== "input") this.nodes[number].hidden = !match;
      shown += match && row.kind !== "input";
      if (match) seen.add(row.item);
    });
    this.turns.forEach((turn, index) => (turn.node.hidden = Boolean(words.length || kind) && !seen.has(index)));
    return shown;
  }
}
