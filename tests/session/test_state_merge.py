"""What agents and tools write at the same time is merged key by key, at every depth; what is lost is in the trace."""

from __future__ import annotations

import contextvars
import copy
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from connectagent import (
    Agent,
    LLMResponse,
    Parallel,
    Pause,
    Paused,
    Tool,
    ToolCall,
    around_tool,
    before_each_tool,
)
from connectagent.cli.view.rows import row_of
from connectagent.output.rows import UNICODE, rows_of
from connectagent.records.history import history_of, joined_turns
from connectagent.records.misfits import misfit
from connectagent.records.read import read_record
from connectagent.replay.replaying import replay
from connectagent.session.state import merge_change, state_change
from connectagent.testing import ScriptedLLM, call

State = dict[str, Any]
Keys = tuple[str, ...]
Edit = tuple[str, Keys, Any]  # "set", "remove" or "append"; where; what
Lost = tuple[str, Keys, str, Any]  # who overwrote, where, whose, what
PLANS = int(os.environ.get("MERGE_PLANS", "2"))  # that are killed at each line; set it for a longer run
SEEDS = range(25)
KEYS = "abcd"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


# -- random states and edits -------------------------------------------------------------------------


def random_dict(chance: random.Random, depth: int) -> State:
    made: State = {}
    for key in chance.sample(KEYS, chance.randint(1, 4)):
        kind = chance.choice(["dict", "dict", "list", "value"]) if depth else chance.choice(["list", "value"])
        made[key] = random_dict(chance, depth - 1) if kind == "dict" else ["old"] if kind == "list" else f"old {key}"
    return made


def places(state: State, above: Keys = ()) -> list[tuple[Keys, Any]]:
    """All that is in a state, dicts included."""
    found: list[tuple[Keys, Any]] = []
    for key, value in state.items():
        found.append(((*above, key), value))
        if isinstance(value, dict):
            found += places(value, (*above, key))
    return found


def edit(state: State, edits: list[Edit]) -> None:
    for did, (*above, key), value in edits:
        there = state
        for one in above:
            there = there.setdefault(one, {})
        if did == "set":
            there[key] = value
        elif did == "append":
            there.setdefault(key, []).append(value)
        else:
            there.pop(key, None)


