"""The record: what is in it, and that nothing that is put into it or happens to its disk breaks it or the turn."""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import math
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupted_writes import ctrl_c_after
from record_agents import __file__ as helpers
from record_agents import worker

import connectagent
from connectagent import Agent, LLMResponse, TokenUsage, after_llm, after_tools, before_llm, on_session
from connectagent.cli.view.listing import listing_of
from connectagent.errors import ConfigError
from connectagent.records.file import BETWEEN_TURNS
from connectagent.records.find import all_records, find_record
from connectagent.records.paths import warn
from connectagent.records.read import load_record, read_record
from connectagent.records.summary import summarise
from connectagent.records.yaml_lines import json_line
from connectagent.testing import ScriptedLLM, call


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("DIR", "FSYNC"):
        monkeypatch.delenv(f"CONNECTAGENT_{name}", raising=False)
    return tmp_path


def record_of(agent: Agent) -> dict[str, Any]:
    """The agent's record, which any YAML reader must take as it is."""
    path = agent.record
    assert path is not None
    loaded = load_record(path)
    for loader in (yaml.SafeLoader, yaml.CSafeLoader):
        raw = yaml.load(path.read_bytes(), Loader=loader)
        raw["turns"] = raw["turns"] or []
        for turn in raw["turns"]:
            turn["trace"] = turn["trace"] or []
        assert raw == loaded
    record = read_record(path)
    for turn, kept in zip(record["turns"], loaded["turns"], strict=True):
        assert turn.pop("lines") == kept["trace"]
    return record


def reloaded(value: Any) -> Any:
    line = json_line(value)
    assert line.splitlines() == [line]
    document = f"turns:\n- trace:\n  - {line}\n".encode()
    results = [yaml.load(document, Loader=loader) for loader in (yaml.SafeLoader, yaml.CSafeLoader)]
    assert repr(results[0]) == repr(results[1])
    return results[0]["turns"][0]["trace"][0]


# -- what is in it -------------------------------------------------------------------------------


def test_a_record_has_the_keys_that_are_promised(folder: Path) -> None:
    def approve(agent: Agent) -> None: ...

    agent = worker("my_agent", calls=2, system_prompt="You: # work", plugins=[after_tools(approve)])
    agent.input("Find: it")
    record = record_of(agent)
    (turn,) = record.pop("turns")
    started = record.pop("started")
    assert re.fullmatch("[0-9a-f]{12}", record.pop("id"))
    assert re.fullmatch("[0-9a-f]{32}", record.pop("mark"))
    assert record.pop("connectagent") == connectagent.__version__
    assert record == {
        "format": 1,
        "agent": "my_agent",
        "model": "test/rounds",
        "plugins": {"approve": None},
        "plugin_sources": {"approve": {"sha256": sha256(Path(__file__).read_bytes()).hexdigest()[:16]}},
        "system_prompt": "You: # work",
    }
    assert isinstance(started, datetime.datetime)
    assert started.utcoffset() == datetime.timedelta(0)
    trace, messages = turn.pop("trace"), json.loads(turn.pop("messages"))
    assert isinstance(turn.pop("duration_ms"), int)
    assert turn.pop("owner")["pid"] == os.getpid()
    assert turn == {
        "turn": 1,
        "input": "Find: it",
        "model": "test/rounds",
        "tokens": 240,
        "cost": 2e-05,
        "tools_called": ["work", "work"],
        "result": "All of it is done.",
        "state": {},
        "session": {"turns": 1, "iterations": 2, "tools": 2, "tokens": 240, "cost": 2e-05},
        "status": "answered",
    }
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "assistant"]
    kinds = ["user_input", "llm_call", *["began", "tool_execution"] * 2, "llm_call"]
    assert [entry["type"] for entry in trace] == kinds
    assert trace[1]["usage"]["cost"] == 1e-05
    assert trace[2]["arguments"] == {"n": 0, "x": 1e-05}


