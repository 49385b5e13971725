// The filter, and the keys.

function setFilter(text, kind) {
  [filterText, filterKind, found] = [text, kind, null];
  at("filter").value = text;
  for (const button of at("kinds").children) button.setAttribute("aria-pressed", String(button.dataset.kind === kind));
  applyFilter();
}

function applyFilter() {
  if (!shown) return;
  const hits =
    shown.view === "timeline"
      ? shown.timeline.filter(filterText, filterKind, found)
      : shown.conversation.filter(filterText);
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
    const text = filterText,
      session = shown; // rows show the beginnings of texts; the rest is searched here
    const numbers = await source.find(session.name, text).catch(() => []);
    if (session !== shown || text !== filterText) return;
    found = new Set(numbers);
    applyFilter();
  }, 250);
}

function visibleRows() {
  return shown?.view === "timeline"
    ? [...document.querySelectorAll("#timeline .turn:not([hidden]) .row:not([hidden])")]
    : [];
}

function focusRow(node) {
  document.querySelector("#timeline summary[tabindex='0']")?.setAttribute("tabindex", "-1");
  const summary = node.querySelector("summary");
  if (!summary) return;
  summary.setAttribute("tabindex", "0");
  summary.focus({preventScroll: true});
  const box = summary.getBoundingClientRect(),
    top = at("bar").getBoundingClientRect().bottom;
  if (box.top < top || box.bottom > innerHeight) node.scrollIntoView({block: "center"});
}

function step(by) {
  const rows = visibleRows(),
    now = rows.indexOf(document.activeElement?.closest?.(".row"));
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
  "/": () => at("filter").select(),
  j: () => step(1),
  k: () => step(-1),
  e: nextProblem,
  t: () => view("timeline"),
  c: () => view("conversation"),
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
  const arrows =
    event.target.closest?.("#timeline summary") && {ArrowDown: () => step(1), ArrowUp: () => step(-1)}[event.key];
  const act = arrows || KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}
