"""Running handlers and tools: their values, time, changes and errors."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import Any, Protocol, cast

from connectagent import frame
from connectagent.data import Continue, LLMResponse, ToolCall, TraceEntry
from connectagent.errors import HookResultError, Pause, PluginWarning, ToolRejected, Waiting, short
from connectagent.hooks.handler import Handler, who
from connectagent.hooks.specs import CONTRACTS
from connectagent.loop.beside import run_alone
from connectagent.loop.call_arguments import (
    CALLS_OF,
    calls_with,
    check_edited,
    refuse_pending,
    show_pending,
    take_pending,
)
from connectagent.loop.described import Originals, keep_original
from connectagent.loop.open_turn import OpenTurn
from connectagent.session.changes import take_changes
from connectagent.session.edits import EDITABLE, as_data, is_as_before, other_calls, peek, put_back
from connectagent.session.messages import value_problem
from connectagent.session.observers import OUTSIDE
from connectagent.session.requests import changed_tools
from connectagent.session.snapshot import By, Snapshot
from connectagent.session.surroundings import threads
from connectagent.tools.awaiting import CALLER
from connectagent.tools.registry import ToolRegistry
from connectagent.tools.tool import Tool

SLOW_S = 0.005  # a handler call that takes longer is listed by itself
MOST_SLOW = 1000  # the most slow calls listed for one turn
Arguments = dict[str, Any]
Step = Callable[..., Any]
_NOWHERE = contextlib.nullcontext()  # outside of turns there is no frame
_MAY_PAUSE = ("before_llm", "before_tools", "before_each_tool")
_MAY_REJECT = ("before_tools", "before_each_tool")


class ChangeableAgent(Protocol):
    """The agent whose session handlers and tools may change."""

    @property
    def current_session(self) -> Any: ...
    @current_session.setter
    def current_session(self, session: dict[str, Any] | None) -> None: ...
    @property
    def tools(self) -> ToolRegistry: ...


class Boundary:
    """Runs handlers and tools, and attributes changes and errors to them.

    Args:
        agent: the agent whose session is watched.
        announce: traces the entries of what a handler or tool changed.
        warn_only: whether an exception of an observing handler becomes a warning.
        dry_runs: runs shadowed handlers.

    Attributes:
        replaced: whether `agent.current_session` was assigned another session than the one that is watched.
        pending: the entries of shadowed handlers, until `announce_pending`.
        running: the handlers and tools that are running, innermost last; None for one that is not watched.
        frames: their frames; None outside of turns.
    """

    replaced = False

    def __init__(
        self, agent: ChangeableAgent, announce: Callable[..., None], *, warn_only: bool = False, dry_runs: Any = None
    ) -> None:
        self.agent, self.dry_runs = agent, dry_runs
        self.pending: list[TraceEntry] = []
        self.announce = announce
        self.warn_only = warn_only
        self.snapshot: Snapshot | None = None
        self.blames = 0  # how many errors were attributed to handlers
        self._blamed: dict[int, tuple[BaseException, By, int]] = {}
        self.originals: Originals = {}  # of what `on_error` handlers raised
        self.slow_calls: list[tuple[str, str, float, float]] = []  # plugin, hook, Unix seconds, seconds: of this turn
        self._straying = False
        self.alive = 0  # how many threads there were at the last look, and when the last handler or tool ended
        self.running: list[By | None] = []
        self.frames: list[frame.Frame | None] = []

    def owner_of(self, error: BaseException, since: int = 0) -> By | None:
        """The handler that raised an error, or None if no handler did.

        Args:
            error: what was raised. The same object may be raised again by a tool or a model.
            since: the value of `blames` before the operation that raised it; older blames do not count.
        """
        found = self._blamed.get(id(error))
        return found[1] if found is not None and found[2] > since else None

    def take_blame(self, error: BaseException, other: Boundary) -> None:
        """Take over the owner of an error from an agent that this one called."""
        if (found := other._blamed.get(id(error))) is not None and id(error) not in self._blamed:
            self.keep_owner(error, found[1])

    def forget_errors(self) -> None:
        """Forget the errors, the running code and the slow calls of a turn that is over."""
        self._blamed.clear()
        self.originals.clear()
        self.running.clear()
        self.frames.clear()
        self.slow_calls.clear()

    def call(self, handler: Handler, arguments: dict[str, Any]) -> Any:
        """Run a handler; its value, or None if it is shadowed."""
        if handler.shadowed:
            if arguments.get("entry", {}).get("type") != "shadow":  # or on_trace would never end
                self.pending += self.dry_runs.of(handler, self).whole(arguments)
            return None
        step: Callable[..., Any] = handler.function
        given: Iterable[Any] = map(arguments.__getitem__, handler.positional)
        if handler.by_name:
            step, given = handler, (arguments,)
        try:
            return self.watched(handler, arguments, step, *given, check=True)
        except Exception as error:
            if not self.warn_only:
                raise
            self._warn(handler, error)
            return None

    def _warn(self, handler: Handler, error: Exception) -> None:
        """Turn the error of an observing handler into a warning; raises any other again."""
        if handler.builtin or handler.hook.startswith("before_") or self.owner_of(error) is not handler.by:
            raise error
        from connectagent.output.masking import current  # it has many patterns to compile

        message = current().text(f"{who(handler)} raised {type(error).__name__}: {error}")
        warnings.warn(message, PluginWarning, stacklevel=2)
        if handler.hook != "on_trace" and self.snapshot is not None:  # which would fail on its own failure
            entry = {"type": "error", "by": handler.by, "error": str(error), "error_type": type(error).__name__}
            self.announce(entry)

    def begin(self, handler: Handler, arguments: dict[str, Any]) -> Any:
        """Make the generator of an around handler, without running it, or its dry run."""
        return self.dry_runs.of(handler, self) if handler.shadowed else handler(arguments)

    def enter(self, handler: Handler, half: Any, arguments: dict[str, Any]) -> None:
        """Run an around handler up to its yield."""
        if handler.shadowed:
            self.pending += half.first_half(arguments)
        elif not self.watched(handler, arguments, resume, handler, half, None, None)[0]:
            raise self.blame(HookResultError(f"{who(handler)} returned before its yield"), handler)

    def leave(
        self, handler: Handler, half: Any, arguments: dict[str, Any], result: Any, error: BaseException | None
    ) -> Any:
        """Run the rest of an around handler with the outcome of the operation; its return value."""
        if handler.shadowed:
            self.pending += half.second_half(result, error)
            if handler.hook == "around_turn":  # the loop writes no more entries
                self.announce_pending()
            return None
        yielded, value = self.watched(handler, arguments, resume, handler, half, error, result, expected=error)
        if yielded:
            half.close()
            raise self.blame(HookResultError(f"{who(handler)} yields more than once"), handler)
        return value

    def announce_pending(self) -> None:
        """Trace what shadowed handlers would have done, before the loop's next entry.

        Handlers that read the last entry of the trace thus find the same one as without shadowed handlers.
        """
        pending, self.pending = self.pending, []
        self.announce(*pending)

    def watched(
        self, handler: Handler, arguments: Arguments, step: Step, *given: Any, expected: Any = None, check: bool = False
    ) -> Any:
        """Run a handler or one half of it. Its changes are traced, or rolled back if it raises.

        Args:
            expected: an error that passes through the handler without being its own.
            check: whether what `step` returns is the handler's value.
        """
        snapshot = None if handler.builtin else self.snapshot
        before = None
        unseen = self.alive  # threads whose changes nobody looks for, where the handler is not watched
        if snapshot is not None:
            self.ready(snapshot)
            unseen = 0
            snapshot.deltas.pop(id(handler.by), None)
            before = {} if EDITABLE.isdisjoint(arguments) else peek(arguments)
        here = frame.current()
        with _NOWHERE if here is None else here.of_handler(handler.by, handler.account) as own:
            depth = len(self.running)
            started, since = time.perf_counter(), self.blames
            edited = False  # whether it edited a call that its hook is about
            try:  # also for these lines, as Ctrl-C may come between them
                self.frames.append(own)
                self.running.append(None if handler.builtin else handler.by)
                value = step(*given)
                if check and value is not None:
                    check_value(handler, value)
            except BaseException as error:
                self.alive = max(threads(), unseen)  # first: one that ends from here on may have changed something
                decided = error is expected or _is_decision(error, handler)
                edited = self._take_changes(handler, arguments, before, decided)
                if error is not expected:
                    keep_original(error, expected)
                    self._blame_raised(error, handler, since, decided)
                raise
            else:
                self.alive = max(threads(), unseen)
                if before or (snapshot is not None and (self.replaced or not snapshot.unchanged())):
                    edited = self._take_changes(handler, arguments, before)
                return value
            finally:
                self._leave(handler, here, depth, started, edited)

    def _leave(self, handler: Handler, here: frame.Frame | None, depth: int, started: float, edited: bool) -> None:
        del self.running[depth:]
        del self.frames[depth:]
        if here is not None and (run := here.turn.runs.get(here.place)) is not None:
            run.ran(handler.by, handler.builtin, edited and not handler.shadowed)
        seconds = time.perf_counter() - started
        handler.account.calls += 1
        handler.account.seconds += seconds
        if seconds > SLOW_S and not handler.builtin and len(self.slow_calls) < MOST_SLOW:
            self.slow_calls.append((handler.plugin, handler.hook, time.time() - seconds, seconds))

    def _blame_raised(self, error: BaseException, handler: Handler, since: int, decided: bool) -> None:
        if isinstance(error, Waiting) or (isinstance(error, Pause) and decided):
            self.keep_owner(error, handler.by)  # also if a call that it made waits: then it waits itself
        self.blame(error, handler, since)
        if isinstance(error, Pause) and not decided:
            problem = f"{who(handler)} raised Pause, which is for before_ handlers and tools"
            raise self.blame(HookResultError(problem), handler) from error

    def run_tool(self, tool: Tool, arguments: dict[str, Any]) -> Any:
        """Run a tool; its changes of the session are traced as the tool's."""
        snapshot, by = self.snapshot, tool.by
        if snapshot is not None:
            self.ready(snapshot)
        if tool.timeout_s is not None and (here := frame.current()) is not None:
            return run_alone(cast(OpenTurn, here.turn), by, tool, arguments, copy_context())
        depth = len(self.running)
        interrupted = True
        try:  # also for these lines, as Ctrl-C may come between them
            self.frames.append(frame.current())
            self.running.append(by)
            value = tool.run(arguments) if (caller := CALLER.get()) is None else caller.run_tool(tool, arguments)
            interrupted = False
            return value
        except Exception:
            interrupted = False
            raise
        finally:
            del self.running[depth:]
            del self.frames[depth:]
            self.alive = threads()  # before the changes are taken, as above
            if snapshot is not None:
                if self.replaced:
                    self.agent.current_session = snapshot.session  # a tool may change the session, not replace it
                if not snapshot.unchanged():
                    with contextlib.suppress(*[HookResultError] if interrupted else []):  # Ctrl-C must not be lost
                        refuse_pending(snapshot, by)
                        self.announce(*take_changes(snapshot, by))

    def innermost(self) -> By | None:
        """The innermost running handler or tool."""
        here = frame.current()
        if here is not None and here.body is not None:
            return here.body.by
        return self.running[-1] if self.running else None

    def ready(self, snapshot: Snapshot) -> None:
        """Bring the snapshot up to date, before a handler or tool runs."""
        if self.running or self.alive or threads():
            self.settle()
        snapshot.sync()

    def settle(self) -> None:
        """Trace what the running handler has changed so far, before the loop or another handler changes the session.

        These changes stay, even if the handler raises later. They are made where it runs, not in what it asks for.
        """
        by = self.running[-1] if self.running else None
        if by is not None and self.snapshot is not None and not self.snapshot.unchanged():
            entries, own = take_changes(self.snapshot, by), self.frames[-1]
            with _NOWHERE if own is None else own.in_body(own.body):
                self.announce(*entries)
        elif not self.running and not self._straying:
            before, self.alive = self.alive, threads()
            if before or self.alive:  # one that is gone may have changed something before
                self._take_strayed()

    def _take_strayed(self) -> None:
        """Trace what a leftover thread of a handler or tool changed while none was running."""
        snapshot = self.snapshot
        if snapshot is None or self._straying or not snapshot.has_strayed():
            return
        snapshot.sync()
        self._straying = True  # to trace an entry calls `settle` again
        try:
            self.announce(*take_changes(snapshot, OUTSIDE))
        except HookResultError as error:  # there is no caller to raise it to
            self.announce({"type": "error", "by": OUTSIDE, "error": str(error), "error_type": type(error).__name__})
        finally:
            self._straying = False

    def _take_changes(
        self, handler: Handler, arguments: Arguments, before: Arguments | None, keep: bool = True
    ) -> bool:
        """Trace what a handler changed, or undo it; whether it edited a call that its hook is about.

        Args:
            before: `peek` of the arguments, None for a handler that is not watched.
            keep: whether its changes stay.
        """
        snapshot = self.snapshot
        if snapshot is None or before is None:
            return False
        if not keep:
            self.roll_back(snapshot, before)
            return False
        try:
            entries = self._checked_changes(handler, arguments, before, snapshot)
        except (HookResultError, RecursionError) as error:
            self.roll_back(snapshot, before)
            if isinstance(error, RecursionError):
                error = HookResultError(f"{who(handler)} left something nested too deep, or in a circle")
            raise self.blame(error, handler) from None
        if not entries:
            return False
        self.announce(*entries)
        return any(entry["of"] == CALLS_OF.get(handler.hook) for entry in entries)

    def _checked_changes(
        self, handler: Handler, arguments: Arguments, before: Arguments, snapshot: Snapshot
    ) -> list[TraceEntry]:
        """Trace what a handler changed in the session; the entries for what it edited in its arguments.

        Raises:
            HookResultError: a change cannot be used.
        """
        if self.agent.current_session is not snapshot.session:
            raise HookResultError(f"{who(handler)} replaced agent.current_session; change it in place")
        changed = not snapshot.unchanged()
        if changed or snapshot.pending_changed:
            take_pending(handler, arguments, before, snapshot)
        edited: list[str] = []
        for name, then in before.items():
            if not is_as_before(then, arguments[name]):
                edited.append(name)
        if edited:
            self._check_edited(handler, edited, arguments, before)
        if changed and not snapshot.unchanged():
            self.announce(*take_changes(snapshot, handler.by))
        return [_value_entry(handler, name, arguments, before[name]) for name in edited] if edited else []

    def _check_edited(self, handler: Handler, edited: list[str], given: Arguments, before: Arguments) -> None:
        """Check what a handler edited, and bring edited calls into the form of their tools for everybody after it.

        Raises:
            HookResultError: it cannot be used.
        """
        for name in edited:
            if problem := value_problem(given[name]) or other_calls(before[name], given[name]):
                raise HookResultError(f"{who(handler)} left {name} in a form that cannot be used: {problem}")
        if CALLS_OF.get(handler.hook) in edited and self.snapshot is not None:
            calls, then = calls_with(CALLS_OF[handler.hook], given, before)
            check_edited(calls, then, self.agent.tools)
            show_pending(self.snapshot, calls, then)

    def roll_back(self, snapshot: Snapshot, before: dict[str, Any] | None) -> None:
        self.agent.current_session = snapshot.session
        put_back(before or {})
        if not snapshot.unchanged():
            snapshot.restore()

    def announce_value(self, handler: Handler, name: str, arguments: dict[str, Any]) -> None:
        """Trace that a handler replaced an argument of its hook."""
        self.announce(_value_entry(handler, name, arguments))

    def keep_owner(self, error: BaseException, by: By) -> None:
        """Remember the owner of an error until the turn is over."""
        self.blames += 1
        self._blamed[id(error)] = (error, by, self.blames)

    def blame(self, error: BaseException, handler: Handler, since: int = -1) -> BaseException:
        """Add a note that names the handler to its error, unless a handler that it called is named; the error."""
        if self.owner_of(error, since) is None:
            self.keep_owner(error, handler.by)
            if not _is_decision(error, handler):
                version = f" {handler.version}" if handler.version else ""
                with contextlib.suppress(Exception):  # an exception class that takes no attributes
                    error.add_note(
                        f"raised by {who(handler)}, of plugin {handler.plugin!r}{version}; "
                        f"without it: plugins=['no:{handler.plugin}']"
                    )
        return error


