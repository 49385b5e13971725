"""Tool bodies that run in parallel, each in a thread of its own, while the turn's own thread runs jobs for them.

Handlers and all else that touches the conversation run on the turn's own thread, one job at a time. A body has a copy
of the state; its changes are merged on that thread too, in the order of the calls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextvars import Context
from queue import Empty, SimpleQueue
from typing import Any, cast

from connectagent import frame
from connectagent.data import TraceEntry
from connectagent.errors import INTERRUPTS, Abandoned
from connectagent.frame import Frame
from connectagent.loop.open_turn import OpenTurn
from connectagent.session.journal import waits_for_person
from connectagent.session.lost_updates import Copy, StateWrites
from connectagent.session.observers import OUTSIDE, by_agent
from connectagent.session.readonly import BodySession
from connectagent.session.snapshot import By, copy_of
from connectagent.session.state import StateChange, lasting, merge_change, state_change
from connectagent.tools.awaiting import CALLER, STOPS, Stops, interrupt, waiting
from connectagent.tools.waits import hearing, next_of

GRACE_S = 0.5  # the time in which cancelled async work has to end
RUNS_ON = "it could not be stopped and runs on; what it still does is not waited for"


class Job:
    """A job for the turn's own thread."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._value: Any = None
        self._error: BaseException | None = None
        self.done = threading.Event()

    def run(self) -> None:
        """Run the job. Ctrl-C reaches this thread, and is raised here and in the thread that waits."""
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
        """Raise an error in the thread that waits."""
        self._error = self._error or error
        self.done.set()

    def result(self) -> Any:
        """Wait for its result."""
        hearing(self.done.wait)
        if self._error is not None:
            raise self._error
        return self._value


