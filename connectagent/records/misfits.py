"""Finds the first line of a record that connectagent would not have written, to name it in an error.

A line is held against its TypedDict in `session.entries`. Keys that no type has are let pass, since a later version may
write them; so is every word where a type lists a few.
"""

from __future__ import annotations

import json
import os
import re
import types
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Literal, Required, TypedDict, Union, get_args, get_origin, get_type_hints, is_typeddict

from connectagent.data import Message, TokenUsage, TraceEntry
from connectagent.errors import ConfigError
from connectagent.records.file import open_to_read
from connectagent.records.lines import pair_of, text_of, value_of
from connectagent.records.messages import TurnMessages
from connectagent.session.entries import (
    ENTRIES,
    LOG_LINES,
    Beginning,
    Ending,
    HandedOver,
    PromptChange,
    Stored,
    WaitingCall,
)
from connectagent.session.journal import WITHHELD

_TYPES = {**ENTRIES, **LOG_LINES}
_PLACE = re.compile(r"[TB]\d+(/.*)?", re.DOTALL)  # a turn, or what is between two, and what is in it
_IN_ITERATION = re.compile(r"T\d+/\d+/")
_INNER = re.compile(r"[TB]\d+/.*", re.DOTALL)
_INNER_TURN = re.compile(r".*/turn:[^/]*", re.DOTALL)
_NAMES = {str: "a text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "a mapping"}
MESSAGES = "messages"
REPORT = "report"  # in the head of a report: the version of its form
Check = Callable[[Any], bool]


class _Answer(TypedDict, total=False):
    content: Required[str | None]
    tool_calls: Required[list[WaitingCall]]


class _Attempt(TypedDict, total=False):
    status: str
    result: str | list[dict[str, Any]]
    attempts: list[dict[str, Any]]
    handoff: HandedOver
    ended: Ending


class _Sizes(TypedDict, total=False):
    model: Required[str]
    messages: int
    tools: int
    options: dict[str, Any] | None
    changed_tools: dict[str, Any]


_CHANGED: dict[str, Any] = {
    "response": _Answer,
    "llm_call": _Answer,
    "tool_call": WaitingCall,
    "tool_calls": list[WaitingCall],
    "tool_execution": _Attempt,
    "request": _Sizes,
}
"""The form of the value of a `change` line, by what was changed."""

HEAD: dict[str, Any] = {
    "agent": str,
    "id": str,
    "key": str,
    "plugins": dict[str, Any],
    "plugin_sources": dict[str, Any],
    "switched_off": list[str],
    "max_iterations": int,
    "system_prompt": str,
    "system_prompt_changes": list[PromptChange],
    "begins_with": Beginning,
    "turns": list[Any],
}
"""The keys of a record's head whose values are used."""

ITEM: dict[str, Any] = {
    "turn": int,
    "input": str,
    "resumed": bool,
    "owner": dict[str, Any],
    "from": list[int],
    "duration_ms": float,
    "tokens": int | None,
    "cost": float | None,
    "tools_called": list[Any],
    "result": Any,
    "state": dict[str, Any] | None,
    MESSAGES: str | TurnMessages,
    "session": dict[str, Any],
    "status": str,
}
"""The keys of the item of a turn whose values are used."""


def misfit(line: object, without: frozenset[str] = frozenset(), whole: bool = True) -> str | None:
    """What of a line no record has, in words; None where all is well.

    Args:
        line: a line under `trace:`, as it was read.
        without: keys that are not looked at.
        whole: whether the line has all keys of its type; in a report it has only those that are needed.
    """
    if not isinstance(line, dict):
        return "it is no mapping"
    kind = line.get("type")
    if not isinstance(kind, str):
        return "it has no 'type'" if kind is None else "'type' is not a text"
    if kind not in _TYPES:
        return _misfit_of_plugin(line)
    if place := _misfit_place(line):
        return place
    if line.get(WITHHELD):
        return None
    if "not_recorded" in line:
        return f"it could not be recorded: {str(line['not_recorded'])[:200]!r}"
    wrong = _misfit_keys(line, _TYPES[kind], without, whole)
    if wrong is not None:
        return wrong
    if kind == "began" and whole and "agent" not in line and _INNER_TURN.fullmatch(str(line.get("id"))):
        return "it has no 'agent'"
    return _misfit_change(line) if kind == "change" else None


def _misfit_of_plugin(line: dict[str, Any]) -> str | None:
    """What is odd about a line of a type that is not connectagent's: its place is `at`, and its `id` its own."""
    place = line.get("id")
    is_lost = "at" not in line and isinstance(place, str) and _INNER.fullmatch(place)
    return f"it is about {place}, and its 'type' is {line['type']!r}" if is_lost else None


def _misfit_place(line: dict[str, Any]) -> str | None:
    for key in ("id", "at"):
        if key in line and not (isinstance(line[key], str) and _PLACE.fullmatch(line[key])):
            return f"{key!r} is no place in a turn"
    return None


def _misfit_keys(value: object, kind: object, without: frozenset[str] = frozenset(), whole: bool = True) -> str | None:
    if not isinstance(value, dict):
        return "is not a mapping"
    checks, required = _fields(kind)
    for key in required if whole else ():
        if key not in value and key not in without:
            return f"it has no {key!r}"
    for key, item in value.items():
        if key in checks and not checks[key](item) and key not in without:
            return f"{key!r} is {_told(_hints(kind)[key], item)}"
    return None


def _misfit_change(line: TraceEntry) -> str | None:
    """What is odd about the value of a `change` line; the arguments of a plugin's own hook may be anything."""
    form = _CHANGED.get(line.get("of", ""))
    if form is None or "/hook:" in str(line.get("at")) or "value" not in line or _check(form)(line["value"]):
        return None
    return f"'value' is {_told(form, line['value'])}"


def _told(kind: Any, value: object) -> str:
    name = _NAMES.get(get_origin(kind) or kind)
    if name is None or isinstance(value, get_origin(kind) or kind):
        return "not of the form that records have"
    return f"not {name}"


@cache
def _hints(kind: object) -> dict[str, Any]:
    """The keys of a TypedDict with their types."""
    hints = get_type_hints(kind, include_extras=True)
    return {key: get_args(hint)[0] if get_origin(hint) is Required else hint for key, hint in hints.items()}


@cache
def _fields(kind: object) -> tuple[dict[str, Check], tuple[str, ...]]:
    """The keys of a TypedDict with what checks their values, and those that it must have, in order."""
    hints = get_type_hints(kind, include_extras=True)
    marked = [key for key, hint in hints.items() if get_origin(hint) is Required]
    required = tuple(key for key in marked if key != "timestamp")  # nothing is looked up by it
    return {key: _check(hint) for key, hint in _hints(kind).items()}, required


@cache
def _check(kind: object) -> Check:
    """A function that says whether a value is of a type."""
    if kind is Any:
        return lambda value: True
    if kind is None or kind is type(None):
        return lambda value: value is None
    if kind is float or kind is int:
        return lambda value: isinstance(value, kind | int) and not isinstance(value, bool)
    if kind in _SPECIAL:
        return _SPECIAL[kind]
    if is_typeddict(kind):
        return lambda value: _misfit_keys(value, kind) is None
    return _check_generic(kind)


def _check_generic(kind: Any) -> Check:
    origin = get_origin(kind)
    inner = get_args(kind)
    if origin is Literal:  # a later version may have further words
        return lambda value: isinstance(value, str)
    if origin in (Union, types.UnionType):
        checks = [_check(one) for one in inner]
        return lambda value: any(check(value) for check in checks)
    if origin is list:
        item = _check(inner[0])
        return lambda value: isinstance(value, list) and all(map(item, value))
    if origin is dict:
        item = _check(inner[1])
        return lambda value: isinstance(value, dict) and all(map(item, value.values()))
    return lambda value: isinstance(value, kind)


def _is_message(value: object) -> bool:
    """Whether a value is a message; what handlers put into it is theirs."""
    return isinstance(value, dict) and isinstance(value.get("role"), str) and "content" in value


def _is_stored(value: object) -> bool:
    if not isinstance(value, dict) or value.keys().isdisjoint(("value", "response", "retry")):
        return False
    return _misfit_keys(value, Stored) is None


def _is_usage(value: object) -> bool:
    if isinstance(value, TokenUsage):
        return True
    if not isinstance(value, dict) or value.keys() - TokenUsage.__dataclass_fields__.keys():
        return False
    return all(one is None or _check(float)(one) for one in value.values())


_SPECIAL: dict[Any, Check] = {TokenUsage: _is_usage, Message: _is_message, Stored: _is_stored}


def misfit_pairs(pairs: dict[str, Any], known: dict[str, Any]) -> str | None:
    """What no record has of the pairs of its head or of an item; None where all is well."""
    for key, kind in known.items():
        if key in pairs and not _check(kind)(pairs[key]):
            return f"{key!r} is {_told(kind, pairs[key])}"
    if isinstance(messages := pairs.get(MESSAGES), str) and not _is_list(messages):
        return f"{MESSAGES!r} is not the JSON text of a list"
    return None


def _is_list(text: str) -> bool:
    try:
        return isinstance(json.loads(text), list)
    except (ValueError, RecursionError):
        return False


def refuse_odd_lines(path: str | os.PathLike[str], head: dict[str, Any], items: list[dict[str, Any]]) -> None:
    """Refuse a record of which a line is not as connectagent writes it, so that whoever uses it need not look again.

    Args:
        path: the record.
        head: its head. If it says that the record is a report, lines may lack keys.
        items: its turns.

    Raises:
        ConfigError: it names the first such line.
    """
    whole = REPORT not in head
    whys = [misfit_pairs(head, HEAD)]
    for item in items:
        whys.append("a line under 'trace' is no mapping" if item.get("unreadable") else misfit_pairs(item, ITEM))
        whys += [misfit(line, whole=whole) for line in item["lines"]]
    if why := next(filter(None, whys), None):
        raise ConfigError(odd_text([path], why, whole=whole))


def refuse_misfits(path: str | os.PathLike[str], head: dict[str, Any], items: list[dict[str, Any]]) -> None:
    """Refuse to go on with a turn of whose record a line is not as connectagent writes it.

    Args:
        path: the record.
        head: its head.
        items: the items of the turn, which may be none.

    Raises:
        ConfigError: it names the first such line.
    """
    turn = items[0].get("turn") if items else None
    lines = [line for item in items for line in item["lines"]]
    whys = [misfit_pairs(head, HEAD), *(misfit_pairs(item, ITEM) for item in items)]
    whys += [misfit(line, _MAKER) for line in lines]
    whys += ["a line under 'trace' is no mapping" for item in items if item.get("unreadable")]
    if why := next(filter(None, whys), None):
        raise ConfigError(odd_text([path], why, turn))
    begun = next((line for line in lines if _IN_ITERATION.match(str(line.get("id")))), None)
    if begun is not None and not any(line["type"] == "user_input" for line in lines):
        raise ConfigError(f"{path}: line {_number_of(path, begun)} is about turn {turn}, whose 'user_input' is missing")


def _number_of(path: str | os.PathLike[str], line: TraceEntry) -> int:
    """The number of the first line of a record with this type and place."""
    start = f"  - {json.dumps({'type': line['type'], 'id': line['id']})[:-1]}"
    with open_to_read(path) as file:
        return next((number for number, data in enumerate(file, 1) if data.startswith(start.encode())), 0)


_MAKER = frozenset(("by",))  # whoever made an entry decides nothing about how a turn goes on


def odd_text(paths: Sequence[str | os.PathLike[str]], why: str, turn: object = None, whole: bool = True) -> str:
    """An error's text for records with odd values, which names the first such line if one is found.

    Args:
        paths: the records.
        why: what to say if none is found.
        turn: the number of the only turn that is looked at besides the head; None for all.
        whole: as in `misfit`.
    """
    for path in paths:
        for number, found in _misfits(path, turn, whole):
            return f"{path}: it has values that no record has: line {number}: {found}"
    return f"{' or '.join(map(str, paths))}: it has values that no record has: {why}"


def _misfits(path: str | os.PathLike[str], turn: object, whole: bool) -> Iterator[tuple[int, str]]:
    """The numbers of odd lines of a record, and what is odd about each."""
    try:
        file = open_to_read(path)
    except (OSError, ValueError, ConfigError):  # a path that is none
        return
    reader = _Lines(turn, whole)
    with file:
        for number, data in enumerate(file, 1):
            try:
                found = reader.misfit_in(text_of(data))
            except (ValueError, RecursionError):
                continue
            if found is not None:
                yield number, found


class _Lines:
    """The lines of a record, one after the other.

    Args:
        turn: the number of the only turn that is looked at, or None.
        whole: as in `misfit`.
    """

    def __init__(self, turn: object, whole: bool) -> None:
        self._turn = turn
        self._whole = whole
        self._in_turns = False
        self._is_wanted = True

    def misfit_in(self, text: str) -> str | None:
        """What is odd about the next line; None where all is well, or the line is of another turn."""
        if text.startswith("  - "):
            return misfit(value_of(text[4:]), whole=self._whole) if self._is_wanted else None
        if not text or text.endswith(":") or text.startswith("#"):
            self._in_turns = self._in_turns or text == "turns:"
            return None
        in_item = self._in_turns and text.startswith(("- ", "  "))
        key, value = pair_of(text[2:] if in_item else text)
        if text.startswith("- "):
            self._is_wanted = self._turn in (None, value)
        return misfit_pairs({key: value}, ITEM if in_item else HEAD) if self._is_wanted else None