class Plan:
    """A random state, and the edits of some writers.

    Args:
        seed: the plan.
        conflicting: whether some write the same keys too.
    """

    def __init__(self, seed: int, conflicting: bool) -> None:
        self.chance = random.Random(seed)
        self.state = random_dict(self.chance, 3)
        self.writers = [f"w{number}" for number in range(self.chance.randint(2, 4))]
        self.edits: dict[str, list[Edit]] = {name: [] for name in self.writers}
        self.lost: list[Lost] = []
        found = places(self.state)
        leaves = [keys for keys, value in found if not isinstance(value, dict)]
        self.chance.shuffle(leaves)
        shared = [leaves.pop() for _ in range(min(2, len(leaves) - 1))] if conflicting else []
        lists = [keys for keys in leaves if self._at(keys) == ["old"]]
        for keys in leaves:
            if keys in lists:
                self._append(keys)
            else:
                self._edit_alone(keys)
        for name in self.writers:
            self._begin(name, [(), *(keys for keys, value in found if isinstance(value, dict))])
        for keys in [*shared, *([("common",), ("n1", "common")] if conflicting else [])]:
            self._fight(keys)
        for edits in self.edits.values():
            self.chance.shuffle(edits)

    def _at(self, keys: Keys) -> Any:
        there: Any = self.state
        for key in keys:
            there = there.get(key) if isinstance(there, dict) else None
        return there

    def _edit_alone(self, keys: Keys) -> None:
        name = self.chance.choice([*self.writers, ""])
        if name:
            did = self.chance.choice(["set", "remove"])
            self.edits[name].append((did, keys, f"new by {name}"))

    def _append(self, keys: Keys) -> None:
        for name in self.writers:
            if self.chance.random() < 0.7:
                self.edits[name] += [("append", keys, f"{name}.{n}") for n in range(self.chance.randint(1, 2))]

    def _begin(self, name: str, dicts: list[Keys]) -> None:
        """Keys of the writer's own, in dicts that are there and in ones that others begin too."""
        for _ in range(self.chance.randint(1, 3)):
            above = self.chance.choice(dicts)
            more = tuple(self.chance.choice(["n1", "n2"]) for _ in range(self.chance.randint(0, 3)))
            if any(isinstance(self._at((*above, *more[:end])), str | list) for end in range(1, len(more) + 1)):
                continue
            self.edits[name].append(("set", (*above, *more, f"own of {name}"), self.chance.choice([1, None, {}, [1]])))

    def _fight(self, keys: Keys) -> None:
        """Let several write one key; the writes of the last value are those that stay."""
        there, last = [], None
        for name in self.writers:
            if self.chance.random() < 0.8:
                gone = self._at(keys) is not None and self.chance.random() < 0.3
                wanted = "removed" if gone else self.chance.choice(["one", "two", f"of {name}"])
                self.edits[name].append(("remove" if gone else "set", keys, wanted))
                if wanted != last:
                    self.lost += [(name, keys, other, last) for other in there]
                    there, last = [], wanted
                there.append(name)

    def expected(self) -> State:
        """What one after the other would leave."""
        state = copy.deepcopy(self.state)
        for name in self.writers:
            edit(state, self.edits[name])
        return state

    # -- who writes --------------------------------------------------------------------------------

    def in_parallel(self) -> Agent:
        return Parallel("root", self._agents(), state=self.state, quiet=True)

    def asked_in_one_round(self) -> Agent:
        calls = [ToolCall(name, name, {"prompt": "Go."}) for name in self.writers]
        return Agent("root", self._agents(), llm=OneRound(calls), state=self.state, quiet=True)

    def tool_calls(self) -> Agent:
        tools = [
            Tool(name, "", {"type": "object", "properties": {}}, self._writing(name), idempotent=True)
            for name in self.writers
        ]
        calls = [ToolCall(name, name, {}) for name in self.writers]
        return Agent("root", tools, llm=OneRound(calls), state=self.state, quiet=True, parallel_tools=4)

    def _writing(self, name: str) -> Callable[..., str]:
        def write(agent: Agent) -> str:
            edit(agent.state, copy.deepcopy(self.edits[name]))
            return f"written by {name}"

        return write

    def _agents(self) -> list[Agent]:
        return [Agent(name, run=self._writing(name), quiet=True) for name in self.writers]


class OneRound:
    """A model that makes some calls at once, then says that it is done."""

    model = "test/one-round"

    def __init__(self, calls: list[ToolCall]) -> None:
        self.calls = calls

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        return LLMResponse("Done.") if messages[-1]["role"] == "tool" else LLMResponse(None, list(self.calls))


SHAPES = {"Parallel": Plan.in_parallel, "one round": Plan.asked_in_one_round, "tool calls": Plan.tool_calls}


def lost_in(entries: list[Any]) -> list[Lost]:
    found = []
    for entry in entries:
        if entry["type"] == "lost_update":
            for one in entry["lost"]:
                what = "removed" if one.get("removed") else one["value"]
                found.append((name_of(entry["by"]), tuple(one["key"]), name_of(one["by"]), what))
    return sorted(found, key=str)


def name_of(by: dict[str, Any]) -> str:
    return str(by.get("agent") or by["tool"])


def problems_of(agent: Agent, plan: Plan) -> list[str]:
    """What is not as in `plan`, in the session and in the record."""
    record = read_record(Path(str(agent.record)))
    lines = [line for turn in joined_turns(record) for line in turn["trace"]]
    wanted, lost = plan.expected(), sorted(plan.lost, key=str)
    found = []
    for where, state in (("state", agent.state), ("record", history_of(Path(str(agent.record))).state)):
        if state != wanted:
            found.append(f"the {where} is {state}, not {wanted}")
    if lost_in(lines) != lost:
        found.append(f"lost in the record: {lost_in(lines)}, not {lost}")
    if set(lost_in(agent.session["trace"])) != set(lost):  # which also has what is merged again after a kill
        found.append(f"lost in the trace: {lost_in(agent.session['trace'])}, not {lost}")
    return found


