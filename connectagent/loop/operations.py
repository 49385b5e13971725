"""The operations of a turn: each is looked up in the log before it is done, and written into it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from connectagent import frame
from connectagent.data import Log, ToolCall, TraceEntry, Wait
from connectagent.errors import ConfigError, Pause, ToolRejected, Waiting
from connectagent.frame import Frame, in_id
from connectagent.hooks.executor import HandlerValue, HookCall
from connectagent.hooks.specs import CONTRACTS
from connectagent.loop.between_steps import NO_CHANGES, BetweenSteps, until_passed
from connectagent.loop.divergence import expect, finish
from connectagent.loop.ending import STOPPED, Ending
from connectagent.loop.hook_run import HookRun
from connectagent.loop.stored import from_stored, hides_values, input_digest, no_values
from connectagent.session.journal import BEGAN, CLOSED, HANDLERS, WAIT, Journal
from connectagent.session.snapshot import By, as_data, same

RESUMED: By = {"plugin": "(resume)"}  # by: a person decided
id_of = id


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
    silent: list[str]
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
        self.silent.clear()
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
            self._begin(run)
            self._close_handlers(asked, run)
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
            following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)
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
        run = self.first(hook, place, convert, suffix, over, **given)
        return None if run is None or run.by is None else HandlerValue(run.value, run.by)

    def first(self, hook: str, place: str, convert: Any, suffix: Any, over: Any, **given: Any) -> HookRun | None:
        """Like `decide`, but returns the run of the handlers."""
        if self.host.is_idle(hook):
            return None
        call = HookCall({"agent": self.agent, **given})
        run = HookRun(hook, f"{place}{hook}{suffix}", call, *[convert] if convert else [])
        if over:
            run.leave_out(over)
        return self.run_hook(run)

    def chain(
        self,
        hook: str,
        place: str = "",
        convert: Callable[[Any], Any] | None = None,
        last: TraceEntry | None = None,
        **given: Any,
    ) -> tuple[Any, HandlerValue | None]:
        """Let each handler of a hook see and replace a value; the value, and the last `Continue`.

        Args:
            last: an entry that stays the last of the trace for each of them.
        """
        if self.host.is_idle(hook):
            return given[CONTRACTS[hook].chained], None
        call = HookCall({"agent": self.agent, **given}, convert)
        run = self._run_behind(last, HookRun(hook, place + hook, call))
        return call[run.chained], call.decided

    def notify(self, hook: str, place: str = "", last: TraceEntry | None = None, **given: Any) -> None:
        """Run the handlers of a hook; `last` as for `chain`."""
        if not self.host.is_idle(hook):
            self._run_behind(last, HookRun(hook, place + hook, HookCall({"agent": self.agent, **given})))

    def rejects(self, hook: str, place: str = "", **given: Any) -> ToolRejected | None:
        """Run the handlers of a hook; the rejection, if one of them refuses."""
        try:
            self.notify(hook, place, **given)
        except ToolRejected as rejection:
            return rejection
        return None

    def _run_behind(self, last: TraceEntry | None, run: HookRun) -> HookRun:
        if last is None:
            return self.run_hook(run)
        with self.conversation.ending_with(last) as run.given.ready:
            return self.run_hook(run)

    def run_hook(self, run: HookRun) -> HookRun:
        """Run a hook's handlers as one operation, or look up its result."""
        if not self.host.has_others(run.hook):  # only the package's own, which change nothing
            return run.call(self.host, self.agent)
        run.id = id = f"{self.id}/{run.place}"
        if self.past is not None:
            if self._looked_up(run):
                return run
            self.between.everything()
            self._begin_again(run, self.past)
        self.runs[id] = run
        ended = self.ended
        try:
            with self.inside(id):
                run.call(self.host, self.agent)
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
            del self.runs[id]
        self._close(run, ended)
        return run

    def _close(self, run: HookRun, ended: Ending | None, **line: Any) -> None:
        """Write what the handlers decided, or that they changed something; nothing if they only observed."""
        if self.past is not None and not line:
            finish(self, run.id, None if run.kind == "around" else run.passed[run.known :])
        line = {**run.as_data(run.hook != "before_llm" or self.has_changes(run.id)), **line}
        if self.ended is not ended and self.ended not in (None, STOPPED):
            line["ended"] = self.ending_as_data()
        if line or run.asked or run.id in self.touched:
            self._begin(run)
            self.log.append({"type": CLOSED, "id": run.id, **line})
        else:
            self.silent.append(run.id)

    def _begin(self, run: HookRun) -> None:
        """Write that a hook's handlers begin, before the first line that one of them causes.

        Handlers that only observe cause none: the next line of their turn shows that they are over.
        """
        if not run.begun:
            run.begun = True
            self.began(run.id)

    def _begin_again(self, run: HookRun, past: Journal) -> None:
        """Begin a hook's handlers, or the rest of them, in a resumed turn."""
        self.opens(run.id)
        if run.id in past.began:  # from here on the changes are void that handlers made which run again
            self._begin(run)

    def _fail(self, run: HookRun, error: Exception) -> None:
        """Write the error that ended the handlers, so that a resumed turn runs them again."""
        self._begin(run)
        line = {"error_type": type(error).__name__, "from": self.failed(run.id, error), "open": True}
        self.log.append({"type": CLOSED, "id": run.id, **line})

    def _close_handlers(self, asked: Frame, run: HookRun) -> None:
        """Before a handler's first operation: write that the handlers before it need not run again."""
        if run.last is None or run.written is run.last:
            return
        run.written = run.last
        result = run.as_data() | ({"ended": self.ending_as_data()} if self.ended not in (None, STOPPED) else {})
        self.log.append({"type": HANDLERS, "id": run.id, "over": list(run.passed), **result})

    def _wait(self, run: HookRun, pause: Pause) -> Waiting:
        """Write that a handler waits for a person."""
        self._begin(run)
        by = self.boundary.owner_of(pause) or {}
        call = run.given.get("tool_call")
        shown = None if call is None else as_data(call)
        line: TraceEntry = {"type": WAIT, "id": f"{run.id}/wait:{by.get('handler')}", "hook": run.id, "of": run.hook}
        line |= {"agent": self.agent.name, "call": shown, "reason": pause.reason, "by": by}
        line |= {"digest": input_digest(shown and shown["arguments"])}
        ended = {"ended": self.ending_as_data()} if self.ended not in (None, STOPPED) else {}
        line |= {"over": [*run.passed, [by.get("plugin"), by.get("handler")]], **run.as_data()}
        self.log.append({**line, **ended})
        return Waiting([Wait(line["id"], line["agent"], shown, pause.reason, line["digest"], by)], call, by)

    def _looked_up(self, run: HookRun) -> bool:
        """Take the result of a hook's handlers from the log; False if they, or the rest of them, must run.

        Raises:
            ToolRejected, Waiting: as the handlers did.
        """
        past, id = self.past, run.id
        assert past is not None
        self.between.before(id)
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
            if part is not None and part["type"] == WAIT:  # the line of the decided call may come later
                self._take(run, part)
                self._decided(run, part)
            return True
        if part is None:
            return False
        self._require_values(run, part)
        self.opens(id)
        run.passed = [list(one) for one in part.get("over") or ()]
        run.over = [*run.over, *run.passed]
        run.known = len(run.passed)
        run.edit_again(self.reapply(id, run.passed))
        self._take(run, part)
        return part["type"] == WAIT and self._decided(run, part)

    def _is_lost(self, run: HookRun, line: TraceEntry) -> bool:
        """Whether handlers gave what a call that is to be made needs and no record has: a model, values of headers."""
        value, place, past = line.get("value"), run.id.rpartition("/")[0], self.past
        if run.hook == "before_llm":
            return past is not None and hides_values(line) and past.needs_model(place, 1)
        if run.hook != "on_error" or not isinstance(value, dict) or not value.get("given"):
            return False
        if past is None or not past.needs_model(place, run.given["attempt"] + 1):
            return False
        try:
            self.agent.create_llm(value["retry"]["model"])
        except ConfigError:
            return True
        return False

    def _require_values(self, run: HookRun, part: TraceEntry) -> None:
        """Raises `ConfigError` if handlers that do not run again gave what a call needs and no record has."""
        approved = part["type"] != WAIT or (self.past is not None and self.past.is_approved(part["id"]))
        if approved and self._is_lost(run, part):
            raise ConfigError(no_values(run.id))

    def _take(self, run: HookRun, line: TraceEntry) -> None:
        run.take(line)
        if (ended := line.get("ended")) is not None:
            self.end_as(ended)

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

    def _decided(self, run: HookRun, part: TraceEntry) -> bool:
        """Apply a person's decision in place of the waiting handler; whether it ends the hook."""
        past = self.past
        assert past is not None
        if part["id"] not in past.decided:
            waits = [one for one in past.pending() if one.id == part["id"]]
            raise Waiting(waits, run.given.get("tool_call"), part.get("by"))
        self.require_shown(part, run.id, run.given.get("tool_call"))
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
