"""Limits of single tools and agents, over parallel rounds, pauses, resumes and kills."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from connectagent_budget import Budget
from pytest_connectagent import AgentTester

from connectagent import Agent, ConfigError, LLMResponse, Pause, Paused, TokenUsage, tool
from connectagent.testing import ScriptedLLM, call

SEARCH = call("search", query="a")


def search(query: str) -> str:
    """Search the docs."""
    return "Two pages."


def paid(content: str | None = None, calls: Any = None) -> LLMResponse:
    return LLMResponse(content, calls, TokenUsage(10, 0, cost=0.5))


def results(agent: Agent) -> list[Any]:
    return [entry["status"] for entry in agent.session["trace"] if entry["type"] == "tool_execution"]


def test_it_keeps_the_rules_on_every_path(agenttester: AgentTester) -> None:
    plugin = Budget(tools={"none": 1}, agents={"nobody": {"usd": 1, "tools": {"none": 1}}})
    agenttester.check(plugin, shares_state=True)


@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("limits", [{"tools": {"search": 2}}, {"agents": {"helper": {"tools": {"search": 2}}}}])
def test_a_tool_has_its_own_limit_and_the_model_reads_the_refusal(limits: dict[str, Any], parallel: int) -> None:
    calls = [*(call("search", query=str(number)) for number in range(4)), call("note", text="x")]

    def note(text: str) -> str:
        """Note."""
        return "noted"

    llm = ScriptedLLM(calls, "Done.")
    agent = Agent("helper", [search, note], llm=llm, plugins=[Budget(**limits)], log=False, quiet=True)
    agent.parallel_tools = parallel
    assert agent.input("Search") == "Done."
    assert Counter(results(agent)) == {"success": 3, "rejected": 2}
    texts = [str(one.get("content")) for one in llm.requests[1].messages]
    refused = [text for text in texts if "used up" in text]
    assert len(refused) == 2 and "2 of 2 calls of the tool 'search' a turn" in refused[0]
    warned = [entry for entry in agent.session["trace"] if entry["type"] == "budget"]
    assert [(entry["of"], entry["tool"], entry["used"], entry["limit"]) for entry in warned] == [
        ("tool_calls", "search", 2, 2)
    ]


PARTS = [
    ({"model_calls": 2}, 2, 1),
    ({"tool_calls": 1}, 2, 1),
    ({"tokens": 20}, 2, 1),
    ({"usd": 1.0}, 2, 1),
    ({"usd": 1.2}, 2, 1),  # a third call would take 0.5
]


@pytest.mark.parametrize(("limits", "asked", "searched"), PARTS)
@pytest.mark.parametrize("per", ["turn", "session", "day"])
def test_an_agent_has_its_own_limits_and_its_caller_goes_on(
    limits: dict[str, Any], asked: int, searched: int, per: str, co_dir: Path
) -> None:
    llm = ScriptedLLM(*[paid(None, [SEARCH])] * 9)
    child = Agent("billing", [search], llm=llm, log=False, quiet=True, max_iterations=9)
    lead = ScriptedLLM(paid(None, [call("billing", prompt="Go")]), paid(None, [SEARCH]), paid("Done."))
    plugin = Budget(usd=90, agents={"billing": limits}, per=per)
    agent = Agent("lead", [child, search], llm=lead, plugins=[plugin], log=False, quiet=True)
    assert agent.input("Go") == "Done."
    assert agent.session["outcome"] == "answered"
    assert len(llm.requests) == asked
    (text,) = [str(one["content"]) for one in lead.requests[1].messages if one["role"] == "tool"]
    assert "The budget of the agent 'billing'" in text


def test_an_agent_pays_for_those_that_it_asks() -> None:
    inner = Agent("inner", [search], llm=ScriptedLLM(*[paid(None, [SEARCH])] * 9), log=False, quiet=True)
    asks = [paid(None, [call("inner", prompt="Go")]), "never"]
    middle = Agent("middle", [inner], llm=ScriptedLLM(*asks), log=False, quiet=True)
    lead = ScriptedLLM(paid(None, [call("middle", prompt="Go")]), paid("Done."))
    plugin = Budget(agents={"middle": {"usd": 2}})
    agent = Agent("lead", [middle], llm=lead, plugins=[plugin], log=False, quiet=True)
    assert agent.input("Go") == "Done."
    assert (len(middle.llm.requests), len(inner.llm.requests)) == (1, 3)  # type: ignore[attr-defined]


def test_an_agent_outside_of_the_tree_has_its_limit() -> None:
    other = Agent("other", [search], llm=ScriptedLLM(*[[SEARCH]] * 9), log=False, quiet=True)

    def ask(prompt: str) -> str:
        """Ask the other agent."""
        return other.input(prompt)

    lead = ScriptedLLM(*[call("ask", prompt="Go")] * 3, "Done.")
    plugin = Budget(agents={"other": {"model_calls": 4}}, tools={"search": 1})
    agent = Agent("lead", [ask], llm=lead, plugins=[plugin], log=False, quiet=True)
    assert agent.input("Go") == "Done."
    assert len(other.llm.requests) == 4  # type: ignore[attr-defined]


def test_an_unknown_price_ends_only_the_agent_whose_usd_are_limited() -> None:
    llm = ScriptedLLM(*[LLMResponse(None, [SEARCH], TokenUsage(10, 0))] * 9)
    child = Agent("billing", [search], llm=llm, log=False, quiet=True)
    lead = ScriptedLLM(call("billing", prompt="Go"), "Done.")
    plugin = Budget(agents={"billing": {"usd": 1}})
    agent = Agent("lead", [child], llm=lead, plugins=[plugin], log=False, quiet=True)
    assert agent.input("Go") == "Done."
    assert len(llm.requests) == 1


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("per", ["turn", "session", "day"])
@pytest.mark.parametrize("stop", ["pause", "kill"])
@pytest.mark.parametrize("limits", [{"tools": {"pay": 2}}, {"agents": {"billing": {"tools": {"pay": 2}}}}])
def test_counts_go_on_in_another_agent(limits: dict[str, Any], stop: str, per: str, co_dir: Path) -> None:
    done = list[str]()

    def make(*fate: Any) -> Agent:
        @tool(idempotent=True)
        def pay(number: str) -> str:
            """Pay."""
            if number == "stop" and stop == "pause":
                raise Pause("really?")
            done.append(number)
            if number == "stop":
                raise Killed
            return "paid"

        child = Agent("billing", [pay], llm=ScriptedLLM(*fate), quiet=True)
        lead = ScriptedLLM(call("billing", prompt="Pay"), "Done.")
        return Agent("lead", [child], llm=lead, plugins=[Budget(**limits, per=per)], quiet=True)

    first = make([call("pay", number="1"), call("pay", number="stop")])
    with pytest.raises((Paused, Killed)):
        first.input("Go")
    assert first.record is not None
    record = first.record
    first.close()
    stop = "none"  # as the program that goes on would do it
    again = make([call("pay", number="2"), call("pay", number="3")], "Paid.")
    again.llm.responses = ["Done."]  # type: ignore[attr-defined]
    assert again.resume(record, answer=None if done[-1] == "stop" else "paid") == "Done."
    # A paused call that a person answered is none of the budget's; a killed one counts, and so does its repetition.
    assert len([one for one in done if one in ("1", "stop", "2", "3")]) <= 2


def test_a_rejected_call_does_not_count_after_a_resume(co_dir: Path) -> None:
    def make(*answers: Any) -> Agent:
        @tool
        def buy(number: int) -> str:
            """Buy."""
            return "bought"

        @tool
        def ask(text: str) -> str:
            """Ask."""
            raise Pause("really?")

        budget = Budget(tools={"buy": 2}, tool_calls=4)
        return Agent("helper", [buy, ask], llm=ScriptedLLM(*answers), plugins=[budget], quiet=True)

    calls = [call("buy", number=number) for number in (1, 2, 3, 4)]
    first = make(calls, call("ask", text="x"))
    with pytest.raises(Paused):
        first.input("Go")
    assert Counter(results(first)) >= Counter({"success": 2, "rejected": 2})
    assert first.record is not None
    again = make([call("buy", number=5), call("ask", text="y")], "Done.")
    with pytest.raises(Paused):  # 2 calls of 4 were made, so that `ask` may be made
        again.resume(first.record, answer="yes")
    assert results(again).count("rejected") == 3


WRONG: list[dict[str, Any]] = [
    {"tools": 5},
    {"tools": {"search": "many"}},
    {"tools": {"search": True}},
    {"tools": {"search": -1}},
    {"tools": {3: 1}},
    {"agents": ["billing"]},
    {"agents": {"billing": 1}},
    {"agents": {"billing": {"euro": 1}}},
    {"agents": {"billing": {"seconds": 1}}},
    {"agents": {"billing": {"usd": float("nan")}}},
    {"agents": {"billing": {"tools": {"search": None}}}},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_wrong_limits_are_told(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Budget(**wrong)


SCRIPT = """
from connectagent import Agent
def search(query: str) -> str:
    "Search."
    return query
