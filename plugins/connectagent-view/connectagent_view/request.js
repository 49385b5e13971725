// What a model call was sent: messages with what is new since the call before, tools, parameters, and the whole as JSON.
import {diffNode, textBlock} from "./folded.js";
import {source} from "./source.js";
import {address} from "./state.js";
import {button, count, el} from "./text.js";

/** @param {any} by */
export function maker(by) {
  const kind = ["user", "model", "tool", "agent"].find((key) => by[key]);
  if (by.agent) return by.agent === "its beginning" ? "given at the beginning" : by.agent;
  if (kind) return kind === "user" ? "the user" : `${kind} ${by[kind]}`;
  return by.plugin ? `${by.plugin}${by.version ? ` ${by.version}` : ""}` : "";
}

/** @param {any} session @param {number} entry @param {any} sent */
function sentNode(session, entry, sent) {
  const load = () => source.sent(session.name, entry, sent.place);
  const who = maker(sent.by);
  return el(
    "article",
    {class: `sent ${sent.state}`},
    el(
      "header",
      {},
      el("span", {class: "number"}, sent.place),
      el("b", {class: "role"}, sent.role),
      el("span", {class: `mark ${sent.state}`}, sent.state === "same" ? "as before" : sent.state),
      who && el("span", {}, `by ${who}`),
    ),
    sent.diff ? diffNode(sent.diff) : textBlock(sent, `message ${sent.place} of the request`, load),
  );
}

/** @param {any} session @param {number} entry @param {any} request */
function messagesNode(session, entry, request) {
  const box = el("div", {class: "messages"});
  const show = (/** @type {any[]} */ messages) => messages.map((sent) => sentNode(session, entry, sent));
  box.append(...show(request.messages));
  if (!request.same) return box;
  const before = request.before === null ? null : el("a", {href: address({record: session.name, entry: request.before}), "data-n": request.before}, "the call before");
  const words = el("p", {class: "as-before"}, `${count(request.same, "message")} as in `, before ?? "the call before", " ");
  words.append(
    button("Show all messages", async () => {
      const whole = await source.request(session.name, entry, true);
      box.replaceChildren(...show(whole.messages));
    }),
  );
  box.prepend(words);
  return box;
}

/** @param {any} session @param {any} row */
export async function requestNode(session, row) {
  const request = await source.request(session.name, row.n, false);
  if (!request) return el("p", {class: "wait"}, "The record does not tell what was sent.");
  const changed = request.messages.filter((/** @type {any} */ one) => one.state !== "same").length;
  const title = `${count(request.count, "message")}, ${changed} new or changed` + (request.gone.length ? `, ${request.gone.length} gone` : "");
  const raw = el("details", {class: "raw"}, el("summary", {}, "Raw JSON"));
  raw.addEventListener("toggle", async () => {
    if (raw.childElementCount > 1) return;
    const text = await source.raw(session.name, row.n).catch((error) => error.message);
    raw.append(textBlock({text}, "the request as JSON", async () => text));
  });
  return el(
    "section",
    {class: "request", "aria-label": "Request"},
    el("h4", {}, "Request ", el("span", {class: "soft"}, `${request.model}, ${title}`)),
    messagesNode(session, row.n, request),
    request.gone.length > 0 && el(
      "details",
      {},
      el("summary", {}, `${count(request.gone.length, "message")} of the call before that ${request.gone.length === 1 ? "was" : "were"} not sent again`),
      ...request.gone.map((/** @type {any} */ one) => el("div", {class: "sent gone"}, el("b", {class: "role"}, one.role), el("pre", {dir: "auto"}, one.text))),
    ),
    request.tools.length > 0 && el(
      "details",
      {class: "tools-sent"},
      el("summary", {}, `${count(request.tools.length, "tool")}: ${request.tools.map((/** @type {any} */ tool) => tool.name).join(", ")}`),
      ...request.tools.map((/** @type {any} */ tool) =>
        el("details", {}, el("summary", {}, el("b", {}, tool.name), " ", el("span", {class: "soft"}, tool.says)),
          tool.text && textBlock({text: tool.text}, `schema of ${tool.name}`, async () => tool.text)),
      ),
    ),
    request.output && el(
      "details",
      {class: "tools-sent"},
      el("summary", {}, `The answer fits ${request.output.name}`, request.output.in_words && el("span", {class: "soft"}, ", asked for at the end of the last message")),
      textBlock({text: request.output.text}, `schema of ${request.output.name}`, async () => request.output.text),
    ),
    el(
      "p",
      {class: "parameters"},
      request.options.length ? "Parameters: " : "No parameters.",
      ...request.options.map((/** @type {any} */ option) => el("code", {}, `${option.key}=${option.text} `)),
    ),
    raw,
  );
}

