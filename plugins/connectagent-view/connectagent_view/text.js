// Text is put into the page as text alone. What steers a terminal or turns the reading order is shown as its escape.

const UNSEEN = new RegExp(
  "[\\u0000-\\u0008\\u000b\\u000c\\u000e-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e" +
    "\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\u{e0000}-\\u{e007f}]|\\r(?!\\n)",
  "gu",
);

/** @param {string} character */
function escaped(character) {
  const code = character.codePointAt(0) ?? 0;
  if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
  return code < 0x10000 ? `\\u${code.toString(16).padStart(4, "0")}` : `\\U${code.toString(16).padStart(8, "0")}`;
}

/** @param {Node & ParentNode} node @param {string} text */
export function addText(node, text) {
  let last = 0;
  for (const found of text.matchAll(UNSEEN)) {
    if (found.index > last) node.append(document.createTextNode(text.slice(last, found.index)));
    const mark = document.createElement("span");
    mark.className = "escape";
    mark.textContent = escaped(found[0]);
    node.append(mark);
    last = found.index + found[0].length;
  }
  if (last < text.length) node.append(document.createTextNode(last ? text.slice(last) : text));
}

/**
 * An element; strings among its children become text, null is left out.
 * @param {string} tag
 * @param {Record<string, any>} given
 * @param {...any} children
 * @returns {any}
 */
export function el(tag, given = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (child instanceof Node) node.append(child);
    else addText(node, String(child));
  }
  return node;
}

/** @param {string} name @param {() => any} act @param {Record<string, any>} [given] */
export const button = (name, act, given = {}) => el("button", {type: "button", onclick: act, ...given}, name);

/** @param {number} ms */
export function duration(ms) {
  if (ms < 1) return ms > 0 ? "<1ms" : "0ms";
  if (ms < 1000) return `${Math.round(ms)}ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)}s`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)}m${String(Math.floor(ms / 1000) % 60).padStart(2, "0")}s`;
  return `${Math.floor(ms / 3_600_000)}h${String(Math.floor(ms / 60_000) % 60).padStart(2, "0")}m`;
}

/** @param {number} count */
export function tokens(count) {
  if (count < 1000) return String(count);
  return count < 999_950 ? `${(count / 1000).toFixed(1)}k` : `${(count / 1e6).toFixed(1)}M`;
}

/** @param {number} cost */
export function price(cost) {
  if (cost > 0 && cost < 0.0001) return "<$0.0001";
  return cost < 1 ? `$${cost.toFixed(4)}` : `$${cost.toFixed(2)}`;
}

/**
 * @param {number | null | undefined} cost
 * @param {number | null | undefined} [known] the sum of the known prices, where one is not known
 */
export function priceOrUnknown(cost, known) {
  if (typeof cost === "number") return price(cost);
  return known ? `${price(known)} + ?` : "?";
}

/** @param {string | null | undefined} iso */
export function when(iso) {
  const time = iso ? new Date(iso) : null;
  if (!time || isNaN(Number(time))) return "";
  const today = new Date().toDateString() === time.toDateString();
  /** @type {Intl.DateTimeFormatOptions} */
  const clock = {hour: "2-digit", minute: "2-digit", hourCycle: "h23"};
  return time.toLocaleString("en", today ? clock : {month: "short", day: "numeric", ...clock});
}

/** @param {number} number @param {string} word @param {string} [many] */
export const count = (number, word, many = `${word}s`) => `${number.toLocaleString("en")} ${number === 1 ? word : many}`;
