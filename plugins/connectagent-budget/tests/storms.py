"""A storm: agents at random that run into limits, and a file of what they really did, over all their processes.

As a script, `python storms.py FOLDER SEED PROCESS`, it is one of these processes, which kills itself at random.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from connectagent_budget import Budget

from connectagent import Agent, LLMResponse, Message, Pause, Paused, ProviderError, TokenUsage, ToolCall, tool
from connectagent.testing import call

SONNET = "anthropic/claude-sonnet-4-5"
PRICE = 0.004
MOST_STOPS = 4
CHILDREN = ("c0", "c1", "c2")
AT_ONCE = 7  # three children with two tools at once that ask a model, and a judge of the leading agent


class Killed(BaseException):
    """Stands for the end of the process."""


class Model:
    """A model whose calls have prices at random, which it notes before it answers."""

    def __init__(self, storm: Storm, agent: str) -> None:
        self.storm = storm
        self.agent = agent
        is_priced = storm.prices == "of the table"
        self.model = SONNET if is_priced else "own"
        self.options: dict[str, Any] = {"max_tokens": 1000} if is_priced else {}

    def with_options(self, options: dict[str, Any]) -> Model:
        """The same model: its options are for the estimate only."""
        return self

    def complete(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> LLMResponse:
        """Cost something, then answer with calls or a text."""
        storm = self.storm
        with storm.lock:
            output = storm.random.randint(1, 1000)
            cost = PRICE if storm.prices == "all alike" else output * 15e-6
            fate = storm.random.random()
            chosen = self._calls([one["function"]["name"] for one in tools or ()])
        usage = TokenUsage(0, output, cost=cost)
        storm.happens("model", self.agent, cost)
        if fate < 0.05:
            raise ProviderError("cut", kind="server", provider="test", usage=usage)
        return LLMResponse(None if chosen else "Done.", chosen or None, usage)

    def _calls(self, names: list[str]) -> list[ToolCall]:
        chance = self.storm.random
        if not names or chance.random() < 0.1:
            return []
        return [self._call(chance.choice(names), f"{chance.random()}") for _ in range(chance.randint(1, 3))]

    def _call(self, name: str, text: str) -> ToolCall:
        return call(name, **{"prompt" if name in CHILDREN else "text": text})


class Storm:
    """One storm, in one of its processes.

    Args:
        folder: where its file is.
        seed: of the agents and limits.
        process: the number of this process.
        kill: what ends a process at once.
    """

    def __init__(self, folder: Path, seed: int, process: int, kill: Callable[[], None]) -> None:
        self.events = folder / "events"
        self.kill = kill
        self.process = process
        self.lock = threading.RLock()
        shape = random.Random(seed)
        self.prices = shape.choice(["of the table", "own", "all alike"])
        self.parallel = shape.choice([1, 3])
        self.per = shape.choice(["turn", "session", "day"])
        self.usd = shape.choice([0.02, 0.06, 0.15])
        self.tools = {"work": shape.randint(0, 8)}
        of_one = {"usd": shape.choice([0.02, 0.05]), "tools": {"work": shape.randint(0, 3)}}
        self.agents: dict[str, dict[str, Any]] = {"c0": of_one}
        self.random = random.Random(f"{seed} {process}")
        self.stops_left = 1 if process < MOST_STOPS else 0
        self.lead: Agent | None = None

    def happens(self, what: str, agent: str, cost: float = 0.0) -> None:
        """Note a call, and end the process, or not."""
        assert self.lead is not None
        event = {"what": what, "agent": agent, "cost": cost, "process": self.process, "turn": self.lead.session["turn"]}
        with self.lock:
            with self.events.open("a") as file:
                file.write(json.dumps({**event, "record": str(self.lead.record)}) + "\n")
            if self.stops_left and self.random.random() < 0.08:
                self.stops_left -= 1
                is_killed = self.random.random() < 0.6
                with self.events.open("a") as file:
                    file.write(json.dumps({"what": "lost", "is_killed": is_killed}) + "\n")
                if is_killed:
                    self.kill()
                raise KeyboardInterrupt

    def agent(self) -> Agent:
        """The leading agent, new in each process."""
        children = [self._child(name) for name in CHILDREN]
        budget = Budget(usd=self.usd, tools=self.tools, agents=self.agents, per=self.per)
        self.lead = Agent(
            "lead",
            [*children, *self._tools("lead")],
            llm=Model(self, "lead"),
            plugins=[budget],
            quiet=True,
            parallel_tools=self.parallel,
            max_iterations=6,
        )
        return self.lead

    def _child(self, name: str) -> Agent:
        llm = Model(self, name)
        return Agent(name, self._tools(name), llm=llm, quiet=True, parallel_tools=2, max_iterations=6)

    def _tools(self, name: str) -> list[Any]:
        judge_model = Model(self, name)

        @tool(idempotent=True)
        def work(text: str) -> str:
            """Work."""
            self.happens("work", name)
            return "worked"

        @tool(idempotent=True)
        def judge(text: str, agent: Agent) -> str:
            """Ask a model."""
            return str(agent.ask(f"Is {text} good?"))

        @tool(idempotent=True)
        def outside(text: str) -> str:
            """Ask an agent outside of the tree."""
            other = Agent("other", llm=judge_model, quiet=True)
            return str(other.input(text))

        @tool(idempotent=True)
        def decide(text: str) -> str:
            """Ask a person."""
            raise Pause("really?")

        return [work, judge, outside, decide]

    def run(self, record: str | None) -> bool:
        """Begin or go on with the session; whether it has to go on in another process, after a pause."""
        agent = self.agent()
        wait: str | None = None
        try:
            while True:
                try:
                    if wait is not None:
                        agent.resume(answer="yes", wait=wait)
                    elif record is None:
                        agent.input("Go")
                    else:
                        agent.resume(record)
                    break
                except Paused as paused:
                    wait = paused.waiting[0].id
                    if self.stops_left and self.random.random() < 0.3:
                        return True
            if self.random.random() < 0.5:
                agent.input("Again")
        except (ProviderError, RuntimeError, Paused):  # some calls fail, and judges may not be asked any more
            pass
        return False


def check(storm: Storm) -> Counter[str]:
    """Whether what really happened is within the limits.

    The calls under way may exceed a limit of USD: those of one moment, and those that were lost before, whose price
    nobody knows. Where all calls have one price, nothing is over the limit. Attempts at tools never are.
    """
    lines = [json.loads(line) for line in storm.events.read_text("utf-8").splitlines()]
    events: list[dict[str, Any]] = []
    for line in lines:
        if line["what"] == "lost":
            events[-1]["lost"] = True
        else:
            events.append(line)
    turns = sorted({event["turn"] for event in events}) if storm.per == "turn" else [None]
    for turn in turns:
        own = [event for event in events if turn in (None, event["turn"])]
        _check_part(storm, own, storm.usd, storm.tools["work"])
        limits = storm.agents["c0"]
        part = [event for event in own if event["agent"] == "c0"]
        _check_part(storm, part, limits["usd"], limits["tools"]["work"])
    return Counter(event["what"] for event in events) + Counter(lost=sum("lost" in event for event in events))


def _check_part(storm: Storm, events: list[dict[str, Any]], usd: float, work: int) -> None:
    assert sum(event["what"] == "work" for event in events) <= work
    calls = [event for event in events if event["what"] == "model"]
    spent = sum(event["cost"] for event in calls)
    under_way = 0.0
    if storm.prices != "all alike":
        lost = sum(event["cost"] for event in calls if "lost" in event)
        kept = sorted((event["cost"] for event in calls if "lost" not in event), reverse=True)
        under_way = lost + sum(kept[: AT_ONCE if storm.parallel > 1 else 2])
    assert spent <= usd + under_way + 1e-9, (storm.prices, storm.per, spent, usd, under_way)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    storm = Storm(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), _kill)
    goes_on = storm.run(sys.argv[4] if len(sys.argv) > 4 else None)
    sys.exit(3 if goes_on else 0)
