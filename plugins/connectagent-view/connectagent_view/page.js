// The page: which session is shown, and what is new in it.
import {showAnswer} from "./answer.js";
import {showBeside} from "./beside.js";
import {Changes} from "./changes.js";
import {Conversation} from "./conversation.js";
import {applyFilter, setFilter, typed} from "./filter.js";
import {showHead, showProblems} from "./head.js";
import {beginKeys} from "./keys.js";
import {beginList, markCurrent, showSessions} from "./list.js";
import {VIEWS, go, goToPlace, trouble, view} from "./moves.js";
import {showAgents, showOverview} from "./overview.js";
import {inlined, source} from "./source.js";
import {address, at, place, state} from "./state.js";
import {button, count} from "./text.js";
import {Timeline} from "./timeline.js";

const KIND_NAMES = [
  ["model", "Model"],
  ["tool", "Tools"],
  ["agent", "Agents"],
  ["handler", "Handlers"],
  ["problem", "Problems"],
];
const wide = matchMedia("(min-width: 900px)");

/** @param {string} name */
function open(name) {
  /** @type {any} */
  const shown = {name, rows: [], items: [], agents: [], waits: [], problems: [], summary: null, file: null, open: 0, view: "timeline"};
  state.shown = shown;
  shown.timeline = new Timeline(at("timeline"), shown);
  shown.conversation = new Conversation(at("conversation"), shown);
  shown.changes = new Changes(at("changes"), shown);
  for (const id of ["problems", "overview", "agents", "answer", "bar", "fresh", "trouble"]) at(id).hidden = true;
  at("all-problems").dataset.all = "";
  at("main").setAttribute("aria-busy", "true");
  at("title").textContent = name;
  at("status").textContent = "";
  at("sums").replaceChildren();
  at("about").textContent = "Reading the record.";
  setFilter("", "");
  view(place().get("view") ?? "timeline");
  markCurrent();
}

// Asks for what is new since what is there.
/** @param {any} session */
function ask(session) {
  return source.news(session.name, session.rows.length, session.open, session.file);
}

// Puts what is new into the session; the rows that have changed.
/** @param {any} session @param {any} news */
function take(session, news) {
  session.file = news.file;
  session.items.splice(session.open, Infinity, ...news.items);
  const open = session.items.findIndex((/** @type {any} */ item) => !item.status);
  session.open = Math.min(open < 0 ? session.items.length : open, Math.max(session.items.length - 1, 0));
  const found = news.found && news.found.at !== session.found ? news.found.rows : [];
  session.found = news.found?.at ?? session.found;
  const changed = [...(news.changed ?? []), ...found];
  for (const row of news.rows) session.rows.push(row);
  for (const row of changed) session.rows[row.n] = row;
  session.agents = news.agents ?? session.agents;
  session.waits = news.waits ?? [];
  session.summary = news.summary;
  session.resume = news.resume;
  return changed;
}

// Shows what is new in the session; what was scrolled to stays where it is.
async function update() {
  const session = state.shown;
  const first = session.file === null,
    begun = session.rows.length,
    below = isBelow(),
    before = JSON.stringify(session.summary);
  let news = await ask(session);
  for (;;) {
    if (session !== state.shown) return;
    if (session.file && session.file !== news.file) return open(session.name);
    const changed = take(session, news);
    const rest = news.more ? ask(session) : null; // it is read while the rows are made
    session.timeline.change(changed);
    await session.timeline.add();
    if (!rest) break;
    news = await rest;
  }
  if (session !== state.shown) return;
  if (!first && session.rows.length === begun && JSON.stringify(session.summary) === before) return;
  showHead(session);
  at("bar").hidden = false;
  showProblems(session);
  showOverview(session, (plugin) => view("changes").then(() => session.changes.choose(plugin)));
  showAgents(session);
  if (session.view !== "timeline") await session[session.view].show();
  applyFilter();
  const answered = showAnswer(session);
  if (first) {
    performance.mark("session shown");
    await answered;
    at("main").setAttribute("aria-busy", "false");
    goToPlace();
  } else if (session.rows.length > begun) tellNews(session.rows.length - begun, below);
}

