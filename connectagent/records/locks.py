"""Locks on records: a process in a turn holds one, which ends with the process.

The system's own calls, not a library's: filelock and portalocker lock the first byte, and on Windows nobody else can
read a byte that is locked, so that no running session could be listed, shown or followed. They are right for a lock
that is a file of its own.
"""

from __future__ import annotations

import os
import time
from functools import cache
from importlib import import_module
from typing import Any

_BYTE = (1 << 31) - 2  # what is locked on Windows: behind the end of records, and as far as `msvcrt.locking` reaches
_TRIES = 10  # so often a reader looks there: another reader may hold the lock for a moment


def lock(fd: int, *, shared: bool = False) -> bool | None:
    """Lock a file for as long as this descriptor is open.

    Args:
        fd: an open file.
        shared: for a process that only checks whether another has it.

    Returns:
        False where another has it; None where files cannot be locked (some network drives).
    """
    try:
        import fcntl
    except ImportError:
        return _lock_windows(fd, _TRIES if shared else 1)
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _lock_windows(fd: int, tries: int) -> bool | None:
    """Lock a file on Windows, where a lock excludes all others."""
    try:
        msvcrt = import_module("msvcrt")
        place = os.lseek(fd, 0, os.SEEK_CUR)
    except (ImportError, OSError):
        return None
    for number in range(tries):
        try:
            os.lseek(fd, _BYTE, os.SEEK_SET)
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
            return True
        except PermissionError:
            time.sleep(0.002 if number + 1 < tries else 0)
        except OSError:
            return None
        finally:
            os.lseek(fd, place, os.SEEK_SET)
    return False


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
    """Take the writer's lock; a reader that checks it may hold it for a moment."""
    for _ in range(50):
        if lock(fd) is not False:
            return True
        time.sleep(0.01)
    return False


def owner() -> dict[str, Any]:
    """This process, as other machines know it: host, id of the boot (where the system has one) and process id."""
    return {**_machine(), "pid": os.getpid()}


def is_elsewhere(owner: object) -> bool:
    """Whether a process may be running on another host, where nobody here can see it."""
    return isinstance(owner, dict) and owner.get("host") != _machine()["host"]


@cache
def _machine() -> dict[str, Any]:
    import platform  # loaded with the first record only

    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        boot = None
    return {"host": platform.node(), "boot": boot}
