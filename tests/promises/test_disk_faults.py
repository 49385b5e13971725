"""A disk that is full or fails: a session with a key stops, and goes on when it is back; nothing is done twice."""

from __future__ import annotations

import ast
import errno
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent, LLMResponse, Pause, Paused, SqliteStore, ToolCall, before_each_tool
from connectagent.errors import ConfigError, DivergenceError
from connectagent.testing import ScriptedLLM

STEP = int(os.environ.get("DISK_FAULTS_STEP", "97"))  # 1: a fault at each operation; else at each so many
ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)
ran: Counter[str] = Counter()


class Disk:
    """Fails from one operation on files below `.co` on, until it is `back`.

    Args:
        at: the number of the operation that fails first.
        error: its errno.
        once: whether only this operation fails.
    """

    def __init__(self, at: int, error: int, once: bool = False) -> None:
        self.at, self.error, self.once = at, error, once
        self.count = 0
        self.is_back = False
        self.failed: list[str] = []
        self._lock = threading.Lock()
        self._real = {name: getattr(os, name) for name in ("open", "write", "ftruncate", "fsync", "rename", "replace")}

    def _fails(self, what: str, path: Any) -> bool:
        if self.is_back or not any(f"/.co/{folder}" in str(path) for folder in ("evals", "blobs")):
            return False
        with self._lock:
            self.count += 1
            fails = self.count == self.at if self.once else self.count >= self.at
            if fails:
                self.failed.append(what)
            return fails

    def _raise(self, path: Any) -> None:
        raise OSError(self.error, os.strerror(self.error), str(path))

    def open(self, path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and self._fails("open", os.path.abspath(path)):
            self._raise(path)
        return int(self._real["open"](path, flags, *more, **options))

    def write(self, fd: int, data: Any) -> int:
        path = _path_of(fd)
        if self._fails("write", path):
            if self.count % 2 and self.error == errno.ENOSPC and len(self.failed) == 1 and not self.once:
                return int(self._real["write"](fd, bytes(data)[: len(data) // 2]))  # what there was room for
            self._raise(path)
        return int(self._real["write"](fd, data))

    def ftruncate(self, fd: int, size: int) -> None:
        if self._fails("ftruncate", path := _path_of(fd)):
            self._raise(path)
        self._real["ftruncate"](fd, size)

    def fsync(self, fd: int) -> None:
        if self._fails("fsync", path := _path_of(fd)):
            self._raise(path)

    def rename(self, source: Any, target: Any) -> None:
        if self._fails("rename", os.path.abspath(source)):
            self._raise(source)
        self._real["rename"](source, target)

    def replace(self, source: Any, target: Any) -> None:
        if self._fails("replace", os.path.abspath(source)):
            self._raise(source)
        self._real["replace"](source, target)

    @contextmanager
    def used(self) -> Iterator[Disk]:
        with pytest.MonkeyPatch.context() as patch:
            for name in self._real:
                patch.setattr(os, name, getattr(self, name))
            yield self


def _path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="finds paths of open files in /proc")


class Model:
    """Asks for calls, some of them at once and one of another agent, then answers."""

    model = "m"

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        last = max(number for number, message in enumerate(messages) if message["role"] == "user")
        prompt = messages[last]["content"]
        rounds: list[tuple[str, ...]] = [("a",), ("b", "LONG"), ()]
        asked = sum(message["role"] == "assistant" for message in messages[last:])
        calls = [ToolCall(f"{prompt}-{what}", "work", {"what": f"{prompt}:{what}"}) for what in rounds[asked]]
        if asked == 1 and not prompt.startswith("inner"):
            calls.append(ToolCall(f"{prompt}-inner", "helper", {"prompt": f"inner {prompt}"}))
        return LLMResponse(None if calls else f"done {prompt}", calls)


def work(what: str) -> str:
    """Do it."""
    ran[what] += 1
    return what * 9000 if "LONG" in what else "ok"


def worker() -> Agent:
    helper = Agent("helper", tools=[work], llm=Model(), quiet=True)
    return Agent("worker", tools=[work, helper], llm=Model(), quiet=True)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    ran.clear()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONNECTAGENT_FSYNC", "1")
    return tmp_path


PROMPTS = ("one", "two", "three")
OF_ONE = [f"{inner}{{}}:{what}" for inner in ("", "inner ") for what in ("a", "b", "LONG")]
EACH = Counter({what.format(prompt): 1 for prompt in PROMPTS for what in OF_ONE})


def keyed(store: Any, anew: bool, numbered: bool) -> Callable[[Disk], list[Any]]:
    """Take the turns of a session, each again after an error, here or by another agent."""

    def take(disk: Disk) -> list[Any]:
        session = worker().for_session("k", store=store)
        results = []
        for number, prompt in enumerate(PROMPTS, 1):
            for _ in range(2):
                try:
                    results.append(session.turn(prompt, number=number if numbered else None))
                    break
                except OSError as error:
                    assert error.errno == disk.error and not disk.is_back, error
                    disk.is_back = True
                    session = worker().for_session("k", store=store) if anew else session
        disk.is_back = True
        # Where the end of a turn could neither be brought to the disk nor removed, only its number asks for it again.
        if disk.failed[:2] == ["fsync", "ftruncate"] and anew and not numbered and session.turns == 4:
            return []
        assert session.turns == 3
        return [*results, *(worker().for_session("k", store=store).turn(p, number=n) for n, p in enumerate(PROMPTS, 1))]

    return take


def mapped(store: Any) -> Callable[[Disk], list[Any]]:
    def take(disk: Disk) -> list[Any]:
        items = list(worker().map(PROMPTS, run="r", store=store, concurrency=1))
        assert all(item.error is None or getattr(item.error, "errno", 0) == disk.error for item in items), items
        disk.is_back = True
        again = list(worker().map(PROMPTS, run="r", store=store, concurrency=1))
        return [item.result for item in again] * 2

    return take


def operations(take: Callable[[Disk], list[Any]]) -> int:
    """How many operations on files there are without a fault."""
    with Disk(10**9, 0).used() as disk:
        take(disk)
    return disk.count


def fresh(place: Path) -> None:
    """Begin in an empty folder."""
    os.chdir(tempfile.mkdtemp(dir=place))
    ran.clear()


Take = Callable[[Disk], list[Any]]
WAYS: dict[str, Callable[[Any], Take]] = {
    "again": partial(keyed, anew=False, numbered=False),
    "again by its number": partial(keyed, anew=False, numbered=True),
    "by another agent": partial(keyed, anew=True, numbered=False),
    "by another agent and its number": partial(keyed, anew=True, numbered=True),
    "map": mapped,
}


@pytest.mark.parametrize("kept", ["file", "store"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("once", [False, True])
def test_a_session_goes_on_when_the_disk_is_back(way: str, kept: str, once: bool, folder: Path) -> None:
    def take_in_folder() -> Callable[[Disk], list[Any]]:
        fresh(folder)
        return WAYS[way](SqliteStore(os.path.abspath("s.db")) if kept == "store" else None)

    most = operations(take_in_folder())
    assert most > 60
    faults = 0
    step = min(STEP * 3 if kept == "store" else STEP, most)  # each piece of a store waits for the real disk
    for at in range(1 + step // 2, most + 1, step):
        error = ERRORS[at // step % 3]
        take = take_in_folder()
        with Disk(at, error, once).used() as disk:
            results = take(disk)
        if not results:
            continue
        case = (way, kept, at, errno.errorcode[error], disk.failed)
        assert results == [f"done {prompt}" for prompt in PROMPTS] * 2, case
        is_kept = "ftruncate" in disk.failed  # so that a call that did not begin is in doubt
        assert ran <= EACH and len(EACH - ran) <= is_kept, (*case, EACH - ran)
        assert not list(Path(".co/evals").glob("*.incomplete*")), case
        faults += bool(disk.failed)
    assert faults


@pytest.mark.parametrize("once", [False, True])
def test_a_session_that_is_resumed_by_its_record_goes_on(once: bool, folder: Path) -> None:
    def take(disk: Disk) -> list[Any]:
        disk.is_back = True
        worker().for_session("k").turn("one")
        (record,) = Path(".co/evals").glob("*.yaml")
        agent = worker()
        agent.resume(record)
        disk.is_back = False
        results = []
        for prompt in ("two", "three"):
            try:
                results.append(agent.input(prompt))
            except OSError as error:
                assert error.errno == disk.error and not disk.is_back
                disk.is_back = True
                result = agent.resume()  # of the turn before, where this one had not begun
                results.append(result if result == f"done {prompt}" else agent.input(prompt))
        disk.is_back = True
        session = worker().for_session("k")
        return [*results, *(session.turn(prompt, number=n) for n, prompt in enumerate(PROMPTS, 1))]

    fresh(folder)
    most = operations(take)
    for at in range(1, most + 1, max(1, STEP // 4)):
        fresh(folder)
        with Disk(at, ERRORS[at % 3], once).used() as disk:
            results = take(disk)
        assert results == ["done two", "done three", "done one", "done two", "done three"], (at, disk.failed, results)
        assert ran <= EACH, (at, disk.failed, ran - EACH)


@before_each_tool
def ask(agent: Agent) -> None:
    if agent.session["pending_tool"]["arguments"].get("what") == "one:a":
        raise Pause("may it?")


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("once", [False, True])
def test_a_decision_counts_once(once: bool, anew: bool, folder: Path) -> None:
    def take(disk: Disk) -> list[Any]:
        def begun() -> Any:
            agent = Agent("worker", tools=[work], llm=Model(), quiet=True, plugins=[ask])
            return agent.for_session("k")

        session = begun()
        steps = [lambda s: s.turn("one"), lambda s: s.resume(approve=True), lambda s: s.turn("one", 1)]
        seen: list[Any] = []
        while steps:
            try:
                seen.append(steps[0](session))
            except Paused:
                seen.append("paused")
            except OSError as error:
                assert error.errno == disk.error and not disk.is_back
                disk.is_back = True
                session = begun() if anew else session
                continue
            steps.pop(0)
        return seen

    fresh(folder)
    most = operations(take)
    for at in range(1 + anew + once, most + 1, max(1, STEP // 4)):
        fresh(folder)
        with Disk(at, ERRORS[at % 3], once).used() as disk:
            assert take(disk) == ["paused", "done one", "done one"], (at, disk.failed)
        is_kept = "ftruncate" in disk.failed
        assert {"one:a", "one:b", "one:LONG"} - ran.keys() == set() or is_kept, (at, disk.failed, ran)
        assert max(ran.values()) == 1, (at, disk.failed, ran)


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("error", ERRORS)
def test_another_prompt_gives_the_stopped_turn_up(error: int, once: bool, folder: Path) -> None:
    def take(disk: Disk) -> list[Any]:
        session = worker().for_session("k")
        results = []
        for prompt in PROMPTS:
            try:
                results.append(session.turn(prompt))
            except OSError as stopped:
                assert stopped.errno == error
                results.append("stopped")
                disk.is_back = True
        return results

    fresh(folder)
    most = operations(take)
    for at in range(1 + error, most + 1, STEP):
        fresh(folder)
        with Disk(at, error, once).used() as disk:
            results = take(disk)
        assert results.count("stopped") <= 1, (at, results)
        assert ran <= EACH, (at, ran)
        assert all(result in ("stopped", f"done {prompt}") for result, prompt in zip(results, PROMPTS, strict=True)), at


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("error", ERRORS)
def test_a_plain_agent_goes_on_with_one_warning(
    error: int, once: bool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def take(disk: Disk) -> list[Any]:
        agent = worker()
        return [agent.input(prompt) for prompt in PROMPTS]

    fresh(folder)
    most = operations(take)
    for at in range(1 + error, most + 1, STEP):
        fresh(folder)
        with Disk(at, error, once).used() as disk:
            assert take(disk) == [f"done {prompt}" for prompt in PROMPTS]
        assert ran == EACH
        warned = capsys.readouterr().err
        assert warned.count("the record cannot be written") <= 1
        for path in Path(".co/evals").glob("*.incomplete.yaml"):
            try:
                worker().resume(path)
            except ConfigError as refused:
                assert "is not recorded to its end" in str(refused)
            else:
                assert "is not recorded from turn" in capsys.readouterr().err
        assert ran == EACH


def incomplete(*prompts: str, cut: str | None = None) -> Path:
    """The record of a session with a key, as versions up to 0.1 left it when the disk was full."""
    session = worker().for_session("k")
    for prompt in prompts:
        session.turn(prompt)
    lost = session.record.with_name(session.record.name.replace(".yaml", ".incomplete.yaml"))
    session.record.rename(lost)
    if cut is not None:
        text = lost.read_text()
        lost.write_text(text[: text.rindex(cut)])
    return lost


@pytest.mark.parametrize("cut", ["  model:", '  - {"type": "tool_execution"', "  status:"])
def test_an_incomplete_record_whose_turn_is_open_goes_on_with_the_next(
    cut: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = incomplete("one", "two", cut=cut)
    before = Counter(ran)
    session = worker().for_session("k")
    assert session.turn("three") == "done three"
    assert "goes on without its turn 2" in capsys.readouterr().err
    assert not lost.exists()
    assert session.turn("one", number=1) == "done one"
    with pytest.raises(DivergenceError, match=r"turn 2 of .* was given up: it was not recorded to its end"):
        session.turn("two", number=2)
    again = worker().for_session("k")
    assert again.turn("three", number=3) == "done three"
    assert again.turns == 3
    assert ran == before + Counter({what.format("three"): 1 for what in OF_ONE})
    assert "without" not in capsys.readouterr().err


@pytest.mark.parametrize("look", [lambda s: s.turns == 1, lambda s: s.begun, lambda s: s.number_for("x") == 2])
def test_a_look_at_an_incomplete_record_sees_its_turns(look: Callable[[Any], bool]) -> None:
    incomplete("one")
    assert look(worker().for_session("k"))


def test_an_incomplete_record_of_turns_that_ended_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    incomplete("one")
    session = worker().for_session("k")
    assert session.turn("two", number=2) == "done two"
    assert session.turn("one", number=1) == "done one"
    assert capsys.readouterr().err.count("was not recorded behind turn 1") == 1
    assert max(ran.values()) == 1


def test_an_incomplete_record_without_a_turn_begins_anew(capsys: pytest.CaptureFixture[str]) -> None:
    incomplete("one").write_text("")
    ran.clear()
    assert worker().for_session("k").turn("one", number=1) == "done one"
    assert capsys.readouterr().err.count("it begins anew") == 1


def test_a_session_that_began_anew_beside_an_incomplete_record_stays(capsys: pytest.CaptureFixture[str]) -> None:
    lost = incomplete("one")
    session = worker().for_session("k")
    lost.rename(lost.with_name("aside"))
    session.turn("two")
    lost.with_name("aside").rename(lost)
    assert worker().for_session("k").turn("two", number=1) == "done two"
    assert lost.exists() and not capsys.readouterr().err


def test_a_resumed_record_says_that_turns_behind_it_were_lost(capsys: pytest.CaptureFixture[str]) -> None:
    agent = Agent("plain", llm=ScriptedLLM("one"), quiet=True)
    agent.input("Hi")
    assert agent.record is not None
    lost = agent.record.rename(agent.record.with_name("x.incomplete.yaml"))
    other = Agent("plain", llm=ScriptedLLM("two"), quiet=True)
    assert other.resume(lost) == "one"
    assert "is not recorded from turn 2 on" in capsys.readouterr().err
    assert other.session["trace"][-1]["not_recorded_from"] == 2


MOUNTED = """
import sys
sys.path.insert(0, {tests!r})
import test_disk_faults as t
session = t.worker().for_session("k")
try:
    for prompt in t.PROMPTS:
        print(session.turn(prompt))
except OSError as error:
    print(error.errno, error)
print(dict(t.ran))
"""


def test_a_small_disk_that_is_full(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.strip()}")
    code = MOUNTED.format(tests=str(Path(__file__).parent))
    try:
        total: Counter[str] = Counter()
        filler = place / "filler"
        filler.write_bytes(b"x" * 40_000)
        for _ in range(2):
            environment = {**os.environ, "CONNECTAGENT_DIR": str(place / ".co")}
            environment["PYTHONPATH"] = str(Path(__file__).parents[2])
            command = [sys.executable, "-c", code]
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            told = done.stdout.splitlines()
            assert done.returncode == 0, done.stderr
            total += Counter(ast.literal_eval(told[-1]))
            if filler.exists():
                assert told[-2].startswith(f"{errno.ENOSPC} "), told
                filler.unlink()
                subprocess.run(["mount", "-o", "remount,size=4m", place], check=True)
        assert told[-2] == "done three", told
        assert total <= EACH
        assert not list(place.rglob("*.incomplete*"))
    finally:
        subprocess.run(["umount", place], check=False)
