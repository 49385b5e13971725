"""`Agent` is a face: few names, all documented, over what the agent is made of."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import connectagent
from connectagent import Agent, after_user_input, around_tool, on_agent_ready, on_trace
from connectagent.agents.core import AgentCore
from connectagent.testing import ScriptedLLM, call

PAGE = Path(connectagent.__file__).parents[1] / "docs" / "agent.md"
MOST_NAMES = 60
LONGEST_CHAIN = 2


def names_of(agent: Agent) -> set[str]:
    return {name for name in dir(agent) if not name.startswith("_")}


def own_bases(kind: type) -> int:
    """How many classes of the package stand above each other in the bases of a class, with itself."""
    own = kind.__module__.startswith("connectagent.")
    return own + max((own_bases(base) for base in kind.__bases__), default=0)


def test_an_agent_shows_few_names_and_each_is_in_its_page() -> None:
    agent = Agent("a", llm=ScriptedLLM(), log=False, quiet=True)
    named = set(re.findall(r"`agent\.([a-z_]+)", PAGE.read_text()))
    assert len(names_of(agent)) <= MOST_NAMES
    assert names_of(agent) - named == set()
    assert set(vars(agent)) == {"_core", "_made_with"}


def test_an_agent_has_no_long_chain_of_own_base_classes() -> None:
    assert own_bases(Agent) <= LONGEST_CHAIN and own_bases(AgentCore) == 1


def test_each_name_of_an_agent_says_what_it_is() -> None:
    silent = [name for name in names_of(Agent("a", llm=ScriptedLLM(), log=False, quiet=True)) if not _doc(name)]
    assert silent == []


def _doc(name: str) -> str | None:
    return inspect.getdoc(inspect.getattr_static(Agent, name))


def test_the_signature_of_the_class_is_that_of_its_arguments() -> None:
    assert list(inspect.signature(Agent).parameters)[:4] == ["name", "tools", "system_prompt", "model"]


def test_handlers_and_tools_get_the_agent_that_the_program_has() -> None:
    seen: list[Any] = []

    def look(agent: Any) -> str:
        """Look at the agent."""
        seen.append(agent)
        return "seen"

    @on_agent_ready
    @after_user_input
    @on_trace
    def note(agent: Any) -> None:
        seen.append(agent)

    @around_tool
    def around(agent: Any) -> Any:
        seen.append(agent)
        yield

    agent = Agent("a", [look], llm=ScriptedLLM(call("look"), "Done."), on_events=[note, around], log=False, quiet=True)
    assert agent.input("Hi") == "Done."
    assert len(seen) > 5 and all(one is agent for one in seen)


def test_a_handler_finds_the_agents_in_whose_turns_it_runs() -> None:
    found: list[list[str]] = []

    @after_user_input
    def note(agent: Agent) -> None:
        found.append([one.name for one in agent.callers])

    inner = Agent("inner", llm=ScriptedLLM("Yes."), log=False, quiet=True)
    llm = ScriptedLLM(call("inner", prompt="Well?"), "Done.")
    outer = Agent("outer", [inner], llm=llm, plugins=[note], log=False, quiet=True)
    outer.input("Hi")
    assert found == [[], ["outer"]] and outer.callers == inner.callers == []
    assert (inner.parent, outer.children, outer.below, inner.root) == (outer, [inner], [inner], outer)
    assert outer.recording is False and outer.spent.calls == 3 and not outer.in_turn and outer.ended is None
