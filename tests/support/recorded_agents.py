"""Agents that drive a recorded conversation again."""

from __future__ import annotations

from typing import Any

from wire_driver import Recording

from connectagent import Agent, Retry, Tool, on_error, on_text


def agent_for(recording: Recording, base_url: str, mode: str, told: list[str], **more: Any) -> Agent:
    """An agent whose tools answer what the recording client's tools answered."""

    def recorded(agent: Any, **_: Any) -> Any:
        return recording.result(agent.current_session["pending_tool"]["id"])

    @on_text
    def listen(text: str) -> None:
        told.append(text)

    @on_error
    def tell_the_model(agent: Any, error: Exception) -> Retry | None:
        if getattr(error, "kind", "") != "tool_use_failed":
            return None
        agent.current_session["messages"].append({"role": "user", "content": f"Call the tool again. {error}"})
        return Retry()

    tools = []
    for schema in recording.tools:
        function = schema["function"]
        parameters = function["parameters"] or {"type": "object", "properties": {}}
        tools.append(Tool(function["name"], function["description"] or "", parameters, recorded))
    return Agent(
        "recorded",
        tools,
        recording.system,
        model=f"{recording.provider}/{recording.model}",
        api_key="test-key-1",
        base_url=base_url,
        options=recording.options,
        stream=mode == "stream",
        quiet=True,
        on_events=[listen, tell_the_model],
        **{"log": False, **more},
    )
