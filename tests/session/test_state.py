"""The state: what it begins with, what fills the system prompt, and who changed what in it."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from scripted_agents import CALL, agent_with, contents, entries, is_by, session_of

from connectagent import (
    Agent,
    ConfigError,
    LLMResponse,
    ToolRejected,
    after_llm,
    after_tools,
    after_user_input,
    before_each_tool,
    before_llm,
    hooks,
    on_agent_ready,
    on_complete,
    on_error,
    on_trace,
)
from connectagent.hooks.specs import AROUND, EVENTS
from connectagent.records.read import read_record
from connectagent.session.prompt import Prompt
from connectagent.testing import ScriptedLLM


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path))
    return tmp_path


# -- what sessions begin with --------------------------------------------------------------------


def test_each_session_begins_with_a_copy_of_the_agents_state() -> None:
    given: dict[str, Any] = {"plan": ["one"], "seen": {1}}

    @after_user_input
    def spoil(agent: Agent) -> None:
        session_of(agent)["state"]["plan"].append("two")
        session_of(agent)["state"]["seen"].add(2)

    agent = agent_with(spoil, script=("a", "b"), state=given)
    given["plan"].append("later")
    agent.input("Hi")
    assert session_of(agent)["state"] == {"plan": ["one", "two"], "seen": {1, 2}}
    agent.reset_conversation()
    agent.input("Hi")
    assert session_of(agent)["state"] == {"plan": ["one", "two"], "seen": {1, 2}}
    assert given == {"plan": ["one", "later"], "seen": {1}}
    first = entries(agent, "state_delta")[0]
    assert first["by"]["plugin"] == "(program)" and first["delta"] == {"plan": ["one"], "seen": {1}}


def test_a_stored_session_keeps_its_own_state_and_one_without_any_is_given_the_agents() -> None:
    agent = agent_with(script=("a", "b"), state={"x": 1})
    agent.current_session = {"messages": [], "state": {"y": 2}}
    agent.input("Hi")
    assert session_of(agent)["state"] == {"y": 2}
    agent.current_session = {"messages": []}
    agent.input("Hi")
    assert session_of(agent)["state"] == {"x": 1}


def test_a_state_that_is_no_dict_is_refused() -> None:
    with pytest.raises(ConfigError, match="state is a dict"):
        agent_with(state=[("x", 1)])


# -- placeholders --------------------------------------------------------------------------------

FILLED = [
    ("Hello {name}.", "Hello Ada."),
    ("{user:name}/{app:name}", "U/A"),
    ("a{gone?}b", "ab"),
    ("{user:gone?}", ""),
    ("{{name}}", "{name}"),
    ("{{name?}}", "{name?}"),
    ("{{{name}}}", "{{{name}}}"),
    ('{"a": {"b": 1}, "c": {name}}', '{"a": {"b": 1}, "c": Ada}'),
    (
        "{} { name } {name!r} {0} {na-me} {x.y} {other:name} ${",
        "{} { name } {name!r} {0} {na-me} {x.y} {other:name} ${",
    ),
    ("{empty}{none}{n}", "0"),
    ("{name}{name}", "AdaAda"),
    ("{ß}", "sharp"),
    ("{braces}", "{name}"),
]
STATE = {"name": "Ada", "user:name": "U", "app:name": "A", "empty": "", "none": None, "n": 0, "ß": "sharp"}
STATE |= {"braces": "{name}"}


@pytest.mark.parametrize(("template", "text"), FILLED, ids=[template for template, _ in FILLED])
def test_names_in_braces_are_filled_and_all_other_braces_stay(template: str, text: str) -> None:
    prompt = Prompt(template, strict=True)
    assert prompt.fill(STATE, "a") == text


def test_the_system_prompt_follows_the_state_in_place_and_each_change_is_traced_once() -> None:
    @after_tools
    def rename(agent: Agent) -> None:
        session_of(agent)["state"]["name"] = "Bob"

    agent = agent_with(
        rename, script=(CALL, "One.", "Two.", "Three."), system_prompt="For {name}.", state={"name": "Ada"}
    )
    agent.input("Hi")
    system = session_of(agent)["messages"][0]
    assert contents(agent)[0] == "For Ada."  # a turn keeps the one that it began with
    agent.input("Hi")
    agent.input("Hi")
    assert session_of(agent)["messages"][0] is system and contents(agent)[0] == "For Bob."
    edited = [(entry["by"], entry["index"], entry["message"]["content"]) for entry in entries(agent, "message_edited")]
    assert edited == [({"plugin": "connectagent"}, 0, "For Ada."), ({"plugin": "connectagent"}, 0, "For Bob.")]
    assert agent.system_prompt == "For {name}."
    assert isinstance(agent.llm, ScriptedLLM)
    assert [request.messages[0]["content"] for request in agent.llm.requests][1:3] == ["For Ada.", "For Bob."]


def test_a_name_that_is_missing_is_told_with_both_ways_out_and_the_session_goes_on() -> None:
    agent = agent_with(script=("Done.",), system_prompt="Help {name} today.", state={"nam": 1})
    with pytest.raises(ConfigError) as caught:
        agent.input("Hi")
    for part in ("'a'", "'name'", "{name}", "Help {name} today.", "'nam'", "state={'name': ...}", "{name?}"):
        assert part in str(caught.value)
    session = session_of(agent)
    assert session["turn"] == 0 and contents(agent) == ["Help {name} today."] and not entries(agent, "user_input")
    session["state"]["name"] = "Ada"
    assert agent.input("Hi") == "Done." and contents(agent) == ["Help Ada today.", "Hi", "Done."]
    assert agent.reset_conversation() is None


def test_without_a_state_of_the_agent_only_names_that_the_state_has_are_filled() -> None:
    text = 'Use {placeholders} like {{this}}, {maybe?} and {"json": 1}; {{step}}.'

    @after_llm
    def step(agent: Agent) -> None:
        session_of(agent)["state"]["step"] = "2"

    agent = agent_with(step, script=("a", "b", "c"), system_prompt=text + " {step}")
    agent.input("Hi")
    assert contents(agent)[0] == text + " {step}" and not entries(agent, "message_edited")
    agent.input("Hi")
    assert contents(agent)[0] == text.replace("{{step}}", "{step}") + " 2"


def test_a_value_whose_text_cannot_be_had_is_told() -> None:
    class Odd:
        def __str__(self) -> str:
            raise OSError("no")

    agent = agent_with(system_prompt="{odd}", state={"odd": Odd()})
    with pytest.raises(ConfigError, match="'odd' cannot be written into the system prompt"):
        agent.input("Hi")


def test_a_prompt_that_a_handler_extends_when_the_agent_is_ready_is_a_template_too() -> None:
    @on_agent_ready
    def extend(agent: Agent) -> None:
        agent.system_prompt += " Mind {topic}."

    agent = agent_with(extend, script=("a",), system_prompt="For {name}.", state={"name": "Ada", "topic": "x"})
    agent.input("Hi")
    assert contents(agent)[0] == "For Ada. Mind x."


def test_a_system_message_that_a_handler_edited_for_good_is_not_overwritten() -> None:
    @before_llm
    def date(request: Any, agent: Agent) -> None:
        if session_of(agent)["turn"] == 1:
            request.messages[0]["content"] += " It is Monday."

    agent = agent_with(date, script=("a", "b"), system_prompt="For {name}.", state={"name": "Ada"})
    agent.input("Hi")
    session_of(agent)["state"]["name"] = "Bob"
    agent.input("Hi")
    assert contents(agent)[0] == "For Ada. It is Monday."


@pytest.mark.parametrize("edited", [False, True])
def test_a_stored_session_is_filled_again_unless_its_system_message_was_edited(edited: bool) -> None:
    first = agent_with(script=("a",), system_prompt="For {name}.", state={"name": "Ada"})
    first.input("Hi")
    stored = json.loads(json.dumps(session_of(first)))
    stored["state"]["name"] = "Bob"
    if edited:
        stored["messages"][0]["content"] = "For Ada. Mine."
    agent = agent_with(script=("b",), system_prompt="For {name}.", state={})
    agent.current_session = stored
    agent.input("Hi")
    assert contents(agent)[0] == ("For Ada. Mine." if edited else "For Bob.")


def test_a_session_whose_system_message_was_removed_gets_none_back() -> None:
    agent = agent_with(script=("a", "b"), system_prompt="For {name}.", state={"name": "Ada"})
    agent.input("Hi")
    del session_of(agent)["messages"][0]
    session_of(agent)["state"]["name"] = "Bob"
    agent.input("Hi")
    assert contents(agent) == ["Hi", "a", "Hi", "b"]


def test_the_record_holds_the_template_and_each_filling(folder: Path) -> None:
    agent = Agent("a", system_prompt="For {name}, {temp:key}.", llm=ScriptedLLM("a"), quiet=True, state={"name": "Ada"})
    agent.execute_tool("none")
    session_of(agent)["state"]["temp:key"] = "secret"
    agent.input("Hi")
    assert contents(agent)[0] == "For Ada, secret."
    (path,) = folder.glob("evals/*.yaml")
    data = read_record(path)
    assert data["system_prompt"] == "For {name}, {temp:key}."
    (edited,) = [entry for turn in data["turns"] for entry in turn["trace"] if entry["type"] == "message_edited"]
    assert edited["message"]["content"] == "For Ada, {temp:key}."
    assert not any("secret" in file.read_text() for file in folder.rglob("*") if file.is_file())


# -- what changed, and who changed it ------------------------------------------------------------


@dataclass
class Plan:
    steps: list[str] = field(default_factory=list)


class Stubborn:
    """Compares to nothing, as arrays do."""

    def __eq__(self, other: object) -> Any:
        raise ValueError("the truth value is ambiguous")

    __hash__ = None  # type: ignore[assignment]


def changed(before: dict[Any, Any], change: Any) -> list[dict[str, Any]]:
    """What the trace tells of one tool's change of the state."""

    def act(agent: Agent) -> str:
        """Act."""
        change(session_of(agent)["state"])
        return "ok"

    agent = agent_with(script=(("act", {}), "Done."), state=before)
    agent.add_tool(act)
    agent.input("Hi")
    found = [entry for entry in entries(agent, "state_delta") if entry["by"].get("tool") == "act"]
    assert len(found) == len([entry for entry in entries(agent, "state_delta") if entry["by"].get("plugin") is None])
    return [{key: entry[key] for key in ("delta", "removed") if key in entry} for entry in found]


