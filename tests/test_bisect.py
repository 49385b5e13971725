"""Bisect: planted causes are found, and nobody is accused by chance."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent, after_user_input
from connectagent.data import LLMResponse, ToolCall
from connectagent.testing.bisection import Finding, bisect

CASES = int(os.environ.get("CONNECTAGENT_BISECT", "2"))  # of each kind; 200 before a release


def refund(order: int) -> str:
    """Refund an order.

    Args:
        order: its number.
    """
    return f"refunded {order}"


class Planted:
    """A model that asks for a refund more often where the texts of some plugins are in its request."""

    model = "planted"

    def __init__(self, seed: int, is_on: Callable[[set[int]], bool], often: float, seldom: float) -> None:
        self.random, self.is_on, self.often, self.seldom, self.asked = random.Random(seed), is_on, often, seldom, 0

    def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
        self.asked += 1
        if messages[-1]["role"] == "tool":
            return LLMResponse("Done.")
        there = {int(number) for number in re.findall(r"mark (\d+)\b", json.dumps(messages))}
        if self.random.random() < (self.often if self.is_on(there) else self.seldom):
            return LLMResponse(None, [ToolCall("c1", "refund", {"order": 7})])
        return LLMResponse("No.")


def plugin(number: int) -> Any:
    """A plugin that adds a text to the conversation."""

    @after_user_input
    def mark(self: Any, agent: Agent) -> None:
        assert agent.current_session is not None
        text = f"For your notes:\nmark {number}\nThanks."
        agent.current_session["messages"].append({"role": "user", "content": text})

    return type(f"plugin{number}", (), {"mark": mark, "name": f"plugin{number}"})()


def planted(llm: Any, count: int) -> tuple[Path, Callable[[], Agent]]:
    """A record that shows a refund, and what makes its agent."""
    plugins = [plugin(number) for number in range(count)]
    for _ in range(1000):
        agent = Agent("shop", [refund], llm=llm, plugins=plugins, quiet=True)
        agent.input("Hello.")
        if any(entry["type"] == "tool_execution" for entry in agent.session["trace"]):
            assert agent.record is not None
            return agent.record, lambda: Agent("shop", [refund], llm=llm, plugins=plugins, quiet=True, log=False)
    raise AssertionError("the model never did it")


def found(seed: int, kind: str, count: int, often: float, seldom: float) -> tuple[Finding, set[str]]:
    """A search for a planted cause."""
    one, other = random.Random(f"{seed} {kind}").sample(range(count), 2)
    is_on: dict[str, Callable[[set[int]], bool]] = {
        "one": lambda there: one in there,
        "pair": lambda there: {one, other} <= there,
        "either": lambda there: bool({one, other} & there),
    }
    llm = Planted(seed, is_on[kind], often, seldom)
    record, make = planted(llm, count)
    finding = bisect(record, make, "calls refund", by=["plugins"])
    return finding, {f"plugin{one}"} if kind == "one" else {f"plugin{one}", f"plugin{other}"}


def is_exact(finding: Finding, kind: str, cause: set[str]) -> bool:
    if not finding.is_confirmed or finding.cause is None:
        return False
    needed, off = set(finding.needed), set(finding.cause.names)
    if kind == "pair":
        return needed == cause and len(off) == 1 and off <= cause
    if kind == "either":
        return off == cause and len(needed) == 1 and needed <= cause
    return needed == off == cause


@pytest.mark.parametrize("count", [12, 40])
@pytest.mark.parametrize("kind", ["one", "pair", "either"])
def test_a_planted_cause_is_found(kind: str, count: int) -> None:
    for seed in range(max(1, CASES // 6)):
        finding, cause = found(seed, kind, count, 1.0, 0.0)
        assert is_exact(finding, kind, cause), finding


def test_a_noisy_cause_is_found_and_nobody_else_is_accused() -> None:
    exact = wrong = 0
    for seed in range(CASES):
        finding, cause = found(seed, "one", 12, 0.9, 0.05)
        exact += is_exact(finding, "one", cause)
        wrong += finding.is_confirmed and not is_exact(finding, "one", cause)
    print(f"noisy: {exact} exact, {wrong} wrong of {CASES}")
    assert exact >= 0.95 * CASES - 1 and wrong <= 0.01 * CASES


@pytest.mark.parametrize("share", [1.0, 0.5, 0.9])
def test_where_there_is_no_cause_nobody_is_accused(share: float) -> None:
    confirmed = 0
    for seed in range(max(1, CASES // 3)):
        record, make = planted(Planted(seed, lambda there: True, share, share), 12)
        finding = bisect(record, make, "calls refund")
        confirmed += finding.is_confirmed
    print(f"no cause: {confirmed} confirmed of {CASES // 3}")
    assert confirmed <= 0.01 * CASES
