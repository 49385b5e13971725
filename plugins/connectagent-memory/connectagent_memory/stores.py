"""Where memories are kept, and how they are found: what a store is, words, and a store in SQLite."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import sqlite3
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from connectagent import ConnectAgentError
from connectagent.settings import co_folder

_QUERY = 50_000  # characters of a query that are looked at
_TERMS = 40  # words of a query that are searched for; FTS5 takes an expression of 256 levels
_MANY = 1_000  # messages: a word that so many have is a common one
_CANDIDATES = 2_000  # messages that are ranked
_BUSY_S = 30.0  # how long one process waits for another's write
_VERSION = 1  # of the tables


class MemoryStoreError(ConnectAgentError):
    """The memory cannot be read or written; the message names the file and the way out."""


@dataclass(frozen=True)
class Remembered:
    """One message of an earlier session.

    Args:
        session: the session's id, as `forget` takes it.
        index: the message's place in that session.
        who: `user`, or the agent's name.
        text: what was said.
        timestamp: when it was remembered, in Unix seconds.
        score: of a match, how well it fits the query; higher is better, comparable within one search only.
    """

    session: str
    index: int
    who: str
    text: str
    timestamp: float
    score: float = 0.0


class MemoryStore(Protocol):
    """Where memories are kept. Calls may come from many threads."""

    def check(self) -> None:
        """Raise what would keep the store from working; called when an agent is made, so make it cheap."""

    def add(self, user: str, agent: str, messages: Sequence[Remembered]) -> int:
        """Keep messages, except those whose session, index and text are kept already; how many were new."""

    def search(self, user: str, agent: str, query: str, limit: int) -> list[Remembered]:
        """What this user said to this agent or heard from it, the best matches first; any text is a query."""

    def forget(self, user: str, session: str | None = None) -> int:
        """Remove a user's session, or with None all that is kept of the user; how many messages it were."""


# -- words ---------------------------------------------------------------------------------------

# Scripts that put no space between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese; Korean glues its particles on.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_SYMBOLS = "\u2190-\u2bff\U0001f000-\U0001faff"
_TOKEN = re.compile(f"[{_UNSPACED}{_SYMBOLS}]|[^\\W_{_UNSPACED}{_SYMBOLS}]+")
_ALONE = re.compile(f"[{_UNSPACED}]").match
# Words that nearly every English text has: they would be looked up in all of them, and tell nothing.
_COMMON = frozenset(
    re.findall(
        r"\w+",
        """a about all an and any are as at be been but by can could did do does for from had has have he her him his
        how i if in into is it its just me my no not of on or our out she so some that the their them then there
        these they this to up was we were what when where which who why will with would you your s t""",
    )
)


def tokens_of(text: str) -> list[str]:
    """The words of a text without case and accents; of scripts without spaces, and of emoji, each character."""
    plain = unicodedata.normalize("NFKD", text)
    plain = unicodedata.normalize("NFC", re.sub("[\u0300-\u036f]", "", plain)).casefold()
    return _TOKEN.findall(plain)


def terms_of(query: str) -> list[str]:
    """The words of a query, and what was glued together (`self-hosted`) as a phrase, the longest first.

    They consist of tokens and spaces only, so that in quotes nothing of a query is taken for FTS5's syntax.
    """
    terms: dict[str, None] = {}
    for chunk in query[:_QUERY].split():
        for unspaced, run in itertools.groupby(tokens_of(chunk), lambda token: _ALONE(token) is not None):
            tokens = list(run)
            if unspaced and len(tokens) > 1:  # a pair tells more than a character, and fits in any sentence
                terms.update(dict.fromkeys(f"{one} {two}" for one, two in itertools.pairwise(tokens)))
            else:
                terms.update(dict.fromkeys([" ".join(tokens)] if len(tokens) < 5 else tokens))
    telling = [term for term in terms if term not in _COMMON] or list(terms)
    return sorted(telling, key=len, reverse=True)[:_TERMS]


# -- the store -----------------------------------------------------------------------------------

_TABLES = """
CREATE TABLE IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY, user TEXT NOT NULL, agent TEXT NOT NULL, session TEXT NOT NULL, position INTEGER NOT NULL,
    who TEXT NOT NULL, text TEXT NOT NULL, timestamp REAL NOT NULL, digest TEXT NOT NULL,
    UNIQUE (user, agent, session, position, digest)
);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(scope, text, tokenize='ascii');
"""

_COUNT = "SELECT count(*) FROM (SELECT rowid FROM words WHERE words MATCH ? LIMIT ?)"
_SEARCH = """
SELECT m.id, session, position, who, m.text, timestamp, -score FROM (
    SELECT id, score FROM (
        SELECT rowid AS id, bm25(words, 0.0, 1.0) AS score FROM words WHERE words MATCH ? ORDER BY rowid DESC LIMIT ?
    ) ORDER BY score, id DESC LIMIT ?
) JOIN messages AS m USING (id) WHERE user = ? AND agent = ?
"""


def _rare(counts: dict[str, int]) -> list[str]:
    """The words that few messages have, the rarest first, as many as can be ranked in a few milliseconds."""
    rare, room = [], _CANDIDATES
    for term in sorted(counts, key=lambda term: counts[term]):
        room -= counts[term]
        if 0 < counts[term] < _MANY and room >= 0:
            rare.append(term)
    return rare


