"""Bodies that run beside a turn, each in a thread of its own, and the turn's own thread, which serves them.

What touches the conversation, handlers above all, is done on the turn's own thread, one job at a time. A body has a
copy of the state; what it changes is brought home on that thread too, in the order of the calls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextvars import Context
from queue import Empty, SimpleQueue
from typing import Any

from connectagent import frame
from connectagent.data import TraceEntry
from connectagent.errors import Abandoned
from connectagent.frame import Frame
from connectagent.session.readonly import BodySession
from connectagent.session.snapshot import By
from connectagent.session.state import copy_of, lasting, merge_change, state_change
from connectagent.tools.running import stops

GRACE_S = 0.5  # that async work has to end in when it is cancelled
RUNS_ON = "it could not be stopped and runs on; what it still does is not waited for"


class _Job:
    """Something that is to be done on the turn's own thread."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._value: Any = None
        self._error: BaseException | None = None
        self.done = threading.Event()

    def run(self) -> None:
        """Do it; Ctrl-C, which comes to this thread, is told to both."""
        if self.done.is_set():
            return
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt from None
        finally:
            self.done.set()

    def fail(self, error: BaseException) -> None:
        """Let whoever wants it have an error."""
        self._error = self._error or error
        self.done.set()

    def result(self) -> Any:
        """Wait for what came of it."""
        self.done.wait()
        if self._error is not None:
            raise self._error
        return self._value


