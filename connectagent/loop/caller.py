"""Whoever awaits a turn: where its async tools run, what may be cancelled in it, and what is left behind then.

What may block in such a turn, a model call or a tool, runs in a thread of its own. The turn's thread waits for it at a
queue, where cancelling reaches it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from connectagent import frame
from connectagent.data import LLM
from connectagent.errors import Abandoned, Cancelled
from connectagent.loop import threads
from connectagent.loop.beside import GRACE_S, Job
from connectagent.tools.awaiting import CALLER, STOPS, Stops

Jobs = SimpleQueue[Any]


class _Interrupt:
    """A job that cancels whoever runs it."""

    def run(self) -> None:
        raise Cancelled


class AsksModel(Protocol):
    """Who asks a model."""

    @property
    def llm(self) -> LLM: ...


class OwnThread(Protocol):
    """A turn, by its thread."""

    thread: threading.Thread
    ident: int


class Caller:
    """Whoever awaits a turn, for the code that runs in it.

    Args:
        loop: the event loop on which async tools run; None: one in the background.
        outer: the same for the turn in which this one is awaited, or None.
        thread: the thread of the program's event loop.
        body: the blocking work in which the code runs, or None.
    """

    def __init__(self, loop: Any, outer: Caller | None, thread: int, body: Apart | None = None) -> None:
        self.loop, self.outer, self.thread, self.body = loop, outer, thread, body
        self._cancelled = False
        # Reentrant, as `cancel` is called when garbage is collected, which may happen inside of it.
        self._lock: threading.RLock = threading.RLock() if outer is None else outer._lock
        self._waiting: list[Jobs] = []
        # The queues at which this was interrupted: whoever ends there may wait again.
        self._told: set[Jobs] = set() if outer is None else outer._told

    @property
    def cancelled(self) -> bool:
        """Whether this turn or one around it was cancelled."""
        return self._cancelled or (self.outer is not None and self.outer.cancelled)

    def cancel(self) -> None:
        """End the turn: each of its waits raises `Cancelled`, those that begin later too."""
        with self._lock:
            self._cancelled = True
            for jobs in self._waiting:
                if jobs not in self._told:
                    self._told.add(jobs)
                    jobs.put(_Interrupt())

    def get(self, jobs: Jobs, timeout_s: float | None = None) -> Any:
        """The next job from a queue; others may compute meanwhile.

        Raises:
            Cancelled: the turn is cancelled. Raised once for each queue.
            Empty: there is none in this time.
        """
        line = self._line()
        with self._lock:
            for one in line:
                one._waiting.append(jobs)
        try:
            with self._lock:
                if self.cancelled and jobs not in self._told:
                    self._told.add(jobs)
                    raise Cancelled
            return self.idle(partial(jobs.get, timeout=timeout_s))
        finally:
            with self._lock:
                for one in line:
                    one._waiting.remove(jobs)

    def _line(self) -> list[Caller]:
        line = [self]
        while line[-1].outer is not None:
            line.append(line[-1].outer)
        return line

    @property
    def is_here(self) -> bool:
        """Whether this is the thread of the program's event loop, where code can only block."""
        return threading.get_ident() == self.thread

    def before_model(self, agent: AsksModel) -> None:
        """A model call of a turn begins, before its handlers run."""
        if self.outer is not None:
            self.outer.before_model(agent)

    def before_tool(self) -> None:
        """A tool call of a turn begins, before its handlers run."""
        if self.outer is not None:
            self.outer.before_tool()

    def apart(self) -> Apart | None:
        """What runs a model call in a thread of its own; None on the thread of the event loop."""
        return None if self.is_here else Apart(self)

    def run_tool(self, tool: Any, arguments: dict[str, Any]) -> Any:
        """Run a tool's function, in a thread of its own unless it only asks agents; its result.

        Raises:
            Cancelled: the turn is cancelled, and the function was left behind, or had not begun.
        """
        if asks_agents(tool) or self.is_here:
            return tool.run(arguments)
        here = frame.current()
        return Apart(self, None if here is None else here.turn).run(partial(tool.run, arguments))

    def sleep(self, seconds: float) -> None:
        """Sleep until the turn is cancelled."""
        with suppress(Empty):
            self.get(SimpleQueue(), seconds).run()

    def idle(self, wait: Callable[[], Any]) -> Any:
        """Wait for something; others may compute meanwhile."""
        had = threads.slot.give_up()
        try:
            return wait()
        finally:
            if had:
                threads.slot.take(wait=not self.cancelled)

    def compute(self, now: bool) -> None:
        """Take the slot to compute in blocking work, or give it up."""
        if not now:
            threads.slot.give_up()
        elif not self.is_here:
            threads.slot.take(wait=not self.cancelled)

    def operate(self, work: Callable[[], Any]) -> Any:
        """Run an operation that code of the turn asks for. While it runs, the asking code is not left behind.

        Raises:
            RuntimeError: the asking code was left behind.
        """
        bodies = [one.body for one in self._line() if one.body is not None]
        for number, body in enumerate(bodies):
            if not body.enter():
                for entered in bodies[:number]:
                    entered.leave()
                raise RuntimeError("an operation was asked for by a tool that its turn no longer waits for")
        took = not self.is_here and threads.slot.take(wait=not self.cancelled)
        try:
            return work()
        finally:
            if took:
                threads.slot.give_up()
            for body in bodies:
                body.leave()


