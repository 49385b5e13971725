"""Change or block a tool call: before_tool_callback edits `args` in place, or returns a dict as the result."""

from typing import Any

from connectagent_adk import BaseTool, ToolContext, adk_callbacks

from connectagent import Agent
from connectagent.testing import ScriptedLLM, call


def check(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any] | None:
    if tool.name == "book_room" and args.get("room") == "penthouse":
        return {"error": "The penthouse is not for rent."}
    if tool.name == "book_room" and args.get("nights", 1) > 7:
        args["nights"] = 7
    return None


def book_room(room: str, nights: int) -> str:
    """Book a room."""
    return f"{room}, {nights} nights"


def main() -> None:
    llm = ScriptedLLM(
        [call("book_room", room="attic", nights=30), call("book_room", room="penthouse", nights=1)], "That is all."
    )
    plugin = adk_callbacks(before_tool_callback=check)
    agent = Agent("porter", [book_room], llm=llm, plugins=[plugin], log=False, quiet=True)
    agent.input("A room")
    for entry in agent.session["trace"]:
        if entry["type"] == "tool_execution":
            print(entry["status"], entry["result"])


if __name__ == "__main__":
    main()
