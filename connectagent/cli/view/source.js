// Where the data comes from: the server, or, in an exported file, the blocks of JSON at its end.

const inlined = document.getElementById("data-shown") !== null;

async function ask(name, given) {
  const answer = await fetch(`${name}?${new URLSearchParams(given)}`, {cache: "no-store"});
  if (!answer.ok) throw new Error(await answer.text());
  return answer;
}

async function askJson(name, given = {}) {
  return (await ask(name, given)).json();
}

const served = {
  sessions: (from) => askJson("sessions", {from}),
  news: (record, row, item, file) => askJson("news", file ? {record, row, item, file} : {record, row, item}),
  entry: (record, entry) => askJson("entry", {record, entry}),
  field: async (record, entry, key) => (await ask("text", {record, entry, key})).text(),
  conversation: (record) => askJson("conversation", {record}),
  message: async (record, message, change) => (await ask("text", {record, message, change})).text(),
  find: (record, text) => askJson("find", {record, text}),
};

const blocks = {};

// A block is read when it is first needed: one holds all that tools have returned.
function block(name) {
  blocks[name] ??= JSON.parse(document.getElementById(`data-${name}`).textContent);
  return blocks[name];
}

function cut(part, most) {
  if (part.text === undefined || part.text.length <= most) return part;
  return {...part, text: part.text.slice(0, most), length: part.length ?? part.text.length};
}

const inFile = {
  sessions: async () => ({sessions: [block("shown").summary], count: 1}),
  news: async (record, row, item) => {
    const {rows, items, summary} = block("shown");
    return {rows: rows.slice(row), items: items.slice(item), summary, file: "this"};
  },
  entry: async (record, entry) => ({fields: block("details")[entry].map((field) => cut(field, 4000))}),
  field: async (record, entry, key) => block("details")[entry].find((field) => field.key === key).text,
  conversation: async () =>
    block("conversation").map((line) => ({...line, changes: line.changes.map((change) => cut(change, 1500))})),
  message: async (record, message, change) => block("conversation")[message].changes[change].text,
  find: async (record, text) => {
    const sought = text.toLowerCase();
    const holds = (fields) => fields.some((field) => field.text.toLowerCase().includes(sought));
    return block("details").flatMap((fields, number) => (holds(fields) ? [number] : []));
  },
};

const source = inlined ? inFile : served;
