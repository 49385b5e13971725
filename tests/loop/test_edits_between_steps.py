"""Messages that the consumer of a stream changes in a turn that stops stay where they were put, on every later resume.

Most turns are random, each told by a number: an agent with another one as its tool, rounds that wait, models and
handlers that fail. At random entries the consumer inserts, edits and removes messages of the agent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from connectagent import Agent, LLMResponse, Pause, Paused, ToolCall, after_tools, before_each_tool, tool
from connectagent.records.history import history_of, read_session
from connectagent.session.history import as_session
from connectagent.testing import conversation_problems

CASES = int(os.environ.get("CONNECTAGENT_EDITS", "15"))
KINDS = (("append",), ("insert",), ("edit",), ("append", "insert", "edit", "remove"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


class Down(Exception):
    """What models and handlers raise once."""


@tool(idempotent=True)
def work(n: int) -> str:
    """Work."""
    return f"worked {n}"


@tool(idempotent=True)
def ask(n: int) -> str:
    """Work, once a person allows it."""
    return f"asked {n}"


class Planned:
    """A model whose rounds are planned, whatever it reads. In one of them it fails at first."""

    model = "planned"
    agent: Agent

    def __init__(self, name: str, plan: list[list[tuple[str, int]]], fails: int) -> None:
        self.name, self.plan, self.fails = name, plan, fails

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        assert conversation_problems(messages) == []
        session = self.agent.current_session
        iteration = session["iteration"] if session else 0
        if iteration == self.fails:
            self.fails = 0
            raise Down("down")
        planned = self.plan[iteration - 1] if iteration <= len(self.plan) else []
        calls = [
            ToolCall(f"{self.name}{iteration}.{number}", tool, {"prompt": "Do it."} if tool == "child" else {"n": n})
            for number, (tool, n) in enumerate(planned)
        ]
        return LLMResponse(f"{self.name} says {iteration}", calls)


class Case:
    """A random agent, and a consumer that changes its messages."""

    def __init__(self, seed: int, kinds: tuple[str, ...] = ("append",)) -> None:
        chance = Random(seed)
        self.kinds, self.chance, self.texts = kinds, Random(-seed), 0
        self.parallel, self.nested = chance.choice((1, 3)), chance.random() < 0.4
        self.noisy, self.raises = chance.random() < 0.4, chance.random() < 0.2
        self.fails = chance.randint(1, 3) if chance.random() < 0.3 else 0
        self.plans = [self._plan(chance, ["child"] * self.nested), self._plan(chance, [])]

    def _plan(self, chance: Random, more: list[str]) -> list[list[tuple[str, int]]]:
        names = ["work", "work", "ask", *more]
        rounds = [chance.randint(1, 3) for _ in range(chance.randint(1, 2))]
        return [[(chance.choice(names), 10 * at + n) for n in range(many)] for at, many in enumerate(rounds)]

    def agent(self, fails: bool = False) -> Agent:
        raises = [fails and self.raises]

        @before_each_tool
        def guard(tool_call: ToolCall) -> None:
            if tool_call.name == "ask":
                raise Pause("may it?")

        @after_tools
        def note(agent: Agent) -> None:
            if self.noisy:
                agent.session["messages"].append({"role": "user", "content": "noted"})

        @after_tools
        def fail() -> None:
            if raises.pop():
                raises.append(False)
                raise Down("down")
            raises.append(False)

        made: list[Any] = []
        for name, plan in (("child", self.plans[1]), ("root", self.plans[0])):
            model = Planned(name, plan, self.fails if fails and name == "root" else 0)
            options: dict[str, Any] = {"parallel_tools": self.parallel, "on_events": [guard, note, fail]}
            made = [Agent(name, [work, ask, *made[: self.nested]], llm=model, quiet=True, description="?", **options)]
            model.agent = made[0]
        return made[0]  # type: ignore[no-any-return]

    def change(self, messages: list[Any]) -> None:
        """Change some messages, or nothing."""
        if self.chance.random() > 0.4 or not messages:
            return
        self.texts += 1
        kind, index = self.chance.choice(self.kinds), self.chance.randrange(len(messages))
        message = {"role": "user", "content": f"{self.texts}."}
        if kind == "append":
            messages.append(message)
        elif kind == "insert":
            messages.insert(index, message)
        elif kind == "edit":
            messages[index]["content"] += f" edit {self.texts}"
        elif messages[index]["role"] != "tool":
            del messages[index]

    def read(self, agent: Agent, events: Iterator[Any]) -> Paused | Down | None:
        """Read a turn to its end, and change messages at its entries; what stopped it."""
        try:
            for event in events:
                if event["type"] not in ("result", "mended"):
                    self.change(agent.session["messages"])
        except Paused as paused:
            return paused
        except Exception as error:
            assert type(error).__name__ == "Down", error
            return Down()
        return None


def finished(case: Case, path: Path) -> Agent:
    """An agent of another process that takes a record to the end of its turn, without a consumer."""
    agent, decision = case.agent(), dict[str, Any]()
    for _ in range(20):
        try:
            agent.resume(path, **decision)
            return agent
        except Paused as paused:
            decision = {"approve": paused.waiting[0].id}
        except Exception as error:
            assert type(error).__name__ == "Down", error
            decision = {}
    raise AssertionError("the turn does not end")


def unfinished(record: Any, name: str, kept: int | None = None) -> tuple[Path, list[int]]:
    """A copy of a record that ends before its turn's summary, or after some lines; the numbers of its entries."""
    lines = Path(record).read_text("utf-8").splitlines(keepends=True)
    entries = [number for number, line in enumerate(lines) if line.startswith("  - ")]
    path = Path(name)
    path.write_text("".join(lines[: (entries[-1] if kept is None else kept) + 1]), "utf-8")
    return path, entries


