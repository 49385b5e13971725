// The page: which session is shown, and what is new in it.

const at = (id) => document.getElementById(id);
const KIND_NAMES = [
  ["model", "Model"],
  ["tool", "Tools"],
  ["handler", "Handlers"],
  ["problem", "Problems"],
];
const wide = matchMedia("(min-width: 900px)");
let shown = null; // the session that is shown, with its two views
let listed = 0; // sessions in the list that were asked for beyond the first ones
let filterText = "",
  filterKind = "",
  found = null;

const place = () => new URLSearchParams(location.hash.slice(1));
const address = (given) => `#${new URLSearchParams(given)}`;

function open(name) {
  shown = {name, rows: [], items: [], summary: null, file: null, view: "timeline"};
  shown.timeline = new Timeline(at("timeline"), shown);
  shown.conversation = new Conversation(at("conversation"), shown);
  for (const id of ["problems", "overview", "bar", "fresh", "trouble"]) at(id).hidden = true;
  at("all-problems").dataset.all = "";
  at("main").setAttribute("aria-busy", "true");
  at("title").textContent = name;
  at("status").textContent = "";
  at("sums").replaceChildren();
  at("about").textContent = "Reading the record.";
  setFilter("", "");
  view(place().get("view") === "conversation" ? "conversation" : "timeline");
  markCurrent();
}

// Asks for what is new in the session and shows it; what was scrolled to stays where it is.
async function update() {
  const session = shown;
  const unended = session.items.findIndex((item) => !item.status);
  const from = unended < 0 ? session.items.length : unended;
  const news = await source.news(
    session.name,
    session.rows.length,
    Math.min(from, Math.max(session.items.length - 1, 0)),
    session.file,
  );
  if (session !== shown) return;
  if (session.file && session.file !== news.file) return open(session.name);
  const first = session.file === null,
    begun = session.rows.length,
    below = isBelow();
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
  if (!error) return;
  const gone = !inlined && error instanceof TypeError; // of a fetch that nobody answers
  at("trouble").textContent = gone ? `${error.message}. Is connectagent view still running?` : error.message;
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
      choose(await showSessions().catch(trouble));
    }
  }
  const took = performance.now() - begun; // a large conversation takes a while: the agent's machine is not kept busy
  setTimeout(follow, Math.max(shown?.summary?.status === "running" ? 400 : 1200, took * 3));
}

// Shows the newest session where none was chosen; a phone has no room for it beside the list.
function choose(sessions) {
  if (shown) return;
  if (!sessions?.length) at("about").textContent = "No sessions yet. Run an agent: they appear here.";
  else if (inlined || wide.matches) {
    const given = inlined ? Object.fromEntries(place()) : {};
    history.replaceState(null, "", address({record: sessions[0].name, ...given}));
    route();
  }
}

async function begin() {
  at("kinds").append(
    ...KIND_NAMES.map(([kind, name]) =>
      el(
        "button",
        {
          type: "button",
          "data-kind": kind,
          "aria-pressed": "false",
          onclick: () => setFilter(filterText, filterKind === kind ? "" : kind),
        },
        name,
      ),
    ),
  );
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
  choose(await showSessions().catch(trouble));
  if (!inlined) follow();
}

begin();
