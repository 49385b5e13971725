"""Sessions in an SQLite database, which the threads and processes of one machine share."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from connectagent.errors import SessionBusy

_WAIT_S = 30.0  # for other processes that write
_OPENING = (
    # A write-ahead log needs one sync for a piece, a rollback journal three. Where the file system cannot have
    # that log, as many network drives, SQLite keeps its journal, and EXTRA makes that last too.
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = EXTRA",
    "PRAGMA fullfsync = ON",  # through the drive's own memory, on macOS
    "PRAGMA checkpoint_fullfsync = ON",
    # The table of connectagent-dbos: in its database, the sessions of its workers are there too. The pieces of a
    # session lie together, in the primary key's own tree.
    "CREATE TABLE IF NOT EXISTS connectagent_records (name VARCHAR NOT NULL, position BIGINT NOT NULL, "
    "data BLOB NOT NULL, PRIMARY KEY (name, position)) WITHOUT ROWID",
)
_END = "SELECT position + length(data) FROM connectagent_records WHERE name = ? ORDER BY position DESC LIMIT 1"
_ALL = "SELECT data FROM connectagent_records WHERE name = ? ORDER BY position"
_PIECE = "SELECT data FROM connectagent_records WHERE name = ? AND position = ?"
_NEW = "INSERT INTO connectagent_records (name, position, data) VALUES (?, ?, ?)"
_OTHERS = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_CLOSED = "it cannot be written: make it and its folder writable, or name another file"
_THEN = {
    **dict.fromkeys(_OTHERS, f"other processes have been writing for {_WAIT_S:g} s; the same call goes on later"),
    **dict.fromkeys((sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM), _CLOSED),
    sqlite3.SQLITE_FULL: "its disk is full; with more room the same call goes on",
    sqlite3.SQLITE_IOERR: "its disk is full or fails; the same call goes on when it is well",
    sqlite3.SQLITE_NOTADB: "it is no SQLite database; name one, or a file that is not there yet",
}


class SqliteStore:
    """Sessions in an SQLite database, as a `Store`: `agent.for_session(key, store=SqliteStore("sessions.db"))`.

    Threads and processes may share it, also after a fork. It travels to other processes as its path.

    Args:
        path: the file. Where it is missing it is made, for its owner only.

    Attributes:
        path: the file, absolute.

    Raises:
        OSError: its folder is missing, it is a link or no database, or it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path).absolute()  # the program may change its folder
        # Who reads does not wait for the disk, as who writes does.
        self._writer, self._reader = _Connection(self.path), _Connection(self.path)
        with self._writer.opened():
            pass

    def size(self, name: str) -> int:
        """How many bytes a session has, or a long text; 0 for a name that it does not know.

        Raises:
            OSError: the database cannot be used; the message says what would be accepted.
        """
        with self._reader.opened() as connection:
            return _end(connection, name)

    def read(self, name: str) -> bytes:
        """All pieces of a session, or a long text.

        Raises:
            OSError: as for `size()`.
        """
        with self._reader.opened() as connection:
            return b"".join(data for (data,) in connection.execute(_ALL, (name,)))

    def append(self, name: str, position: int, data: bytes) -> None:
        """Keep a piece; it is on the disk when this returns. The same piece again changes nothing.

        Raises:
            SessionBusy: it does not follow what is there, as another writer was faster.
            OSError: as for `size()`; nothing was kept.
        """
        piece = _Piece(name, position, data)
        self._writer.asked.append(piece)
        try:
            with self._writer.opened() as connection:
                if not piece.known:  # else another thread kept it with its own
                    _keep(connection, piece, list(self._writer.asked))
        finally:
            self._writer.asked.remove(piece)
        if piece.error is not None:
            raise piece.error

    def close(self) -> None:
        """Close the connections of this process; the next call opens them again."""
        self._reader.close()
        self._writer.close()

    def __reduce__(self) -> Any:
        return type(self), (self.path,)

    def __repr__(self) -> str:
        return f"SqliteStore({str(self.path)!r})"


