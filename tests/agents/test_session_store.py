"""Sessions that are kept in a database too: machines with empty disks go on with them, and two never write one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from connectagent import (
    Agent,
    LLMResponse,
    Pause,
    Paused,
    SessionBusy,
    SqliteStore,
    ToolCall,
    after_tools,
    before_each_tool,
)
from connectagent.errors import ConfigError, ProviderError
from connectagent.testing import ScriptedLLM, call

KILLS = int(os.environ.get("STORE_KILLS", "4"))
ran: list[str] = []


class Table:
    """A store as one table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.broken = False
        self._run("CREATE TABLE IF NOT EXISTS pieces (name, position, data, PRIMARY KEY (name, position))")

    def _run(self, statement: str, *values: Any) -> list[Any]:
        if self.broken:
            raise sqlite3.OperationalError("the database is away")
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("PRAGMA synchronous = OFF")
            return list(connection.execute(statement, values))

    def size(self, name: str) -> int:
        found = self._run("SELECT sum(length(data)) FROM pieces WHERE name = ?", name)
        return found[0][0] or 0

    def read(self, name: str) -> bytes:
        return b"".join(row[0] for row in self._run("SELECT data FROM pieces WHERE name = ? ORDER BY position", name))

    def append(self, name: str, position: int, data: bytes) -> None:
        try:
            self._run("INSERT INTO pieces VALUES (?, ?, ?)", name, position, data)
        except sqlite3.IntegrityError:
            if self._run("SELECT data FROM pieces WHERE name = ? AND position = ?", name, position) != [(data,)]:
                raise SessionBusy(f"{name}: another machine has gone on with it") from None


@pytest.fixture(autouse=True)
def table(tmp_path: Path) -> Table:
    ran.clear()
    return Table(tmp_path / "pieces.db")


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def to(name: str) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / name)

    to("one")
    return to


def work(what: str) -> str:
    """Do it."""
    ran.append(what)
    return what * 40_000 if what == "L" else "done"


def session(table: Table, *responses: Any) -> Any:
    return Agent("worker", tools=[work], llm=ScriptedLLM(*responses), quiet=True).for_session("job", store=table)


def test_an_empty_disk_goes_on_with_a_turn_that_was_stopped(table: Table, disk: Any) -> None:
    down = ProviderError("down", kind="server", provider="x")
    with pytest.raises(ProviderError):
        session(table, call("work", what="L"), down).turn("go", number=1)
    disk("two")
    model = ScriptedLLM("finished")
    other = Agent("worker", tools=[work], llm=model, quiet=True).for_session("job", store=table)
    assert other.turn("go", number=1) == "finished" and ran == ["L"]
    assert model.requests[-1].messages[-1]["content"] == "L" * 40_000  # the long text came along
    disk("three")
    assert session(table).turn("go", number=1) == "finished"
    assert other.record.read_bytes() == table.read(other.record.name)


def test_machines_take_turns_and_know_of_each_other(table: Table, disk: Any) -> None:
    ours = session(table, "1", "3")
    assert ours.turn("a") == "1"
    disk("two")
    theirs = session(table, "2", "4")
    assert theirs.turn("b", number=2) == "2"
    assert ours.turn("c", number=3) == "3"
    assert theirs.turns == 3 and theirs.turn("d") == "4"
    assert [m["content"] for m in theirs.agent.session["messages"]] == ["a", "1", "b", "2", "c", "3", "d", "4"]


def test_of_two_that_write_at_the_same_time_one_stops_before_its_tool(table: Table, disk: Any) -> None:
    def meanwhile(**_: Any) -> Any:
        disk("two")
        assert session(table, call("work", what="theirs"), "theirs").turn("go", number=1) == "theirs"
        return call("work", what="ours")

    with pytest.raises(SessionBusy, match="another machine"):
        session(table, lambda *a, **k: meanwhile()).turn("go", number=1)
    assert ran == ["theirs"]
    assert session(table).turn("go", number=1) == "theirs"


def test_what_the_database_has_not_kept_does_not_happen(table: Table, disk: Any) -> None:
    def away(*_: Any, **__: Any) -> Any:
        table.broken = True
        return call("work", what="x")

    broken = session(table, away, call("work", what="x"), "done")  # the model is asked again
    with pytest.raises(sqlite3.OperationalError, match="is away"):
        broken.turn("go", number=1)
    assert ran == []
    table.broken = False
    assert broken.turn("go", number=1) == "done" and ran == ["x"]


