"""The end of a turn from anywhere, and whose value counts: alone, streamed, and inside of another agent's turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from connectagent import Agent, LLMResponse, hooks
from connectagent.data import ToolCall
from connectagent.testing import ScriptedLLM
from connectagent.testing import conversation_problems as problems

NOT_RUN = "not run: the turn was ended"
FAILED = "Error: OSError: no"


def bad() -> int:
    """Fail."""
    raise OSError("no")


def work(x: int) -> int:
    """Work."""
    return 2 * x


def above(agent: Agent, call: Any, *script: Any, **place: Any) -> Any:
    root = Agent("above", llm=ScriptedLLM(*script or (call, call)), log=False, quiet=True, **place)
    return lambda: root.input("Go.")


def streamed(agent: Agent) -> Any:
    return lambda: list(agent.stream("Go."))[-1]["result"]


PLACES: dict[str, Callable[[Agent], Callable[[], Any]]] = {
    "alone": lambda agent: lambda: agent.input("Go."),
    "streamed": streamed,
    "sub_agent": lambda agent: above(agent, ("transfer_to_agent", {"agent_name": "inner"}), sub_agents=[agent]),
    "tool": lambda agent: above(
        agent, None, ("inner", {"prompt": "Go."}), "Thanks.", ("inner", {"prompt": "Go."}), "Thanks.", tools=[agent]
    ),
}

# Where the turn is ended, and what the model reads of its two calls in the next turn; None: it had made none.
ENDS: dict[str, list[str] | None] = {
    "around_turn:enter": None,
    "on_trace:user_input": None,
    "after_user_input": None,
    "before_llm": None,
    "around_llm:enter": [],
    "around_llm:exit": [NOT_RUN, NOT_RUN],
    "on_trace:llm_call": [NOT_RUN, NOT_RUN],
    "after_llm": [NOT_RUN, NOT_RUN],
    "before_tools": [NOT_RUN, NOT_RUN],
    "before_each_tool": [NOT_RUN, NOT_RUN],
    "around_tool:enter": [NOT_RUN, NOT_RUN],
    "around_tool:exit": [FAILED, NOT_RUN],
    "on_trace:tool_execution": [FAILED, NOT_RUN],
    "on_error": [FAILED, NOT_RUN],
    "after_each_tool": [FAILED, NOT_RUN],
    "after_tools": [FAILED, "4"],
}


def ending(place: str) -> Any:
    """A handler that ends the turn the first time that it comes to a place."""
    hook, _, detail = place.partition(":")
    left = [1]

    def act(agent: Agent) -> None:
        if left:
            left.clear()
            agent.end_turn("Ended.")

    def around(agent: Agent) -> Iterator[None]:
        if detail == "enter":
            act(agent)
        try:
            yield
        finally:
            if detail == "exit":
                act(agent)

    def told(agent: Agent, entry: dict[str, Any]) -> None:
        if entry["type"] == detail:
            act(agent)

    def event(agent: Agent) -> None:
        act(agent)

    return getattr(hooks, hook)(around if hook.startswith("around") else told if detail else event)


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("place", ENDS)
def test_the_model_is_told_in_the_next_turn_what_an_ended_one_did_not_run(place: str, where: str) -> None:
    def next_answer(messages: Any, tools: Any) -> Any:
        ended = any(message["content"] == "Ended." for message in messages)
        return "Later." if ended else LLMResponse("Hm.", [ToolCall("1", "bad", {}), ToolCall("2", "work", {"x": 2})])

    llm = ScriptedLLM(*[next_answer] * 3)
    inner = Agent("inner", [bad, work], llm=llm, plugins=[ending(place)], log=False, quiet=True)
    run = PLACES[where](inner)
    run()
    session: Any = inner.current_session
    assert (session["result"], session["outcome"]) == ("Ended.", "ended")
    run()
    told = llm.requests[-1].messages
    assert session["result"] == "Later." and problems(told) == []
    results = [message["content"] for message in told if message["role"] == "tool"]
    assert results == (ENDS[place] or []) and "Ended." in [message["content"] for message in told]


DECIDING: dict[str, tuple[Any, Any]] = {
    "after_user_input": ("one", []),
    "before_llm": ("one", []),
    "before_each_tool": ("one", [("work", {"x": 2}), "Done."]),
    "on_error": ("one", [("bad", {}), "Done."]),
}
CHAINED: dict[str, tuple[Any, Any]] = {
    "after_llm": ("response", ["Done."]),
    "after_each_tool": ("result", [("work", {"x": 2}), "Done."]),
    "on_complete": ("result", ["Done."]),
}


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("hook", DECIDING)
def test_the_first_value_ends_a_step_that_will_not_happen(hook: str, where: str) -> None:
    called = []

    def first(agent: Agent) -> str:
        called.append("first")
        return "one"

    def second(agent: Agent) -> str:
        called.append("second")
        return "two"

    mark = getattr(hooks, hook)
    llm = ScriptedLLM(*DECIDING[hook][1])
    inner = Agent("inner", [bad, work], llm=llm, plugins=[mark(first), mark(second)], log=False, quiet=True)
    PLACES[where](inner)()
    session: Any = inner.current_session
    assert called == ["first"] and "one" in [message["content"] for message in session["messages"]]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("hook", CHAINED)
def test_every_handler_sees_the_last_value_of_what_has_happened(hook: str, where: str) -> None:
    name, script = CHAINED[hook]
    seen = []

    def note(value: Any) -> str:
        seen.append(value.content if isinstance(value, LLMResponse) else value)
        return f"{seen[-1]}!"

    handlers = {
        "response": lambda: lambda response: note(response),
        "result": lambda: lambda result: note(result),
    }
    plugins = [getattr(hooks, hook)(handlers[name]()) for _ in range(2)]
    inner = Agent("inner", [bad, work], llm=ScriptedLLM(*script), plugins=plugins, log=False, quiet=True)
    PLACES[where](inner)()
    first = "4" if hook == "after_each_tool" else "Done."
    session: Any = inner.current_session
    assert seen == [first, f"{first}!"]
    assert f"{first}!!" in [session["result"], *[message["content"] for message in session["messages"]]]