# -- the tests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(200))
def test_a_change_makes_one_state_of_the_other_also_as_json(seed: int) -> None:
    chance = random.Random(seed)
    old = random_dict(chance, 3)
    new = copy.deepcopy(old)
    for keys, value in places(old):
        if chance.random() < 0.4 and isinstance(value, dict | str):
            did = chance.choice(["set", "remove"])
            there: Any = new
            for key in keys[:-1]:
                there = there.get(key) if isinstance(there, dict) else None
            if isinstance(there, dict):
                edit(there, [(did, keys[-1:], random_dict(chance, 1))])
    change = state_change(old, new)
    for made in (change, json.loads(json.dumps(change))):
        kept, state = copy.deepcopy(old), dict(old)
        merge_change(state, made)
        assert state == new
        assert old == kept  # what was there may be shared, by a copy of the state before the turn
    assert state_change(new, copy.deepcopy(new)) == {}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("conflicting", [False, True], ids=["keys of their own", "the same keys"])
def test_what_is_written_at_the_same_time_is_as_if_one_after_the_other(shape: str, conflicting: bool) -> None:
    found, lost = [], 0
    for seed in SEEDS:
        plan = Plan(seed, conflicting)
        agent = SHAPES[shape](plan)
        agent.input("Go.")
        found += [f"plan {seed}: {problem}" for problem in problems_of(agent, plan)]
        lost += len(plan.lost)
    assert not found
    assert bool(lost) is conflicting


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_merged_and_lost_is_the_same_after_a_kill_at_any_line(shape: str, folder: Path) -> None:
    found, kills = [], 0
    for seed in range(PLANS):
        plan = Plan(seed, conflicting=True)
        agent = SHAPES[shape](plan)
        agent.input("Go.")
        lines = Path(str(agent.record)).read_text().splitlines(keepends=True)
        begins = next(number for number, line in enumerate(lines) if '"user_input"' in line)
        for last in range(begins + 1, len(lines)):
            path = folder / f"root_{seed}_{last}.yaml"
            path.write_text("".join(lines[:last]))
            resumed = SHAPES[shape](plan)
            resumed.resume(path)
            found += [f"plan {seed}, {last} lines: {problem}" for problem in problems_of(resumed, plan)]
            kills += 1
    assert not found
    assert kills > 10 * PLANS


@pytest.mark.parametrize("shape", SHAPES)
def test_a_replay_merges_and_loses_the_same(shape: str) -> None:
    found = []
    for seed in range(10):
        plan = Plan(seed, conflicting=True)
        agent = SHAPES[shape](plan)
        agent.input("Go.")
        replayed = replay(Path(str(agent.record)), SHAPES[shape](plan)).agent
        if replayed.state != plan.expected():
            found.append(f"plan {seed}: the state is {replayed.state}, not {plan.expected()}")
        if lost_in(replayed.session["trace"]) != sorted(plan.lost, key=str):
            found.append(f"plan {seed}: lost {lost_in(replayed.session['trace'])}, not {plan.lost}")
    assert not found


def test_what_a_handler_wrote_meanwhile_is_not_lost_silently() -> None:
    @around_tool
    def count(agent: Agent, tool_call: ToolCall) -> Iterator[None]:
        yield
        if tool_call.name == "w0":  # while the body of w1 has run, and its changes are not merged
            agent.state["last"] = "by the handler"
            agent.state.setdefault("kept", {})["by the handler"] = 1

    plan = Plan(0, conflicting=False)
    plan.edits = {"w0": [], "w1": [("set", ("last",), "by w1"), ("set", ("kept", "by w1"), 1)]}
    plan.writers = ["w0", "w1"]
    agent = plan.tool_calls()
    agent.hooks.register(count)
    agent.input("Go.")
    assert agent.state["kept"] == {"by the handler": 1, "by w1": 1}
    (entry,) = [entry for entry in agent.session["trace"] if entry["type"] == "lost_update"]
    assert entry["by"]["tool"] == "w1"
    (lost,) = entry["lost"]
    assert (lost["key"], lost["value"], lost["by"]["handler"]) == (["last"], "by the handler", "count")


