"""A turn that stopped and went on is one turn for who reads its record: each step once, and sums without its waits."""

from __future__ import annotations

import contextlib
import io
import re
import time
from pathlib import Path
from typing import Any

import pytest

from connectagent import (
    Agent,
    LLMResponse,
    Parallel,
    Pause,
    Paused,
    Retry,
    Sequential,
    TokenUsage,
    ToolCall,
    after_tools,
    around_llm,
    around_tool,
    around_turn,
    before_each_tool,
    on_complete,
    on_error,
    on_session,
    tool,
)
from connectagent.builtin.console import Console
from connectagent.cli.log.export import markdown
from connectagent.errors import ProviderError
from connectagent.records.history import history_of, joined_turns
from connectagent.records.read import read_record
from connectagent.records.summary import summarise
from connectagent.testing import ScriptedLLM, call

WAITED_S = 0.6
ROUNDED_MS = 100  # less than a wait; figures of people are rounded


class Own:
    """How long blocks of code took, in ms: `with own:`. A busy machine takes longer, so no number bounds a turn."""

    ms = 0.0

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *raised: object) -> None:
        self.ms += (time.perf_counter() - self.began) * 1000


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


@tool(idempotent=True)
def work(n: int) -> str:
    """Work."""
    return f"worked {n}"


def answer(messages: list[Any], tools: Any) -> LLMResponse:
    """What comes next, as the conversation tells."""
    done = sum(message["role"] == "tool" for message in messages)
    calls = [call("work", n=1)] if done == 0 else [call("work", n=2), call("work", n=3)] if done == 1 else []
    return LLMResponse(None if calls else "Done.", calls, TokenUsage(1, 1, cost=0.25))


def worker(*script: Any, **options: Any) -> Agent:
    return Agent("worker", [work], llm=ScriptedLLM(*(script or [answer] * 5)), quiet=True, **options)


def turn_of(record: Any) -> dict[str, Any]:
    (turn,) = joined_turns(read_record(record))
    return turn


def steps(turn: dict[str, Any]) -> list[Any]:
    """Model calls, tool calls and the tools that began, as readers are shown them."""
    kinds = ("llm_call", "tool_execution", "began")
    return [(entry["type"], entry["id"]) for entry in turn["trace"] if entry["type"] in kinds]


# -- what is counted -------------------------------------------------------------------------------


def test_a_turn_that_was_killed_anywhere_has_the_same_sums_and_steps_when_it_is_done(folder: Path) -> None:
    agent = worker()
    agent.input("Go")
    lines = Path(str(agent.record)).read_text().splitlines(keepends=True)
    whole, told = summarise(str(agent.record)).totals, steps(turn_of(agent.record))
    assert whole is not None and (whole.turns, whole.iterations, whole.tools, whole.cost) == (1, 3, 3, 0.75)
    first = next(number for number, line in enumerate(lines) if '"user_input"' in line)
    end = next(number for number, line in enumerate(lines) if line.startswith("  model:"))
    for cut in range(first + 1, end):
        path = folder / f"worker_{cut}.yaml"
        path.write_text("".join(lines[:cut]))
        assert worker().resume(path) == "Done."
        totals = summarise(path).totals
        assert totals is not None
        lost = '"llm_call"' not in lines[cut - 1] and '"began"' in lines[cut - 1] and "/model" in lines[cut - 1]
        assert (totals.turns, totals.iterations, totals.tools) == (1, 3, 3), cut
        assert totals.cost == (None if lost else 0.75), cut
        turn = turn_of(path)
        assert (turn["cost"], turn["tools_called"]) == (totals.cost, ["work"] * 3), cut
        assert [step for step in steps(turn) if step[0] != "began"] == [step for step in told if step[0] != "began"]
        assert len(steps(turn)) == len(set(steps(turn))), cut


def test_a_turn_that_was_killed_twice_is_counted_once(folder: Path) -> None:
    agent, path = worker(), folder / "worker_1.yaml"
    agent.input("Go")
    for kept, source in ((1, Path(str(agent.record))), (2, path)):
        lines, cut, done = source.read_text().splitlines(keepends=True), 0, 0
        while done < kept:
            done += '"type": "tool_execution"' in lines[cut]
            cut += 1
        path.write_text("".join(lines[:cut]))
        assert worker().resume(path) == "Done."
    totals = summarise(path).totals
    assert totals is not None and (totals.turns, totals.iterations, totals.tools) == (1, 3, 3)
    again = worker()
    again.resume(path)
    again.input("More")
    totals = summarise(path).totals
    assert totals is not None and (totals.turns, totals.iterations, totals.cost) == (2, 4, 1.0)


