"""Add to a tool's result: after_tool_callback is given it as a dict, and returns the one that the model reads."""

from copy import deepcopy
from typing import Any

from connectagent_adk import BaseTool, ToolContext, adk_callbacks

from connectagent import Agent
from connectagent.testing import ScriptedLLM, call


def add_unit(
    tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: dict[str, Any]
) -> dict[str, Any] | None:
    if tool.name != "temperature":
        return None
    response = deepcopy(tool_response)
    response["unit"] = "C"
    response["city"] = args["city"]
    return response


def temperature(city: str) -> int:
    """The temperature in a city."""
    return 21


def main() -> None:
    llm = ScriptedLLM([call("temperature", city="Oslo")], "Mild.")
    plugin = adk_callbacks(after_tool_callback=add_unit)
    agent = Agent("weather", [temperature], llm=llm, plugins=[plugin], log=False, quiet=True)
    print(agent.input("How warm is Oslo?"))
    print(llm.requests[1].messages[-1]["content"])


if __name__ == "__main__":
    main()
