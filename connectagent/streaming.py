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
from collections.abc import Callable, Generator, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from connectagent.conversation import PROGRAM
from connectagent.hooks import Handler
from connectagent.session import TraceEntry

if TYPE_CHECKING:
    from connectagent.agent import Agent

Events = Generator[TraceEntry, None, None]
_registering = threading.Lock()  # a second iterator, which is refused, may come and go meanwhile
_open: weakref.WeakSet[Events] = weakref.WeakSet()


def streamed(agent: Agent, turn: Callable[[], Any]) -> Events:
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

    def __init__(self, agent: Agent, turn: Callable[[], Any]) -> None:
        self._agent, self._turn = agent, turn
        self._asked: SimpleQueue[None] = SimpleQueue()  # by these two the threads wait for each other; unlike locks
        self._told: SimpleQueue[Any] = SimpleQueue()  # they cannot be left half-way by Ctrl-C
        self._telling = threading.Lock()  # tools may cause entries from threads of their own
        self._thread: threading.Thread | None = None
        self._consumer = 0
        self._begun = self._closing = self._interrupted = self._ended = False
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
            return self._told.get()
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
            with self._listening():
                result = self._turn()
            session = self._agent.current_session or {}
            end = _End({"type": "result", "result": result, "outcome": session.get("outcome")}, None)
        except BaseException as error:
            end = _End({}, error)
        finally:
            self._told.put(end)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Be told of entries and texts, behind the record and before the handlers of others, who may add entries."""
        handlers, streaming = self._agent.hooks.handlers, self._agent.streaming
        listeners: dict[str, Callable[[Any], None]] = {"on_trace": self._entry, "on_text": self._text}
        with _registering:
            for hook, function in listeners.items():
                own = Handler(hook, function, {"wrapper": False}, PROGRAM["plugin"], trusted=True)
                first = [handler for handler in handlers[hook] if handler.trusted]
                handlers[hook] = (*first, own, *[handler for handler in handlers[hook] if not handler.trusted])
        try:
            yield
        finally:
            with _registering:
                for hook, function in listeners.items():
                    handlers[hook] = tuple(handler for handler in handlers[hook] if handler.function != function)
            if self._begun:
                self._agent.streaming = streaming

    def _entry(self, entry: TraceEntry) -> None:
        if entry.get("by") is not self._by:  # the consumer knows what it did itself
            self._tell(entry)

    def _text(self, text: str) -> None:
        self._tell({"type": "text", "text": text})

    def _tell(self, item: TraceEntry) -> None:
        """Hand an item to the consumer and wait until it asks for the next; here a turn that it left ends."""
        thread = threading.get_ident()
        if not self._begun:
            if self._thread is None or thread != self._thread.ident:
                return  # of the turn before this one, in another thread
            self._begun = self._agent.streaming = True
        if thread == self._consumer:  # it uses the agent itself, between two items
            return
        with self._telling:
            waited = not self._closing
            if waited:
                self._agent.conversation.shadow.sync()
                self._told.put(item)
                self._asked.get()
        if waited:
            self._agent.conversation.take_changes(self._by)
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt
        if self._closing and not self._ended:
            self._ended = True
            self._agent.end_turn()
