"""A session goes on from its record, wherever that was cut off: nothing finished is done again."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from connectagent import (
    Agent,
    Continue,
    Image,
    LLMResponse,
    Pause,
    Paused,
    Retry,
    Sequential,
    TokenUsage,
    ToolCall,
    ToolRejected,
    after_each_tool,
    after_llm,
    after_tools,
    after_user_input,
    around_turn,
    before_each_tool,
    before_llm,
    before_tools,
    llm_do,
    on_complete,
    on_error,
    on_trace,
    tool,
)
from connectagent.data import TraceEntry
from connectagent.errors import ConfigError
from connectagent.loop.stream import streamed
from connectagent.records.blobs import blob_folder
from connectagent.records.history import history_of, joined_turns, read_history
from connectagent.records.locks import is_running, lock
from connectagent.records.read import read_record
from connectagent.records.summary import summarise
from connectagent.records.watched import watched_agents
from connectagent.replay.replaying import replay
from connectagent.testing import ScriptedLLM, call, conversation_problems

PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 20


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


# -- a rich session ------------------------------------------------------------------------------


class Turns:
    """A model that tells from the conversation what comes next, so that it can go on in another process."""

    model = "test/turns"

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        problems = conversation_problems(messages)
        assert not problems, problems
        usage = TokenUsage(10, 5, cost=0.25)
        turn = [message for message in messages if str(message["content"]).startswith("turn ")]
        asked = messages[max(n for n, message in enumerate(messages) if message is turn[-1]) :]
        rounds = sum(1 for message in asked if message.get("tool_calls"))
        text = str(turn[-1]["content"])
        if "fails once" in text and not any("once more" in str(message["content"]) for message in messages):
            raise OSError("no connection")
        if rounds < 2:
            calls = [
                ToolCall(f"{text[5:6]}{rounds}a", "work", {"n": rounds}),
                ToolCall(f"{text[5:6]}{rounds}b", "breaks" if rounds else "work", {"n": 10 + rounds}),
                ToolCall(f"{text[5:6]}{rounds}c", "unknown" if rounds else "guarded", {"n": 20 + rounds}),
            ]
            return LLMResponse(f"Round {rounds}.", calls, usage)
        return LLMResponse("All done.", None, usage)


class Rich:
    """An agent with handlers of every kind; it counts what runs and what fires, by tool call."""

    def __init__(self, **options: Any) -> None:
        self.ran: Counter[tuple[str, str]] = Counter()
        self.fired: Counter[tuple[str, str]] = Counter()
        own = [value for name, value in vars(type(self)).items() if name.startswith("h_")]
        bound = [getattr(self, value.__name__) for value in own]
        tools = [self.work, self.breaks, self.guarded]
        self.agent = Agent("rich", tools, "Be good.", llm=Turns(), quiet=True, plugins=[bound], **options)

    def _noted(self, hook: str, id: str = "") -> None:
        self.fired[hook, id] += 1

    def work(self, n: int, agent: Any) -> str:
        """Work."""
        self.ran["work", agent.current_session["pending_tool"]["id"]] += 1
        agent.current_session["state"]["worked"] = agent.current_session["state"].get("worked", 0) + 1
        agent.current_session["state"]["temp:note"] = n
        return f"worked on {n}"

    def breaks(self, n: int, agent: Any) -> str:
        """Break."""
        self.ran["breaks", agent.current_session["pending_tool"]["id"]] += 1
        raise ValueError("broken")

    def guarded(self, n: int) -> str:
        """Never run."""
        raise AssertionError("it is guarded")

    @after_user_input
    def h_greet(self, agent: Any, prompt: str) -> str | None:
        self._noted("after_user_input", prompt)
        agent.current_session["messages"].append({"role": "user", "content": f"(asked {prompt!r})"})
        return "No model was asked." if "shortcut" in prompt else None

    @before_llm
    def h_shorten(self, agent: Any, request: Any) -> str | None:
        self._noted("before_llm", f"{agent.current_session['turn']}.{agent.current_session['iteration']}")
        request.messages[0]["content"] = f"Be good, {len(request.messages) % 3}."
        return "Stood in." if "stand in" in str(request.messages[-1]["content"]) else None

    @after_llm
    def h_edit_response(self, response: LLMResponse) -> None:
        if response.tool_calls and response.tool_calls[0].arguments.get("n") == 1:
            response.content = "Second round."
            response.tool_calls[0].arguments["n"] = 100

    @before_tools
    def h_edit_calls(self, agent: Any, tool_calls: list[ToolCall]) -> None:
        self._noted("before_tools", tool_calls[0].id)
        tool_calls[0].arguments["n"] += 1000

    @before_each_tool
    def h_guard(self, agent: Any, tool_call: ToolCall) -> str | None:
        self._noted("before_each_tool", tool_call.id)
        tool_call.arguments["n"] += 1
        if tool_call.name == "guarded":
            raise ToolRejected("guarded")
        if tool_call.arguments["n"] == 11 and agent.current_session["turn"] == 2:
            return "stood in for it"
        return None

    @on_error
    def h_recover(self, agent: Any, error: Exception, tool_call: ToolCall | None) -> Any:
        self._noted("on_error", tool_call.id if tool_call else "model")
        if tool_call is None:
            agent.current_session["messages"].append({"role": "user", "content": "once more"})
            return Retry()
        return "recovered" if tool_call.name == "breaks" and agent.current_session["turn"] == 3 else None

    @after_each_tool
    def h_redact(self, agent: Any, tool_call: ToolCall, result: Any) -> str:
        self._noted("after_each_tool", tool_call.id)
        return f"{result}".removesuffix("!") + "!"

    @after_tools
    def h_reflect(self, agent: Any, entries: list[Any]) -> None:
        self._noted("after_tools", entries[0]["call_id"])
        assert len(entries) == 3
        agent.current_session["messages"].append({"role": "user", "content": "Think."})
        agent.current_session["state"]["rounds"] = [*agent.current_session["state"].get("rounds", []), len(entries)]
        agent.current_session["own"] = {"rounds": entries[0]["call_id"]}

    @on_complete
    def h_more(self, agent: Any, result: str, outcome: str) -> Any:
        self._noted("on_complete", str(agent.current_session["turn"]))
        if "goes on" in agent.current_session["user_prompt"] and agent.current_session["iteration"] < 4:
            return Continue("Stand in, please: stand in.")
        if "ends early" in agent.current_session["user_prompt"]:
            return "ended"
        return None


PROMPTS = ["turn 1", "turn 2 goes on", "turn 3 fails once", "turn 4 shortcut", "turn 5"]


def rich_record() -> tuple[Rich, Path]:
    rich = Rich()
    for prompt in PROMPTS:
        rich.agent.input(prompt)
    (path,) = Path(".co/evals").iterdir()
    told = path.read_text()
    assert all(f'"status": "{name}"' in told for name in ("stand_in", "recovered", "rejected", "not_found", "error"))
    return rich, path


def cut_to(data: bytes, name: str) -> Path:
    path = Path(".co/evals").absolute() / name
    path.write_bytes(data)
    return path


def finished_calls(record: dict[str, Any]) -> set[str]:
    entries = (entry for turn in record["turns"] for entry in turn["trace"])
    return {entry["call_id"] for entry in entries if entry["type"] == "tool_execution"}


def steps_over(record: dict[str, Any]) -> set[tuple[str, str]]:
    """The steps of which the record tells that the next one had begun."""
    over: set[tuple[str, str]] = set()
    known: list[tuple[str, str]] = []
    for turn in record["turns"]:
        for entry in turn["lines"]:
            kind, id = entry["type"], str(entry.get("call_id"))
            kind = "tool_started" if kind == "began" and "call_id" in entry else kind
            if kind == "user_input":
                known = [("after_user_input", entry["prompt"])]
            elif kind == "llm_call" and entry["status"] == "error":
                over.update(known)  # the call itself is not over: it is made again
                known = []
            elif kind == "llm_call":
                over.update(known)
                over.add(("before_llm", f"{turn['turn']}.{entry['iteration']}"))
                known = []
                if entry["tool_calls"]:
                    round = entry["tool_calls"][0]["id"]
                    known = [("after_tools", round)]
            elif kind in ("tool_started", "tool_execution"):
                over.add(("before_tools", round))
                over.update(step for step in known if step[0] == "after_each_tool" and step[1] != id)
                if kind == "tool_execution":
                    over.add(("before_each_tool", id))
                    known.append(("after_each_tool", id))
    return over


def finish(path: Path, cut: dict[str, Any], **options: Any) -> Rich:
    """Resume a record and hold what comes of it against what must hold at every cut."""
    before, over = finished_calls(cut), steps_over(cut)
    rich = Rich(**options)
    rich.agent.resume(path)
    session = rich.agent.current_session
    assert session is not None
    assert not {id for _, id in rich.ran} & before, "a tool that was finished ran again"
    assert not set(rich.fired) & over, "a hook of a finished step fired again"
    assert all(count == 1 for step, count in rich.fired.items() if step[0] not in ("on_complete", "on_error"))
    problems = conversation_problems(session["messages"])
    assert not problems, problems
    results = [str(message["content"]) for message in session["messages"] if message["role"] == "tool"]
    assert all(result.endswith("!") for result in results), "a handler of after_each_tool was left out"
    return rich


def check_after(rich: Rich, path: Path) -> None:
    session = rich.agent.current_session
    assert session is not None
    rich.agent.input("turn 6")
    record = read_record(path)
    assert history_of(path).messages == session["messages"]
    for turn in record["turns"]:
        if "status" in turn:
            turn.pop("messages", None)  # the entries alone tell it
    history = read_history(record, blob_folder(path))
    assert history.messages == session["messages"]
    assert history.state == {key: value for key, value in session["state"].items() if not key.startswith("temp:")}
    assert summarise(path).status == "answered"


STEP = 1 if os.environ.get("CONNECTAGENT_CUTS") == "all" else 8  # by default every eighth line is cut


def test_a_record_that_was_cut_after_any_line_goes_on() -> None:
    _, path = rich_record()
    lines = path.read_bytes().splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if line.startswith(b"turns:"))
    tried = 0
    for count in range(first + 1, len(lines) + 1, STEP):
        part = cut_to(b"".join(lines[:count]), f"cut_{count}.yaml")
        check_after(finish(part, read_record(part)), part)
        tried += 1
    assert tried * STEP > 150


def test_a_record_with_a_torn_last_line_goes_on() -> None:
    _, path = rich_record()
    data = path.read_bytes()
    start = data.index(b"\nturns:\n") + 8
    for end in range(start, len(data), 311 * STEP):
        part = cut_to(data[:end], f"torn_{end}.yaml")
        check_after(finish(part, read_record(part)), part)


def test_a_session_that_ended_is_what_it_was() -> None:
    whole, path = rich_record()
    fresh = Rich()
    assert fresh.agent.resume(path) == "All done."
    old, new = whole.agent.current_session, fresh.agent.current_session
    assert old is not None and new is not None
    assert new["trace"].pop()["type"] == "resumed"
    for key in {*old, *new} - {"trace"}:
        assert old[key] == new[key], key  # type: ignore[literal-required]
    assert json.loads(json.dumps(old["trace"], default=asdict)) == json.loads(json.dumps(new["trace"], default=asdict))
    assert fresh.agent.total_cost == whole.agent.total_cost > 0
    assert fresh.agent.last_usage == whole.agent.last_usage
    assert not fresh.fired and not fresh.ran


# -- single cases --------------------------------------------------------------------------------


class Once:
    """A model that asks for one call in each turn, then answers."""

    def __init__(self, call: ToolCall | None = None, model: str = "test/once") -> None:
        self.call, self.model = call, model
        self.requests: list[list[Any]] = []

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        assert not conversation_problems(messages)
        self.requests.append(list(messages))
        last = max(n for n, message in enumerate(messages) if message["role"] == "user")
        asked = any(message.get("tool_calls") for message in messages[last:])
        return LLMResponse("Done.") if asked or self.call is None else LLMResponse(None, [self.call])


SEND = ToolCall("c1", "send", {"text": "hello"})


def send(text: str) -> str:
    """Send."""
    with open("sent", "a") as file:
        file.write(f"{text}\n")
    return f"sent {text}"


def sender(function: Any = send, **options: Any) -> Agent:
    return Agent("sender", [function], **{"llm": Once(SEND), "quiet": True, **options})


def only_record() -> Path:
    (path,) = Path(".co/evals").absolute().glob("*.yaml")
    return path


def cut_behind(path: Path, what: str) -> Path:
    """Cut a record behind the last line that has a text in it."""
    lines = path.read_bytes().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if what.encode() in line)
    path.write_bytes(b"".join(lines[: last + 1]))
    return path


def results_of(agent: Agent) -> list[Any]:
    assert agent.current_session is not None
    assert conversation_problems(agent.current_session["messages"]) == []
    return [message["content"] for message in agent.current_session["messages"] if message["role"] == "tool"]


def test_a_tool_that_was_started_and_not_finished_is_not_run_again() -> None:
    sender().input("Go.")
    path = cut_behind(only_record(), '"began", "id": "T1/1/c1/tool1"')
    agent = sender()
    assert agent.resume(path) == "Done."
    assert Path("sent").read_text() == "hello\n"
    assert results_of(agent)[0].startswith("rejected: in doubt: the process ended while this tool ran")


def test_an_idempotent_tool_runs_again() -> None:
    function = tool(idempotent=True)(send)
    sender(function).input("Go.")
    agent = sender(function)
    assert agent.resume(cut_behind(only_record(), '"began", "id": "T1/1/c1/tool1"')) == "Done."
    assert Path("sent").read_text() == "hello\n" * 2
    assert results_of(agent) == ["sent hello"]


@pytest.mark.parametrize(("typed", "ran"), [(b"y\n", 2), (b"\n", 1), (b"no\n", 1), (b"\x04", 1)])
def test_at_a_terminal_the_person_is_asked(typed: bytes, ran: int) -> None:
    import pty
    import subprocess
    import sys

    sender().input("Go.")
    path = cut_behind(only_record(), '"began", "id": "T1/1/c1/tool1"')
    code = "import sys; from test_resume import sender; print(sender().resume(sys.argv[1]))"
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    line = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(line, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, env=environment) as process:
        os.close(theirs)
        shown = b""
        while b"[N]o: " not in shown:
            shown += os.read(ours, 4096)
        os.write(ours, typed)
        out, _ = process.communicate(timeout=60)
    os.close(ours)
    assert b'the process ended while send(text="hello") ran' in shown
    assert out.decode().strip() == "Done."
    assert Path("sent").read_text() == "hello\n" * ran


def test_plugins_that_are_not_the_same_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    @before_llm
    def old() -> None: ...

    @before_llm
    def new() -> None: ...

    sender(plugins=[old]).input("Go.")
    agent = sender(plugins=[new], quiet=False)
    agent.resume(cut_behind(only_record(), '"tool_execution"'))
    assert agent.current_session is not None
    (entry,) = [entry for entry in agent.current_session["trace"] if entry["type"] == "resumed"]
    assert entry["plugins"] == {"added": ["new"], "removed": ["old"]}
    assert "the plugins are not the same: added new; removed old" in capsys.readouterr().err
    same = sender(plugins=[old])
    same.resume(only_record())
    assert same.current_session is not None and "plugins" not in same.current_session["trace"][-1]


def test_a_record_that_another_one_writes_is_refused_and_forked() -> None:
    sender().input("Go.")
    path = only_record()
    with path.open("ab") as file:
        assert lock(file.fileno())
        with pytest.raises(ConfigError, match="is being written by a running agent; wait for it, or resume with fork"):
            sender().resume(path)
        fork = sender()
        assert fork.resume(path, fork=True) == "Done."
        fork.input("And now?")
    assert len(list(Path(".co/evals").iterdir())) == 2
    assert len(read_record(path)["turns"]) == 1


def test_readers_that_hold_the_lock_for_a_moment_do_not_break_a_writer() -> None:
    agent = sender()
    agent.input("Go.")
    path, stop = only_record(), threading.Event()

    def read() -> None:
        while not stop.wait(0.001):
            is_running(path)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(30):
            agent.input("Go on.")
    finally:
        stop.set()
        reader.join()
    assert len(read_record(path)["turns"]) == 31


def test_a_writer_waits_a_moment_for_a_reader_that_holds_the_lock() -> None:
    agent = sender()
    agent.input("Go.")
    path = only_record()
    fd = os.open(path, os.O_RDONLY)
    assert lock(fd, shared=True)
    reader = threading.Timer(0.1, os.close, (fd,))
    reader.start()
    agent.input("Go on.")
    reader.join()
    assert len(read_record(path)["turns"]) == 2


def test_a_record_with_blobs_goes_on_with_the_whole_texts() -> None:
    def long(text: str) -> str:
        """Be long."""
        return "x" * 100_000 + text

    long.__name__ = "send"
    first = sender(long)
    first.input("y" * 50_000)
    assert any(Path(".co/blobs").iterdir())
    agent = sender(long)
    assert agent.resume(cut_behind(only_record(), '"tool_execution"')) == "Done."
    assert len(results_of(agent)[0]) > 32_000
    assert first.current_session is not None and agent.current_session is not None
    assert agent.current_session["messages"] == first.current_session["messages"]


def test_what_was_masked_stays_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_KEY", "q7w8e9r0t1y2u3")
    sender(llm=Once(ToolCall("c1", "send", {"text": "q7w8e9r0t1y2u3"}))).input("Go.")
    agent = sender()
    assert agent.resume(cut_behind(only_record(), '"tool_execution"')) == "Done."
    assert results_of(agent) == ["sent [masked: SHOP_API_KEY]"]


def test_a_record_without_a_turn_gives_nothing_and_the_next_turn_is_the_first(folder: Path) -> None:
    agent = sender()
    agent.execute_tool("send", {"text": "a"})
    path = only_record()
    fresh = sender()
    assert fresh.resume(path) is None
    assert fresh.input("Go.") == "Done."
    assert [turn["turn"] for turn in read_record(path)["turns"]] == [0, 1]
    (folder / "empty.yaml").write_text("agent: sender\nturns:\n")
    assert sender().resume("empty.yaml") is None


def test_the_record_of_an_agent_of_another_name_is_refused_unless_it_was_renamed(folder: Path) -> None:
    child = Agent("child", llm=ScriptedLLM("C."), quiet=True)
    old = Agent("old", [child], llm=ScriptedLLM([call("child", prompt="Go.")], "Done."), quiet=True)
    assert old.input("Hi") == "Done." and old.record is not None
    record, before = old.record, old.record.read_bytes()
    new = Agent("new", llm=ScriptedLLM("New."), quiet=True)
    for agent, given in ((new, record), (new, "old"), (child, record)):
        for more in ({}, {"fork": True}, {"place": 1}):
            with pytest.raises(ConfigError, match=rf"its agent is 'old', and this agent is '{agent.name}'"):
                agent.resume(given, **more)
    assert record.read_bytes() == before and new.current_session is None
    assert new.resume(record, renamed=True) == "Done." and new.input("More") == "New."
    assert new.record == record and len(new.session["messages"]) == 6


def test_a_paused_turn_goes_on_as_a_stream(folder: Path) -> None:
    def agent(*script: Any) -> Agent:
        return Agent("a", [double], llm=ScriptedLLM(*script or ["Done."]), plugins=[asks], quiet=True)

    @before_each_tool
    def asks(tool_call: ToolCall) -> None:
        if not tool_call.approved:
            raise Pause("May I?")

    def double(n: int) -> int:
        """Double."""
        return 2 * n

    first = agent([call("double", n=2)])
    with pytest.raises(Paused):
        first.input("Hi")
    events = agent().resume_stream(first.record, approve=True)
    kinds = [event["type"] for event in events]
    assert kinds[-1] == "result" and "tool_execution" in kinds and "text" in kinds and kinds.count("llm_call") == 1
    second = agent([call("double", n=2)])
    with pytest.raises(Paused):
        second.input("Hi")

    async def go() -> list[dict[str, Any]]:
        async with agent().aresume_stream(second.record, reject="No.") as events:
            return [event async for event in events]

    told = asyncio.run(go())
    assert told[-1]["result"] == "Done." and [one["status"] for one in told if one["type"] == "tool_execution"] == [
        "rejected"
    ]
    with pytest.raises(ConfigError, match="no record"):
        next(agent().resume_stream("nothing"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "an empty record"),
        ("just text\n", "not a record"),
        ("agent: a\nturns: 3\n", "not a record"),
        ("agent: [\nturns:\n", "not a record"),
        ("\x00\x01\n", "not a record"),
    ],
)
def test_a_file_that_is_no_record_is_refused(text: str, says: str, folder: Path) -> None:
    (folder / "bad.yaml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        sender().resume("bad.yaml")
    with pytest.raises(ConfigError, match=r"there is no record 'none\.yaml'"):
        sender().resume("none.yaml")
    with pytest.raises(ConfigError, match="there is no record"):
        sender().resume(folder)


def test_entries_that_mean_nothing_do_not_stop_it() -> None:
    sender().input("Go.")
    odd: list[Any] = [{"type": "message_edited", "index": 99, "message": {"role": "user", "content": "x"}}]
    odd += [{"type": "message_removed", "index": 99}, {"type": "__init__"}, {"type": "_begin_with", "index": []}]
    record = cut_behind(only_record(), '"type": "tool_execution"')
    with record.open("a") as file:
        file.writelines(f"  - {json.dumps({**entry, 'at': 'T1/1/after_tools'})}\n" for entry in odd)
    agent = sender()
    assert agent.resume(record) == "Done."
    assert results_of(agent) == ["sent hello"]


@pytest.mark.parametrize(
    "entry",
    [
        {"type": "message"},
        {"type": "change"},
        {"type": "state_delta", "delta": 3},
        {"type": "mended"},
        {"type": "tool_execution"},
    ],
)
def test_a_change_of_a_form_that_no_record_has_is_refused_with_its_line(entry: dict[str, Any]) -> None:
    sender().input("Go.")
    record = cut_behind(only_record(), '"type": "tool_execution"')
    before = record.read_text()
    record.write_text(f"{before}  - {json.dumps({**entry, 'at': 'T1/1/after_tools'})}\n")
    line = before.count("\n") + 1
    with pytest.raises(ConfigError, match=rf"values that no record has: line {line}: "):
        sender().resume(record)


def test_another_model_goes_on() -> None:
    sender().input("Go.")
    other = Once(SEND, "test/other")
    assert sender(llm=other).resume(cut_behind(only_record(), '"tool_execution"')) == "Done."
    assert len(other.requests) == 1
    entries = [entry for turn in read_record(only_record())["turns"] for entry in turn["trace"]]
    assert [entry["model"] for entry in entries if entry["type"] == "llm_call"] == ["test/once", "test/other"]


def test_a_prompt_with_an_image_goes_on() -> None:
    sender().input(["Look.", Image(PNG)])
    for cut in ('"user_input"', '"tool_execution"'):
        agent = sender()
        assert agent.resume(cut_behind(only_record(), cut) if cut == '"user_input"' else only_record()) == "Done."
        assert agent.current_session is not None
        assert agent.current_session["messages"][0]["content"][1]["type"] == "image_url"
        assert agent.current_session["user_prompt"] == "Look.\n[image_url]".replace("_url", "")
    agent = sender()
    agent.resume(only_record(), place=1)
    assert agent.current_session is not None
    assert agent.current_session["messages"][0]["content"][1]["type"] == "image_url"


def test_a_turn_that_is_stopped_again_and_again_goes_on() -> None:
    sender().input("Go.")
    path = only_record()
    sender().resume(cut_behind(path, '"llm_call"'))  # the answer that asks for the call is the last one
    for cut in ('"tool_execution"', '"resumed"', '"resumed"', "resumed: true", '"resumed"'):
        agent = sender()
        assert agent.resume(cut_behind(path, cut)) == "Done."
        assert results_of(agent) == ["sent hello"]
    assert agent.current_session is not None
    assert history_of(path).messages == agent.current_session["messages"]
    assert sender().resume(path) == "Done."


def test_a_fork_of_a_fork_names_the_one_that_it_was_made_from() -> None:
    first = sender()
    first.input("One.")
    first.input("Two.")
    path = only_record()
    before = path.read_bytes()
    second = sender()
    assert second.resume(path, place=2, fork=True) == "Done."
    assert path.read_bytes() == before
    (fork,) = [other for other in Path(".co/evals").absolute().iterdir() if other != path]
    third = sender()
    third.resume(fork, place="2.2", fork=True)
    third.input("Three.")
    (last,) = [other for other in Path(".co/evals").absolute().iterdir() if other not in (path, fork)]
    assert last.read_text().count("forked_from:") == 1
    assert read_record(last)["forked_from"] == str(fork) and read_record(fork)["forked_from"] == str(path)
    assert third.current_session is not None
    assert history_of(last).messages == third.current_session["messages"]
    prompts = [m["content"] for m in third.current_session["messages"] if m["role"] == "user"]
    assert prompts == ["One.", "Two.", "Three."]


@pytest.mark.parametrize("place", ["0", "x", "1.x", "-1", "1.2.3", "", 0, -2, "1.-1", 1.5])
def test_a_place_that_is_none_is_refused(place: Any) -> None:
    sender().input("Go.")
    with pytest.raises(ConfigError, match=r"a place is TURN or TURN\.ITERATION|has no turn or iteration"):
        sender().resume(only_record(), place=place)


def test_a_place_that_is_not_there_lists_those_that_are() -> None:
    sender().input("Go.")
    before = only_record().read_bytes()
    with pytest.raises(ConfigError, match=r"no turn or iteration 1\.3; it has 1, 1\.1, 1\.2"):
        sender().resume(only_record(), place="1.3")
    with pytest.raises(ConfigError, match=r"no turn or iteration 7; it has"):
        sender().resume(only_record(), place=7)
    assert only_record().read_bytes() == before


def test_a_session_that_is_taken_back_goes_on_from_there_without_what_was_over() -> None:
    whole, path = rich_record()
    for place in ("1", "1.1", "1.2", "1.3", "2.3", "3.1", "5", "5.3"):
        rich = Rich()
        rich.agent.resume(path, place=place, fork=True)
        number = int(place[0])
        assert rich.agent.current_session is not None and rich.agent.current_session["turn"] == number
        assert ("after_user_input", PROMPTS[number - 1]) in rich.fired or "." in place
        if place.endswith(".3"):
            assert {hook for hook, _ in rich.fired} <= {"before_llm", "on_complete"}
        assert not conversation_problems(rich.agent.current_session["messages"])
    assert whole.agent.current_session is not None


def test_a_resumed_turn_can_be_told_as_it_happens() -> None:
    sender().input("Go.")
    path = cut_behind(only_record(), '"tool_execution"')
    agent = sender()
    items = list(streamed(agent, partial(agent.resume, path)))
    assert items[-1] == {"type": "result", "result": "Done.", "outcome": "answered"}
    assert [item["type"] for item in items if item["type"] != "text"] == ["resumed", "llm_call", "result"]


def test_an_error_before_the_turn_leaves_the_agent_as_it_was() -> None:
    agent = sender()
    agent.input("One.")
    session = agent.current_session
    with pytest.raises(ConfigError):
        agent.resume("none.yaml")
    assert agent.current_session is session
    assert agent.input("Two.") == "Done."


@pytest.mark.parametrize("nested", [False, True], ids=["alone", "inside"])
@pytest.mark.parametrize("iteration", [1, 2], ids=["a round", "the last answer"])
@pytest.mark.parametrize("failures", [["after_llm"], ["after_llm"] * 2, ["after_llm", "before_tools"]], ids="-".join)
def test_an_answer_whose_handlers_failed_at_first_is_in_the_session_of_the_record(
    iteration: int, failures: list[str], nested: bool
) -> None:
    left = failures[: None if iteration == 1 else failures.count("after_llm")]

    def fail(agent: Agent, hook: str) -> None:
        if agent.session["iteration"] == iteration and left and left[0] == hook:
            raise ValueError(left.pop(0))

    @after_llm
    def judge(agent: Agent) -> None:
        fail(agent, "after_llm")

    @before_tools
    def check(agent: Agent) -> None:
        fail(agent, "before_tools")

    def work(what: str) -> str:
        """Work."""
        return f"did {what}"

    def made() -> list[Agent]:
        answers = [call("work", what="x"), "End."]
        agent = Agent("a", [work], llm=ScriptedLLM(*answers), on_events=[judge, check], quiet=True)
        return [Sequential("root", [agent], quiet=True), agent] if nested else [agent]

    first, other = made(), made()
    with pytest.raises(ValueError, match="after_llm"):
        first[0].input("Hi")
    while left:
        with pytest.raises(ValueError, match=left[0]):
            first[0].resume(first[0].record)
    assert first[0].resume(first[0].record) == other[0].resume(first[0].record) == "End."
    assert other[-1].session["messages"] == first[-1].session["messages"]
    assert [message["role"] for message in other[-1].session["messages"]] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    ("inner", "stop"),
    [
        (False, KeyboardInterrupt()),
        (False, ValueError("no")),
        (False, Pause("may it?")),
        (True, KeyboardInterrupt()),
        (True, Pause("may it?")),
    ],
)
def test_what_a_handler_around_a_turn_changes_counts_once_however_often_the_turn_goes_on(
    inner: bool, stop: BaseException
) -> None:
    stops = [stop] * (1 if isinstance(stop, Pause) else 2)

    @around_turn
    def wrap(agent: Agent) -> Iterator[None]:
        agent.session["messages"].append({"role": "user", "content": "Be brief."})
        agent.state.setdefault("turns", []).append(agent.name)
        yield

    @before_llm
    def fail() -> None:
        if stops:
            raise stops.pop()

    def made() -> Agent:
        agent = Agent("a", llm=ScriptedLLM("Done."), on_events=[wrap, fail], quiet=True, description="Helps.")
        return Agent("top", [agent], llm=ScriptedLLM(call("a", prompt="Hi"), "End."), quiet=True) if inner else agent

    agent = made()
    with pytest.raises((Exception, KeyboardInterrupt)):
        agent.input("Hi")
    record = Path(str(agent.record))
    while stops:
        with pytest.raises((Exception, KeyboardInterrupt)):
            agent.resume(record)
    assert agent.resume(record, approve=isinstance(stop, Pause)) == ("End." if inner else "Done.")
    other = made()
    other.resume(record)
    one, another = (part.below[0] if inner else part for part in (agent, other))
    assert [message["content"] for message in one.session["messages"]] == ["Be brief.", "Hi", "Done."]
    assert another.session["messages"] == one.session["messages"]
    assert other.state == agent.state == {"turns": ["a"]}
    asked = [request for agent in watched_agents(read_record(record)) for request in agent.requests()]
    sent = [[one.message["content"] for one in request.messages] for request in asked]
    assert ["Be brief.", "Hi"] in sent


def test_a_record_with_a_handler_around_a_turn_that_went_on_replays_as_it_was() -> None:
    @around_turn
    def wrap(agent: Agent) -> Iterator[None]:
        agent.session["messages"].append({"role": "user", "content": "Be brief."})
        yield

    class Model:
        model, calls = "failing", 0

        def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
            self.calls += 1
            if self.calls == 2:
                raise ValueError("no")
            return LLMResponse(None, [ToolCall("c1", "work", {})]) if self.calls == 1 else LLMResponse("Done.")

    def work() -> str:
        """Work."""
        return "worked"

    agent = Agent("a", [work], llm=Model(), on_events=[wrap], quiet=True)
    with pytest.raises(ValueError, match="no"):
        agent.input("Hi")
    record = Path(str(agent.record))
    assert agent.resume(record) == "Done."
    asked = watched_agents(read_record(record))[0].requests()
    assert [[one.message["content"] for one in request.messages][:2] for request in asked] == [["Be brief.", "Hi"]] * 2
    played = replay(record, agent=Agent("a", [work], llm=Model(), on_events=[wrap], log=False, quiet=True))
    assert played.same, str(played)


@pytest.mark.parametrize("tool", ["work", "unknown"])
def test_a_result_whose_observer_failed_at_first_is_in_the_session_of_the_record(tool: str) -> None:
    failures = ["at the result"]

    @on_trace
    def fail(entry: TraceEntry) -> None:
        if entry["type"] == "tool_execution" and failures:
            raise ValueError(failures.pop())

    def work() -> str:
        """Work."""
        return "worked"

    agent = Agent("a", [work], llm=ScriptedLLM(call(tool), "Done."), on_events=[fail], quiet=True)
    with pytest.raises(ValueError, match="at the result"):
        agent.input("Hi")
    assert agent.record is not None and agent.resume(agent.record) == "Done."
    messages = history_of(agent.record).messages
    assert messages == agent.session["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]


def test_that_a_call_was_not_run_stays_in_the_session_when_a_later_turn_is_resumed() -> None:
    ends, failures = [True], ["the model"]

    def work() -> str:
        """Work."""
        return "worked"

    @after_llm
    def stop(agent: Agent) -> None:
        if ends and ends.pop():
            agent.end_turn("Enough.")

    @before_llm
    def fail(agent: Agent) -> None:
        if agent.session["turn"] == 2 and failures:
            raise ValueError(failures.pop())

    agent = Agent("a", [work], llm=ScriptedLLM(call("work"), "Done."), on_events=[stop, fail], quiet=True)
    assert agent.input("Hi") == "Enough."
    with pytest.raises(ValueError, match="the model"):
        agent.input("And?")
    assert agent.record is not None and agent.resume(agent.record) == "Done."
    messages = history_of(agent.record).messages
    assert messages == agent.session["messages"] and not conversation_problems(messages)
    assert [message["role"] for message in messages].count("tool") == 1


def test_a_message_that_was_mended_for_a_failed_model_call_is_in_the_session_of_the_record() -> None:
    failures = ["the model"]

    class Model:
        model = "failing"

        def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
            if failures:
                raise ValueError(failures.pop())
            return LLMResponse("Done.")

    @after_user_input
    def add(agent: Agent) -> None:
        agent.session["messages"].append({"role": "assistant", "content": "Hm.", "tool_calls": []})

    agent = Agent("a", llm=Model(), on_events=[add], quiet=True)
    with pytest.raises(ValueError, match="the model"):
        agent.input("Hi")
    assert agent.record is not None and agent.resume(agent.record) == "Done."
    assert [message["content"] for message in agent.session["messages"]] == ["Hi", "Hm.", "Done."]
    assert history_of(agent.record).messages == agent.session["messages"]


def test_what_a_turn_changed_ahead_of_its_input_is_in_the_state_of_the_record_once() -> None:
    fails = False

    @around_turn
    def wrap(agent: Agent) -> Iterator[None]:
        if fails:
            raise ValueError("before the input")
        agent.state.setdefault("turns", []).append(agent.session["turn"])
        yield

    def made() -> Agent:
        return Agent("a", llm=ScriptedLLM("One.", "Two."), on_events=[wrap], quiet=True)

    agent = made()
    agent.input("Hi")
    assert agent.record is not None and history_of(agent.record).state == agent.state == {"turns": [1]}
    fails = True
    with pytest.raises(ValueError, match="before the input"):
        agent.input("And?")
    assert history_of(agent.record).state == agent.state == {"turns": [1]}
    fails = False
    agent.close()
    other = made()
    assert other.resume(agent.record) == "One."
    assert history_of(agent.record).state == other.state == {"turns": [1, 2]}


def test_an_answer_that_was_placed_before_an_agent_inside_failed_is_there_once() -> None:
    left = ["once"]

    @after_llm
    def judge() -> None:
        if left:
            raise ValueError(left.pop())

    def made() -> list[Agent]:
        other = Agent("b", llm=ScriptedLLM("End."), on_events=[judge], quiet=True)
        script = ScriptedLLM(call("transfer_to_agent", agent_name="b"))
        return [Agent("root", llm=script, sub_agents=[other], quiet=True), other]

    first, other = made(), made()
    with pytest.raises(ValueError, match="once"):
        first[0].input("Hi")
    assert first[0].resume(first[0].record) == other[0].resume(first[0].record) == "End."
    for one, again in zip(first, other, strict=True):
        assert again.session["messages"] == one.session["messages"]
    assert [message["role"] for message in other[0].session["messages"]][:3] == ["user", "assistant", "tool"]


def test_a_continue_is_kept_where_a_later_handler_was_interrupted_behind_a_call_of_its_own() -> None:
    asked: list[str] = []

    @on_complete
    def more(agent: Agent, result: str) -> Any:
        asked.append(result)
        return Continue("More.") if result == "fine" else None

    def reviewer(interrupted: bool) -> Any:
        @on_complete
        def review(agent: Agent) -> None:
            llm_do("Is it good?", llm=ScriptedLLM("yes"))
            if interrupted:
                raise KeyboardInterrupt

        return review

    agent = Agent("a", llm=ScriptedLLM("fine"), quiet=True, on_events=[more, reviewer(True)])
    with pytest.raises(KeyboardInterrupt):
        agent.input("go")
    other = Agent("a", llm=ScriptedLLM("finer"), quiet=True, on_events=[more, reviewer(False)])
    assert other.resume(agent.record) == "finer"
    assert asked == ["fine", "finer"]


def test_what_a_finished_tool_changed_in_the_state_is_there_where_its_turn_goes_on() -> None:
    def count(agent: Agent) -> str:
        """Count."""
        state: Any = agent.current_session["state"]  # type: ignore[index]
        state["count"] = state.get("count", 0) + 1
        return "counted"

    agent = Agent("a", [count], llm=ScriptedLLM(call("count"), OSError("no connection")), quiet=True)
    with pytest.raises(OSError, match="no connection"):
        agent.input("go")
    other = Agent("a", [count], llm=ScriptedLLM("fine"), quiet=True)
    assert other.resume(agent.record) == "fine"
    assert other.current_session["state"] == {"count": 1}  # type: ignore[index]


def test_what_handlers_did_about_a_later_attempt_is_void_too_where_that_is_made_again() -> None:
    fired: list[int] = []

    @on_error
    def again(agent: Agent, attempt: int) -> Retry | None:
        fired.append(attempt)
        agent.state["attempt"] = attempt
        return Retry() if attempt == 1 else None

    def agent(*script: Any) -> Agent:
        return Agent("trying", llm=ScriptedLLM(*script), quiet=True, on_events=[again])

    first = agent(OSError("down"), OSError("down"))
    with pytest.raises(OSError, match="down"):
        first.input("Go")
    assert fired == [1, 2]
    with pytest.raises(OSError, match="down"):
        agent(OSError("down")).resume(first.record)
    assert fired == [1, 2, 2]
    assert agent("Done.").resume(first.record) == "Done." and fired == [1, 2, 2]


@pytest.mark.parametrize("rest", ["", "  resumed: tr", "  resumed: true\n", "  resumed: true\n  trace:\n"])
def test_the_torn_beginning_of_going_on_with_a_turn_is_no_turn(rest: str) -> None:
    ran: list[str] = []

    def pay() -> str:
        """Pay."""
        ran.append("pay")
        return "paid"

    @before_each_tool
    def ask(agent: Agent) -> None:
        raise Pause("may I?")

    def agent(*script: Any) -> Agent:
        return Agent("payer", [pay], llm=ScriptedLLM(*script), quiet=True, on_events=[ask])

    first = agent("Hello.", call("pay"))
    first.input("Hi")
    with pytest.raises(Paused) as paused:
        first.input("Pay")
    path = Path(str(paused.value.record))
    before = read_record(path), summarise(path).data() | {"size": 0}, joined_turns(read_record(path))
    with path.open("a") as file:
        file.write(f"- turn: 2\n{rest}")
    after = read_record(path), summarise(path).data() | {"size": 0}, joined_turns(read_record(path))
    assert after == before and after[1]["status"] == "paused"
    assert agent("Paid.").resume(path, approve=True) == "Paid." and ran == ["pay"]
    assert (summarise(path).turns, summarise(path).status, len(joined_turns(read_record(path)))) == (2, "answered", 2)
    again = agent("Bye.")
    again.resume(path)
    assert again.input("Bye") == "Bye." and summarise(path).turns == 3


def test_a_turn_that_was_torn_before_it_says_where_it_went_on_takes_nothing_away() -> None:
    agent = Agent("a", llm=ScriptedLLM("One.", "Two."), quiet=True)
    agent.input("1")
    agent.input("2")
    path = Path(str(agent.record))
    with path.open("a") as file:
        file.write('- turn: 2\n  input: "2, again"\n')  # and torn before `from: [2, 0]`
    assert [turn["input"] for turn in joined_turns(read_record(path))] == ["1", "2"] and summarise(path).turns == 2
    other = Agent("a", llm=ScriptedLLM("Three."), quiet=True)
    other.resume(path)
    assert other.input("3") == "Three."
    asked = [message["content"] for message in other.llm.requests[0].messages]  # type: ignore[attr-defined]
    assert asked == ["1", "One.", "2", "Two.", "3"]
