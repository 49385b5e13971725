"""A turn as an iterator over what happens in it.

The turn runs in a thread of its own, in lockstep with its consumer: it continues only while the consumer waits
for the next item. So handlers and the consumer's code never run at the same time, and nothing piles up.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import threading
import weakref
from collections.abc import Callable, Generator
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from connectagent.data import Session, TraceEntry
from connectagent.loop.boundary import Boundary
from connectagent.loop.ending import Ending
from connectagent.session.conversation import Conversation
from connectagent.session.observers import PROGRAM
from connectagent.tools.waits import end_of, next_of

Events = Generator[TraceEntry, None, None]
_open: weakref.WeakSet[Events] = weakref.WeakSet()


class StreamedTurn(Protocol):
    """A turn whose items are read."""

    @property
    def ident(self) -> int: ...
    def leave(self, ending: Ending) -> None:
        """End the turn, and those inside it: nobody wants their results."""


class StreamedAgent(Protocol):
    """An agent whose turn is read item by item."""

    listener: Lockstep | None

    @property
    def name(self) -> str: ...
    @property
    def turn(self) -> StreamedTurn | None: ...
    @property
    def boundary(self) -> Boundary: ...
    @property
    def conversation(self) -> Conversation: ...
    @property
    def current_session(self) -> Session | None: ...


def streamed(agent: StreamedAgent, turn: Callable[[], Any], outcome: Callable[[], str | None] | None = None) -> Events:
    """The items of a turn; the turn begins with the first `next()`.

    Args:
        agent: the agent.
        turn: runs the turn and returns its result.
        outcome: how the turn has ended; None where the agent's session says it.
    """
    events = _events(Lockstep(agent, turn, outcome))
    _open.add(events)
    return events


@atexit.register
def _end_all() -> None:
    """End the open turns at exit: otherwise their threads and records would be cut off."""
    for events in list(_open):
        with contextlib.suppress(ValueError):  # it is running in another thread
            events.close()


def _events(steps: Lockstep) -> Events:
    try:
        while not isinstance(step := steps.next(), End):
            yield step
        if step.error is not None:
            try:
                raise step.error
            finally:
                del step  # the error's traceback holds this frame
        yield step.item
    finally:
        steps.close()


class End(NamedTuple):
    """The end of the turn: its result as an item, or its error."""

    item: TraceEntry
    error: BaseException | None


class Lockstep:
    """The thread of a turn and its consumer; one waits while the other runs."""

    def __init__(
        self, agent: StreamedAgent, turn: Callable[[], Any], outcome: Callable[[], str | None] | None = None
    ) -> None:
        self._agent, self._turn = agent, turn
        self._outcome = outcome or self._outcome_here
        self._asked: SimpleQueue[Any] = SimpleQueue()  # with these two the threads wait for each other; unlike locks
        self._items: SimpleQueue[Any] = SimpleQueue()  # Ctrl-C cannot leave them half-way
        self._handing_over = threading.Lock()  # tools may cause entries from threads of their own
        self._thread: threading.Thread | None = None
        self._consumer = 0
        self._closing = self._interrupted = self._ended = False
        self._by = dict(PROGRAM)  # an object of its own, to recognize the consumer's changes

    # -- in the consumer's thread --------------------------------------------------------------

    def next(self) -> Any:
        """Run the turn until its next item or its `End`."""
        self._consumer = threading.get_ident()
        try:
            if self._thread is None:
                context, name = contextvars.copy_context(), f"turn of {self._agent.name}"
                # A daemon: Python waits for other threads before it calls `_end_all`.
                self._thread = threading.Thread(target=context.run, args=(self._run,), name=name, daemon=True)
                self._thread.start()
            else:
                self._asked.put(None)
            return next_of(self._items)
        except KeyboardInterrupt:  # it reaches the waiting main thread, but is meant for the turn
            self._interrupted = True
            raise

    def close(self) -> None:
        """Let the turn end, without handing out more items."""
        self._closing = True
        self._asked.put(None)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.ident:
            end_of(thread)

    # -- in the turn's thread ------------------------------------------------------------------

    def _run(self) -> None:
        end = End({}, None)
        try:
            self._agent.listener = self
            result = self._turn()
            end = End({"type": "result", "result": result, "outcome": self._outcome()}, None)
        except BaseException as error:
            end = End({}, error)
        finally:
            self._agent.listener = None
            self._give(end)

    def _outcome_here(self) -> str | None:
        session = self._agent.current_session
        return None if session is None else session["outcome"]

    def _give(self, item: Any) -> None:
        self._items.put(item)

    def _wait(self) -> None:
        """Wait until the consumer asks for the next item."""
        self._asked.get()

    def unread(self) -> contextlib.AbstractContextManager[None]:
        """While code of the turn in the consumer's thread waits for the turn, that does not wait for the consumer."""
        return contextlib.nullcontext()

    def is_own_thread(self) -> bool:
        """Whether this is the thread of the streamed turn."""
        return threading.current_thread() is self._thread

    def is_consumer(self) -> bool:
        """Whether this is the thread of the consumer."""
        return threading.get_ident() == self._consumer

    def listen(self, agent: StreamedAgent, entry: TraceEntry) -> None:
        """Receive an entry of the turn or an inner turn, before the handlers of plugins do."""
        if entry.get("by") is not self._by:  # the consumer knows what it did itself
            self._hand_over(agent, entry)

    def _changeable(self, agent: StreamedAgent) -> list[StreamedAgent]:
        """The agents whose sessions the consumer may change now: of the item, and the one it streams, if that waits."""
        own = self._agent
        if own is agent or own.turn is None or own.turn.ident != threading.get_ident():
            return [agent]
        own.boundary.settle()
        return [agent, own]

    def _hand_over(self, agent: StreamedAgent, item: TraceEntry) -> None:
        """Hand an item to the consumer, and wait until it asks for the next. Ends the turn if the consumer has left."""
        if self.is_consumer():  # it uses the agent itself, between two items
            return
        agents = self._changeable(agent)
        with self.unread(), self._handing_over:
            waited = not self._closing
            if waited:
                for one in agents:
                    one.conversation.snapshot.sync()
                self._give(item)
                self._wait()
        if waited:
            for one in agents:
                one.conversation.take_changes(self._by)
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt
        if self._closing and not self._ended:
            self._ended = True
            turn = self._agent.turn
            if turn is not None:
                turn.leave(Ending(None, "ended", self._by))
