"""A turn for code that runs in parallel: all that touches the conversation is done on the turn's own thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from connectagent import frame
from connectagent.errors import INTERRUPTS
from connectagent.frame import Frame
from connectagent.hooks.executor import HookCall
from connectagent.loop.beside import GRACE_S, Body, in_frame, run_apart
from connectagent.session.journal import TOOL_ENDED
from connectagent.session.lost_updates import Copy
from connectagent.session.snapshot import copy_of
from connectagent.session.state import state_change

ON_ITS_THREAD = frozenset(("decide", "first", "reapply", "trace_once"))


class Remote:
    """A turn for the operations of a parallel body. All other attributes are the turn's own.

    Args:
        body: the body.
        context: the context in which the handlers of its operations run.
        whole: whether the operation is the body itself with the handlers around it, not one that its code asks for.
    """

    def __init__(self, body: Body, context: Context, whole: bool = False) -> None:
        self.body, self.turn, self.context, self.whole = body, body.turn, context, whole
        self.pending = body.pending
        self.host, self.boundary = _Host(self), _Boundary(self)
        self.conversation = _Conversation(self)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.turn, name)
        return partial(self.call, value) if name in ON_ITS_THREAD else value

    @property
    def ended(self) -> Any:
        """How the turn is to end; once the body runs, only an ending by the body itself."""
        if self.body.started:
            return None if self.body.ending is None else self.body.ending[0]
        return self.turn.ended

    def closing(self, id: str) -> Any:
        """The line that ended an operation; None if the operation must run."""
        return None if not self.turn.resumed else self.call(self.turn.closing, id)

    def ending_as_data(self) -> dict[str, Any]:
        """The ending in the form of a line."""
        if self.body.ending is None:
            return self.turn.ending_as_data()  # type: ignore[no-any-return]
        ending, scope = self.body.ending
        return {**ending._asdict(), **({} if scope == "agent" else {"scope": scope})}

    def bring_home(self, changes: Iterable[dict[str, Any]], place: str, copy: Copy | None = None) -> None:
        """Keep the changes of a body whose process ended after it, to apply them in the order of the calls."""
        self.body.changes += changes

    def call(self, work: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Run a job on the turn's own thread, in the current frame."""
        here = frame.current()
        assert here is not None
        if self.body.beside.is_here:  # in a hook call that is monitored as a whole
            return work(*given, **named)
        own = here.in_body(None)
        job = partial(self._noted, partial(work, *given, **named))
        if not self.whole:
            job = partial(self._seen, job)
        return self.body.beside.call(partial(self.context.run, in_frame, own, job))

    def ending(self, work: Callable[..., Any], *given: Any) -> Any:
        """Run a job on the turn's own thread that may end the turn, as the body itself may."""
        turn, before = self.turn, self.turn.ended
        try:
            return work(*given)
        finally:
            if turn.ended is not before:
                outward = turn.outward
                self.body.ending = turn.ended, outward[1] if outward and outward[0] is turn.ended else "agent"

    def _noted(self, work: Callable[[], Any]) -> Any:
        """Run a job while the body's call is the pending one."""
        conversation = self.turn.conversation
        outer = conversation.session["pending_tool"]
        conversation.note_pending(self.pending)
        try:
            return work()
        finally:
            conversation.note_pending(outer)

    def _seen(self, work: Callable[[], Any]) -> Any:
        """Run a job for code of the body. It sees the body's state changes so far, and the body sees the job's."""
        body, turn = self.body, self.turn
        body.take()
        body.bring_home()
        before, writes = copy_of(turn.conversation.session["state"]), turn.conversation.writes
        outer, writes.owner = writes.owner, body
        try:
            return work()
        finally:
            writes.owner = outer
            body.absorb(state_change(before, turn.conversation.session["state"]))


class _Conversation:
    """The conversation, with its methods run on the turn's own thread."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._remote.turn.conversation, name)
        return partial(self._remote.call, value) if callable(value) else value

    @property
    def session(self) -> dict[str, Any]:
        return {**self._remote.turn.conversation.session, "pending_tool": self._remote.pending}

    def note_pending(self, call: Any) -> None:
        self._remote.pending = call


class _Host:
    """The handlers of the turn's agent."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def __getattr__(self, name: str) -> Any:
        return getattr(self._remote.turn.host, name)

    def around(self, hook: str, operation: Any, convert: Any = None, over: Any = (), **arguments: Any) -> Any:
        """Run an operation in parallel, inside the hook's handlers, which run on the turn's own thread."""
        remote = self._remote
        host = remote.turn.host
        if hook not in host.active:
            return operation()
        executor, handlers = host.halves(hook, over)
        if executor is None:
            return remote.call(host.around, hook, operation, convert, over, **arguments)
        call, entered = HookCall(arguments), list[Any]()
        call.convert = convert
        result, error = None, None
        try:
            if remote.whole:
                remote.call(executor.enter, handlers, call, entered)
            else:  # what the body's code asks for is not made either, if a handler ends the turn before it
                remote.call(remote.ending, executor.enter, handlers, call, entered)
            result = operation()
        except BaseException as raised:
            error = raised
        while True:
            try:
                result, passed = remote.call(remote.ending, _leave, executor, entered, call, result, error)
            except INTERRUPTS as raised:  # maybe before the first handler was reached
                if not entered:
                    raise
                error = raised
            else:
                break
        if passed is not None:
            raise passed
        return result