def test_an_iteration_whose_attempts_two_killed_processes_made_is_counted_once(folder: Path) -> None:
    @on_error
    def again() -> Retry:
        return Retry()

    down = ProviderError("down", kind="overloaded", provider="p")
    agent = worker(down, answer, answer, answer, on_events=[again])
    agent.input("Go")
    source = Path(str(agent.record))
    for name, mark in (("worker_1.yaml", '"status": "error"'), ("worker_2.yaml", '"attempt": 2')):
        lines = source.read_text().splitlines(keepends=True)
        last = max(number for number, line in enumerate(lines) if '"llm_call"' in line and mark in line)
        source = folder / name
        source.write_text("".join(lines[: last + 1]))
        assert worker(on_events=[again]).resume(source) == "Done."
    totals = summarise(source).totals
    assert totals is not None and (totals.turns, totals.iterations, totals.tools) == (1, 3, 3)


# -- what is shown ---------------------------------------------------------------------------------


def careful(agent_name: str = "worker", asked_s: float = 0.0, **options: Any) -> Agent:
    """An agent that asks a person about its first call."""

    @before_each_tool
    def ask(tool_call: ToolCall) -> None:
        if tool_call.arguments["n"] == 1:
            time.sleep(asked_s)
            raise Pause("may I?")

    return Agent(agent_name, [work], llm=ScriptedLLM(*[answer] * 5), quiet=True, on_events=[ask], **options)


def test_a_call_that_waited_is_shown_and_counted_once() -> None:
    agent = careful()
    with pytest.raises(Paused):
        agent.input("Go")
    assert agent.resume(approve=True) == "Done."
    turn = turn_of(agent.record)
    ran = [entry for entry in turn["trace"] if entry["type"] == "tool_execution"]
    assert [entry["status"] for entry in ran] == ["success"] * 3
    assert turn["tools_called"] == ["work"] * 3
    totals = summarise(str(agent.record)).totals
    assert totals is not None and (totals.turns, totals.iterations, totals.tools) == (1, 3, 3)
    assert "not run" not in "".join(markdown(read_record(str(agent.record))))


def test_a_model_call_that_is_made_again_is_shown_once_and_paid_twice() -> None:
    usage = TokenUsage(1, 1, cost=0.25)
    agent = worker(ProviderError("down", kind="overloaded", provider="p", usage=usage), answer, answer, answer)
    with pytest.raises(ProviderError):
        agent.input("Go")
    assert agent.resume(agent.record) == "Done."
    turn = turn_of(agent.record)
    calls = [entry for entry in turn["trace"] if entry["type"] == "llm_call"]
    assert [(entry["id"], entry["status"]) for entry in calls] == [(f"T1/{n}/model1", "success") for n in (1, 2, 3)]
    assert turn["cost"] == 1.0 == agent.total_cost


# -- how long it took ------------------------------------------------------------------------------


@pytest.mark.parametrize("process", ["the same", "another"])
def test_no_time_holds_the_wait_for_a_person(process: str) -> None:
    shown = io.StringIO()

    def family() -> Agent:
        events = [Console(shown, 200)]
        child = careful("child", 0.1, description="Helps.")
        script = [call("child", prompt="Go"), "Done."]
        return Agent("root", [child], llm=ScriptedLLM(*script), quiet=True, on_events=events)

    root, own = family(), Own()
    with pytest.raises(Paused) as paused, own:
        root.input("Hi")
    time.sleep(WAITED_S)
    if process == "another":
        root = family()
        del root.llm.responses[0]  # type: ignore[attr-defined]
    with own:
        assert root.resume(paused.value.record, approve=True) == "Done."
    turn = turn_of(paused.value.record)
    inner = [line for line in turn["lines"] if line["type"] == "agent_turn"][-1]
    ended = [line for line in shown.getvalue().splitlines() if " iteration" in line][-1]
    number, unit = re.findall(r"([\d.]+) ?(ms|s)\b", ended)[0]
    seconds = float(number) / (1000 if unit == "ms" else 1)
    for ms in (turn["duration_ms"], inner["duration_ms"], seconds * 1000):
        assert 90 <= ms < own.ms + ROUNDED_MS


