"""Terminals for tests: one that this module draws itself, and tmux. Both show a program's screen as lines of text."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
import unicodedata
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KEYS = {"Enter": "\r", "C-c": "\x03", "C-d": "\x04", "Tab": "\t", "M-Enter": "\x1b\r", "Up": "\x1b[A", "Escape": "\x1b"}
KINDS = ("pty", "tmux")


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """What a program of a test sees: no keys, a home of its own."""
    path = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([os.environ.get("STUB", ""), str(ROOT)])}
    return {**path, "HOME": str(folder), "LANG": "C.UTF-8", **variables}


def terminal(kind: str, folder: Path, *arguments: str, width: int = 80, **variables: str) -> Terminal:
    """A terminal in which `connectagent` runs."""
    if kind == "tmux" and shutil.which("tmux") is None:
        pytest.skip("tmux is not installed: apt-get install tmux")
    made = Tmux if kind == "tmux" else Pty
    return made(folder, [sys.executable, "-m", "connectagent", *arguments], width, environment(folder, **variables))


class Terminal(ABC):
    """A program at a terminal."""

    @abstractmethod
    def lines(self) -> list[str]:
        """What it shows, with what has left the screen at its top."""

    @abstractmethod
    def press(self, *keys: str) -> None:
        """Press keys, by name or as text."""

    @abstractmethod
    def paste(self, text: str) -> None:
        """Paste a text, as terminals do for programs that tell pastes from keys."""

    @abstractmethod
    def ended(self) -> int:
        """Wait for the end; the exit code."""

    @abstractmethod
    def close(self) -> None:
        """End the program, whatever it does."""

    def text(self) -> str:
        """All lines as one text."""
        return "\n".join(self.lines())

    def until(self, text: str, times: int = 1, timeout_s: float = 10) -> str:
        """Wait until a text is shown so many times; what is shown."""
        end = time.monotonic() + timeout_s
        while (shown := self.text()).count(text) < times:
            assert time.monotonic() < end, f"{text!r} is not {times} times in\n{shown}"
            time.sleep(0.03)
        return shown

    def until_prompt(self, timeout_s: float = 10) -> list[str]:
        """Wait until the chat waits for a message, and nothing more comes; what is shown."""
        end = time.monotonic() + timeout_s
        while True:
            before = self.lines()
            time.sleep(0.15)
            if before and before[-1] == ">" and self.lines() == before:
                return before
            assert time.monotonic() < end, "\n".join(before)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class Pty(Terminal):
    """A pseudo-terminal, drawn here: what programs of today's tests write, no more."""

    def __init__(self, folder: Path, command: list[str], width: int, env: dict[str, str]) -> None:
        self.width, self.row, self.column = width, 0, 0
        self.cells: list[list[str]] = [[]]
        self._rest = b""
        self._code: int | None = None
        self.raw = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execve(command[0], command, {**env, "TERM": "xterm-256color"})
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))

    def press(self, *keys: str) -> None:
        for key in keys:
            os.write(self.fd, KEYS.get(key, key).encode())

    def paste(self, text: str) -> None:
        os.write(self.fd, f"\x1b[200~{text}\x1b[201~".encode())

    def lines(self) -> list[str]:
        while select.select([self.fd], [], [], 0)[0]:
            try:
                piece = os.read(self.fd, 65536)
            except OSError:  # Linux tells the end so
                break
            if not piece:
                break
            self._rest += piece
        with contextlib.suppress(UnicodeDecodeError):
            text, self._rest = self._rest.decode(), b""
            self.raw += text
            self._draw(text)
        shown = ["".join(row).rstrip() for row in self.cells]
        while shown and not shown[-1]:
            shown.pop()
        return shown

    def _draw(self, text: str) -> None:
        for found in re.finditer(r"\x1b\[([\d;?]*)([A-Za-z])|\x1b[=>78]|[\s\S]", text):
            if found[2]:
                self._obey(found[1], found[2])
            elif not found[0].startswith("\x1b"):
                self._put(found[0])

    def _put(self, character: str) -> None:
        if character == "\n":
            self.row += 1
        elif character == "\r":
            self.column = 0
        elif character == "\b":
            self.column = max(0, self.column - 1)
        elif character.isprintable() and not unicodedata.combining(character):
            if self.column >= self.width:
                self.row, self.column = self.row + 1, 0
            self._row()[self.column] = character
            self.column += 1
        self._row()

    def _obey(self, given: str, what: str) -> None:
        number = int(given) if given.isdecimal() else 1
        if what == "A":
            self.row = max(0, self.row - number)
        elif what == "B":
            self.row += number
        elif what == "C":
            self.column += number
        elif what == "D":
            self.column = max(0, self.column - number)
        elif what == "K" and given == "2":
            self._row()[:] = []
        elif what == "K":
            del self._row()[self.column :]
        elif what == "J":
            del self._row()[self.column :]
            del self.cells[self.row + 1 :]
        else:
            assert what in "mhln", f"the test's terminal does not know {given}{what}"
        self._row()

    def _row(self) -> list[str]:
        """The cells of the current line, with room for the next one."""
        self.cells += [[] for _ in range(self.row + 1 - len(self.cells))]
        row = self.cells[self.row]
        row += [" "] * (self.column + 1 - len(row))
        return row

    def ended(self) -> int:
        end = time.monotonic() + 20
        while not (done := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.lines()
            assert time.monotonic() < end, self.text()
            time.sleep(0.02)
        self.lines()
        self._code = os.waitstatus_to_exitcode(done[1])
        return self._code

    def close(self) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


class Tmux(Terminal):
    """A pane of tmux, in a server of its own."""

    def __init__(self, folder: Path, command: list[str], width: int, env: dict[str, str]) -> None:
        self.socket = str(folder / "tmux.socket")
        self.code = folder / "exit-code"
        self.code.unlink(missing_ok=True)
        wrapper = f'trap : INT; "$@"; echo $? > {self.code}; sleep 60'
        size = ["-x", str(width), "-y", "50"]
        start = ["-f", "/dev/null", "new-session", "-d", *size, "-c", str(folder), "sh", "-c", wrapper, "sh", *command]
        subprocess.run(["tmux", "-S", self.socket, *start], env=env, check=True, timeout=20)

    def _tmux(self, *arguments: str, given: str | None = None) -> str:
        command = ["tmux", "-S", self.socket, *arguments]
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=20).stdout

    def press(self, *keys: str) -> None:
        for key in keys:
            self._tmux("send-keys", *([key] if key in KEYS else ["-l", key]))

    def paste(self, text: str) -> None:
        self._tmux("load-buffer", "-", given=text)
        self._tmux("paste-buffer", "-p", "-r")

    def resize(self, width: int) -> None:
        """Make the pane wider or narrower; tmux breaks its lines anew at once, and tells the program a moment later."""
        self._tmux("resize-window", "-x", str(width), "-y", "50")

    def lines(self) -> list[str]:
        return self._tmux("capture-pane", "-p", "-S", "-1000").rstrip("\n").split("\n")

    def ended(self) -> int:
        end = time.monotonic() + 20
        while not (self.code.exists() and self.code.read_text().strip()):
            assert time.monotonic() < end, self.text()
            time.sleep(0.03)
        return int(self.code.read_text())

    def close(self) -> None:
        self._tmux("kill-server")
