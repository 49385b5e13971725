"""What runs at this moment, at the bottom of a terminal: what, for how long, and what it has cost so far.

On a terminal the lines are drawn again ten times a second, below everything else that is written. Where nobody watches,
as in a file or in CI, what takes long is written as one line, and nothing moves.
"""

from __future__ import annotations

import builtins
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from connectagent.output.rows import Row
from connectagent.output.terminal import Terminal, rows_taken
from connectagent.output.typed import shown
from connectagent.settings import enabled

TICK_S = 0.1
SHOWN_AFTER_S = 0.3  # what is over before is not worth a line that comes and goes
STARTED_AFTER_S = 2.0  # the same where the line stays
SPINNER = {True: "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", False: "-\\|/"}  # by whether the terminal shows Unicode
MOST_LINES = 8


class LiveCall:
    """One call that runs.

    Args:
        row: the line for it, from the symbol before it and the seconds that it has run for.
    """

    def __init__(self, row: Callable[[str, float], Row]) -> None:
        self.row = row
        self.started = time.monotonic()
        self.announced = False

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return time.monotonic() - self.started


class Live:
    """The lines of the calls that run, of all agents of the process.

    `begin` and `end` go around each root turn; `jobs` are added and removed in between.
    """

    def __init__(self) -> None:
        self.jobs: list[LiveCall] = []
        self.ticking: list[Callable[[], None]] = []  # what else is called with each tick, under the terminal's lock
        self._turns = 0
        self._terminal = Terminal()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._drawn: list[str] = []  # lines on the terminal now
        self._column = 0  # whether somebody's line has not ended
        self._asking = 0  # how many wait for a line that the person types
        self._ticks = 0
        self._lock = Terminal._lock

    def begin(self) -> None:
        """A root turn begins."""
        with self._lock:
            self._turns += 1
            if self._turns > 1:
                return
            self._stop = threading.Event()
            self._column = 0
            if self._moves():
                sys.stdout, sys.stderr = _Above(sys.stdout, self), _Above(sys.stderr, self)
                builtins.input = _Asking(builtins.input, self)
            name = "connectagent-live"
            given = (self._stop,)
            self._thread = threading.Thread(target=self._tick, args=given, name=name, daemon=True)
            self._thread.start()

    def end(self) -> None:
        """A root turn ends; with the last one, everything is as it was before."""
        with self._lock:
            self._turns -= 1
            if self._turns:
                return
            self._stop.set()
            self.erase()
            self.jobs.clear()
            if isinstance(sys.stdout, _Above):
                sys.stdout = sys.stdout.real
            if isinstance(sys.stderr, _Above):
                sys.stderr = sys.stderr.real
            if isinstance(builtins.input, _Asking):
                builtins.input = builtins.input.real
            thread = self._thread
            self._thread = None
        if thread is not None and thread is not threading.current_thread():
            thread.join(1)  # at the end of the process it must hold no lock of stderr

    def _moves(self) -> bool:
        """Whether lines may be drawn again: somebody watches a terminal that obeys."""
        dumb = os.environ.get("TERM") == "dumb" or bool(os.environ.get("CI")) or enabled("still")
        return not dumb and self._terminal.interactive and sys.stdout is not None

    # -- drawing -------------------------------------------------------------------------------

    def _tick(self, stop: threading.Event) -> None:
        while not stop.wait(TICK_S):
            with self._lock:
                if stop.is_set():
                    return
                self._ticks += 1
                for call in self.ticking:
                    call()
                try:
                    self._draw() if isinstance(sys.stderr, _Above) else self._announce()
                except Exception:  # the arguments of a call may change while they are shown
                    self._drawn = []

    def _draw(self) -> None:
        """Draw the lines again, unless somebody's line has not ended."""
        if self._column or self._asking:
            return
        spinner = SPINNER[self._terminal.glyphs.more == "…"]
        mark = spinner[self._ticks % len(spinner)]
        rows = [job.row(f"{mark} ", job.seconds) for job in self.jobs if job.seconds > SHOWN_AFTER_S]
        if len(rows) > MOST_LINES:
            rows[MOST_LINES - 1 :] = [Row(2, ((f"and {len(rows) - MOST_LINES + 1} more", "dim"),))]
        self._replace(self._terminal.drawn(rows).rstrip("\n") if rows else "")

    def erase(self) -> None:
        """Take the lines off the terminal."""
        self._replace("")

    def _replace(self, text: str) -> None:
        """Put a text in the place of the lines, in one write: it must not flicker."""
        rows = sum(rows_taken(line, self._terminal.width) for line in self._drawn)
        old = "\r\x1b[2K" + "\x1b[1A\x1b[2K" * (rows - 1) if rows else ""
        self._drawn = text.split("\n") if text else []
        if (old or text) and isinstance(sys.stderr, _Above):
            sys.stderr.real.write(old + text)
            sys.stderr.real.flush()

    def _announce(self) -> None:
        """Write one line for each call that takes long."""
        for job in self.jobs:
            if not job.announced and job.seconds > STARTED_AFTER_S:
                job.announced = True
                row = job.row(f"{self._terminal.glyphs.other} ", job.seconds)
                row.right = "started"
                self._terminal.show([row])

    # -- what others write ---------------------------------------------------------------------

    def written(self, file: TextIO, text: str) -> int:
        """Write somebody's text above the lines."""
        with self._lock:
            self.erase()
            count = file.write(text)
            file.flush()
            if text:
                self._column = 0 if text.endswith("\n") else 1
            return count

    @property
    def is_asking(self) -> bool:
        """Whether a person is asked for a line."""
        return bool(self._asking)

    def asking(self, wait: Callable[[], Any]) -> Any:
        """Wait for what a person types, without lines in between."""
        with self._lock:
            self.erase()
            self._asking += 1
        try:
            with shown():
                return wait()
        finally:
            with self._lock:
                self._asking -= 1
                self._column = 0


class _Above:
    """A standard stream while lines are drawn: what is written to it comes above them."""

    def __init__(self, real: TextIO, live: Live) -> None:
        self.real = real
        self._live = live

    def write(self, text: str) -> int:
        return self._live.written(self.real, text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class _Asking:
    """`input` while lines are drawn, which would be written over the question."""

    def __init__(self, real: Callable[..., str], live: Live) -> None:
        self.real = real
        self._live = live

    def __call__(self, *prompt: Any) -> str:
        return str(self._live.asking(lambda: self.real(*prompt)))


live = Live()


@contextmanager
def running(row: Callable[[str, float], Row]) -> Iterator[None]:
    """Show a call while it runs.

    Args:
        row: the line for it, from the symbol before it and the seconds that it has run for.
    """
    job = LiveCall(row)
    live.jobs.append(job)
    try:
        yield
    finally:
        with suppress(ValueError):  # Ctrl-C has ended the turn meanwhile
            live.jobs.remove(job)
