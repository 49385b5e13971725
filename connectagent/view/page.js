// The page: which session is shown, what is new in it, the filter and the keys.

const at = (id) => document.getElementById(id);
const KIND_NAMES = [["model", "Model"], ["tool", "Tools"], ["handler", "Handlers"], ["problem", "Problems"]];
const PROBLEMS_AT_ONCE = 5;
const wide = matchMedia("(min-width: 900px)");
let shown = null; // the session that is shown, with its two views
let listed = 0; // sessions in the list that were asked for beyond the first ones
let filterText = "", filterKind = "", found = null;

const place = () => new URLSearchParams(location.hash.slice(1));
const address = (given) => `#${new URLSearchParams(given)}`;

// -- the list of sessions ------------------------------------------------------------------------

function sessionNode(session) {
  const tokensTold = typeof session.tokens === "number" ? `${tokens(session.tokens)} tok` : "";
  const costTold = typeof session.cost === "number" && session.cost > 0 ? price(session.cost) : "";
  return el("li", {}, el("a", {href: address({record: session.name}), "data-name": session.name},
    el("span", {class: "line"}, el("b", {}, session.agent ?? session.name), el("time", {}, when(session.started))),
    el("bdi", {class: "first-words"}, session.first_words || "no input yet"),
    el("span", {class: "line small"}, el("span", {class: `pill ${session.status}`}, session.status.replace("_", " ")),
      el("span", {class: "sum"}, [session.turns !== null && session.turns !== undefined ? count(session.turns, "turn") : "", tokensTold, costTold].filter(Boolean).join("  ")))));
}

async function showSessions() {
  const pages = [await source.sessions(0)];
  for (let from = pages[0].sessions.length; from < listed; from += pages.at(-1).sessions.length) {
    pages.push(await source.sessions(from));
    if (!pages.at(-1).sessions.length) break;
  }
  const sessions = pages.flatMap((page) => page.sessions), text = JSON.stringify(sessions);
  at("older").hidden = sessions.length >= pages[0].count;
  at("count").textContent = count(pages[0].count, "session");
  if (text !== showSessions.before) {
    showSessions.before = text;
    const focused = document.activeElement?.dataset?.name;
    at("list").replaceChildren(...sessions.map(sessionNode));
    if (focused !== undefined) [...at("list").querySelectorAll("a")].find((link) => link.dataset.name === focused)?.focus();
    markCurrent();
  }
  return sessions;
}

