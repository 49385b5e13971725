"""The plan, the reflections and the evaluation join the conversation; a model that fails costs no turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from connectagent_budget import Budget
from connectagent_reflect import Reflect
from pytest_connectagent import AgentTester

from connectagent import Agent, ConfigError, LLMResponse, ProviderError, TokenUsage, ToolCall
from connectagent.testing import ScriptedLLM, call

DONE = '{"done": true, "missing": ""}'
NOT_DONE = '{"done": false, "missing": "Name the file."}'
DOWN = ProviderError("down", kind="server", provider="test")
SEARCH = [call("search", query="retry")]


def search(query: str) -> str:
    """Search the docs."""
    return f"Two pages about {query}."


def agent_with(plugin: Any, *responses: Any, **options: Any) -> Agent:
    llm = ScriptedLLM(*responses)
    return Agent("helper", [search], llm=llm, plugins=[plugin], log=False, quiet=True, **options)


def said(agent: Agent) -> list[tuple[str, str]]:
    """Role and text of each message."""
    assert agent.current_session is not None
    return [(message["role"], str(message["content"])) for message in agent.current_session["messages"]]


def notes(agent: Agent) -> dict[str, Any]:
    assert agent.current_session is not None
    found: dict[str, Any] = agent.current_session["state"]["reflect"]
    return found


def test_it_keeps_the_rules_on_every_path(agenttester: AgentTester) -> None:
    checked = agenttester.check(Reflect(), changes={"messages", "state"}, answers=["Think.", DONE])
    assert checked.hooks == {"after_user_input", "after_tools", "on_complete"}


def test_it_keeps_the_rules_where_the_agent_is_sent_on(agenttester: AgentTester) -> None:
    agenttester.check(Reflect(plan=False, reflect=False), changes={"state", "turn"}, answers=[NOT_DONE])


@pytest.mark.parametrize("plugin_errors", ["raise", "warn"])
def test_a_turn_that_a_budget_ends_is_not_reflected_on(plugin_errors: str) -> None:
    plugins = [Budget(model_calls=1), Reflect(plan=False)]
    agent = Agent(
        "helper", [search], llm=ScriptedLLM(SEARCH, "never"), plugins=plugins, log=False, quiet=True,
        plugin_errors=plugin_errors,
    )  # fmt: skip
    assert "budget" in agent.input("Where?") and "TurnEndedError" in notes(agent)["skipped"][0]


def test_switched_off_it_changes_nothing(agenttester: AgentTester) -> None:
    agenttester.check(Reflect(plan=False, reflect=False, evaluate=False), changes=())


def test_a_turn_is_planned_reflected_on_and_evaluated() -> None:
    agent = agent_with(Reflect(), "1. search", SEARCH, "It helped; answer now.", "In retry.md.", DONE)
    assert agent.input("Where are the retries?") == "In retry.md."
    assert [role for role, _ in said(agent)] == ["user", "user", "assistant", "tool", "user", "assistant"]
    assert said(agent)[1][1].endswith("1. search")
    assert said(agent)[4][1].endswith("It helped; answer now.")


def test_each_phase_is_told_what_it_needs() -> None:
    llm = ScriptedLLM("1. search", SEARCH, "Go on.", "In retry.md.", DONE)
    Agent("helper", [search], llm=llm, plugins=[Reflect()], log=False, quiet=True).input("Where?")
    plan, _, thought, _, judged = [str(request.messages) for request in llm.requests]
    assert "Where?" in plan
    assert "search: Search the docs." in plan
    assert "Two pages about retry." in thought
    assert "1. search" in thought
    assert "In retry.md." in judged
    assert all(request.tools == [] for request in (llm.requests[0], llm.requests[2], llm.requests[4]))


def test_what_is_not_done_goes_on_once_with_what_is_missing() -> None:
    agent = agent_with(Reflect(plan=False), "Somewhere.", NOT_DONE, "In retry.md.")
    assert agent.input("Where?") == "In retry.md."
    assert said(agent)[2] == ("user", "The task is not done yet. Name the file.")


def test_max_continues_counts_for_each_turn_anew() -> None:
    plugin = Reflect(plan=False, max_continues=2)
    agent = agent_with(plugin, *["a", NOT_DONE, "b", NOT_DONE, "c"] * 2)
    assert [agent.input("x"), agent.input("y")] == ["c", "c"]
    assert notes(agent)["turn"] == 2


def test_each_phase_can_be_switched_off() -> None:
    agent = agent_with(Reflect(plan=False, reflect=False, evaluate=False), SEARCH, "done")
    assert agent.input("Where?") == "done"
    assert [role for role, _ in said(agent)] == ["user", "assistant", "tool", "assistant"]
    agent = agent_with(Reflect(plan=False, reflect=False, max_continues=0), "done")
    assert agent.input("Where?") == "done"


def test_a_model_of_its_own_reflects() -> None:
    own = ScriptedLLM("1. search", "Go on.", DONE)
    agent = agent_with(Reflect(model=own), SEARCH, "In retry.md.")
    assert agent.input("Where?") == "In retry.md."
    assert len(own.requests) == 3
    agent = agent_with(Reflect(model="offline", evaluate=False), "Hello.")
    agent.input("Hi")
    assert "[offline]" in said(agent)[1][1]


def test_a_reflecting_model_that_fails_is_left_out_and_told_in_the_state() -> None:
    own = ScriptedLLM(DOWN, DOWN, "no JSON", "no JSON again")
    agent = agent_with(Reflect(model=own), SEARCH, "In retry.md.")
    assert agent.input("Where?") == "In retry.md."
    assert [role for role, _ in said(agent)] == ["user", "assistant", "tool", "assistant"]
    assert [reason.partition(":")[0] for reason in notes(agent)["skipped"]] == [
        "ProviderError",
        "ProviderError",
        "OutputError",
    ]


def test_an_empty_thought_adds_no_message() -> None:
    agent = agent_with(Reflect(model=ScriptedLLM("", "", DONE)), SEARCH, "done")
    agent.input("Where?")
    assert [role for role, _ in said(agent)] == ["user", "assistant", "tool", "assistant"]


def test_a_turn_that_ends_at_the_limit_is_not_evaluated() -> None:
    agent = agent_with(Reflect(plan=False, reflect=False), SEARCH, max_iterations=1)
    assert "Maximum iterations" in agent.input("Where?")


def test_agents_share_the_plugin_and_no_state() -> None:
    plugin = Reflect(plan=False)
    first = agent_with(plugin, "a", NOT_DONE, "b")
    second = agent_with(plugin, "c", NOT_DONE, "d")
    assert [first.input("x"), second.input("y")] == ["b", "d"]
    assert notes(first) is not notes(second)


def test_every_message_is_attributed_to_the_plugin() -> None:
    agent = agent_with(Reflect(), "1. answer", "Hello.", DONE)
    agent.input("Hi")
    assert agent.current_session is not None
    entries = [entry for entry in agent.current_session["trace"] if entry["type"] == "message"]
    assert [entry["by"]["plugin"] for entry in entries] == ["reflect"]


def test_its_own_calls_are_in_the_cost_of_the_session_and_of_the_agents_around() -> None:
    def priced(text: str, cost: float) -> LLMResponse:
        return LLMResponse(text, usage=TokenUsage(10, 5, cost=cost))

    script = [priced("Plan.", 0.5), priced("Found.", 1), priced(DONE, 0.25)]
    inner = Agent("inner", llm=ScriptedLLM(*script), log=False, quiet=True)
    calls = LLMResponse(None, [ToolCall("c1", "inner", {"prompt": "Look."})])
    script = [priced("Plan.", 2), calls, priced("Thought.", 4), priced("In b.md.", 8), priced(NOT_DONE, 16)]
    llm = ScriptedLLM(*script, priced("In a.md.", 32))
    agent = Agent("outer", [inner], llm=llm, plugins=[Reflect()], log=False, quiet=True)
    assert agent.input("Where are the retries?") == "In a.md."
    assert inner.total_cost == 1.75 and agent.total_cost == 62 + 1.75


def test_long_results_and_arguments_are_clipped_and_that_is_told() -> None:
    def read() -> str:
        """Read."""
        return "x" * 50_000

    own = ScriptedLLM("Go on.")
    plugin = Reflect(model=own, plan=False, evaluate=False)
    Agent("h", [read], llm=ScriptedLLM([call("read")], "done"), plugins=[plugin], log=False, quiet=True).input("Read")
    text = str(own.requests[0].messages)
    assert len(text) < 6_000
    assert "(48000 more characters)" in text


@pytest.mark.parametrize("value", [-1, 1.5, "1", True])
def test_max_continues_is_a_whole_number(value: Any) -> None:
    with pytest.raises(ConfigError, match="max_continues"):
        Reflect(max_continues=value)


def test_the_example_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CONNECTAGENT_MODEL", "offline")
    text = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    exec(text.split("```python\n")[1].split("```")[0], {})
    assert "[offline]" in capsys.readouterr().out


def test_agents_below_have_a_plan_and_a_count_of_their_own() -> None:
    plugin = Reflect(reflect=False)
    below = ScriptedLLM("1. Below.", call("search", query="x"), "Found.", DONE, "1. Below again.", "Found.", DONE)
    child = Agent("below", [search], llm=below, log=False, quiet=True)
    asks = call("below", prompt="Search")
    llm = ScriptedLLM("1. Ask.", asks, "One.", NOT_DONE, asks, "Two.", "Not asked for any more.")
    agent = Agent("above", [child], llm=llm, plugins=[plugin], log=False, quiet=True)
    assert agent.input("Go") == "Two."
    assert (notes(agent)["plan"], notes(agent)["continues"]) == ("1. Ask.", 1)
    assert agent.session["state"]["reflect:below"]["plan"] == "1. Below again."
    (judged,) = [request for request in llm.requests if "Judge whether" in str(request.messages[0]["content"])]
    assert "1. Ask." in str(judged.messages[-1]["content"]) and "1. Below" not in str(judged.messages[-1]["content"])
