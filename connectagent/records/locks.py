"""Locks on records: a process in a turn holds one, which ends with the process."""

from __future__ import annotations

import os
import time
from functools import cache
from typing import Any


def lock(fd: int, *, shared: bool = False) -> bool | None:
    """Lock a file for as long as this descriptor is open.

    Args:
        fd: an open file.
        shared: for a process that only checks whether another has it.

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
    """Take the writer's lock; a reader that checks it may hold it for a moment."""
    for _ in range(50):
        if lock(fd) is not False:
            return True
        time.sleep(0.01)
    return False


def owner() -> dict[str, Any]:
    """This process, as other machines know it: host, id of the boot (where the system has one) and process id."""
    return {**_machine(), "pid": os.getpid()}


def is_elsewhere(owner: Any) -> bool:
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
