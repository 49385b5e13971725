"""What a call may cost is reserved before it, and what is not known is not taken for nothing."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from connectagent_budget import Budget

from connectagent import Agent, ConfigError, LLMResponse, TokenUsage
from connectagent.testing import ScriptedLLM, call

STORMS = int(os.environ.get("CONNECTAGENT_BUDGET_STORMS", "5"))
COST = 0.5


def search(query: str) -> str:
    """Search the docs."""
    return "Two pages."


SEARCH = call("search", query="retry")


def answer(usage: TokenUsage | None) -> LLMResponse:
    return LLMResponse(None, [SEARCH], usage)


def entries(agent: Agent) -> list[Any]:
    return [entry for entry in agent.session["trace"] if entry["type"] == "budget"]


UNKNOWN = [({"usd": 9.0}, TokenUsage(10, 0, cost=None)), ({"usd": 9.0}, None), ({"tokens": 900}, None)]


@pytest.mark.parametrize(("limits", "usage"), UNKNOWN)
def test_after_an_answer_without_a_price_or_tokens_nothing_more_is_asked(
    limits: dict[str, Any], usage: TokenUsage | None
) -> None:
    llm = ScriptedLLM(*[answer(usage)] * 3)
    agent = Agent("helper", [search], llm=llm, plugins=[Budget(**limits)], log=False, quiet=True)
    assert "cannot be kept" in agent.input("Search")
    assert (agent.session["outcome"], len(llm.requests), len(entries(agent))) == ("budget", 1, 1)


@pytest.mark.parametrize(("limits", "usage"), UNKNOWN)
@pytest.mark.parametrize("per", ["turn", "session"])
def test_unpriced_calls_that_are_allowed_are_told_in_each_turn(
    limits: dict[str, Any], usage: TokenUsage | None, per: str
) -> None:
    llm = ScriptedLLM(*[answer(usage), answer(usage), LLMResponse("Done.", None, usage)] * 2)
    plugin = Budget(**limits, per=per, unpriced="allow")
    agent = Agent("helper", [search], llm=llm, plugins=[plugin], log=False, quiet=True)
    assert [agent.input("Search"), agent.input("Search")] == ["Done.", "Done."]
    assert [entry["of"] for entry in entries(agent)] == ["unknown", "unknown"]


def test_a_word_that_is_neither_is_told() -> None:
    with pytest.raises(ConfigError, match="unpriced"):
        Budget(usd=1, unpriced="maybe")


def test_the_attempts_of_an_sdk_count() -> None:
    first = LLMResponse(None, [SEARCH], retries=[{"status": 429}, {"status": 429}])
    llm = ScriptedLLM(first, "never")
    agent = Agent("helper", [search], llm=llm, plugins=[Budget(model_calls=3)], log=False, quiet=True)
    agent.input("Search")
    assert (agent.session["outcome"], len(llm.requests)) == ("budget", 1)


def test_a_call_that_was_interrupted_counts_as_the_largest_so_far(co_dir: Path) -> None:
    paid = TokenUsage(10, 0, cost=COST)
    agent = Agent("helper", [search], llm=ScriptedLLM(answer(paid), KeyboardInterrupt()), quiet=True)
    agent.hooks.register(Budget(usd=9))
    with pytest.raises(KeyboardInterrupt):
        agent.input("Search")
    assert agent.record is not None
    record = agent.record
    agent.close()
    llm = ScriptedLLM(answer(paid), "never")
    other = Agent("helper", [search], llm=llm, quiet=True, plugins=[Budget(usd=3 * COST)])
    other.resume(record)
    assert (other.session["outcome"], len(llm.requests)) == ("budget", 1)  # one paid, one lost, one now


class Paying:
    """A model that asks for tools for ever, and counts what it was paid."""

    model = "paying"

    def __init__(self, seed: int) -> None:
        self.random, self.lock = random.Random(seed), threading.Lock()
        self.paid = 0.0
        self.made = 0

    def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
        with self.lock:
            self.paid += COST
            self.made += 1
        return LLMResponse(None, [SEARCH], TokenUsage(10, 0, cost=COST))


@pytest.mark.parametrize("seed", range(STORMS))
def test_parallel_agents_never_exceed_it_by_more_than_the_calls_under_way(seed: int) -> None:
    chance = random.Random(seed)
    number, limit = chance.randint(2, 5), COST * chance.randint(2, 20)
    llm = Paying(seed)
    children = [Agent(f"c{n}", [search], llm=llm, log=False, quiet=True, max_iterations=9) for n in range(number)]
    lead = ScriptedLLM(
        LLMResponse(None, [call(child.name, prompt="Go") for child in children], TokenUsage(10, 0, cost=COST)), "Done."
    )
    agent = Agent("lead", children, llm=lead, plugins=[Budget(usd=limit)], log=False, quiet=True)
    agent.input("Go")
    # The lead's call has shown what a call costs: each later one is reserved, so nothing is over the limit.
    assert llm.paid + COST <= limit + 1e-9
    assert agent.total_cost <= limit + 1e-9


def test_a_budget_counts_a_child_that_has_one_of_its_own() -> None:
    llm = ScriptedLLM(*[answer(None)] * 9)
    child = Agent("child", [search], llm=llm, plugins=[Budget(model_calls=8)], log=False, quiet=True)
    lead = ScriptedLLM(call("child", prompt="Go"), "never")
    agent = Agent("lead", [child], llm=lead, plugins=[Budget(model_calls=3)], log=False, quiet=True)
    agent.input("Go")
    assert (agent.session["outcome"], len(lead.requests) + len(llm.requests)) == ("budget", 3)