@pytest.mark.parametrize("inside", ["of a function", "of a tool", "of a tool beside another"])
def test_agents_that_are_asked_in_threads_of_ones_own_lose_nothing_silently(inside: str) -> None:
    both = threading.Barrier(2)

    def writing(name: str) -> Callable[[Agent], str]:
        def write(agent: Agent) -> str:
            both.wait(5)
            edit(agent.state, [("set", ("scores", name), 1), ("set", ("last",), name)])
            both.wait(5)
            return name

        return write

    def ask(agent: Agent) -> str:
        with ThreadPoolExecutor() as pool:
            contexts = [contextvars.copy_context() for _ in agent.sub_agents]
            asked = [
                pool.submit(one.run, child.input, "Go.") for one, child in zip(contexts, agent.sub_agents, strict=True)
            ]
        return " ".join(one.result() for one in asked)

    def other() -> str:
        return "other"

    options: dict[str, Any] = {
        "sub_agents": [Agent(name, run=writing(name), quiet=True) for name in ("a", "b")],
        "state": {"scores": {}},
        "quiet": True,
    }
    if inside == "of a function":
        agent = Agent("root", run=ask, **options)
    else:
        calls = [ToolCall(name, name, {}) for name in ("ask", "other")][: 2 if "beside" in inside else 1]
        agent = Agent("root", [ask, other], llm=OneRound(calls), parallel_tools=2, **options)
    agent.input("Go.")
    assert agent.state["scores"] == {"a": 1, "b": 1}
    first, last = ("a", "b") if agent.state["last"] == "b" else ("b", "a")
    assert lost_in(agent.session["trace"]) == [(last, ("last",), first, first)]


def test_what_waiting_agents_wrote_is_merged_alike_where_their_turn_is_given_up() -> None:
    def asking(name: str) -> Agent:
        def write(agent: Agent) -> str:
            """Write."""
            edit(agent.state, [("set", ("scores", name), 1), ("set", ("last",), name)])
            return "written"

        @before_each_tool
        def ask(tool_call: ToolCall) -> None:
            if tool_call.name == "sign":
                raise Pause("may I?")

        def sign() -> str:
            """Sign."""
            return "signed"

        llm = ScriptedLLM(call("write"), call("sign"))
        return Agent(name, [write, sign], llm=llm, on_events=[ask], quiet=True)

    agent = Parallel("root", [asking("a"), asking("b")], state={"scores": {}}, quiet=True)
    with pytest.raises(Paused):
        agent.input("Go.")
    for child in agent.sub_agents:
        child.llm = ScriptedLLM("Done.")
    agent.input("Never mind.")
    assert agent.state["scores"] == {"a": 1, "b": 1}
    assert agent.state["last"] == "b"
    assert lost_in(agent.session["trace"]) == [("b", ("last",), "a", "a")]


def test_many_appends_to_one_long_list_stay_fast() -> None:
    plan = Plan(0, conflicting=False)
    plan.state = {"log": list(range(5_000))}
    plan.writers = [f"w{number}" for number in range(40)]
    plan.edits = {name: [("append", ("log",), f"{name}.{n}") for n in range(5)] for name in plan.writers}
    agent = plan.in_parallel()
    since = time.process_time()
    agent.input("Go.")
    assert agent.state == plan.expected()
    assert time.process_time() - since < 10


def test_one_after_the_other_nothing_is_lost() -> None:
    def writing(name: str) -> Callable[[Agent], str]:
        def write(agent: Agent) -> str:
            agent.state["last"] = name
            return name

        return write

    def ask(agent: Agent) -> str:
        agent.state["last"] = "root"  # not traced yet when the next line asks
        for child in agent.sub_agents:
            child.input("Go.")
        return str(agent.state["last"])

    children = [Agent(name, run=writing(name), quiet=True) for name in ("a", "b")]
    agent = Agent("root", run=ask, sub_agents=children, quiet=True)
    assert agent.input("Go.") == "b"
    assert lost_in(agent.session["trace"]) == []