def test_nor_does_it_where_nothing_is_recorded_and_the_turn_waited_twice() -> None:
    @before_each_tool
    def ask(tool_call: ToolCall) -> None:
        raise Pause("may I?")

    llm = ScriptedLLM(call("work", n=1), call("work", n=2), "Done.")
    child = Agent("child", [work], llm=llm, quiet=True, log=False, on_events=[ask])
    root = Agent("root", [child], llm=ScriptedLLM(call("child", prompt="Go"), "Done."), quiet=True, log=False)
    own = Own()
    with pytest.raises(Paused), own:
        root.input("Hi")
    for _ in range(2):
        time.sleep(WAITED_S / 2)
        with contextlib.suppress(Paused), own:
            assert root.resume(approve=True) == "Done."
    inner = [entry for entry in root.session["trace"] if entry["type"] == "agent_turn"][-1]
    assert inner["outcome"] == "answered" and inner["duration_ms"] < own.ms + ROUNDED_MS


def test_a_turn_that_was_killed_took_the_time_up_to_its_last_line(folder: Path) -> None:
    def slow(messages: list[Any], tools: Any) -> LLMResponse:
        time.sleep(0.1)
        return answer(messages, tools)

    agent, own = worker(slow, answer, answer), Own()
    with own:
        agent.input("Go")
    lines = Path(str(agent.record)).read_text().splitlines(keepends=True)
    cut = next(number for number, line in enumerate(lines) if '"tool_execution"' in line)
    path = folder / "worker_1.yaml"
    path.write_text("".join(lines[: cut + 1]))
    time.sleep(WAITED_S)
    with own:
        assert worker().resume(path) == "Done."
    assert 90 <= turn_of(path)["duration_ms"] < own.ms + ROUNDED_MS


def test_what_a_turn_of_an_agent_inside_used_holds_what_it_used_before_it_went_on() -> None:
    root = Agent("root", [careful("child", description="Helps.")], llm=ScriptedLLM(call("child", prompt="Go"), "Done."))
    with pytest.raises(Paused):
        root.input("Hi")
    root.resume(approve=True)
    inner = [line for line in turn_of(root.record)["lines"] if line["type"] == "agent_turn"][-1]
    assert inner["usage"]["cost"] == 0.75


# -- how it ended --------------------------------------------------------------------------------------


def test_a_turn_that_a_handler_ended_before_it_asked_something_stays_ended(folder: Path) -> None:
    def look() -> str:
        """Look."""
        return "seen"

    @after_tools
    def enough(agent: Agent) -> None:
        agent.end_turn("Enough.", outcome="enough")
        agent.ask("Was it?")

    @on_complete
    def check(agent: Agent) -> None:
        agent.ask("Really?")

    def answer(messages: list[Any], tools: Any) -> Any:
        own = [message for message in messages if message["role"] != "system"]
        if own[0]["content"] != "Hi":
            return "Yes."
        return call("look") if len(own) == 1 else "The turn went on."

    def looker() -> Agent:
        return Agent("looker", [look], llm=ScriptedLLM(*[answer] * 9), quiet=True, on_events=[enough, check])

    agent = looker()
    assert agent.input("Hi") == "Enough."
    lines = Path(str(agent.record)).read_text().splitlines(keepends=True)
    began = next(number for number, line in enumerate(lines) if '"T1/1/after_tools"' in line)
    end = next(number for number, line in enumerate(lines) if line.startswith("  model:"))
    for cut in range(began, end + 1):
        path = folder / f"looker_{cut}.yaml"
        path.write_text("".join(lines[:cut]))
        again = looker()
        assert again.resume(path) == "Enough.", lines[cut - 1]
        assert again.current_session["outcome"] == "enough"  # type: ignore[index]


def test_what_agents_inside_do_is_counted_wherever_a_turn_was_killed(folder: Path) -> None:
    """Iterations and tool calls are counted as tokens are: of all agents, and once however often the turn goes on."""

    def tree() -> Agent:
        def made(name: str) -> Agent:
            return Agent(name, [work], llm=Worker(), quiet=True)

        first = Agent("first", [made("inner")], llm=Worker("inner"), quiet=True)
        return Sequential("row", [first, Parallel("side", [made("a"), made("b")], quiet=True)], quiet=True)

    whole = tree()
    whole.input("Go")
    counted = summarise(str(whole.record)).totals
    assert counted is not None
    assert (counted.turns, counted.iterations, counted.tools) == (1, 8, 4)
    lines = Path(str(whole.record)).read_text().splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if '"user_input"' in line)
    end = next(number for number, line in enumerate(lines) if line.startswith("  model:"))
    for cut in range(first + 1, end, 3):
        path = folder / f"row_{cut}.yaml"
        path.write_text("".join(lines[:cut]))
        tree().resume(path)
        totals = summarise(path).totals
        assert totals is not None and (totals.turns, totals.iterations, totals.tools) == (1, 8, 4), cut