class SqliteStore:
    """Memories in one SQLite file, which threads and processes may share.

    Args:
        path: the file; None for `memory.sqlite` in the data folder, `.co` or what the setting `dir` names.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(os.path.abspath(path))
        self._ours = path is None

    @property
    def path(self) -> Path:
        """The file; found out at first use, so that a tool that changes the folder changes nothing here."""
        if self._path is None:
            self._path = co_folder("memory.sqlite")
        return self._path

    def check(self) -> None:
        """Read the file's beginning, if there is a file.

        Raises:
            MemoryStoreError: it cannot be read, or was made by a newer version of this plugin.
        """
        if self.path.exists():
            with self._open() as database:
                database.execute("SELECT count(*) FROM words WHERE words MATCH 'scope:x'").fetchone()

    def add(self, user: str, agent: str, messages: Sequence[Remembered]) -> int:
        """Keep messages, except those that are kept already; how many were new."""
        count, scope = 0, _scope(user, agent)
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            for one in messages:
                text = _storable(one.text)
                digest = hashlib.sha256(f"{one.who}\0{text}".encode("utf-8", "replace")).hexdigest()
                row = (*map(_storable, (user, agent, one.session)), one.index, _storable(one.who), text)
                cursor = database.execute(
                    "INSERT OR IGNORE INTO messages (user, agent, session, position, who, text, timestamp, digest) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (*row, one.timestamp, digest),
                )
                if cursor.rowcount:
                    words = (cursor.lastrowid, scope, " ".join(tokens_of(text)))
                    database.execute("INSERT INTO words (rowid, scope, text) VALUES (?, ?, ?)", words)
                    count += 1
            database.execute("COMMIT")
        return count

    def search(self, user: str, agent: str, query: str, limit: int) -> list[Remembered]:
        """What fits the words of a query, the best matches first, of equal ones the newest.

        Words that a thousand messages have are looked up only where the others find too little, and then in the
        newest messages: to rank all that have one takes 70 ms for 20,000 messages.
        """
        terms, found = terms_of(query), dict[int, Remembered]()
        if not terms or limit < 1 or not self.path.exists():
            return []
        within = f'scope:"{_scope(user, agent)}" AND text:'
        with self._open() as database:
            counts = {term: database.execute(_COUNT, (f'{within}"{term}"', _MANY)).fetchone()[0] for term in terms}
            for some in (_rare(counts), [term for term in terms if counts[term] == _MANY][:3]):
                if some and len(found) < limit:
                    phrases = " OR ".join(f'"{term}"' for term in some)
                    values = (f"{within}({phrases})", _CANDIDATES, limit, _storable(user), _storable(agent))
                    for number, *row in database.execute(_SEARCH, values).fetchall():
                        found.setdefault(number, Remembered(*row))
        best = sorted(found, key=lambda number: (-found[number].score, -number))
        return [found[number] for number in best[:limit]]

    def forget(self, user: str, session: str | None = None) -> int:
        """Remove a user's session or all of the user, from the file as well; how many messages it were."""
        if not self.path.exists():
            return 0
        which, values = "user = ?", [_storable(user)]
        if session is not None:
            which, values = f"{which} AND session = ?", [*values, _storable(session)]
        with self._open() as database:
            database.execute("PRAGMA secure_delete = ON")
            database.execute("BEGIN IMMEDIATE")
            database.execute(f"DELETE FROM words WHERE rowid IN (SELECT id FROM messages WHERE {which})", values)
            count = database.execute(f"DELETE FROM messages WHERE {which}", values).rowcount
            database.execute("INSERT INTO words (words) VALUES ('optimize')")  # else deleted words stay in the index
            database.execute("COMMIT")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return count

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection for one operation: none is shared by threads, survives a fork or is left open."""
        try:
            if not self.path.exists():
                self._create()
            with contextlib.closing(self._connect()) as database:
                yield database
        except (sqlite3.Error, OSError) as error:
            raise MemoryStoreError(self._told(error)) from error

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
        try:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version > _VERSION:
                raise MemoryStoreError(f"{self.path} was made by a newer connectagent-memory; install that one")
            if version < _VERSION:
                with contextlib.suppress(sqlite3.OperationalError):  # locked: another process does it just now
                    database.execute("PRAGMA journal_mode = WAL").fetchall()
                database.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {_VERSION}; COMMIT;")
            database.execute("PRAGMA synchronous = NORMAL")
            return database
        except BaseException:
            database.close()
            raise

    def _create(self) -> None:
        """Make an empty file that is its owner's only; SQLite gives its companions the same mode."""
        folder = self.path.parent
        fresh = not folder.exists()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        if self._ours and (fresh or folder.name == ".co"):  # a folder of the user's own must not vanish from git
            with contextlib.suppress(FileExistsError), (folder / ".gitignore").open("x") as file:
                file.write("*\n")

    def _told(self, error: Exception) -> str:
        text = f"the memory {self.path} cannot be used: {error}"
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None and code & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return (
                f"{text}. Move it away and a new one begins, or put a backup in its place; what can be read of it, "
                f"`sqlite3 {self.path.name} .recover` prints"
            )
        if "fts5" in str(error) and "module" in str(error):
            return f"{text}. This Python's SQLite has no FTS5: take another build of Python, or another store"
        return text


def _scope(user: str, agent: str) -> str:
    """One word for a user and an agent, so that the index itself leaves out all others."""
    return hashlib.sha256(f"{len(user)} {user} {agent}".encode("utf-8", "replace")).hexdigest()


def _storable(text: str) -> str:
    """Text that SQLite takes: halves of characters are replaced."""
    return text.encode("utf-8", "replace").decode()
