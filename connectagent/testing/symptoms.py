"""What a failure looks like in a turn's trace: `calls refund`, `error KeyError`, `./check.py:is_bad`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from connectagent.data import TraceEntry
from connectagent.errors import ConfigError, did_you_mean
from connectagent.hooks.files import module_from_path
from connectagent.output.rows import call_text
from connectagent.output.text import visible
from connectagent.replay.compare import final_calls
from connectagent.session.journal import is_aside
from connectagent.session.messages import text_of

MOST_SEEN = 8  # of what a record shows instead, in an error

Sights = Callable[[list[TraceEntry]], Iterator[tuple[str, TraceEntry]]]
"""What one kind of symptom looks at in a turn, each as text with its entry."""


@dataclass(frozen=True, slots=True)
class Symptom:
    """What a failure looks like in the trace of a turn.

    Attributes:
        text: how a person writes it.
        kind: `calls`, `says`, `result`, `error`, `rejected`, or `function` for one in a file of the person.
    """

    text: str
    kind: str
    _finds: Callable[[list[TraceEntry]], TraceEntry | None]

    def shown_by(self, entries: list[TraceEntry]) -> bool:
        """Whether a turn shows it.

        Args:
            entries: the turn's trace.

        Raises:
            ConfigError: the person's own function raised.
        """
        return self.found(entries) is not None

    def found(self, entries: list[TraceEntry]) -> TraceEntry | None:
        """The first entry that shows it, or None. Of the person's own function it is the last entry."""
        return self._finds(entries)

    def why_not(self, entries: list[TraceEntry]) -> str:
        """What a turn that does not show it has in its place, for an error."""
        if self.kind not in _SIGHTS:
            return f"the record does not show it: {self.text} returned nothing that is true"
        has, names, _ = _SIGHTS[self.kind]
        seen = list(dict.fromkeys(text for text, _ in names(entries)))
        more = [f"... {len(seen) - MOST_SEEN} more"] if len(seen) > MOST_SEEN else []
        shown = ", ".join([*(visible(text, 80) for text in seen[:MOST_SEEN]), *more])
        word = self.text.split()[1].rpartition(".")[2]
        are_names = names in (_called, _errors)
        near = did_you_mean(word, seen, 0.75) if are_names and word not in seen else ""
        return f"the record does not show it; {has}: {shown or 'nothing'}{f'.{near}' if near else ''}"


def symptom(text: str) -> Symptom:
    """A symptom, as a person writes it.

    Args:
        text: `calls NAME [/regex/]`: a tool is called, with arguments that the regular expression finds something in;
            `says /regex/`: the agent answers a text; `result /regex/`: a tool call has a result;
            `error TYPE [by PLUGIN]`: an error of this class, in a model, a tool or a handler;
            `rejected NAME [by PLUGIN]`: a tool call is refused;
            `./file.py:function`: the function gets the list of the turn's entries and returns whether it is there.

    Raises:
        ConfigError: it is none of these.
    """
    text = text.strip()
    kind, _, rest = text.partition(" ")
    if is_function(text):
        return Symptom(text, "function", _of_function(text))
    if kind not in _SIGHTS:
        near = did_you_mean(kind, _SIGHTS)
        raise ConfigError(f"{visible(text, 80)!r} says no failure that can be looked for.{near} It is one of: {_FORMS}")
    return Symptom(text, kind, _KINDS[kind](text, rest.strip()))


def is_function(text: str) -> bool:
    """Whether a symptom, as a person writes it, is a function in a file of theirs."""
    text = text.strip()
    return text.partition(" ")[0] not in _SIGHTS and text.rpartition(":")[0].endswith(".py")


# -- the forms -----------------------------------------------------------------------------------

_FORMS = (
    "calls NAME [/regex/], says /regex/, result /regex/, error TYPE [by PLUGIN], rejected NAME [by PLUGIN], "
    "./file.py:function"
)
_CALLS = re.compile(r"(\S+)(?:\s+/(.*)/)?", re.DOTALL)
_SAYS = re.compile(r"/(.*)/", re.DOTALL)
_NAMED = re.compile(r"(\S+)(?:\s+by\s+(\S.*))?", re.DOTALL)


def _parts(form: re.Pattern[str], text: str, rest: str, expected: str) -> tuple[str, ...]:
    match = form.fullmatch(rest)
    if match is None:
        raise ConfigError(f"{visible(text, 80)!r} is not whole: it is written as {expected}")
    return match.groups(default="")


def _pattern(text: str, regex: str) -> re.Pattern[str]:
    try:
        return re.compile(regex)
    except re.error as error:
        raise ConfigError(f"{visible(text, 80)!r}: /{regex}/ is no regular expression: {error}") from error


def _of_calls(text: str, rest: str) -> Callable[[list[TraceEntry]], TraceEntry | None]:
    name, regex = _parts(_CALLS, text, rest, "calls NAME or calls NAME /regex/")
    pattern = _pattern(text, regex)

    def finds(entries: list[TraceEntry]) -> TraceEntry | None:
        for called, arguments, entry in _calls(entries):
            forms = (json.dumps(arguments, ensure_ascii=False, default=repr), call_text(called, arguments))
            if called == name and any(map(pattern.search, forms)):
                return entry
        return None

    return finds