class Beside:
    """The bodies that run beside a turn at one time, and the thread that serves them."""

    def __init__(self, turn: Any) -> None:
        self.turn = turn
        self.bodies: list[Body] = []
        self._thread = threading.get_ident()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._asked: set[_Job] = set()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def is_here(self) -> bool:
        """Whether this is the thread that serves the bodies."""
        return threading.get_ident() == self._thread

    def call(self, work: Callable[[], Any]) -> Any:
        """Do something on the thread that serves the bodies, and wait for it.

        Raises:
            Abandoned: nobody serves any more.
        """
        if self.is_here:
            return work()
        job = _Job(work)
        with self._lock:
            if self._closed:
                raise Abandoned
            self._asked.add(job)
        self._jobs.put(job)
        try:
            return job.result()
        finally:
            self._asked.discard(job)

    def wake(self) -> None:
        """Let the thread look again whether it has what it waits for."""
        self._jobs.put(None)

    def wait(self, until: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Serve the bodies until something holds; False where it does not in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not until():
            left_s = None if deadline is None else max(deadline - time.monotonic(), 0)
            try:
                job = self._jobs.get(timeout=left_s)
            except Empty:
                return until()
            if job is not None:
                job.run()
        return True

    def wait_for(self, event: threading.Event, timeout_s: float | None = None) -> bool:
        """Wait for an event in any thread: the one that serves the bodies goes on serving."""
        return self.wait(event.is_set, timeout_s) if self.is_here else event.wait(timeout_s)

    def cut(self, again: bool = False) -> None:
        """Stop the bodies that can be stopped, and leave the others behind: Ctrl-C was pressed.

        Args:
            again: whether it was pressed again: all are left behind.
        """
        for job in list(self._asked):
            job.fail(KeyboardInterrupt())
        for body in self.bodies:
            body.cut = True
        self.turn.stop_inner()
        for body in self.bodies:
            body.cancel()
        deadline = time.monotonic() + GRACE_S
        for body in self.bodies:
            if again or not body.inside:
                body.leave(max(deadline - time.monotonic(), 0))

    def close(self, abandon: bool = False) -> None:
        """Serve nobody any more; `abandon`: and leave all bodies behind."""
        with self._lock:
            self._closed = True
        for body in self.bodies if abandon else ():
            body.leave(0)
            body.go.set()
            body.join()
        for job in list(self._asked):
            job.fail(Abandoned())


class Body:
    """A tool's function, or an agent's turn, that runs beside others of its turn.

    Args:
        beside: those it runs beside.
        context: of the handlers about it; it runs in a copy.
        pending: the call that it runs, as `pending_tool` shows it.

    Attributes:
        by: whose code it is.
        state: its copy of the state.
        changes: what it has changed so far, in order: changes of its own, and turns of agents that ended in it.
        ending: how it ended the turn, with the scope.
        entered: set when its code runs, or will not; of one that asks an agent, when that one's turn runs.
        done: set when it is over, or left behind.
        is_back: set when nothing of it is under way but what comes in the order of the calls.
        go: set when it may come back into the handlers around it.
        over, left: which of the two.
        inside: how many turns of agents run in it.
        asks: whether it asks an agent at once, whose beginning is waited for.
        waited_s: how long it waited for others when it was over.
        home: the place in which its changes are made in the end.
    """

    def __init__(self, beside: Beside, context: Context, pending: Any = None) -> None:
        self.beside, self.turn, self.context, self.pending = beside, beside.turn, context, pending
        self.by: By | None = None
        self.state: dict[str, Any] = {}
        self._base: dict[str, Any] = {}
        self.changes: list[dict[str, Any]] = []
        self.ending: tuple[Any, str] | None = None
        self.entered, self.done = threading.Event(), threading.Event()
        self.is_back, self.go = threading.Event(), threading.Event()
        self.started = self.over = self.left = self.cut = False
        self.inside, self.waited_s = 0, 0.0
        self.asks = False
        self._session: BodySession | None = None
        self.home = self.turn.id
        self._stops: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self._lock = threading.RLock()
        beside.bodies.append(self)

    def begin(self, by: By | None, state: dict[str, Any]) -> None:
        """Take a copy of the state, as the handlers around it have left it."""
        self.by, self.state, self._base, self.started = by, copy_of(state), copy_of(state), True

    def start(self, function: Callable[[], Any], own: Frame) -> None:
        """Run a function in a thread."""
        name = f"agent-{self.turn.agent.name}"
        run = self.context.copy().run
        self._thread = threading.Thread(target=run, args=(self._work, function, own), name=name, daemon=True)
        self._thread.start()
        if not self.asks:
            self._enter()

    def _work(self, function: Callable[[], Any], own: Frame) -> None:
        frame.enter(own)
        stops.set(self._stops)
        value, error = None, None
        try:
            value = function()
        except BaseException as raised:
            error = raised
        with self._lock:
            if not self.left:
                self._value, self._error = value, error
                self.take()
                self.over = True
        self.done.set()
        self._enter()

    def _enter(self) -> None:
        self.entered.set()
        self.beside.wake()

    def outcome(self) -> Any:
        """What came of it.

        Raises:
            KeyboardInterrupt: it was left behind when Ctrl-C was pressed.
            BaseException: what it raised.
        """
        if not self.over or (self.cut and self._stops and self._error is not None):
            error = KeyboardInterrupt()
            error.left_behind = self.left  # type: ignore[attr-defined]
            raise error
        if self._error is not None:
            raise self._error
        return self._value

    def timed_out(self, name: str, timeout_s: float) -> TimeoutError | None:
        """The error of one that takes too long, which is cancelled, or left behind; None where it is over after all."""
        runs_on = self.leave(GRACE_S)
        if not runs_on and (self._error is None or not self._stops):
            return None
        told = f"; {RUNS_ON}" if runs_on else ""
        error = TimeoutError(f"{name} took longer than {timeout_s:g} s{told}")
        error.left_behind = runs_on  # type: ignore[attr-defined]
        return error

    def join(self) -> None:
        """Wait for the end of the thread of one that is over."""
        if self.over and self._thread is not None:
            self._thread.join(GRACE_S)

    def cancel(self) -> None:
        """Cancel what it awaits, if it is async."""
        for stop in list(self._stops):
            stop()

    def leave(self, grace_s: float) -> bool:
        """Leave it behind, unless it is over; async work is cancelled, and has a little time to end. Whether it is."""
        self.cancel()
        if self._stops:
            self.done.wait(grace_s)
        with self._lock:
            if not self.over:
                self.left = True
                self.changes = [one for one in self.changes if "turn" in one]  # agents in it that were done
        self.done.set()
        self._enter()
        return self.left

    # -- what it changes -----------------------------------------------------------------------

    def session(self) -> BodySession:
        """`current_session` as its code sees it."""
        if self._session is None:
            session = self.turn.conversation.session
            self._session = BodySession(session, self.pending, lambda: self.state, self._replace)
        return self._session

    def _replace(self, state: dict[str, Any]) -> None:
        self.state = state

    def take(self, by: By | None = None) -> None:
        """Note what was changed in the copy of the state so far as somebody's doing."""
        with self._lock:
            if change := state_change(self._base, self.state):
                self.changes.append({"by": by or self.by, **change})
                self._base = copy_of(self.state)

    def absorb(self, change: dict[str, Any]) -> None:
        """See in the copy of the state what was changed in the state itself."""
        with self._lock:
            merge_change(self.state, change)
            self._base = copy_of(self.state)

    def add_turn(self, line: TraceEntry, change: dict[str, Any], known: bool) -> None:
        """Keep the end of an agent's turn in it, which is traced and merged when it comes home."""
        with self._lock:
            self.take()
            self.changes.append({"turn": line["id"], "line": line, "change": change, "known": known})
            self.absorb(change)

    def changes_as_data(self) -> list[dict[str, Any]]:
        """The changes as a line has them."""
        return [{"turn": one["turn"]} if "turn" in one else lasting(one) for one in self.changes]

    def bring_home(self) -> None:
        """On the turn's own thread: make the changes in the session."""
        changes, self.changes = self.changes, []
        self.turn.bring_home(changes, self.home)

    # -- agents inside -------------------------------------------------------------------------

    def leave_turn(self) -> None:
        """The turn of an agent begins in it."""
        self.inside += 1
        self._enter()

    def come_back(self) -> None:
        """The turn of an agent in it is over.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed meanwhile.
            Abandoned: nobody waits any more.
        """
        self.inside -= 1
        if self.left:
            raise Abandoned
        if self.cut:
            raise KeyboardInterrupt


def in_frame(here: Frame, work: Callable[[], Any]) -> Any:
    """Run something in a frame."""
    with frame.within(here):
        return work()


def run_apart(body: Body, by: By, tool: Any, arguments: dict[str, Any]) -> None:
    """Run a tool's function in a thread, and wait until it is over, or left behind.

    Raises:
        TimeoutError: it takes longer than it may.
    """
    here, beside = frame.current(), body.beside
    assert here is not None
    own = Frame(here.turn, here.id, here.by, here.account, body, here.place)
    body.by = by
    body.start(lambda: tool.run(arguments), own)
    if beside.wait_for(body.done, tool.timeout_s) or body.cut:
        return
    if (error := body.timed_out(tool.name, tool.timeout_s)) is not None:
        raise error


def run_alone(turn: Any, by: By, tool: Any, arguments: dict[str, Any], context: Context) -> Any:
    """Run a tool's function that may take only so long, with nothing beside it; what it returns.

    Raises:
        TimeoutError: it takes longer.
    """
    here, beside = frame.current(), Beside(turn)
    assert here is not None
    body = Body(beside, context, turn.conversation.session["pending_tool"])
    body.home = here.place
    body.begin(by, turn.state)
    try:
        run_apart(body, by, tool, arguments)
    except KeyboardInterrupt as interrupt:
        beside.cut()
        interrupt.left_behind = body.left  # type: ignore[attr-defined]
        raise
    finally:
        beside.close(abandon=True)
        body.bring_home()
        end_with(turn, [body])
    return body.outcome()


def end_with(turn: Any, bodies: Iterable[Body]) -> None:
    """End the turn as the first of some bodies wanted it, in their order."""
    for body in bodies:
        if body.ending is not None:
            turn.end(*body.ending)
            return
