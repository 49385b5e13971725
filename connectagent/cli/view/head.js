// What stands above a session's rows: its sums, and what failed in it.

const PROBLEMS_AT_ONCE = 5;

function showHead({summary, items, rows}) {
  document.title = `${summary.agent}: ${summary.first_words || items[0]?.input || "connectagent"}`.slice(0, 80);
  at("title").textContent = summary.agent;
  at("status").className = `pill ${summary.status}`;
  at("status").textContent = summary.status.replace("_", " ");
  at("about").replaceChildren(
    el("span", {}, [summary.model, when(summary.started), summary.script].filter(Boolean).join("  ·  ")),
  );
  const calls = rows.filter((row) => row.kind === "model").length,
    tools = rows.filter((row) => row.kind === "tool").length;
  const time = segmentsOf({items, rows}).reduce((sum, segment) => sum + segment.seconds, 0) * 1000;
  const sums = [
    ["turns", new Set(items.filter((item) => item.status !== "between_turns").map((item) => item.turn)).size],
    ["model calls", calls],
    ["tool calls", tools],
    ["tokens", summary.tokens === null ? "?" : tokens(summary.tokens)],
    ["cost", summary.cost === null ? "?" : price(summary.cost)],
    ["time", duration(time)],
  ];
  at("sums").replaceChildren(...sums.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

// What failed, first: turns, model calls, tools and handlers, each with a link to where it is.
function problemsOf({rows, items, summary}) {
  const problems = rows
    .filter((row) => row.bad === 2 && row.kind !== "other")
    .map((row) => ({
      n: row.n,
      turn: items[row.item]?.turn,
      what: row.kind === "handler" ? `handler ${row.name}` : `${row.kind} ${row.name}`,
      text: [row.error, row.text].filter(Boolean).join(": "),
      state: row.status?.replace("_", " "),
    }));
  items.forEach((item, index) => {
    const open = !item.status && !(index === items.length - 1 && summary.status === "running");
    const status = item.status ?? (open ? (index === items.length - 1 ? summary.status : "never ended") : "");
    if (["error", "interrupted", "cancelled", "max_iterations", "truncated", "crashed", "unfinished", "never ended"].includes(status))
      problems.push({
        n: items[index + 1] ? items[index + 1].first - 1 : rows.length - 1,
        turn: item.turn,
        what: "turn",
        text: item.error ?? "",
        state: status.replace("_", " "),
        first: true,
      });
  });
  return problems.sort((a, b) => Number(b.first ?? false) - Number(a.first ?? false) || a.n - b.n);
}

function showProblems(session) {
  session.problems = problemsOf(session);
  const all = at("all-problems"),
    most = all.dataset.all ? Infinity : PROBLEMS_AT_ONCE;
  at("problems").hidden = !session.problems.length;
  at("problems-title").textContent = count(session.problems.length, "problem");
  at("problem-list").replaceChildren(
    ...session.problems
      .slice(0, most)
      .map((problem) =>
        el(
          "li",
          {},
          el(
            "a",
            {href: address({record: session.name, entry: problem.n}), "data-n": problem.n},
            el("span", {class: "which"}, `turn ${problem.turn}`),
            el("b", {}, problem.what),
            " ",
            el("span", {class: "state"}, problem.state ?? "raised"),
            " ",
            el("bdi", {}, problem.text),
          ),
        ),
      ),
  );
  all.hidden = session.problems.length <= most;
  all.textContent = `Show all ${session.problems.length}`;
}
