// What plugins changed: word by word, each with the line of code that did it.
import {diffNode} from "./folded.js";
import {source} from "./source.js";
import {address, at, state} from "./state.js";
import {button, count, el} from "./text.js";

/** @param {any} change */
export function codePlace(change) {
  if (!change.where) return null;
  if (!change.edit) return el("span", {class: "where"}, change.where);
  return el("a", {class: "where", href: change.edit, title: "Open in the editor"}, change.where);
}

/** @param {any} change @param {boolean} linked */
export function changeNode(change, linked) {
  const entry = {href: address({record: state.shown.name, entry: change.n}), "data-n": change.n};
  return el(
    "article",
    {class: "change", "data-plugin": change.plugin},
    el(
      "header",
      {},
      el("b", {class: "plugin"}, change.by),
      el("span", {class: "did"}, change.did.replaceAll("_", " ")),
      change.hook && el("span", {}, `in ${change.hook}`),
      codePlace(change),
      linked && el("a", entry, `entry ${change.n}`),
    ),
    diffNode(change.diff),
  );
}

export class Changes {
  /** @param {any} box @param {any} session */
  constructor(box, session) {
    Object.assign(this, {box, session});
    /** @type {any} */
    this.box = box;
    /** @type {any} */
    this.session = session;
    this.read = -1;
    this.plugin = "";
    /** @type {any[]} */
    this.nodes = [];
    /** @type {any[]} */
    this.changes = [];
    box.replaceChildren();
  }

  async show() {
    if (this.read === this.session.rows.length) return;
    this.read = this.session.rows.length;
    const {changes, count: all} = await source.changes(this.session.name);
    this.changes = changes;
    this.nodes = changes.map((/** @type {any} */ change) => changeNode(change, true));
    const plugins = [...new Set(changes.map((/** @type {any} */ change) => change.plugin))];
    const choices = ["", ...plugins].map((plugin) =>
      button(plugin ? `${plugin} ${changes.filter((/** @type {any} */ one) => one.plugin === plugin).length}` : "All plugins", () => this.choose(plugin), {
        "data-plugin": plugin,
        "aria-pressed": String(plugin === this.plugin),
      }),
    );
    const none = changes.length ? null : el("p", {class: "wait"}, "No plugin has changed anything.");
    const older = all > changes.length ? el("p", {class: "wait"}, `${count(all - changes.length, "older change")} left out.`) : null;
    this.box.replaceChildren(
      el("div", {class: "plugins", role: "group", "aria-label": "Plugin"}, ...choices),
      ...[none, older].filter(Boolean),
      ...this.nodes,
    );
    this.choose(this.plugin);
  }

  /** @param {string} plugin */
  choose(plugin) {
    this.plugin = plugin;
    for (const one of this.box.querySelectorAll(".plugins button"))
      one.setAttribute("aria-pressed", String(one.dataset.plugin === plugin));
    this.filter(state.text);
    at("matches").textContent = "";
  }

  /** @param {string} text */
  filter(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    this.changes.forEach((change, number) => {
      const there = JSON.stringify(change).toLowerCase();
      const fits = (!this.plugin || change.plugin === this.plugin) && words.every((word) => there.includes(word));
      this.nodes[number].hidden = !fits;
      shown += Number(fits);
    });
    return shown;
  }
}
