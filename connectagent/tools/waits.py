"""Waits of the main thread that hear Ctrl-C in time.

Python before 3.14 is deaf to it in a lock on Windows. Elsewhere it wakes a wait that has begun; where it comes just
before, or in another thread, nothing does.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

_DEAF = sys.platform == "win32" and sys.version_info < (3, 14)
_STEP_S = 0.1 if _DEAF else 1.0  # after each step, Python looks for Ctrl-C

Value = TypeVar("Value")


class Lock(Protocol):
    """A lock of `threading`."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...


def hearing(wait: Callable[[float | None], Value], timeout_s: float | None = None) -> Value:
    """Wait, in steps on the main thread, which hears Ctrl-C between them.

    Args:
        wait: waits for so many seconds, or until what it waits for comes; what it returns then is true. Else it returns
            something false, or raises `Empty`.
        timeout_s: the time in all; None for ever.
    """
    if threading.current_thread() is not threading.main_thread():
        return wait(timeout_s)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left_s = _STEP_S if deadline is None else max(deadline - time.monotonic(), 0)
        last = deadline is not None and left_s <= _STEP_S
        try:
            if (value := wait(min(left_s, _STEP_S))) or last:
                return value
        except Empty:
            if last:
                raise


def next_of(queue: SimpleQueue[Any], timeout_s: float | None = None) -> Any:
    """The next item of a queue.

    Raises:
        Empty: there is none in this time.
    """
    return hearing(lambda step_s: (queue.get(timeout=step_s),), timeout_s)[0]


def end_of(thread: threading.Thread) -> None:
    """Wait for a thread to end."""

    def ended(step_s: float | None) -> bool:
        thread.join(step_s)
        return not thread.is_alive()

    hearing(ended)


def take(lock: Lock, timeout_s: float | None = None) -> bool:
    """Take a lock; whether it could be taken in this time."""
    return hearing(lambda step_s: bool(lock.acquire(timeout=-1 if step_s is None else step_s)), timeout_s)


def holding(lock: Lock) -> Any:
    """What `with` takes to hold a lock under which code of others runs; `with lock:` is for what takes a moment."""
    return _Held(lock) if _DEAF else lock


class _Held:
    """A lock that is waited for in steps."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        take(self._lock)

    def __exit__(self, *raised: object) -> None:
        self._lock.release()