def _leave(
    executor: Any, entered: list[Any], call: HookCall, result: Any, error: BaseException | None
) -> tuple[Any, BaseException | None]:
    """Run the rest of around handlers; the outcome after them. Raises only their own errors."""
    try:
        return executor.leave(entered, call, result, error), None
    except BaseException as raised:
        if raised is not error:
            raise
        return None, raised


class _Boundary:
    """The boundary, which runs tools in parallel."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def __getattr__(self, name: str) -> Any:
        return getattr(self._remote.turn.boundary, name)

    @property
    def running(self) -> list[Any]:
        """The handlers that are running for what the body asks: none of them asks itself."""
        return []

    def run_tool(self, tool: Any, arguments: dict[str, Any]) -> Any:
        """Run a tool's function in parallel."""
        remote, body, by = self._remote, self._remote.body, tool.by
        if not remote.whole:
            return self._run_inside(tool, arguments, by)
        here = frame.current()
        assert here is not None
        session = remote.turn.conversation.session
        writes = remote.turn.conversation.writes
        remote.call(lambda: body.begin(by, session["state"], writes))
        error: BaseException | None = None
        try:
            run_apart(body, by, tool, arguments)
        except TimeoutError as raised:
            error = raised
        if "around_tool" in remote.turn.host.others and not body.beside.is_here:
            if body.over:
                self._write(here.id)
            body.is_back.set()
            body.beside.wake()
            since = time.perf_counter()
            body.beside.wait_for(body.go)
            body.waited_s = time.perf_counter() - since
        if error is not None:
            raise error
        return body.outcome()

    def _write(self, id: str) -> None:
        """Write that the function is over, before handlers around it see its result, since they may hide it."""
        more = {"changes": changes} if (changes := self._remote.body.changes_as_data()) else {}
        self._remote.turn.log.append({"type": TOOL_ENDED, "id": id, "entry": {}, **more})

    def _run_inside(self, tool: Any, arguments: dict[str, Any], by: Any) -> Any:
        """Run a tool that the body's own code asks for; it changes the body's copy of the state."""
        body, outer = self._remote.body, self._remote.body.by
        body.take()
        body.by = by
        try:
            if tool.timeout_s is None:
                return tool.run(arguments)
            return self._run_inside_apart(tool, arguments, by)
        finally:
            body.take(by)
            body.by = outer

    def _run_inside_apart(self, tool: Any, arguments: dict[str, Any], by: Any) -> Any:
        """Run such a tool with a timeout, on a copy of the body's copy of the state."""
        outer = self._remote.body
        inner = Body(outer.beside, copy_context(), self._remote.pending)
        inner.begin(by, outer.state)
        try:
            run_apart(inner, by, tool, arguments)
        finally:
            if inner.over:
                for change in inner.changes:
                    outer.changes.append(change)
                    outer.absorb(change.get("change", change))
        return inner.outcome()


class Stack:
    """A parallel attempt at a call: the handlers around its body, in a thread of its own.

    Args:
        run: the call.
        body: the body of the call.
        own: the frame of the round.
    """

    def __init__(self, run: Any, body: Body, own: Frame) -> None:
        self.run, self.body = run, body
        self.error: BaseException | None = None
        self.over = threading.Event()
        self._own = own.in_body(body)
        self._thread = threading.Thread(target=self._work, name=f"agent-{body.turn.agent.name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread to end."""
        self._thread.join(GRACE_S)

    @property
    def is_running(self) -> bool:
        """Whether it is running; after an early Ctrl-C it may not have begun."""
        return self._thread.ident is not None and not self.over.is_set()

    def _work(self) -> None:
        frame.CURRENT.set(self._own)
        run, turn = self.run, self.run.turn
        run.turn = Remote(self.body, self.body.context, whole=True)
        try:
            run.body_kept(self.body)
        except BaseException as error:
            self.error = error
        finally:
            run.turn = turn
            self.over.set()
            self.body.is_back.set()
            self.body.entered.set()
            self.body.beside.wake()