function markCurrent() {
  for (const link of at("list").querySelectorAll("a"))
    if (link.dataset.name === shown?.name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
}

// -- one session ---------------------------------------------------------------------------------

function open(name) {
  shown = {name, rows: [], items: [], summary: null, file: null, view: "timeline"};
  shown.timeline = new Timeline(at("timeline"), shown);
  shown.conversation = new Conversation(at("conversation"), shown);
  for (const id of ["problems", "overview", "bar", "fresh", "trouble"]) at(id).hidden = true;
  at("all-problems").dataset.all = "";
  at("main").setAttribute("aria-busy", "true");
  setFilter("", "");
  view(place().get("view") === "conversation" ? "conversation" : "timeline");
  markCurrent();
}

// Asks for what is new in the session and shows it; what was scrolled to stays where it is.
async function update() {
  const session = shown;
  const unended = session.items.findIndex((item) => !item.status);
  const from = unended < 0 ? session.items.length : unended;
  const news = await source.news(session.name, session.rows.length, Math.min(from, Math.max(session.items.length - 1, 0)), session.file);
  if (session !== shown) return;
  if (session.file && session.file !== news.file) return open(session.name);
  const first = session.file === null, begun = session.rows.length, below = isBelow();
  session.file = news.file;
  session.items.splice(Math.min(from, Math.max(session.items.length - 1, 0)), Infinity, ...news.items);
  session.rows.push(...news.rows);
  const changed = first || news.rows.length > 0 || JSON.stringify(news.summary) !== JSON.stringify(session.summary);
  session.summary = news.summary;
  if (!changed) return;
  showHead(session);
  at("bar").hidden = at("keys").hidden = false;
  await session.timeline.add();
  if (session !== shown) return;
  showProblems(session);
  showOverview(session);
  if (session.view === "conversation") await session.conversation.show();
  applyFilter();
  if (first) {
    at("main").setAttribute("aria-busy", "false");
    performance.mark("session shown");
  }
  if (!first && session.rows.length > begun) tellNews(session.rows.length - begun, below);
  if (first && place().get("entry")) go(Number(place().get("entry")));
}

const isBelow = () => scrollY > 0 && innerHeight + scrollY >= document.documentElement.scrollHeight - 60;

function tellNews(number, below) {
  at("said").textContent = count(number, "new entry").replace("entrys", "entries");
  if (below) return scrollTo(0, document.documentElement.scrollHeight);
  if (document.documentElement.scrollHeight - innerHeight - scrollY < 60) return;
  at("fresh").dataset.number = number + Number(at("fresh").hidden ? 0 : at("fresh").dataset.number);
  at("fresh").textContent = `${at("fresh").dataset.number} new below`;
  at("fresh").hidden = false;
}

function showHead({summary, items, rows}) {
  document.title = `${summary.agent}: ${summary.first_words || items[0]?.input || "connectagent"}`.slice(0, 80);
  at("title").textContent = summary.agent;
  at("status").className = `pill ${summary.status}`;
  at("status").textContent = summary.status.replace("_", " ");
  at("about").replaceChildren(el("span", {}, [summary.model, when(summary.started), summary.script].filter(Boolean).join("  ·  ")));
  const calls = rows.filter((row) => row.kind === "model").length, tools = rows.filter((row) => row.kind === "tool").length;
  const paid = rows.filter((row) => row.kind === "model" && row.status === "success");
  const spent = paid.reduce((sum, row) => sum + (row.in ?? 0) + (row.out ?? 0), 0);
  const cost = paid.reduce((sum, row) => (sum === null || row.cost === undefined ? null : sum + row.cost), 0);
  const time = segmentsOf({items, rows}).reduce((sum, segment) => sum + segment.seconds, 0) * 1000;
  const sums = [["turns", new Set(items.filter((item) => item.status !== "between_turns").map((item) => item.turn)).size], ["model calls", calls],
    ["tool calls", tools], ["tokens", spent || !paid.length ? tokens(spent) : "?"], ["cost", cost === null ? "?" : price(cost)], ["time", duration(time)]];
  at("sums").replaceChildren(...sums.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

// What failed, first: turns, model calls, tools and handlers, each with a link to where it is.
function problemsOf({rows, items, summary}) {
  const problems = rows.filter((row) => row.bad === 2 && row.kind !== "other").map((row) => ({
    n: row.n, turn: items[row.item]?.turn, what: row.kind === "handler" ? `handler ${row.name}` : `${row.kind} ${row.name}`,
    text: [row.error, row.text].filter(Boolean).join(": "), state: row.status?.replace("_", " "),
  }));
  items.forEach((item, index) => {
    const open = !item.status && !(index === items.length - 1 && summary.status === "running");
    const status = item.status ?? (open ? (index === items.length - 1 ? summary.status : "never ended") : "");
    if (["error", "interrupted", "max_iterations", "crashed", "unfinished", "never ended"].includes(status))
      problems.push({n: items[index + 1] ? items[index + 1].first - 1 : rows.length - 1, turn: item.turn, what: "turn", text: item.error ?? "", state: status.replace("_", " "), first: true});
  });
  return problems.sort((a, b) => Number(b.first ?? false) - Number(a.first ?? false) || a.n - b.n);
}

function showProblems(session) {
  session.problems = problemsOf(session);
  const all = at("all-problems"), most = all.dataset.all ? Infinity : PROBLEMS_AT_ONCE;
  at("problems").hidden = !session.problems.length;
  at("problems-title").textContent = count(session.problems.length, "problem");
  at("problem-list").replaceChildren(...session.problems.slice(0, most).map((problem) => el("li", {},
    el("a", {href: address({record: session.name, entry: problem.n}), "data-n": problem.n},
      el("span", {class: "which"}, `turn ${problem.turn}`), el("b", {}, problem.what), " ",
      el("span", {class: "state"}, problem.state ?? "raised"), " ", el("bdi", {}, problem.text)))));
  all.hidden = session.problems.length <= most;
  all.textContent = `Show all ${session.problems.length}`;
}

function view(name) {
  shown.view = name;
  for (const one of ["timeline", "conversation"]) {
    at(one).hidden = one !== name;
    at(`show-${one}`).setAttribute("aria-pressed", String(one === name));
  }
  at("kinds").hidden = name !== "timeline";
  if (name === "conversation" && shown.file) shown.conversation.show().then(applyFilter);
  else applyFilter();
}

// Goes to an entry, opens it and gives it the focus.
function go(number) {
  if (!shown?.rows[number]) return;
  const row = shown.rows.find((other) => other.started === number) ?? shown.rows[number];
  if (filterText || filterKind) setFilter("", "");
  view("timeline");
  const node = shown.timeline.nodes[row.n];
  history.replaceState(null, "", address({record: shown.name, entry: row.n}));
  if (node.tagName === "DETAILS") node.open = true;
  node.scrollIntoView({block: "center"});
  focusRow(node);
}

// -- the filter ----------------------------------------------------------------------------------

function setFilter(text, kind) {
  [filterText, filterKind, found] = [text, kind, null];
  at("filter").value = text;
  for (const button of at("kinds").children) button.setAttribute("aria-pressed", String(button.dataset.kind === kind));
  applyFilter();
}

function applyFilter() {
  if (!shown) return;
  const hits = shown.view === "timeline" ? shown.timeline.filter(filterText, filterKind, found) : shown.conversation.filter(filterText);
  const word = shown.view === "timeline" ? "entry" : "message";
  at("matches").textContent = filterText || filterKind ? count(hits, word).replace("entrys", "entries") : "";
}

let searching = 0;

function typed() {
  filterText = at("filter").value;
  found = null;
  clearTimeout(searching);
  requestAnimationFrame(applyFilter);
  if (filterText.trim().length < 3) return;
  searching = setTimeout(async () => {
    const text = filterText, session = shown; // rows show the beginnings of texts; the rest is searched here
    const numbers = await source.find(session.name, text).catch(() => []);
    if (session !== shown || text !== filterText) return;
    found = new Set(numbers);
    applyFilter();
  }, 250);
}

// -- keys ----------------------------------------------------------------------------------------

function visibleRows() {
  return shown?.view === "timeline" ? [...document.querySelectorAll("#timeline .turn:not([hidden]) .row:not([hidden])")] : [];
}

function focusRow(node) {
  document.querySelector("#timeline summary[tabindex='0']")?.setAttribute("tabindex", "-1");
  const summary = node.querySelector("summary");
  if (!summary) return;
  summary.setAttribute("tabindex", "0");
  summary.focus({preventScroll: true});
  const box = summary.getBoundingClientRect(), top = at("bar").getBoundingClientRect().bottom;
  if (box.top < top || box.bottom > innerHeight) node.scrollIntoView({block: "center"});
}

function step(by) {
  const rows = visibleRows(), now = rows.indexOf(document.activeElement?.closest?.(".row"));
  const next = now < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, now + by));
  if (rows[next]) focusRow(rows[next]);
}

function nextProblem() {
  const problems = [...(shown?.problems ?? [])].sort((a, b) => a.n - b.n);
  const now = document.activeElement?.closest?.(".row")?.id.slice(1) ?? -1;
  const next = problems.find((problem) => problem.n > Number(now)) ?? problems[0];
  if (next) go(next.n);
}

const KEYS = {
  "/": () => at("filter").select(), j: () => step(1), k: () => step(-1), e: nextProblem,
  t: () => view("timeline"), c: () => view("conversation"),
};

function pressed(event) {
  const typing = event.target.matches("input, textarea");
  if (event.key === "Escape" && typing) {
    setFilter("", filterKind);
    event.target.blur();
    return step(1);
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (typing) return void (event.key === "ArrowDown" && (event.preventDefault(), event.target.blur(), step(1)));
  const arrows = event.target.closest?.("#timeline summary") && {ArrowDown: () => step(1), ArrowUp: () => step(-1)}[event.key];
  const act = arrows || KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

// -- all of it -----------------------------------------------------------------------------------

function route() {
  const name = place().get("record");
  document.body.classList.toggle("has-session", Boolean(name));
  if (name && name !== shown?.name) {
    open(name);
    scrollTo(0, 0);
    refresh();
  } else if (name && place().get("entry")) go(Number(place().get("entry")));
}

function trouble(error) {
  at("trouble").hidden = !error;
  if (error) at("trouble").textContent = inlined ? String(error) : `${error.message}. Is connectagent view still running?`;
}

let running = false;

async function refresh() {
  if (running) return;
  running = true;
  try {
    let name;
    do {
      name = shown?.name;
      if (shown) await update();
    } while (name !== shown?.name); // another one was chosen meanwhile
    trouble(null);
  } catch (error) {
    trouble(error);
  }
  running = false;
}

async function follow() {
  const begun = performance.now();
  if (!document.hidden) {
    await refresh();
    if (begun - (follow.listed ?? 0) > 2500) {
      follow.listed = begun;
      await showSessions().catch(trouble);
    }
  }
  const took = performance.now() - begun; // a large conversation takes a while: the agent's machine is not kept busy
  setTimeout(follow, Math.max(shown?.summary?.status === "running" ? 400 : 1200, took * 3));
}

async function begin() {
  at("kinds").append(...KIND_NAMES.map(([kind, name]) => el("button", {type: "button", "data-kind": kind, "aria-pressed": "false",
    onclick: () => setFilter(filterText, filterKind === kind ? "" : kind)}, name)));
  at("filter").addEventListener("input", typed);
  at("show-timeline").addEventListener("click", () => view("timeline"));
  at("show-conversation").addEventListener("click", () => view("conversation"));
  at("fresh").addEventListener("click", () => scrollTo(0, document.documentElement.scrollHeight));
  at("older").addEventListener("click", () => ((listed = at("list").children.length + 1), showSessions()));
  at("all-problems").addEventListener("click", () => ((at("all-problems").dataset.all = "yes"), showProblems(shown)));
  at("skip").addEventListener("click", (event) => (event.preventDefault(), at("main").focus()));
  addEventListener("scroll", () => isBelow() && (at("fresh").hidden = true), {passive: true});
  addEventListener("keydown", pressed);
  addEventListener("hashchange", route);
  document.addEventListener("click", (event) => {
    const target = event.target.closest("[data-n]");
    if (!target) return;
    event.preventDefault();
    go(Number(target.dataset.n));
  });
  document.body.classList.toggle("in-file", inlined);
  at("keys").hidden = true;
  if (place().get("record") && !inlined) route();
  const sessions = await showSessions().catch(trouble);
  if (!shown && sessions?.length && (inlined || wide.matches)) {
    history.replaceState(null, "", address({record: sessions[0].name, ...(inlined ? Object.fromEntries(place()) : {})}));
    route();
  }
  if (!sessions?.length) at("about").textContent = "No sessions yet. Run an agent: they appear here.";
  if (!inlined) follow();
}

begin();
