"""Finds the first line of a record that connectagent would not have written, to name it in an error.

A line is held against its TypedDict in `session.entries`. Keys that no type has are let pass, since a later version may
write them; so is every word where a type lists a few.
"""

from __future__ import annotations

import json
import os
import re
import types
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, Required, Union, get_args, get_origin, get_type_hints, is_typeddict

from connectagent.data import Message, TokenUsage, TraceEntry
from connectagent.errors import ConfigError
from connectagent.records.file import open_to_read
from connectagent.records.lines import pair_of, text_of, value_of
from connectagent.records.messages import TurnMessages
from connectagent.session.entries import ENTRIES, LOG_LINES, Stored
from connectagent.session.journal import WITHHELD

_TYPES = {**ENTRIES, **LOG_LINES}
_PLACE = re.compile(r"[TB]\d+(/.*)?", re.DOTALL)  # a turn, or what is between two, and what is in it
_IN_ITERATION = re.compile(r"T\d+/\d+/")
_INNER = re.compile(r"[TB]\d+/.*", re.DOTALL)
_NAMES = {str: "a text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "a mapping"}
MESSAGES = "messages"
_DEPTH = 8  # how deep a value is looked into

HEAD: dict[str, Any] = {
    "agent": str,
    "id": str,
    "key": str,
    "plugins": dict[str, Any],
    "plugin_sources": dict[str, Any],
    "switched_off": list[str],
    "max_iterations": int,
    "system_prompt": str,
    "system_prompt_changes": list[dict[str, Any]],
    "begins_with": dict[str, Any],
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


def misfit(line: Any, without: frozenset[str] = frozenset()) -> str | None:
    """What of a line no record has, in words; None where all is well.

    Args:
        line: a line under `trace:`, as it was read.
        without: keys that are not looked at.
    """
    if not isinstance(line, dict):
        return "it is no mapping"
    kind = line.get("type")
    place = line.get("id")
    if not isinstance(kind, str):
        return "it has no 'type'" if kind is None else "'type' is not a text"
    if kind not in _TYPES:
        # An entry of a plugin has its place as `at`; its `id` is its own.
        is_lost = "at" not in line and isinstance(place, str) and _INNER.fullmatch(place)
        return f"it is about {place}, and its 'type' is {kind!r}" if is_lost else None
    for key in ("id", "at"):
        if key in line and not (isinstance(line[key], str) and _PLACE.fullmatch(line[key])):
            return f"{key!r} is no place in a turn"
    if line.get(WITHHELD):
        return None
    return _misfit_keys(line, _TYPES[kind], without)


def _misfit_keys(value: Any, kind: Any, without: frozenset[str] = frozenset(), depth: int = 0) -> str | None:
    if not isinstance(value, dict):
        return "is not a mapping"
    known, required = _fields(kind)
    for key in required:
        if key not in value and key not in without:
            return f"it has no {key!r}"
    for key, item in value.items():
        if key in known and key not in without and not _fits(item, known[key], depth):
            return f"{key!r} is {_told(known[key], item)}"
    return None


def _told(kind: Any, value: Any) -> str:
    name = _NAMES.get(get_origin(kind) or kind)
    if name is None or isinstance(value, get_origin(kind) or kind):
        return "not of the form that records have"
    return f"not {name}"


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The keys of a TypedDict with their types, and those that it must have, in order."""
    hints = get_type_hints(kind, include_extras=True)
    marked = [key for key, hint in hints.items() if get_origin(hint) is Required]
    required = tuple(key for key in marked if key != "timestamp")  # nothing is looked up by it
    bare = {key: get_args(hint)[0] if key in marked else hint for key, hint in hints.items()}
    return bare, required


def _fits(value: Any, kind: Any, depth: int = 0) -> bool:
    """Whether a value is of a type."""
    if kind is Any or depth > _DEPTH:
        return True
    if kind is None or kind is type(None):
        return value is None
    if kind is float or kind is int:
        return isinstance(value, kind | int) and not isinstance(value, bool)
    if kind is TokenUsage:
        return isinstance(value, TokenUsage) or _is_usage(value)
    if kind is Message or kind is Stored:
        return _is_message(value) if kind is Message else _is_stored(value, depth)
    if is_typeddict(kind):
        return _misfit_keys(value, kind, depth=depth + 1) is None
    return _fits_generic(value, kind, depth)


def _is_message(value: Any) -> bool:
    """Whether a value is a message; what handlers put into it is theirs."""
    return isinstance(value, dict) and isinstance(value.get("role"), str) and "content" in value


def _is_stored(value: Any, depth: int) -> bool:
    if not isinstance(value, dict) or value.keys().isdisjoint(("value", "response", "retry")):
        return False
    return _misfit_keys(value, Stored, depth=depth + 1) is None


def _fits_generic(value: Any, kind: Any, depth: int) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:  # a later version may have further words
        return isinstance(value, str)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one, depth) for one in inner)
    if origin is list:
        return isinstance(value, list) and all(_fits(one, inner[0], depth + 1) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(one, inner[1], depth + 1) for one in value.values())
    return isinstance(value, kind)


def _is_usage(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() - TokenUsage.__dataclass_fields__.keys():
        return False
    return all(one is None or _fits(one, float) for one in value.values())


def misfit_pairs(pairs: dict[str, Any], known: dict[str, Any]) -> str | None:
    """What no record has of the pairs of its head or of an item; None where all is well."""
    for key, kind in known.items():
        if key in pairs and not _fits(pairs[key], kind):
            return f"{key!r} is {_told(kind, pairs[key])}"
    if isinstance(messages := pairs.get(MESSAGES), str) and not _is_list(messages):
        return f"{MESSAGES!r} is not the JSON text of a list"
    return None


def _is_list(text: str) -> bool:
    try:
        return isinstance(json.loads(text), list)
    except (ValueError, RecursionError):
        return False


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
        raise ConfigError(odd_text(path, why, turn))
    begun = next((line for line in lines if _IN_ITERATION.match(str(line.get("id")))), None)
    if begun is not None and not any(line["type"] == "user_input" for line in lines):
        raise ConfigError(f"{path}: line {_number_of(path, begun)} is about turn {turn}, whose 'user_input' is missing")


def _number_of(path: str | os.PathLike[str], line: TraceEntry) -> int:
    """The number of the first line of a record with this type and place."""
    start = f'  - {json.dumps({"type": line["type"], "id": line["id"]})[:-1]}'
    with open_to_read(path) as file:
        return next((number for number, data in enumerate(file, 1) if data.startswith(start.encode())), 0)


_MAKER = frozenset(("by",))  # whoever made an entry decides nothing about how a turn goes on


def odd_text(path: str | os.PathLike[str], why: str, turn: Any = None) -> str:
    """An error's text for a record with odd values, which names the first such line if one is found.

    Args:
        path: the record.
        why: what to say if none is found.
        turn: the number of the only turn that is looked at besides the head; None for all.
    """
    for number, found in _misfits(path, turn):
        return f"{path}: it has values that no record has: line {number}: {found}"
    return f"{path}: it has values that no record has: {why}"


def _misfits(path: str | os.PathLike[str], turn: Any) -> Iterator[tuple[int, str]]:
    """The numbers of odd lines of a record, and what is odd about each."""
    try:
        file = open_to_read(path)
    except (OSError, ValueError, ConfigError):  # a path that is none
        return
    reader = _Lines(turn)
    with file:
        for number, data in enumerate(file, 1):
            try:
                found = reader.misfit_in(text_of(data))
            except (ValueError, RecursionError):
                continue
            if found is not None:
                yield number, found


class _Lines:
    """The lines of a record, one after the other; `turn`: the number of the only turn that is looked at, or None."""

    def __init__(self, turn: Any) -> None:
        self._turn = turn
        self._in_turns = False
        self._is_wanted = True

    def misfit_in(self, text: str) -> str | None:
        """What is odd about the next line; None where all is well, or the line is of another turn."""
        if text.startswith("  - "):
            return misfit(value_of(text[4:])) if self._is_wanted else None
        if not text or text.endswith(":") or text.startswith("#"):
            self._in_turns = self._in_turns or text == "turns:"
            return None
        in_item = self._in_turns and text.startswith(("- ", "  "))
        key, value = pair_of(text[2:] if in_item else text)
        if text.startswith("- "):
            self._is_wanted = self._turn in (None, value)
        return misfit_pairs({key: value}, ITEM if in_item else HEAD) if self._is_wanted else None
