"""`SqliteStore`: what it has is what was appended, whoever appends, and its errors say what would be accepted."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path

import pytest

from connectagent import SessionBusy, SqliteStore
from connectagent.records import sqlite

APPENDER = """
import sys
from connectagent import SessionBusy, SqliteStore
path, name, mine, rounds = sys.argv[1:]
store, won = SqliteStore(path), 0
for number in range(int(rounds)):
    end = store.size(name)
    try:
        store.append(name, end, f"{mine}.{number};".encode())
    except SessionBusy:
        continue
    print(f"{mine}.{number};", flush=True)  # it is kept
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / "sessions.db")) as made:
        yield made


class Model:
    """The same as pieces in a dict."""

    def __init__(self) -> None:
        self.pieces: dict[str, dict[int, bytes]] = {}

    def size(self, name: str) -> int:
        return len(self.read(name))

    def read(self, name: str) -> bytes:
        return b"".join(data for _, data in sorted(self.pieces.get(name, {}).items()))

    def append(self, name: str, position: int, data: bytes) -> None:
        there = self.pieces.setdefault(name, {})
        if there.get(position) == data:
            return
        if position != self.size(name):
            raise SessionBusy("not at the end")
        if data:
            there[position] = data


def outcome(store: SqliteStore | Model, name: str, position: int, data: bytes) -> str:
    try:
        store.append(name, position, data)
    except SessionBusy:
        return "busy"
    return "kept"


@pytest.mark.parametrize("seed", range(8))
def test_it_does_what_a_dict_of_pieces_does(seed: int, store: SqliteStore) -> None:
    chance, model = random.Random(seed), Model()
    names = ["shop@a.yaml", "shop@b.yaml", "Å@%_'.yaml", "blobs/00ff"]
    seen: dict[str, int] = {"kept": 0, "busy": 0}
    for step in range(300):
        name = chance.choice(names)
        size = model.size(name)
        there = [*model.pieces.get(name, {}).items()]
        position = chance.choice([size, size, size, size + 1, chance.randint(0, size + 3), -1])
        data = chance.choice([b"", b"x", b"\0\xff\n", bytes([chance.randrange(256)]) * chance.randint(1, 9000)])
        if there and chance.random() < 0.3:
            position, data = chance.choice(there)  # the same piece again
        if step % 50 == 49:
            store.close()  # it opens again
        came = outcome(store, name, position, data)
        assert came == outcome(model, name, position, data), (name, position, len(data))
        seen[came] += 1
        assert (store.size(name), store.read(name)) == (model.size(name), model.read(name))
    assert min(seen.values()) > 30 and store.size("unknown") == 0 and store.read("unknown") == b""
    again = SqliteStore(store.path)
    assert {name: again.read(name) for name in names} == {name: model.read(name) for name in names}


def test_of_many_threads_that_append_at_one_place_one_is_right(store: SqliteStore) -> None:
    kept: list[list[bytes]] = [[] for _ in range(8)]

    def work(number: int) -> None:
        for turn in range(40):
            data = b"%d.%d;" % (number, turn)
            end = store.size("s")
            if outcome(store, "s", end, data) == "kept":
                kept[number].append(data)
            store.append(f"own-{number}", store.size(f"own-{number}"), data)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pieces = [piece + b";" for piece in store.read("s").split(b";")[:-1]]
    assert sorted(pieces) == sorted(chain(*kept)) and len(pieces) >= 40
    assert all(store.read(f"own-{number}").count(b";") == 40 for number in range(8))


class Asked:
    """Threads that wait together to append one piece each."""

    def __init__(self, store: SqliteStore, *pieces: tuple[str, int, bytes]) -> None:
        self.outcomes: dict[str, str] = {}

        def work(name: str, position: int, data: bytes) -> None:
            try:
                self.outcomes[name] = outcome(store, name, position, data)
            except OSError as error:
                self.outcomes[name] = str(error)

        threads = [threading.Thread(target=work, args=piece) for piece in pieces]
        with store._writer.lock:  # as while another thread waits for the disk
            for number, thread in enumerate(threads, 1):
                thread.start()
                while len(store._writer.asked) < number:
                    time.sleep(0.001)
        for thread in threads:
            thread.join()


