"""One run of a hook's handlers: how far it is, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from connectagent.data import Continue, TraceEntry
from connectagent.hooks.executor import HandlerValue, HookCall
from connectagent.hooks.specs import CONTRACTS
from connectagent.loop.stored import as_stored, from_stored
from connectagent.session.snapshot import By


class HookRun:
    """One run of a hook's handlers.

    Attributes:
        over: the handlers that are not to run, as `[plugin, handler]`.
        passed: those that have run; `last` is the newest of them, and the first `known` ran before the turn stopped.
        value, by: what was decided, and by whom; of a chain, the value so far.
    """

    def __init__(self, hook: str, place: str, given: HookCall) -> None:
        self.hook, self.place, self.given = hook, place, given
        self.id = ""
        self.begun = False  # whether the log tells that the handlers begin
        self.chained = CONTRACTS[hook].chained
        self.original = given[self.chained] if self.chained else None
        self.convert: Callable[[Any], Any] = lambda value: value
        self.over: list[list[Any]] = []
        self.passed: list[list[Any]] = []
        self.known = 0
        self.last: By | None = None
        self.written: By | None = None
        self.value: Any = None
        self.by: By | None = None

    def ran(self, by: By) -> None:
        """A handler has run."""
        self.last = by
        self.passed.append([by.get("plugin"), by.get("handler")])

    def told(self) -> dict[str, Any]:
        """What came of the handlers so far, as a line has it."""
        told: dict[str, Any] = {}
        if self.chained:
            value = self.given[self.chained]
            if value is not self.original:
                told["value"] = as_stored(value)
        elif self.by is not None:
            told |= {"value": as_stored(self.value), "by": self.by}
        if self.chained and (more := self.given.decided) is not None:  # a `Continue`
            told["more"] = {"prompt": as_stored(more.value.prompt), "by": more.by}
        return told

    def take(self, line: TraceEntry) -> None:
        """The other way round."""
        if "value" in line:
            self.value, self.by = from_stored(line["value"]), line.get("by")
            if self.chained:
                self.given[self.chained] = self.value
        if (more := line.get("more")) is not None:
            self.given.decided = HandlerValue(Continue(from_stored(more["prompt"])), more["by"])
