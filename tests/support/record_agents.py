"""Agents for the tests of what is written under `.co`, and the script that runs one of them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any

from connectagent import Agent, LLMResponse, TokenUsage, ToolCall


class Rounds:
    """A model that asks for `calls` tool calls in each of `rounds` rounds, then answers; the same every turn."""

    model = "test/rounds"

    def __init__(self, rounds: int = 1, calls: int = 1, told: Callable[[list[str]], None] | None = None) -> None:
        self.rounds, self.calls, self.told = rounds, calls, told
        self.number = 0

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        if self.told:
            self.told([message["content"] for message in messages if message["role"] == "tool"])
        usage = TokenUsage(100, 20, cost=1e-05)
        self.number += 1
        if self.number % (self.rounds + 1) == 0:
            return LLMResponse("All of it is done.", usage=usage)
        calls = [ToolCall(f"c{i}", "work", {"n": i, "x": 1e-05}) for i in range(self.calls)]
        return LLMResponse(None, calls, usage)


def work(n: int, x: float) -> str:
    """Work."""
    return f"worked on {n}"


def worker(name: str = "worker", rounds: int = 1, calls: int = 1, **more: Any) -> Agent:
    return Agent(name, [work], llm=Rounds(rounds, calls), quiet=True, **more)


def run_interrupted() -> None:
    """Press Ctrl-C in many turns, each time at another moment."""

    pressing: list[bool] = []  # while a turn runs; to look for it in the frames has crashed CPython 3.11

    def press(signum: int, frame: Any) -> None:
        if pressing:
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, press)
    agent = worker("pressed", calls=2)
    agent.input("The first.")
    for number in range(200):
        signal.setitimer(signal.ITIMER_REAL, 0.00005 + number * 0.0000075)
        try:
            pressing.append(True)
            agent.input("Go on.")
            pressing.clear()
        except KeyboardInterrupt:  # there is only one
            pressing.clear()
        signal.setitimer(signal.ITIMER_REAL, 0)
    agent.llm = Rounds()
    agent.input("The last.")


if __name__ == "__main__":
    for _ in range(int(sys.argv[2])):
        worker("twin").input("Begin.")
