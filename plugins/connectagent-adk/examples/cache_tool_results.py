"""A cache: before_tool_callback answers what is known, after_tool_callback remembers what is not."""

from typing import Any

from connectagent_adk import BaseTool, ToolContext, adk_callbacks

from connectagent import Agent
from connectagent.testing import ScriptedLLM, call

asked: list[str] = []


def look_up(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any] | None:
    return tool_context.state.get(f"cache:{tool.name}:{sorted(args.items())}")


def remember(
    tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: dict[str, Any]
) -> dict[str, Any] | None:
    tool_context.state[f"cache:{tool.name}:{sorted(args.items())}"] = tool_response
    return None


def stock_price(symbol: str) -> dict[str, Any]:
    """The price of a share."""
    asked.append(symbol)
    return {"symbol": symbol, "price": 12.5}


def main() -> None:
    llm = ScriptedLLM([call("stock_price", symbol="TEA")], "12.5", [call("stock_price", symbol="TEA")], "Still 12.5")
    plugin = adk_callbacks(before_tool_callback=look_up, after_tool_callback=remember)
    agent = Agent("broker", [stock_price], llm=llm, plugins=[plugin], log=False, quiet=True)
    print(agent.input("TEA?"), agent.input("And now?"))
    print("asked", len(asked), "time")


if __name__ == "__main__":
    main()
