// The conversation as it is now: each message with who made it, and what others did to it since.
import {diffNode, textBlock} from "./folded.js";
import {markdown} from "./markdown.js";
import {maker} from "./request.js";
import {source} from "./source.js";
import {address} from "./state.js";
import {button, el} from "./text.js";

const IMAGE = /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]*$/;

/** @param {any} change */
function changeLine(change) {
  const {by} = change;
  const where = [
    by.hook && `in ${by.hook}`,
    by.file && by.file !== "?" && `${by.file}:${by.line}`,
    `turn ${change.turn}${change.iteration ? `.${change.iteration}` : ""}`,
  ];
  const line = el(
    "p",
    {class: "change-line"},
    el("b", {class: change.did}, change.did),
    by.agent ? `, ${maker(by)}` : ` by ${maker(by) || "unknown"}`,
    el("span", {class: "place"}, `  ${where.filter(Boolean).join("  ·  ")}`),
  );
  if (change.entry !== null && change.entry !== undefined)
    line.append("  ", el("a", {href: "#", "data-n": change.entry}, `entry ${change.entry}`));
  return line;
}

/** @param {Conversation} view @param {any} line @param {string} key */
function messageNode(view, line, key) {
  const name = view.session.name;
  const last = line.changes.findLastIndex((/** @type {any} */ change) => change.text !== undefined);
  const now = line.changes[last] ?? {text: ""},
    first = line.changes[0],
    rest = line.changes.slice(1);
  const load = (/** @type {number} */ change) => () => source.message(name, view.branch, view.keys.indexOf(key), change);
  const foreign = line.changes.some((/** @type {any} */ {by}) => by.plugin && by.plugin !== "connectagent");
  const number = line.message === null ? "removed" : `${line.message}`;
  /** @type {Record<string, any>} */
  const link = {record: name, view: "conversation", message: key};
  if (view.branch) link.agent = view.branch;
  const node = el(
    "article",
    {class: `message ${line.role} ${foreign ? "foreign" : ""} ${line.message === null ? "gone" : ""}`, id: `m${key}`},
    el(
      "header",
      {},
      el("a", {class: "number", href: address(link), title: "Link to this message"}, number),
      el("b", {class: "role"}, line.role),
      el("span", {class: "made"}, first.by.plugin ? "added by " : "", first.by.user ? "" : maker(first.by)),
      now.masked && el("span", {class: "badge masked"}, "masked"),
      ...rest.map((/** @type {any} */ change) => el("span", {class: `mark ${change.did}`}, `${change.did} by ${maker(change.by) || "unknown"}`)),
    ),
  );
  for (const thought of now.thoughts ?? [])
    node.append(el("details", {class: "thought"}, el("summary", {}, "Thinking"), el("pre", {dir: "auto"}, thought)));
  if (now.text) node.append(textBlock(now, `message ${number}`, load(last), line.role === "tool" ? null : markdown));
  for (let image = 0; image < (now.images ?? 0); image++) node.append(imageNode(view, key, last, image));
  for (const call of now.calls ?? []) node.append(el("pre", {class: "call", dir: "auto"}, `→ ${call}`));
  node.append(
    el(
      "details",
      {class: "changes"},
      el("summary", {}, rest.length ? `history, ${line.changes.length}` : "history"),
      ...line.changes.map((/** @type {any} */ change, /** @type {number} */ at) =>
        el(
          "div",
          {class: "step"},
          changeLine(change),
          change.diff ? diffNode(change.diff) : rest.length && change.text ? textBlock(change, `message ${number}, step ${at + 1}`, load(at)) : null,
        ),
      ),
    ),
  );
  return node;
}

/** @param {Conversation} view @param {string} key @param {number} change @param {number} image */
function imageNode(view, key, change, image) {
  const box = el("p", {class: "picture"});
  const show = async () => {
    const address = await source
      .image(view.session.name, view.branch, view.keys.indexOf(key), change, image)
      .catch((error) => error.message);
    box.replaceChildren(IMAGE.test(address) ? el("img", {src: address, alt: `image ${image + 1} of this message`}) : el("span", {}, address.slice(0, 300)));
  };
  box.append(button("Show image", show));
  return box;
}

export class Conversation {
  /** @param {any} box @param {any} session */
  constructor(box, session) {
    /** @type {any} */
    this.box = box;
    /** @type {any} */
    this.session = session;
    this.branch = "";
    this.read = -1; // how many rows there were when it was read
    this.known = -1; // the newest entry that is in it
    /** @type {string[]} */
    this.keys = [];
    /** @type {Map<string, any>} */
    this.nodes = new Map();
    /** @type {Map<string, string>} */
    this.lines = new Map(); // what the filter looks for words in
    this.list = el("div", {class: "messages"});
    this.choices = el("div", {class: "plugins", role: "group", "aria-label": "Agent"});
    this.start("");
  }

  /** @param {string} branch of an inner agent, "" for the root */
  start(branch) {
    this.branch = branch;
    this.read = this.known = -1;
    this.keys = [];
    this.nodes.clear();
    this.lines.clear();
    this.list.replaceChildren();
    this.box.replaceChildren(this.choices, this.list);
  }

  // Asks for what is new; messages that are as they were keep their nodes.
  async show() {
    const {rows, name, agents, summary} = this.session;
    if (this.read === rows.length) return;
    this.read = rows.length;
    this.choices.replaceChildren(
      ...(agents.length ? [{branch: "", name: summary.agent}, ...agents] : []).map((agent) =>
        button(agent.name, () => (this.start(agent.branch), this.show()), {"aria-pressed": String(agent.branch === this.branch)}),
      ),
    );
    try {
      const {keys, lines} = await source.conversation(name, this.branch, this.known);
      keys.forEach((/** @type {string} */ key, /** @type {number} */ at) => {
        const node = lines[key] ? messageNode(this, lines[key], key) : this.nodes.get(key);
        if (lines[key]) this.lines.set(key, JSON.stringify(lines[key].changes).toLowerCase());
        if (!node.classList.contains("gone")) node.querySelector(".number").textContent = at;
        const old = this.nodes.get(key);
        if (old && old !== node) old.replaceWith(node);
        if (this.list.children[at] !== node) this.list.insertBefore(node, this.list.children[at] ?? null);
        this.nodes.set(key, node);
      });
      this.keys = keys;
      this.known = rows.length - 1;
      this.box.querySelector(".trouble")?.remove();
    } catch (error) {
      this.read = -1;
      this.box.querySelector(".trouble")?.remove();
      this.box.prepend(el("p", {class: "trouble"}, `The conversation cannot be read: ${/** @type {Error} */ (error).message}`));
    }
  }

  /** @param {string} text */
  filter(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [key, node] of this.nodes) {
      node.hidden = !words.every((word) => this.lines.get(key)?.includes(word));
      shown += Number(!node.hidden);
    }
    return shown;
  }
}
