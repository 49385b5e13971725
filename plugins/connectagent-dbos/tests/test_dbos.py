"""Turns as workflows of DBOS: order, pauses, guards, and workers that die with their disk."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos")
sa = pytest.importorskip("sqlalchemy")
from connectagent_dbos import Records, Turns, worker  # noqa: E402

from connectagent import (  # noqa: E402
    Agent,
    ConfigError,
    Pause,
    SessionBusy,
    SqliteStore,
    ToolRejected,
    before_each_tool,
    tool,
)
from connectagent.testing import ScriptedLLM, call  # noqa: E402

PAID: list[int] = []
SECRET = "sk-ant-api03-" + "a1B2" * 20
KILLS = int(os.environ.get("DBOS_KILLS", "1"))  # set it for a longer run
TURNS, NOTES = 6, 2  # that are asked for between two kills; the notes that each takes
WORKER = Path(__file__).with_name("dbos_worker.py")


@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    PAID.append(amount)
    return f"paid {amount}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    PAID.clear()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'agents.db'}"


def agent_with(*responses: Any, **options: Any) -> Agent:
    return Agent("shop", tools=[pay], llm=ScriptedLLM(*responses), quiet=True, **options)


@before_each_tool
def ask(tool_call: Any) -> None:
    if tool_call.arguments["amount"] > 100:
        raise Pause("a large payment")
    if tool_call.arguments["amount"] < 0:
        raise ToolRejected("never")


def model(messages: Any, tools: Any = None) -> Any:
    """Pays the amount in the prompt, then says what came of it."""
    last = messages[-1]
    if last["role"] == "user":
        return call("pay", amount=int(last["content"])) if last["content"].lstrip("-").isdecimal() else last["content"]
    return f"It says: {last['content']}"


def test_turns_are_taken_in_order_and_once_guards_act_and_pauses_are_decided_from_anywhere(database: str) -> None:
    with worker(agent_with(*[model] * 40, plugins=[ask]), database, "w1") as turns:
        first = [turns.enqueue("chat", f"turn {number}") for number in range(5)]
        other = [turns.enqueue("other", "5", 1), turns.enqueue("other", "5", 1), turns.enqueue("bad", "-1")]
        told = [turns.result(id) for id in first]
        assert [(one["number"], one["result"]) for one in told] == [(n + 1, f"turn {n}") for n in range(5)]
        assert [turns.result(id)["result"] for id in other] == ["It says: paid 5"] * 2 + ["It says: rejected: never"]
        assert PAID == [5]

        elsewhere = Turns(database, "shop")  # has no agent
        paused = elsewhere.result(elsewhere.enqueue("large", "500"))
        (wait,) = paused["waiting"]
        assert (paused["status"], wait["reason"]) == ("paused", "a large payment")
        assert wait["call"]["arguments"] == {"amount": 500}
        behind = elsewhere.result(elsewhere.enqueue("large", "then this"))
        assert behind["status"] == "error" and "waits for a decision" in behind["error"]["message"]
        wrong = elsewhere.result(elsewhere.decide("large", approve=True, wait="T9"))
        assert wrong["status"] == "error" and wait["id"] in wrong["error"]["message"] and PAID == [5]
        done = elsewhere.result(elsewhere.decide("large", approve=True))
        assert done == {"status": "done", "result": "It says: paid 500", "number": 1} and PAID == [5, 500]
        twice = elsewhere.result(elsewhere.decide("large", approve=True))
        assert twice["status"] == "error" and PAID == [5, 500]
        elsewhere.close()

        diverged = turns.result(turns.enqueue("other", "6", 1))
        assert diverged["error"]["type"] == "DivergenceError"
        for wrong_call in (
            lambda: turns.enqueue("", "x"),
            lambda: turns.enqueue("a", "x", 0),
            lambda: turns.decide("a"),
            lambda: turns.decide("a", approve=False),
            lambda: turns.decide("a", approve=True, reject="no"),
            lambda: turns.decide("a", answer=None),
            lambda: turns.decide("a", approve=True, maybe=1),
        ):
            with pytest.raises(ConfigError):
                wrong_call()


def test_a_failed_turn_is_tried_again_and_its_error_is_an_outcome(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectagent_dbos.WAIT_S", 0.01)
    llm = [OSError("down"), call("pay", amount=1), OSError("down again"), "Paid.", *[OSError(SECRET)] * 3]
    with worker(agent_with(*llm), database, attempts=3) as turns:
        assert turns.result(turns.enqueue("s", "Pay"))["result"] == "Paid." and PAID == [1]
        failed = turns.result(turns.enqueue("s", "Again"))
    assert failed["status"] == "error" and failed["error"]["type"] == "OSError" and SECRET not in str(failed)


def test_a_session_goes_on_after_a_turn_that_failed(database: str) -> None:
    llm = [call("pay", amount=1), OSError("down"), "Two.", OSError("down"), "Three.", "Four."]
    with worker(agent_with(*llm), database, attempts=1) as turns:
        failed = turns.enqueue("s", "one")
        then = turns.enqueue("s", "two")
        assert turns.result(failed)["status"] == "error"
        assert turns.result(then) == {"status": "done", "result": "Two.", "number": 2} and PAID == [1]
        assert turns.result(turns.enqueue("s", "three"))["status"] == "error"
        # The same prompt goes on with it, and a number takes none but its own.
        assert turns.result(turns.enqueue("s", "four", 4))["error"]["type"] == "ConfigError"
        assert turns.result(turns.enqueue("s", "three")) == {"status": "done", "result": "Three.", "number": 3}
        assert turns.result(turns.enqueue("s", "four", 4)) == {"status": "done", "result": "Four.", "number": 4}


def secrets_kept(folder: Path) -> bool:
    """Whether the database or the records have the secret."""
    return any(SECRET.encode() in file.read_bytes() for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def dbos_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    logging.getLogger("dbos").addHandler(caplog.handler)
    yield caplog
    logging.getLogger("dbos").removeHandler(caplog.handler)


@pytest.mark.parametrize("error", [OSError, ValueError])
def test_an_error_is_kept_and_shown_without_its_secrets(
    error: type[Exception], database: str, folder: Path, dbos_log: pytest.LogCaptureFixture
) -> None:
    with worker(agent_with(*[error(f"refused {SECRET}")] * 2), database, attempts=2) as turns:
        failed = turns.result(turns.enqueue("s", "Pay"))
        assert failed["error"]["type"] == error.__name__ and "refused [masked" in failed["error"]["message"]
    assert ("refused [masked" in dbos_log.text) == (error is OSError)  # a try that is not the last is shown
    assert SECRET not in dbos_log.text and not secrets_kept(folder)


def test_an_error_is_what_it_was_for_a_worker_that_goes_on_with_the_workflow(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill between the last step and the end of the workflow."""
    with worker(agent_with(ValueError("no")), database) as turns:
        id = turns.enqueue("s", "Pay")
        failed = turns.result(id)
    engine = sa.create_engine(database)
    with engine.begin() as connection:
        statement = "UPDATE workflow_status SET status = 'PENDING', output = NULL WHERE workflow_uuid = :id"
        connection.execute(sa.text(statement), {"id": id})
    engine.dispose()
    with worker(agent_with(), database) as turns:
        assert turns.result(id) == failed


