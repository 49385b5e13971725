"""Handlers of other frameworks: what their markers set on a function, and what is made of it.

    [project.entry-points."connectagent.marks"]
    _event_type = "connectagent_connectonion:MARKS"     the attribute, and the `ForeignMarks` for it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from connectagent.hooks.contract import PROJECT
from connectagent.hooks.handler import MARKS

FOREIGN_MARKS = f"{PROJECT}.marks"

FOREIGN = {"_event_type": f"{PROJECT}-connectonion"}
"""The attributes that distributions of this project deal with: they are looked for on every function."""


@dataclass(frozen=True, slots=True)
class ForeignMarks:
    """The markers of another framework.

    Args:
        framework: its name, for errors.
        attribute: what its markers set on a function: a str.
        hooks: from that str to the hook which fires at the same moment.
        adapt: makes a handler of a hook from a function: `adapt(function, hook)`; the same one each time.
    """

    framework: str
    attribute: str
    hooks: Mapping[str, str]
    adapt: Callable[[Callable[..., Any], str], Callable[..., Any]]


_known: dict[str, ForeignMarks] = {}
_sources: list[Callable[[str], ForeignMarks | None]] = []  # a room above tells where to look: see `look_up_in`


def register_marks(marks: ForeignMarks) -> None:
    """Let functions with another framework's marks be handlers, without an entry point."""
    _known[marks.attribute] = marks


def foreign_marks(function: object) -> ForeignMarks | None:
    """The framework whose markers have marked a function that carries none of this package's."""
    if isinstance(function, type) or hasattr(function, MARKS):
        return None
    for attribute in {**FOREIGN, **_known}:
        if type(getattr(function, attribute, None)) is str:
            return _known.get(attribute) or _installed(attribute)
    return None


def foreign_hook(function: object) -> str | None:
    """The hook that a function with another framework's mark is a handler of."""
    marks = foreign_marks(function)
    return None if marks is None else marks.hooks.get(getattr(function, marks.attribute))


def adapted(function: Callable[..., Any], hook: str) -> Callable[..., Any]:
    """A handler for a hook: the function itself, or what its framework's `ForeignMarks` make of it."""
    marks = foreign_marks(function)
    return function if marks is None else marks.adapt(function, hook)


def look_up_in(source: Callable[[str], ForeignMarks | None]) -> None:
    """Look up attributes that are not known yet in a source: the installed distributions."""
    _sources.append(source)


def _installed(attribute: str) -> ForeignMarks | None:
    """The marks that a source has for an attribute, which are known from then on."""
    for source in _sources:
        if (marks := source(attribute)) is not None:
            register_marks(marks)
            return marks
    return None