agent = Agent("h", [search], model="offline")
"""
TABLE = '[tool.connectagent]\nplugins = ["budget"]\n[tool.connectagent.budget]\n'
GIVEN = [
    (["-p", 'budget:tools={"search": 0}'], ""),
    (["--budget-tools", '{"search": 0}'], ""),
    (["-p", 'budget:tools={"search": 0, "x": 1},usd=2'], ""),
    (["-p", 'budget:agents={"h": {"tools": {"search": 0}}}'], ""),
    ([], f"{TABLE}tools = {{ search = 0 }}\n"),
    ([], f"{TABLE}agents.h.tools.search = 0\n"),
]


@pytest.mark.parametrize(("options", "table"), GIVEN, ids=str)
def test_the_command_line_and_the_project_take_them(options: list[str], table: str, tmp_path: Path) -> None:
    found = tmp_path / "connectagent_budget-0.1.0.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Name: connectagent-budget\nVersion: 0.1.0\n", "utf-8")
    (found / "entry_points.txt").write_text("[connectagent]\nbudget = connectagent_budget:Budget\n", "utf-8")
    (tmp_path / "agent.py").write_text(SCRIPT, "utf-8")
    if table:
        (tmp_path / "pyproject.toml").write_text(table, "utf-8")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "connectagent", "run", "agent.py", 'search "a"', "--quiet", *options]
    environment = {**os.environ, "PYTHONPATH": path}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert "0 of 0 calls of the tool 'search' a turn" in ran.stdout, ran.stderr + ran.stdout
