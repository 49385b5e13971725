"""Each decision in each place where a turn can run: the same hooks in the same order, and the same trace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from decision_cases import NAME, log_of, made, shape, trace_of
from decision_table import DECISIONS, PROMPT, Decision

from connectagent import Agent, Pause, Paused, hooks
from connectagent.builtin.record import record_path
from connectagent.testing import HookRecorder, ScriptedLLM, call
from connectagent.testing import conversation_problems as problems
from connectagent.workflows import Parallel, Sequential

FOLDER = Path(__file__).parent
Place = Callable[[Decision], tuple[str, Agent, list[str]]]
"""Runs the turn somewhere; gives the result, the agent and the hooks that fired."""


def lines(text: str) -> list[str]:
    return dedent(text).strip().split("\n")


def logged(decision: Decision) -> list[str]:
    return lines(decision.log)


def traced(decision: Decision) -> list[str]:
    told = [line.removeprefix("+") for line in logged(decision) if line.startswith("+")]
    return told if decision.trace is None else lines(decision.trace)


def check(decision: Decision, result: str, agent: Agent, log: list[str]) -> None:
    assert log == logged(decision)
    assert trace_of(agent) == traced(decision)
    session: Any = agent.current_session
    assert (result, session["result"], session["outcome"]) == (decision.result, decision.result, decision.outcome)
    assert problems(session["messages"]) == []


def above(*script: Any, **options: Any) -> Agent:
    return Agent("above", llm=ScriptedLLM(*script), log=False, quiet=True, **options)


# -- the places ------------------------------------------------------------------------------------


def first_turn(decision: Decision) -> tuple[str, Agent, list[str]]:
    agent, recorder = made(decision)
    return agent.input(PROMPT), agent, log_of(recorder)


def later_turn(decision: Decision) -> tuple[str, Agent, list[str]]:
    agent, recorder = made(decision, script=["Hi.", *decision.script])
    agent.input("Before.")
    recorder.clear()
    return agent.input(PROMPT), agent, log_of(recorder)


def streamed_by_setting(decision: Decision) -> tuple[str, Agent, list[str]]:
    agent, recorder = made(decision, stream=True)
    return agent.input(PROMPT), agent, log_of(recorder)


def streamed_as_events(decision: Decision) -> tuple[str, Agent, list[str]]:
    agent, recorder = made(decision)
    told = []
    for event in agent.stream(PROMPT):
        told.append(f"+{shape(event)}")
    assert event == {"type": "result", "result": decision.result, "outcome": decision.outcome}
    told = [line for line in told if not line.startswith(("+text", "+result"))]
    assert told == [line for line in log_of(recorder) if line.startswith("+")]
    return event["result"], agent, log_of(recorder)


def sub_agent(decision: Decision) -> tuple[str, Agent, list[str]]:
    agent, recorder = made(decision)
    root = above(("transfer_to_agent", {"agent_name": NAME}), sub_agents=[agent])
    return root.input(PROMPT), agent, log_of(recorder)


def sub_agent_that_answers_since(decision: Decision) -> tuple[str, Agent, list[str]]:
    agent, recorder = made(decision, script=["Hi.", *decision.script])
    root = above(("transfer_to_agent", {"agent_name": NAME}), sub_agents=[agent])
    root.input("Before.")
    recorder.clear()
    return root.input(PROMPT), agent, log_of(recorder)


def agent_as_tool(decision: Decision) -> tuple[str, Agent, list[str]]:
    agent, recorder = made(decision)
    root = above((NAME, {"prompt": PROMPT}), "Thanks.", tools=[agent])
    assert root.input("Ask.") == "Thanks."
    return root.current_session["messages"][-2]["content"], agent, log_of(recorder)  # type: ignore[index]


def agent_as_tool_beside_others(decision: Decision) -> tuple[str, Agent, list[str]]:
    agent, recorder = made(decision)
    other = Agent("other", llm=ScriptedLLM("Other."), log=False, quiet=True)
    calls = [call("other", prompt="x"), call(NAME, prompt=PROMPT)]
    root = above(calls, "Thanks.", tools=[agent, other])
    assert root.input("Ask.") == "Thanks."
    return root.current_session["messages"][-2]["content"], agent, log_of(recorder)  # type: ignore[index]


def step_of_a_sequence(decision: Decision) -> tuple[str, Agent, list[str]]:
    agent, recorder = made(decision)
    before = Agent("before", llm=ScriptedLLM("First."), log=False, quiet=True)
    return Sequential("both", [before, agent], log=False, quiet=True).input(PROMPT), agent, log_of(recorder)


def one_of_a_parallel(decision: Decision) -> tuple[str, Agent, list[str]]:
    agent, recorder = made(decision)
    other = Agent("other", llm=ScriptedLLM("Other."), log=False, quiet=True)
    result = Parallel("both", [other, agent], log=False, quiet=True).input(PROMPT)
    return result.removeprefix(f"other: Other.\n\n{NAME}: "), agent, log_of(recorder)


@pytest.fixture
def co(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / ".co"))
    return tmp_path


PLACES: list[Place] = [
    first_turn,
    later_turn,
    streamed_by_setting,
    streamed_as_events,
    sub_agent,
    sub_agent_that_answers_since,
    agent_as_tool,
    agent_as_tool_beside_others,
    step_of_a_sequence,
    one_of_a_parallel,
]


def name_of(value: Any) -> str:
    return str(getattr(value, "__name__", value)).replace(" ", "_")


@pytest.mark.parametrize("place", PLACES, ids=name_of)
@pytest.mark.parametrize("name", DECISIONS, ids=name_of)
def test_a_decision_is_the_same_wherever_its_turn_runs(name: str, place: Place) -> None:
    check(DECISIONS[name], *place(DECISIONS[name]))
