// Where the data comes from: the server, or, in an exported file, the blocks of JSON at its end.

export const inlined = document.getElementById("data-shown") !== null;

/** @param {string} name @param {Record<string, any>} given */
async function get(name, given) {
  const answer = await fetch(`${name}?${new URLSearchParams(given)}`, {cache: "no-store"});
  if (!answer.ok) throw new Error(await answer.text());
  return answer;
}

/** @param {string} name @param {Record<string, any>} [given] */
async function askJson(name, given = {}) {
  return (await get(name, given)).json();
}

/** @param {Record<string, any>} given */
async function askText(given) {
  return (await get("text", given)).text();
}

/** @type {Record<string, (...given: any[]) => Promise<any>>} */
const served = {
  sessions: (given) => askJson("sessions", given),
  names: () => askJson("names"),
  news: (record, row, item, file) => askJson("news", file ? {record, row, item, file} : {record, row, item}),
  entry: (record, entry) => askJson("entry", {record, entry}),
  field: (record, entry, key) => askText({record, entry, key}),
  end: (record, item, key) => askText({record, item, key}),
  conversation: (record, branch, known) => askJson("conversation", {record, branch, known}),
  message: (record, branch, message, change) => askText({record, branch, message, change}),
  image: (record, branch, message, change, image) => askText({record, branch, message, change, image}),
  changes: (record, entry) => askJson("changes", entry === undefined ? {record} : {record, entry}),
  request: (record, entry, all) => askJson("request", all ? {record, entry, all} : {record, entry}),
  raw: (record, request) => askText({record, request}),
  sent: (record, request, place) => askText({record, request, place}),
  find: (record, text) => askJson("find", {record, text}),
};

/** @type {Record<string, any>} */
const blocks = {};

// A block is read when it is first needed: one holds all that tools have returned.
/** @param {string} name */
function block(name) {
  blocks[name] ??= JSON.parse(document.getElementById(`data-${name}`)?.textContent ?? "null");
  return blocks[name];
}

/** @param {any} part @param {number} most */
function cut(part, most) {
  if (part.text === undefined || part.text.length <= most) return part;
  return {...part, text: part.text.slice(0, most), length: part.length ?? part.text.length};
}

/** @param {any[]} lines */
function keyed(lines) {
  /** @type {Map<any, number>} */
  const made = new Map();
  return lines.map((line) => {
    const first = line.changes[0].entry;
    made.set(first, (made.get(first) ?? -1) + 1);
    return `${first ?? "given"}.${made.get(first)}`;
  });
}

/** @param {string} what @param {string} [more] @returns {never} */
function leftOut(what, more = "") {
  throw new Error(`${what} is too large for this page; ${more}connectagent view shows it`);
}

/** @type {Record<string, (...given: any[]) => Promise<any>>} */
const inFile = {
  sessions: async () => ({sessions: [block("shown").summary], count: 1, all: 1}),
  names: async () => ({agent: [], status: [], plugin: [], tool: []}),
  news: async (record, row, item) => {
    const {rows, items, agents, summary} = block("shown");
    return {rows: rows.slice(row), changed: [], items: items.slice(item), agents, summary, file: "this"};
  },
  entry: async (record, entry) => ({fields: block("details")[entry].map((/** @type {any} */ field) => cut(field, 4000))}),
  field: async (record, entry, key) => block("details")[entry].find((/** @type {any} */ field) => field.key === key).text,
  end: async (record, item, key) => block("ends")[item][key],
  conversation: async (record, branch) => {
    const lines = block("conversation")[branch ?? ""];
    const keys = keyed(lines);
    const short = lines.map((/** @type {any} */ line, /** @type {number} */ at) => [
      keys[at],
      {...line, changes: line.changes.map((/** @type {any} */ change) => cut(change, 1500))},
    ]);
    return {keys, lines: Object.fromEntries(short)};
  },
  message: async (record, branch, message, change) => block("conversation")[branch ?? ""][message].changes[change].text,
  image: async (record, branch, message, change, image) =>
    block("images")[[branch ?? "", message, change, image].join("/")] ?? leftOut("this image", "export it with --whole; "),
  changes: async (record, entry) => {
    const changes = block("changes").filter((/** @type {any} */ change) => entry === undefined || change.n === entry);
    return {changes, count: changes.length};
  },
  request: async (record, entry) => block("requests")[entry] ?? null,
  raw: async (record, request) => block("raw")[request] ?? leftOut("the raw JSON of this request"),
  sent: async (record, request, place) =>
    block("requests")[request].messages.find((/** @type {any} */ one) => one.place === place).text,
  find: async (record, text) => {
    const sought = text.toLowerCase();
    return block("details").flatMap((/** @type {any[]} */ fields, /** @type {number} */ number) =>
      fields.some((field) => field.text.toLowerCase().includes(sought)) ? [number] : [],
    );
  },
};

export const source = inlined ? inFile : served;
