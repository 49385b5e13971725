"""The text log: plain lines, whatever is in them."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from record_agents import Rounds, work, worker

from connectagent import Agent, LLMResponse, add_secret
from connectagent.output.masking import masks as masking
from connectagent.records.paths import safe_name


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


class Says:
    model = "test/says"

    def __init__(self, text: str) -> None:
        self.text = text

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        return LLMResponse(self.text)


def test_a_turn_is_told_line_by_line(folder: Path) -> None:
    worker("helper", calls=2).input("Do two things.")
    lines = (folder / ".co/logs/helper.log").read_text().splitlines()
    texts = [re.sub(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z helper [0-9a-f]{6} ", "", line) for line in lines]
    assert [re.sub(r"\d+ms", "1ms", text) for text in texts] == [
        "turn 1 > Do two things.",
        "  model test/rounds: success, 1ms, 100 + 20 tokens, $0.000010, calls work, work",
        "  tool work(n=0, x=1e-05): success, 1ms: worked on 0",
        "  tool work(n=1, x=1e-05): success, 1ms: worked on 1",
        "  model test/rounds: success, 1ms, 100 + 20 tokens, $0.000010",
        "turn 1 < answered, 1ms: All of it is done.",
    ]


def test_nothing_in_the_log_acts_on_a_terminal_and_further_lines_are_indented(folder: Path) -> None:
    text = "one\x1b[31m\r\ntwo\u2028\u202e\x85\x9b\ud800\ttail\rthree"
    Agent("esc\x1bape", llm=Says(text), quiet=True).input(text)
    (path,) = (folder / ".co/logs").iterdir()
    data = path.read_text(encoding="utf-8")
    assert re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]", data) is None
    for line in data.split("\n")[:-1]:
        assert re.match(r"\d{4}-\d\d-\d\dT|        ", line), line


def test_a_long_prompt_is_shortened(folder: Path) -> None:
    worker("helper").input("x" * 5000)
    first = (folder / ".co/logs/helper.log").read_text().splitlines()[0]
    assert first.endswith("x" * 500 + "... (4500 more characters)")


def test_an_error_names_the_plugin_that_raised_it(folder: Path) -> None:
    from connectagent import before_llm

    @before_llm
    def broken(agent: Agent) -> None:
        raise ValueError("no\nway")

    with pytest.raises(ValueError, match="way"):
        worker("helper", plugins=[broken]).input("Go.")
    data = (folder / ".co/logs/helper.log").read_text()
    assert "error; ValueError: no\n        way (" in data
    assert "broken" in data
    assert f"{Path(__file__).name}:" in data


def test_a_path_that_is_given_is_appended_to_and_private(folder: Path) -> None:
    path = folder / "deep" / "my.log"
    worker("one", log=path).input("First.")
    worker("two", log=path).input("Second.")
    data = path.read_text()
    found = re.findall(r"(\w+) ([0-9a-f]{6}) turn 1 > (\w+)", data)
    assert [(name, words) for name, _, words in found] == [("one", "First"), ("two", "Second")]
    assert found[0][1] != found[1][1]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not (folder / ".co/logs").exists()


def test_a_log_on_a_full_disk_costs_one_warning(capfd: pytest.CaptureFixture[str]) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    agent = worker("helper", log="/dev/full")
    assert agent.input("Go.") == agent.input("Again.") == "All of it is done."
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("connectagent: the text log cannot be written: [Errno 28] No space left on device")


PIPE = pytest.mark.posix("has no pipes among its files")


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("kind", ["link", *(pytest.param(one, marks=PIPE) for one in ("pipe", "pipe with a reader"))])
def test_a_link_or_a_pipe_is_not_written_to(
    kind: str, given: bool, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = folder / ".co/logs/helper.log"
    path.parent.mkdir(parents=True)
    (folder / "mine").write_text("mine")
    path.symlink_to(folder / "mine") if kind == "link" else os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if "reader" in kind else None
    agent = worker("helper", log=path if given else True)
    assert agent.input("Go.") == agent.input("Again.") == "All of it is done."
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    why = "it is a link, which is not followed" if kind == "link" else "it is no regular file"
    assert f"the text log cannot be written: [Errno {40 if kind == 'link' else 22}] {why}" in error
    assert (folder / "mine").read_text() == "mine"
    assert agent.record is not None and "status: answered" in agent.record.read_text()
    if reader is not None:
        assert os.read(reader, 100) == b""
        os.close(reader)


def test_the_log_stays_where_it_was_when_the_program_goes_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = worker("helper")
    agent.input("First.")
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    agent.input("Second.")
    assert "turn 2 > Second." in (folder / ".co/logs/helper.log").read_text()
    assert not list((folder / "elsewhere").iterdir())


def test_an_entry_that_cannot_be_read_does_not_break_the_turn(folder: Path) -> None:
    from connectagent import before_llm

    @before_llm
    def tells(agent: Agent) -> None:
        agent.hooks.observe("on_trace", agent=agent, entry={"type": "tool_execution", "arguments": 5})

    worker("helper", plugins=[tells], plugin_errors="warn").input("Go.")
    assert "tool_execution entry that cannot be read: " in (folder / ".co/logs/helper.log").read_text()


def test_an_agents_name_that_becomes_a_secret_is_masked_from_then_on(folder: Path) -> None:
    def work(n: int, x: float) -> str:
        """Work."""
        add_secret("violet-harbour-42", "badge")
        return "done"

    try:
        agent = Agent("violet-harbour-42", [work], llm=Rounds(1), quiet=True)
        agent.input("Hi")
        agent.name = "renamed"
        agent.input("Again")
    finally:
        masking._given.clear()
    lines = (folder / ".co/logs/violet-harbour-42.log").read_text().splitlines()
    names = [line.split(" ")[1] for line in lines if not line.startswith(" ")]
    assert [line.split("Z ")[1].startswith("violet-harbour-42 ") for line in lines[:2]] == [True, True]
    assert lines[2].split("Z ")[1].startswith("[masked: badge] ") and "violet" not in "".join(lines[2:])
    assert names[-1] == "renamed"


def test_no_descriptor_stays_open_between_turns(folder: Path) -> None:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("there is no /proc")
    before = len(os.listdir("/proc/self/fd"))
    agents = [Agent("many", [work], llm=Rounds(), quiet=True) for _ in range(20)]
    for agent in agents:
        agent.input("Go.")
        agent.execute_tool("work", {"n": 1, "x": 0.5})
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("name", ["../x", "a/b", "", "..", ".x", "日 é", "n" * 300, "日" * 300, "\0b\\c:*", "\ud800"])
def test_an_agents_name_is_safe_as_a_files(name: str) -> None:
    safe = safe_name(name)
    assert safe
    assert not safe.startswith(".")
    assert not set(safe) & set('/\\:*?"<>|\0 ')
    assert len(safe.encode()) <= 100