def test_a_mistake_is_named_with_what_would_be_accepted(database: str, folder: Path) -> None:
    def begun(*given: Any, **more: Any) -> None:
        with worker(*given, **more):
            pass

    agent = agent_with()
    for mistake, words in (
        (lambda: Turns(database, "shop"), "no worker has used sqlite:.*: start one"),
        (lambda: Turns("agents.db", "shop"), "as sqlite:///agents.db or postgresql://"),
        (lambda: begun(agent, "mysql://here/agents"), "as sqlite:///agents.db or postgresql://"),
        (lambda: begun("shop", database), "takes an Agent, not 'shop'"),
        (lambda: begun(agent, database, name=""), "name is a text that is not empty"),
        (lambda: begun(agent, database, attempts=0), "attempts is a whole number of at least 1, not 0"),
        (lambda: begun(agent, database, worker_concurrency=0), "worker_concurrency is a whole number of at least 1"),
    ):
        with pytest.raises(ConfigError, match=words):
            mistake()
    assert not list(folder.glob("*.db"))
    with worker(agent, database) as turns:
        with pytest.raises(ConfigError, match="has a worker already"):
            begun(agent, database)
        assert turns.result(turns.enqueue("s", "Pay"))["status"] == "error"  # the first one takes turns still


def test_a_typed_result_is_data(database: str) -> None:
    @dataclass
    class Price:
        usd: int

    with worker(agent_with('{"usd": 3}', output=Price), database) as turns:
        for _ in range(2):  # taken, then read
            assert turns.result(turns.enqueue("s", "What?", 1))["result"] == {"usd": 3}


