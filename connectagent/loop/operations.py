"""The operations of a turn: each is looked up in the log before it is done, and written into it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from connectagent import frame
from connectagent.data import Log, TraceEntry, Wait
from connectagent.errors import ConfigError, Pause, ToolRejected, Waiting
from connectagent.frame import Frame
from connectagent.hooks.executor import HandlerValue, HookCall, nothing
from connectagent.hooks.specs import CONTRACTS
from connectagent.loop.divergence import expect, finish
from connectagent.loop.ending import Ending
from connectagent.loop.hook_run import HookRun
from connectagent.loop.stored import change_request, changed_request, from_stored, input_digest
from connectagent.session.journal import BEGAN, CLOSED, HANDLERS, WAIT, Journal, in_id
from connectagent.session.snapshot import By, as_data

RESUMED: By = {"plugin": "(resume)"}  # by: what a person decided


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
    _runs: dict[str, HookRun]
    conversation: Any

    @property
    def branch(self) -> str | None:
        """The names of the agents from the root down to this one, as entries of the trace carry them."""
        return self.conversation.labels.get("branch")  # type: ignore[no-any-return]

    def end(self, ending: Ending, scope: str = "agent") -> None:
        """End the turn before its next call of a model or tool; with it those around it, as far as `scope` says."""
        self.ended = ending
        if scope != "agent":
            self.outward = (ending, scope)

    def ending_as_data(self) -> dict[str, Any]:
        """The ending as a line has it."""
        told = {} if self.ended is None else self.ended._asdict()
        return {**told, "scope": self.outward[1]} if self.outward is not None else told

    def end_as(self, told: dict[str, Any]) -> None:
        """End the turn as a line tells."""
        self.end(Ending(told.get("result"), str(told["outcome"]), told["by"]), told.get("scope", "agent"))

    # -- operations ----------------------------------------------------------------------------

    def ran(self, place: str, by: By, builtin: bool) -> None:
        """A handler of the hook at this place has run."""
        if run := self._runs.get(place):
            run.ran(by, builtin)

    def began(self, id: str, **told: Any) -> None:
        """Write that an operation begins, before anything of it happens."""
        self.opens(id)
        self.log.append({"type": BEGAN, "id": id, **told, "timestamp": time.time()})

    def closing(self, id: str) -> TraceEntry | None:
        """The line that ended an operation, whose changes are made again; None where it is to be done."""
        line = None if self.past is None else self.past.closing(id, self.id)
        if line is not None:
            self.reapply(id)
        return line

    def opens(self, id: str) -> None:
        """Note that an operation is done now, though the log may have something of it."""
        if self.past is not None:
            self.past.opened(id, self.id)

    def has_begun(self, id: str) -> bool:
        """Whether an operation began before the turn stopped."""
        return self.past is not None and id in self.past.began

    def reapply(self, id: str, by: Callable[[By], bool] | None = None) -> list[TraceEntry]:
        """Change the conversation again as an operation did that is over; `by`: only those of some handlers."""
        assert self.past is not None
        changes = self.past.changes(id, self.id, self.branch)
        changes = [one for one in changes if by is None or one.get("at") != id or by(one.get("by") or {})]
        self.conversation.reapply(changes)
        return changes

    def within(self, id: str, by: By | None = None) -> frame.within:
        """Run an operation in a frame of its own."""
        outer = frame.current()
        if outer is None:
            return frame.within(Frame(self, id, by))
        body = outer.body if outer.turn is self else None
        return frame.within(Frame(self, id, by, outer.account, body))

    def key(self, asked: Frame, kind: str, name: str, given: Any, key: str | None = None) -> str:
        """The place of an operation that code of others asks for; equal ones are told apart by their number."""
        if asked.by is not None and (run := self._runs.get(asked.place)):
            self._begin(run)
            self._close_handlers(asked, run)
        told = input_digest(given) if key is None else in_id(key)
        id = f"{asked.id}/{kind}:{in_id(name)}~{told}"
        with self.root._guard:
            number = self.root._ordinals[id] = self.root._ordinals.get(id, 0) + 1
        id = f"{id}#{number}"
        if self.past is not None:
            expect(self, asked.id, id)
        return id

    def alone(self, asked: Frame) -> threading.RLock:
        """Operations of this agent that are asked for in one frame exclude each other: `with turn.alone(frame):`."""
        with self.root._guard:
            lock: threading.RLock = self.root._locks.setdefault(asked.id, threading.RLock())
            return lock

    def failed(self, id: str, error: BaseException) -> list[str]:
        """Note whose error it is that an operation ends with; the operations whose error it was before."""
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
        """Let the handlers of a hook decide, but those in `over`; the first value is the hook's.

        Raises:
            ToolRejected: a handler rejected what the hook is about.
            Waiting: a handler waits for a person.
        """
        run = self.first(hook, place, convert, suffix, over, **given)
        return None if run is None or run.by is None else HandlerValue(run.value, run.by)

    def first(self, hook: str, place: str, convert: Any, suffix: Any, over: Any, **given: Any) -> HookRun | None:
        """The run of the handlers of which the first value is the hook's; raises as `decide` does."""
        if self.host.is_idle(hook):
            return None
        call = HookCall({"agent": self.agent, **given})

        def run(operation: HookRun) -> None:
            self.host.run(hook, call, operation.over)
            operation.decide(partial(self.host.is_last, hook))

        operation = HookRun(hook, f"{place}{hook}{suffix}", call)
        operation.convert = convert or operation.convert
        operation.leave_out(over)
        return self._hook(operation, run)

    def chain(
        self,
        hook: str,
        place: str = "",
        convert: Callable[[Any], Any] | None = None,
        ready: Callable[[], None] = nothing,
        **given: Any,
    ) -> tuple[Any, HandlerValue | None]:
        """Let each handler of a hook see and replace a value; the value, and the last `Continue`."""
        if self.host.is_idle(hook):
            return given[CONTRACTS[hook].chained], None
        call = HookCall({"agent": self.agent, **given}, convert, ready)
        run = HookRun(hook, place + hook, call)
        self._hook(run, lambda operation: self.host.run(hook, call, operation.over))
        return call[run.chained], call.decided

    def notify(self, hook: str, place: str = "", ready: Callable[[], None] = nothing, **given: Any) -> None:
        """Let the handlers of a hook know."""
        if not self.host.is_idle(hook):
            call = HookCall({"agent": self.agent, **given}, None, ready)
            self._hook(HookRun(hook, place + hook, call), lambda operation: self.host.run(hook, call, operation.over))

    def rejects(self, hook: str, place: str = "", **given: Any) -> ToolRejected | None:
        """Let the handlers of a hook know; the rejection, where one of them refuses."""
        try:
            self.notify(hook, place, **given)
        except ToolRejected as rejection:
            return rejection
        return None

    def _hook(self, run: HookRun, handlers: Callable[[HookRun], None]) -> HookRun:
        """Run a hook's handlers as one operation, or look up what came of them."""
        if not self.host.has_others(run.hook):  # the package's own only, which change nothing
            handlers(run)
            return run
        run.id = id = f"{self.id}/{run.place}"
        if self.past is not None:
            if self._looked_up(run):
                return run
            self._begin_again(run, self.past)
        self._runs[id] = run
        ended = self.ended
        try:
            with self.within(id):
                handlers(run)
        except ToolRejected as rejection:
            self._close(run, ended, rejected=str(rejection), by=self.boundary.owner_of(rejection))
            raise
        except Pause as pause:
            raise self._wait(run, pause) from None
        except Waiting as waiting:
            waiting.by, waiting.call = self.boundary.owner_of(waiting) or {}, run.given.get("tool_call")
            raise
        except Exception as error:
            self._fail(run, error)
            raise
        finally:
            del self._runs[id]
        self._close(run, ended)
        return run

    def _close(self, run: HookRun, ended: Ending | None, **told: Any) -> None:
        """Write what the handlers decided, or that they changed something; nothing where they only observed."""
        if self.past is not None and not told:
            finish(self, run.id, run.passed[run.known :])
        told = {**run.as_data(), **told}
        if self.ended is not ended and self.ended is not None:
            told["ended"] = self.ending_as_data()
        if run.hook == "before_llm" and (changed := self._changed(run.given["request"])):
            told["request"] = changed
        if told or run.id in self.touched:
            self._begin(run)
            self.log.append({"type": CLOSED, "id": run.id, **told})

    def _begin(self, run: HookRun) -> None:
        """Write that a hook's handlers begin, before the first line that one of them causes.

        Handlers that only observe cause none: that they are over is told by what their turn does next.
        """
        if not run.begun:
            run.begun = True
            self.began(run.id)

    def _begin_again(self, run: HookRun, past: Journal) -> None:
        """Let a hook's handlers, or the rest of them, run in a turn that goes on."""
        self.opens(run.id)
        run.begun = run.id in past.parts and run.id in past.began
        if run.id in past.began:  # what its handlers had changed is void from here on
            self._begin(run)

    def _fail(self, run: HookRun, error: Exception) -> None:
        """Write whose error ended the handlers: who resumes the turn does that again."""
        self._begin(run)
        told = {"error_type": type(error).__name__, "from": self.failed(run.id, error), "open": True}
        self.log.append({"type": CLOSED, "id": run.id, **told})

    def _changed(self, request: Any) -> dict[str, Any]:
        agent = self.agent
        messages, tools = self.conversation.session["messages"], agent.tools.schemas()
        return changed_request(request, messages, tools, agent.llm.model, agent.call_options())

    def _close_handlers(self, asked: Frame, run: HookRun) -> None:
        """Before a handler's first own operation: the handlers before it will not run again."""
        if run.last is None or run.written is run.last:
            return
        run.written = run.last
        told = run.as_data() | ({"ended": self.ending_as_data()} if self.ended is not None else {})
        self.log.append({"type": HANDLERS, "id": run.id, "over": list(run.passed), **told})

    def _wait(self, run: HookRun, pause: Pause) -> Waiting:
        """Write that a handler waits for a person."""
        self._begin(run)
        by = self.boundary.owner_of(pause) or {}
        call = run.given.get("tool_call")
        told = None if call is None else as_data(call)
        line: TraceEntry = {"type": WAIT, "id": f"{run.id}/wait:{by.get('handler')}", "hook": run.id, "of": run.hook}
        line |= {"agent": self.agent.name, "call": told, "reason": pause.reason, "by": by}
        line |= {"digest": input_digest(told and told["arguments"])}
        over = [*run.passed, [by.get("plugin"), by.get("handler")]]
        ended = {"ended": self.ending_as_data()} if self.ended is not None else {}
        self.log.append({**line, "over": over, **run.as_data(), **ended})
        return Waiting([Wait(line["id"], line["agent"], told, pause.reason, line["digest"], by)], call, by)

    def _looked_up(self, run: HookRun) -> bool:
        """Take from the log what came of a hook's handlers; False where they, or the rest of them, are to run.

        Raises:
            ToolRejected, Waiting: as the handlers did.
        """
        past, id = self.past, run.id
        assert past is not None
        if (line := past.closing(id, self.id)) is not None:
            if self._is_lost(run, line):
                return False
            run.edit_again(self.reapply(id))
            self._take(run, line)
            if "rejected" in line:
                raise self.rejection(line["rejected"], line.get("by") or RESUMED)
            return True
        part = past.lines[past.parts[id]] if id in past.parts else None
        if past.is_over(id, self.id):
            run.edit_again(self.reapply(id))
            if part is not None and part["type"] == WAIT:  # the line of the call that was decided may come later
                self._take(run, part)
                self._decided(run, part)
            return True
        if part is None:
            return False
        self.opens(id)
        run.passed = [list(one) for one in part.get("over") or ()]
        run.over = [*run.over, *run.passed]
        run.known = len(run.passed)
        run.edit_again(self.reapply(id, lambda by: [by.get("plugin"), by.get("handler")] in run.passed))
        self._take(run, part)
        return part["type"] == WAIT and self._decided(run, part)

    def _is_lost(self, run: HookRun, line: TraceEntry) -> bool:
        """Whether a handler gave a model for the next attempt that is needed now, and cannot be made from its name."""
        value = line.get("value")
        if run.hook != "on_error" or not isinstance(value, dict) or not value.get("given"):
            return False
        if self.past is None or not self.past.needs_model(run.id.rpartition("/")[0], run.given["attempt"] + 1):
            return False
        try:
            self.agent.create_llm(value["retry"]["model"])
        except ConfigError:
            return True
        return False

    def _take(self, run: HookRun, line: TraceEntry) -> None:
        run.take(line)
        if "request" in line:
            change_request(run.given["request"], line["request"])
        if (ended := line.get("ended")) is not None:
            self.end_as(ended)

    def rejection(self, reason: str, by: By = RESUMED) -> ToolRejected:
        """The rejection of a call, which is of others than a handler."""
        rejection = ToolRejected(reason)
        self.boundary.keep_owner(rejection, by)
        return rejection

    def _decided(self, run: HookRun, part: TraceEntry) -> bool:
        """Put a person's decision into the place of the handler that waits; whether it ends the hook."""
        past = self.past
        assert past is not None
        if part["id"] not in past.decided:
            waits = [one for one in past.pending() if one.id == part["id"]]
            raise Waiting(waits, run.given.get("tool_call"), part.get("by"))
        decision = past.lines[past.decided[part["id"]]]
        if "reject" in decision:
            if run.hook == "before_llm":
                run.value, run.by = run.convert(f"rejected: {decision['reject']}"), RESUMED
                return True
            raise self.rejection(str(decision["reject"]))
        if "answer" in decision:
            run.value, run.by = run.convert(from_stored(decision["answer"])), RESUMED
            return True
        calls = [run.given["tool_call"]] if run.hook == "before_each_tool" else run.given.get("tool_calls") or ()
        for call in calls:
            call.approved = True
        return False


id_of = id
