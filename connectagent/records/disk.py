"""Reading and writing files as each system has it."""

from __future__ import annotations

import os
from pathlib import Path


def read_at(fd: int, length: int, start: int) -> bytes:
    """Bytes of an open file from a place on, without moving where it is read otherwise: `os.pread`, on Windows too."""
    if hasattr(os, "pread"):
        return os.pread(fd, length, start)
    place = os.lseek(fd, 0, os.SEEK_CUR)
    try:
        os.lseek(fd, start, os.SEEK_SET)
        return os.read(fd, length)
    finally:
        os.lseek(fd, place, os.SEEK_SET)


def to_disk(fd: int) -> None:
    """Write an open file to the disk, so that it survives a power cut.

    On macOS `fsync` leaves it in the drive's own memory: see `man 2 fsync` there.
    """
    try:
        import fcntl
    except ImportError:
        os.fsync(fd)
        return
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fsync(fd)
        return
    try:
        fcntl.fcntl(fd, full)
    except OSError:  # a file system that does not know it
        os.fsync(fd)


def folder_to_disk(folder: Path) -> None:
    """Write a folder to the disk, so that a new file in it survives a power cut; Windows does so itself."""
    if os.name == "nt":  # where folders cannot be opened
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        to_disk(fd)
    finally:
        os.close(fd)
