"""Files that commands write their results into: what cannot be written is said before anything is spent."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from connectagent.errors import ConfigError
from connectagent.records.locks import lock


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


def _is_same(path: str, other: str) -> bool:
    if os.path.exists(path) and not os.path.isfile(path):  # a device, a pipe
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
    """A function that writes a line at once, into a file that is begun anew; on standard output for None.

    Raises:
        ConfigError: the file cannot be written, or another command is writing it.
    """
    if path is None:
        yield click.echo  # above the line that shows how far the run is
        return
    with _said(option, path):
        file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed below, which cannot fail: it holds nothing back
    with file:
        if os.path.isfile(path):
            if lock(file.fileno()) is False:
                raise ConfigError(f"{option} {path!r} is written by another command; wait for it, or name another")
            file.truncate(0)

        def write(line: str) -> None:
            data = f"{line}\n".encode("utf-8", "backslashreplace")  # in JSON such an escape is a half of a pair again
            with _said(option, path):
                while data:
                    data = data[file.write(data) :]

        yield write


@contextlib.contextmanager
def _said(option: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = f"{option} {path!r} cannot be written: {error.strerror}"
        raise ConfigError(f"{why}; what was recorded stays, and the same command reads it") from None