def test_an_agent_without_a_record_is_refused(database: str) -> None:
    with pytest.raises(ConfigError, match="not recorded"), worker(agent_with(log=False), database):
        pass


def test_limits_over_all_workers_are_refused_where_nothing_locks_the_count(database: str) -> None:
    for limits in ({"concurrency": 2}, {"rate": (6, 2.0)}):
        with pytest.raises(ConfigError, match="need PostgreSQL"), worker(agent_with(), database, **limits):  # type: ignore[arg-type]
            pass


def test_a_piece_has_one_writer(database: str) -> None:
    one, two = Records(database), Records(database)
    one.append("a", 0, b"first")
    two.append("a", 0, b"first")
    two.append("a", 5, b"\0\xff")
    with pytest.raises(SessionBusy):
        one.append("a", 5, b"else")
    assert (one.read("a"), one.size("a"), two.size("b"), two.read("b")) == (b"first\0\xff", 7, 0, b"")
    one.close()
    two.close()


def test_the_store_of_the_package_has_the_sessions_of_the_workers_and_they_have_its_own(folder: Path) -> None:
    for first in (lambda: Records("sqlite:///one.db"), lambda: SqliteStore("two.db")):
        store: Any = first()
        name = "one.db" if isinstance(store, Records) else "two.db"
        store.append("shop@a.yaml", 0, b"begun, ")
        other: Any = SqliteStore(name) if isinstance(store, Records) else Records(f"sqlite:///{name}")
        other.append("shop@a.yaml", 7, b"and ended")
        assert store.read("shop@a.yaml") == other.read("shop@a.yaml") == b"begun, and ended"
        assert store.size("shop@a.yaml") == other.size("shop@a.yaml") == 16
        with pytest.raises(SessionBusy):
            store.append("shop@a.yaml", 7, b"other")
        store.close()
        other.close()


def test_an_error_of_the_database_does_not_show_what_was_to_be_written(database: str) -> None:
    records, engine = Records(database), sa.create_engine(database)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE connectagent_records"))
    engine.dispose()
    with pytest.raises(sa.exc.OperationalError, match="no such table") as raised:
        records.append("shop@anna.yaml", 0, b"a private text")
    records.close()
    assert "anna" not in str(raised.value) and "private" not in str(raised.value)


# -- workers that die --------------------------------------------------------------------------------


