"""Skip one step on a condition: a list of callbacks, of which the first that returns something decides."""

from typing import Any

from connectagent_adk import BaseTool, ToolContext, adk_callbacks

from connectagent import Agent
from connectagent.testing import ScriptedLLM, call


def count(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> None:
    tool_context.state["temp:searches"] = tool_context.state.get("temp:searches", 0) + 1


def within_quota(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any] | None:
    if tool_context.state["temp:searches"] > 2:
        return {"error": "No more searches in this turn."}
    return None


def search(query: str) -> str:
    """Search the web."""
    return f"pages about {query}"


def main() -> None:
    llm = ScriptedLLM([call("search", query=word) for word in ("tea", "cups", "milk")], "Enough.")
    plugin = adk_callbacks(before_tool_callback=[count, within_quota])
    agent = Agent("finder", [search], llm=llm, plugins=[plugin], log=False, quiet=True)
    agent.input("Tea, cups and milk")
    for message in agent.session["messages"]:
        if message["role"] == "tool":
            print(message["content"])


if __name__ == "__main__":
    main()
