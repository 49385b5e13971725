// The conversation as it is now: each message with who made it, and what others did to it since.

function maker(by) {
  const kind = ["user", "model", "tool", "agent"].find((key) => by[key]);
  if (by.agent) return by.agent === "its beginning" ? "given at the beginning" : by.agent;
  if (kind) return kind === "user" ? "the user" : `${kind} ${by[kind]}`;
  return `${by.plugin ?? "unknown"}${by.version ? ` ${by.version}` : ""}`;
}

function changeLine(change) {
  const {by} = change;
  const place = [
    by.hook && `in ${by.hook}`,
    by.file && by.file !== "?" && `${by.file}:${by.line}`,
    `turn ${change.turn}${change.iteration ? `.${change.iteration}` : ""}`,
  ];
  const line = el(
    "p",
    {class: "change-line"},
    el("b", {class: change.did}, change.did),
    by.agent ? `, ${maker(by)}` : ` by ${maker(by)}`,
    el("span", {class: "place"}, `  ${place.filter(Boolean).join("  ·  ")}`),
  );
  if (change.entry !== null && change.entry !== undefined)
    line.append("  ", el("a", {href: "#", "data-n": change.entry}, `entry ${change.entry}`));
  return line;
}

function messageNode(session, line, index) {
  const last = line.changes.findLastIndex((change) => change.text !== undefined);
  const now = line.changes[last] ?? {text: ""},
    first = line.changes[0],
    rest = line.changes.slice(1);
  const load = (change) => () => source.message(session.name, index, change);
  const foreign = line.changes.some(({by}) => by.plugin && by.plugin !== "connectagent");
  const number = line.message === null ? "removed" : `${line.message}`;
  const node = el(
    "article",
    {class: `message ${line.role} ${foreign ? "foreign" : ""} ${line.message === null ? "gone" : ""}`},
    el(
      "header",
      {},
      el("span", {class: "number"}, number),
      el("b", {class: "role"}, line.role),
      el("span", {class: "made"}, first.by.plugin ? "added by " : "", first.by.user ? "" : maker(first.by)),
      ...rest.map((change) => el("span", {class: `mark ${change.did}`}, `${change.did} by ${maker(change.by)}`)),
    ),
  );
  if (now.text) node.append(textBlock(now, `message ${number}`, load(last)));
  for (const call of now.calls ?? []) node.append(el("pre", {class: "call", dir: "auto"}, `→ ${call}`));
  node.append(
    el(
      "details",
      {class: "changes"},
      el("summary", {}, rest.length ? `history, ${line.changes.length}` : "history"),
      ...line.changes.map((change, at) =>
        el(
          "div",
          {class: "step"},
          changeLine(change),
          rest.length && change.text ? textBlock(change, `message ${number}, step ${at + 1}`, load(at)) : null,
        ),
      ),
    ),
  );
  return node;
}

class Conversation {
  constructor(box, session) {
    Object.assign(this, {box, session, lines: [], nodes: [], read: -1});
    box.replaceChildren();
  }

  // Reads it anew where entries have come; messages that are as they were keep their nodes.
  async show() {
    if (this.read === this.session.rows.length) return;
    this.read = this.session.rows.length;
    try {
      const lines = await source.conversation(this.session.name);
      const texts = lines.map((line) => JSON.stringify(line));
      lines.forEach((line, index) => {
        if (this.lines[index] === texts[index]) return;
        const node = messageNode(this.session, line, index);
        if (this.nodes[index]) this.nodes[index].replaceWith(node);
        else this.box.append(node);
        this.nodes[index] = node;
      });
      this.nodes.splice(lines.length).forEach((node) => node.remove());
      this.lines = texts;
      this.words = lines.map((line) => JSON.stringify(line.changes).toLowerCase());
      this.box.querySelector(".trouble")?.remove();
    } catch (error) {
      this.read = -1;
      this.box.querySelector(".trouble")?.remove();
      this.box.prepend(el("p", {class: "trouble"}, `The conversation cannot be read: ${error.message}`));
    }
  }

  filter(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    this.nodes.forEach((node, index) => {
      node.hidden = !words.every((word) => this.words[index].includes(word));
      shown += !node.hidden;
    });
    return shown;
  }
}
