"""State: a tool remembers something, and the system prompt of the next turn tells it to the model.

`{user:name}` must be in the state; `{items?}` may be missing. Each change is in the trace, with who made it.
"""

from typing import Any

from connectagent import Agent, LLMResponse, Message, ToolCall


def add(item: str, agent: Agent) -> str:
    """Add an item to the list."""
    state = agent.session["state"]
    state["items"] = ", ".join(filter(None, [state["items"].replace("nothing", ""), item]))
    return "added"


class Lister:
    """A stand-in for a model: it adds what the user says."""

    model = "lister"

    def complete(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> LLMResponse:
        if messages[-1]["role"] == "tool":
            return LLMResponse("It is on the list.")
        print("The model read:", messages[0]["content"])
        return LLMResponse(None, [ToolCall("call_1", "add", {"item": messages[-1]["content"]})])


if __name__ == "__main__":
    prompt = "You keep the list of {user:name}. So far: {items}.{note?}"
    agent = Agent("list", [add], prompt, llm=Lister(), quiet=True, state={"user:name": "Ada", "items": "nothing"})
    for item in ("milk", "tea"):
        agent.input(item)
    for entry in agent.session["trace"]:
        if entry["type"] == "state_delta" and "tool" in entry["by"]:
            print(entry["delta"], "by", entry["by"]["tool"])