def _of_texts(text: str, rest: str) -> Callable[[list[TraceEntry]], TraceEntry | None]:
    kind = text.partition(" ")[0]
    pattern, sights = _pattern(text, _parts(_SAYS, text, rest, f"{kind} /regex/")[0]), _SIGHTS[kind][1]
    return lambda entries: next((entry for said, entry in sights(entries) if pattern.search(said)), None)


def _of_names(text: str, rest: str) -> Callable[[list[TraceEntry]], TraceEntry | None]:
    kind = text.partition(" ")[0]
    name, plugin = _parts(_NAMED, text, rest, "error TYPE [by PLUGIN]" if kind == "error" else "rejected NAME")
    name, sights = name.rpartition(".")[2] if kind == "error" else name, _SIGHTS[kind][2]

    def finds(entries: list[TraceEntry]) -> TraceEntry | None:
        for found, entry in sights(entries):
            if found == name and plugin in ("", (entry.get("by") or {}).get("plugin")):
                return entry
        return None

    return finds


def _of_function(text: str) -> Callable[[list[TraceEntry]], TraceEntry | None]:
    """The person's own function. Its file is run when it is named.

    Raises:
        ConfigError: the file or the function cannot be used.
    """
    path, _, name = text.rpartition(":")
    try:
        module = module_from_path(path)
    except Exception as error:
        said = str(error).replace("plugin file", "file").removeprefix("plugin ")
        raise ConfigError(f"{text!r} cannot be used: {said}") from error
    function = getattr(module, name, None)
    if not callable(function):
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ConfigError(f"{path} has no function {name!r}.{did_you_mean(name, known)}")

    def finds(entries: list[TraceEntry]) -> TraceEntry | None:
        try:
            is_bad = bool(function(entries))
        except Exception as error:
            raise ConfigError(f"{text} raised {type(error).__name__}: {error}") from error
        return (entries[-1] if entries else {}) if is_bad else None

    return finds


# -- what a turn shows ---------------------------------------------------------------------------


def _calls(entries: list[TraceEntry]) -> Iterator[tuple[str, Any, TraceEntry]]:
    """The tool calls: those that the model made, as handlers left them, and those that the agent carried out."""
    asked: list[tuple[str, Any, TraceEntry]] = []
    for entry in entries:
        kind, value = entry.get("type"), entry.get("value")
        if kind == "llm_call" and not is_aside(entry):
            yield from asked
            asked = _asked(entry.get("tool_calls"), entry)
        elif kind == "change" and entry.get("of") == "response" and isinstance(value, dict):
            asked = _asked(value.get("tool_calls"), entry)
        elif kind == "tool_execution":
            yield from asked
            asked = []
            yield str(entry.get("tool_name")), entry.get("arguments"), entry
    yield from asked


def _asked(calls: object, entry: TraceEntry) -> list[tuple[str, Any, TraceEntry]]:
    given = calls if isinstance(calls, list) else []
    return [(str(call.get("name")), call.get("arguments"), entry) for call in given if isinstance(call, dict)]


def _called(entries: list[TraceEntry]) -> Iterator[tuple[str, TraceEntry]]:
    return ((name, entry) for name, _, entry in _calls(entries))


def _texts(entries: list[TraceEntry]) -> Iterator[tuple[str, TraceEntry]]:
    """What the agent says: the model's texts as handlers left them, and the turn's result where one gave it."""
    said: list[tuple[str, TraceEntry]] = []
    for entry in entries:
        kind, of, value = entry.get("type"), entry.get("of"), entry.get("value")
        if kind == "llm_call" and not is_aside(entry):
            yield from said
            said = [(text_of(entry["content"]), entry)] if entry.get("content") else []
        elif kind == "change" and of == "response" and isinstance(value, dict):
            said = [(text_of(value["content"]), entry)] if value.get("content") else []
        elif kind == "change" and of == "result" and "call_id" not in entry:
            yield str(value), entry
        elif kind == "message" and (entry.get("message") or {}).get("role") == "assistant":
            yield text_of(entry["message"].get("content")), entry
    yield from said


def _results(entries: list[TraceEntry]) -> Iterator[tuple[str, TraceEntry]]:
    """The results of tool calls, as the model reads them."""
    for entry in final_calls(entries).values():
        result = entry.get("result")
        yield text_of(result) if isinstance(result, list) else str(result), entry


def _errors(entries: list[TraceEntry]) -> Iterator[tuple[str, TraceEntry]]:
    for entry in entries:
        value = entry.get("value")
        for source in (entry, value if isinstance(value, dict) else {}):
            if source.get("error_type"):
                yield str(source["error_type"]).rpartition(".")[2], entry


def _rejected(entries: list[TraceEntry]) -> Iterator[tuple[str, TraceEntry]]:
    calls = final_calls(entries).values()
    return ((str(entry.get("tool_name")), entry) for entry in calls if entry.get("status") == "rejected")


_SIGHTS: dict[str, tuple[str, Sights, Sights]] = {
    "calls": ("it calls", _called, _called),
    "says": ("it says", _texts, _texts),
    "result": ("its tools' results", _results, _results),
    "error": ("its errors", _errors, _errors),
    "rejected": ("it calls", _called, _rejected),
}
"""By kind: what a record has, what is named where it does not show it, and what is searched."""

_KINDS: dict[str, Callable[[str, str], Callable[[list[TraceEntry]], TraceEntry | None]]] = {
    "calls": _of_calls,
    "says": _of_texts,
    "result": _of_texts,
    "error": _of_names,
    "rejected": _of_names,
}
