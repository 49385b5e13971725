"""What runs at the same time: the turns of several agents that one round, or one body, asks for.

All guards run first, in order; then the bodies of a round's other calls, in order; then those that ask agents, each
in a thread with a context and a copy of the state of its own; then, in order, what follows each call. Handlers run one
at a time, on the turn's own thread.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from connectagent import frame
from connectagent.data import ToolCall, TraceEntry
from connectagent.errors import Abandoned, ToolRejected, Waiting
from connectagent.frame import Frame
from connectagent.loop.described import shown_call
from connectagent.loop.tool_call import ToolRun
from connectagent.loop.turn import Turn
from connectagent.session.state import copy_of


class Body:
    """What runs beside others of its turn.

    Only one of them runs the turn's handlers at a time: the next begins when this one is in another agent's turn,
    and they come back in their order.

    Args:
        state: the state as it was when they began; a copy of its own.

    Attributes:
        ended: the closing entries of the turns that ended in it, which are merged when all are over.
        left: set when it is in another agent's turn, or over.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state
        self.ended: list[tuple[TraceEntry, dict[str, Any], bool]] = []
        self.result: Any = None
        self.error: BaseException | None = None
        self.left, self._go = threading.Event(), threading.Event()
        self.pending: Any = None  # the call that it runs
        self.back = self.cut = self.abandoned = False
        self.waited_s = 0.0  # for those before it, which is not its own time

    def come_back(self) -> None:
        """Wait until those before it are over.

        Raises:
            KeyboardInterrupt: Ctrl-C came before it was back.
            Abandoned: nobody waits any more.
        """
        self.back, since = True, time.perf_counter()
        self._go.wait()
        self.waited_s += time.perf_counter() - since
        if self.abandoned:
            raise Abandoned
        if self.cut:
            raise KeyboardInterrupt

    def let_go_on(self, abandoned: bool = False) -> None:
        """Those before it are over."""
        self.abandoned = abandoned
        self._go.set()

    def work(self, job: Callable[[], Any], own: Frame) -> None:
        """Run a job in this thread."""
        frame.enter(own)
        try:
            self.result = job()
        except BaseException as error:
            self.error = error
        finally:
            self.back = True
            self.left.set()


def run_round(turn: Turn, calls: list[ToolCall], rejection: ToolRejected | None) -> list[TraceEntry]:
    """Run the calls of a round; if two or more ask other agents, these work at the same time."""
    runs = [ToolRun(turn, call, f"{turn.iteration}/c{n}/", rejection) for n, call in enumerate(calls, 1)]
    if sum(turn.agent.asked_by(call) is not None for call in calls) < 2:
        return [run.whole() for run in runs]
    waiting: list[Waiting] = []
    for run in runs:
        _held(run, run.guard, waiting)
    beside = [run for run in runs if not run.decided and turn.agent.asked_by(run.call) is not None]
    beside = [run for run in beside if not any(one.call is run.call for one in waiting)]
    try:
        for run in runs:  # first, so that those beside them begin with what these have changed
            if run not in beside and not any(one.call is run.call for one in waiting):
                _held(run, run.body_kept, waiting)
        asked: list[Any] = []
        at_once(turn, [(turn.agent.asked_by(run.call), partial(_ask, run, waiting, asked)) for run in beside])
    except BaseException:
        for run in runs:
            run.salvage()
        raise
    if waiting:
        order = {id(call): number for number, call in enumerate(calls)}
        waiting.sort(key=lambda one: order[id(one.call)])
        raise Waiting([wait for one in waiting for wait in one.waits], waiting[0].call, waiting[0].by)
    return [_settled(run) for run in runs]


def _held(run: ToolRun, step: Callable[[], None], waiting: list[Waiting]) -> None:
    """Take a step of a call; where it waits, the others go on."""
    conversation = run.turn.conversation
    outer = conversation.session["pending_tool"]
    conversation.note_pending(shown_call(run.call))
    try:
        step()
    except Waiting as wait:
        wait.call = run.call
        waiting.append(wait)
    finally:
        conversation.note_pending(outer)


def _ask(run: ToolRun, waiting: list[Waiting], asked: list[Any]) -> None:
    """Let a call ask its agent; not while that waits in its turn about another call of the round: it is in `asked`."""
    agent = run.turn.agent.asked_by(run.call)
    if agent not in asked:
        _held(run, run.body, waiting)
        asked.extend(agent for one in waiting if one.call is run.call)


def _settled(run: ToolRun) -> TraceEntry:
    conversation = run.turn.conversation
    outer = conversation.session["pending_tool"]
    conversation.note_pending(shown_call(run.call))
    try:
        run.settle()
    except BaseException as error:
        run.stopped(error)
        raise
    finally:
        conversation.note_pending(outer)
    return run.entry


def at_once(turn: Turn, jobs: list[tuple[Any, Callable[[], Any]]]) -> list[Any]:
    """Run jobs in threads, each in a copy of this context, and merge what they changed in the jobs' order.

    Args:
        turn: whose code asks for them.
        jobs: each with the agent whose turn it is; one agent takes one turn at a time.

    Raises:
        BaseException: what the first of them raised, when all are over. Ctrl-C ends the turns inside them first; a
            second one leaves them behind.
    """
    here = frame.current() or turn.frame
    bodies: list[Body] = []
    threads: list[threading.Thread] = []
    try:
        for number, (agent, job) in enumerate(jobs):
            if any(agent is other for other, _ in jobs[:number]):
                _finish(turn, bodies, threads)
            body = Body(copy_of(turn.state))
            own = Frame(turn, here.id, here.by, here.account, body)
            context, name = contextvars.copy_context(), f"agent-{turn.agent.name}"
            thread = threading.Thread(target=context.run, args=(body.work, job, own), name=name, daemon=True)
            bodies.append(body)
            threads.append(thread)
            thread.start()
            body.left.wait()
        _finish(turn, bodies, threads)
    except BaseException:
        for body in bodies:
            body.cut = not body.back
        turn.stop_inner()
        try:
            _finish(turn, bodies, threads)
        except BaseException:  # Ctrl-C again: what still runs will find that nobody waits
            for body in bodies:
                body.let_go_on(abandoned=True)
            raise
        raise
    failed = [body.error for body in bodies if body.error is not None]
    waits = [error for error in failed if isinstance(error, Waiting)]
    others = [error for error in failed if not isinstance(error, Waiting)]
    if others:
        turn.failed_together(others)
        raise next((error for error in others if not isinstance(error, Exception)), others[0])
    if waits:
        raise Waiting([wait for one in waits for wait in one.waits], waits[0].call, waits[0].by)
    return [body.result for body in bodies]


def _finish(turn: Turn, bodies: list[Body], threads: list[threading.Thread]) -> None:
    """Let bodies come back, and take over what changed in them, in order."""
    for body, thread in zip(bodies, threads, strict=True):
        body.let_go_on()
        if thread.ident is not None:
            thread.join()
    for body in bodies:
        while body.ended:
            turn.take_closing(*body.ended.pop(0))
