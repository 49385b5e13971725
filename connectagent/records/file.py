"""The file of a record: one process writes it, in whole lines, which interruptions do not tear."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable
from io import BufferedReader, FileIO
from pathlib import Path

from connectagent.errors import ConfigError, SessionBusy
from connectagent.records.disk import read_at, to_disk
from connectagent.records.locks import lock_to_write
from connectagent.records.store import Kept
from connectagent.settings import enabled

FORMAT = 2
"""The format of the records that this version writes."""

_MOST_HEAD = 1 << 22  # bytes of a head with a long system prompt

BETWEEN_TURNS = "between_turns"
"""The status of an item for what `execute_tool` did outside of turns."""

INCOMPLETE = ".incomplete.yaml"
"""The ending of a record's name whose session was not recorded to its end: the disk was full or failed."""


_FORMAT = re.compile(rb"format: (\d{1,9})\n")
_VERSION = re.compile(rb"^connectagent: \"?([^\"\n]*)", re.MULTILINE)


def newer_format(head: bytes) -> str | None:
    """The version of connectagent that wrote a record in a later format than this one knows; None of a known format.

    Args:
        head: how the record begins.
    """
    match = _FORMAT.match(head)
    if match is None or int(match[1]) <= FORMAT:
        return None
    version = _VERSION.search(head)
    return version[1].decode("utf-8", "replace")[:40] if version else "?"


def refuse_newer(file: BufferedReader, path: str | os.PathLike[str]) -> None:
    """Refuse a record in a later format; what is read of the file stays to be read.

    Raises:
        ConfigError: it is in a later format.
    """
    if (version := newer_format(file.peek(1 << 12)[: 1 << 12])) is not None:
        raise ConfigError(f"{path}: written by connectagent {version}; upgrade: pip install -U connectagent")


