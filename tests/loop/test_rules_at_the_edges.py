"""Rules of the loop that only rare turns reach: each would go unnoticed if it were lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from connectagent import (
    Agent,
    LLMResponse,
    Pause,
    Paused,
    Retry,
    Sequential,
    TokenUsage,
    ToolCall,
    after_each_tool,
    after_tools,
    around_tool,
    before_each_tool,
    before_llm,
    on_error,
    on_trace,
    tool,
)
from connectagent.errors import ProviderError, Waiting
from connectagent.hooks.handler import Handler
from connectagent.records.read import read_record
from connectagent.session.state import joined
from connectagent.testing import ScriptedLLM, call, conversation_problems


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


def quiet(name: str, *script: Any, **options: Any) -> Agent:
    return Agent(name, llm=ScriptedLLM(*script), quiet=True, **options)


def look() -> str:
    """Look."""
    return "seen"


def fail() -> str:
    """Fail."""
    raise OSError("no")


def entries(agent: Agent, kind: str) -> list[Any]:
    return [entry for entry in agent.current_session["trace"] if entry["type"] == kind]  # type: ignore[index]


def state_of(agent: Agent) -> dict[str, Any]:
    return agent.current_session["state"]  # type: ignore[index, no-any-return]


def cut_at(agent: Agent, tells: Callable[[str], bool], path: Path) -> Path:
    """A copy of the agent's record that ends with the first line of which this holds, as a kill leaves it."""
    lines = Path(str(agent.record)).read_text().splitlines(keepends=True)
    number = next(number for number, line in enumerate(lines) if tells(line))
    path.write_text("".join(lines[: number + 1]))
    return path


# -- a turn that was ended -------------------------------------------------------------------------


def test_no_model_is_asked_where_the_function_in_its_place_ended_the_turn() -> None:
    asked: list[str] = []

    def run(agent: Agent) -> str:
        agent.end_turn("Over.")
        return "more"

    @before_llm
    def note() -> None:
        asked.append("before_llm")

    agent = Agent("runner", run=run, quiet=True, log=False, on_events=[note])
    assert agent.input("Go") == "Over."
    assert asked == [] and agent.current_session["iteration"] == 1  # type: ignore[index]


def test_a_failed_call_is_not_made_again_in_a_turn_that_was_ended() -> None:
    @on_error
    def over(agent: Agent) -> Retry:
        agent.end_turn("Over.")
        return Retry()

    agent = quiet("failing", call("fail"), tools=[fail], log=False, on_events=[over])
    assert agent.input("Go") == "Over."
    (entry,) = entries(agent, "tool_execution")
    assert entry["status"] == "error" and "attempts" not in entry


# -- attempts --------------------------------------------------------------------------------------


def test_the_entry_of_a_call_lists_each_of_its_attempts() -> None:
    failures = [OSError("one"), OSError("two")]

    def flaky() -> str:
        """Work in the end."""
        if failures:
            raise failures.pop(0)
        return "worked"

    agent = quiet("trying", call("flaky"), "Done.", tools=[flaky], log=False, on_events=[on_error(lambda: Retry())])
    assert agent.input("Go") == "Done."
    (entry,) = entries(agent, "tool_execution")
    assert [one["status"] for one in entry["attempts"]] == ["error", "error", "success"]


def test_a_model_is_asked_eleven_times_at_most() -> None:
    llm = ScriptedLLM(*[ProviderError(str(n), kind="overloaded", provider="p") for n in range(1, 13)])
    agent = Agent("trying", llm=llm, quiet=True, log=False, on_events=[on_error(lambda: Retry())])
    with pytest.raises(ProviderError, match="11"):
        agent.input("Go")
    assert len(llm.requests) == 11


def test_what_a_model_call_took_that_ctrl_c_cut_short_is_not_known() -> None:
    agent = quiet("cut", KeyboardInterrupt(), log=False)
    with pytest.raises(KeyboardInterrupt):
        agent.input("Go")
    assert (agent.spent.calls, agent.spent.cost) == (1, None)


