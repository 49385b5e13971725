"""Each decision in each place where a turn can run: the same hooks in the same order, and the same trace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import forked
import pytest
from decision_cases import NAME, Stop, log_of, made, shape, trace_of
from decision_table import DECISIONS, PROMPT, Decision

from connectagent import Agent, Pause, Paused
from connectagent.agents.decisions import waiting_in
from connectagent.agents.workflows import Parallel, Sequential
from connectagent.testing import ScriptedLLM, call
from connectagent.testing import conversation_problems as problems

FOLDER = Path(__file__).parents[1] / "support"
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


def inherited_by_an_agent_as_tool(decision: Decision) -> tuple[str, Agent, list[str]]:
    """The recorder and the handler are the caller's; the agent itself has none."""
    giver, recorder = made(decision)
    agent = Agent(NAME, giver.tools, llm=giver.llm, log=False, quiet=True)
    own = [handler.function for handler in giver.hooks.loaded if handler.plugin not in (None, "HookRecorder")]
    root = above((NAME, {"prompt": PROMPT}), "Thanks.", tools=[agent], plugins=[recorder, *own])
    assert root.input("Ask.") == "Thanks."
    log = log_of(recorder)
    over = next(number for number, line in enumerate(log) if line.startswith("+agent_turn"))
    inside = log[log.index(f">tool {NAME}") + 1 : over]
    return root.current_session["messages"][-2]["content"], agent, inside  # type: ignore[index]


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
    inherited_by_an_agent_as_tool,
]


def name_of(value: Any) -> str:
    return str(getattr(value, "__name__", value)).replace(" ", "_")


@pytest.mark.parametrize("place", PLACES, ids=name_of)
@pytest.mark.parametrize("name", DECISIONS, ids=name_of)
def test_a_decision_is_the_same_wherever_its_turn_runs(name: str, place: Place) -> None:
    check(DECISIONS[name], *place(DECISIONS[name]))


# -- an agent that runs a function -----------------------------------------------------------------

NO_MODEL = "a function answers in place of the model, so nothing stands in for it or recovers it"
NOT_IN_A_FUNCTION = dict.fromkeys(
    ["stand in for the model", "recover from a model's error", "try a model again"], NO_MODEL
)
OF_THE_MODEL = ("before_llm", "after_llm", ">llm", "<llm", "+llm_call", "before_tools", "after_tools", "llm_call")


def own_part(log: list[str]) -> list[str]:
    """What is left where no model is asked: handlers of `before_tools` are asked about each call by itself."""
    left: list[str] = []
    for line in log:
        if line.startswith("before_each_tool"):
            left.append(f"before_tools [{line.split()[1]}]")
        if not line.startswith(OF_THE_MODEL):
            left.append(line)
    return left


def function_of(decision: Decision) -> Callable[[Agent], str]:
    """What the model of a decision does, as a function: it runs the tools, and answers."""

    def run(agent: Agent) -> str:
        for step in decision.script:
            for name, arguments in [] if isinstance(step, str) else step if isinstance(step, list) else [step]:
                agent.execute_tool(name, arguments)
        return "Done."

    return run


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "as_tool"])
@pytest.mark.parametrize("name", [name for name in DECISIONS if name not in NOT_IN_A_FUNCTION], ids=name_of)
def test_a_decision_about_a_tool_or_a_turn_is_the_same_where_a_function_answers(name: str, inside: bool) -> None:
    decision = DECISIONS[name]
    agent, recorder = made(decision, run=function_of(decision))
    if inside:
        root = above((NAME, {"prompt": PROMPT}), "Thanks.", tools=[agent])
        assert root.input("Ask.") == "Thanks."
        result = root.current_session["messages"][-2]["content"]  # type: ignore[index]
    else:
        result = agent.input(PROMPT)
    assert log_of(recorder) == own_part(logged(decision))
    assert trace_of(agent) == own_part(traced(decision))
    assert agent.current_session is not None and agent.current_session["outcome"] == decision.outcome
    assert result == decision.result


# -- turns that were stopped -------------------------------------------------------------------------


def decided_at(decision: Decision) -> int:
    """The line behind which the decision is made."""
    words = [line.split()[0] for line in logged(decision)]
    return words.index(decision.handler[0]) if decision.handler else words.index(">tool")


DONE = "the failure of a call that is in the record has been told to on_error, as far as anybody knows"
NOT_AFTER_THE_END_OF_A_PROCESS = {
    ("recover from a tool's error", "+tool_execution"): DONE,
    ("try a tool again", "+tool_execution"): DONE,
}


def stops(kind: str) -> list[Any]:
    """Each line before a decision at which a turn can stop: `before_` for a pause, `+` for the end of the process."""
    found = []
    for name, decision in DECISIONS.items():
        for number, line in enumerate(logged(decision)[: decided_at(decision) + 1]):
            word = line.split()[0]
            if word.startswith(kind) and (name, word) not in NOT_AFTER_THE_END_OF_A_PROCESS:
                found.append(pytest.param(name, number, id=f"{name_of(name)}-{word}-{number}"))
    return found


def test_every_decision_but_the_first_has_a_pause_and_an_end_of_the_process_before_it() -> None:
    # Nothing is asked `before_` the first hook of a turn, so that nothing can be paused before it.
    paused = {stop.values[0] for stop in stops("before_")}
    assert set(DECISIONS) - paused == {"answer before the agent"}
    assert {stop.values[0] for stop in stops("+")} == set(DECISIONS)


