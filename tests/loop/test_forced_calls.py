"""A `tool_choice` that forces a call is for the first model call of a turn; what a handler sets holds for its call."""

from __future__ import annotations

from typing import Any

import pytest
from wire_server import Answer, WireServer, chat, message, response, tool_use

from connectagent import Agent, LLMRequest, before_llm, on_error
from connectagent.data import Retry
from connectagent.loop.model_choice import without_forced_call
from connectagent.models.anthropic import AnthropicLLM
from connectagent.models.openai import OpenAILLM
from connectagent.models.responses import ResponsesLLM

LOOK = {"type": "function", "function": {"name": "look"}}
WIRES: dict[str, tuple[Any, Any, Answer]] = {
    "chat": (OpenAILLM, lambda id: chat(calls=[(id, "look", "{}")]), chat("Done.")),
    "responses": (ResponsesLLM, lambda id: response((id, "look", "{}")), response("Done.")),
    "anthropic": (AnthropicLLM, lambda id: message(tool_use(id, "look"), stop="tool_use"), message("Done.")),
}


def look() -> str:
    """Look."""
    return "seen"


def choices(wire: str, choice: Any, *handlers: Any, prompts: int = 1, answers: list[Answer] | None = None) -> list[Any]:
    """The `tool_choice` of each request: of turns with two tool rounds and an answer."""
    made, call, done = WIRES[wire]
    turn = [call("c1"), call("c2"), done]
    with WireServer(*(answers or turn * prompts)) as server:
        llm = made("model-1", api_key="test-key-1", base_url=server.url, options={"tool_choice": choice, "seed": 7})
        agent = Agent("a", [look], llm=llm, on_events=list(handlers), log=False, quiet=True)
        for _ in range(prompts):
            assert agent.input("go") == "Done."
        assert all(sent["seed"] == 7 for sent in server.requests)
        return [sent.get("tool_choice") for sent in server.requests]


@pytest.mark.parametrize(
    ("wire", "choice", "sent"),
    [
        ("chat", "required", "required"),
        ("chat", LOOK, LOOK),
        ("responses", "required", "required"),
        ("responses", LOOK, {"type": "function", "name": "look"}),
        ("anthropic", "required", {"type": "any"}),
        ("anthropic", {"type": "tool", "name": "look"}, {"type": "tool", "name": "look"}),
    ],
)
def test_a_forced_call_is_the_first_of_each_turn(wire: str, choice: Any, sent: Any) -> None:
    assert choices(wire, choice, prompts=2) == [sent, None, None] * 2


@pytest.mark.parametrize("wire", ["chat", "responses"])
@pytest.mark.parametrize("choice", ["auto", "none"])
def test_a_choice_that_forces_nothing_holds_for_each_call(wire: str, choice: Any) -> None:
    assert choices(wire, choice) == [choice] * 3


def test_what_else_a_choice_says_stays() -> None:
    given = {"type": "any", "disable_parallel_tool_use": True}
    free = {"type": "auto", "disable_parallel_tool_use": True}
    assert choices("anthropic", given) == [given, free, free]


def test_what_a_handler_sets_holds_for_its_call() -> None:
    seen: list[Any] = []

    @before_llm
    def force(agent: Any, request: LLMRequest) -> None:
        seen.append(request.options.get("tool_choice"))
        if len(seen) == 2:
            request.options["tool_choice"] = "required"

    assert choices("chat", "required", force) == ["required", "required", None]
    assert seen == ["required", None, None]


def test_a_handler_of_other_options_frees_the_model_too() -> None:
    @before_llm
    def cool(agent: Any, request: LLMRequest) -> None:
        request.options["temperature"] = 0

    assert choices("chat", "required", cool) == ["required", None, None]


def test_another_attempt_at_the_first_call_is_forced_too() -> None:
    @on_error
    def again(error: Exception) -> Retry:
        return Retry()

    _, call, done = WIRES["chat"]
    answers = [Answer({"error": {"message": "no"}}, status=400), call("c1"), done]
    assert choices("chat", "required", again, answers=answers) == ["required", "required", None]


@pytest.mark.parametrize("choice", [None, "auto", "none", {"type": "auto"}, {"type": "allowed_tools", "mode": "auto"}])
def test_free_choices_stay_as_they_are(choice: Any) -> None:
    options = {"tool_choice": choice}
    assert without_forced_call(options) is options


@pytest.mark.parametrize("choice", ["required", "any", LOOK, {"type": "allowed_tools", "mode": "required"}])
def test_forced_choices_go(choice: Any) -> None:
    assert without_forced_call({"tool_choice": choice, "seed": 1}) == {"seed": 1}