def test_each_handler_that_is_around_a_model_call_pays_for_it() -> None:
    def cheap(text: str) -> LLMResponse:
        return LLMResponse(text, usage=TokenUsage(1, 1, cost=0.25))

    @before_llm
    def inner(agent: Agent) -> None:
        agent.ask("Hm?")

    child = quiet("child", cheap("Yes."), cheap("Hello."), log=False, on_events=[inner])

    @before_llm
    def outer() -> None:
        child.input("Go")

    root = quiet("root", cheap("Done."), log=False, on_events=[outer])
    assert root.input("Hi") == "Done."
    paid = {row["handler"]: (row["model_calls"], row["cost"]) for row in [*root.ledger, *child.ledger]}
    assert (paid["outer"], paid["inner"]) == ((2, 0.5), (1, 0.25))


# -- waits -----------------------------------------------------------------------------------------


@before_each_tool
def asks(agent: Agent, tool_call: ToolCall) -> None:
    if tool_call.name == "look":
        agent.current_session["state"]["asked"] = True  # type: ignore[index]
        raise Pause("may I?")


def waiter(*script: Any) -> Agent:
    return quiet("waiter", *script, tools=[look], log=False, on_events=[asks])


def test_what_a_turn_inside_changed_stays_where_nobody_goes_on_with_its_wait() -> None:
    root = quiet("root", call("waiter", prompt="Go"), "Something else.", tools=[waiter(call("look"))], log=False)
    with pytest.raises(Paused):
        root.input("Hi")
    assert root.input("Never mind") == "Something else."
    assert root.current_session["state"] == {"asked": True}  # type: ignore[index]


def test_the_value_of_a_handler_around_a_tool_ends_the_wait_of_an_agent_inside() -> None:
    @around_tool
    def without_people() -> Generator[None, Any, str | None]:
        try:
            yield
        except Waiting:
            return "nobody is there"
        return None

    child = waiter(call("look"))
    root = quiet("root", call("waiter", prompt="Go"), "Done.", tools=[child], log=False, on_events=[without_people])
    assert root.input("Hi") == "Done."
    assert entries(root, "tool_execution")[0]["result"] == "nobody is there"


# -- what goes on ----------------------------------------------------------------------------------


@pytest.mark.parametrize("hides", [True, False])
def test_an_error_that_hides_another_is_not_that_ones(hides: bool) -> None:
    def family(*script: Any) -> Agent:
        child = quiet("child", *script)

        @before_llm
        def ask() -> None:
            try:
                child.input("Go")
            except ProviderError as error:
                raise ValueError("my own") from None if hides else error

        return quiet("root", "Done.", on_events=[ask])

    root = family(ProviderError("down", kind="overloaded", provider="p"))
    with pytest.raises(ValueError, match="my own"):
        root.input("Hi")
    again = family("Hello.")
    if hides:  # what the child came to is known
        with pytest.raises(ValueError, match="my own"):
            again.resume(root.record)
    else:
        assert again.resume(root.record) == "Done."


@pytest.mark.parametrize("workflow", [True, False])
def test_an_error_in_a_function_in_place_of_a_model_is_not_raised_again_but_done_again(workflow: bool) -> None:
    def family(*script: Any) -> Agent:
        child = quiet("child", *script)
        if workflow:
            return Sequential("root", [child], quiet=True)
        return Agent("root", run=lambda: child.input("Go"), sub_agents=[child], quiet=True)

    root = family(ProviderError("down", kind="overloaded", provider="p"))
    with pytest.raises(ProviderError):
        root.input("Hi")
    assert family("Hello.").resume(root.record) == "Hello."


