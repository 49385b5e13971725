"""Threads for turns that are awaited, and for what blocks in them; and how many of the turns compute at a time.

An event loop stands still while it starts threads, or while many threads compute. So one thread starts the others,
they are used again, and a turn computes only while it holds one of a few slots.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

IDLE_S = 5.0  # how long a thread waits for more work before it ends
SLOTS = 2
PATIENCE_S = 0.1  # who keeps a slot longer blocks in code of others, and another may compute beside it

Work = Callable[[], None]


class Slots:
    """Who may compute at the same time. A slot is given up in each wait."""

    def __init__(self, number: int = SLOTS) -> None:
        self._number = number
        self._since: dict[int, float] = {}  # by thread, when it got its slot
        self._changed = threading.Condition()

    def take(self, wait: bool = True) -> bool:
        """Wait for a slot; False if this thread has one. Without `wait`, it gets one more than there are."""
        me = threading.get_ident()
        with self._changed:
            if me in self._since:
                return False
            while wait and len(self._since) >= self._number:
                thread = min(self._since, key=self._since.__getitem__)
                left_s = self._since[thread] + PATIENCE_S - time.monotonic()
                if left_s <= 0:
                    del self._since[thread]
                else:
                    self._changed.wait(left_s)
            self._since[me] = time.monotonic()
            return True

    def give_up(self) -> bool:
        """Give this thread's slot up; False if it has none."""
        with self._changed:
            if self._since.pop(threading.get_ident(), None) is None:
                return False
            self._changed.notify()
            return True


class _Threads:
    """The threads that wait for work, and the one that starts more."""

    def __init__(self) -> None:
        self.idle: list[SimpleQueue[tuple[Work, str]]] = []
        self.wanted: SimpleQueue[tuple[Work, str]] = SimpleQueue()
        threading.Thread(target=self._start, name="connectagent-starter", daemon=True).start()

    def _start(self) -> None:
        while True:
            given = self.wanted.get()
            threading.Thread(target=self._serve, args=given, daemon=True).start()
            del given

    def _serve(self, work: Work | None, name: str) -> None:
        queue: SimpleQueue[tuple[Work, str]] = SimpleQueue()
        thread = threading.current_thread()
        while work is not None:
            thread.name = name
            work()
            work, thread.name = None, "connectagent-idle"  # nothing of it is held meanwhile
            self.idle.append(queue)
            work, name = self._more(queue)

    def _more(self, queue: SimpleQueue[tuple[Work, str]]) -> tuple[Work | None, str]:
        try:
            return queue.get(timeout=IDLE_S)
        except Empty:
            try:
                self.idle.remove(queue)
            except ValueError:  # somebody took it just now
                return queue.get()
            return None, ""


_threads: list[_Threads] = []
_lock = threading.Lock()
slots = Slots()


def start(work: Work, name: str) -> None:
    """Run work in a thread of its own, without waiting for the thread to start. It must not raise."""
    if not _threads:
        with _lock:
            if not _threads:
                _threads.append(_Threads())
    threads = _threads[0]
    try:
        queue = threads.idle.pop()
    except IndexError:
        queue = threads.wanted
    queue.put((work, name))


def _forget() -> None:
    """A forked child has none of the threads."""
    global slots, _lock
    _threads.clear()
    slots, _lock = Slots(), threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forget)
