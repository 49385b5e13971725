"""The operations of a turn: each is looked up in the log before it is done, and written into it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from connectagent import frame
from connectagent.data import Log, ToolCall, TraceEntry
from connectagent.errors import ToolRejected
from connectagent.frame import Frame, in_id
from connectagent.hooks.executor import HandlerValue, HookCall
from connectagent.hooks.specs import CONTRACTS
from connectagent.loop.between_steps import NO_CHANGES, BetweenSteps, until_passed
from connectagent.loop.divergence import expect
from connectagent.loop.ending import RESUMED, Ending
from connectagent.loop.hook_run import HookRun
from connectagent.loop.stored import input_digest
from connectagent.session.journal import BEGAN, Journal
from connectagent.session.snapshot import By, same


class Operations:
    """What a turn does, one operation after the other; see `Turn`."""

    agent: Any
    host: Any
    boundary: Any
    id: str
    log: Log
    past: Journal | None
    root: Any
    ended: Ending | None
    outward: tuple[Ending, str] | None
    touched: set[str]
    runs: dict[str, HookRun]
    conversation: Any
    between: BetweenSteps = NO_CHANGES

    @property
    def branch(self) -> str | None:
        """The names of the agents from the root down to this one, as entries of the trace carry them."""
        return self.conversation.labels.get("branch")  # type: ignore[no-any-return]

    def end(self, ending: Ending, scope: str = "agent") -> None:
        """End the turn before its next call of a model or tool; `scope` says which of the turns around it end too."""
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

    # -- operations ----------------------------------------------------------------------------

    def began(self, id: str, **more: Any) -> None:
        """Write that an operation begins, before anything of it happens."""
        if self.past is not None:
            self.opens(id)
            self.between.everything()
            if id in self.past.began:
                self.past.forget_error(id, len(self.past.lines))
        self.log.append({"type": BEGAN, "id": id, **more, "timestamp": time.time()})

    def closing(self, id: str) -> TraceEntry | None:
        """The line that ended an operation, whose changes are applied again; None if the operation must run."""
        if self.past is None:
            return None
        self.between.before(id)
        if (line := self.past.closing(id, self.id)) is not None:
            self.reapply(id)
            self.between.until(id)
        return line

    def opens(self, id: str) -> None:
        """Note that an operation runs now, though the log may have a part of it."""
        if self.past is not None:
            self.past.opened(id, self.id)

    def has_begun(self, id: str) -> bool:
        """Whether an operation began before the turn stopped."""
        return self.past is not None and id in self.past.began

    def reapply(self, id: str, passed: list[list[Any]] | None = None) -> list[TraceEntry]:
        """Apply the changes of a finished operation again; `passed`: only those of these handlers, of a hook."""
        assert self.past is not None
        changes = self.past.changes(id, self.id, self.branch)
        if passed is not None:  # the others begin again, and look up what they asked for
            changes = until_passed(self.past, id, passed, changes)
        self.conversation.reapply(self.between.among(changes))
        return changes

    def has_changes(self, id: str) -> bool:
        """Whether handlers of a hook changed anything, as far as this process knows: before a resume they may have."""
        return id in self.touched or self.past is not None

    def inside(self, id: str, call: ToolCall | None = None) -> Frame:
        """The frame of an operation that begins here; `call`: the tool call that it is."""
        outer = frame.current()
        if outer is None:
            return Frame(self, id, None, None, None, call)
        if outer.turn is not self:
            return Frame(self, id, None, outer.account, None, call)
        return Frame(self, id, None, outer.account, outer.body, call or outer.call)

    def key(self, asked: Frame, kind: str, name: str, given: Any, key: str | None = None) -> str:
        """The place of an operation that a handler or tool asks for; a number distinguishes equal ones."""
        if asked.by is not None and (run := self.runs.get(asked.place)):
            run.close_passed()
        digest = input_digest(given) if key is None else in_id(key)
        id = f"{asked.id}/{kind}:{in_id(name)}~{digest}"
        with self.root._guard:
            number = self.root._ordinals[id] = self.root._ordinals.get(id, 0) + 1
        id = f"{id}#{number}"
        if self.past is not None:
            expect(self, asked.id, id)
        return id

    def alone(self, asked: Frame) -> threading.RLock:
        """A lock, so that operations that one frame asks for exclude each other: `with turn.alone(frame):`."""
        with self.root._guard:
            lock: threading.RLock = self.root._locks.setdefault(asked.id, threading.RLock())
            return lock

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

    # -- hooks ---------------------------------------------------------------------------------

    def decide(
        self,
        hook: str,
        place: str = "",
        convert: Callable[[Any], Any] | None = None,
        suffix: int | str = "",
        over: Sequence[list[Any]] = (),
        **given: Any,
    ) -> HandlerValue | None:
        """Let the handlers of a hook decide, except those in `over`; the first value wins.

        Raises:
            ToolRejected: a handler rejected the call or calls.
            Waiting: a handler waits for a person.
        """
        if hook not in self.host.active:
            return None
        run = self.first(hook, place, convert, suffix, over, **given)
        return None if run.by is None else HandlerValue(run.value, run.by)

    def first(self, hook: str, place: str, convert: Any, suffix: Any, over: Any, **given: Any) -> HookRun:
        """Like `decide`, but returns the run of the handlers."""
        run = HookRun(hook, f"{place}{hook}{suffix}", HookCall({"agent": self.agent, **given}), convert)
        if over:
            run.leave_out(over)
        return run.run(self)

    def chain(
        self,
        hook: str,
        place: str = "",
        convert: Callable[[Any], Any] | None = None,
        last: TraceEntry | None = None,
        **given: Any,
    ) -> tuple[Any, HandlerValue | None]:
        """Let each handler of a hook see and replace a value; the value, and the last `Continue`."""
        if hook not in self.host.active:
            return given[CONTRACTS[hook].chained], None
        call = HookCall({"agent": self.agent, **given})
        call.convert = convert
        self.notify(hook, place, last, call)
        return call[CONTRACTS[hook].chained], call.decided

    def notify(
        self,
        hook: str,
        place: str = "",
        last: TraceEntry | None = None,
        call: HookCall | None = None,
        **given: Any,
    ) -> None:
        """Run the handlers of a hook.

        Args:
            hook: the hook.
            place: its place in the turn, with a `/` at the end.
            last: an entry that stays the last of the trace for each of the handlers.
            call: the arguments of the hook, in place of `given`.
            given: the arguments without the agent.
        """
        if hook not in self.host.active:
            return
        run = HookRun(hook, place + hook, HookCall({"agent": self.agent, **given}) if call is None else call)
        if last is None:
            run.run(self)
            return
        with self.conversation.ending_with(last) as run.given.ready:
            run.run(self)

    def rejects(self, hook: str, place: str = "", **given: Any) -> ToolRejected | None:
        """Run the handlers of a hook; the rejection, if one of them refuses."""
        try:
            self.notify(hook, place, **given)
        except ToolRejected as rejection:
            return rejection
        return None

    def rejection(self, reason: str, by: By = RESUMED) -> ToolRejected:
        """The rejection of a call that no handler made."""
        rejection = ToolRejected(reason)
        self.boundary.keep_owner(rejection, by)
        return rejection

    def require_shown(self, wait: TraceEntry, place: str, call: ToolCall | None) -> None:
        """Raises `ToolRejected` for a call that is not the one that a person was shown, if it waited at this place."""
        shown, is_here = wait.get("call") or {}, wait["id"].rpartition("/wait:")[0] == place
        now = (call.name, call.arguments) if call is not None and is_here else None  # else it waits for an inner call
        if now is not None and not same(now, (shown.get("name"), shown.get("arguments"))):
            raise self.rejection("a person decided about another call than this one, so it was not run")


id_of = id