class Refusing(Table):
    """A store that refuses all pieces from one on."""

    def __init__(self, path: Path, number: int, error: Exception) -> None:
        super().__init__(path)
        self.left, self.error = number, error

    def append(self, name: str, position: int, data: bytes) -> None:
        self.left -= 1
        if self.left < 0:
            raise self.error
        super().append(name, position, data)


class Answers:
    """A model that answers by how often it has answered in the conversation."""

    model = "m"

    def __init__(self, *rounds: tuple[str, ...]) -> None:
        self.rounds = rounds

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        number = sum(message["role"] == "assistant" for message in messages)
        if number == len(self.rounds):
            return LLMResponse("done")
        calls = [asked.split(":") for asked in self.rounds[number]]
        names = {"inner": "prompt"}  # of an agent's parameter
        made = [ToolCall(f"{number}-{what}", name, {names.get(name, "what"): what}) for name, what in calls]
        return LLMResponse(None, made)


def swallow(agent: Any, what: str) -> str:
    """Ask for a call of a tool, whatever comes of it."""
    try:
        agent.execute_tool("work", {"what": what})
    except BaseException:
        return "it failed"
    return "asked"


def plain(session: Any) -> str:
    return str(session.turn("go", number=1))


def awaited(session: Any) -> str:
    return str(asyncio.run(session.aturn("go", number=1)))


@after_tools
def careless(agent: Any) -> None:
    agent.execute_tool("work", {"what": f"h{agent.session['iteration']}"})


def below(**options: Any) -> dict[str, Any]:
    """An agent that asks another one for its work."""
    inner = Agent("inner", tools=[work], llm=Answers(("work:a",), ("work:b",)), quiet=True, **options)
    return {"tools": [inner, work]}


async def awaits(what: str) -> str:
    """Do it, and wait for it."""
    await asyncio.sleep(0)
    return work(what)


ONE_BY_ONE = Answers(("work:a",), ("work:b",))
WAYS: dict[str, tuple[Answers, Callable[[], dict[str, Any]], Callable[[Any], Any]]] = {
    "one by one": (ONE_BY_ONE, dict, plain),
    "at the same time": (Answers(("work:a", "work:b"), ("work:c",)), lambda: {"parallel_tools": 3}, plain),
    "swallowed by a tool": (Answers(("swallow:a", "work:b"), ("work:c",)), lambda: {"tools": [work, swallow]}, plain),
    "a failing plugin": (ONE_BY_ONE, lambda: {"plugins": [careless], "plugin_errors": "warn"}, plain),
    "an agent below": (Answers(("inner:go",), ("work:c",)), below, plain),
    "awaited": (Answers(("awaits:a",), ("work:b",)), lambda: {"tools": [awaits, work]}, awaited),
    "streamed": (ONE_BY_ONE, dict, lambda session: [*session.stream("go", 1)][-1]["result"]),
}


@pytest.mark.parametrize("error", [SessionBusy("another was faster"), OSError("it is away")], ids=["busy", "away"])
@pytest.mark.parametrize("way", WAYS)
def test_a_piece_that_is_refused_ends_the_turn_wherever_it_was(
    way: str, error: Exception, tmp_path: Path, disk: Any
) -> None:
    model, options, take = WAYS[way]

    def session(store: Any) -> Any:
        agent = Agent("worker", **{"tools": [work], "quiet": True, "llm": model, **options()})
        return agent.for_session("job", store=store)

    for number in range(100):
        ran.clear()
        disk(f"{number}-one")
        refusing = Refusing(tmp_path / f"{number}.db", number, error)
        refused = session(refusing)
        try:
            assert take(refused) == "done"
            break
        except type(error) as raised:
            assert raised is error
        said = refusing.read("worker@job.yaml").decode()
        for what in ran:  # it was said before it was done
            assert re.search(f'"began", .*"arguments": {{"what": "{what}"}}', said), (number, what)
        if number % 2:  # here, as another machine does
            refusing.left = 1000
        else:
            disk(f"{number}-two")
            refused = session(Table(refusing.path))
        assert take(refused) == "done"
        assert len(ran) == len(set(ran)), (number, ran)
    assert 8 < number < 99 and len(ran) > 1


