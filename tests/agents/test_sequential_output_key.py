"""The `output_key` of a step that hands over inside a workflow."""

from __future__ import annotations

import pytest

from connectagent import Agent, Loop, Sequential
from connectagent.testing import ScriptedLLM


@pytest.mark.parametrize("workflow", [Sequential, Loop])
def test_a_step_that_hands_over_keeps_its_output_key(workflow: object) -> None:
    inner = Agent("inner", llm=ScriptedLLM("from inner"), log=False, quiet=True)
    hands_over = ScriptedLLM([("transfer_to_agent", {"agent_name": "inner"})])
    step = Agent("step", sub_agents=[inner], llm=hands_over, output_key="k", log=False, quiet=True)
    reads = Agent("reads", system_prompt="Read {k}.", llm=ScriptedLLM("Read."), log=False, quiet=True)
    options = {"max_rounds": 1} if workflow is Loop else {}
    agent = workflow("all", [step, reads], log=False, quiet=True, **options)  # type: ignore[operator]
    assert agent.input("Go") == "Read."
    assert agent.session["state"] == {"k": "from inner"}