class Worker(Caller):
    """A thread that takes turns beside others, as those of `map()` do: nobody awaits them, and they block in it.

    It gives the slot up meanwhile, so that one of the others computes. Only a tool that was never slow keeps the slot,
    since most tools take less time than two changes of threads.

    Args:
        gate: is asked before each model call and each tool call; what it raises ends the turn.
    """

    is_here = False

    def __init__(self, gate: Any) -> None:
        super().__init__(None, None, threading.get_ident())
        self._gate = gate
        self._slow: set[str] = set()

    def before_model(self, agent: AsksModel) -> None:
        """A model call of a turn begins, before its handlers run."""
        self._gate.before_model(agent)

    def before_tool(self) -> None:
        """A tool call of a turn begins, before its handlers run."""
        self._gate.before_tool()

    def apart(self) -> Any:
        """What runs a model call: this thread."""
        return self

    def run_tool(self, tool: Any, arguments: dict[str, Any]) -> Any:
        """Run a tool's function; its result."""
        if tool.name in self._slow:
            return self.idle(partial(tool.run, arguments))
        began = time.perf_counter()
        try:
            return tool.run(arguments)
        finally:
            if time.perf_counter() - began > threads.PATIENCE_S and not asks_agents(tool):
                self._slow.add(tool.name)

    def run(self, work: Callable[[], Any]) -> Any:
        """Run blocking work; its result."""
        return self.idle(work)

    def call(self, work: Callable[..., Any], *given: Any) -> Any:
        """Run a job of the blocking work."""
        return work(*given)


def asks_agents(tool: Any) -> bool:
    """Whether all that a tool does is to ask agents, which compute in turns of their own."""
    return str(getattr(tool.function, "__module__", "")).startswith("connectagent.agents.")


class Apart:
    """Blocking work of a turn, in a thread of its own, which its turn can leave behind.

    Args:
        caller: who awaits the turn.
        turn: the turn whose code it is, in place of its thread; None for code of the package.
    """

    def __init__(self, caller: Caller, turn: OwnThread | None = None) -> None:
        self._caller = caller
        self._turn = turn if turn is not None and turn.ident == threading.get_ident() else None
        self._jobs: Jobs = SimpleQueue()
        self._asked: list[Job] = []
        self._stops = Stops()
        self._inside = 0  # operations that it waits for
        self._begun = self._over = self._left = False
        self._lock = threading.Lock()
        self._value: Any = None
        self._error: BaseException | None = None

    def run(self, work: Callable[[], Any]) -> Any:
        """Run the work and wait for it; its result.

        Raises:
            Cancelled: the turn is cancelled.
        """
        caller = self._caller
        if caller.cancelled:
            raise Cancelled
        here = frame.current()
        turn, own = self._turn, (threading.current_thread(), threading.get_ident())
        name = "connectagent-body" if here is None else f"agent-{here.turn.agent.name}"
        threads.start(partial(copy_context().run, self._work, work), name)
        try:
            while not self._over:
                if (job := caller.get(self._jobs)) is not None:
                    job.run()
        except Cancelled as cancelled:
            if not self._end():
                cancelled.left_behind = self._begun  # type: ignore[attr-defined]
                raise
            if self._stops.awaits and self._error is not None:
                raise
        finally:
            if turn is not None:
                turn.thread, turn.ident = own
        try:
            if self._error is not None:
                raise self._error
            return self._value
        finally:
            self._error = None  # its traceback holds this frame

    def _work(self, work: Callable[[], Any]) -> None:
        caller = self._caller
        CALLER.set(Caller(caller.loop, caller, caller.thread, self))
        STOPS.set(self._stops)
        with self._lock:
            if self._left:  # before it began
                return
            self._begun = True
            if self._turn is not None:
                self._turn.thread, self._turn.ident = threading.current_thread(), threading.get_ident()
        value, error = None, None
        try:
            value = work()
        except BaseException as raised:
            error = raised
        with self._lock:
            self._value, self._error, self._over = value, error, True
        self._jobs.put(None)

    def _end(self) -> bool:
        """Cancel the work, and leave it behind unless it ends; whether it has ended."""
        self._stops.stop()
        deadline = time.monotonic() + GRACE_S
        while True:
            left_s = max(deadline - time.monotonic(), 0)
            with self._lock:
                if self._over:
                    return True
                if not self._inside and not (self._stops.awaits and left_s):
                    self._left = True
                    break
            try:
                job = self._caller.get(self._jobs, left_s or None)
            except Empty:
                continue
            if job is not None:
                job.fail(Abandoned())
        for job in self._asked:
            job.fail(Abandoned())
        return False

    def call(self, work: Callable[..., Any], *given: Any) -> Any:
        """Run a job of the work on the turn's thread, and wait for it.

        Raises:
            Abandoned: the work was left behind.
        """
        job = Job(partial(copy_context().run, work, *given))
        with self._lock:
            if self._left:
                raise Abandoned
            self._asked.append(job)
        self._jobs.put(job)
        try:
            return job.result()
        finally:
            self._asked.remove(job)

    def enter(self) -> bool:
        """An operation that the work asks for begins; False if the work was left behind."""
        with self._lock:
            if self._left:
                return False
            self._inside += 1
            return True

    def leave(self) -> None:
        """An operation that the work asked for is over."""
        with self._lock:
            self._inside -= 1
        self._jobs.put(None)
