"""Promise 1, content: what a provider refuses is adapted or replaced, its owner is named, and the session goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from refusing_provider import POISON, WIRES, RefusingProvider, pdf, png

from connectagent import Agent, File, Image, Tool, after_each_tool, before_llm
from connectagent.testing import conversation_problems


def shot() -> Image:
    """Take a picture that the provider refuses."""
    return Image(png(poison=True))


def paper() -> File:
    """Read a document that the provider refuses."""
    return File(pdf(poison=True), name="a.pdf")


def words() -> str:
    """Say something that the provider refuses."""
    return f"{POISON.decode()} words"


def look() -> str:
    """Look."""
    return "nothing to see"


@after_each_tool
def add_words(agent: Agent) -> None:
    agent.current_session["messages"].append({"role": "user", "content": f"By the way: {POISON.decode()}"})  # type: ignore[index]


@before_llm
def edit_request(request: Any) -> None:
    request.messages = [*request.messages, {"role": "user", "content": f"Only now: {POISON.decode()}"}]


# The prompt, the tools, the handlers, and whose the refused element is.
ELEMENTS: dict[str, tuple[Any, list[Any], list[Any], dict[str, Any]]] = {
    "image of a tool": ("call shot", [shot], [], {"tool": "shot"}),
    "file of a tool": ("call paper", [paper], [], {"tool": "paper"}),
    "text of a tool": ("call words", [words], [], {"tool": "words"}),
    "image of the user": (["What is this?", Image(png(poison=True))], [], [], {"user": "user"}),
    "file of the user": (["What is this?", File(pdf(poison=True), name="a.pdf")], [], [], {"user": "user"}),
    "message of a handler": ("call look", [look], [add_words], {"handler": "add_words"}),
}


def odd_tool(format: str = "poison") -> Tool:
    schema = {"type": "object", "properties": {"x": {"type": "string", "format": format}}}
    return Tool("odd", "Odd.", schema, lambda x="": x)


@pytest.fixture(params=WIRES)
def provider(request: Any) -> Iterator[RefusingProvider]:
    server = RefusingProvider(request.param)
    with server:
        yield server


def agent_at(provider: RefusingProvider, tools: list[Any] = [], handlers: list[Any] = [], **more: Any) -> Agent:  # noqa: B006
    return Agent("eye", tools, on_events=handlers, quiet=True, **{"log": False, **provider.options, **more})


def messages_of(agent: Agent) -> list[Any]:
    return list(agent.current_session["messages"])  # type: ignore[index]


def calls_of(agent: Agent) -> list[tuple[Any, ...]]:
    trace = agent.current_session["trace"]  # type: ignore[index]
    return [(entry["status"], entry.get("attempt", 1)) for entry in trace if entry["type"] == "llm_call"]


def owners_of(agent: Agent) -> list[dict[str, Any]]:
    trace = agent.current_session["trace"]  # type: ignore[index]
    return [entry["refused"]["of"] for entry in trace if entry["type"] == "message_edited" and "refused" in entry]


def take(agent: Agent, prompt: Any, streamed: bool) -> str:
    if not streamed:
        return str(agent.input(prompt))
    for _ in agent.stream(prompt):
        pass
    return str(agent.current_session["result"])  # type: ignore[index]


# -- replaced by the loop -------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("element", ELEMENTS)
def test_what_was_refused_is_replaced_and_the_session_goes_on(
    provider: RefusingProvider, element: str, streamed: bool
) -> None:
    prompt, tools, handlers, owner = ELEMENTS[element]
    agent = agent_at(provider, tools, handlers)
    assert take(agent, prompt, streamed) == "Seen."
    assert len(provider.refused) == 1
    first = 1 if isinstance(prompt, str) else 0
    assert calls_of(agent)[first:] == [("error", 1), ("success", 2)]
    (found,) = owners_of(agent)
    assert owner.items() <= found.items()
    assert take(agent, "And now?", streamed) == "Seen."
    assert len(provider.refused) == 1  # the next request is one that is taken
    assert not conversation_problems(agent.current_session["messages"])  # type: ignore[index]


@pytest.mark.parametrize("element", ELEMENTS)
def test_a_session_of_another_process_goes_on_too(provider: RefusingProvider, element: str, co_dir: Path) -> None:
    prompt, tools, handlers, _ = ELEMENTS[element]
    agent = agent_at(provider, tools, handlers, log=None)
    agent.input(prompt)
    other = agent_at(provider, tools, [], log=None)
    other.resume(agent.record)
    assert other.input("And now?") == "Seen."
    assert len(provider.refused) == 1
    before = messages_of(agent)
    assert messages_of(other)[: len(before)] == before


@pytest.mark.parametrize("element", ELEMENTS)
def test_a_session_with_a_key_goes_on_too(provider: RefusingProvider, element: str, co_dir: Path) -> None:
    prompt, tools, handlers, _ = ELEMENTS[element]
    for number, text in enumerate([prompt, "And now?"]):
        agent = agent_at(provider, tools, handlers if number == 0 else [], log=None)
        assert agent.for_session("user-1").turn(text) == "Seen."
    assert len(provider.refused) == 1


@pytest.mark.parametrize("element", ["image of a tool", "text of a tool", "message of a handler"])
def test_an_agent_inside_another_goes_on_too(provider: RefusingProvider, element: str) -> None:
    prompt, tools, handlers, owner = ELEMENTS[element]
    inner = Agent("inner", tools, on_events=handlers, quiet=True, log=False, **provider.options)
    outer = agent_at(provider, [inner])
    arguments = json.dumps({"prompt": prompt})
    parameter = next(iter(outer.tools["inner"].parameters["properties"]))
    assert outer.input("call inner " + arguments.replace("prompt", parameter)) == "Seen."
    assert len(provider.refused) == 1 and owner.items() <= owners_of(inner)[0].items()
    assert outer.input("And now?") == "Seen." and inner.input("And now?") == "Seen."
    assert len(provider.refused) == 1