class Beside:
    """The bodies that run in parallel beside a turn, and the thread that runs their jobs."""

    def __init__(self, turn: OpenTurn) -> None:
        self.turn = turn
        self.bodies: list[Body] = []
        self._thread = threading.get_ident()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._asked: set[Job] = set()
        self.interrupt: type[Any] = interrupt()  # where bodies are cut
        self._lock = threading.Lock()
        self._closed = False

    @property
    def is_here(self) -> bool:
        """Whether this is the thread that runs the jobs."""
        return threading.get_ident() == self._thread

    def call(self, work: Callable[[], Any]) -> Any:
        """Run a job on the serving thread, and wait for it.

        Raises:
            Abandoned: jobs are no longer served.
        """
        if self.is_here:
            return work()
        job = Job(work)
        with self._lock:
            if self._closed:
                raise Abandoned
            self._asked.add(job)
        self._jobs.put(job)
        try:
            return waiting(job.result, self.turn.listeners)
        finally:
            self._asked.discard(job)

    def wake(self) -> None:
        """Make the serving thread check again what it waits for."""
        self._jobs.put(None)

    def wait(self, until: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Run jobs until a condition holds; False on a timeout."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not until():
            left_s = None if deadline is None else max(deadline - time.monotonic(), 0)
            try:
                caller = CALLER.get()
                job = next_of(self._jobs, left_s) if caller is None else caller.get(self._jobs, left_s)
            except Empty:
                return until()
            if job is not None:
                job.run()
        return True

    def wait_for(self, event: threading.Event, timeout_s: float | None = None) -> bool:
        """Wait for an event in any thread; the serving thread goes on running jobs."""
        return self.wait(event.is_set, timeout_s) if self.is_here else hearing(event.wait, timeout_s)

    def cut(self, again: bool = False) -> None:
        """After Ctrl-C: stop the bodies that can be stopped, and leave the others behind.

        Args:
            again: whether Ctrl-C was pressed again: all bodies are left behind.
        """
        for job in list(self._asked):
            job.fail(self.interrupt())
        for body in self.bodies:
            body.cut = True
        self.turn.stop_inner()
        for body in self.bodies:
            body.stops.stop(self.interrupt)
        deadline = time.monotonic() + GRACE_S
        for body in self.bodies:
            if again or not body.inside:
                body.leave(max(deadline - time.monotonic(), 0))

    def close(self, abandon: bool = False) -> None:
        """Run no more jobs; `abandon`: leave all bodies behind."""
        with self._lock:
            self._closed = True
        for body in self.bodies if abandon else ():
            body.leave(0)
            body.go.set()
            body.join()
        for job in list(self._asked):
            job.fail(Abandoned())


class Body:
    """A tool's function, or an agent's turn, that runs in parallel with others of its turn.

    Args:
        beside: the bodies that run at the same time.
        context: the context of the handlers around it; it runs in a copy.
        pending: the call that it runs, as in `pending_tool`.

    Attributes:
        by: the tool.
        state: its copy of the state.
        changes: its changes so far, in order: of its own code, and of agents' turns that ended in it.
        ending: how it ended the turn, with the scope.
        entered: set when its code runs, or will not run; if it asks an agent, when that agent's turn runs.
        done: set when it is over or left behind.
        stops: cancels what it awaits, if it is async.
        is_back: set when only work that follows the order of the calls remains.
        go: set when it may return into the handlers around it.
        over, left: whether it is over; whether it was left behind, maybe before it began.
        inside: how many agents' turns run in it.
        asks: whether it asks an agent right away, and the beginning of that turn is waited for.
        waited_s: how long it waited for others after it was over.
        home: the place where its changes are finally applied.
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
        self.started = self.over = self.left = self.cut = self._begun = False
        self.inside, self.waited_s = 0, 0.0
        self.asks = False
        self._session: BodySession | None = None
        self.home = self.turn.id
        self.stops = Stops()
        self._thread: threading.Thread | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self._lock = threading.RLock()
        self.writes = StateWrites()  # to its copy, by agents that it asks at the same time
        self._copy: Copy | None = None
        beside.bodies.append(self)

    def begin(self, by: By | None, state: dict[str, Any], writes: StateWrites | None = None) -> None:
        """Copy the state, as the handlers around the body have left it.

        Args:
            by: the tool.
            state: the state.
            writes: those to the state, if it is the session's own.
        """
        self.by, self.state, self._base, self.started = by, copy_of(state), copy_of(state), True
        if writes is not None:
            self._copy = writes.copied(self._base, self)

    def start(self, function: Callable[[], Any], own: Frame) -> None:
        """Run a function in a thread."""
        name = f"agent-{self.turn.agent.name}"
        run = self.context.copy().run
        self._thread = threading.Thread(target=run, args=(self._work, function, own), name=name, daemon=True)
        self._thread.start()

    def _work(self, function: Callable[[], Any], own: Frame) -> None:
        frame.CURRENT.set(own)
        STOPS.set(self.stops)
        with self._lock:
            if self.left:  # before it began
                return
            self._begun = True
        if not self.asks:
            self._enter()
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
        """Its result.

        Raises:
            KeyboardInterrupt, Cancelled: it was left behind.
            BaseException: what it raised.
        """
        if not self.over or (self.cut and self.stops.awaits and self._error is not None):
            error = self.beside.interrupt()
            error.left_behind = self.runs_on
            raise error
        if self._error is not None:
            raise self._error
        return self._value

    def timed_out(self, name: str, timeout_s: float) -> TimeoutError | None:
        """Cancel the body, or leave it behind, after its timeout; the error, or None if it is over after all."""
        self.leave(GRACE_S)
        if self.over and (self._error is None or not self.stops.awaits):
            return None
        note = f"; {RUNS_ON}" if self.runs_on else ""
        error = TimeoutError(f"{name} took longer than {timeout_s:g} s{note}")
        error.left_behind = self.runs_on  # type: ignore[attr-defined]
        return error

    def join(self) -> None:
        """Wait for the thread to end, if the body is over."""
        if self.over and self._thread is not None:
            self._thread.join(GRACE_S)

    def leave(self, grace_s: float) -> None:
        """Leave the body behind unless it is over; async work is cancelled first."""
        self.stops.stop()
        if self.stops.awaits:
            self.done.wait(grace_s)
        with self._lock:
            if not self.over:
                self.left = True
                self.changes = [one for one in self.changes if "turn" in one]  # agents' turns that ended in it
        self.done.set()
        self._enter()

    @property
    def runs_on(self) -> bool:
        """Whether it was left behind while its function ran."""
        return self.left and self._begun

    # -- what it changes -----------------------------------------------------------------------

    def session(self) -> BodySession:
        """`current_session` for the code of the body."""
        if self._session is None:
            session = self.turn.conversation.session
            self._session = BodySession(session, self.pending, lambda: self.state, self._replace)
        return self._session

    def _replace(self, state: dict[str, Any]) -> None:
        self.state = state

    def take(self, by: By | None = None) -> None:
        """Record what changed in the copy of the state so far, as changes by `by`."""
        with self._lock:
            if change := state_change(self._base, self.state):
                self.changes.append({"by": by or self.by, **change})
                self._base = copy_of(self.state)
                if self.writes.are_noted:
                    self.writes.note(change, by or self.by or OUTSIDE, self.state)

    def absorb(self, change: dict[str, Any]) -> None:
        """Apply a change of the state itself to the copy."""
        with self._lock:
            merge_change(self.state, change)
            self._base = copy_of(self.state)

    def add_turn(self, line: TraceEntry, change: StateChange, known: bool, copy: Copy | None) -> None:
        """Keep the end of an agent's turn in this body, to trace and merge it in the order of the calls.

        Args:
            line: its closing entry.
            change: its changes of the state.
            known: whether the log has its end already.
            copy: the copy of the body's copy on which it worked; None where it is looked up.
        """
        with self._lock:
            self.take()
            turn = {"turn": line["id"]}
            if not waits_for_person(line):
                self.absorb(change)
                if self.writes.are_noted and (lost := self.writes.note(change, by_agent(line), self.state, copy)):
                    turn["lost"] = lost
            self.changes.append({**turn, "line": line, "change": change, "known": known})

    def changes_as_data(self) -> list[dict[str, Any]]:
        """The changes in the form of a line."""
        turns: list[dict[str, Any]] = [
            {key: one[key] for key in ("turn", "lost") if key in one} for one in self.changes
        ]
        return [turn or lasting(one) for turn, one in zip(turns, self.changes, strict=True)]

    def bring_home(self) -> None:
        """Apply the changes to the session, on the turn's own thread."""
        while self.changes:  # one by one: Ctrl-C may come in between
            self.turn.bring_home([self.changes.pop(0)], self.home, self._copy)

    def close_copy(self) -> None:
        """Note that all changes of its copy of the state are made in the session."""
        if self._copy is not None:
            self._copy.close()

    # -- agents inside -------------------------------------------------------------------------

    def leave_turn(self) -> None:
        """Note that the turn of an agent begins in this body."""
        self.inside += 1
        self._enter()

    def come_back(self) -> None:
        """Note that the turn of an agent in this body is over.

        Raises:
            KeyboardInterrupt, Cancelled: the turn was interrupted meanwhile.
            Abandoned: the body was left behind.
        """
        self.inside -= 1
        if self.left:
            raise Abandoned
        if self.cut:
            raise self.beside.interrupt()


def body_in(here: Frame) -> Body | None:
    """The parallel body that runs in a frame. Frames are below bodies, and know a part of them."""
    return cast("Body | None", here.body)


def in_frame(here: Frame, work: Callable[[], Any]) -> Any:
    """Run something in a frame."""
    with here:
        return work()


def run_apart(body: Body, by: By, tool: Any, arguments: dict[str, Any]) -> None:
    """Run a tool's function in a thread, and wait until it is over or left behind.

    Raises:
        TimeoutError: it takes longer than its timeout.
    """
    here, beside = frame.current(), body.beside
    assert here is not None
    own = here.in_body(body)
    body.by = by
    body.start(lambda: tool.run(arguments), own)
    if tool.timeout_s is not None:
        beside.wait_for(body.entered)  # a busy machine starts threads late, which is not the tool's time
    if beside.wait_for(body.done, tool.timeout_s) or body.cut:
        return
    if (error := body.timed_out(tool.name, tool.timeout_s)) is not None:
        raise error


def run_alone(turn: OpenTurn, by: By, tool: Any, arguments: dict[str, Any], context: Context) -> Any:
    """Run the function of a tool with a timeout, with nothing in parallel; its result.

    Raises:
        TimeoutError: it takes longer than its timeout.
    """
    here, beside = frame.current(), Beside(turn)
    assert here is not None
    body = Body(beside, context, turn.conversation.session["pending_tool"])
    body.home = here.place
    body.begin(by, turn.state, turn.conversation.writes)
    try:
        run_apart(body, by, tool, arguments)
    except INTERRUPTS as error:
        beside.cut()
        error.left_behind = body.runs_on  # type: ignore[union-attr]
        raise
    finally:
        beside.close(abandon=True)
        body.bring_home()
        end_with(turn, [body])
    return body.outcome()


def end_with(turn: OpenTurn, bodies: Sequence[Body]) -> None:
    """End the turn as the first body that ended it did; all of them are over."""
    for body in bodies:
        body.close_copy()
    for body in bodies:
        if body.ending is not None:
            turn.end(*body.ending)
            return
