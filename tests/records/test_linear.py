"""Reading and playing a record: the work per model call does not grow with the session. Work is counted, not timed."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import connectagent.cli.view.page as page
import connectagent.records.parts as parts
import connectagent.session.snapshot as snapshot
from connectagent import Agent, LLMRequest, LLMResponse, ToolCall, before_llm
from connectagent.cli import main
from connectagent.records import sent, tally
from connectagent.records.read import read_lazily
from connectagent.records.requests import Request
from connectagent.records.watched import watched_agents
from connectagent.replay.replaying import replay
from connectagent.replay.request_keys import RecordedKeys
from connectagent.testing import ScriptedLLM

SHORT, MIDDLE, LONG = 15, 45, 75


def look(x: int) -> str:
    """Look at something."""
    return f"seen {x}"


def agent_of(rounds: int, **options: Any) -> Agent:
    script = [LLMResponse(None, [ToolCall(f"c{number}", "look", {"x": number})]) for number in range(rounds - 1)]
    llm = ScriptedLLM(*script, "Done.")
    return Agent("long", [look], "Be good.", llm=llm, quiet=True, max_iterations=rounds + 1, **options)


def resume(path: Path, rounds: int) -> None:
    """Go on with the one turn of a record, cut off before its last line."""
    text = path.read_text("utf-8")
    cut = path.with_name("cut.yaml")
    cut.write_text(text[: text.rindex("  - ", 0, text.index("\n  model: "))], "utf-8")
    agent = agent_of(rounds)
    agent.llm = ScriptedLLM("Done.")
    assert agent.resume(cut) == "Done."


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Records of sessions of different lengths."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONNECTAGENT_DIR", str(tmp_path_factory.mktemp("linear") / ".co"))
        for rounds in (SHORT, MIDDLE, LONG):
            agent = agent_of(rounds)
            agent.input("Go.")
            assert agent.record is not None
            found[rounds] = agent.record
    return found


@before_llm
def surround(agent: Any, request: LLMRequest) -> None:
    """Send each call another first and another last message."""
    number = agent.current_session["iteration"]
    first, last = ({"role": "user", "content": f"{number}: {word}"} for word in ("Mind the time.", "Go on."))
    request.messages = [first, *request.messages, last]


def requests_of(path: Path) -> list[Request]:
    return [request for agent in watched_agents(read_lazily(path)) for request in agent.requests()]


def test_a_request_that_handlers_edit_is_told_by_what_differs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / ".co"))
    work, found = [], []
    for rounds in (SHORT, MIDDLE, LONG):
        agent = agent_of(rounds, plugins=[surround])
        agent.input("Go.")
        work.append(steps(lambda: found.append(requests_of(Path(str(agent.record))))))  # noqa: B023
    assert work[2] - work[1] < 1.05 * (work[1] - work[0])
    last = found[-1][-1]
    assert [one.message for one in last.messages] == agent.llm.requests[-1].messages
    assert [place for place, _ in last.news()] == [0, last.count - 3, last.count - 2, last.count - 1]
    assert [str(one["content"]) for one in last.gone] == ["74: Mind the time.", "74: Go on."]


def test_keys_of_recorded_requests_are_their_digests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / ".co"))
    for plugins in ([], [surround]):
        agent = agent_of(SHORT, plugins=plugins)
        agent.input("Go.")
        (watched,) = watched_agents(read_lazily(str(agent.record)))
        keys = RecordedKeys()
        found = [keys.of(sending) for sending in watched.sendings()]
        wanted = [sent.digest(None, *request, {}) for request in agent.llm.requests]
        assert found == wanted and len(set(found)) == SHORT


def steps(work: Callable[[], Any]) -> int:
    """How many instructions of Python are run: a loop over all messages counts as many as it has rounds."""
    count = 0

    def note(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def command(*words: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(list(words)) == 0


WAYS: dict[str, Callable[[Path, int], Any]] = {
    "replay with an agent": lambda path, rounds: replay(path, agent_of(rounds, log=False)),
    "replay without one": lambda path, rounds: replay(path),
    "log show": lambda path, rounds: command("log", "show", str(path)),
    "blame": lambda path, rounds: command("blame", str(path)),
    "resume": resume,
    "bill": lambda path, rounds: command("bill", str(path)),
    "log show --full": lambda path, rounds: command("log", "show", "--full", str(path)),
    "log request": lambda path, rounds: command("log", "request", str(path), "--json"),
    "log export --to html": lambda path, rounds: command("log", "export", "--to", "html", str(path)),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_work_per_call_does_not_grow_with_the_session(
    way: str, records: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(records[SHORT].parents[1]))
    monkeypatch.setattr(page, "_MOST_RAW", 0)  # requests as they were, up to 8 MB: each repeats the one before
    monkeypatch.setattr(tally, "_ALONE", 6)  # parts that are divided one by one
    monkeypatch.setattr(tally, "_GROUP", 2)
    for rounds, path in records.items():
        WAYS[way](path, rounds)  # imports, and fills the caches of libraries, as rich's of the widths of texts
    short, middle, long = (steps(lambda: WAYS[way](path, rounds)) for rounds, path in records.items())  # noqa: B023
    most = 1.05 if way == "bill" else 1.02  # groups are as many as a number has digits
    assert long - middle < most * (middle - short), f"{middle - short} instructions for 30 calls, then {long - middle}"


def test_each_message_is_marked_and_divided_once(records: dict[int, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, int] = {}

    def count(module: Any, name: str) -> None:
        function = getattr(module, name)

        def counted(*given: Any, **named: Any) -> Any:
            seen[name] = seen.get(name, 0) + 1
            return function(*given, **named)

        monkeypatch.setattr(module, name, counted)

    monkeypatch.setenv("CONNECTAGENT_DIR", str(records[SHORT].parents[1]))
    count(sent, "mark_of")
    agent = agent_of(LONG)
    agent.input("Go.")
    messages = len(agent.session["messages"])
    assert messages == 2 * LONG + 1 and seen["mark_of"] <= messages + 5  # and the tools, the options, the model
    count(parts, "_message_parts")
    command("bill", str(records[LONG]))
    assert seen["_message_parts"] <= messages


def test_a_replay_copies_each_message_once(records: dict[int, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert snapshot.clone({"role": "user"}) == {"role": "user"}
    played = replay(records[LONG], agent_of(LONG, log=False))
    assert played.same and len(played.requests) == LONG
    first, last = played.requests[0][0], played.requests[-1][0]
    assert last[: len(first)] == first and all(one is other for one, other in zip(first, last, strict=False))
    assert played.requests[-1][0] == agent_messages(played)[:-1]


def agent_messages(played: Any) -> list[Any]:
    return list(played.agent.session["messages"])
