"""The agent whose records are stored here, one of each format that was released."""

from __future__ import annotations

from connectagent import Agent
from connectagent.testing import ScriptedLLM


def search(query: str) -> str:
    """Search the docs."""
    return f"Three pages about {query}."


def make(*script: object) -> Agent:
    """The agent; without a script it answers as in the third turn."""
    llm = ScriptedLLM(*(script or ("The third answer.",)))
    return Agent("shop", [search], "You are a shop.", llm=llm, quiet=True)
