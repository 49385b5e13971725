"""A turn as an iterator: show tool calls and words as they come, and leave when it is enough.

The turn goes on only while the loop waits. Leaving the loop ends it: the conversation and the record stay whole.
"""

from collections.abc import Callable
from typing import Any

from connectagent import Agent, LLMResponse, Message, ToolCall


def search(query: str) -> str:
    """Search the docs."""
    return f"Three pages about {query}."


class Talker:
    """A stand-in for a model: it searches, then talks word by word."""

    model = "talker"

    def complete(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> LLMResponse:
        if messages[-1]["role"] == "user":
            return LLMResponse(None, [ToolCall("call_1", "search", {"query": "timeouts"})])
        return LLMResponse("Timeouts are set per request, in seconds, by the option timeout_s.")

    def stream(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, *, on_text: Callable[[str], None]
    ) -> LLMResponse:
        response = self.complete(messages, tools)
        for word in (response.content or "").split():
            on_text(word + " ")
        return response


if __name__ == "__main__":
    agent = Agent("helper", tools=[search], llm=Talker(), quiet=True)
    words = 0
    for event in agent.stream("How are timeouts set?"):
        if event["type"] == "tool_execution":
            print(f"[{event['tool_name']}: {event['status']}]")
        elif event["type"] == "text":
            words += 1
            print(f"{event['text']}({words} words so far)")
        if words == 5:
            break
    print(f"left after {words} words: the outcome is {agent.session['outcome']}")
