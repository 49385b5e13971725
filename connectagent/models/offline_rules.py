"""The rules of the offline model: which tools a prompt asks for, and what their arguments are."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from connectagent.errors import cut

_MAX_STEPS = 12
_MAX_LEVELS = 5
_CLAUSE = re.compile(r"[,;:!?\n]+|\.(?=\s|$)|\band\b|\bthen\b|\bund\b|\bdann\b", re.IGNORECASE)
_URL = re.compile(r"https?://[^\s'\"<>)]+")
_PATH = re.compile(r"(?<![\w/.])(?:~?[\w.-]*/[\w./-]*\w/?|[\w-]+(?:\.[\w-]+)*\.[A-Za-z]\w{0,7}|\.\w[\w.-]+)(?!\w)")
_TOKENS = {  # each is looked for in what the ones before it have left
    "quoted": re.compile(r"\"([^\"\n]+)\"|(?<!\w)'([^'\n]+)'(?!\w)|`([^`\n]+)`|“([^”\n]+)”"),
    "url": _URL,
    "email": re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]*\w"),
    "path": _PATH,
    "number": re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.]*\w)"),
}
_HELD = re.compile(f"{_TOKENS['quoted'].pattern}|{_URL.pattern}")
_BARE_NAME = re.compile(r"\W*([A-Za-z_][\w-]*)(?![\w/])\W*(?:\d.*)?$")  # LICENSE 1071
_SIZE = re.compile(r"(?<![\w.-])(\d+(?:,\d+)*(?:\.\d+)?)\s*([kmg]?)i?b?\b", re.IGNORECASE)
_AFTER = re.compile(
    r"\b(?:for|about|named|called|titled|saying|says|of|in|on|to|with)\s+(?:the\s+|a\s+|an\s+)?(.+)", re.I
)
_BACK = re.compile(r"\b(it|its|them|that|this|those|these|one|ones|result|results|each|first|last|file)\b", re.I)

# Words that say nothing about which tool is meant, and words that are taken for each other.
_WEAK = frozenset(
    """a an the of to for in on at by with from and or is are be it its this that as do does get run make tool please
    me my i you your what which how all any each use using given return returns one into here""".split()  # noqa: SIM905
)
_SAME = {
    other: word
    for word, others in {
        "search": "find look lookup query", "write": "save store create put", "list": "show ls", "read": "open cat",
        "remove": "delete erase", "folder": "directory dir", "sum": "add plus total", "email": "mail", "count": "many",
    }.items()
    for other in others.split()
}  # fmt: skip


@dataclass(slots=True)
class Result:
    """A call of this turn and the text that came of it."""

    name: str
    arguments: dict[str, Any]
    text: str

    def line(self, limit: int) -> str:
        """The call as one would write it, and its result on the same line."""
        inside = ", ".join(f"{key}={cut(repr(value), 40)}" for key, value in self.arguments.items())
        text = "; ".join(part.strip() for part in self.text.splitlines() if part.strip())
        return f"- {self.name}({inside}): {cut(text, limit)}"


# ---------------------------------------------------------------------------------------- which tools


def plan(prompt: str, tools: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    """The functions that a prompt asks for, in its order, each with the part of the prompt that names it."""
    functions = [tool.get("function") for tool in tools if isinstance(tool, dict)]
    known = [function for function in functions if isinstance(function, dict) and function.get("name")]
    steps: list[tuple[dict[str, Any], str]] = []
    for clause in _clauses(prompt):
        words = set(_words(clause))
        best = max(known, key=lambda function: _score(function, words), default={"name": ""})
        if _score(best, words) >= 2:
            steps.append((best, clause))
        elif steps:  # what follows belongs to the step before: "write a note, short and friendly"
            steps[-1] = (steps[-1][0], f"{steps[-1][1]}, {clause}")
    return steps[:_MAX_STEPS]


def _clauses(prompt: str) -> list[str]:
    """The parts of a prompt that may each ask for one tool; quotations and URLs are never cut."""
    held = [match[0] for match in _HELD.finditer(prompt)]
    parts = _CLAUSE.split(_HELD.sub("\0", prompt.replace("\0", " ")))
    whole = [re.sub("\0", lambda match: held.pop(0), part).strip() for part in parts]
    return [part for part in whole if part]


def _score(function: dict[str, Any], words: set[str]) -> int:
    """How much a clause speaks of a tool: two for a word of its name, one for a word of its description."""
    named = set(_words(str(function["name"]))) or {str(function["name"]).lower()}
    described = set(_words(str(function.get("description") or "")[:300])) - named
    return 2 * len(named & words) + min(len(described & words), 3)


def _words(text: str) -> list[str]:
    """The telling words of a text, without endings, synonyms made one."""
    split = re.sub(r"([a-z])([A-Z])", r"\1 \2", text).replace("_", " ").lower()
    found = [re.sub(r"(?<=\w{3})(?:ing|ed|(?<=[sxz])es|(?<=[cs]h)es|(?<!s)s)$", "", word)
             for word in re.findall(r"[^\W\d_]+", split)]  # fmt: skip
    return [_SAME.get(word, word) for word in found if word not in _WEAK]


# ------------------------------------------------------------------------------------------ arguments


def arguments_for(schema: object, clause: str, prompt: str, results: list[Result]) -> dict[str, Any]:
    """Arguments for a tool: found in the clause that names it, in the prompt, in earlier results, else a default."""
    return _Filler(schema, clause, prompt, results).object(schema) if isinstance(schema, dict) else {}


class _Filler:
    """Fills one call. What was taken for one argument is not taken for the next."""

    def __init__(self, root: dict[str, Any], clause: str, prompt: str, results: list[Result]) -> None:
        self.root = root
        self.clause = clause
        self.prompt = prompt
        self.results = results
        self.found: dict[str, list[str]] = {}
        self.level = 0
        for kind, pattern in _TOKENS.items():
            self.found[kind] = [next(filter(None, match.groups()), match[0]) for match in pattern.finditer(clause)]
            clause = pattern.sub(" ", clause)

    def object(self, schema: dict[str, Any]) -> dict[str, Any]:
        properties = schema.get("properties")
        required = schema.get("required")
        if self.level > _MAX_LEVELS or not isinstance(properties, dict):
            return {}
        self.level += 1
        values = {
            name: self.value(str(name), part, isinstance(required, list) and name in required)
            for name, part in properties.items()
        }
        self.level -= 1
        return {name: value for name, value in values.items() if value is not None}

    def value(self, name: str, schema: Any, required: bool) -> Any:
        """A value for one argument; None where it can be left out."""
        schema = self.plain(schema)
        options = [schema["const"]] if "const" in schema else schema.get("enum")
        kind = _kind(schema)
        if isinstance(options, list) and options:
            found = self.named(options)
            empty = options[0]
        elif kind in ("integer", "number"):
            found = self.number(kind)
            empty = schema.get("minimum", 1)
        elif kind == "boolean":
            found = None
            empty = not _has(self.clause, "no", "not", "without", "false", "never")
        elif kind in ("array", "object"):
            found = (self.array(schema) if kind == "array" else self.object(schema)) or None
            empty = [] if kind == "array" else {}
        else:
            found = self.string(name.lower(), required and "default" not in schema)
            empty = self.prompt
        return schema.get("default", empty) if found is None and required else found

    def plain(self, given: Any) -> dict[str, Any]:
        """A schema without `$ref` and `anyOf`: the first form that is not null."""
        schema: dict[str, Any] = given if isinstance(given, dict) else {}
        for _ in range(_MAX_LEVELS):
            options = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
            if isinstance(ref := schema.get("$ref"), str):
                known = self.root.get("$defs") or self.root.get("definitions")
                found = known.get(ref.rpartition("/")[2]) if isinstance(known, dict) else None
            elif isinstance(options, list):
                found = next((part for part in options if isinstance(part, dict) and part.get("type") != "null"), None)
            else:
                break
            rest = {key: value for key, value in schema.items() if key not in ("$ref", "anyOf", "oneOf", "allOf")}
            schema = {**(found if isinstance(found, dict) else {}), **rest}
        return schema

    def named(self, values: list[Any]) -> Any:
        """The first of some values that the clause or the prompt names."""
        texts = (self.clause, self.prompt)
        return next((value for text in texts for value in values if _has(text, str(value))), None)

    def number(self, kind: str) -> int | float | None:
        text = self.take("number")
        if text is None:
            return None
        return float(text) if kind == "number" and "." in text else int(float(text))

    def array(self, schema: dict[str, Any]) -> list[Any]:
        items = self.plain(schema.get("items"))
        if items.get("type") in ("integer", "number"):
            return [self.number(items["type"]) for _ in list(self.found["number"])]
        if items.get("type") == "object":
            return [one for one in [self.object(items)] if one]
        texts = [*self.found["quoted"], *self.found["path"]]
        self.found.update(quoted=[], path=[])
        return texts

    def string(self, name: str, needed: bool) -> str | None:
        """A text, by what the argument's name says about it; `needed`: something must be found."""
        words = set(re.split(r"[^a-z]+", name))
        kinds, otherwise = next((rule for names, *rule in _BY_NAME if words & names), (("quoted",), _Filler.subject))
        return self.take(*kinds) or (otherwise(self) if needed else None)

    def take(self, *kinds: str) -> str | None:
        return next((self.found[kind].pop(0) for kind in kinds if self.found[kind]), None)

    def summary(self) -> str:
        """The text to write: the earlier results, else what the clause is about."""
        lines = [result.line(400) for result in self.results]
        return "\n".join(["Summary by the offline model", "", *lines, ""]) if lines else self.subject()

    def subject(self) -> str:
        """What a clause is about: the words behind its first preposition, else behind its first word."""
        if _BACK.search(self.clause) and self.results and not self.found["path"]:
            return self.results[-1].text.strip()[:2000] or self.clause
        found = _AFTER.search(self.clause)
        rest = found.group(1) if found else re.sub(r"^\W*\w+\s+(the\s+|an?\s+)?(?=\S)", "", self.clause)
        return rest.strip(" .?!") or self.prompt

    def earlier_url(self) -> str | None:
        return next((url for result in reversed(self.results) for url in _URL.findall(result.text)), None)

    def earlier_path(self) -> str:
        """A path that an earlier result names: the largest, the smallest, the last or the first one."""
        entries = next(filter(None, (_entries(result.text) for result in reversed(self.results))), [])
        if entries and _has(self.clause, "largest", "biggest", "longest"):
            return max(entries, key=lambda entry: entry[1])[0]
        if entries and _has(self.clause, "smallest", "shortest"):
            return min(entries, key=lambda entry: entry[1])[0]
        if entries:
            return entries[-1 if _has(self.clause, "last", "newest") else 0][0]
        return next(iter(_PATH.findall(_URL.sub(" ", self.prompt))), ".")


