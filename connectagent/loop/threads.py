"""Threads for turns that are awaited, and for what blocks in them; and who of many turns computes.

An event loop stands still while it starts threads, or while many threads compute. So one thread starts the others,
they are used again, and a turn computes only while it holds the slot. Python's own lock lets one thread compute at a
time anyway, but it changes hands at each system call: with a hundred turns at once that costs a fifth of their time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from connectagent.tools import waits

IDLE_S = 5.0  # how long a thread waits for more work before it ends
PATIENCE_S = 0.02  # who keeps the slot longer blocks in code of others, and others may compute beside it

Work = Callable[[], None]


class Slot:
    """The right to compute, which one thread has at a time, and gives up in each wait.

    Whoever keeps it longer than `PATIENCE_S` blocks in code of others; the others then compute without it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._taken = self._waiting = 0  # how often it was taken; how many wait, about

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *raised: object) -> None:
        self.give_up()

    def take(self, wait: bool = True) -> bool:
        """Wait for the slot; False if this thread has it, or goes on without it."""
        me = threading.get_ident()
        if self._holder == me:
            return False
        if not self._lock.acquire(blocking=False) and not (wait and self._waited()):
            return False
        self._holder = me
        self._taken += 1
        return True

    def _waited(self) -> bool:
        """Wait until the slot is free; False if it does not change hands."""
        self._waiting += 1
        try:
            while True:
                taken = self._taken
                if waits.take(self._lock, PATIENCE_S * (1 + max(self._waiting, 0) / 8)):
                    return True
                if taken == self._taken:
                    return False
        finally:
            self._waiting -= 1

    def give_up(self) -> bool:
        """Give this thread's slot up; False if it does not have it."""
        if self._holder != threading.get_ident():
            return False
        self._holder = None
        self._lock.release()
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
slot = Slot()


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
    global slot, _lock
    _threads.clear()
    slot, _lock = Slot(), threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forget)
