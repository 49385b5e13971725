"""A turn as an iterator: what happens in it, one item each time that the consumer asks.

The turn runs in a thread of its own, in lockstep with its consumer: it goes on only while the consumer waits
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
from typing import Any, NamedTuple

from connectagent.data import TraceEntry
from connectagent.loop.ending import Ending
from connectagent.session.conversation import PROGRAM

Events = Generator[TraceEntry, None, None]
_open: weakref.WeakSet[Events] = weakref.WeakSet()


def streamed(agent: Any, turn: Callable[[], Any]) -> Events:
    """What happens in a turn of an agent; the turn begins with the first `next()`.

    Args:
        agent: whose turn it is.
        turn: runs the turn and returns its result.
    """
    events = _events(_Lockstep(agent, turn))
    _open.add(events)
    return events


@atexit.register
def _end_all() -> None:
    """End the turns that nobody will ask any more: their threads would be cut off, and their records too."""
    for events in list(_open):
        with contextlib.suppress(ValueError):  # it runs in another thread
            events.close()


def _events(steps: _Lockstep) -> Events:
    try:
        while not isinstance(step := steps.next(), _End):
            yield step
        if step.error is not None:
            try:
                raise step.error
            finally:
                del step  # the error's traceback holds this frame
        yield step.item
    finally:
        steps.close()


class _End(NamedTuple):
    """The end of the turn: its result as an item, or what it raised."""

    item: TraceEntry
    error: BaseException | None


class _Lockstep:
    """The thread of a turn and its consumer, of which one waits while the other runs."""

    def __init__(self, agent: Any, turn: Callable[[], Any]) -> None:
        self._agent, self._turn = agent, turn
        self._asked: SimpleQueue[None] = SimpleQueue()  # by these two the threads wait for each other; unlike locks
        self._items: SimpleQueue[Any] = SimpleQueue()  # they cannot be left half-way by Ctrl-C
        self._handing_over = threading.Lock()  # tools may cause entries from threads of their own
        self._thread: threading.Thread | None = None
        self._consumer = 0
        self._closing = self._interrupted = self._ended = False
        self._by = dict(PROGRAM)  # an object of its own, by which the consumer's changes are told from others

    # -- in the consumer's thread --------------------------------------------------------------

    def next(self) -> Any:
        """Let the turn go on until the next item, or its `_End`."""
        self._consumer = threading.get_ident()
        try:
            if self._thread is None:
                context, name = contextvars.copy_context(), f"turn of {self._agent.name}"
                # A daemon, for `_end_all`: Python waits for other threads before it calls that.
                self._thread = threading.Thread(target=context.run, args=(self._run,), name=name, daemon=True)
                self._thread.start()
            else:
                self._asked.put(None)
            return self._items.get()
        except KeyboardInterrupt:  # it reaches the main thread, which waits; the turn is what it is meant for
            self._interrupted = True
            raise

    def close(self) -> None:
        """Let the turn come to its end, without telling what happens in it any more."""
        self._closing = True
        self._asked.put(None)
        if self._thread not in (None, threading.current_thread()) and self._thread.ident:
            self._thread.join()

    # -- in the turn's thread ------------------------------------------------------------------

    def _run(self) -> None:
        end = _End({}, None)
        try:
            self._agent.listener = self
            result = self._turn()
            session = self._agent.current_session or {}
            end = _End({"type": "result", "result": result, "outcome": session.get("outcome")}, None)
        except BaseException as error:
            end = _End({}, error)
        finally:
            self._agent.listener = None
            self._items.put(end)

    def is_own_thread(self) -> bool:
        """Whether the turn that is streamed begins in this thread."""
        return threading.current_thread() is self._thread

    def is_consumer(self) -> bool:
        """Whether this is the thread that asks for items."""
        return threading.get_ident() == self._consumer

    def listen(self, agent: Any, entry: TraceEntry) -> None:
        """Be told of what happens in the turn, and in those inside it, before the handlers of others are."""
        if entry.get("by") is not self._by:  # the consumer knows what it did itself
            self._hand_over(agent, entry)

    def _hand_over(self, agent: Any, item: TraceEntry) -> None:
        """Hand an item to the consumer and wait until it asks for the next; here a turn that it left ends."""
        if self.is_consumer():  # it uses the agent itself, between two items
            return
        with self._handing_over:
            waited = not self._closing
            if waited:
                agent.conversation.snapshot.sync()
                self._items.put(item)
                self._asked.get()
        if waited:
            agent.conversation.take_changes(self._by)
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt
        if self._closing and not self._ended:
            self._ended = True
            self._agent.turn.end(Ending(None, "ended", self._by))