def test_the_file_is_private_named_after_agent_and_time_and_kept_out_of_git(folder: Path) -> None:
    agent = worker("my_agent")
    agent.input("Go.")
    path = agent.record
    assert path is not None
    assert path.parent == folder / ".co/evals"
    assert re.fullmatch(r"my_agent_\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.yaml", path.name)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (folder / ".co/.gitignore").read_text() == "*\n"


def test_a_gitignore_and_a_folder_of_the_users_are_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".co").mkdir()
    (folder / ".co/.gitignore").write_text("mine\n")
    (folder / "own").mkdir()
    worker().input("Go.")
    assert (folder / ".co/.gitignore").read_text() == "mine\n"
    monkeypatch.setenv("CONNECTAGENT_DIR", str(folder / "own"))
    worker().input("Go.")
    assert sorted(path.name for path in (folder / "own").iterdir()) == [".sessions", "evals", "logs"]
    monkeypatch.setenv("CONNECTAGENT_DIR", "new")
    worker().input("Go.")
    assert (folder / "new/.gitignore").read_text() == "*\n"


def test_nothing_is_written_before_the_first_turn_or_without_a_log(folder: Path) -> None:
    assert worker().record is None
    worker(log=False).input("Go.")
    worker(log=False).execute_tool("work", {"n": 1, "x": 0.5})
    worker(plugins=["no:record", "no:textlog"]).input("Go.")
    assert list(folder.iterdir()) == []


def test_the_turns_of_a_record_add_up_to_the_conversation() -> None:
    agent = worker(rounds=2, calls=2, system_prompt="Work.")
    for number in range(3):
        agent.input(f"Turn {number}")
        assert agent.current_session is not None
        agent.current_session["messages"].append({"role": "user", "content": f"Between {number}"})
    agent.input("The last.")
    turns = record_of(agent)["turns"]
    messages = [message for turn in turns for message in json.loads(turn["messages"])]
    assert messages == agent.current_session["messages"][1:]


def test_a_conversation_that_a_handler_shortens_still_gives_the_turns_own_messages() -> None:
    @before_llm
    def forget(agent: Agent, request: Any) -> None:
        messages = request.messages
        if len(messages) > 6 and messages[-1]["role"] == "user":
            del messages[:4]

    agent = worker(plugins=[forget])
    for number in range(5):
        agent.input(f"Turn {number}")
    for number, turn in enumerate(record_of(agent)["turns"]):
        messages = json.loads(turn["messages"])
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
        assert messages[0]["content"] == f"Turn {number}"


def test_a_reset_begins_another_record() -> None:
    agent = worker()
    agent.input("One.")
    first = agent.record
    agent.reset_conversation()
    agent.input("Two.")
    assert agent.record != first
    assert [turn["input"] for turn in record_of(agent)["turns"]] == ["Two."]


def test_a_tool_that_runs_before_the_first_turn_is_in_the_record_before_it_does_anything() -> None:
    found: list[Any] = []

    def look(agent: Agent) -> str:
        """Look into the record."""
        found.append(Path(str(agent.record)).read_text("utf-8").splitlines()[-1])
        return "ok"

    agent = Agent("looking", [look], llm=ScriptedLLM("Hi."), quiet=True)
    agent.execute_tool("look", {})
    agent.input("Go.")
    agent.execute_tool("look", {})
    began = [json.loads(line.removeprefix("  - ")) for line in found]
    assert [(line["type"], line["tool_name"]) for line in began] == [("began", "look")] * 2


def test_a_turn_behind_messages_that_the_program_removed_has_its_own() -> None:
    agent = Agent("shrunk", llm=ScriptedLLM("One.", "Two."), quiet=True)
    agent.input("First.")
    del agent.session["messages"][:]
    agent.input("Second.")
    texts = [message["content"] for message in json.loads(record_of(agent)["turns"][1]["messages"])]
    assert texts == ["Second.", "Two."]