def rest(agent: Agent, decision: Decision) -> list[Any]:
    """The responses that the model has not given yet."""
    assert isinstance(agent.llm, ScriptedLLM)
    return decision.script[len(agent.llm.requests) :]


@pytest.fixture
def co(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / ".co"))
    return tmp_path


@pytest.mark.parametrize(("name", "number"), stops("before_"))
def test_a_decision_is_the_same_in_a_turn_that_was_paused_before(name: str, number: int, co: Path) -> None:
    def pause() -> None:
        raise Pause("Shall I?")

    decision, stop = DECISIONS[name], Stop(number, pause)
    agent, stop.recorder = made(decision, stop, log=None)
    with pytest.raises(Paused) as paused:
        agent.input(PROMPT)
    before = log_of(stop.recorder)
    assert len(before) == number + 2 and before[-1].startswith("<turn Paused(")
    go_on = Stop(-2, pause)  # the plugin is listed again, and does nothing this time
    again, go_on.recorder = made(decision, go_on, script=rest(agent, decision))
    result = str(again.resume(paused.value.record, approve=True))
    after = log_of(go_on.recorder)
    assert after[0] == ">turn"
    check(decision, result, again, [*before[: number + 1], *after[1:]])


@pytest.mark.parametrize(("name", "number"), stops("+"))
def test_a_decision_is_the_same_in_a_turn_that_was_cut_off_before(name: str, number: int, co: Path) -> None:
    kept = co / ".co" / "evals" / f"{NAME}_2026-01-01T00-00-00.yaml"

    def keep() -> None:  # what a process leaves that ends here
        shutil.copy(str(agent.record), kept)
        left.extend(rest(agent, decision))

    left: list[Any] = []
    decision, stop = DECISIONS[name], Stop(number, keep)
    agent, stop.recorder = made(decision, stop, log=None)
    assert agent.input(PROMPT) == decision.result
    again, recorder = made(decision, script=left)
    result = str(again.resume(kept))
    after = log_of(recorder)
    assert after[0] == ">turn"
    check(decision, result, again, [*log_of(stop.recorder)[: number + 1], *after[1:]])


# -- the command line --------------------------------------------------------------------------------

SCRIPT = """
import atexit, json, os
from pathlib import Path
from connectagent import Pause
from decision_cases import Stop, log_of, made, trace_of
from decision_table import DECISIONS

def pause():
    raise Pause("Shall I?")

given = json.loads(os.environ["GIVEN"])
decision = DECISIONS[given["name"]]
stop = Stop(given["stop"], pause)
agent, stop.recorder = made(decision, stop, script=decision.script[given["from"]:], log=None, quiet=False)
seen = lambda: json.dumps([log_of(stop.recorder), trace_of(agent), agent.current_session["outcome"]])
atexit.register(lambda: Path(given["seen"]).write_text(seen()))
"""


def connectagent(folder: Path, *arguments: str, **given: Any) -> tuple[subprocess.CompletedProcess[str], Any]:
    """Run the command line about a script; gives what it printed and what the script's agent has seen."""
    (folder / "script.py").write_text(SCRIPT)
    path = os.pathsep.join([str(FOLDER.parents[1]), str(FOLDER)])
    environment = {**os.environ, "PYTHONPATH": path, "GIVEN": json.dumps({**given, "seen": str(folder / "seen")})}
    done = forked.run("-m", "connectagent", *arguments, cwd=folder, env=environment)
    return done, json.loads((folder / "seen").read_text())


@pytest.mark.parametrize("name", DECISIONS, ids=name_of)
def test_a_decision_is_the_same_on_the_command_line(name: str, co: Path) -> None:
    decision = DECISIONS[name]
    done, seen = connectagent(co, "run", "script.py", PROMPT, **{"name": name, "stop": -2, "from": 0})
    assert (done.returncode, done.stdout) == (0, f"{decision.result}\n"), done.stderr
    assert seen == [logged(decision), traced(decision), decision.outcome]


@pytest.mark.parametrize("name", ["stand in for the model", "recover from a tool's error", "end the turn in a tool"])
def test_a_decision_is_the_same_where_the_command_line_goes_on_with_a_paused_turn(name: str, co: Path) -> None:
    decision = DECISIONS[name]
    number = max(stop.values[1] for stop in stops("before_") if stop.values[0] == name)
    paused, before = connectagent(co, "run", "script.py", PROMPT, **{"name": name, "stop": number, "from": 0})
    assert paused.returncode != 0 and "paused: Shall I?" in paused.stderr
    asked = logged(decision)[:number].count(">llm")
    record = max((co / ".co" / "evals").glob("*.yaml"), key=lambda path: path.stat().st_mtime_ns)
    options = ("--approve", waiting_in(record)[0].id, "--script", "script.py")
    done, after = connectagent(co, "resume", *options, **{"name": name, "stop": -2, "from": asked})
    assert (done.returncode, done.stdout) == (0, f"{decision.result}\n"), done.stderr
    assert [*before[0][: number + 1], *after[0][1:]] == logged(decision)
    assert after[1:] == [traced(decision), decision.outcome]
