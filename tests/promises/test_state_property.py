"""The state of a tree is one: random trees of agents end with what one shared dict would hold.

Each change is made to the state of the agent that runs and, at the same moment, to a dict beside the tree. STATE_TREES
says how many trees are tried.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from connectagent import Agent, LLMResponse, Loop, Parallel, Sequential, Tool, ToolCall, after_tools

TREES = range(int(os.environ.get("STATE_TREES", "30")))
TEXTS, LISTS = ("a", "b", "c"), ("list", "other")
Change = Callable[[dict[str, Any]], None]


class Cycle:
    """A model that calls tools in a fixed order, then says its text, and begins again."""

    model = "test/cycle"

    def __init__(self, rounds: list[list[tuple[str, dict[str, Any]]]], text: str, said: Callable[[], None]) -> None:
        self.rounds, self.text, self.said, self.asked = rounds, text, said, 0

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        place, self.asked = self.asked % (len(self.rounds) + 1), self.asked + 1
        if place == len(self.rounds):
            self.said()
            return LLMResponse(self.text)
        calls = [ToolCall(f"{self.asked}.{n}", *call) for n, call in enumerate(self.rounds[place])]
        return LLMResponse(None, calls)


def state_of(agent: Agent) -> dict[str, Any]:
    assert agent.current_session is not None
    return agent.current_session["state"]


class Grove:
    """Makes random trees in which agents work one after the other; `shared` is what their state must be.

    Args:
        seed: the tree.
        deleting: whether keys are removed too.
    """

    def __init__(self, seed: int, deleting: bool) -> None:
        self.chance, self.deleting = random.Random(seed), deleting
        self.shared: dict[str, Any] = {}
        self.agents = self.values = 0

    def tree(self, depth: int = 3) -> Agent:
        kind = self.chance.choice(["steps", "loop", "asks", "body"]) if depth else "leaf"
        self.agents += 1
        name = f"agent{self.agents}"
        below = [self.tree(self.chance.randrange(depth)) for _ in range(self.chance.randint(1, 3))] if depth else []
        if kind == "steps":
            return Sequential(name, below, **self._options())
        if kind == "loop":
            return Loop(name, below, max_rounds=2, **self._options())
        if kind == "body":
            return self._body(name, below)
        return self._asking(name, below)

    def change(self, agent: Agent) -> None:
        """Make a random change, to both; what it is depends on what is there."""
        change = self._random_change()
        change(state_of(agent))
        change(self.shared)

    def _random_change(self) -> Change:
        self.values += 1
        value, text, other = self.values, self.chance.choice(TEXTS), self.chance.choice(TEXTS)
        items = self.chance.choice(LISTS)
        changes: list[Change] = [
            lambda state: state.update({text: value}),
            lambda state: state.update({text: state.get(other)}),
            lambda state: state.setdefault(items, []).append(value),
            lambda state: state.update({items: [*state.get(items, ()), value]}),
            lambda state: state.setdefault("deep", {}).update({text: value}),
        ]
        removals: list[Change] = [
            lambda state: state.pop(text, None),
            lambda state: state.pop(items, None),
            lambda state: state.get("deep", {}).pop(text, None),
        ]
        return self.chance.choice(changes + removals if self.deleting else changes)

    def _options(self) -> dict[str, Any]:
        return {"log": False, "quiet": True}

    def _asking(self, name: str, below: list[Agent]) -> Agent:
        """An agent that changes the state by tools and asks the others, one a round."""
        rounds: list[list[tuple[str, dict[str, Any]]]] = [[(one.name, {"prompt": "Go."})] for one in below]
        for _ in range(self.chance.randint(1, 3)):
            rounds.insert(self.chance.randint(0, len(rounds)), [("change", {})] * self.chance.randint(1, 2))
        key = self.chance.choice([None, *TEXTS])
        said = (lambda: self.shared.update({key: f"by {name}"})) if key else (lambda: None)

        @after_tools
        def also(agent: Agent) -> None:
            self.change(agent)

        def change(agent: Agent) -> str:
            self.change(agent)
            return "changed"

        tool = Tool("change", "", {"type": "object", "properties": {}}, change)
        events = [also] if self.chance.random() < 0.3 else []
        llm = Cycle(rounds, f"by {name}", said)
        return Agent(name, [tool, *below], llm=llm, on_events=events, output_key=key, **self._options())

    def _body(self, name: str, below: list[Agent]) -> Agent:
        def run(agent: Agent) -> None:
            for one in below:
                self.change(agent)
                one.input("Go.")
            self.change(agent)

        return Agent(name, run=run, sub_agents=below, **self._options())


def differences(seed: int, deleting: bool) -> list[str]:
    """What is other than in the shared dict after each of two turns."""
    grove = Grove(seed, deleting)
    root, found = grove.tree(), []
    for turn in (1, 2):
        root.input("Go.")
        if state_of(root) != grove.shared:
            found.append(f"tree {seed}, turn {turn}: {state_of(root)} in place of {grove.shared}")
    return found


def test_one_after_the_other_agents_of_a_tree_work_as_if_on_one_dict() -> None:
    assert not [told for seed in TREES for told in differences(seed, deleting=False)]


def test_what_is_deleted_in_a_tree_is_gone_for_all_of_its_agents() -> None:
    assert not [told for seed in TREES for told in differences(seed, deleting=True)]


# -- at the same time --------------------------------------------------------------------------------------


class AtOnce:
    """A tree in which agents work at the same time: they append to lists, set keys of their own, delete others.

    Args:
        seed: the tree.
        by_model: whether a model asks them in one round; else a `Parallel` does.
    """

    def __init__(self, seed: int, by_model: bool) -> None:
        self.chance, self.by_model = random.Random(seed), by_model
        self.appended: dict[str, list[str]] = {}
        self.own: dict[str, int] = {}
        self.doomed: list[str] = []

    def agents(self) -> list[Agent]:
        found = [self._agent(f"agent{n}") for n in range(self.chance.randint(2, 5))]
        if self.chance.random() < 0.5:
            found.append(Sequential("row", [self._agent("first"), self._agent("second")], log=False, quiet=True))
        return found

    def tree(self) -> Agent:
        agents = self.agents()
        state = {items: ["before"] for items in LISTS} | dict.fromkeys(self.doomed, 0)
        options: dict[str, Any] = {"state": state, "log": False, "quiet": True}
        if not self.by_model:
            return Parallel("root", agents, **options)
        llm = Cycle([[(one.name, {"prompt": "Go."}) for one in agents]], "Done.", lambda: None)
        return Agent("root", agents, llm=llm, **options)

    def _agent(self, name: str) -> Agent:
        changes: list[Change] = []
        for n in range(self.chance.randint(1, 4)):
            items, value = self.chance.choice(LISTS), f"{name}.{n}"
            self.appended.setdefault(items, []).append(value)
            if self.chance.random() < 0.5:
                changes.append(lambda state, items=items, value=value: state[items].append(value))
            else:
                changes.append(lambda state, items=items, value=value: state.update({items: [*state[items], value]}))
        if self.chance.random() < 0.5:
            self.doomed.append(f"doomed by {name}")
            changes.append(lambda state: state.pop(f"doomed by {name}"))
        self.own[f"own of {name}"] = 1
        changes.append(lambda state: state.update({f"own of {name}": 1}))

        def change(agent: Agent, n: int) -> str:
            changes[n](state_of(agent))
            return "changed"

        tool = Tool("change", "", {"type": "object", "properties": {"n": {"type": "integer"}}}, change)
        rounds = [[("change", {"n": n})] for n in range(len(changes))]
        return Agent(name, [tool], llm=Cycle(rounds, "Done.", lambda: None), log=False, quiet=True)

    def problems(self, state: dict[str, Any]) -> list[str]:
        """What is not as it must be; the order of what different agents appended is free."""
        found = [f"{key} is not gone" for key in self.doomed if key in state]
        found += [f"{key} is lost" for key in self.own if key not in state]
        for items, values in self.appended.items():
            if state[items][:1] != ["before"] or sorted(state[items][1:]) != sorted(values):
                found.append(f"{items} is {state[items]}, not 'before' and {values}")
            for name in {value.split(".")[0] for value in values}:
                mine = [value for value in state[items] if value.startswith(f"{name}.")]
                if mine != sorted(mine):
                    found.append(f"{items} has {mine} out of order")
        return found


@pytest.mark.parametrize("by_model", [False, True], ids=["Parallel", "in one round"])
def test_agents_that_append_to_one_list_at_the_same_time_keep_all_of_it(by_model: bool) -> None:
    found = []
    for seed in TREES:
        grown = AtOnce(seed, by_model)
        root = grown.tree()
        root.input("Go.")
        found += [f"tree {seed}: {problem}" for problem in grown.problems(state_of(root))]
    assert not found
