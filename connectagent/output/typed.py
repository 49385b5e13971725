"""What somebody types at the terminal: lines that were there before a question are no answers to it."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from importlib import import_module

_QUIET_S = 0.05  # without a line for so long, a paste has arrived whole
_LONGEST_S = 2.0  # how long a paste is waited for


def forget_typed() -> None:
    """Forget what was typed or pasted so far: call it right before a question is shown.

    A paste that is still arriving is waited for. Without a terminal nothing happens.
    """
    with suppress(ImportError, OSError, ValueError, AttributeError):  # there is no stdin, or it is closed
        if sys.stdin.isatty():
            _forget_windows() if sys.platform == "win32" else _forget_posix(sys.stdin.fileno())


def _forget_posix(terminal: int) -> None:
    import select
    import termios

    until = time.monotonic() + _LONGEST_S
    termios.tcflush(terminal, termios.TCIFLUSH)
    while time.monotonic() < until and select.select([terminal], [], [], _QUIET_S)[0]:
        termios.tcflush(terminal, termios.TCIFLUSH)


def _forget_windows() -> None:
    msvcrt = import_module("msvcrt")
    while msvcrt.kbhit():
        msvcrt.getwch()