def test_what_a_resumed_turn_begins_before_its_item_is_in_that_item() -> None:
    @on_session
    def meet(agent: Agent, reason: str) -> None:
        agent.state["met"] = reason

    def agent() -> Agent:
        return Agent("met", llm=ScriptedLLM("Hi."), quiet=True, on_events=[meet])

    first = agent()
    first.input("Go.")
    path = Path(str(first.record))
    lines = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[: max(at for at, line in enumerate(lines) if '"user_input"' in line) + 1]), "utf-8")
    assert agent().resume(path) == "Hi."
    turns = read_record(path)["turns"]
    assert [turn.get("status") for turn in turns] == [None, "answered"] and turns[1]["resumed"] is True


def test_tools_that_run_between_turns_are_recorded_there() -> None:
    agent = worker()
    agent.execute_tool("work", {"n": 7, "x": 0.5})
    agent.input("Go.")
    agent.execute_tool("work", {"n": 8, "x": 0.5})
    agent.execute_tool("work", {"n": 9, "x": 0.5})
    turns = record_of(agent)["turns"]
    assert [turn["turn"] for turn in turns] == [0, 1, 1]
    assert [turn["status"] for turn in turns] == [BETWEEN_TURNS, "answered", BETWEEN_TURNS]
    results = [[entry.get("result") for entry in turn["trace"] if entry["type"] == "tool_execution"] for turn in turns]
    assert results == [["worked on 7"], ["worked on 0"], ["worked on 8", "worked on 9"]]


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("no: # way\x85"), "error"), (KeyboardInterrupt(), "interrupted")]
)
def test_a_turn_that_fails_says_so_and_the_next_one_follows(error: BaseException, status: str) -> None:
    raised = [error]

    @after_llm
    def fails(agent: Agent) -> None:
        if raised:
            raise raised.pop()

    agent = worker(plugins=[fails])
    with pytest.raises(type(error)):
        agent.input("One.")
    agent.input("Two.")
    one, two = record_of(agent)["turns"]
    assert (one["status"], one["result"], one["error"]) == (status, None, f"{type(error).__name__}: {error}")
    assert two["status"] == "answered"
    assert "error" not in two


def test_an_unknown_price_is_not_guessed() -> None:
    class Unpriced:
        model = "yes"

        def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
            return LLMResponse("Hi.", usage=TokenUsage(3, 4) if len(messages) == 1 else None)

    agent = Agent("null", llm=Unpriced(), quiet=True)
    agent.input("One.")
    agent.input("Two.")
    record = record_of(agent)
    assert (record["agent"], record["model"]) == ("null", "yes")
    assert [(turn["tokens"], turn["cost"]) for turn in record["turns"]] == [(7, None), (None, None)]


def test_state_that_lives_for_one_turn_is_never_recorded() -> None:
    @before_llm
    def keeps(agent: Agent) -> None:
        session: Any = agent.current_session
        session["state"].update({"temp:key": "secret", "kept": 1})
        session["temp:other"] = "secret"
        session["other"] = 2

    agent = worker(plugins=[keeps])
    agent.input("Go.")
    path = agent.record
    assert path is not None
    assert "secret" not in path.read_text()
    deltas = [entry["delta"] for entry in record_of(agent)["turns"][0]["trace"] if "delta" in entry]
    assert deltas == [{"kept": 1}, {"other": 2}]


# -- it is valid after every write, and does not grow ----------------------------------------------


def test_the_record_loads_after_every_write_and_a_torn_line_is_left_out() -> None:
    agent = worker(rounds=2, calls=2, system_prompt="é" * 50)
    agent.input("One.")
    agent.input("Two.")
    path = agent.record
    assert path is not None
    data = path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(data) if byte == ord("\n")]
    for end in ends:
        yaml.load(data[:end], Loader=yaml.CSafeLoader)
    torn = path.with_name("torn.yaml")
    for end in (*range(0, len(data), 97), len(data) - 3):
        torn.write_bytes(data[:end])
        for turn in read_record(torn)["turns"][:-1]:
            assert turn["status"] == "answered"
    assert "status" not in read_record(torn)["turns"][-1]


