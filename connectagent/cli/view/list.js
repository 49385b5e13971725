// The list of sessions.

function sessionNode(session) {
  const tokensTold = typeof session.tokens === "number" ? `${tokens(session.tokens)} tok` : "";
  const costTold = session.cost === null ? "?" : session.cost > 0 ? price(session.cost) : "";
  return el(
    "li",
    {},
    el(
      "a",
      {href: address({record: session.name}), "data-name": session.name},
      el("span", {class: "line"}, el("b", {}, session.agent ?? session.name), el("time", {}, when(session.started))),
      el("bdi", {class: "first-words"}, session.first_words || "no input yet"),
      el(
        "span",
        {class: "line small"},
        el("span", {class: `pill ${session.status}`}, session.status.replace("_", " ")),
        el(
          "span",
          {class: "sum"},
          [
            session.turns !== null && session.turns !== undefined ? count(session.turns, "turn") : "",
            tokensTold,
            costTold,
          ]
            .filter(Boolean)
            .join("  "),
        ),
      ),
    ),
  );
}

async function showSessions() {
  const pages = [await source.sessions(0)];
  for (let from = pages[0].sessions.length; from < listed; from += pages.at(-1).sessions.length) {
    pages.push(await source.sessions(from));
    if (!pages.at(-1).sessions.length) break;
  }
  const sessions = pages.flatMap((page) => page.sessions),
    text = JSON.stringify(sessions);
  at("older").hidden = sessions.length >= pages[0].count;
  at("count").textContent = count(pages[0].count, "session");
  if (text !== showSessions.before) {
    showSessions.before = text;
    const focused = document.activeElement?.dataset?.name;
    at("list").replaceChildren(...sessions.map(sessionNode));
    if (focused !== undefined)
      [...at("list").querySelectorAll("a")].find((link) => link.dataset.name === focused)?.focus();
    markCurrent();
  }
  return sessions;
}

function markCurrent() {
  for (const link of at("list").querySelectorAll("a"))
    if (link.dataset.name === shown?.name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
}
