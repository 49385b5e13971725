"""Elements of a conversation that `RefusingProvider` refuses, and agents that send them."""

from __future__ import annotations

from typing import Any

from refusing_provider import POISON, RefusingProvider, pdf, png

from connectagent import (
    Agent,
    File,
    Image,
    after_each_tool,
)


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


# The prompt, the tools, the handlers, and whose the refused element is.
ELEMENTS: dict[str, tuple[Any, list[Any], list[Any], dict[str, Any]]] = {
    "image of a tool": ("call shot", [shot], [], {"tool": "shot"}),
    "file of a tool": ("call paper", [paper], [], {"tool": "paper"}),
    "text of a tool": ("call words", [words], [], {"tool": "words"}),
    "image of the user": (["What is this?", Image(png(poison=True))], [], [], {"user": "user"}),
    "file of the user": (["What is this?", File(pdf(poison=True), name="a.pdf")], [], [], {"user": "user"}),
    "message of a handler": ("call look", [look], [add_words], {"handler": "add_words"}),
}


def agent_at(provider: RefusingProvider, tools: list[Any] = [], handlers: list[Any] = [], **more: Any) -> Agent:  # noqa: B006
    return Agent("eye", tools, on_events=handlers, quiet=True, **{"log": False, **provider.options, **more})


def messages_of(agent: Agent) -> list[Any]:
    return list(agent.current_session["messages"])  # type: ignore[index]


def owners_of(agent: Agent) -> list[dict[str, Any]]:
    trace = agent.current_session["trace"]  # type: ignore[index]
    return [entry["refused"]["of"] for entry in trace if entry["type"] == "message_edited" and "refused" in entry]