class _Connection:
    """A connection, for one thread at a time.

    Args:
        path: the database.
    """

    def __init__(self, path: Path) -> None:
        self.lock = threading.Lock()
        self.asked: list[_Piece] = []  # what threads wait to see kept
        self._path = path
        self._open: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None  # device and number of the file that is open
        with _registry:
            _connections.add(self)

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """The connection, for the `with`; what was begun in it and not committed does not happen.

        Raises:
            OSError: the database cannot be used.
        """
        with self.lock:
            try:
                if self._open is None or self._file != _identity(self._path):  # it was removed, or put back
                    self.drop()
                    self._connect()
                assert self._open is not None
                yield self._open
            except sqlite3.Error as error:
                then = _THEN.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
                raise OSError(f"{self._path}: {error}" + (f": {then}" if then else "")) from error
            finally:
                if self._open is not None and self._open.in_transaction:
                    self._open.rollback()

    def close(self) -> None:
        """Close it; it is opened again when it is needed."""
        with self.lock:
            self.drop()

    def drop(self) -> None:
        """Close it, for who has its lock."""
        connection = self._open
        self._open = None
        if connection is not None:
            connection.close()

    def _connect(self) -> None:
        options: dict[str, Any] = {"timeout": _WAIT_S, "isolation_level": None, "check_same_thread": False}
        with _creating:
            _create(self._path)
            self._file = _identity(self._path)
            connection = sqlite3.connect(f"{self._path.as_uri()}?mode=rw", uri=True, **options)
        try:
            _prepare(connection)
            self._open = connection
        except BaseException:
            connection.close()
            raise

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter ends
            self.drop()


class _Piece:
    """A piece that is to be kept, and what became of it."""

    def __init__(self, name: str, position: int, data: bytes) -> None:
        self.name = name
        self.position = position
        self.data = data
        self.known = False  # whether it is kept, or refused
        self.error: SessionBusy | None = None


def _keep(connection: sqlite3.Connection, piece: _Piece, asked: list[_Piece]) -> None:
    """Keep all pieces that threads wait for, with one sync; where they cannot all be kept, one alone."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        _write(connection, asked)
    except sqlite3.Error:
        if len(asked) == 1:
            raise
        if connection.in_transaction:
            connection.rollback()
        connection.execute("BEGIN IMMEDIATE")
        _write(connection, [piece])


def _write(connection: sqlite3.Connection, pieces: list[_Piece]) -> None:
    refused = [_inserted(connection, piece) for piece in pieces]
    connection.execute("COMMIT")
    for piece, error in zip(pieces, refused, strict=True):
        piece.error = error
        piece.known = True


def _inserted(connection: sqlite3.Connection, piece: _Piece) -> SessionBusy | None:
    """Write a piece, unless it is there; the error of one that does not follow what is there."""
    name = piece.name
    position = piece.position
    data = piece.data
    if position == _end(connection, name):
        if data:
            connection.execute(_NEW, (name, position, data))
    elif connection.execute(_PIECE, (name, position)).fetchall() != [(data,)]:
        return SessionBusy(f"{name}: another machine or process has gone on with it")
    return None


def _end(connection: sqlite3.Connection, name: str) -> int:
    found = connection.execute(_END, (name,)).fetchone()
    return int(found[0]) if found else 0


def _prepare(connection: sqlite3.Connection) -> None:
    """Set up a connection. SQLite itself does not wait where several processes make a database together."""
    until = time.monotonic() + _WAIT_S
    while True:
        try:
            for statement in _OPENING:
                connection.execute(statement)
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _OTHERS or time.monotonic() > until:
                raise
            time.sleep(0.01)


def _create(path: Path) -> None:
    """Create the file where it is missing. One that is there is not opened: closing it would end SQLite's locks on it.

    Raises:
        OSError: it is a link or no regular file, or cannot be created.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600))
        except FileExistsError:
            return _create(path)
        except FileNotFoundError:
            raise OSError(f"{path}: there is no folder {path.parent}; make it, or name another file") from None
        except OSError as error:
            raise OSError(f"{path}: {error.strerror}: {_CLOSED}") from None
        return None
    if stat.S_ISLNK(mode):
        raise OSError(f"{path}: it is a link, which is not followed; name the file itself")
    if not stat.S_ISREG(mode):
        raise OSError(f"{path}: it is no regular file; name one, or a file that is not there yet")
    return None


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file is at a path; None for no file."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# -- forks -------------------------------------------------------------------------------------------

# SQLite remembers by process which files it has locked. A child would take the locks of its parent for its own, even
# with a connection of its own, so none is open while a process forks.
_connections: weakref.WeakSet[_Connection] = weakref.WeakSet()
_registry = threading.Lock()
_creating = threading.Lock()  # taken within the lock of a connection only
_forking: list[_Connection] = []


def _before_fork() -> None:
    _registry.acquire()
    for one in list(_connections):
        one.lock.acquire()
        _forking.append(one)
        one.drop()


def _after_fork() -> None:
    while _forking:
        _forking.pop().lock.release()
    _registry.release()


def _in_child() -> None:
    for one in _forking:
        one.asked.clear()  # the threads that wait are the parent's
    _after_fork()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
