// Where the time went: a lane for the model, for tools, for what lies between them, and one for each plugin:
// bars for its handlers that took long, marks for what they changed.

const MOST_LANES = 8;
const SVG = "http://www.w3.org/2000/svg";

const timed = (row) => row.start !== undefined && row.kind !== "started";

// The turns side by side, without the hours between them: each with where it begins and how long it is, in seconds.
function segmentsOf(session) {
  let at = 0;
  return session.items.map((item, index) => {
    const end = session.items[index + 1]?.first ?? session.rows.length;
    const rows = session.rows.slice(item.first, end).filter((row) => row.start !== undefined);
    const start = Math.min(...rows.map((row) => row.start));
    const last = Math.max(...rows.map((row) => row.start + (row.ms ?? 0) / 1000));
    const seconds = rows.length ? Math.max(last - start, (item.duration_ms ?? 0) / 1000, 0.001) : 0;
    const segment = {start, seconds, at, rows: rows.filter(timed), handlers: item.handlers ?? []};
    at += seconds;
    return segment;
  });
}

// The spans of a turn in which neither the model nor a tool was at work.
function between({start, seconds, rows}) {
  const busy = rows.filter((row) => row.kind === "model" || row.kind === "tool");
  const spans = busy.map((row) => [row.start, row.start + (row.ms ?? 0) / 1000]).sort((a, b) => a[0] - b[0]);
  const gaps = [];
  let at = start;
  for (const [from, to] of [...spans, [start + seconds, start + seconds]]) {
    if (from - at > 0.002) gaps.push({start: at, ms: (from - at) * 1000});
    at = Math.max(at, to);
  }
  return gaps;
}

function lanesOf(segments) {
  const lanes = {model: [], tools: [], handlers: []},
    plugins = new Map();
  for (const segment of segments) {
    if (!segment.seconds) continue;
    const place = (row) => ({...row, x: segment.at + row.start - segment.start});
    for (const row of segment.rows) {
      if (row.kind === "model") lanes.model.push(place(row));
      if (row.kind === "tool") lanes.tools.push(place(row));
      if (row.plugin && row.plugin !== "connectagent" && row.hook) {
        if (!plugins.has(row.plugin)) plugins.set(row.plugin, []);
        plugins.get(row.plugin).push({...place(row), mark: true});
      }
    }
    for (const bar of segment.handlers) {
      if (!plugins.has(bar.plugin)) plugins.set(bar.plugin, []);
      plugins.get(bar.plugin).push({...place(bar), kind: "handler"});
    }
    lanes.handlers.push(...between(segment).map((gap) => ({...place(gap), kind: "between"})));
  }
  return [lanes, plugins];
}

function rect(mark, total) {
  const node = document.createElementNS(SVG, "rect");
  const width = mark.mark ? 2.5 : Math.max(((mark.ms ?? 0) / 1000 / total) * 1000, 1.5);
  node.setAttribute("x", Math.min((mark.x / total) * 1000, 1000 - width).toFixed(2));
  node.setAttribute("width", width.toFixed(2));
  node.setAttribute("y", mark.mark ? 1 : 3);
  node.setAttribute("height", mark.mark ? 14 : 10);
  node.setAttribute("class", `${mark.mark ? "handler" : mark.kind} bad${mark.bad ?? 0}`);
  if (mark.n !== undefined) node.dataset.n = mark.n;
  const title = document.createElementNS(SVG, "title");
  const name = mark.kind === "between" ? "handlers and the loop" : [mark.name, mark.did].filter(Boolean).join(" ");
  title.textContent = mark.ms !== undefined && !mark.mark ? `${name}, ${duration(mark.ms)}` : name;
  node.append(title);
  return node;
}

function lane(name, marks, segments, total) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [key, value] of [
    ["viewBox", "0 0 1000 16"],
    ["preserveAspectRatio", "none"],
    ["aria-hidden", "true"],
  ])
    svg.setAttribute(key, value);
  for (const segment of segments.slice(1)) {
    const line = document.createElementNS(SVG, "rect");
    for (const [key, value] of [
      ["x", (segment.at / total) * 1000],
      ["width", 0.6],
      ["height", 16],
      ["class", "edge"],
    ])
      line.setAttribute(key, value);
    svg.append(line);
  }
  svg.append(...marks.map((mark) => rect(mark, total)));
  const ms = marks.reduce((sum, mark) => sum + (mark.mark ? 0 : (mark.ms ?? 0)), 0);
  const changes = marks.filter((mark) => mark.mark).length;
  const label = changes && !ms ? count(changes, "mark") : duration(ms);
  return el(
    "div",
    {class: "lane"},
    el("span", {class: "lane-name", title: name}, name),
    svg,
    el("span", {class: "lane-sum"}, label),
  );
}

function showOverview(session) {
  const box = document.getElementById("overview");
  const segments = segmentsOf(session);
  const total = segments.reduce((sum, segment) => sum + segment.seconds, 0);
  box.hidden = total === 0;
  if (!total) return;
  const [lanes, plugins] = lanesOf(segments);
  const first = [...plugins].slice(0, MOST_LANES);
  const rest = [...plugins].slice(MOST_LANES).flatMap(([, marks]) => marks);
  const all = [...Object.entries(lanes), ...first, ...(rest.length ? [["others", rest]] : [])];
  box.replaceChildren(
    ...all.filter(([, marks]) => marks.length).map(([name, marks]) => lane(name, marks, segments, total)),
  );
}