class Worker:
    """A model that calls a tool, then says what it read."""

    model = "test/worker"

    def __init__(self, tool: str = "work") -> None:
        self.tool = tool

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        if messages[-1]["role"] == "tool":
            return LLMResponse("Done.", [], TokenUsage(1, 1, cost=0.25))
        given = {"prompt": "Go"} if self.tool == "inner" else {"n": 1}
        return LLMResponse(None, [ToolCall("1", self.tool, given)], TokenUsage(1, 1, cost=0.25))


def test_a_turn_that_was_stopped_before_the_users_message_is_begun_anew_and_counted_once(folder: Path) -> None:
    pressed: list[bool] = []

    @on_session
    def press(agent: Agent) -> None:
        if not pressed:
            pressed.append(True)
            raise KeyboardInterrupt

    session = worker(on_events=[press]).for_session("key")
    with pytest.raises(KeyboardInterrupt):
        session.turn("Go", number=1)
    again = worker(on_events=[press]).for_session("key")
    assert again.turn("Go", number=1) == "Done."
    turn, totals = turn_of(again.record), summarise(again.record).totals
    assert (turn["turn"], turn["input"], turn["status"], turn["cost"]) == (1, "Go", "answered", 0.75)
    assert totals is not None and (totals.turns, totals.iterations, totals.tools) == (1, 3, 3)


@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("half", ["before", "behind"])
@pytest.mark.parametrize("hook", [around_llm, around_tool])
def test_a_turn_that_a_handler_around_a_call_ended_ends_there_when_it_goes_on(
    hook: Any, half: str, parallel: int
) -> None:
    fails, worked = [True], list[int]()

    @hook
    def stop(agent: Agent) -> Any:
        if half == "before":
            agent.end_turn("enough")
        result = yield
        if half == "behind":
            agent.end_turn("enough")
        return result

    @on_complete
    def fail() -> None:
        if fails:
            raise OSError(fails.pop())

    def work(n: int) -> str:
        """Work."""
        worked.append(n)
        return "worked"

    llm = ScriptedLLM([call("work", n=1), call("work", n=2)], "More.", "More.")
    agent = Agent("a", [work], llm=llm, quiet=True, plugins=[stop, fail], parallel_tools=parallel)
    with pytest.raises(OSError):
        agent.input("Go")
    messages, done = list(agent.session["messages"]), list(worked)
    asked = len(llm.requests)
    assert agent.resume(agent.record) == "enough"
    assert (agent.session["messages"], worked, len(llm.requests)) == (messages, done, asked)
    assert history_of(Path(str(agent.record))).messages == messages


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize(("half", "texts"), [("before", ["seen", "Go", "Done."]), ("behind", ["Go", "Done.", "seen"])])
def test_what_a_handler_around_a_turn_changed_is_where_it_changed_it_however_often_the_turn_goes_on(
    half: str, texts: list[str], elsewhere: bool
) -> None:
    fails = [1, 2]

    @around_turn
    def fail() -> Any:
        result = yield
        if fails:
            raise OSError(fails.pop())
        return result

    @around_turn
    def see(agent: Agent) -> Any:
        if half == "before":
            note(agent)
        result = yield
        if half == "behind":
            note(agent)
        return result

    def note(agent: Agent) -> None:
        agent.session["messages"].append({"role": "user", "content": "seen"})
        agent.state["seen"] = [*agent.state.get("seen", []), "seen"]

    def made() -> Agent:
        return Agent("a", llm=ScriptedLLM("Done."), quiet=True, plugins=[fail, see])

    agent = made()
    with pytest.raises(OSError):
        agent.input("Go")
    record = str(agent.record)
    for _ in range(2):
        if elsewhere:
            agent.close()
            agent = made()
        with contextlib.suppress(OSError):
            agent.resume(record)
        history = history_of(Path(record))
        assert [message["content"] for message in agent.session["messages"]] == texts
        assert [message["content"] for message in history.messages] == texts
        assert history.state == agent.state == {"seen": ["seen"]}
