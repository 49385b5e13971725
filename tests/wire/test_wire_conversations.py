"""Our own conversations of `fixtures` through `Agent`, over real HTTP: what a clone can test by itself."""

from __future__ import annotations

from typing import Any

import pytest
from wire_server import FIXTURES, WireServer, answers_of, conversation

from connectagent import Agent, Tool, on_text


@pytest.mark.parametrize("name", sorted(path.stem for path in FIXTURES.glob("*.json")))
def test_an_agent_drives_a_conversation_to_its_end(name: str) -> None:
    found = conversation(name)
    told: list[str] = []

    @on_text
    def listen(text: str) -> None:
        told.append(text)

    def result(agent: Any, **_: Any) -> Any:
        return found["results"][agent.current_session["pending_tool"]["id"]]

    with WireServer(*answers_of(found)) as server:
        agent = Agent(
            "own",
            [Tool(tool["name"], tool["description"], tool["parameters"], result) for tool in found["tools"]],
            model=f"{found['provider']}/{found['model']}",
            api_key="k",
            base_url=server.url if found["wire"] == "anthropic" else server.openai_url,
            options=found.get("options"),
            stream=found["stream"],
            quiet=True,
            log=False,
            on_events=[listen],
        )
        text = agent.input(found["prompt"])
        assert len(server.requests) == len(found["answers"])
    trace, expect = agent.current_session["trace"], found["expect"]
    calls = [entry for entry in trace if entry["type"] == "tool_execution"]
    usages = [entry["usage"] for entry in trace if entry["type"] == "llm_call"]
    assert [[entry["tool_name"], entry["arguments"]] for entry in calls] == expect["calls"]
    assert text == expect["text"]
    assert [[usage.input_tokens, usage.output_tokens] for usage in usages] == expect["usage"]
    assert not found["stream"] or "".join(told).endswith(expect["text"])
