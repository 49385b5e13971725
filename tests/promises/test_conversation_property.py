"""Promise 1: whatever handlers and tools do, each request is valid on all wires and the next `input()` works."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import yaml
from awaiting import take
from conversation_faults import ACTS, Abrupt, Boom
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from connectagent import Agent, HookResultError, LLMResponse, Tool, ToolCall, hooks
from connectagent.hooks.specs import AROUND, EVENTS, PARAMETERS
from connectagent.models.anthropic_messages import tools_to_wire as to_anthropic
from connectagent.models.responses_messages import tools_to_wire as to_responses
from connectagent.testing import conversation_problems as problems


class Fault(NamedTuple):
    """At the `nth` time that code runs at a `place`, an act is performed."""

    place: str
    nth: int
    act: str
    n: int


class Turn(NamedTuple):
    rounds: list[Any]
    faults: list[Fault]
    between: list[tuple[str, int]]


IDS = ("c1", "c2", "c3", "", "call-4", "a b.c", None, "x" * 60)
CALLS = st.tuples(
    st.sampled_from(("good", "good", "bad", "agent_tool", "unknown", "")),
    st.sampled_from(IDS),
    st.sampled_from(({"x": 1}, {"x": 1}, {}, {"x": "no"}, {"y": [float("nan")]}, "{broken", None, [1])),
)
ROUNDS = st.tuples(st.sampled_from((None, "", "text", " ")), st.lists(CALLS, min_size=1, max_size=8))
RESPONSES = st.one_of(
    ROUNDS, ROUNDS, ROUNDS, ROUNDS, st.sampled_from(("answer", "", None, "error", "interrupt", "junk"))
)
HALVES = tuple(f"{hook}:{half}" for hook in AROUND for half in ("before", "after", "caught"))
PLACES = (*EVENTS, *EVENTS, "on_trace", *HALVES, "bad", "bad", "agent_tool")
NUMBERS = st.integers(0, 90)
ACTS_DRAWN = (*sorted(ACTS), "edit_given", "edit_tools", "append_message", "raise_error", "return_value")
FAULTS = st.builds(
    Fault, st.sampled_from(PLACES), st.sampled_from((0, 0, 0, 1, 2, 3)), st.sampled_from(ACTS_DRAWN), NUMBERS
)
MENDABLE = ("append_to_last_round", "insert_same_object_again", "delete_message", "clear_messages", "reorder_messages")
TURNS = st.builds(
    Turn,
    st.lists(RESPONSES, min_size=1, max_size=4),
    st.lists(FAULTS, min_size=1, max_size=8),
    st.lists(st.tuples(st.sampled_from(MENDABLE), NUMBERS), max_size=1),
)


class Session:
    """An agent whose handlers and tools do what a drawn plan says, and whose model checks each request."""

    def __init__(self, awaited: bool = False, **options: Any) -> None:
        self.awaited = awaited
        self.faults: list[Fault] = []
        self.seen: Counter[str] = Counter()
        self.raised: list[BaseException] = []
        self.found: list[str] = []
        self.llm = CheckingLLM(self)
        handlers = [_handler(self, hook) for hook in (*EVENTS, "on_trace")] + [_around(self, h) for h in AROUND]
        self.agent = Agent(
            "mean",
            tools=[self._tool("bad"), self._tool("agent_tool")],
            system_prompt="Be good.",
            llm=self.llm,
            max_iterations=4,
            plugins=[handlers],
            **{"log": False, "quiet": True, **options},
        )

    def _tool(self, name: str) -> Callable[..., Any]:
        if name == "bad":

            def tool(x: int = 0) -> Any:
                return self.perform(name, {})
        else:

            def tool(agent: Any, x: int = 0) -> Any:  # type: ignore[misc]
                return self.perform(name, {})

        tool.__name__ = tool.__qualname__ = name
        return tool

    def perform(self, place: str, given: dict[str, Any]) -> Any:
        """Do what the plan has for this place and time."""
        nth = self.seen[place]
        self.seen[place] += 1
        value = None
        for fault in self.faults:
            if fault.place == place and fault.nth == nth:
                try:
                    answer = ACTS[fault.act](self.agent, given, fault.n)
                except BaseException as error:
                    self.raised.append(error)
                    raise
                value = answer if answer is not None else value
        return value

    def turn(self, turn: Turn) -> None:
        """A turn in which things go wrong, then one in which nothing does."""
        self.faults, self.llm.script = turn.faults, list(turn.rounds)
        self.seen.clear()
        try:
            assert isinstance(take(self.agent, "Go.", self.awaited), str)
        except BaseException as error:
            self.check_error(error)
        self.faults, self.llm.script = [], []
        for name, n in turn.between:
            if self.agent.current_session is not None:
                ACTS[name](self.agent, {}, n)
        self.good_turn()

    def check_error(self, error: BaseException) -> None:
        """Only what was raised on purpose may reach the caller, or an error that names its handler."""
        if any(known in (error, error.__cause__) for known in self.raised) or isinstance(error, (Boom, Abrupt)):
            return
        if isinstance(error, HookResultError) and __file__ in str(error):
            return
        raise AssertionError(f"{error!r} reached the caller of input()") from error

    def good_turn(self) -> None:
        """The next turn works, with a tool round and an answer."""
        if "good" not in self.agent.tools:
            self.agent.add_tool(good)
        self.llm.script = [("text", [("good", "c1", {"x": 2}), ("good", "c1", {"x": 3})]), "It worked."]
        assert take(self.agent, "And now?", self.awaited) == "It worked."
        assert json.dumps(self.agent.tools["good"].schema) == GOOD
        assert self.agent.current_session is not None
        session = self.agent.current_session
        assert session["outcome"] == "answered" and session["result"] == "It worked."
        assert session["pending_tool"] is None and session["pending_tools"] is None
        assert [message["content"] for message in session["messages"][-3:]] == ["4", "6", "It worked."]
        self.found += [f"after the turn: {text}" for text in problems(session["messages"])]
        assert not self.found, self.found


def tools_refused(tools: list[Any]) -> list[str]:
    """What the wires refuse of tools, by rules that are not the package's."""
    found: list[str] = []
    for wire in (tools, to_anthropic(tools), to_responses(tools)):
        names = [(tool.get("function") or tool).get("name") for tool in wire]
        found += [f"tools: two of one name: {names}"] if len(set(names)) < len(names) else []
        found += [f"tools: name {name!r}" for name in names if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", str(name))]
        for tool in wire:
            schema = tool.get("input_schema") or (tool.get("function") or tool).get("parameters") or {"type": "object"}
            if schema.get("type", "object") != "object" or not isinstance(schema.get("properties", {}), dict):
                found.append(f"tools: schema {schema!r:.200}")
        try:
            json.dumps(wire, allow_nan=False)
        except ValueError as error:
            found.append(f"tools: {error}")
    return found


def good(x: int) -> int:
    """Double a number."""
    return 2 * x


GOOD = json.dumps(Tool.from_function(good).schema)


class CheckingLLM:
    """A model that notes what is wrong with each request, and answers from a script."""

    model = "checking"

    def __init__(self, session: Session) -> None:
        self.session = session
        self.script: list[Any] = []

    def complete(self, messages: list[Any], tools: Any = None) -> Any:
        self.session.found += problems(messages)
        self.session.found += tools_refused(tools or [])
        response = self.script.pop(0) if self.script else "done"
        if response in ("error", "interrupt"):
            error: BaseException = Boom("model") if response == "error" else KeyboardInterrupt()
            self.session.raised.append(error)
            raise error
        if response == "junk":
            return LLMResponse(None, [])
        if isinstance(response, tuple):
            content, calls = response
            return LLMResponse(content, [ToolCall(id, name, arguments) for name, id, arguments in calls])
        return LLMResponse(response)


def _handler(session: Session, hook: str) -> Any:
    names = ", ".join(PARAMETERS[hook])
    scope: dict[str, Any] = {"session": session}
    source = f"def handler({names}):\n    return session.perform({hook!r}, locals())"
    exec(compile(source, __file__, "exec"), scope)
    return getattr(hooks, hook)(scope["handler"])


def _around(session: Session, hook: str) -> Any:
    first, second = PARAMETERS[hook]

    def handler(**given: Any) -> Any:
        early = session.perform(f"{hook}:before", given)
        try:
            yield
        except BaseException:
            value = session.perform(f"{hook}:caught", given)
            if value is None:
                raise
            return value
        late = session.perform(f"{hook}:after", given)
        return early if late is None else late

    scope = {"handler": handler}
    source = f"def around({first}, {second}):\n    return (yield from handler({first}={first}, {second}={second}))"
    exec(compile(source, __file__, "exec"), scope)
    return getattr(hooks, hook)(scope["around"])


def play(turns: list[Turn], **options: Any) -> None:
    session = Session(**options)
    for turn in turns:
        session.turn(turn)


CASES = int(os.environ.get("PROPERTY_CASES", "200"))  # set it for a longer run, which draws new cases
MEAN = settings(
    max_examples=CASES,
    deadline=None,
    database=None,
    derandomize="PROPERTY_CASES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)


TOO_DEEP = Turn([(None, [("good", "c1", {"x": 1})])], [Fault("after_llm", 0, "edit_given", 90)], [])  # to be traced


@MEAN
@given(st.lists(TURNS, min_size=1, max_size=3))
@example([TOO_DEEP])
def test_whatever_handlers_do_each_request_is_valid_and_the_next_turn_works(turns: list[Turn]) -> None:
    play(turns)


@settings(MEAN, max_examples=CASES // 6)
@given(turns=st.lists(TURNS, min_size=1, max_size=2))
def test_whatever_handlers_do_in_awaited_turns_the_same_holds(turns: list[Turn]) -> None:
    play(turns, awaited=True)


@settings(MEAN, max_examples=CASES // 10)
@given(turns=st.lists(TURNS, min_size=1, max_size=2))
def test_whatever_handlers_do_the_record_is_one_yaml_document(turns: list[Turn], tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("co")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a value that cannot be recorded may cost a warning, never the turn
        patch.setenv("CONNECTAGENT_DIR", str(folder))
        play(turns, log=None)
    records = list(folder.glob("evals/*.yaml"))
    assert records
    for record in records:
        document = yaml.safe_load(record.read_text(encoding="utf-8"))
        assert document["agent"] == "mean" and document["turns"][-1]["status"] == "answered"