def test_a_turn_takes_as_many_bytes_at_200_as_at_10() -> None:
    agent = worker(calls=2)
    for _ in range(200):
        agent.input("Go.")
    path = agent.record
    assert path is not None
    turns = path.read_text().split("\n- turn: ")
    numbers = r'(?<="digest": ")\w+|\d+(\.\d+)?(e-\d+)?'
    tenth, last = (re.sub(numbers, "0", turns[number].strip()) for number in (10, 200))
    assert turns[200].startswith("200\n")
    assert len(tenth) > 1000
    assert tenth == last


def test_a_file_that_is_no_record_is_told(folder: Path) -> None:
    for text in ("a: [\n", "- 1\n", "turns: 5\n", "turns: [5]\n"):
        (folder / "x.yaml").write_text(text)
        with pytest.raises(ConfigError, match=r"x\.yaml: not a record"):
            read_record(folder / "x.yaml")


def test_synced_records_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_FSYNC", "1")
    agent = worker()
    agent.input("Go.")
    assert record_of(agent)["turns"][0]["status"] == "answered"


# -- what YAML does to JSON ------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["\x85", "\u2028\u2029", "\ufeff", "\x7f\x80\x9f", "\ufffe\uffff", "\U0001f600", "a: #", "\t", "\0\x1b", "1e-05"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)


@given(VALUES)
@settings(max_examples=int(os.environ.get("PROPERTY_CASES", "120")), deadline=None)
def test_whatever_is_json_comes_out_of_yaml_as_it_went_in(value: Any) -> None:
    assert repr(reloaded(value)) == repr(value)


@pytest.mark.parametrize("number", [1e-05, 1e16, 1.5e300, -1e-300, 5e-324, 0.0, -0.0, 1e22, math.inf, -math.inf])
def test_floats_stay_floats(number: float) -> None:
    assert repr(reloaded({"n": [number]})) == repr({"n": [number]})
    assert math.isnan(reloaded(math.nan))


def test_keys_of_any_length_and_kind_are_read_back() -> None:
    long = {"k" * length: length for length in (166, 167, 900, 998, 999, 1022, 1023, 5000)}
    assert reloaded({"a": long, "\u2028" * 300: 1}) == {"a": long, "\u2028" * 300: 1}
    kinds = {1: "a", None: "b", False: "c", 1.5: "d", (1, 2): "e"}
    assert reloaded(kinds) == {"1": "a", "null": "b", "false": "c", "1.5": "d", "(1, 2)": "e"}


def test_lone_surrogates_are_replaced() -> None:
    assert reloaded({"\ud800a": ["b\udfff"]}) == {"\ufffda": ["b\ufffd"]}


@dataclass
class Point:
    x: float


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_what_is_not_data_is_told_and_never_raises() -> None:
    circle: list[Any] = [1]
    circle.append(circle)
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    told = reloaded([Point(1e-05), {3}, (1,), b"\xff", Path("a"), 10**5000, circle, Hostile(), {Hostile(): 1}])
    assert told[:5] == [{"x": 1e-05}, [3], [1], "b'\\xff'", "a"]
    assert told[5] == hex(10**5000)
    assert told[6] == [1, "<list: it contains itself>"]
    assert "RuntimeError" in told[7]
    assert "too many levels" in json_line(reloaded({"a": deep}))


def test_prompts_results_and_arguments_of_any_kind_leave_a_record_that_loads() -> None:
    nasty = "\x85\u2028\x00\x7f'\"\\: #\t- {\r\n\U0001f600\ud800"

    class Nasty:
        model = nasty

        def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
            return LLMResponse(nasty)

    agent = Agent(nasty, llm=Nasty(), system_prompt=nasty, quiet=True)
    agent.input(nasty)
    record = record_of(agent)
    shown = nasty.replace("\ud800", "\ufffd")
    (turn,) = record["turns"]
    assert {record["agent"], record["model"], record["system_prompt"], turn["input"], turn["result"]} == {shown}
    assert json.loads(turn["messages"])[0]["content"] == nasty