STUBBORN, NAN, LOCK = Stubborn(), float("nan"), threading.Lock()
CHANGES: dict[str, tuple[dict[Any, Any], Any, dict[str, Any]]] = {
    "none": ({"x": 1}, lambda s: s.update(x=None), {"delta": {"x": None}}),
    "deleted": ({"x": 1, "y": 2}, lambda s: s.pop("x"), {"delta": {"x": None}, "removed": ["x"]}),
    "deleted none": ({"x": None}, lambda s: s.pop("x"), {"delta": {"x": None}, "removed": ["x"]}),
    "nested": ({"x": {"y": [{"z": 1}]}}, lambda s: s["x"]["y"][0].update(z=2), {"delta": {"x": {"y": [{"z": 2}]}}}),
    "keys": ({}, lambda s: s.update({(1, 2): 3, None: 4, 5: 6}), {"delta": {(1, 2): 3, None: 4, 5: 6}}),
    "set": ({"x": {1}}, lambda s: s["x"].add(2), {"delta": {"x": {1, 2}}}),
    "tuple": ({"x": ([],)}, lambda s: s["x"][0].append(1), {"delta": {"x": ([1],)}}),
    "defaultdict": ({"x": defaultdict(list)}, lambda s: s["x"]["a"].append(1), {"delta": {"x": {"a": [1]}}}),
    "ordered": ({"x": OrderedDict(a=[])}, lambda s: s["x"]["a"].append(1), {"delta": {"x": {"a": [1]}}}),
    "deque": ({"x": deque([1])}, lambda s: s["x"].append(2), {"delta": {"x": deque([1, 2])}}),
    "bytearray": ({"x": bytearray(b"a")}, lambda s: s["x"].extend(b"b"), {"delta": {"x": bytearray(b"ab")}}),
    "dataclass": ({"x": Plan()}, lambda s: s["x"].steps.append("1"), {"delta": {"x": Plan(["1"])}}),
    "in a list": ({"x": [Plan()]}, lambda s: s["x"][0].steps.append("1"), {"delta": {"x": [Plan(["1"])]}}),
    "beside odd": ({"n": NAN, "s": STUBBORN, "l": LOCK}, lambda s: s.update(x=1), {"delta": {"x": 1}}),
    "an odd one": ({"s": [STUBBORN]}, lambda s: s["s"].append(1), {"delta": {"s": [STUBBORN, 1]}}),
    "only temporary": ({"x": {"temp:a": 1}}, lambda s: s["x"].update({"temp:a": 2}), {}),
    "temporary too": ({"x": {}}, lambda s: s["x"].update({"temp:a": 2, "b": 1}), {"delta": {"x": {"b": 1}}}),
    "a new one": ({}, lambda s: s.update(x=[{"temp:a": 2}]), {"delta": {"x": [{}]}}),
    "nothing": ({"x": {1: Plan()}}, lambda s: s.update(x={1: Plan()}), {}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_of_the_state_is_told_as_it_is(name: str) -> None:
    before, change, told = CHANGES[name]
    assert changed(before, change) == ([told] if told else [])


def test_a_pydantic_model_that_is_changed_in_place_is_told() -> None:
    from pydantic import BaseModel

    class Order(BaseModel):
        items: list[str] = []

    assert changed({"x": Order()}, lambda state: state["x"].items.append("tea")) == [
        {"delta": {"x": Order(items=["tea"])}}
    ]


def test_a_state_that_is_replaced_by_a_subclass_of_dict_is_still_followed() -> None:
    @after_user_input
    def replace(agent: Agent) -> None:
        session_of(agent)["state"] = defaultdict(list, x=[1])

    @before_llm
    def change(agent: Agent) -> None:
        session_of(agent)["state"]["x"].append(2)

    agent = agent_with(replace, change, script=("a",))
    agent.input("Hi")
    assert [entry["delta"] for entry in entries(agent, "state_delta")] == [{"x": [1]}, {"x": [1, 2]}]


@pytest.mark.parametrize("hook", [*EVENTS, *AROUND, "on_trace", "on_text"])
def test_a_change_of_the_state_is_its_handlers_in_every_hook(hook: str) -> None:
    if hook in AROUND:

        def act(agent: Agent) -> Any:
            session_of(agent)["state"]["plan"]["half"] = 1
            try:
                yield
            finally:
                session_of(agent)["state"]["plan"]["half"] = 2
    else:

        def act(agent: Agent) -> Any:  # type: ignore[misc]
            session_of(agent)["state"]["plan"].setdefault("half", 1)

    handler = getattr(hooks, hook)(act)
    agent = agent_with(handler, script=(("fails", {}), "Done."), state={"plan": {}}, stream=True)
    agent.input("Hi")
    own = [entry for entry in entries(agent, "state_delta") if entry["by"]["plugin"] != "(program)"]
    assert own and all(is_by(entry, handler, hook) for entry in own)
    assert own[0]["delta"] == {"plan": {"half": 1}} and own[-1]["delta"] == {"plan": {"half": 1 + (hook in AROUND)}}


def test_handlers_of_the_trace_may_count_in_the_state_and_are_not_told_of_their_own_doing() -> None:
    def counter(name: str) -> Any:
        @on_trace
        def count(agent: Agent, entry: dict[str, Any]) -> None:
            seen[name].append(entry["type"])
            session_of(agent)["state"][name] = session_of(agent)["state"].get(name, 0) + 1

        return count

    seen: dict[str, list[str]] = {"a": [], "b": []}
    agent = agent_with(counter("a"), counter("b"), script=("Hi.",))
    agent.input("Hi")
    assert session_of(agent)["state"] == {name: len(types) for name, types in seen.items()}
    assert seen["b"].count("user_input") == seen["b"].count("llm_call") == 1 and "state_delta" in seen["b"]


def test_what_a_failing_handler_changed_inside_values_is_taken_back() -> None:
    @after_tools
    def spoil(agent: Agent) -> None:
        state = session_of(agent)["state"]
        state["plan"].steps.append("half")
        state["seen"].add("half")
        raise ValueError("broken")

    agent = agent_with(spoil, state={"plan": Plan(["whole"]), "seen": {1}})
    with pytest.raises(ValueError, match="broken"):
        agent.input("Hi")
    assert session_of(agent)["state"] == {"plan": Plan(["whole"]), "seen": {1}}


def test_temporary_keys_live_for_the_turn_that_they_are_given_for_nested_ones_too(folder: Path) -> None:
    seen = []

    @before_llm
    def look(agent: Agent) -> None:
        state = session_of(agent)["state"]
        seen.append(state.get("temp:token"))
        state["plan"] = {"temp:secret": "secret", "steps": [{"temp:more": "secret"}]}

    agent = Agent("a", llm=ScriptedLLM("a", "b"), plugins=[look], quiet=True, state={"temp:token": "secret"})
    agent.input("Hi")
    assert session_of(agent)["state"] == {"plan": {"steps": [{}]}}
    session_of(agent)["state"]["temp:token"] = "secret2"
    agent.input("Hi")
    assert seen == ["secret", "secret2"] and session_of(agent)["state"] == {"plan": {"steps": [{}]}}
    assert not any("secret" in file.read_text() for file in folder.rglob("*") if file.is_file())
    assert "secret" not in str(session_of(agent)["trace"])


def test_odd_states_are_recorded_as_valid_yaml(folder: Path) -> None:
    odd = {(1, 2): 3, None: {1}, "o": STUBBORN, "l": LOCK, "p": Plan(), "d": deque([NAN])}
    Agent("a", llm=ScriptedLLM("a"), quiet=True, state=odd).input("Hi")
    (path,) = folder.glob("evals/*.yaml")
    (turn,) = read_record(path)["turns"]
    assert turn["status"] == "answered" and turn["trace"][0]["type"] == "state_delta"
    assert len(turn["trace"][0]["delta"]) == len(odd)


# -- a decision, and the state that was changed with it ------------------------------------------


def remember(agent: Agent, value: Any) -> Any:
    session_of(agent)["state"].pop("old", None)
    session_of(agent)["state"]["new"] = {"n": 1}
    return value


DECIDED = {"delta": {"new": {"n": 1}, "old": None}, "removed": ["old"]}


def deciding(hook: str, value: Any) -> Any:
    def decide(agent: Agent) -> Any:
        return remember(agent, value)

    return getattr(hooks, hook)(decide)


@pytest.mark.parametrize(
    ("hook", "value", "kind"),
    [
        ("after_user_input", "Answer.", "message"),
        ("before_llm", "Answer.", "llm_call"),
        ("after_llm", LLMResponse("Answer."), "change"),
        ("before_each_tool", "4", "tool_execution"),
        ("after_each_tool", "4", "change"),
        ("on_error", "4", "change"),
        ("on_complete", "Answer.", "change"),
    ],
)
def test_the_entry_of_a_decision_tells_the_state_that_its_handler_changed(hook: str, value: Any, kind: str) -> None:
    handler = deciding(hook, value)
    agent = agent_with(handler, script=(("fails", {}), "Done."), state={"old": 0})
    agent.input("Hi")
    entry = next(entry for entry in entries(agent, kind) if entry.get("by"))
    assert is_by(entry, handler, hook) and {key: entry[key] for key in ("delta", "removed")} == DECIDED
    assert [e["delta"] for e in entries(agent, "state_delta") if e["by"] is entry["by"]] == [DECIDED["delta"]]


def test_the_entry_of_a_rejection_or_of_an_end_tells_it_too() -> None:
    @before_each_tool
    def reject(agent: Agent) -> None:
        raise remember(agent, ToolRejected("no"))

    @on_error
    def end(agent: Agent) -> None:
        remember(agent, agent.end_turn("Ended."))

    agent = agent_with(reject, state={"old": 0})
    agent.input("Hi")
    assert DECIDED.items() <= entries(agent, "tool_execution")[0].items()
    agent = agent_with(end, script=(("fails", {}),), state={"old": 0})
    agent.input("Hi")
    assert DECIDED.items() <= entries(agent, "message")[-1].items()


def test_a_handler_that_changes_only_the_state_leaves_a_delta_and_the_turn_goes_on() -> None:
    handler = deciding("after_user_input", None)
    agent = agent_with(handler, script=("Done.",))
    assert agent.input("Hi") == "Done."
    assert [entry["type"] for entry in session_of(agent)["trace"]] == ["user_input", "state_delta", "llm_call"]


def test_a_decision_tells_only_what_its_own_call_changed() -> None:
    @on_complete
    def earlier(agent: Agent) -> str | None:
        if session_of(agent)["turn"] == 1:
            return remember(agent, None)  # type: ignore[no-any-return]
        return "Later."

    agent = agent_with(earlier, script=("a", "b"))
    agent.input("Hi")
    assert agent.input("Hi") == "Later."
    assert "delta" not in entries(agent, "change")[-1]
