"""What a turn finds in the log, which of its operations failed, and how it stops."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from connectagent import frame
from connectagent.data import ToolCall, TraceEntry
from connectagent.errors import Paused, ToolRejected, Waiting
from connectagent.frame import Frame, in_id
from connectagent.loop.between_steps import NO_CHANGES, BetweenSteps, until_passed
from connectagent.loop.described import describe_error
from connectagent.loop.divergence import expect
from connectagent.loop.ending import RESUMED, STOPPED, Ending
from connectagent.loop.hook_run import HookRun
from connectagent.loop.stored import input_digest
from connectagent.output.text import describe
from connectagent.records.log import Log
from connectagent.session.edits import as_data
from connectagent.session.journal import CLOSED, WAIT_OF, Journal, calls_of, is_inside, place_of
from connectagent.session.observers import is_by_observer
from connectagent.session.repeats import Repeats
from connectagent.session.snapshot import By, clone, same
from connectagent.session.usage import Spent, spent_in, time_in

_HOOK = re.compile(r"/([a-z_]+)[0-9]*(?:~[^/]*)?$")  # in an id: the hook whose handlers ran there


class Operations:
    """What the operations of a turn have in common; see `Turn`."""

    agent: Any
    host: Any
    boundary: Any
    id: str
    log: Log
    past: Journal
    resumed: bool
    root: Any
    conversation: Any
    runs: dict[str, HookRun]
    silent: list[str]
    inner: list[Any]
    started: float
    spent: Spent
    ended: Ending | None = None
    outward: tuple[Ending, str] | None = None
    left: Ending | None = None  # set where nobody wants the results of turns that it asks for
    stopped = False
    between: BetweenSteps = NO_CHANGES

    @property
    def branch(self) -> str | None:
        """The names of the agents from the root down to this one, as entries of the trace carry them."""
        return self.conversation.labels.get("branch")  # type: ignore[no-any-return]

    def closing(self, id: str) -> TraceEntry | None:
        """The line that ended an operation, whose changes are applied again; None if the operation must run."""
        self.between.before(id)
        if (line := self.past.closing(id, self.id)) is not None:
            self.reapply(id)
            self.between.until(id)
        return line

    def opens(self, id: str) -> None:
        """Note that an operation runs now, though the log may have a part of it."""
        self.past.opened(id, self.id)

    def has_begun(self, id: str) -> bool:
        """Whether an operation began before the turn stopped."""
        return id in self.past.began

    def reapply(self, id: str, passed: list[list[Any]] | None = None) -> list[TraceEntry]:
        """Apply the changes of a finished operation again; `passed`: only those of these handlers, of a hook."""
        changes = self.past.changes(id, self.id, self.branch)
        if passed is not None:  # the others begin again, and look up what they asked for
            changes = until_passed(self.past, id, passed, changes)
        self.conversation.reapply(self.between.among(changes))
        return changes

    def key(self, asked: Frame, kind: str, name: str, given: Any, key: str | None = None) -> str:
        """The place of an operation that a handler or tool asks for; a number distinguishes equal ones."""
        if asked.by is not None and (run := self.runs.get(asked.place)):
            run.close_passed()
        digest = input_digest(given) if key is None else in_id(key)
        id = f"{asked.id}/{kind}:{in_id(name)}~{digest}"
        with self.root.guard:
            number = self.root._ordinals[id] = self.root._ordinals.get(id, 0) + 1
        id = f"{id}#{number}"
        if self.resumed:
            expect(self, asked.id, id)
        return id

    def alone(self, asked: Frame) -> threading.RLock:
        """A lock, so that operations that one frame asks for exclude each other: `with turn.alone(frame):`."""
        with self.root.guard:
            lock: threading.RLock = self.root._locks.setdefault(asked.id, threading.RLock())
            return lock

    def rejection(self, reason: str, by: By = RESUMED) -> ToolRejected:
        """The rejection of a call that no handler made."""
        rejection = ToolRejected(reason)
        self.boundary.keep_owner(rejection, by)
        return rejection

    def require_shown(self, wait: TraceEntry, place: str, calls: Sequence[ToolCall]) -> None:
        """Raises `ToolRejected` for calls that are not those that a person was shown, if they waited at this place."""
        if wait["id"].rpartition(WAIT_OF)[0] != place:  # it waits for an inner call
            return
        is_of_round = wait.get("of") == "before_tools" and wait.get("call") is None
        if is_of_round and "calls" not in wait:  # of a record that was written before
            return
        shown = [(call.get("name"), call.get("arguments")) for call in calls_of(wait)]
        now = [(call.name, call.arguments) for call in calls]
        if not same(now, shown):
            raise self.rejection("a person decided about another call than this one, so it was not run")

    def is_known(self, id: str) -> bool:
        """Whether the log has the end of an operation."""
        return id in self.past.closed and not self.past.is_open(id)

    def was_resumed_after(self, kind: type[Exception], id: str) -> bool:
        """Whether an operation ended before an error of this class ended the turn, which was resumed then."""
        if id not in self.past.closed:
            return False
        later = self.past.lines[self.past.closed[id] + 1 :]
        return any(line.get("id") == self.id and line.get("error_type") == kind.__name__ for line in later)

    def failed(self, id: str, error: BaseException) -> list[str]:
        """Note that an operation ended with an error; the operations that ended with the same error before."""
        whose: list[str] = []
        seen: set[int] = set()
        following: BaseException | None = error
        while following is not None and id_of(following) not in seen:
            seen.add(id_of(following))
            whose += [one for one in self.root._errors.get(id_of(following), (None, []))[1] if one not in whose]
            hidden = following.__suppress_context__
            following = following.__cause__ or (None if hidden else following.__context__)
        self.root._errors[id_of(error)] = (error, [id])
        return whose

    def failed_together(self, errors: list[BaseException]) -> None:
        """Note that operations failed at the same time, so that each error counts for all of them."""
        whose = [one for error in errors for one in self.root._errors.get(id_of(error), (None, []))[1]]
        for error in errors:
            self.root._errors[id_of(error)] = (error, whose)

    # -- how it ends ---------------------------------------------------------------------------

    def _body(self) -> Any:
        here = frame.current()
        return here.body if here is not None and here.turn is self else None

    def end(self, ending: Ending, scope: str = "agent") -> None:
        """End the turn before its next call of a model or tool. Parallel bodies finish first.

        Args:
            ending: how it ends. Of parallel bodies the first that ended it, in order, decides.
            scope: which of the turns around it end too.
        """
        if (body := self._body()) is not None:
            body.ending = (ending, scope)
        self.ended = ending
        if scope != "agent":
            self.outward = (ending, scope)

    def ending_as_data(self) -> dict[str, Any]:
        """The ending in the form of a line."""
        ending = {} if self.ended is None else self.ended._asdict()
        return {**ending, "scope": self.outward[1]} if self.outward is not None else ending

    def end_as(self, data: dict[str, Any]) -> None:
        """End the turn as in data of `ending_as_data`."""
        self.end(Ending(data.get("result"), str(data["outcome"]), data["by"]), data.get("scope", "agent"))

    def leave(self, ending: Ending) -> None:
        """End this turn, the turns inside it, and those that its code still asks for: nobody wants their results."""
        self.left = ending  # before `inner` is read: a turn that begins now looks at it after it was added
        self.end(ending)
        for turn in list(self.inner):
            turn.leave(ending)

    def stop_inner(self) -> None:
        """Interrupt the turns inside this one at their next step."""
        for turn in list(self.inner):
            turn.stop()

    def stop(self) -> None:
        """Interrupt this turn and its inner turns at their next step, after Ctrl-C in a turn around them."""
        self.stopped = True
        self.ended = self.ended or STOPPED
        self.stop_inner()

    def close_silent(self) -> None:
        """Write which hooks of this turn and of those inside are over, as it stops: no later line shows it."""
        for turn in list(self.inner):
            turn.close_silent()
        while self.silent:
            self.log.append({"type": CLOSED, "id": self.silent.pop(0)})

    def on_stop(self, error: BaseException) -> BaseException:
        """Trace what stopped the turn; the exception to raise."""
        if isinstance(error, Waiting):
            return self._paused(error)
        by = self.boundary.owner_of(error)
        entry = {"type": "error", "by": by, "error": describe(str, error), "error_type": type(error).__name__}
        if (handled := self.boundary.originals.get(id(error))) is not None:
            entry["handling"] = describe_error(handled[1])
        self.conversation.trace_quietly(entry)
        return error

    def _paused(self, waiting: Waiting) -> Paused:
        first, by = waiting.waits[0], waiting.by
        hook = by.get("hook", "tool")
        shown = first.call  # the innermost call, which is to be decided
        call = None if shown is None else ToolCall(shown["id"], shown["name"], clone(shown["arguments"]))
        entry = {"type": "paused", "by": by, "hook": hook, "reason": first.reason, "call": call and as_data(call)}
        entry["waits"] = [wait.id for wait in waiting.waits]
        if first.agent != self.agent.name:
            entry["inner"] = {"agent": first.agent}
        self.conversation.trace_quietly(entry)
        return Paused(waiting.waits, self.log.path, call)

    def _expect(self, past: Journal) -> None:
        """Apply what the program changed before the turn, and expect what the loop changes in it again."""
        lines = past.own(self.id, self.branch)
        before = takewhile(lambda line: line["type"] != "user_input", lines)
        # The session may have its first state already: so lists are set, not added to.
        self.conversation.reapply({**line, "added": {}} for line in before if is_by_observer(line))
        self.between = BetweenSteps(past, self.id, self.branch, self.conversation)
        expected = (line for line in lines if not is_by_observer(line))
        self.conversation.repeats = Repeats(expected, self.between.behind_line)
        self.host.look_up(found[1] for id in past.began if is_inside(id, self.id) and (found := _HOOK.search(id)))

    def sums(self) -> tuple[float, Spent]:
        """How long the turn took so far, in ms, and what it spent, including the time before it was resumed."""
        ms = (time.time() - self.started) * 1000
        if not self.resumed:
            return ms, self.spent
        before = spent_in(line for line in self.past.lines if is_inside(place_of(line), self.id))
        before.include(self.spent)
        return ms + time_in(self.past.lines, self.id), before


id_of = id