def start(database: str, name: str, place: Path, *more: Any) -> subprocess.Popen[str]:
    """A worker in a process of its own, which writes its notes beside its folder."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", WORKER, database, name, place, place.parent / "effects.txt", *map(str, more)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout as told:
        assert told.readline() == "ready\n"
    return process


def killed(database: str, folder: Path, kills: int) -> Counter[str]:
    """Let workers die with their folder until all turns are taken; how often each note was taken."""
    effects, chance = folder / "effects.txt", random.Random(7)
    effects.touch()

    process = start(database, "w", folder / "disk0")
    turns = Turns(database, "notes")
    ids, count = [], 0
    try:
        for number in range(kills):
            ids += [turns.enqueue(f"s{(count + one) % 7}", f"p{count + one}") for one in range(TURNS)]
            count += TURNS
            time.sleep(chance.uniform(0.05, 0.6))
            process.kill()
            process.wait()
            shutil.rmtree(folder / f"disk{number}")
            process = start(database, "w", folder / f"disk{number + 1}")
        told = [turns.result(id) for id in ids]
    finally:
        turns.close()
        process.kill()
        process.wait()
    assert [one["result"] for one in told] == [f"done p{number}" for number in range(count)], told
    return Counter(effects.read_text().split())


def decided_while_killed(database: str, folder: Path, kills: int) -> tuple[Counter[str], list[dict[str, Any]]]:
    """Let workers die with their folder while calls wait, and while they go on after the decision.

    Returns:
        How often each note was taken, and what the turns have come to.
    """
    effects, chance = folder / "effects.txt", random.Random(7)
    effects.touch()

    def again() -> subprocess.Popen[str]:
        process.kill()
        process.wait()
        shutil.rmtree(folder / "disk", ignore_errors=True)
        return start(database, "w", folder / "disk")

    process, turns, told = start(database, "w", folder / "disk"), Turns(database, "notes"), []
    try:
        for number in range(kills):
            outcome = turns.result(turns.enqueue(f"s{number % 3}", f"ask {number}"))
            while outcome["status"] == "paused":
                if chance.random() < 0.5:
                    process = again()  # the pause waits without a worker
                decided = turns.decide(f"s{number % 3}", approve=True)
                time.sleep(chance.uniform(0.0, 0.4))
                process = again()
                outcome = turns.result(decided)
            told.append(outcome)
    finally:
        turns.close()
        process.kill()
        process.wait()
    return Counter(effects.read_text().splitlines()), told


def in_doubt_at_most(notes: Counter[str], kills: int) -> None:
    """No note twice; one whose worker died in it may be left to the model, as `docs/pause-and-resume.md` says."""
    assert max(notes.values()) == 1
    assert NOTES * TURNS * kills - len(notes) <= 4 * kills


def test_nothing_is_done_twice_where_workers_die_with_their_disk(database: str, folder: Path) -> None:
    in_doubt_at_most(killed(database, folder, KILLS), KILLS)


def test_what_waits_is_decided_once_where_workers_die_with_their_disk(database: str, folder: Path) -> None:
    notes, told = decided_while_killed(database, folder, KILLS)
    assert [one["result"] for one in told] == [f"done ask {number}" for number in range(KILLS)], told
    assert max(notes.values()) == 1 and NOTES * KILLS - len(notes) <= 2 * KILLS


@pytest.fixture(scope="module")
def server_of_postgres() -> Iterator[Path]:
    """The folder of a server's socket; it has no port."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = str(found[-1]) if found else shutil.which("initdb")
    if initdb is None or not shutil.which("runuser") or os.geteuid() != 0:
        pytest.skip("there is no PostgreSQL, or no root to start it")
    place = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    shutil.chown(place, "postgres")

    def run(*command: Any) -> None:
        line = ["runuser", "-u", "postgres", "--", *map(str, command)]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, cwd=place)

    run(initdb, "-D", place / "data", "-A", "trust", "--no-sync")
    pg_ctl = Path(initdb).with_name("pg_ctl")
    options = f"-k {place} -c listen_addresses= -c fsync=off"
    run(pg_ctl, "-D", place / "data", "-o", options, "-l", place / "log", "-w", "start")
    try:
        yield place
    finally:
        run(pg_ctl, "-D", place / "data", "-m", "immediate", "stop")
        shutil.rmtree(place)


