"""The rules of the offline model: which tools a prompt asks for, and what their arguments are."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_MAX_STEPS = 12
_CLAUSE = re.compile(r"[,;:!?\n]+|\.(?=\s|$)|\band\b|\bthen\b|\bund\b|\bdann\b", re.IGNORECASE)
_QUOTED = re.compile(r"\"([^\"\n]+)\"|(?<!\w)'([^'\n]+)'(?!\w)|`([^`\n]+)`|“([^”\n]+)”")
_URL = re.compile(r"https?://[^\s'\"<>)]+")
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]*\w")
_PATH = re.compile(r"(?<![\w/.])(?:~?[\w.-]*/[\w./-]*\w/?|[\w-]+(?:\.[\w-]+)*\.[A-Za-z]\w{0,7}|\.\w[\w.-]+)(?!\w)")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.]*\w)")
_SIZE = re.compile(r"(?<![\w.-])(\d+(?:[.,]\d+)*)\s*([kmg]?)i?b?\b", re.IGNORECASE)
_AFTER = re.compile(
    r"\b(?:for|about|named|called|titled|saying|says|of|in|on|to|with)\s+(?:the\s+|a\s+|an\s+)?(.+)", re.I
)
_BACK = re.compile(r"\b(it|its|them|that|this|those|these|one|ones|result|results|each|first|last|file)\b", re.I)
_LAST_WORDS = (("largest", max), ("biggest", max), ("longest", max), ("smallest", min), ("shortest", min))

# Words that say nothing about which tool is meant.
_WEAK = frozenset(
    re.findall(
        r"\w+",
        """a an the of to for in on at by with from and or is are be it its this that as do does get run make tool
        please me my i you your what which how all any each use using given return returns one into here""",
    )
)
# Words that are taken for each other.
_SAME = {
    "find": "search", "look": "search", "lookup": "search", "query": "search",
    "save": "write", "store": "write", "create": "write", "put": "write",
    "show": "list", "ls": "list", "open": "read", "cat": "read",
    "delete": "remove", "erase": "remove", "directory": "folder", "dir": "folder",
    "add": "sum", "plus": "sum", "total": "sum", "mail": "email", "many": "count",
}  # fmt: skip
_PATH_NAMES = ("path", "file", "filename", "document", "source", "target", "destination")
_FOLDER_NAMES = ("folder", "directory", "dir", "root")
_TEXT_NAMES = ("text", "content", "body", "message", "note", "summary", "report", "comment")


@dataclass(slots=True)
class Result:
    """A call of this turn and the text that came of it."""

    name: str
    arguments: dict[str, Any]
    text: str

    def call(self) -> str:
        """The call as one would write it, long arguments cut."""
        inside = ", ".join(f"{key}={short(repr(value), 40)}" for key, value in self.arguments.items())
        return f"{self.name}({inside})"


def short(text: str, limit: int = 160) -> str:
    """A text on one line, cut behind `limit` characters."""
    line = "; ".join(part.strip() for part in text.splitlines() if part.strip())
    return line if len(line) <= limit else f"{line[: limit - 4].rstrip()} ..."


# ---------------------------------------------------------------------------------------- which tools


def plan(prompt: str, tools: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    """The functions that a prompt asks for, in its order, each with the part of the prompt that names it."""
    functions = [tool.get("function") for tool in tools if isinstance(tool, dict)]
    known = [function for function in functions if isinstance(function, dict) and function.get("name")]
    steps = []
    for clause in _clauses(prompt):
        words = set(_words(clause))
        scored = [(_score(function, words), -index) for index, function in enumerate(known)]
        best, index = max(scored, default=(0, 0))
        if best >= 2:
            steps.append((known[-index], clause))
        elif steps:  # what follows belongs to the step before: "write a note, short and friendly"
            steps[-1] = (steps[-1][0], f"{steps[-1][1]}, {clause}")
    return steps[:_MAX_STEPS]


def _clauses(prompt: str) -> list[str]:
    """The parts of a prompt that may each ask for one tool; what is quoted is never cut."""
    held: list[str] = []

    def hold(match: re.Match[str]) -> str:
        held.append(match.group())
        return f"\0{len(held) - 1}\0"

    masked = _URL.sub(hold, _QUOTED.sub(hold, prompt.replace("\0", " ")))
    parts = [part.strip() for part in _CLAUSE.split(masked)]
    for number in reversed(range(len(held))):  # a URL may hold a quotation, never the other way round
        parts = [part.replace(f"\0{number}\0", held[number]) for part in parts]
    return [part for part in parts if part]


def _score(function: dict[str, Any], words: set[str]) -> int:
    """How much a clause speaks of a tool: two for a word of its name, one for a word of its description."""
    named = set(_words(str(function["name"]))) or {str(function["name"]).lower()}
    described = set(_words(str(function.get("description") or "")[:300])) - named
    return 2 * len(named & words) + min(len(described & words), 3)


def _words(text: str) -> list[str]:
    """The telling words of a text, without endings, synonyms made one."""
    split = re.sub(r"([a-z])([A-Z])", r"\1 \2", text).replace("_", " ").lower()
    found = [_stem(word) for word in re.findall(r"[^\W\d_]+", split)]
    return [_SAME.get(word, word) for word in found if word not in _WEAK]


def _stem(word: str) -> str:
    for ending in ("ing", "es", "ed", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            stem = word[: -len(ending)]
            return stem if ending != "es" or stem.endswith(("s", "x", "z", "ch", "sh")) else word[:-1]
    return word


# ------------------------------------------------------------------------------------------ arguments


def arguments_for(schema: object, clause: str, prompt: str, results: list[Result]) -> dict[str, Any]:
    """Arguments for a tool: found in the clause that names it, in the prompt, in earlier results, else a default."""
    if not isinstance(schema, dict):
        return {}
    return _Filler(schema, clause, prompt, results).object(schema)


class _Filler:
    """Fills one call. What was taken for one argument is not taken for the next."""

    def __init__(self, root: dict[str, Any], clause: str, prompt: str, results: list[Result]) -> None:
        self.root = root
        self.clause = clause
        self.prompt = prompt
        self.results = results
        self.quoted = [next(filter(None, groups)) for groups in _QUOTED.findall(clause)]
        unquoted = _QUOTED.sub(" ", clause)
        self.urls = _URL.findall(unquoted)
        unquoted = _URL.sub(" ", unquoted)
        self.emails = _EMAIL.findall(unquoted)
        unquoted = _EMAIL.sub(" ", unquoted)
        self.paths = _PATH.findall(unquoted)
        self.numbers = _NUMBER.findall(_PATH.sub(" ", unquoted))
        self.depth = 0

    def object(self, schema: dict[str, Any]) -> dict[str, Any]:
        properties = schema.get("properties")
        required = schema.get("required")
        required = required if isinstance(required, list) else []
        filled: dict[str, Any] = {}
        if self.depth > 5 or not isinstance(properties, dict):
            return filled
        self.depth += 1
        for name, part in properties.items():
            value = self.value(str(name), part if isinstance(part, dict) else {}, name in required)
            if value is not None:
                filled[name] = value
        self.depth -= 1
        return filled

    def value(self, name: str, schema: dict[str, Any], required: bool) -> Any:
        """A value for one argument; None where it can be left out."""
        schema = self.plain(schema)
        if "const" in schema:
            return schema["const"]
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return self.choice(schema["enum"], schema, required)
        kind = schema.get("type")
        kind = next((item for item in kind if item != "null"), None) if isinstance(kind, list) else kind
        found: Any
        if kind in ("integer", "number"):
            found = self.number(str(kind))
        elif kind == "boolean":
            found = not re.search(r"\b(no|not|without|false|never)\b", self.clause, re.I) if required else None
        elif kind == "array":
            found = self.array(name, schema) or None
        elif kind == "object":
            found = self.object(schema) or None
        else:
            found = self.string(name.lower(), required and "default" not in schema)
        if found is not None or not required:
            return found
        empty: dict[str, Any] = {"array": [], "object": {}, "integer": schema.get("minimum", 1), "string": self.prompt}
        empty["number"] = empty["integer"]
        return schema.get("default", empty.get(str(kind), self.prompt))

    def plain(self, schema: dict[str, Any]) -> dict[str, Any]:
        """A schema without `$ref` and `anyOf`: the first form that is not null."""
        for _ in range(5):
            ref = schema.get("$ref")
            options = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
            if isinstance(ref, str):
                defs = self.root.get("$defs") or self.root.get("definitions") or {}
                found = defs.get(ref.rpartition("/")[2]) if isinstance(defs, dict) else None
            elif isinstance(options, list):
                found = next((part for part in options if isinstance(part, dict) and part.get("type") != "null"), None)
            else:
                return schema
            rest = {key: value for key, value in schema.items() if key not in ("$ref", "anyOf", "oneOf", "allOf")}
            schema = {**(found if isinstance(found, dict) else {}), **rest}
        return schema

    def choice(self, values: list[Any], schema: dict[str, Any], required: bool) -> Any:
        for text in (self.clause, self.prompt):
            for value in values:
                if re.search(rf"(?<!\w){re.escape(str(value))}(?!\w)", text, re.I):
                    return value
        return schema.get("default", values[0]) if required else None

    def number(self, kind: str) -> int | float | None:
        if not self.numbers:
            return None
        text = self.numbers.pop(0)
        return int(float(text)) if kind == "integer" else float(text) if "." in text else int(text)

    def array(self, name: str, schema: dict[str, Any]) -> list[Any]:
        items = self.plain(schema["items"]) if isinstance(schema.get("items"), dict) else {}
        if items.get("type") in ("integer", "number"):
            found: list[Any] = []
            while self.numbers:
                found.append(self.number(items["type"]))
            return found
        if items.get("type") == "object":
            one = self.object(items)
            return [one] if one else []
        texts, self.quoted, self.paths = [*self.quoted, *self.paths], [], []
        return texts

    def string(self, name: str, needed: bool) -> str | None:
        """A text, by what the argument's name says about it; `needed`: something must be found."""
        words = set(re.split(r"[^a-z]+", name))
        if words & {"url", "link", "uri"}:
            earlier = [url for result in reversed(self.results) for url in _URL.findall(result.text)]
            return self.taken(self.urls) or (earlier[0] if earlier and needed else None)
        if words & {"email", "to", "recipient"} and self.emails:
            return self.taken(self.emails)
        if words & set(_FOLDER_NAMES):
            return self.taken(self.paths) or self.taken(self.quoted) or ("." if needed or self.says("here") else None)
        if words & set(_PATH_NAMES):
            return self.taken(self.paths) or self.taken(self.quoted) or (self.earlier_path() if needed else None)
        if words & set(_TEXT_NAMES):
            return self.taken(self.quoted) or (self.text() if needed else None)
        return self.taken(self.quoted) or (self.subject() if needed else None)

    @staticmethod
    def taken(found: list[str]) -> str | None:
        return found.pop(0) if found else None

    def says(self, word: str) -> bool:
        return re.search(rf"\b{word}\b", self.clause, re.I) is not None

    def text(self) -> str:
        """What shall be written: the earlier results, else the clause itself."""
        if not self.results:
            return self.subject()
        lines = [f"- {result.call()}: {short(result.text, 400)}" for result in self.results]
        return "\n".join(["Summary by the offline model", "", *lines, ""])

    def subject(self) -> str:
        """What a clause is about: the words behind its first preposition, else behind its first word."""
        if _BACK.search(self.clause) and self.results and not self.paths:
            return self.results[-1].text.strip()[:2000] or self.clause
        found = _AFTER.search(self.clause)
        rest = found.group(1) if found else re.sub(r"^\W*\w+\s+(the\s+|an?\s+)?(?=\S)", "", self.clause)
        return rest.strip(" .?!") or self.prompt

    def earlier_path(self) -> str:
        """A path that an earlier result names: the largest, the smallest, the last or the first one."""
        for result in reversed(self.results):
            entries = _entries(result.text)
            if not entries:
                continue
            for word, pick in _LAST_WORDS:
                if self.says(word) and any(size is not None for _, size in entries):
                    return pick(entries, key=lambda entry: (entry[1] is not None, entry[1] or 0))[0]
            return entries[-1 if self.says("last") or self.says("newest") else 0][0]
        found = _PATH.findall(_URL.sub(" ", self.prompt))
        return found[0] if found else "."


def _entries(text: str) -> list[tuple[str, float | None]]:
    """The files that a result lists, each with the size beside it, if there is one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text.splitlines()
    if isinstance(value, dict):
        value = [[key, inner] for key, inner in value.items()]
    lines = [item if isinstance(item, str) else json.dumps(item) for item in value] if isinstance(value, list) else []
    entries = []
    for line in lines[:10_000]:
        path = _PATH.search(line)
        if path and not path.group().endswith("/"):
            entries.append((path.group(), _size(line.replace(path.group(), " ", 1))))
        elif not path and (bare := re.match(r"\W*([A-Za-z_][\w-]*)(?![\w/])\W*(\d.*)?$", line)):  # LICENSE 1071
            entries.append((bare.group(1), _size(bare.group(2) or "")))
    return entries


def _size(text: str) -> float | None:
    """The first number of a text, with its unit: `1,204 bytes`, `3.5 kB`."""
    found = _SIZE.search(text)
    if not found:
        return None
    number = float(found.group(1).replace(",", "")) if found.group(1).count(".") <= 1 else 0.0
    return number * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[found.group(2).lower()]
