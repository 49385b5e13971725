"""What the value of a handler decides, and which values are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
from noting_handlers import TYPES, agent_with, line_of, noting

from connectagent import (
    Agent,
    HookResultError,
    LLMResponse,
    ToolCall,
    after_each_tool,
    after_llm,
    around_llm,
    before_each_tool,
    before_llm,
    hooks,
    on_complete,
    on_error,
)
from connectagent.errors import ProviderError
from connectagent.hooks.specs import AROUND, CONTRACTS, HOOKS


@pytest.mark.parametrize("value", ["", 0, False, {}, [], "text"])
def test_any_value_but_none_stands_in_for_a_tool(value: Any) -> None:
    @before_each_tool
    def stand_in() -> Any:
        return value

    agent = agent_with(stand_in, script=(("answer", {}), "Done."))
    agent.input("Hi")
    assert agent.current_session is not None
    entry = next(entry for entry in agent.current_session["trace"] if entry["type"] == "tool_execution")
    assert entry["status"] == "stand_in" and entry["result"] != "own"


@pytest.mark.parametrize("value", ["", 0, False, {}])
def test_any_value_but_none_recovers_a_tool_and_replaces_a_result(value: Any) -> None:
    @on_error
    def recover(tool_call: Any) -> Any:
        return value

    @after_each_tool
    def replace(result: Any) -> Any:
        return None if result == "own" else value

    agent = agent_with(recover, replace, script=([("missing", {}), ("answer", {})], "Done."))
    agent.input("Hi")
    assert agent.current_session is not None
    tools = [entry for entry in agent.current_session["trace"] if entry["type"] == "tool_execution"]
    assert [entry["status"] for entry in tools] == ["recovered", "success"]
    assert tools[1]["result"] == "own"


@pytest.mark.parametrize("hook", ["after_user_input", "before_llm", "before_each_tool", "on_error"])
def test_the_first_value_ends_a_hook_whose_step_will_not_happen(hook: str) -> None:
    seen: list[str] = []

    def decide() -> Any:
        return "decided"

    plugins = [noting(hook, "before", seen), getattr(hooks, hook)(decide), noting(hook, "after", seen)]
    script: tuple[Any, ...] = (("answer" if hook == "before_each_tool" else "missing", {}), "Done.")
    agent_with(*plugins, script=script).input("Hi")
    assert seen and set(seen) == {"before"}


def test_after_llm_after_each_tool_and_on_complete_run_every_handler_on_what_the_last_one_left() -> None:
    @after_llm
    def one(response: LLMResponse) -> Any:
        return f"{response.content}1" if response.content else None

    @after_llm
    def two(response: LLMResponse) -> Any:
        return f"{response.content}2" if response.content else None

    @after_each_tool
    def three(result: str) -> str:
        return f"{result}3"

    @after_each_tool
    def four(result: str) -> str:
        return f"{result}4"

    @on_complete
    def five(result: str) -> str:
        return f"{result}5"

    @on_complete
    def six(result: str) -> str:
        return f"{result}6"

    agent = agent_with(one, two, three, four, five, six, script=(("answer", {}), "Done."))
    assert agent.input("Hi") == "Done.1256"
    assert agent.current_session is not None
    assert [message["content"] for message in agent.current_session["messages"][-2:]] == ["own34", "Done.12"]


ELSEWHERE = ("register_commands", "register_chat_commands", "on_text")  # they fire in no plain turn
CHECKED = [
    name
    for name, contract in ((hook, CONTRACTS[hook]) for hook in HOOKS)
    if (contract.takes or contract.kind == "observe") and name not in ELSEWHERE
]


@pytest.mark.parametrize("hook", CHECKED)
def test_a_value_that_a_hook_does_not_take_is_an_error_that_names_the_handler(hook: str) -> None:

    def wrong() -> Any:
        return object()

    def wrong_around() -> Any:
        yield
        return object()

    handler = getattr(hooks, hook)(wrong_around if hook in AROUND else wrong)
    with pytest.raises(HookResultError, match=f"{hook} handler .*{re.escape(__file__)}:"):
        with agent_with(handler, script=(("answer", {}), "Done.")) as agent:
            agent.input("Hi")
        Agent("b", model="offline", plugins=[handler], log=False, quiet=True)


def test_an_around_handler_that_yields_twice_or_not_at_all_is_named() -> None:
    @around_llm
    def twice() -> Any:
        yield
        yield

    @around_llm
    def never() -> Any:
        if TYPES is None:
            yield

    for handler, told in ((twice, "yields more than once"), (never, "returned before its yield")):
        with pytest.raises(HookResultError, match=f"{re.escape(__file__)}:{line_of(handler)}.*{told}"):
            agent_with(handler).input("Hi")


BROKEN: dict[str, Any] = {
    "content": LLMResponse(3),  # type: ignore[arg-type]
    "provider_data": LLMResponse("a", provider_data=3),  # type: ignore[arg-type]
    "no list of calls": LLMResponse(None, (ToolCall("c1", "answer", {}),)),  # type: ignore[arg-type]
    "no call, behind one without an id": LLMResponse(None, [ToolCall("", "answer", {}), "answer"]),  # type: ignore[list-item]
}


class Says:
    """A model that answers with one thing."""

    model = "says"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def complete(self, messages: list[Any], tools: list[Any] | None = None) -> Any:
        return self.answer


@pytest.mark.parametrize("name", BROKEN)
def test_a_response_of_a_form_that_cannot_be_used_is_refused_whoever_made_it(name: str) -> None:
    @before_llm
    def stand_in() -> LLMResponse:
        return BROKEN[name]  # type: ignore[no-any-return]

    with pytest.raises(HookResultError, match=r"stand_in.* cannot be used: a response's "):
        agent_with(stand_in, script=("Done.",)).input("Hi")
    with pytest.raises(ProviderError, match="the model's answer cannot be used: a response's ") as caught:
        Agent("a", llm=Says(BROKEN[name]), log=False, quiet=True).input("Hi")
    assert caught.value.kind == "bad_response"


def test_calls_without_ids_of_their_own_get_some_that_no_other_call_has() -> None:
    calls = [ToolCall(id, "answer", {}) for id in ("", "call_1", "call_1", "")]
    agent = agent_with(script=(LLMResponse(None, calls), "Done."))
    agent.input("Hi")
    assert agent.current_session is not None
    messages = agent.current_session["messages"]
    ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert ids == ["call_2", "call_1", "call_3", "call_4"]
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == ids