@pytest.mark.parametrize("keys", [(1, 2), (None, True), ("temp:a", "b")], ids=["ints", "atoms", "for one turn"])
def test_keys_of_other_kinds_are_merged_too(keys: tuple[Any, Any]) -> None:
    def writing(key: Any) -> Callable[[Agent], str]:
        def write(agent: Agent) -> str:
            agent.state["scores"][key] = [1]
            return "written"

        return write

    children = [Agent(f"w{number}", run=writing(key), quiet=True) for number, key in enumerate(keys)]
    agent = Parallel("root", children, state={"scores": {"z": 0}}, quiet=True)
    agent.input("Go.")
    there = {key: [1] for key in keys if not str(key).startswith("temp:")}
    assert agent.state["scores"] == {"z": 0, **there}
    assert lost_in(agent.session["trace"]) == []


LOSSES: dict[str, tuple[State, list[Edit], list[Edit], Any, dict[str, Any]]] = {
    "set": ({}, [("set", ("x",), 1)], [("set", ("x",), 2)], 2, {"key": ["x"], "value": 1}),
    "remove": ({"x": 0}, [("set", ("x",), 1)], [("remove", ("x",), None)], None, {"key": ["x"], "value": 1}),
    "set what was removed": ({"x": 0}, [("remove", ("x",), None)], [("set", ("x",), 2)], 2, {"removed": True}),
    "set a list": ({"x": [0]}, [("append", ("x",), 1)], [("set", ("x",), [2])], [2], {"appended": [1]}),
    "set a dict": ({"x": {"a": 0}}, [("set", ("x", "a"), 1)], [("set", ("x",), 2)], 2, {"key": ["x", "a"]}),
    "set in a dict": ({"x": {"a": 0}}, [("set", ("x",), 1)], [("set", ("x", "a"), 2)], {"a": 2}, {"value": 1}),
    "remove a dict": ({"x": {"a": 0}}, [("set", ("x", "b"), 1)], [("remove", ("x",), None)], None, {"key": ["x", "b"]}),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_each_way_to_lose_a_write_is_traced_with_both_authors(loss: str) -> None:
    state, first, second, left, lost = LOSSES[loss]
    plan = Plan(0, conflicting=False)
    plan.state, plan.writers, plan.edits = state, ["w0", "w1"], {"w0": first, "w1": second}
    agent = plan.in_parallel()
    agent.input("Go.")
    assert agent.state.get("x") == left
    (entry,) = [entry for entry in agent.session["trace"] if entry["type"] == "lost_update"]
    (told,) = entry["lost"]
    assert (name_of(entry["by"]), name_of(told["by"])) == ("w1", "w0")
    assert told.items() >= lost.items()


def test_what_is_lost_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    state, first, second, *_ = LOSSES["set a dict"]
    plan = Plan(0, conflicting=False)
    plan.state, plan.writers, plan.edits = state, ["w0", "w1"], {"w0": first, "w1": second}
    agent = plan.in_parallel()
    agent.input("Go.")
    entry = next(entry for entry in agent.session["trace"] if entry["type"] == "lost_update")
    (row,) = rows_of(entry, UNICODE)
    assert "".join(text for text, _ in row.parts) == "! w1 overwrote in the state: x.a of w0"
    assert "overwrote in the state: x.a of w0" in row_of({**entry, "number": 1}, 1)["text"]


MISSHAPEN: dict[str, Any] = {
    "a change": {"inside": {"x": 5}},
    "a change deeper down": {"inside": {"x": {"inside": {"y": {"delta": [1]}}}}},
    "what was added": {"appended": {"x": 5}},
}


@pytest.mark.parametrize("what", MISSHAPEN)
def test_a_change_of_another_form_in_a_record_is_found_before_it_is_merged(what: str, folder: Path) -> None:
    agent = Plan(0, conflicting=False).in_parallel()
    agent.input("Go.")
    lines = [line for turn in read_record(Path(str(agent.record)))["turns"] for line in turn["trace"]]
    (entry, *_) = [line for line in lines if line["type"] == "agent_turn"]
    assert misfit(entry) is None
    assert "not of the form that records have" in str(misfit({**entry, **MISSHAPEN[what]}))
