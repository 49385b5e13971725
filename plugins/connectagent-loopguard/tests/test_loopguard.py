"""A model that goes round in circles is told, and then stopped; one that makes progress is left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from connectagent_loopguard import LoopGuard
from pytest_connectagent import AgentTester

from connectagent import Agent, ConfigError
from connectagent.testing import ScriptedLLM, call, replayed


def search(query: str) -> str:
    """Search the docs."""
    return f"Nothing about {query}."


def of(letters: str) -> list[Any]:
    return [call("search", query=letter) for letter in letters]


def agent_with(plugin: Any, *responses: Any, tool: Callable[..., Any] = search, **options: Any) -> Agent:
    given = {"log": False, "quiet": True, "max_iterations": 50, **options}
    return Agent("helper", [tool], llm=ScriptedLLM(*responses), plugins=[plugin], **given)


def told(agent: Agent) -> list[str]:
    messages = agent.session["messages"]
    return [str(message["content"]) for message in messages[1:] if message["role"] == "user"]


def asked(agent: Agent) -> int:
    return len(agent.llm.requests)  # type: ignore[attr-defined]


def test_it_keeps_the_rules_on_every_path(agenttester: AgentTester) -> None:
    assert agenttester.check(LoopGuard(), changes={"state"}).hooks == {"after_tools"}


def test_it_keeps_the_rules_where_it_acts(agenttester: AgentTester) -> None:
    responses = [("work", {"x": 1})] * 6
    changes = {"state", "messages", "turn"}
    agenttester.check(LoopGuard(repeats=2), changes=changes, responses=[*responses, "Done."])


@pytest.mark.parametrize("cycle", ["a", "ab", "abc", "abcd"])
def test_cycles_of_one_to_four_rounds_are_told_and_then_end_the_turn(cycle: str) -> None:
    agent = agent_with(LoopGuard(unchanged=99), *of(cycle * 6), "never")
    assert agent.input("Search").startswith("Stopped: The same")
    assert (agent.session["outcome"], asked(agent), len(told(agent))) == ("loop", 6 * len(cycle), 1)
    assert "3 times in a row" in told(agent)[0]


@pytest.mark.parametrize("letters", ["aabb", "abcde" * 4, "abacadaeaf", "aab" * 2])
def test_what_is_no_cycle_is_left_alone(letters: str) -> None:
    agent = agent_with(LoopGuard(unchanged=99), *of(letters), "Done.")
    assert agent.input("Search") == "Done."
    assert told(agent) == []


def test_a_model_that_listens_goes_on() -> None:
    agent = agent_with(LoopGuard(), *of("aaa"), *of("b"), "Done.")
    assert agent.input("Search") == "Done."
    assert len(told(agent)) == 1


def test_one_call_with_one_result_is_noticed_between_others() -> None:
    agent = agent_with(LoopGuard(unchanged=3, patience=0), *of("axaayzb"[:4]), "never")
    assert agent.input("Search") == "Stopped: search was called 3 times with the same arguments and result."


def test_polling_is_no_circle_while_the_result_changes() -> None:
    results = iter(range(100))

    def poll() -> str:
        """Poll."""
        return f"{next(results)} %"

    agent = agent_with(LoopGuard(), *[call("poll")] * 20, "Done.", tool=poll)
    assert agent.input("Wait") == "Done."


def test_a_tool_that_fails_again_and_again_is_a_circle() -> None:
    def broken() -> str:
        """Fail."""
        raise ValueError("broken")

    agent = agent_with(LoopGuard(patience=0), *[call("broken")] * 3, "never", tool=broken)
    agent.input("Go")
    assert agent.session["outcome"] == "loop"


def test_parallel_rounds_and_streams_are_watched_too() -> None:
    agent = agent_with(LoopGuard(patience=0), *[of("ab")] * 3, "never", parallel_tools=2)
    list(agent.stream("Search"))
    assert (agent.session["outcome"], asked(agent)) == ("loop", 3)


def test_each_turn_begins_anew() -> None:
    agent = agent_with(LoopGuard(), *of("aa"), "One.", *of("aa"), "Two.")
    assert [agent.input("x"), agent.input("y")] == ["One.", "Two."]
    assert told(agent) == ["y"]


def test_a_child_is_watched_by_itself_and_its_caller_goes_on() -> None:
    child = Agent("child", [search], llm=ScriptedLLM(*of("aaa"), "never"), quiet=True, log=False)
    llm = ScriptedLLM(call("child", prompt="Look"), "Done.")
    agent = Agent("root", [child], llm=llm, plugins=[LoopGuard(patience=0)], quiet=True, log=False)
    assert agent.input("Go") == "Done."
    assert "Stopped: The same tool calls" in str(llm.requests[1].messages[-1]["content"])


def test_a_resumed_turn_goes_on_counting_and_replays_the_same(co_dir: Path) -> None:
    def make(*responses: Any) -> Agent:
        return agent_with(LoopGuard(patience=0), *responses, log=None)

    first = make(*of("aa"), KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        first.input("Search")
    again = make(*of("a"), "never")
    assert again.resume(first.record).startswith("Stopped")
    assert asked(again) == 1
    whole = make(*of("aaa"))
    whole.input("Search")
    assert whole.record is not None
    assert replayed(whole.record, agent=make()).same


@pytest.mark.parametrize("wrong", [{"repeats": 1}, {"unchanged": 1.5}, {"patience": -1}, {"patience": True}])
def test_wrong_options_are_told(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LoopGuard(**wrong)


def test_the_example_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    exec(text.split("```python\n")[1].split("```")[0], {})
    assert "2 times in a row" in capsys.readouterr().out


def child(name: str, times: int) -> Agent:
    """An agent that searches once in each turn."""
    llm = ScriptedLLM(*[call("search", query="x"), "Nothing."] * times)
    return Agent(name, [search], llm=llm, log=False, quiet=True)


def test_a_circle_is_noticed_though_an_agent_below_is_asked_in_each_round() -> None:
    responses = [call("below", prompt="x")] * 9
    agent = agent_with(LoopGuard(repeats=2), *responses, tool=child("below", 9))
    assert agent.input("Go").startswith("Stopped: The same tool calls")
    assert (asked(agent), agent.session["outcome"]) == (4, "loop")


@pytest.mark.parametrize("at_once", [False, True])
def test_what_other_agents_of_the_tree_called_is_no_circle(at_once: bool) -> None:
    names = [f"below{number}" for number in range(4)]
    calls = [call(name, prompt="x") for name in names]
    llm = ScriptedLLM(*([calls] if at_once else calls), "Done.")
    tools = [child(name, 1) for name in names]
    agent = Agent("helper", tools, llm=llm, plugins=[LoopGuard(unchanged=2, patience=0)], log=False, quiet=True)
    assert agent.input("Go") == "Done."
    results = [entry["result"] for entry in agent.session["trace"] if entry["type"] == "tool_execution"]
    assert results == ["Nothing."] * 4