# By the words of an argument's name: what is taken for it, and what stands in where nothing is found.
_BY_NAME: tuple[tuple[set[str], tuple[str, ...], Any], ...] = (
    ({"url", "link", "uri"}, ("url",), _Filler.earlier_url),
    ({"folder", "directory", "dir", "root"}, ("path", "quoted"), lambda filler: "."),
    ({"path", "file", "filename", "document", "source", "target", "destination"}, ("path", "quoted"),
     _Filler.earlier_path),
    ({"text", "content", "body", "message", "note", "summary", "report", "comment"}, ("quoted",), _Filler.summary),
    ({"email", "to", "recipient"}, ("email", "quoted"), _Filler.subject),
)  # fmt: skip


def _has(text: str, *words: str) -> bool:
    """Whether one of some words is in a text."""
    return re.search(rf"(?<!\w)(?:{'|'.join(map(re.escape, words))})(?!\w)", text, re.I) is not None


def _kind(schema: dict[str, Any]) -> str:
    kinds = schema.get("type")
    return str(next((one for one in kinds if one != "null"), None) if isinstance(kinds, list) else kinds)


def _entries(text: str) -> list[tuple[str, float]]:
    """The files that a result lists, each with the size beside it, 0 if there is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text.splitlines()
    value = [[key, inner] for key, inner in value.items()] if isinstance(value, dict) else value
    entries = []
    for line in value[:10_000] if isinstance(value, list) else []:
        line = line if isinstance(line, str) else json.dumps(line)
        path = _PATH.search(line)
        if path and not path[0].endswith("/"):
            entries.append((path[0], _size(line.replace(path[0], " ", 1))))
        elif not path and (bare := _BARE_NAME.match(line)):
            entries.append((bare[1], _size(line[bare.end(1) :])))
    return entries


def _size(text: str) -> float:
    """The first number of a text, with its unit: `1,204 bytes`, `3.5 kB`."""
    found = _SIZE.search(text)
    unit = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}
    return float(found[1].replace(",", "")) * unit[found[2].lower()] if found else 0.0