def test_pieces_for_which_threads_wait_are_kept_with_one_sync(store: SqliteStore) -> None:
    store.append("s", 0, b"x")
    statements: list[str] = []
    assert store._writer._open is not None
    store._writer._open.set_trace_callback(statements.append)
    asked = Asked(store, *[(f"s{number}", 0, b"%d" % number) for number in range(20)], ("s", 0, b"other"))
    assert asked.outcomes == {**{f"s{number}": "kept" for number in range(20)}, "s": "busy"}
    assert statements.count("COMMIT") == 1 and store._writer.asked == []
    assert [store.read(f"s{number}") for number in range(20)] == [b"%d" % number for number in range(20)]


def test_a_piece_that_cannot_be_kept_is_the_error_of_its_own_thread(store: SqliteStore) -> None:
    store.append("s", 0, b"x")
    assert store._writer._open is not None
    (pages,) = store._writer._open.execute("PRAGMA page_count").fetchone()
    store._writer._open.execute(f"PRAGMA max_page_count = {pages + 1}")
    asked = Asked(store, ("a", 0, b"a"), ("big", 0, b"b" * 100_000), ("c", 0, b"c"))
    assert "disk is full" in asked.outcomes.pop("big") and asked.outcomes == {"a": "kept", "c": "kept"}
    assert store.read("a") + store.read("big") + store.read("c") == b"ac"


def test_processes_that_make_it_together_and_are_killed_lose_nothing_that_was_kept(tmp_path: Path) -> None:
    path, chance, told = tmp_path / "sessions.db", random.Random(3), []
    for _ in range(4):
        command = [sys.executable, "-c", APPENDER, str(path), "s"]
        running = [
            subprocess.Popen([*command, f"p{number}-{chance.random()}", "100000"], stdout=subprocess.PIPE)
            for number in range(3)
        ]
        outputs = []
        for one in running:
            assert one.stdout is not None
            outputs.append(one.stdout.readline())  # it has begun
        for one in running:
            with pytest.raises(subprocess.TimeoutExpired):
                one.wait(chance.uniform(0.05, 0.2))
            one.kill()
        assert all(outputs)
        for one, first in zip(running, outputs, strict=True):
            rest, _ = one.communicate()
            told += [line for line in (first + rest).split(b"\n")[:-1] if line]
    kept = SqliteStore(path).read("s")
    there = [piece + b";" for piece in kept.split(b";")[:-1]]
    assert len(there) == len(set(there)) and set(told) <= set(there)
    assert len(there) - len(told) <= 12  # a process that was killed had kept one that it did not tell


