"""Recovery from a failing model: another model takes over, and if that fails too, a plain answer.

`tool_call` is None where a model call failed. Every attempt is in the trace.
"""

from typing import Any

from connectagent import Agent, LLMResponse, Message, ProviderError, Retry, ToolCall, on_error


class Overloaded:
    """A stand-in for a provider that has a bad day."""

    model = "busy-model"

    def complete(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> LLMResponse:
        raise ProviderError("try again later", kind="overloaded", provider="busy", status=529)


@on_error
def another_model(agent: Agent, tool_call: ToolCall | None) -> Retry | None:
    tried = [entry["model"] for entry in agent.session["trace"] if entry["type"] == "llm_call"]
    if tool_call is None and "offline" not in tried:
        return Retry(model="offline")  # with a key: Retry(model="claude-sonnet-4-5")
    return None


@on_error
def say_sorry(tool_call: ToolCall | None) -> str | None:
    return "All models are busy. Please ask again in a minute." if tool_call is None else None


if __name__ == "__main__":
    agent = Agent("helper", llm=Overloaded(), on_events=[another_model, say_sorry])
    print(agent.input("Hello"))

    alone = Agent("lonely", llm=Overloaded(), on_events=[say_sorry])
    print(alone.input("Hello"))
    print([entry["status"] for entry in alone.session["trace"] if entry["type"] == "llm_call"])