const isBelow = () => scrollY > 0 && innerHeight + scrollY >= document.documentElement.scrollHeight - 60;
const toEnd = () => scrollTo(0, document.documentElement.scrollHeight);

/** @param {number} number @param {boolean} below */
function tellNews(number, below) {
  at("said").textContent = count(number, "new entry", "new entries");
  if (below) return toEnd();
  if (document.documentElement.scrollHeight - innerHeight - scrollY < 60) return;
  at("fresh").dataset.number = number + Number(at("fresh").hidden ? 0 : at("fresh").dataset.number);
  at("fresh").textContent = `${at("fresh").dataset.number} new below`;
  at("fresh").hidden = false;
}

function route() {
  const name = place().get("record"),
    other = place().get("beside");
  document.body.classList.toggle("has-session", Boolean(name));
  document.body.classList.toggle("has-two", Boolean(name && other));
  at("beside").hidden = !(name && other);
  if (name && other) showBeside(name, other).then(() => trouble(null), trouble);
  if (name && name !== state.shown?.name) {
    open(name);
    scrollTo(0, 0);
    refresh();
  } else if (name && state.shown?.file) goToPlace();
}

let running = false;

async function refresh() {
  if (running) return;
  running = true;
  try {
    let name;
    do {
      name = state.shown?.name;
      if (state.shown) await update();
    } while (name !== state.shown?.name); // another one was chosen meanwhile
    trouble(null);
  } catch (error) {
    trouble(error);
  }
  running = false;
}

let listedAt = 0;

async function follow() {
  const begun = performance.now();
  if (!document.hidden) {
    await refresh();
    if (begun - listedAt > 2500) {
      listedAt = begun;
      choose(await showSessions().catch(trouble));
    }
  }
  const took = performance.now() - begun; // a large conversation takes a while: the agent's machine is not kept busy
  setTimeout(follow, Math.max(state.shown?.summary?.status === "running" ? 400 : 1200, took * 3));
}

// Shows the newest session where none was chosen; a phone has no room for it beside the list.
/** @param {any} sessions */
function choose(sessions) {
  if (state.shown) return;
  if (!sessions?.length) at("about").textContent = "No sessions yet. Run an agent: they appear here.";
  else if (inlined || wide.matches) {
    const given = inlined ? Object.fromEntries(place()) : {};
    history.replaceState(null, "", address({record: sessions[0].name, ...given}));
    route();
  }
}

async function begin() {
  const kinds = KIND_NAMES.map(([kind, name]) =>
    button(name, () => setFilter(state.text, state.kind === kind ? "" : kind), {"data-kind": kind, "aria-pressed": "false"}),
  );
  at("kinds").append(...kinds);
  at("filter").addEventListener("input", typed);
  for (const name of VIEWS) at(`show-${name}`).addEventListener("click", () => view(name));
  at("fresh").addEventListener("click", toEnd);
  at("older").addEventListener("click", () => ((state.listed = at("list").children.length + 1), showSessions()));
  at("all-problems").addEventListener("click", () => ((at("all-problems").dataset.all = "yes"), showProblems(state.shown)));
  at("skip").addEventListener("click", (/** @type {any} */ event) => (event.preventDefault(), at("main").focus()));
  addEventListener("scroll", () => isBelow() && (at("fresh").hidden = true), {passive: true});
  addEventListener("hashchange", route);
  document.addEventListener("click", (event) => {
    const target = /** @type {any} */ (event.target).closest("[data-n]");
    if (!target) return;
    event.preventDefault();
    go(Number(target.dataset.n));
  });
  setInterval(() => document.hidden || state.shown?.timeline.tick(), 200);
  beginKeys();
  beginList();
  document.body.classList.toggle("in-file", inlined);
  if (place().get("record") && !inlined) route();
  choose(await showSessions().catch(trouble));
  if (!inlined) follow();
}

begin();
