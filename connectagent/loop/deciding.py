"""What runs is what was decided: a tool call that is changed after handlers allowed it is decided again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from connectagent.data import ToolCall, TraceEntry
from connectagent.errors import ToolRejected
from connectagent.hooks.executor import HandlerValue
from connectagent.loop.hook_run import call_of, is_call
from connectagent.loop.stored import input_digest
from connectagent.session.snapshot import clone
from connectagent.session.state import alike
from connectagent.tools.results import result_content

MAX_DECISIONS = 5  # for one call: handlers that change it each time must not hang the agent
_NEVER = "it was changed each time after it had been decided, so it was not run"


class StoodIn(ToolRejected):
    """A handler supplied the result of a changed call, so the tool does not run."""

    def __init__(self, answer: HandlerValue) -> None:
        super().__init__("a handler stood in for it")
        self.answer = answer


def refused(turn: Any, rejected: ToolRejected) -> dict[str, Any]:
    """The keys of the entry of a refused call."""
    if isinstance(rejected, StoodIn):
        return {"status": "stand_in", "result": rejected.answer.value, "by": rejected.answer.by}
    by = turn.boundary.owner_of(rejected)
    return {"status": "rejected", "result": f"rejected: {rejected}", "by": by}


class Decisions:
    """The decisions of `before_each_tool` handlers about one call, and about changed forms of it.

    The turn that its methods are given is a `Remote` while the call runs in parallel.

    Args:
        call: the call.
        place: its place in the turn.
        is_last: whether a handler runs after all others.
    """

    def __init__(self, call: ToolCall, place: str, is_last: Callable[[Any], bool]) -> None:
        self._call, self._place, self._is_last = call, place, is_last
        self._about: Any = None  # the call as it was decided
        self._editors: list[list[Any]] = []  # the handlers that changed it

    def take(self, turn: Any) -> HandlerValue | None:
        """Let handlers edit, stand in for or reject the call.

        Raises:
            ToolRejected: one of them refuses the call, or they never agree.
            Waiting: one of them waits for a person.
        """
        return self._asked(turn, self._place)

    def decide_again(self, turn: Any, number: int, entry: TraceEntry, first: TraceEntry) -> None:
        """Let handlers decide again, if the call has changed since they decided.

        Args:
            turn: the turn.
            number: of the attempt, from 1.
            entry: receives the call as this attempt runs it.
            first: the entry of the first attempt.

        Raises:
            StoodIn: a handler stands in for it.
        """
        changed = self._about is not None and not is_call(self._given(turn), self._about)
        if changed:
            self._call.approved = False
            place = f"{self._place}tool{number}/"  # it begins and ends with the attempt
            answer = self._asked(turn, place, self._digest())
            if answer is not None:
                raise StoodIn(answer)
        if changed or entry is not first:  # the first entry shows the call as it was decided
            self.show(entry, first)

    def _asked(self, turn: Any, place: str, suffix: str = "") -> HandlerValue | None:
        over = list(self._editors)
        if "before_each_tool" not in turn.host.active:
            self._about = call_of(self._given(turn))
            return None
        for number in range(1, MAX_DECISIONS + 1):
            given: dict[str, Any] = {"tool_call": self._call}
            run = turn.first("before_each_tool", place, result_content, suffix, over, **given)
            self._editors += run.editors(self._is_last)
            if run.by is not None or run.again is None:
                self._about = run.decided  # not the call as it is now: a thread may have changed it meanwhile
                return None if run.by is None else HandlerValue(run.value, run.by)
            self._call.approved, over = False, run.again
            suffix = f"{number + 1}{self._digest()}"
        raise turn.rejection(_NEVER, {"plugin": "connectagent"})

    def _given(self, turn: Any) -> dict[str, Any]:
        return {"agent": turn.agent, "tool_call": self._call}

    def show(self, entry: TraceEntry, first: TraceEntry) -> None:
        """Write the call into the entry of an attempt, and the one of the `first` attempt if that differs."""
        for key, now in (("tool_name", self._call.name), ("arguments", self._call.arguments)):
            before = entry.get(key, first[key])
            if not alike(before, now):
                entry[f"original_{key}"] = entry.get(f"original_{key}", first.get(f"original_{key}", before))
                entry[key] = clone(now)

    def _digest(self) -> str:
        """A suffix that distinguishes decisions about different forms of the call."""
        return f"~{input_digest([self._call.name, self._call.arguments])}"