def test_an_entry_that_changes_while_it_is_written_costs_that_entry_only() -> None:
    class Changing(dict[str, Any]):
        def items(self) -> Any:
            raise RuntimeError("dictionary changed size during iteration")

    assert "dictionary changed size" in reloaded(Changing(type="x"))["not_recorded"]


# -- names, threads, processes -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../x", "a/b", ".", "..", ".hidden", "日本 é", "n" * 300, "日" * 300, "a\0b\\c:d"])
def test_a_hostile_name_stays_in_the_folder(name: str, folder: Path) -> None:
    agent = worker(name)
    agent.input("Go.")
    path = agent.record
    assert path is not None
    assert path.parent == folder / ".co/evals"
    assert not path.name.startswith(".")
    assert record_of(agent)["agent"] == name


def test_twenty_threads_of_the_same_second_write_twenty_whole_records(folder: Path) -> None:
    barrier = threading.Barrier(20)
    agents = [worker("twin", rounds=3) for _ in range(20)]

    def run(agent: Agent) -> None:
        barrier.wait()
        agent.input("Begin.")

    threads = [threading.Thread(target=run, args=(agent,)) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({agent.record for agent in agents}) == 20
    for agent in agents:
        (turn,) = record_of(agent)["turns"]
        assert turn["tools_called"] == ["work"] * 3


def test_tools_that_run_in_threads_share_one_record() -> None:
    agent = worker()
    agent.input("Go.")
    path = agent.record

    def announce(number: int) -> None:
        for index in range(50):
            told = {"tool_name": "t", "arguments": {}, "call_id": "c", "status": "success", "iteration": 1}
            timed = {"timing": 0.0, "timestamp": 0.0}
            agent.log.append({"type": "tool_execution", **told, **timed, "result": f"{number}-{index}"})

    threads = [threading.Thread(target=announce, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert agent.record == path
    results = {entry["result"] for entry in record_of(agent)["turns"][-1]["trace"] if entry.get("tool_name") == "t"}
    assert results == {f"{number}-{index}" for number in range(8) for index in range(50)}


def test_a_forked_process_continues_in_a_record_of_its_own(folder: Path) -> None:
    code = (
        "import os; from record_agents import worker; agent = worker(); agent.input('Both.')\n"
        "child = os.fork()\nagent.input('Child.' if child == 0 else 'Parent.')\n"
        "os._exit(0) if child == 0 else os.waitpid(child, 0)\n"
    )
    run(code, folder)
    turns = [read_record(path)["turns"] for path in (folder / ".co/evals").iterdir()]
    assert sorted([turn["input"] for turn in own] for own in turns) == [["Both.", "Parent."], ["Child."]]
    (child,) = next(own for own in turns if len(own) == 1)
    assert json.loads(child["messages"])[0]["content"] == "Both."  # the file alone holds its conversation


# -- disks that do not take it, and Ctrl-C -------------------------------------------------------------


def run(code: str, folder: Path, **more: Any) -> str:
    """Run code in a process of its own and return what it said on stderr."""
    path = os.pathsep.join([str(Path(helpers).parent), str(Path(helpers).parents[2])])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60, **more,
    )  # fmt: skip
    if done.returncode == -signal.SIGSEGV:
        raise Crashed(done.stderr)
    assert done.returncode == 0, done.stderr
    return done.stderr


class Crashed(AssertionError):
    """The interpreter crashed."""


def test_a_file_in_the_folders_place_costs_one_warning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / ".co").write_text("")
    agent = worker()
    assert agent.input("One.") == agent.input("Two.") == "All of it is done."
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("connectagent: the record cannot be written: ")
    assert str(folder / ".co") in error
    assert agent.record is None


def test_a_folder_that_may_not_be_written_costs_one_warning() -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        folder = Path(name)
        for path in (".co/evals", ".co/logs"):
            (folder / path).mkdir(parents=True)
            (folder / path).chmod(0o555)
        folder.chmod(0o755)
        # A first turn imports what a turn needs: after the change of user Python's own modules may be unreadable.
        code = "import os; from record_agents import worker; os.environ['CONNECTAGENT_DIR'] = 'first'\n"
        code += "worker().input('None.'); del os.environ['CONNECTAGENT_DIR']\nagent = worker()\n"
        code += "os.getuid() or os.setuid(65534)\n"  # root may write everywhere
        error = run(code + "assert agent.input('One.') == agent.input('Two.') == 'All of it is done.'", folder)
        assert error.count("\n") == 1
        assert "Permission denied" in error
        assert not list((folder / ".co/evals").iterdir())


def test_a_disk_that_is_full_cuts_the_record_at_a_whole_line(folder: Path) -> None:
    code = (
        "import resource; from record_agents import worker; a = worker(); a.input('One.')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n"
        "for _ in range(20): assert a.input('More.') == 'All of it is done.'\n"
    )
    error = run(code, folder)
    assert error.count("\n") == 1
    assert "the record cannot be written: [Errno 27] File too large" in error
    (path,) = (folder / ".co/evals").iterdir()
    data = path.read_bytes()
    assert 2000 < len(data) <= 4000
    assert data.endswith(b"\n")
    turns = yaml.safe_load(data)["turns"]
    assert turns[0]["status"] == "answered"
    number = turns[-1]["turn"] + ("status" in turns[-1])
    kept = f"from turn {number} on no record, text log and long texts of this session are kept"
    assert kept in error
    assert path.name.endswith(".incomplete.yaml")
    assert summarise(path).status == f"not recorded from turn {number}"
    assert all_records() == [find_record("worker")] == [path]
    assert f"turn {number + 1} >" not in (folder / ".co/logs/worker.log").read_text()


def test_the_open_turn_of_a_record_that_lacks_its_end_is_not_gone_on_with() -> None:
    agent = worker()
    agent.input("One.")
    path = agent.record
    assert path is not None
    whole = path.read_text()
    torn = path.with_name("torn.incomplete.yaml")
    torn.write_text(whole.partition("  status: ")[0])
    with pytest.raises(ConfigError, match=r"is not recorded to its end, so .* not known; go back: place=1"):
        worker().resume(torn)
    again = worker()
    again.resume(torn, place=1)
    assert again.input("Again.") == "All of it is done."
    torn.write_text(whole)  # its last turn is whole
    assert worker().resume(torn) == "All of it is done."


@pytest.mark.parametrize("kept", ["turns:\n", "- turn: 1\n"])
def test_an_incomplete_record_without_a_turn_is_refused(kept: str) -> None:
    agent = worker()
    agent.input("One.")
    assert agent.record is not None
    whole = agent.record.read_text()
    torn = agent.record.with_name("torn.incomplete.yaml")
    torn.write_text(whole[: whole.index(kept) + (len(kept) if kept == "turns:\n" else 0)])
    with pytest.raises(ConfigError, match="not recorded to its end, so what was done is not known: no turn is in it"):
        worker().resume(torn)


def test_a_long_text_that_cannot_be_written_does_not_hide_that_the_record_cannot(
    capsys: pytest.CaptureFixture[str],
) -> None:
    agent = worker()
    agent.input("One.")
    full = OSError(errno.ENOSPC, "No space left on device")
    for what in ("long text", "text log", "text log", "record", "long text"):
        warn(agent, what, full)
    told = [line.split(" cannot ")[0] for line in capsys.readouterr().err.splitlines()]
    assert told == ["connectagent: the long text", "connectagent: the text log", "connectagent: the record"]


@pytest.mark.posix("does not remove a folder with an open file")
def test_a_folder_that_is_removed_meanwhile_costs_one_warning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @after_tools
    def remove(agent: Agent) -> None:
        shutil.rmtree(folder / ".co", ignore_errors=True)

    agent = worker(plugins=[remove], log=True)
    assert agent.input("One.") == agent.input("Two.") == "All of it is done."
    assert capsys.readouterr().err.count("the record cannot be written: [Errno 2] it was removed") == 1


def test_a_file_that_was_shortened_by_someone_else_goes_on(folder: Path) -> None:
    agent = worker()
    agent.input("One.")
    path = agent.record
    assert path is not None
    os.truncate(path, path.read_bytes().index(b"- turn: 1"))
    agent.input("Two.")
    assert [turn["input"] for turn in record_of(agent)["turns"]] == ["Two."]


def test_a_terminal_that_is_gone_does_not_matter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".co").write_text("")
    monkeypatch.setattr(sys, "stderr", None)
    assert worker().input("Go.") == "All of it is done."


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there is no setitimer")
def test_ctrl_c_at_any_moment_leaves_a_whole_record(folder: Path) -> None:
    for attempt in range(3):  # CPython 3.11.7 itself crashes at one of some 20,000 such presses
        place = folder / str(attempt)
        place.mkdir()
        with contextlib.suppress(Crashed):
            run("import record_agents; record_agents.run_interrupted()", place)
            break
    (path,) = [path for path in (place / ".co/evals").iterdir() if path.stat().st_size]
    assert path.read_bytes().endswith(b"\n")
    turns = read_record(path)["turns"]
    assert turns[-1]["input"] == "The last."
    assert turns[-1]["status"] == "answered"
    assert {"interrupted", "answered"} <= {turn.get("status") for turn in turns}


