"""Sessions that are kept somewhere else too, such as in a database: another machine goes on with them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Protocol

from connectagent.errors import ConfigError
from connectagent.records.blobs import REFERENCE, blob_folder, store_blob
from connectagent.records.paths import refuse_link, size_of
from connectagent.settings import enabled
from connectagent.tools.awaiting import CALLER


class Store(Protocol):
    """Where sessions with a key are kept, beside their files: `agent.for_session(key, store=...)`.

    A name is that of a file. Its bytes grow by pieces, each at the position where the last one ended; a table with the
    primary key of name and position is enough. Long texts have names that begin with `blobs/`.

    An error of a store ends the turn: what it has not kept has not happened.
    """

    def size(self, name: str) -> int:
        """How many bytes it has; 0 for a name that it does not know."""

    def read(self, name: str) -> bytes:
        """All pieces, in the order of their positions."""

    def append(self, name: str, position: int, data: bytes) -> None:
        """Keep a piece; it is kept for good when this returns. The same piece again changes nothing.

        Raises:
            SessionBusy: another piece is at this position, as another writer was faster.
        """


class Kept:
    """The file of one session in a store.

    Args:
        store: the store.
        path: the file.
    """

    def __init__(self, store: Store, path: Path) -> None:
        self._store = store
        self._path = path
        self._known: set[str] = set()  # the long texts that the store has

    def fetch(self, is_begun: bool) -> None:
        """Give the file what the store has, with its long texts; or the store what only the file has.

        A file has more where the session was without this store for a while.

        Args:
            is_begun: whether the file has a whole head; without one, nothing in it counts.

        Raises:
            OSError: a file cannot be written.
            ConfigError: each has lines that the other lacks.
            SessionBusy: another writer was faster.
        """
        data = self._store.read(self._path.name)
        own = self._path.read_bytes() if is_begun else b""
        if len(own) > len(data) and own.startswith(data):
            return self.append(len(data), own[len(data) :])
        if not data.startswith(own):
            then = "move that file away to go on with what the store has, or name the store that it was kept in"
            raise ConfigError(f"{self._path} and the store each have lines that the other lacks: {then}")
        self._fetch_texts(data)  # before the lines: a file of the store's size has all
        with open(self._path, "r+b") as file:
            file.truncate(len(own))
            file.seek(len(own))
            file.write(data[len(own) :])
        return None

    def _fetch_texts(self, data: bytes) -> None:
        folder = blob_folder(self._path)
        refuse_link(folder)
        for digest in _texts_in(data):
            self._known.add(digest)
            if not (folder / digest).exists():
                folder.mkdir(mode=0o700, exist_ok=True)
                text = self._store.read(f"blobs/{digest}").decode("utf-8", "surrogatepass")
                store_blob(text, folder, synced=enabled("fsync"))

    def size(self) -> int:
        """How many bytes the store has."""
        return self._store.size(self._path.name)

    def is_ahead(self) -> bool:
        """Whether the store has more than the file."""
        return self.size() > size_of(self._path)  # in this order: the file may get it just now

    def append(self, position: int, data: bytes) -> None:
        """Keep what is about to be written to the file, after the long texts that it needs.

        Raises:
            SessionBusy: another writer was faster.
        """
        folder = blob_folder(self._path)
        for digest in _texts_in(data) - self._known:
            if (folder / digest).exists():
                self._append(f"blobs/{digest}", 0, (folder / digest).read_bytes())
                self._known.add(digest)
        self._append(self._path.name, position, data)

    def _append(self, name: str, position: int, data: bytes) -> None:
        """Append to the store; other turns compute while this one waits for its disk."""
        keep = partial(self._store.append, name, position, data)
        caller = CALLER.get()
        if caller is None:
            keep()
        else:
            caller.idle(keep)


def _texts_in(data: bytes) -> set[str]:
    return {digest for _, digest in REFERENCE.findall(data.decode("utf-8", "replace"))} if b"sha256:" in data else set()
