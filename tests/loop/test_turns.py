"""The doors of a turn: ending it, going on, retries, limits, single tools, and what is refused inside it."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_agents import CALL, agent_with, contents, entries, session_of

from connectagent import (
    Agent,
    ConfigError,
    Continue,
    LLMResponse,
    ProviderError,
    Retry,
    Tool,
    ToolCall,
    after_each_tool,
    after_user_input,
    before_llm,
    hooks,
    on_complete,
    on_error,
    register_models,
)
from connectagent.testing import HookRecorder, ScriptedLLM


def test_end_turn_ends_before_the_next_call_and_the_conversation_tells_it() -> None:
    @after_each_tool
    def enough(agent: Agent) -> None:
        agent.end_turn("Enough.")

    agent = agent_with(enough, script=([CALL, CALL],))
    assert agent.input("Hi") == "Enough." and session_of(agent)["outcome"] == "ended"
    assert [entry["status"] for entry in entries(agent, "tool_execution")] == ["success", "skipped"]
    assert contents(agent)[-1] == "Enough."
    with pytest.raises(RuntimeError, match="not in a turn"):
        agent.end_turn()


ENDS = ("after_llm", "before_tools", "before_each_tool", "around_tool", "after_each_tool", "on_error", "on_trace")


@pytest.mark.parametrize("place", [*ENDS, "around_llm", "on_text", "a tool"])
@pytest.mark.parametrize("result", ["Enough.", None])
def test_what_an_early_end_left_out_is_told_to_the_model_in_the_next_turn(place: str, result: str | None) -> None:
    def end(agent: Agent) -> None:
        if session_of(agent)["turn"] == 1 and (place != "on_trace" or entries(agent, "llm_call")):
            agent.end_turn(result)

    def ending(agent: Agent) -> str:
        """End the turn."""
        end(agent)
        return "ended"

    def around(agent: Agent) -> Any:
        yield
        end(agent)

    calls = [ToolCall(f"c{n}", name, {}) for n, name in enumerate(["ending", "fails", "note", "note"])]
    handler = [] if place == "a tool" else [getattr(hooks, place)(around if place.startswith("around") else end)]
    agent = agent_with(*handler, script=(LLMResponse("On it.", calls), "Done."), stream=True)
    agent.add_tool(ending if place == "a tool" else Tool("ending", "", {"type": "object"}, lambda: "ran"))
    agent.input("Hi")
    statuses = [entry["status"] for entry in entries(agent, "tool_execution")]
    assert "skipped" in statuses and len(statuses) == 4
    assert agent.input("Go on.") == "Done." and isinstance(agent.llm, ScriptedLLM)
    told = agent.llm.requests[-1].messages
    results = [message["content"] for message in told if message["role"] == "tool"]
    not_run = [content == "not run: the turn was ended" for content in results]
    assert not_run == [status == "skipped" for status in statuses] and told[-1]["content"] == "Go on."


def test_continue_goes_on_until_the_limit() -> None:
    @on_complete
    def more() -> Continue:
        return Continue("More.")

    agent = agent_with(more, script=("1", "2", "3"), max_iterations=3)
    assert agent.input("Hi") == "3"
    assert contents(agent) == ["Hi", "1", "More.", "2", "More.", "3"]


def test_retry_of_a_model_call_may_ask_another_model() -> None:
    other = ScriptedLLM("From the other.", model="other")

    @register_models
    def models() -> dict[str, Any]:
        return {"mine": lambda name: other}

    @on_error
    def fall_back(error: Exception, tool_call: Any) -> Any:
        return Retry(model="mine/other")

    agent = agent_with(models, fall_back, script=(ProviderError("busy", kind="overloaded", provider="x"),))
    assert agent.input("Hi") == "From the other."
    assert [(call["model"], call["status"]) for call in entries(agent, "llm_call")] == [
        ("scripted", "error"),
        ("other", "success"),
    ]


def test_retry_is_bounded_for_models_and_tools() -> None:
    @on_error
    def again() -> Retry:
        return Retry()

    agent = agent_with(again, script=(("fails", {}), "Done."))
    assert agent.input("Hi") == "Done."
    model = ScriptedLLM(*[OSError("down")] * 50)
    agent.llm = model
    with pytest.raises(OSError):
        agent.input("Hi")
    assert 1 < len(model.requests) < 50


def test_the_limit_of_a_turn_may_be_its_own() -> None:
    agent = agent_with(script=(CALL, CALL, CALL, "Done."))
    assert agent.input("Hi", max_iterations=1) == "Task incomplete: Maximum iterations (1) reached."
    assert session_of(agent)["outcome"] == "max_iterations"
    assert agent.input("Go on.") == "Done."


def test_execute_tool_runs_a_tool_with_its_hooks_and_adds_no_message() -> None:
    recorder = HookRecorder()
    agent = agent_with(recorder)
    entry = agent.execute_tool("double", {"x": 4})
    assert (entry["status"], entry["result"]) == ("success", "8") and session_of(agent)["messages"] == []
    assert {"before_each_tool", "around_tool:enter", "after_each_tool"} <= set(recorder.names)
    assert agent.execute_tool("missing")["status"] == "not_found"
    with pytest.raises(ConfigError, match=r"arguments of execute_tool\('double'\) are a dict, not 5"):
        agent.execute_tool("double", 5)  # type: ignore[arg-type]


def test_execute_tool_works_after_a_turn_that_was_ended() -> None:
    @after_user_input
    def end(agent: Agent) -> None:
        agent.end_turn("Ended.")

    agent = agent_with(end)
    agent.input("Hi")
    assert agent.execute_tool("double", {"x": 4})["status"] == "success"


def test_reset_conversation_forgets_it_and_not_within_a_turn() -> None:
    @before_llm
    def reset(agent: Agent) -> None:
        with pytest.raises(RuntimeError, match="between turns"):
            agent.reset_conversation()

    agent = agent_with(reset, script=("One.", "Two."))
    agent.input("Hi")
    agent.reset_conversation()
    assert agent.current_session is None
    agent.input("Hello")
    assert contents(agent) == ["Hello", "Two."] and session_of(agent)["turn"] == 1


def test_input_inside_a_turn_is_refused_and_harms_nothing() -> None:
    @before_llm
    def recurse(agent: Agent) -> None:
        with pytest.raises(RuntimeError, match="is in a turn"):
            agent.input("Inner")

    agent = agent_with(recurse)
    assert agent.input("Hi") == "Done." and contents(agent) == ["Hi", None, "4", "Done."]


def test_a_tool_that_ran_is_not_said_not_to_have_run_when_a_handler_about_it_fails() -> None:
    from connectagent import around_tool

    @around_tool
    def broken() -> Any:
        yield
        raise ValueError("mine")

    agent = agent_with(broken, script=(LLMResponse(None, [ToolCall("c", "double", {"x": 2})]),))
    with pytest.raises(ValueError, match="mine"):
        agent.input("Hi")
    (entry,) = entries(agent, "tool_execution")
    assert entry["status"] == "interrupted" and "not run" not in contents(agent)[-1]
