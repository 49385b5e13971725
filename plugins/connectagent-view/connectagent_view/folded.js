// Texts in boxes: with more on demand, a button that copies them, and JSON as a tree that folds.
import {button, el} from "./text.js";

const SLICE = 100_000; // characters that are added at once
const MOST_ITEMS = 200; // of one list or object of a tree
const MOST_JSON = 200_000; // characters of a text that is shown as a tree

/**
 * A button that copies a text.
 * @param {() => string | Promise<string>} text
 * @param {string} label
 */
export function copyButton(text, label) {
  const node = button("Copy", copy, {class: "copy", "aria-label": `Copy ${label}`});
  async function copy() {
    try {
      await navigator.clipboard.writeText(await text());
      node.textContent = "Copied";
    } catch {
      node.textContent = "Not copied";
    }
    setTimeout(() => (node.textContent = "Copy"), 1500);
  }
  return node;
}

/** @param {string} text */
function asJson(text) {
  const start = text.trimStart()[0];
  if ((start !== "{" && start !== "[") || text.length > MOST_JSON || !text.includes("\n")) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** @param {any} value @param {string} name @param {number} depth */
function treeNode(value, name, depth) {
  const label = name === "" ? null : el("span", {class: "key"}, `${name}: `);
  if (value === null || typeof value !== "object") {
    const kind = value === null ? "null" : typeof value;
    return el("div", {class: "leaf"}, label, el("span", {class: kind, dir: "auto"}, JSON.stringify(value)));
  }
  const pairs = Object.entries(value);
  const size = Array.isArray(value) ? `[${pairs.length}]` : `{${pairs.length}}`;
  const node = el("details", {class: "branch", open: depth < 2}, el("summary", {}, label, size));
  const fill = () => {
    if (node.childElementCount > 1) return;
    const shown = pairs.slice(0, MOST_ITEMS).map(([key, item]) => treeNode(item, key, depth + 1));
    const rest = pairs.length - shown.length;
    node.append(el("div", {class: "leaves"}, ...shown, rest > 0 && el("p", {class: "wait"}, `${rest} more`)));
  };
  if (depth < 2) fill();
  else node.addEventListener("toggle", fill, {once: true});
  return node;
}

/**
 * A text that may go on.
 * @param {{text: string, length?: number}} part
 * @param {string} label
 * @param {() => Promise<string>} load gives the whole of it
 * @param {((text: string) => Node) | null} [render] shows a whole text as something else, for example as Markdown
 */
export function textBlock(part, label, load, render = null) {
  const box = el("div", {class: "text", tabindex: "0", role: "group", "aria-label": label});
  const plain = el("pre", {dir: "auto"}, part.text);
  const value = part.length === undefined ? asJson(part.text) : undefined;
  if (value !== undefined) box.append(el("div", {class: "json"}, treeNode(value, "", 0)));
  else box.append(render && part.length === undefined ? render(part.text) : plain);
  const tools = el("div", {class: "tools"});
  if (part.text.length > 40) tools.append(copyButton(() => (part.length === undefined ? part.text : load()), label));
  const whole = el("div", {class: "whole"}, box, tools);
  if (part.length !== undefined) tools.prepend(moreButton(box, part.length, load, render));
  return whole;
}

/** @param {any} box @param {number} length @param {() => Promise<string>} load @param {any} render */
function moreButton(box, length, load, render) {
  /** @type {string | null} */
  let text = null;
  let shown = 0;
  const more = button(`Show more of ${length.toLocaleString("en")}`, show, {class: "more"});
  async function show() {
    more.disabled = true;
    try {
      if (text === null) {
        text = await load();
        box.replaceChildren();
        if (text.length <= SLICE && (render || asJson(text) !== undefined)) {
          const value = asJson(text);
          box.append(value === undefined ? render(text) : el("div", {class: "json"}, treeNode(value, "", 0)));
          return more.remove();
        }
      }
      let end = Math.min(shown + SLICE, text.length);
      const code = text.charCodeAt(end - 1);
      if (end < text.length && code >= 0xd800 && code < 0xdc00) end += 1;
      box.append(el("pre", {dir: "auto"}, text.slice(shown, end)));
      shown = end;
      more.textContent = `Show more: ${shown.toLocaleString("en")} of ${text.length.toLocaleString("en")} shown`;
      if (shown >= text.length) more.remove();
    } catch (error) {
      more.textContent = `It cannot be read: ${/** @type {Error} */ (error).message}`;
    }
    more.disabled = false;
  }
  return more;
}

/** @param {[string, string][]} pieces */
export function diffNode(pieces) {
  /** @type {Record<string, string>} */
  const tags = {"=": "span", "-": "del", "+": "ins"};
  const given = {class: "diff", dir: "auto", tabindex: "0", role: "group", "aria-label": "What changed"};
  return el("pre", given, ...pieces.map(([kind, text]) => el(tags[kind], {}, text)));
}