def open_to_read(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a record to read, if it is a regular file: opening a pipe would wait for its other end.

    Raises:
        OSError: it cannot be opened.
        ConfigError: it is no regular file.
    """
    return open(path, "rb", opener=_open_regular)  # which owns the descriptor: Ctrl-C leaves nobody to close it twice


def _open_regular(path: str, flags: int) -> int:
    fd = os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConfigError(f"{path}: not a record: it is no regular file")
    return fd


def open_to_append(path: str | os.PathLike[str], flags: int = os.O_RDWR) -> int:
    """Open a file to append to it. Links, which may lead anywhere, and pipes are refused.

    Raises:
        OSError: it is a link or a pipe, or cannot be opened.
    """
    safely = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        if not hasattr(os, "O_NOFOLLOW") and os.path.islink(path):
            raise OSError(errno.ELOOP, "")
        fd = os.open(path, flags | os.O_APPEND | safely, 0o600)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe that nobody reads
            error = OSError(errno.EINVAL, "it is no regular file", str(path))
        elif error.errno == errno.ELOOP:
            error = OSError(errno.ELOOP, "it is a link, which is not followed", str(path))
        raise error from None
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return fd


class RecordFile:
    """The file of one session, appended to in whole lines.

    Ctrl-C may come after any step, so the file's size shows how much of a write has reached it. An interrupted write
    is completed at once, or with the next one.
    """

    def __init__(self, path: Path, head: bytes, synced: bool) -> None:
        self.path = path
        self.first: Callable[[], bytes] | None = None  # makes what is to be written before the next lines
        self.process = os.getpid()
        self._synced = synced
        self.pending = (0, head)  # the position, and the data that may not be in the file yet
        self._torn = b""  # of which a failed write may have left a beginning in the file
        self._whole = bool(head)  # else the file's last line may be torn
        self._open_file: FileIO | None = None
        self.kept = False  # whether it stays open and locked between writes: see `Held`
        self.elsewhere: Kept | None = None  # the store that has it too
        self.behind: OSError | None = None  # why the file lacks lines that the store has: it gets them when it is held

    def append(self, data: bytes) -> None:
        """Write lines. Those that cannot be written wait, and are written before the next ones.

        Raises:
            OSError: they cannot be written.
            SessionBusy: another agent has written to the file.
        """
        if os.getpid() != self.process:
            return  # a fork inside a turn: the file is the parent's
        data = data if self.first is None else self.first() + data
        try:
            fd, status = self._opened()
        except OSError:
            position, queued = self.pending
            self.pending, self.first = (position, queued + data), None
            raise
        position, queued = self.pending
        at_end = not (queued or self._torn or self.behind)
        pending = (status.st_size if at_end else position, queued + data)
        try:
            self.pending, self.first = pending, None  # no Ctrl-C comes between
            self._flush(fd, status)
        except KeyboardInterrupt:
            self.pending, self.first = pending, None
            self._flush(fd)
            raise

    def _opened(self) -> tuple[int, os.stat_result]:
        """The open file, and what it is now."""
        if self._open_file is None or self._open_file.closed:
            self.open()
        assert self._open_file is not None
        position, queued = self.pending
        fd = self._open_file.fileno()
        status = os.fstat(fd)
        if status.st_size > position + len(self._torn or queued):  # where locks are not shared, as between two mounts
            raise SessionBusy(f"{self.path}: another agent has gone on with this session, so this one stops")
        return fd, status

    def complete(self) -> None:
        """Write the lines that wait.

        Raises:
            OSError: they cannot be written yet.
            SessionBusy: another agent has written to the file.
        """
        if self.pending[1] or self._torn:
            self._flush(*self._opened())

    def replace_waiting(self, waited: int, data: bytes) -> None:
        """Let other lines wait in place of the last ones that could not be written.

        Args:
            waited: how many bytes waited before those.
            data: the lines.
        """
        position, queued = self.pending
        self.pending = (position, queued[:waited] + data)

    def forget(self, waited: int, first: Callable[[], bytes] | None) -> None:
        """Let the last lines, which could not be written, not wait.

        Args:
            waited: how many bytes waited before those.
            first: `first` as it was before those.
        """
        self.replace_waiting(waited, b"")
        self.first = first

    def begin(self, head: bytes) -> None:
        """Begin with this head in place of what the file has."""
        assert self._open_file is not None
        os.ftruncate(self._open_file.fileno(), 0)
        self.pending = (0, head)

    @property
    def has_turns(self) -> bool:
        """Whether the open file has a whole head; a kill may have torn it."""
        assert self._open_file is not None
        return b"\nturns:\n" in read_at(self._open_file.fileno(), _MOST_HEAD, 0)

    def open(self) -> None:
        """Open and lock the file.

        Raises:
            OSError: another process has it, or has written to it since, or it cannot be opened.
        """
        # A FileIO is closed with its last reference: Ctrl-C leaves no lock behind.
        file = FileIO(self.path, "r+", opener=lambda path, flags: open_to_append(path))
        try:
            if not lock_to_write(file.fileno()):
                raise OSError(errno.EAGAIN, "another agent is writing it", str(self.path))
            if self._whole:
                self._refuse_others(file.fileno())
            else:
                _drop_torn_line(file.fileno())
                self.pending = (os.fstat(file.fileno()).st_size, self.pending[1])
            self._open_file, self._whole = file, True
        except BaseException:
            file.close()
            raise

    def fetched(self, elsewhere: Kept) -> None:
        """Write to this store too, from which the open file has just got what it has."""
        assert self._open_file is not None
        self.pending, self.elsewhere = (os.fstat(self._open_file.fileno()).st_size, b""), elsewhere

    def _refuse_others(self, fd: int) -> None:
        """Refuse a file that is not as this process left it: another process has continued the session."""
        position, queued = self.pending
        more = os.fstat(fd).st_size - position
        ours = self._torn or queued
        if more > len(ours) or (more > 0 and read_at(fd, more, position) != ours[:more]):
            raise OSError(errno.ESTALE, "another agent has written to it since", str(self.path))
        if self.elsewhere is not None and self.elsewhere.size() != position:
            raise OSError(errno.ESTALE, "another machine has gone on with it", str(self.path))

    def _flush(self, fd: int, status: os.stat_result | None = None) -> None:
        """Write what is pending; `status`: of the file now, if it is known. Each system call lets other threads in."""
        position, data = self.pending
        if self.elsewhere is None:
            self._to_file(fd, status)
        elif data:
            self.elsewhere.append(position, data)
            try:
                if self.behind is None:
                    self._to_file(fd, status)
            except OSError as error:  # nothing is lost
                self.behind = error
        self.pending = (position + len(data), b"")

    def _to_file(self, fd: int, status: os.stat_result | None) -> None:
        position, data = self.pending
        if self._torn:
            try:
                os.ftruncate(fd, position)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self.path)) from None
            self._torn = b""
            status = None
        left = len(data) + 1
        while True:
            status = status or os.fstat(fd)
            if not status.st_nlink and not self.path.exists():
                raise FileNotFoundError(2, "it was removed", str(self.path))
            rest = memoryview(data)[max(0, status.st_size - position) :]
            if not rest:
                break
            if len(rest) >= left:  # else this would go on for ever
                raise OSError(5, "something else changes it", str(self.path))
            left = len(rest)
            try:
                if os.write(fd, rest) == len(rest):
                    break
            except OSError as error:
                raise self._untorn(fd, error) from None
            status = None
        if self._synced:
            try:
                to_disk(fd)
            except OSError as error:  # what does not get there is written again: a later sync would not tell
                raise self._untorn(fd, error) from None

    def _untorn(self, fd: int, error: OSError) -> OSError:
        """Remove what a failed write has left in the file, now or with the next write; the error to raise."""
        position, data = self.pending
        try:
            os.ftruncate(fd, position)
        except OSError:
            self._torn = data
        return OSError(error.errno, error.strerror, str(self.path))

    def give_up(self) -> None:
        """Rename the file: what follows is not recorded."""
        if self._open_file is not None and not self._open_file.closed and not self.path.name.endswith(INCOMPLETE):
            path = self.path.with_name(self.path.name.removesuffix(".yaml") + INCOMPLETE)
            if os.name == "nt":  # where a file that is open cannot be renamed
                self._open_file.close()
            with contextlib.suppress(OSError):
                os.rename(self.path, path)
                self.path = path

    def close(self) -> None:
        """Close the descriptor between turns: thousands of agents may be alive."""
        if self._open_file is not None and not self.kept:
            self._open_file.close()


class Held:
    """A record that was locked before it was read, so that only this process writes it."""

    def __init__(self, file: RecordFile) -> None:
        self.file = file
        file.kept = True

    def close(self) -> None:
        """Release the lock."""
        self.file.kept = False
        self.file.close()


def hold(path: Path, elsewhere: Kept | None = None) -> Held:
    """Lock a record.

    Args:
        path: the file.
        elsewhere: the store that has it too; each gets what only the other has.

    Raises:
        SessionBusy: another agent has it.
        OSError: it cannot be opened.
        ConfigError: it has lines that the store lacks, which has others.
    """
    file = RecordFile(path, b"", synced=enabled("fsync"))
    held = hold_file(file)
    try:
        if elsewhere is not None:
            elsewhere.fetch(file.has_turns)
            file.fetched(elsewhere)
        return held
    except BaseException:
        held.close()
        raise


def hold_file(file: RecordFile) -> Held:
    """Lock a record that this process has written.

    Raises:
        SessionBusy: another agent has it.
        OSError: it cannot be opened, or another agent has written to it since.
    """
    try:
        file.open()
    except OSError as error:
        if error.errno != errno.EAGAIN:
            raise
        raise SessionBusy(
            f"{file.path} is being written by a running agent; wait for it, or resume with fork=True"
        ) from None
    return Held(file)


def _drop_torn_line(fd: int) -> None:
    """Remove a last line that a kill has torn."""
    end = os.fstat(fd).st_size
    while end:
        start = max(0, end - 65536)
        newline = read_at(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return os.ftruncate(fd, start + newline + 1)
        end = start