def test_one_of_two_mounts_without_shared_locks_is_stopped(
    tmp_path: Path, disk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectagent.records.file.lock_to_write", lambda fd: True)
    kept: Any = None

    def meanwhile(*_: Any, **__: Any) -> Any:
        assert session(kept, call("work", what="theirs"), "theirs").turn("go", number=1) == "theirs"
        return call("work", what="ours")

    with pytest.raises(SessionBusy, match="another agent has gone on"):
        session(kept, meanwhile).turn("go", number=1)
    assert ran == ["theirs"] and session(kept).turn("go", number=1) == "theirs"


def test_texts_of_the_database_are_not_written_where_a_link_of_the_folder_leads(disk: Any, table: Table) -> None:
    text = "long " * 10_000
    Agent("shop", llm=ScriptedLLM(text), quiet=True).for_session("k", table).turn("Go", 1)
    disk("two")
    Path("../outside").mkdir()
    Path(".co").mkdir()
    Path(".co/blobs").symlink_to("../../outside")
    with pytest.raises(OSError, match="leads out of the project"):
        Agent("shop", llm=ScriptedLLM(), quiet=True).for_session("k", table).turn("Go", 1)
    assert not list(Path("../outside").iterdir())


def test_an_error_of_the_store_is_raised_as_it_is(disk: Any) -> None:
    class Down:
        def size(self, name: str) -> int:
            return 0

        def read(self, name: str) -> bytes:
            raise ConnectionError("the database is down")

        def append(self, name: str, position: int, data: bytes) -> None:
            raise AssertionError

    with pytest.raises(ConnectionError, match=r"^the database is down$"):
        Agent("a", llm=ScriptedLLM("x"), quiet=True).for_session("k", store=Down()).turn("x")


def test_what_is_no_store_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"a store has the methods .* lacks size, read, append"):
        Agent("a", llm=ScriptedLLM("x"), quiet=True).for_session("k" * 300, store=object())  # type: ignore[arg-type]


# -- what is read of a session that is elsewhere -------------------------------------------------------


@before_each_tool
def asks() -> None:
    raise Pause("may it?")


def careful(store: Any, *responses: Any) -> Any:
    options: Any = {"tools": [work], "plugins": [asks], "llm": ScriptedLLM(*responses), "quiet": True}
    return Agent("worker", **options).for_session("job", store=store)


def test_an_empty_disk_knows_how_a_session_stands(tmp_path: Path, disk: Any) -> None:
    store = SqliteStore(tmp_path / "sessions.db")
    first = careful(store, "hello", call("work", what="x"))
    assert not first.begun and first.turns == 0 and first.waiting == []
    first.turn("hi")
    with pytest.raises(Paused):
        first.turn("go")
    for number, ask in enumerate(
        (
            lambda one: one.begun is True and not one.record.exists(),
            lambda one: one.turns == 1,
            lambda one: one.sums()[0] == "paused",
            lambda one: [wait.reason for wait in one.waiting] == ["may it?"],
            lambda one: one.usage(2).output_tokens == 0,
            lambda one: one.number_for("go") == 2,
        )
    ):
        disk(f"empty-{number}")
        assert ask(careful(store)), number
    disk("last")
    assert not careful(store)._definition.for_session("other", store=store).begun and not list(Path().iterdir())


def test_a_session_that_is_in_a_turn_can_be_looked_at(tmp_path: Path, disk: Any) -> None:
    store = SqliteStore(tmp_path / "sessions.db")
    seen: list[Any] = []

    def look(*_: Any, **__: Any) -> str:
        other = session(store)
        assert other.state == {}
        seen.append((other.begun, other.turns, other.sums()[0], other.waiting))
        disk("two")
        there = session(store)
        seen.append((there.begun, there.turns, there.waiting))
        disk("one")
        return "2"

    assert session(store, "1", look).turn("a", 1) == "1"
    ours = session(store, look)
    ours.turn("b", 2)
    assert seen == [(True, 1, "running", []), (True, 1, [])] and ours.turns == 2


# -- a file that was there before the store ------------------------------------------------------------


def test_a_session_that_was_without_the_store_goes_into_it(table: Table, disk: Any) -> None:
    kept: Any = None
    first = session(kept, call("work", what="L"), "one")
    assert first.turn("go", number=1) == "one"
    again = session(table, "two")
    assert again.turn("go", number=1) == "one" and ran == ["L"]
    assert again.turn("more", number=2) == "two"
    assert session(kept, "three").turn("and", number=3) == "three"  # once more without it
    assert session(table).turn("and", number=3) == "three"
    disk("two")
    model = ScriptedLLM("four")
    there = Agent("worker", tools=[work], llm=model, quiet=True).for_session("job", store=table)
    assert there.turn("last", number=4) == "four" and ran == ["L"]
    assert [one["content"] for one in model.requests[-1].messages if one["role"] == "user"] == [
        *("go", "more", "and", "last"),
    ]
    assert "L" * 40_000 in [one["content"] for one in model.requests[-1].messages]
    texts = list(Path(".co/blobs").iterdir())
    assert [stat.S_IMODE(text.stat().st_mode) for text in texts] == [0o600]


