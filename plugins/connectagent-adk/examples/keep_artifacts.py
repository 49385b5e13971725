"""Files beside the conversation: one callback saves an artifact, another loads it; both are async."""

from typing import Any

from connectagent_adk import BaseTool, CallbackContext, InMemoryArtifactService, ToolContext, adk_callbacks, types

from connectagent import Agent
from connectagent.testing import ScriptedLLM, call


async def save_report(
    tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: dict[str, Any]
) -> dict[str, Any] | None:
    data = str(tool_response["result"]).encode()
    version = await tool_context.save_artifact("report.txt", types.Part.from_bytes(data=data, mime_type="text/plain"))
    return {"saved": "report.txt", "version": version}


async def add_size(callback_context: CallbackContext) -> types.Content | None:
    report = await callback_context.load_artifact("report.txt")
    if report is None:
        return None
    return types.Content(parts=[types.Part(text=f"The report has {len(report.inline_data.data)} bytes.")])


def write_report(topic: str) -> str:
    """Write a report."""
    return f"All about {topic}."


def main() -> None:
    llm = ScriptedLLM([call("write_report", topic="tea")], "Done.")
    plugin = adk_callbacks(
        after_tool_callback=save_report, after_agent_callback=add_size, artifact_service=InMemoryArtifactService()
    )
    agent = Agent("writer", [write_report], llm=llm, plugins=[plugin], log=False, quiet=True)
    print(agent.input("A report on tea"))
    print(llm.requests[1].messages[-1]["content"])


if __name__ == "__main__":
    main()
