"""A handler that ends the turn before a model call keeps it from being made, also in rounds of parallel tools."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from connectagent import Agent, around_llm
from connectagent.testing import ScriptedLLM, call


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_model_that_a_tool_asks_is_not_asked_after_the_turn_has_ended(parallel: int) -> None:
    @around_llm
    def end(agent: Agent) -> Generator[None, Any, None]:
        if agent.llm.requests:  # type: ignore[attr-defined]
            agent.end_turn("No more.", outcome="enough")
        yield

    def judge(text: str, agent: Agent) -> str:
        """Ask a model."""
        return str(agent.ask(f"Is {text} good?"))

    llm = ScriptedLLM([call("judge", text=text) for text in "abc"], *["never"] * 3)
    agent = Agent("helper", [judge], llm=llm, plugins=[end], log=False, quiet=True, parallel_tools=parallel)
    assert agent.input("Go") == "No more."
    assert (agent.session["outcome"], len(llm.requests)) == ("enough", 1)
