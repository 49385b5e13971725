"""Who writes a record: a process in a turn holds a lock on the file, which ends with the process."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from connectagent.errors import ConfigError


def lock(fd: int, *, shared: bool = False) -> bool | None:
    """Lock a file for as long as this descriptor is open.

    Args:
        fd: an open file.
        shared: for those who only ask whether another has it.

    Returns:
        False where another has it; None where files cannot be locked (Windows, some network drives).
    """
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def is_running(path: str | os.PathLike[str]) -> bool:
    """Whether a process is in a turn that writes this record.

    Raises:
        OSError: the file cannot be read.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        return lock(fd, shared=True) is False
    finally:
        os.close(fd)


def lock_to_write(fd: int) -> bool:
    """Take the writer's lock; readers that ask whether somebody writes hold it for a moment."""
    for _ in range(50):
        if lock(fd) is not False:
            return True
        time.sleep(0.01)
    return False


@contextlib.contextmanager
def held(path: Path) -> Iterator[FileIO]:
    """Hold the writer's lock on a record meanwhile, so that nobody else resumes it.

    Yields:
        The open file. Who writes the record duplicates its descriptor: another one would not share the lock.

    Raises:
        ConfigError: another process, thread or agent writes the record.
    """
    with open_to_write(path) as file:
        if not lock_to_write(file.fileno()):
            raise ConfigError(f"{path} is being written by a running agent; wait for it, or resume with fork=True")
        yield file


def open_to_write(path: Path) -> FileIO:
    """Open a record to append to it; only to read it, where it cannot be written."""
    try:
        return FileIO(path, "r+", opener=lambda path, flags: os.open(path, os.O_RDWR | os.O_APPEND))
    except OSError:  # who then writes is told so
        return FileIO(path, "r")
