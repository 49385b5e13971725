"""What runs is what was decided: a tool call that is changed after handlers allowed it is decided again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connectagent.data import ToolCall, TraceEntry
from connectagent.errors import ToolRejected
from connectagent.hooks.executor import HandlerValue
from connectagent.loop.call_arguments import check_arguments
from connectagent.loop.hook_run import HookRun, are_calls, calls_of
from connectagent.loop.stored import input_digest
from connectagent.loop.turn import Turn
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


def refused(turn: Turn, rejected: ToolRejected) -> dict[str, Any]:
    """The keys of the entry of a refused call."""
    if isinstance(rejected, StoodIn):
        return {"status": "stand_in", "result": rejected.answer.value, "by": rejected.answer.by}
    by = turn.boundary.owner_of(rejected)
    return {"status": "rejected", "result": f"rejected: {rejected}", "by": by}


class Asked:
    """The handlers of one hook that decide about calls.

    Args:
        hook: `before_tools` or `before_each_tool`.
        place: where they are asked first, with a `/` at the end.

    Attributes:
        about: the calls as the handlers let them pass: see `calls_of`. None if they were not asked.
        editors: the handlers that changed the calls. They do not run again, since they would change them twice.
        changed: whether the handlers changed the calls when they were asked last.
    """

    changed = False
    about: tuple[Any, ...] | None = None

    def __init__(self, hook: str, place: str) -> None:
        self.hook = hook
        self._place = place
        self.editors: list[list[Any]] = []
        self._times: dict[str, int] = {}  # by place: how often they were asked there

    def of_call(self, number: int, place: str) -> Asked:
        """The same handlers, which decided about a round of calls, asked about one of them.

        Args:
            number: of the call in the round, from 0.
            place: of the call.
        """
        asked = Asked(self.hook, place)
        asked.about = self.about and self.about[number : number + 1]
        asked.editors += self.editors
        return asked

    def agrees(self, turn: Turn, call: ToolCall) -> bool:
        """Whether the handlers let the call pass as it is now."""
        if self.hook not in turn.host.active:
            return True
        return self.about is not None and are_calls(turn.agent, [call], self.about)

    def ask(
        self,
        turn: Turn,
        calls: Sequence[ToolCall],
        place: str,
        over: Sequence[list[Any]] = (),
        found: tuple[Any, ...] | None = None,
    ) -> HookRun:
        """Ask the handlers until all of them have let pass the same calls.

        Args:
            turn: the turn.
            calls: the calls that they decide about.
            place: where they are asked, with a `/` at the end.
            over: handlers to leave out.
            found: the calls as they are now, if that is known: see `calls_of`.

        Raises:
            ToolRejected: one of them refuses, or they never agree.
            Waiting: one of them waits for a person.
        """
        given: dict[str, Any] = {"tool_calls": list(calls)} if self.hook == "before_tools" else {"tool_call": calls[0]}
        over = [*self.editors, *over]
        self.changed = False
        for _ in range(MAX_DECISIONS):
            suffix = self._suffix(place, calls)
            run: HookRun = turn.first(self.hook, place, result_content, suffix, over, found, **given)
            found = None
            if run.decided is not run.found:
                self.changed = True
                self.editors += run.editors(turn.host)
            if run.by is not None or run.again is None:
                self.about = run.decided  # not the calls as they are now: a thread may have changed them meanwhile
                return run
            over = run.again
            for call in calls:
                call.approved = False
        raise turn.rejection(_NEVER, {"plugin": "connectagent"})

    def _suffix(self, place: str, calls: Sequence[ToolCall]) -> str:
        """A suffix that distinguishes decisions about different forms of the calls at one place."""
        times = self._times[place] = self._times.get(place, 0) + 1
        if times == 1 and place == self._place:
            return ""
        digest = input_digest([[call.name, call.arguments] for call in calls])
        return f"{times if times > 1 else ''}~{digest}"


class Decisions:
    """The decisions of handlers about one call, and about changed forms of it.

    Handlers of `before_tools` decided about the whole round. If the call changes afterwards, they are asked about it
    alone, as handlers of `before_each_tool` are. The turn that its methods are given is a `Remote` while the call runs
    in parallel.

    Args:
        call: the call.
        place: its place in the turn.
        of_round: the handlers of `before_tools` that decided about it in its round, if it is in one.
    """

    _agreed: tuple[Any, ...] | None = None  # the call as all of them let it pass

    def __init__(self, call: ToolCall, place: str, of_round: Asked | None = None) -> None:
        self._call, self._place = call, place
        self._round = of_round or Asked("before_tools", place)
        self._each = Asked("before_each_tool", place)

    def take(self, turn: Turn) -> HandlerValue | None:
        """Let handlers edit, stand in for or reject the call.

        Raises:
            ToolRejected: one of them refuses the call, or they never agree.
            Waiting: one of them waits for a person.
        """
        return self._asked(turn, self._place)

    def decide_again(self, turn: Turn, number: int, entry: TraceEntry, first: TraceEntry) -> None:
        """Let handlers decide again, if the call has changed since they decided.

        Args:
            turn: the turn.
            number: of the attempt, from 1.
            entry: receives the call as this attempt runs it.
            first: the entry of the first attempt.

        Raises:
            StoodIn: a handler stands in for it.
        """
        changed = self._agreed is not None and not are_calls(turn.agent, [self._call], self._agreed)
        if changed:
            self._call.approved = False
            check_arguments(turn.agent.tools, self._call)  # a thread may have changed it, or the tool
            answer = self._asked(turn, f"{self._place}tool{number}/")  # it begins and ends with the attempt
            if answer is not None:
                raise StoodIn(answer)
        if changed or entry is not first:  # the first entry shows the call as it was decided
            self.show(entry, first)

    def _asked(self, turn: Turn, place: str) -> HandlerValue | None:
        """Ask the handlers of both hooks until they agree; what one of them supplies as the result."""
        call = self._call
        for _ in range(MAX_DECISIONS):
            if not self._round.agrees(turn, call):
                self._round.ask(turn, [call], place, _asking(turn))
            if self._each.agrees(turn, call):
                self._agreed = self._each.about or self._round.about or calls_of(turn.agent, [call])
                return None
            run = self._each.ask(turn, [call], place, found=self._round.about)
            if run.by is not None:
                return HandlerValue(run.value, run.by)
            if not self._each.changed or self._round.agrees(turn, call):
                self._agreed = self._each.about
                return None
            call.approved = False
        raise turn.rejection(_NEVER, {"plugin": "connectagent"})

    def show(self, entry: TraceEntry, first: TraceEntry) -> None:
        """Write the call into the entry of an attempt, and the one of the `first` attempt if that differs."""
        for key, now in (("tool_name", self._call.name), ("arguments", self._call.arguments)):
            before = entry.get(key, first[key])
            if not alike(before, now):
                entry[f"original_{key}"] = entry.get(f"original_{key}", first.get(f"original_{key}", before))
                entry[key] = clone(now)


def _asking(turn: Turn) -> list[list[Any]]:
    """The handlers of `before_tools` whose own code asks for the call: they do not decide about it."""
    running = [by for by in turn.boundary.running if by is not None and by.get("hook") == "before_tools"]
    return [[by["plugin"], by["handler"]] for by in running]
