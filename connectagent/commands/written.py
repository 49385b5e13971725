"""Files that commands write their results into: what cannot be written is said before anything is spent."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from io import FileIO
from pathlib import Path

import click

from connectagent.errors import ConfigError
from connectagent.records.locks import lock

_LEAST_FREE = 2**16  # bytes on a disk; of fewer, the first results would fail, after they were paid


def check_written(paths: dict[str, str | None], read: list[str]) -> None:
    """Refuse files that cannot be written, or that the command reads.

    Args:
        paths: the files, by option; None where there is none.
        read: the files that the command reads.

    Raises:
        ConfigError: one cannot be used.
    """
    given = {option: path for option, path in paths.items() if path is not None}
    for option, path in given.items():
        there = Path(path) if Path(path).exists() else Path(path).parent
        if not path or Path(path).is_dir() or not os.access(there, os.W_OK):
            raise ConfigError(f"{option} {path!r} cannot be written; name a file in a folder that is there")
        others = [*read, *(other for name, other in given.items() if name != option)]
        if any(_is_same(path, other) for other in others):
            raise ConfigError(f"{option} {path!r} would replace a file that this command needs; name another one")
        if not _is_other(path) and (disk := shutil.disk_usage(there)).total and disk.free < _LEAST_FREE:
            raise ConfigError(f"{option} {path!r} cannot be written: the disk is full; free some, or name another file")


def _is_other(path: str) -> bool:
    """Whether it is a device, a pipe or the like."""
    return os.path.exists(path) and not os.path.isfile(path)


def _is_same(path: str, other: str) -> bool:
    if _is_other(path):
        return False
    try:
        return os.path.samefile(path, other)
    except OSError:
        return os.path.abspath(path) == os.path.abspath(other)


def write_text(option: str, path: str, text: str) -> None:
    """Write a file.

    Raises:
        ConfigError: it cannot be written.
    """
    with _said(option, path):
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")


@contextlib.contextmanager
def lines_into(option: str, path: str | None) -> Iterator[Callable[[str], object]]:
    """A function that writes a line, into a file that is begun anew; on standard output for None.

    A file that has lines keeps them until there are as many new ones, or the block has ended: Ctrl-C before that leaves
    it as it was. From then on, and into a new file, each line is written at once.

    Raises:
        ConfigError: the file cannot be written, or another command is writing it.
    """
    if path is None:
        yield click.echo  # above the line that shows how far the run is
        return
    with _said(option, path):
        file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed below, which cannot fail: it holds nothing back
    with file:
        if os.path.isfile(path) and lock(file.fileno()) is False:
            raise ConfigError(f"{option} {path!r} is written by another command; wait for it, or name another")
        anew = _Anew(file, partial(_said, option, path), _lines_in(path))
        try:
            yield anew.write
            anew.begin()
        finally:
            if anew.held is not None:
                click.echo(f"{option} {path!r} is as it was before; the same command writes all of it", err=True)


def _lines_in(path: str) -> int:
    with contextlib.suppress(OSError):  # it may be written, and not read
        if not _is_other(path):
            with open(path, "rb") as file:
                return sum(1 for _ in file)
    return 0


class _Anew:
    """A file that is begun anew once there are as many lines for it as it has.

    Args:
        file: the file, to append to.
        said: what says which file cannot be written.
        lines: how many lines it has.

    Attributes:
        held: the lines that wait; None once the file is begun.
    """

    def __init__(self, file: FileIO, said: Callable[[], AbstractContextManager[None]], lines: int) -> None:
        self._file, self._said, self._lines = file, said, lines
        self.held: list[bytes] | None = [] if lines else None

    def write(self, line: str) -> None:
        """Write a line, at once or later."""
        data = f"{line}\n".encode("utf-8", "backslashreplace")  # in JSON such an escape is a half of a pair again
        if self.held is None:
            self._put(data)
            return
        self.held.append(data)
        if len(self.held) >= self._lines:
            self.begin()

    def begin(self) -> None:
        """Put the lines that wait in the place of what the file has."""
        if self.held is not None:
            held, self.held = self.held, None
            try:
                with self._said():
                    self._file.truncate(0)
            finally:  # Ctrl-C between the two would leave nothing
                self._put(b"".join(held))

    def _put(self, data: bytes) -> None:
        with self._said():
            while data:
                data = data[self._file.write(data) :]


@contextlib.contextmanager
def _said(option: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = f"{option} {path!r} cannot be written: {error.strerror}"
        raise ConfigError(f"{why}; what was recorded stays, and the same command reads it") from None
