"""A round of tool calls: one after the other, and the turns of other agents at the same time.

Hooks keep their order by a baton that the round's main thread passes on: one call at a time runs the
caller's handlers, and only while it is in another agent's turn does the next one begin. When all have
begun, they come back in the order of the calls.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from connectagent.calls import run_call
from connectagent.delegation import AskAgent
from connectagent.errors import ToolRejected
from connectagent.parts import Abandoned, own_seat
from connectagent.pausing import BEGINNING, Point
from connectagent.session import ToolCall, TraceEntry

if TYPE_CHECKING:
    from connectagent.agent import Agent

Job = tuple[Any, Callable[[], Any]]
"""Whose turn it runs, or None where it is no agent's, and what to run."""


def run_calls(
    agent: Agent, calls: list[ToolCall], rejection: ToolRejected | None, point: Point = BEGINNING
) -> list[TraceEntry]:
    """Run the calls of a round; if two or more ask other agents, these work at the same time.

    Args:
        agent: whose round it is.
        calls: what the model asks for.
        rejection: set where `before_tools` rejected the whole round.
        point: where the round goes on, if the turn was stopped in it: calls that are done are not run again.
    """
    jobs: list[Job] = []
    for call in calls:
        done = point.done.get(call.id)
        if done is not None and call.id != point.unended:
            jobs.append((None, partial(point.done.__getitem__, call.id)))
            continue
        function = getattr(agent.tools.get(call.name), "function", None) if agent.marks else None
        asked = function.agent if isinstance(function, AskAgent) else None
        jobs.append((asked, partial(run_call, agent, call, rejection, done)))
    if sum(asked is not None for asked, _ in jobs) < 2:
        return [run() for _, run in jobs]
    return in_turns(agent, jobs)


def in_turns(agent: Agent, jobs: Sequence[Job]) -> list[Any]:
    """Run jobs in order; those of other agents in threads, so that their turns run at the same time.

    Raises:
        BaseException: what the first of them raised, when all have come back. Ctrl-C ends the turns of
            the others first; a second one leaves them behind.
    """
    table = _Table(agent)
    try:
        for asked, run in jobs:
            table.begin(asked, run)
            if table.failed is not None:
                break
        table.finish()
    except BaseException as error:
        table.failed = table.failed or error
        if not isinstance(error, Exception):
            table.stop()
        try:
            table.finish()
        except BaseException:  # Ctrl-C again
            table.abandon()
            raise
    if table.failed is not None:
        raise table.failed
    return [seat.result for seat in table.seats]


class _Table:
    """The calls of a round, each at a seat of its own."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.seats: list[_Seat] = []
        self.failed: BaseException | None = None

    def begin(self, asked: Any, run: Callable[[], Any]) -> None:
        """Run a job, or start the one of another agent and wait until it is in that one's turn."""
        if asked is not None and any(seat.asked is asked and not seat.over.is_set() for seat in self.seats):
            self.finish()  # one agent has one turn at a time
        seat = _Seat(self.agent, asked)
        self.seats.append(seat)
        if asked is None:
            seat.over.set()
            seat.result = run()
            return
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(seat.work, run), name=f"agent-{asked.name}", daemon=True)
        thread.start()
        seat.left.wait()
        self._look_at(seat)

    def finish(self) -> None:
        """Let those that are in another agent's turn come back, in order."""
        for seat in self.seats:
            if not seat.over.is_set():
                seat.back.wait()
                seat.go.set()
                seat.over.wait()
                self._look_at(seat)

    def stop(self) -> None:
        """End the turns of the other agents; what has come back already counts."""
        for seat in self.seats:
            seat.cut = seat.cut or not seat.back.is_set()
            if not seat.begun.acquire(blocking=False):
                continue
            for event in (seat.left, seat.back, seat.over):  # Ctrl-C came before its thread did
                event.set()
        if self.agent.part is not None:
            for part in list(self.agent.part.inner):
                part.stop()

    def abandon(self) -> None:
        """Wait no longer: what still runs will find the round gone when it comes back."""
        for seat in self.seats:
            seat.abandoned = True
            seat.go.set()

    def _look_at(self, seat: _Seat) -> None:
        if seat.error is not None:
            self.failed = self.failed or seat.error
            if not isinstance(seat.error, Exception):
                self.stop()


class _Seat:
    """One call of a round.

    Attributes:
        begun: taken by the thread that runs the call, or by the one that will not let it run any more.
        left: it is in another agent's turn, or over.
        back: the other agent's turn is over.
        go: the caller's handlers may run again.
        over: it has its result or its error.
        cut: whether Ctrl-C came before the other agent's turn was over.
        abandoned: whether it came twice, and nobody waits any more.
    """

    def __init__(self, agent: Agent, asked: Any) -> None:
        self.agent, self.asked = agent, asked
        self.begun = threading.Lock()
        self.left, self.back, self.go, self.over = (threading.Event() for _ in range(4))
        self.cut = self.abandoned = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._running = list(_running(agent))  # a copy, as the call itself adds to the other one
        self._pending = agent.conversation.session["pending_tool"]

    def work(self, run: Callable[[], Any]) -> None:
        """Run the call in a thread of its own."""
        if not self.begun.acquire(blocking=False):
            return
        own_seat.set(self)
        try:
            self.result = run()
        except BaseException as error:
            self.error = error
        finally:
            for event in (self.over, self.left, self.back):
                event.set()

    def leave(self) -> bool:
        """Let the round go on, while this call is in another agent's turn; not where a handler asked for it."""
        if self.cut:
            raise KeyboardInterrupt
        if len(_running(self.agent)) > len(self._running) + 1:
            return False
        self.agent.hooks.settle()
        self._swap(self._running)
        self.left.set()
        return True

    def come_back(self) -> None:
        """Wait until those before it are over."""
        self.back.set()
        self.go.wait()
        if self.abandoned:
            raise Abandoned
        self._swap(self._running)
        if self.cut:
            raise KeyboardInterrupt

    def _swap(self, running: list[Any]) -> None:
        """Change whose code is said to run, and which call is said to be pending."""
        hooks, session = self.agent.hooks, self.agent.conversation.session
        self._running = hooks.lend(running)
        self._pending, session["pending_tool"] = session["pending_tool"], self._pending
        if hooks.shadow is not None:
            hooks.shadow.sync()


def _running(agent: Agent) -> list[Any]:
    """Whose code is running in the agent, innermost last."""
    running = agent.hooks.lend([])
    agent.hooks.lend(running)
    return running
