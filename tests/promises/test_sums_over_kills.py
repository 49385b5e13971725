"""After pauses, kills and resumes everybody tells the same cost, and counts each tool call once."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import forked
import pytest

from connectagent import Agent, LLMResponse, Message, Pause, Paused, TokenUsage, before_each_tool, tool
from connectagent.cli.view.reading import Reading
from connectagent.records.history import joined_turns
from connectagent.records.read import read_record
from connectagent.records.summary import summarise
from connectagent.session.usage import spent_in
from connectagent.testing import ScriptedLLM, call

TREES = int(os.environ.get("SUMS_TREES", "2"))  # set it for a longer run
CUTS = int(os.environ.get("SUMS_CUTS", "12"))  # of each record; 0 for every line


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def model(seed: int, rounds: int, *calls: Callable[[int], Any]) -> ScriptedLLM:
    """A model that answers by what it is asked, so that each process goes on alike."""

    def answer(messages: list[Message], tools: Any) -> LLMResponse:
        asked = max(number for number, one in enumerate(messages) if one["role"] == "user")
        done = sum(one["role"] == "assistant" for one in messages[asked:])
        chance = random.Random(f"{seed} {done} {asked}")
        usage = TokenUsage(chance.randint(1, 90), 3, cost=2.0 ** -chance.randint(2, 9))
        if done >= rounds:
            return LLMResponse("Done.", usage=usage)
        some = [chance.choice(calls)(number) for number in range(chance.randint(1, 3))]
        return LLMResponse(None, some, usage)

    return ScriptedLLM(*[answer] * 200)


def tree(seed: int) -> Agent:
    chance = random.Random(seed)

    @tool(idempotent=True)
    def look(n: int) -> str:
        """Look."""
        return f"seen {n}"

    @tool(idempotent=True)
    def ask(n: int) -> str:
        """Ask the person."""
        return f"asked {n}"

    @before_each_tool
    def may_it(agent: Any) -> None:
        if agent.current_session["pending_tool"]["name"] == "ask":
            raise Pause("May I?")

    def looking(n: int) -> Any:
        return call("look", n=n)

    def asking(n: int) -> Any:
        return call("ask", n=n)

    more: dict[str, Any] = {"quiet": True, "plugins": [may_it]}
    child = Agent("child", [look, ask], llm=model(seed + 1, 1, looking, asking), description="Helps.", **more)
    own = model(seed, chance.randint(1, 3), looking, asking, lambda n: call("child", prompt=f"Help {n}."))
    return Agent("root", [look, ask, child], llm=own, parallel_tools=chance.choice((1, 3)), **more)


def through(agent: Agent, step: Callable[[], Any], check: Callable[[Agent], None], most: int = 40) -> None:
    """Answer each question of a turn until it has ended."""
    for _ in range(most):
        try:
            step()
        except Paused as paused:
            if agent.record is not None:  # else the turn waited already
                check(agent)
            step = partial(agent.resume, paused.record, approve=paused.waiting[0].id)
        else:
            check(agent)
            return
    raise AssertionError("it pauses forever")


def told(*words: str) -> str:
    return forked.run("-m", "connectagent", *words, check=True).stdout


def tools_in(items: list[dict[str, Any]]) -> set[str]:
    """The places of the calls in all items; what was left when the turn last stopped has none."""
    tools = [[line for line in item["lines"] if line["type"] == "tool_execution"] for item in items]
    placed = {str(line["id"]) for own in tools for line in own if "id" in line and line["status"] != "interrupted"}
    stopped = {str(line.get("id") or line["call_id"]) for line in tools[-1]}
    return placed | stopped


def check_sums(agent: Agent) -> None:
    """Compare everybody who tells a sum."""
    record = Path(str(agent.record))
    data = read_record(record)
    tools = tools_in(data["turns"])
    spent = spent_in(line for turn in data["turns"] for line in turn["lines"])
    cost = (spent.cost, spent.known_cost)
    assert (agent.spent.cost, agent.total_cost) == cost

    totals = summarise(record).totals
    assert totals is not None
    assert (totals.tools, totals.cost, totals.known_cost) == (len(tools), *cost)
    last = data["turns"][-1]
    assert last["session"]["tools"] == len(tools)
    assert (last["session"]["cost"], last["session"].get("known_cost", spent.cost)) == cost
    (turn,) = joined_turns(data)
    own = [entry["tool_name"] for entry in turn["trace"] if entry["type"] == "tool_execution"]
    assert last["tools_called"] == turn["tools_called"] == own
    page = Reading(record).news()["summary"]
    assert (page["cost"], page["known_cost"], page["tools"]) == (*cost, len(tools))


def check_commands(agent: Agent) -> None:
    check_sums(agent)
    record = str(agent.record)
    listed = json.loads(told("log", "list", "--limit", "0", "--json"))
    (own,) = (one for one in listed if Path(one["path"]).name == Path(record).name)
    bill = json.loads(told("bill", record, "--json"))
    for one in (own, bill):
        assert (one["cost"], one["known_cost"]) == (agent.spent.cost, agent.total_cost)
    assert ("+ ?" in told("log", "show", record)) == (agent.spent.cost is None)


@pytest.mark.parametrize("seed", range(TREES))
def test_everybody_tells_the_same_after_pauses_and_kills_at_each_line(seed: int) -> None:
    agent = tree(seed)
    through(agent, lambda: agent.input("Go."), check_sums)
    check_commands(agent)
    whole = Path(str(agent.record)).read_bytes().splitlines(keepends=True)
    begun = next(number for number, line in enumerate(whole) if b'"user_input"' in line)
    cuts = list(range(begun + 1, len(whole)))
    chance = random.Random(seed)
    for cut in sorted(chance.sample(cuts, min(CUTS, len(cuts)))) if CUTS else cuts:
        resumed = cut_and_resume(seed, whole[:cut], f"cut{cut}")
        again = Path(str(resumed.record)).read_bytes().splitlines(keepends=True)
        if len(again) > cut + 2:  # killed a second time, in what the second process did
            resumed = cut_and_resume(seed, again[: chance.randint(cut + 1, len(again) - 1)], f"twice{cut}")
    check_commands(resumed)


def cut_and_resume(seed: int, lines: list[bytes], name: str) -> Agent:
    record = Path(".co/evals") / f"root-{name}.yaml"
    record.write_bytes(b"".join(lines))
    agent = tree(seed)
    if summarise(record).status == "answered":
        agent.resume(record)
        return agent
    through(agent, lambda: agent.resume(record), check_sums)
    return agent