def test_what_a_handler_adds_to_the_trace_of_a_turn_that_goes_on_is_its_own(folder: Path) -> None:
    last: list[bool] = []

    @after_each_tool
    def notes(agent: Agent, entry: Any) -> None:
        trace = agent.current_session["trace"]  # type: ignore[index]
        last.append(trace[-1] is entry)
        trace.append({"type": "mine"})

    agent = quiet("a", call("look"), "Done.", tools=[look], on_events=[notes])
    agent.input("Go")
    again = quiet("a", "Done.", tools=[look], on_events=[notes])
    assert again.resume(cut_at(agent, lambda line: '"tool_execution"' in line, folder / "a_1.yaml")) == "Done."
    (mine,) = entries(again, "mine")
    assert mine["by"]["handler"] == "notes" and last == [True, True]
    (told,) = (line for line in read_record(folder / "a_1.yaml")["turns"][1]["lines"] if line["type"] == "mine")
    assert told["by"]["handler"] == "notes"


@pytest.mark.parametrize("how", ["by itself", "by a tool"])
def test_what_the_handlers_before_the_one_that_was_cut_short_did_stays_once(folder: Path, how: str) -> None:
    def note(agent: Agent) -> str:
        """Note."""
        state_of(agent)["noted"] = state_of(agent).get("noted", 0) + 1
        return "noted"

    @after_tools
    def first(agent: Agent) -> None:
        if how == "by a tool":
            agent.execute_tool("note")
        else:
            note(agent)

    @after_tools
    def second(agent: Agent) -> None:
        state_of(agent)["half"] = state_of(agent).get("half", 0) + 1
        agent.ask("Hm?")
        agent.ask("Really?")

    def agent_of(*script: Any) -> Agent:
        return quiet("noting", *script, tools=[look, note], on_events=[first, second])

    agent = agent_of(call("look"), "Yes.", "No.", "Done.")
    assert agent.input("Go") == "Done."
    for kill in (1, 2):  # both while the second question of the second handler is asked
        lines = Path(str(agent.record)).read_text().splitlines(keepends=True)
        asked = [n for n, line in enumerate(lines) if '"began"' in line and ".second/ask" in line and "/model1" in line]
        path = folder / f"noting_{kill}.yaml"
        path.write_text("".join(lines[: asked[kill] + 1]))
        agent = agent_of("No.", "Done.")
        assert agent.resume(path) == "Done."
        assert state_of(agent) == {"noted": 1, "half": 1}


def test_an_error_that_was_caught_when_it_came_again_is_known(folder: Path) -> None:
    def family(strict: bool, *script: Any) -> list[Agent]:
        child = quiet("child", *script)

        @before_llm
        def ask(agent: Agent) -> None:
            try:
                child.input("Go")
            except ProviderError:
                if strict:
                    raise
            agent.ask("Hm?")

        return [quiet("root", "Yes.", "Done.", on_events=[ask]), child]

    down = ProviderError("down", kind="overloaded", provider="p")
    (root, _) = family(True, down)
    with pytest.raises(ProviderError):
        root.input("Hi")
    (again, _) = family(False, down)
    assert again.resume(root.record) == "Done."
    path = cut_at(again, lambda line: '"began"' in line and "/ask:" in line, folder / "root_1.yaml")
    (last, child) = family(False, "Hello.")
    assert last.resume(path) == "Done."
    assert child.llm.requests == []  # type: ignore[attr-defined]


def test_a_call_that_a_person_rejected_does_not_run_though_another_one_waited_behind_it() -> None:
    @before_each_tool
    def ask(tool_call: ToolCall) -> None:
        raise Pause(f"may {tool_call.name}?")

    children = [quiet("one", "First."), quiet("two", "Second.")]
    calls = [call("one", prompt="Go"), call("two", prompt="Go")]
    root = quiet("root", calls, "Done.", tools=children, on_events=[ask])
    with pytest.raises(Paused) as paused:
        root.input("Hi")
    one, two = (wait.id for wait in paused.value.waiting)
    with pytest.raises(Paused):
        root.resume(reject="never", wait=one)
    assert root.resume(approve=two) == "Done."
    results = [(entry["tool_name"], entry["result"]) for entry in entries(root, "tool_execution")]
    assert results[-2:] == [("one", "rejected: never"), ("two", "Second.")]
    assert children[0].llm.requests == []  # type: ignore[attr-defined]