@pytest.fixture
def postgres(server_of_postgres: Path, request: pytest.FixtureRequest) -> Callable[[], str]:
    """Makes a database on the server."""

    def database() -> str:
        name = request.node.originalname
        engine = sa.create_engine(f"postgresql+psycopg://postgres@/postgres?host={server_of_postgres}")
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text(f"CREATE DATABASE {name[:60]}"))
        engine.dispose()
        return f"postgresql://postgres@/{name[:60]}?host={server_of_postgres}"

    return database


def test_so_it_is_with_postgresql(postgres: Callable[[], str], folder: Path) -> None:
    in_doubt_at_most(killed(postgres(), folder, KILLS), KILLS)


@pytest.mark.skipif(KILLS == 1, reason="SQLite does for a short run")
def test_pauses_are_decided_once_with_postgresql_too(postgres: Callable[[], str], folder: Path) -> None:
    notes, told = decided_while_killed(postgres(), folder, KILLS)
    assert [one["result"] for one in told] == [f"done ask {number}" for number in range(KILLS)], told
    assert max(notes.values()) == 1


def taken_by_two(database: str, folder: Path, count: int, **limits: Any) -> list[tuple[float, float, str]]:
    """Let two workers take turns of four sessions; when each note began and ended."""
    workers = [start(database, name, folder / name, json.dumps(limits)) for name in ("w1", "w2")]
    turns = Turns(database, "notes")
    try:
        ids = [turns.enqueue(f"s{number % 4}", f"p{number}") for number in range(count)]
        assert [turns.result(id)["result"] for id in ids] == [f"done p{number}" for number in range(count)]
    finally:
        turns.close()
        for process in workers:
            process.kill()
            process.wait()
    lines = [line.split() for line in (folder / "effects.txt.times").read_text().splitlines()]
    assert len(lines) == NOTES * count
    return sorted((float(began), float(ended), text) for text, began, ended in lines)


def test_two_workers_keep_limits_and_order(postgres: Callable[[], str], folder: Path) -> None:
    spans = taken_by_two(postgres(), folder, 24, concurrency=2)
    assert max(sum(began <= at < ended for began, ended, _ in spans) for at, _, _ in spans) <= 2
    for session in range(4):
        taken = [int(text[1:].partition(".")[0]) for _, _, text in spans]
        own = [number for number in taken if number % 4 == session]
        assert own == sorted(own)


def test_two_workers_keep_a_rate(postgres: Callable[[], str], folder: Path) -> None:
    spans = taken_by_two(postgres(), folder, 12, rate=[3, 2.0])
    begins = [began for began, _, text in spans if text.endswith(".0")]
    # A turn's first note comes a little after its start, so the half of two seconds is looked at.
    assert max(sum(at <= began < at + 1.0 for began in begins) for at in begins) <= 3


CAREFUL = """
import sys
from connectagent_dbos import worker
from connectagent import Agent
from connectagent.testing import ScriptedLLM, call

def pay(amount: int) -> str:
    "Pay."
    open("paid", "w").close()
    return "paid"

agent = Agent("shop", tools=[pay], llm=ScriptedLLM(call("pay", amount=5), "No."), trust="careful", quiet=True)
with worker(agent, "sqlite:///agents.db") as turns:
    found = turns.result(turns.enqueue("s", "Pay"))
print(found["result"], sys.stdin.readline())  # the program's own terminal is as it was
"""


@pytest.mark.skipif(os.name != "posix", reason="there are no terminals of this kind")
def test_nobody_is_asked_at_the_terminal_of_a_worker(folder: Path) -> None:
    ours, its = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", CAREFUL], stdin=its, stdout=subprocess.PIPE, stderr=its, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        os.write(ours, b"typed\n")
        assert process.communicate(timeout=60)[0] == "No. typed\n\n" and not (folder / "paid").exists()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(its)
