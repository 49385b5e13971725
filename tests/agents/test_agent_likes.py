"""Objects that look like agents and are none."""

from __future__ import annotations

import pytest
from scripted_agents import contents

from connectagent import Agent, ConfigError
from connectagent.testing import ScriptedLLM


class Search:
    """A stranger's class that has what agents have."""

    name = "search"

    def input(self, prompt: str) -> str:
        """Search."""
        return f"found {prompt}"


def test_an_object_that_looks_like_an_agent_is_none() -> None:
    llm = ScriptedLLM(("input", {"prompt": "x"}), "Done.")
    agent = Agent("a", [Search()], llm=llm, log=False, quiet=True)
    assert agent.tools.names() == ["input"] and agent.children == []
    agent.input("Hi")
    assert contents(agent)[2] == "found x"
    with pytest.raises(ConfigError, match="takes agents, not Search"):
        Agent("a", sub_agents=[Search()], llm=ScriptedLLM(), log=False, quiet=True)
    with pytest.raises(ConfigError, match="is no policy"):
        Agent("a", trust=Search(), llm=ScriptedLLM(), log=False, quiet=True)