def test_a_file_and_a_store_that_went_on_apart_are_refused_and_nothing_of_them_is_lost(table: Table, disk: Any) -> None:
    kept: Any = None
    session(table, "one").turn("a", number=1)
    session(kept, "ours").turn("b", number=2)
    disk("two")
    session(table, "theirs").turn("c", number=2)
    disk("one")
    before = session(table).record.read_bytes(), table.read("worker@job.yaml")
    for ask in (lambda one: one.turn("b", number=2), lambda one: one.resume()):
        with pytest.raises(ConfigError, match=r"each have lines that the other lacks: move that file away"):
            ask(session(table))
    assert (session(table).record.read_bytes(), table.read("worker@job.yaml")) == before
    session(table).record.rename("away")
    assert session(table).turn("c", number=2) == "theirs"


def test_a_file_that_a_kill_has_left_half_fetched_is_completed(table: Table, disk: Any) -> None:
    first = session(table, call("work", what="L"), "one", "two")
    first.turn("go", number=1)
    first.turn("more", number=2)
    whole, record = first.record.read_bytes(), first.record
    for length in range(0, len(whole), 97):
        record.write_bytes(whole[:length])
        assert session(table).turns == 2 and record.read_bytes() == whole
    record.write_bytes(whole[:50])
    assert session(table, "three").turn("and", number=3) == "three" and ran == ["L"]


# -- processes ------------------------------------------------------------------------------------------

SCRIPT = """
import random, sys, time
from connectagent import Agent, LLMResponse, SessionBusy, SqliteStore, ToolCall


class Model:
    model = "counting"

    def complete(self, messages, tools=None):
        time.sleep(0.02)
        told = messages[-1]["content"]
        last = max(at for at, message in enumerate(messages) if message["role"] == "user")
        done = len([message for message in messages[last:] if message["role"] == "tool"])
        if done < 2:
            return LLMResponse(None, [ToolCall(f"c{done}", "note", {"text": f"{messages[last]['content']}.{done}"})])
        return LLMResponse(f"after {told}")


def note(text: str) -> str:
    "Write a line."
    with open("../notes", "a") as file:
        file.write(text + "\\n")
    return "noted"


agent, store = Agent("writer", tools=[note], llm=Model(), quiet=True), SqliteStore("../sessions.db")
left = [(key, number) for key in "abcd" for number in (1, 2, 3)]
while left:
    key, number = random.choice([one for one in left if (one[0], one[1] - 1) not in left])
    try:
        with agent.for_session(key, store=store) as session:
            result = session.turn(f"{key}{number}", number=number)
    except SessionBusy:
        time.sleep(0.05)
        continue
    print(key, number, result, flush=True)
    left.remove((key, number))
"""


def test_of_two_processes_that_are_killed_and_begin_with_empty_folders_each_tool_runs_once(disk: Any) -> None:
    Path("../script.py").write_text(SCRIPT, "utf-8")
    chance, results = random.Random(11), dict[str, set[str]]()

    def begin(name: str) -> subprocess.Popen[str]:
        disk(name)
        return subprocess.Popen([sys.executable, "../script.py"], stdout=subprocess.PIPE, text=True)

    for number in range(KILLS):
        running = [begin(f"{number}-{which}") for which in "xy"]
        said = ""
        for process in running:
            assert process.stdout is not None
            said += process.stdout.readline()  # it has taken a turn
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0.0, 0.1))
            process.kill()
        for process in running:
            for line in (said + process.communicate()[0]).splitlines(keepends=True):
                if line.endswith("\n"):
                    results.setdefault(line[:3], set()).add(line[4:].strip())
    last = begin("last").communicate(timeout=120)[0].splitlines()
    assert len(last) == 12
    for line in last:
        assert results.setdefault(line[:3], {line[4:]}) == {line[4:]}  # as it was told before
    notes = Path("../notes").read_text().split()
    assert len(notes) == len(set(notes)) and len(notes) >= 24 - 2 * KILLS  # killed as it began
