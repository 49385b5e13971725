"""How the executor runs a hook: its contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import pluggy

PROJECT = "connectagent"
Kind = Literal["first", "chain", "observe", "around", "collect"]
F = TypeVar("F", bound=Callable[..., Any])


class Contract(NamedTuple):
    """How the executor runs a hook.

    Args:
        kind: `first` (the first value ends the call), `chain` (every handler gets the value of the one before
            it), `observe` (no values), `around` (generators around an operation), `collect` (a list of all
            values).
        takes: the types that a handler may return; empty for any.
        chained: for `chain`, the parameter with the value.
    """

    kind: Kind
    takes: tuple[type, ...] = ()
    chained: str = ""


_marker = pluggy.HookspecMarker(PROJECT)


def spec(kind: Kind, takes: tuple[type, ...] = (), chained: str = "") -> Callable[[F], F]:
    """Mark a function as the definition of a hook."""

    def mark(function: F) -> F:
        function.contract = Contract(kind, takes, chained)  # type: ignore[attr-defined]
        return _marker(function, firstresult=kind in ("first", "around"))

    return mark