def forked(store: SqliteStore, name: str, rounds: int) -> None:
    for number in range(rounds):
        store.append(name, store.size(name), b"%d;" % number)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_forks_while_threads_append_have_connections_of_their_own(store: SqliteStore) -> None:
    over = threading.Event()

    def work(name: str) -> None:
        while not over.is_set():
            store.append(name, store.size(name), b"x;")

    threads = [threading.Thread(target=work, args=(f"thread-{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        children = [
            multiprocessing.get_context("fork").Process(target=forked, args=(store, f"child-{number}", 25))
            for number in range(4)
        ]
        for child in children:
            child.start()
        for child in children:
            child.join(60)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert [child.exitcode for child in children] == [0] * 4
    whole = b"".join(b"%d;" % number for number in range(25))
    assert [store.read(f"child-{number}") for number in range(4)] == [whole] * 4
    with closing(sqlite3.connect(store.path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_what_a_child_keeps_is_there_though_its_parent_closes_the_database_first(store: SqliteStore) -> None:
    """SQLite would take the parent's lock for the child's: closing here would remove the log that the child writes."""
    store.append("s", 0, b"parent;")
    begin, done = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        try:
            store.append("s", 7, b"child 1;")
            os.write(done[1], b"1")
            os.read(begin[0], 1)
            store.append("s", 15, b"child 2;")
            os.write(done[1], b"2")
            os.read(begin[0], 1)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.read(done[0], 1) == b"1"
    assert store.read("s") == b"parent;child 1;"
    store.close()
    os.write(begin[1], b"1")
    assert os.read(done[0], 1) == b"2"
    os.write(begin[1], b"2")
    os.waitpid(child, 0)
    assert store.read("s") == b"parent;child 1;child 2;"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_child_keeps_no_pieces_for_which_threads_of_its_parent_wait(store: SqliteStore) -> None:
    store._writer.asked.append(sqlite._Piece("s", 0, b"of the parent"))
    child = os.fork()
    if not child:
        try:
            store.append("t", 0, b"of the child")
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert store.read("s") == b"" and store.read("t") == b"of the child"


def test_it_travels_as_its_path(store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = SqliteStore("sessions.db")
    here.append("s", 0, b"x")
    monkeypatch.chdir("/")
    assert pickle.loads(pickle.dumps(here)).read("s") == b"x" == store.read("s")


@pytest.mark.skipif(sys.platform == "win32", reason="files have no modes there")
def test_only_its_owner_may_read_it(store: SqliteStore) -> None:
    store.append("s", 0, b"x")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in store.path.parent.glob("sessions.db*")}
    assert modes["sessions.db"] == 0o600 and set(modes.values()) == {0o600} and len(modes) > 1


def test_a_piece_that_is_interrupted_is_not_half_kept(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(connection: sqlite3.Connection, name: str) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "_end", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.append("s", 0, b"x")
    SqliteStore(store.path).append("s", 0, b"other")  # nothing is locked
    assert outcome(store, "s", 0, b"x") == "busy"


# -- what goes wrong -------------------------------------------------------------------------------


def test_a_place_that_cannot_be_used_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database " * 200)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere.db")
    for name, words in (
        ("none/sessions.db", "there is no folder .*none; make it"),
        ("link", "it is a link, which is not followed; name the file itself"),
        (".", "no regular file"),
        ("text", "no SQLite database; name one"),
    ):
        with pytest.raises(OSError, match=words):
            SqliteStore(tmp_path / name)
    assert not (tmp_path / "elsewhere.db").exists() and (tmp_path / "text").read_text().startswith("no database")


def test_a_database_that_another_process_keeps_locked_is_waited_for_and_named(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_WAIT_S", 0.3)
    store.close()
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OSError, match=r"sessions.db: database is locked: other processes .* goes on later"):
            store.append("s", 0, b"x")
        with store._writer.lock:  # as while a thread waits there
            assert store.size("s") == 0 and store.read("s") == b""
        other.execute("COMMIT")
    store.append("s", 0, b"x")
    assert store.read("s") == b"x"


def test_a_full_disk_is_named_and_nothing_is_half_kept(store: SqliteStore) -> None:
    store.append("s", 0, b"x")
    assert store._writer._open is not None
    (pages,) = store._writer._open.execute("PRAGMA page_count").fetchone()
    store._writer._open.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(OSError, match="disk is full; with more room the same call goes on"):
        store.append("s", 1, b"y" * 100_000)
    assert store.read("s") == b"x"
    store.close()
    store.append("s", 1, b"y" * 100_000)
    assert store.size("s") == 100_001


def test_a_database_that_may_only_be_read_is_named(store: SqliteStore) -> None:
    assert store._writer._open is not None
    store._writer._open.execute("PRAGMA query_only = ON")
    with pytest.raises(OSError, match=r"readonly database: .* make it and its folder writable"):
        store.append("s", 0, b"x")


@pytest.mark.skipif(sys.platform == "win32", reason="a file that is open cannot be removed there")
def test_a_database_that_is_put_back_from_a_copy_is_the_one_that_is_used(store: SqliteStore, tmp_path: Path) -> None:
    store.append("s", 0, b"x")
    other = SqliteStore(tmp_path / "copy.db")
    other.append("s", 0, b"of the copy")
    other.close()
    store.close()
    store.append("s", 1, b"y")
    for path in tmp_path.glob("sessions.db*"):
        path.unlink()
    other.path.rename(store.path)
    assert store.read("s") == b"of the copy" and outcome(store, "s", 2, b"z") == "busy"