def kept_order(messages: list[Any], others: list[Any]) -> bool:
    """Whether messages that are in both lists, apart from results and notes, are in the same order."""
    sides = [[m["content"].split(" edit ")[0] for m in one if m["role"] != "tool"] for one in (messages, others)]
    sides = [[text for text in side if not text.startswith("noted")] for side in sides]
    first, second = sides
    return [text for text in first if text in second] == [text for text in second if text in first]


@pytest.mark.parametrize("process", ["same", "other"])
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_changed_messages_stay_where_they_are_on_every_resume(kinds: tuple[str, ...], process: str) -> None:
    for seed in range(CASES):
        case = Case(seed, kinds)
        agent, before = case.agent(fails=True), list[Any]()
        stopped = case.read(agent, agent.stream("Go"))
        while stopped is not None:
            assert kept_order(before, agent.session["messages"]), seed
            before, record = [dict(message) for message in agent.session["messages"]], agent.record
            agent = agent if process == "same" else case.agent()
            decision = {"approve": stopped.waiting[0].id} if isinstance(stopped, Paused) else {}
            stopped = case.read(agent, agent.resume_stream(record, **decision))  # type: ignore[arg-type]
        messages = agent.session["messages"]
        assert kept_order(before, messages), seed
        if len(kinds) == 1 and not case.raises:  # else it may have changed them in a step that began again
            texts = [message["content"] for message in messages]
            assert "edit" in kinds or all(f"{number}." in texts for number in range(1, case.texts + 1)), seed
        own = read_session(Path(str(agent.record))).own
        assert as_session(own.history, own.trace)["messages"] == messages, seed
        path, entries = unfinished(agent.record, f"root_{seed}.yaml")
        assert history_of(path).messages in (messages, messages[:-1]), seed
        assert finished(case, path).session["messages"] == messages, seed
        first = next(n for n in entries if '"user_input"' in path.read_text("utf-8").splitlines()[n])
        for cut in Random(seed).sample(entries[entries.index(first) :], 2):
            killed, _ = unfinished(agent.record, f"root_{seed}_{cut}.yaml", cut)
            once = finished(case, killed)
            assert kept_order(once.session["messages"], messages), (seed, cut)
            again, _ = unfinished(killed, f"root_{seed}_{cut}_again.yaml")
            assert finished(case, again).session["messages"] == once.session["messages"], (seed, cut)


def test_a_message_put_into_a_round_of_an_earlier_turn_is_mended_where_the_turn_is_resumed() -> None:
    case = Case(1)
    case.plans, case.nested, case.noisy, case.parallel = [[[("work", 1)]], []], False, False, 1
    agent = case.agent()
    agent.input("Go")
    agent.input("Go")
    for event in agent.stream("More"):
        if event["type"] == "user_input":
            agent.session["messages"].insert(2, {"role": "user", "content": "between a call and its result"})
    lines = Path(str(agent.record)).read_text("utf-8").splitlines(keepends=True)
    put = next(number for number, line in enumerate(lines) if "between a call" in line)
    killed, _ = unfinished(agent.record, "root_1.yaml", put)
    assert conversation_problems(finished(case, killed).session["messages"]) == []


def test_a_message_put_into_a_conversation_that_was_mended_for_a_call_that_failed_stays_there() -> None:
    case = Case(1)
    case.plans, case.nested, case.noisy, case.raises, case.fails = [[[("work", 1)]], []], False, False, False, 2
    agent = case.agent(fails=True)
    with pytest.raises(Down):
        for event in agent.stream("Go"):
            if event["type"] == "tool_execution":
                agent.session["messages"].insert(2, {"role": "user", "content": "before the result"})
            if event["type"] == "error":
                agent.session["messages"].insert(3, {"role": "user", "content": "right behind it"})
    other = finished(case, Path(str(agent.record)))
    texts = [message["content"] for message in other.session["messages"]]
    assert texts == ["Go", "root says 1", "worked 1", "right behind it", "before the result", "root says 2"]
    assert history_of(Path(str(agent.record))).messages == other.session["messages"]


@pytest.mark.parametrize("process", ["same", "other"])
def test_messages_that_a_failed_call_left_out_are_left_out_again_where_the_turn_is_resumed(process: str) -> None:
    case = Case(1)
    case.plans, case.nested, case.noisy, case.parallel = [[[("work", 1)]], []], False, False, 1
    case.raises, case.fails = False, 2
    agent = case.agent(fails=True)
    with pytest.raises(Down):
        for event in agent.stream("Go"):
            if event["type"] == "tool_execution":
                del agent.session["messages"][1]  # the call of a result
            if event["type"] == "error":
                agent.session["messages"].insert(1, {"role": "user", "content": "right behind it"})
    record = agent.record
    agent = agent if process == "same" else case.agent()
    agent.resume(record)
    texts = [message["content"] for message in agent.session["messages"]]
    assert texts == ["Go", "right behind it", "root says 2"]
    assert history_of(Path(str(record))).messages == agent.session["messages"]
    assert finished(case, unfinished(record, "root_1.yaml")[0]).session["messages"] == agent.session["messages"]
