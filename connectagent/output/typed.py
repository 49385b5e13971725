"""What somebody types at the terminal: lines that were there before a question are no answers to it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib import import_module
from typing import TextIO

_QUIET_S = 0.05  # without a line for so long, a paste has arrived whole
_state = {"hidden": False}  # whether what is typed is hidden while nothing is asked
_LONGEST_S = 2.0  # how long a paste is waited for
_asking = threading.RLock()
_for_others: ContextVar[bool] = ContextVar("connectagent_for_others", default=False)


@contextmanager
def unattended() -> Iterator[None]:
    """Ask nobody meanwhile in this context, and in threads that copy it: turns of somebody who sees no terminal here.

    A server or a worker takes turns so. A question at its terminal would let a client wait who knows nothing of it.
    """
    before = _for_others.set(True)
    try:
        yield
    finally:
        _for_others.reset(before)


def can_ask() -> bool:
    """Whether somebody can be asked here: there is a terminal, and the turn is of who sits there."""
    return not _for_others.get() and _is_terminal(sys.stdin) and _is_terminal(sys.stderr)


def _is_terminal(file: TextIO | None) -> bool:
    try:
        return file is not None and file.isatty()
    except (AttributeError, ValueError):  # it is another object, or closed
        return False


@contextmanager
def one_question() -> Iterator[None]:
    """Ask one question at a time: agents in threads share the terminal, and an answer must be to what was shown."""
    with _asking:
        yield


def forget_typed() -> None:
    """Forget what was typed or pasted so far: call it right before a question is shown.

    A paste that is still arriving is waited for. What is typed after it is shown. Without a terminal nothing happens.
    """
    if _state["hidden"]:
        _echo(True)
    with suppress(ImportError, OSError, ValueError, AttributeError):  # there is no stdin, or it is closed
        if sys.stdin.isatty():
            _forget_windows() if sys.platform == "win32" else _forget_posix(sys.stdin.fileno())


def hide_typed() -> None:
    """Do not show what is typed from now on, except into questions: it would stand in what is drawn."""
    _state["hidden"] = True
    _echo(False)


def show_typed() -> None:
    """Show again what is typed."""
    if _state["hidden"]:
        _state["hidden"] = False
        _echo(True)


@contextmanager
def shown() -> Iterator[None]:
    """Show what is typed meanwhile."""
    hidden = _state["hidden"]
    if hidden:
        _echo(True)
    try:
        yield
    finally:
        if hidden:
            _echo(False)


def _echo(shown: bool) -> None:
    with suppress(ImportError, OSError, ValueError, AttributeError):
        import termios

        if sys.stdin.isatty():
            modes = termios.tcgetattr(sys.stdin)
            modes[3] = modes[3] | termios.ECHO if shown else modes[3] & ~termios.ECHO
            termios.tcsetattr(sys.stdin, termios.TCSANOW, modes)


def _forget_posix(terminal: int) -> None:
    import select
    import termios

    until = time.monotonic() + _LONGEST_S
    termios.tcflush(terminal, termios.TCIFLUSH)
    while time.monotonic() < until and select.select([terminal], [], [], _QUIET_S)[0]:
        termios.tcflush(terminal, termios.TCIFLUSH)
    termios.tcflush(terminal, termios.TCIFLUSH)  # of a line without its end, `select` says nothing


def _forget_windows() -> None:
    msvcrt = import_module("msvcrt")
    until = time.monotonic() + _LONGEST_S
    quiet = time.monotonic() + _QUIET_S
    while time.monotonic() < min(until, quiet):
        if msvcrt.kbhit():
            msvcrt.getwch()
            quiet = time.monotonic() + _QUIET_S
        else:
            time.sleep(_QUIET_S / 5)
