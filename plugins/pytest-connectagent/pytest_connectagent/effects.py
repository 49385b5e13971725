"""What handlers do outside of their agent: output, files, programs, connections, threads; and how long they run."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from pytest_connectagent.faults import By, Fault
from pytest_connectagent.paths import SECRET

_MANY = 10  # of some 200 agents: fewer are made once for all of them
_LONGEST = 10_000_000  # bytes of a file that is searched for secrets
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_AUDITED = {
    "os.mkdir": "made the folder {0}",
    "os.remove": "removed {0}",
    "os.rename": "renamed {0}",
    "os.rmdir": "removed {0}",
    "os.system": "ran the program {0}",
    "os.posix_spawn": "ran the program {0}",
    "os.truncate": "cut {0}",
    "shutil.rmtree": "removed {0}",
    "socket.connect": "connected to {1}",
    "sqlite3.connect": "opened the database {0}",
    "subprocess.Popen": "ran the program {0}",
}


class Held(NamedTuple):
    """A handler that is held against the rules while it runs.

    Args:
        by: the handler.
        path: the path on which it runs.
        wrote: takes what it does outside: the kind of change or rule, the handler, and what it did.
    """

    by: By
    path: str
    wrote: Callable[[str, By, str], None]


class _Begun(NamedTuple):
    """A handler that has begun, and what there was before."""

    held: Held
    started: float
    outer: _Begun | None
    free_file: int
    threads: int


class Effects:
    """Watches handlers from the outside, in all threads, while it is entered.

    Args:
        limit_s: how long a handler may run; None for any time.

    Attributes:
        files: the plugin's own files, to name the line that hangs.
        auditing: whether what handlers write counts; not where the agent itself writes its record.
    """

    def __init__(self, limit_s: float | None) -> None:
        self.limit_s = limit_s
        self.files: set[str] = set()
        self.auditing = True
        self._running: dict[int, _Begun] = {}  # by thread
        self._turn: tuple[float, str] | None = None  # since when the turn runs, and its path
        self._opened: dict[tuple[Any, ...], tuple[Held, int]] = {}  # the handlers that left a file open, how often
        self._written: dict[str, Held] = {}
        self._started: dict[threading.Thread, Held] = {}
        self._before = set(threading.enumerate())
        self._free_file = _free_file()

    def __enter__(self) -> Effects:
        _audit()
        _active.append(self)
        self._streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = _Tee(self, sys.stdout, True), _Tee(self, sys.stderr, False)
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout, sys.stderr = self._streams
        _active.remove(self)

    # -- the handlers --------------------------------------------------------------------------

    def begin(self, held: Held) -> _Begun:
        """A handler begins in this thread."""
        ident = threading.get_ident()
        threads = threading.active_count()
        begun = _Begun(held, time.monotonic(), self._running.get(ident), _free_file(), threads)
        self._running[ident] = begun
        return begun

    def end(self, begun: _Begun) -> None:
        """A handler, or one half of it, is over."""
        ident = threading.get_ident()
        if begun.outer is None:
            self._running.pop(ident, None)
        else:
            self._running[ident] = begun.outer._replace(started=time.monotonic())
        if _free_file() > begun.free_file:
            key = (begun.held.by["file"], begun.held.by["line"], begun.held.by["hook"])
            self._opened[key] = (begun.held, self._opened.get(key, (None, 0))[1] + 1)
        if threading.active_count() > begun.threads:
            for thread in set(threading.enumerate()) - self._before - self._started.keys():
                self._started[thread] = begun.held

    def turn(self, path: str | None) -> None:
        """A turn begins on this path; None: it is over."""
        self._turn = None if path is None else (time.monotonic(), path)

    def printed(self, text: str, is_output: bool) -> None:
        """Something is written to the terminal."""
        begun = self._running.get(threading.get_ident())
        if begun is None or not text.strip():
            return
        if is_output:
            begun.held.wrote("terminal", begun.held.by, f"printed {text.strip()!r:.80} though the agent is quiet")
        if SECRET in text:
            begun.held.wrote("secrets", begun.held.by, f"printed a secret of the conversation: {_MASK}")

    def audited(self, event: str, args: tuple[Any, ...]) -> None:
        """Python announces something that code does outside of the process."""
        begun = self._running.get(threading.get_ident())
        if begun is None or not self.auditing:
            return
        if event != "open":
            words = _AUDITED[event].format(*map(_named, args))
            begun.held.wrote("outside", begun.held.by, words)
        elif isinstance(args[0], str | bytes | os.PathLike) and isinstance(args[2], int) and args[2] & _WRITING:
            path = os.fsdecode(args[0])
            if "__pycache__" not in path and path != os.devnull:
                self._written.setdefault(os.path.abspath(path), begun.held)
                begun.held.wrote("outside", begun.held.by, f"opened {path!r} for writing")

    # -- the judgements ------------------------------------------------------------------------

    def hanging(self) -> Fault | None:
        """The handler that has run for too long, or else the turn."""
        if self.limit_s is None:
            return None
        now = time.monotonic()
        for ident, begun in list(self._running.items()):
            if now - begun.started > self.limit_s:
                problem = f"has run for more than {self.limit_s:g} s{self._place(ident)}; {_MEANT}"
                return Fault("hangs", begun.held.by, begun.held.path, problem)
        turn = self._turn
        if turn is not None and now - turn[0] > 2 * self.limit_s:
            places = (self._place(ident) for ident in list(sys._current_frames()))
            problem = f"the turn has run for more than {2 * self.limit_s:g} s{next(filter(None, places), '')}; {_MEANT}"
            return Fault("hangs", None, turn[1], problem)
        return None

    def _place(self, ident: int) -> str:
        """The innermost line of the plugin that runs in a thread."""
        frame: Any = sys._current_frames().get(ident)
        while frame is not None and frame.f_code.co_filename not in self.files:
            frame = frame.f_back
        return "" if frame is None else f", in {frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"

    def left_behind(self) -> list[Fault]:
        """What the agents have left behind that are gone."""
        if self._opened or self._started or self._written:
            gc.collect()  # what only cycles hold is not left; it takes 0.3 s in a large process
        return [*self._files_left(), *self._threads_left(), *self._secrets_left()]

    def _files_left(self) -> list[Fault]:
        left = _free_file() - self._free_file
        held, times = max(self._opened.values(), key=lambda one: one[1], default=(None, 0))
        if held is None or min(left, times) < _MANY:
            return []
        problem = f"left files open: {left} after all agents were closed; close them, or in on_agent_closed(agent)"
        return [Fault("leaks", held.by, held.path, problem)]

    def _threads_left(self) -> list[Fault]:
        until = time.monotonic() + 1
        for thread in self._started:
            thread.join(max(0.0, min(0.1, until - time.monotonic())))
        left = [held for thread, held in self._started.items() if thread.is_alive()]
        if len(left) < _MANY:
            return []
        problem = f"left {len(left)} threads running after all agents were closed; end them in on_agent_closed(agent)"
        return [Fault("leaks", left[0].by, left[0].path, problem)]

    def _secrets_left(self) -> list[Fault]:
        found = []
        for path, held in self._written.items():
            with contextlib.suppress(OSError), open(path, "rb") as file:
                if SECRET.encode() in file.read(_LONGEST):
                    found.append(Fault("secrets", held.by, held.path, f"wrote a secret to {path!r}: {_MASK}"))
        return found


_MASK = "write what connectagent.output.masking.current().text(...) leaves of it"
_MEANT = "if it may take longer: check(..., limit_s=...)"
_active: list[Effects] = []


def _named(argument: Any) -> str:
    return f"{os.fsdecode(argument) if isinstance(argument, os.PathLike) else argument!r:.120}"


def _free_file() -> int:
    """The lowest free file descriptor: it rises as files and sockets are left open."""
    number = os.open(os.devnull, os.O_RDONLY)
    os.close(number)
    return number


def _audit() -> None:
    """Listen to what Python announces, from the first check on: an audit hook cannot be removed."""
    if not _listening:
        _listening.append(True)
        sys.addaudithook(_audited)


_listening: list[bool] = []


def _audited(event: str, args: tuple[Any, ...]) -> None:
    if _active and (event == "open" or event in _AUDITED):
        for effects in _active:
            effects.audited(event, args)


class _Tee:
    """A stream that tells what is written to it."""

    def __init__(self, effects: Effects, stream: Any, is_output: bool) -> None:
        self._effects, self._stream, self._is_output = effects, stream, is_output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> Any:
        self._effects.printed(text, self._is_output)
        return self._stream.write(text)