def test_the_log_of_a_session_forgets_whom_the_one_before_it_did_not_record() -> None:
    children = [quiet("child", "Hello.", log=False), quiet("child", "Good morning.")]

    @tool
    def ask() -> str:
        """Ask."""
        return children.pop(0).input("Go")

    agent = quiet("root", call("ask"), "One.", call("ask"), "Two.", tools=[ask])
    agent.input("Hi")
    agent.reset_conversation()
    agent.input("Hi")
    assert "Good morning." in Path(str(agent.record)).read_text().split("Two.")[0].split('"tool_execution"')[0]


# -- handlers --------------------------------------------------------------------------------------


def test_the_trace_ends_with_the_last_call_for_each_handler_behind_a_round() -> None:
    seen: list[bool] = []

    @after_tools
    def adds(agent: Agent, entries: list[Any]) -> None:
        agent.current_session["messages"].append({"role": "user", "content": "Go on."})  # type: ignore[index]

    @after_tools
    def looks(agent: Agent, entries: list[Any]) -> None:
        seen.append(agent.current_session["trace"][-1] is entries[-1])  # type: ignore[index]

    agent = quiet("a", call("look"), "Done.", tools=[look], log=False, on_events=[adds, looks])
    agent.input("Go")
    assert seen == [True]


def test_a_plugin_that_was_left_out_comes_back_to_its_place() -> None:
    def named(name: str) -> Any:
        def handler() -> None:
            pass

        handler.__name__ = handler.__qualname__ = name
        return before_llm(handler)

    agent = quiet("a", "Hi.", log=False, plugins=[named(name) for name in "abc"])

    def order() -> list[str]:
        return [one.by["handler"] for one in agent.hooks.handlers("before_llm") if isinstance(one, Handler)]

    before = order()
    for handler in agent.hooks.handlers("before_llm"):
        with agent.hooks.without([handler]):
            assert len(order()) == 2
        assert order() == before


def test_a_call_has_its_own_name_again_where_the_handler_that_renamed_it_failed() -> None:
    @before_each_tool
    def renames(tool_call: ToolCall) -> None:
        tool_call.name = "other"
        raise OSError("no")

    agent = quiet("a", call("look"), tools=[look], log=False, on_events=[renames])
    with pytest.raises(OSError):
        agent.input("Go")
    assert [entry["tool_name"] for entry in entries(agent, "tool_execution")] == ["look"]


def test_ctrl_c_while_calls_are_told_to_be_skipped_leaves_none_unanswered() -> None:
    @on_trace
    def interrupts(entry: dict[str, Any]) -> None:
        if entry.get("status") in ("interrupted", "skipped"):
            raise KeyboardInterrupt

    def stop() -> str:
        """Stop."""
        raise KeyboardInterrupt

    calls = [call("stop"), call("stop"), call("stop"), call("stop")]
    agent = quiet("a", calls, tools=[stop], log=False, on_events=[interrupts])
    with contextlib.suppress(KeyboardInterrupt):
        agent.input("Go")
    messages = agent.current_session["messages"]  # type: ignore[index]
    assert [message["role"] for message in messages] == ["user", "assistant", *["tool"] * 4]
    assert conversation_problems(messages) == []


# -- state -----------------------------------------------------------------------------------------


def test_a_key_that_was_removed_and_set_again_is_set() -> None:
    assert joined({"delta": {"a": None}, "removed": ["a"]}, {"delta": {"a": 1}}) == {"delta": {"a": 1}}
    assert joined({"delta": {"a": 1}}, {"delta": {"a": None}, "removed": ["a"]}) == {
        "delta": {"a": None},
        "removed": ["a"],
    }
