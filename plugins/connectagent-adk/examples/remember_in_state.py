"""State from one step to the next: a tool's callback writes it, the next turn's model callback reads it.

The writes are in `agent.session["state"]`, and the trace tells which callback made them.
"""

from typing import Any

from connectagent_adk import BaseTool, CallbackContext, LlmRequest, ToolContext, adk_callbacks

from connectagent import Agent
from connectagent.testing import ScriptedLLM, call


def keep_number(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: dict[str, Any]) -> None:
    if number := tool_response.get("order"):
        tool_context.state["last_order"] = number


def tell_order(callback_context: CallbackContext, llm_request: LlmRequest) -> None:
    if order := callback_context.state.get("last_order"):
        llm_request.append_instructions([f"The user's last order is {order}."])


def place_order(item: str) -> dict[str, str]:
    """Order something."""
    return {"order": "A-17", "item": item}


def main() -> None:
    llm = ScriptedLLM([call("place_order", item="tea")], "Ordered.", "It is A-17.")
    plugin = adk_callbacks(after_tool_callback=keep_number, before_model_callback=tell_order)
    agent = Agent("shop", [place_order], "You sell tea.", llm=llm, plugins=[plugin], log=False, quiet=True)
    agent.input("Tea, please")
    print(agent.input("What was my order?"))
    print(repr(llm.requests[2].messages[0]["content"]))
    for entry in agent.session["trace"]:
        if entry["type"] == "state_delta":
            print(entry["by"]["handler"], entry["delta"])


if __name__ == "__main__":
    main()