def _value_entry(handler: Handler, name: str, arguments: dict[str, Any], then: Any = None) -> TraceEntry:
    """The entry for an argument that a handler changed or replaced; `then`: `peek_one` of it before."""
    entry: TraceEntry = {"type": "change", "by": handler.by, "of": name, "value": as_data(arguments[name])}
    if name == "request" and then is not None and (tools := changed_tools(then[2], arguments[name].tools)):
        entry["value"]["changed_tools"] = tools
    if name != "tool_call" and isinstance(arguments.get("tool_call"), ToolCall):
        entry["call_id"] = arguments["tool_call"].id
    return entry


def resume(handler: Handler, generator: Any, error: BaseException | None, value: Any) -> tuple[bool, Any]:
    """Resume an around handler; whether it yielded, and the yielded or returned value."""
    try:
        return True, generator.throw(error) if error is not None else generator.send(value)
    except StopIteration as stop:
        check_value(handler, stop.value)
        return False, stop.value
    except RuntimeError as raised:
        if isinstance(error, StopIteration) and raised.__cause__ is error:  # Python's rule for generators
            raise error from None
        raise


def _is_decision(error: BaseException, handler: Handler) -> bool:
    return (isinstance(error, ToolRejected) and handler.hook in _MAY_REJECT) or (
        isinstance(error, Pause) and handler.hook in _MAY_PAUSE
    )


def check_value(handler: Handler, value: Any) -> None:
    """Check a handler's value against its hook's contract."""
    contract = CONTRACTS[handler.hook]
    if value is None:
        return
    if contract.kind == "observe":
        raise HookResultError(f"{who(handler)} returned {short(value)}; {handler.hook} takes no value: return None")
    if contract.takes and not isinstance(value, contract.takes):
        accepted = ", ".join(kind.__name__ for kind in contract.takes)
        raise HookResultError(f"{who(handler)} returned {short(value)}; {handler.hook} takes None, {accepted}")
    if isinstance(value, LLMResponse | Continue) and (problem := value_problem(value)):
        raise HookResultError(f"{who(handler)} returned something that cannot be used: {problem}")
