"""How the executor runs a hook: its contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        retired: why the hook should not be used any more; its handlers warn so where they are defined.
        retired_parameters: the same of parameters, by name.
    """

    kind: Kind
    takes: tuple[type, ...] = ()
    chained: str = ""
    retired: Warning | None = None
    retired_parameters: Mapping[str, Warning] = {}


_marker = pluggy.HookspecMarker(PROJECT)


def spec(
    kind: Kind,
    takes: tuple[type, ...] = (),
    chained: str = "",
    *,
    retired: Warning | None = None,
    retired_parameters: Mapping[str, Warning] | None = None,
) -> Callable[[F], F]:
    """Mark a function as the definition of a hook; the arguments are those of `Contract`."""

    def mark(function: F) -> F:
        parameters = dict(retired_parameters or {})
        function.contract = Contract(kind, takes, chained, retired, parameters)  # type: ignore[attr-defined]
        # Not pluggy's `warn_on_impl`: it would warn at our own line, of what the handler's marker has warned of.
        return _marker(function, firstresult=kind in ("first", "around"))

    return mark
