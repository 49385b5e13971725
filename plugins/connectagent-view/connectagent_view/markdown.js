// Markdown as elements. The library only cuts the text into tokens; no text of a record ever becomes HTML.
import {addText, el} from "./text.js";

const MOST = 100_000; // characters; longer texts are shown as they are
const MOST_DEEP = 40;
/** @type {Record<string, string>} */
const ENTITIES = {"&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'", "&nbsp;": "\u00a0"};
/** @type {Record<string, string>} */
const TAGS = {strong: "strong", em: "em", del: "del", blockquote: "blockquote", paragraph: "p"};

/** @param {string} text @returns {Node} */
export function markdown(text) {
  const library = /** @type {any} */ (globalThis).marked;
  if (!library || text.length > MOST) return el("pre", {dir: "auto"}, text);
  try {
    return el("div", {class: "markdown", dir: "auto"}, ...nodes(library.lexer(text), 0));
  } catch {
    return el("pre", {dir: "auto"}, text);
  }
}

/** @param {any[] | undefined} tokens @param {number} depth @returns {Node[]} */
function nodes(tokens, depth) {
  if (depth > MOST_DEEP) return [el("span", {}, (tokens ?? []).map((token) => token.raw).join(""))];
  return (tokens ?? []).flatMap((token) => node(token, depth) ?? []);
}

/** @param {any} token @param {number} depth @returns {Node | Node[] | null} */
function node(token, depth) {
  const inside = () => nodes(token.tokens, depth + 1);
  if (token.type in TAGS) return el(TAGS[token.type], {}, ...inside());
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      return el("p", {class: `h h${token.depth}`, role: "heading", "aria-level": Math.min(6, token.depth + 2)}, ...inside());
    case "code":
      return el("pre", {class: "code", tabindex: "0"}, el("code", {}, token.text));
    case "codespan":
      return el("code", {}, token.text);
    case "br":
      return el("br");
    case "hr":
      return el("hr");
    case "list":
      return list(token, depth);
    case "table":
      return table(token, depth);
    case "link":
      return link(token, inside());
    case "image":
      return el("span", {class: "image"}, `[image: ${token.text || "without a text"}, ${token.href}]`);
    case "checkbox":
      return el("span", {}, token.checked ? "\u2611 " : "\u2610 ");
    case "text":
      if (token.tokens) return inside();
      return words(plain(token.text));
    case "escape":
      return words(plain(token.text));
    default: // HTML, and what a later version of the library may know
      return el("span", {class: "html"}, token.raw ?? "");
  }
}

/** @param {string} text */
function words(text) {
  const made = document.createDocumentFragment();
  addText(made, text);
  return made;
}

/** @param {string} text */
const plain = (text) => text.replace(/&(?:amp|lt|gt|quot|#39|nbsp);/g, (entity) => ENTITIES[entity]);

/** @param {any} token @param {number} depth */
function list(token, depth) {
  const items = token.items.map((/** @type {any} */ item) =>
    el("li", {}, item.task && !has(item.tokens, "checkbox") && (item.checked ? "\u2611 " : "\u2610 "), ...nodes(item.tokens, depth + 1)),
  );
  return el(token.ordered ? "ol" : "ul", {start: token.ordered && token.start !== 1 ? token.start : null}, ...items);
}

/** @param {any[]} tokens @param {string} type @returns {boolean} */
const has = (tokens, type) => (tokens ?? []).some((one) => one.type === type || has(one.tokens, type));

/** @param {any} token @param {number} depth */
function table(token, depth) {
  /** @param {string} tag @param {any[]} cells */
  const row = (tag, cells) =>
    el("tr", {}, ...cells.map((cell) => el(tag, {class: cell.align}, ...nodes(cell.tokens, depth + 1))));
  const body = token.rows.map((/** @type {any[]} */ cells) => row("td", cells));
  return el("div", {class: "table", tabindex: "0", role: "group", "aria-label": "Table"},
    el("table", {}, el("thead", {}, row("th", token.header)), el("tbody", {}, ...body)));
}

/** @param {any} token @param {Node[]} inside */
function link(token, inside) {
  if (!/^(https?:|mailto:)/i.test(token.href)) return el("span", {}, ...inside, ` (${token.href})`);
  return el("a", {href: token.href, target: "_blank", rel: "noopener noreferrer", title: token.href}, ...inside);
}
