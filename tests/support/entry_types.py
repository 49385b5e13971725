"""Holds every entry that is traced against its TypedDict in `connectagent.session.entries`.

No line that is written may be one that commands refuse.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

from connectagent.data import Message
from connectagent.records.misfits import misfit as odd_line
from connectagent.records.write import MemoryLog
from connectagent.session.entries import ENTRIES


@cache
def fields(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The keys of a TypedDict with their types, and those that are required."""
    hints = get_type_hints(kind, include_extras=True)
    required = {key for key, hint in hints.items() if get_origin(hint) is Required}
    if kind.__total__:
        required |= {key for key, hint in hints.items() if get_origin(hint) is not NotRequired}
    marks = (Required, NotRequired)
    bare = {key: get_args(hint)[0] if get_origin(hint) in marks else hint for key, hint in hints.items()}
    return bare, frozenset(required)


def misfit(value: Any, kind: Any, place: str = "") -> str | None:
    """What does not fit a type, or None."""
    if value.__class__ is kind:  # most are, and every test checks all its entries
        return None
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any or (kind is Message and isinstance(value, dict)):  # what handlers put into messages is theirs
        return None
    if origin in (Union, types.UnionType):
        return None if any(misfit(value, one) is None for one in args) else f"{place} is {value!r:.80}, not {kind}"
    if origin is Literal:
        return None if value in args else f"{place} is {value!r:.80}, not one of {args}"
    if hasattr(kind, "__total__"):
        return misfit_dict(value, kind, place)
    if origin is list and isinstance(value, list):
        return next((found for one in value if (found := misfit(one, args[0], f"{place}[]"))), None)
    if origin is dict and isinstance(value, dict):
        return next((found for one in value.values() if (found := misfit(one, args[1], f"{place}{{}}"))), None)
    accepted = (int, float) if kind is float else origin or kind
    return None if isinstance(value, accepted) else f"{place} is {value!r:.80}, not {kind}"


def misfit_dict(value: Any, kind: Any, place: str = "") -> str | None:
    """What does not fit a TypedDict, or None."""
    if not isinstance(value, dict):
        return f"{place} is {value!r:.80}, not a dict"
    known, required = fields(kind)
    if unknown := value.keys() - known.keys():
        return f"{place} has {sorted(unknown)}, which {kind.__name__} does not"
    if lacking := required - value.keys():
        return f"{place} has no {sorted(lacking)}, which {kind.__name__} requires"
    return next((found for key, one in value.items() if (found := misfit(one, known[key], f"{place}.{key}"))), None)


@contextmanager
def checked() -> Iterator[list[str]]:
    """Collect what does not fit in the entries that are traced meanwhile."""
    found: list[str] = []
    append = MemoryLog.append

    def check_and_append(self: Any, line: dict[str, Any]) -> None:
        kind = ENTRIES.get(line.get("type", ""))
        if kind is not None and (wrong := misfit_dict(line, kind, line["type"])):
            found.append(wrong)
        elif (odd := odd_line(line)) is not None:
            found.append(f"{line.get('type')}: {odd}")
        append(self, line)

    MemoryLog.append = check_and_append  # type: ignore[method-assign]
    try:
        yield found
    finally:
        MemoryLog.append = append  # type: ignore[method-assign]