def test_ctrl_c_while_the_turns_end_is_written_leaves_no_record_locked() -> None:
    def made() -> Agent:
        return Agent("a", llm=ScriptedLLM("Done."), quiet=True)

    agent = made()
    with pytest.raises(KeyboardInterrupt), ctrl_c_after(b"  status: "):
        agent.input("Hi")
    assert made().resume(agent.record) == "Done."
    assert agent.resume(agent.record) == "Done."


def test_a_handler_that_takes_long_is_told_with_its_time_and_a_quick_one_is_not() -> None:
    @after_tools
    def slow() -> None:
        time.sleep(0.02)

    def task() -> str:
        """Do it."""
        return "done"

    @before_llm
    def quick() -> None:
        """Do nothing."""

    agent = Agent("slow", tools=[task], llm=ScriptedLLM(call("task"), "Done."), on_events=[slow, quick], quiet=True)
    before = time.time()
    agent.input("Go")
    path = agent.record
    assert path is not None
    told = [bar for bar in read_record(path)["turns"][0]["handlers"] if bar[0] == "slow"]
    ((_, hook, at, took),) = told
    assert hook == "after_tools" and before <= at + 0.001 and 20 <= took < 1000 * (time.time() - before)
    assert listing_of(read_record(path)).items[0]["handlers"][0]["plugin"] == "slow"


def test_a_session_that_went_on_elsewhere_is_not_written_to_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    here, there = (Agent("one", llm=ScriptedLLM(*"abc"), quiet=True) for _ in range(2))
    here.input("First.")
    there.resume(here.record)
    there.input("Second, there.")
    record = there.record
    assert record is not None and record == here.record
    before = record.read_bytes()
    assert here.input("Second, here.") == "b"
    assert "another agent has written to it since" in capsys.readouterr().err
    assert record.read_bytes() == before
    there.input("Third, there.")
    assert [turn["input"] for turn in read_record(record)["turns"]] == ["First.", "Second, there.", "Third, there."]
    here.resume(record)
    assert here.input("Fourth, here.") == "c"
    assert [turn["input"] for turn in read_record(record)["turns"]][3:] == ["Fourth, here."]
