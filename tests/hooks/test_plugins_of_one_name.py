"""Two plugin objects with one name are refused; one object that is named for all agents and for one is not."""

from __future__ import annotations

import pytest

from connectagent import Agent, after_llm, use
from connectagent.errors import PluginError
from connectagent.testing import ScriptedLLM


class Quota:
    name = "quota"

    @after_llm
    def count(self, agent: Agent) -> None:
        """Count."""


class Other(Quota):
    name = "Quota"


@pytest.mark.parametrize("second", [Quota, Other])
def test_two_objects_of_one_name_are_an_error_that_shows_both(second: type[Quota]) -> None:
    with pytest.raises(PluginError, match=r"two plugins of this agent are named 'quota'|named 'Quota'"):
        Agent("a", llm=ScriptedLLM("x"), plugins=[Quota(), second()], quiet=True, log=False)


def test_one_object_for_all_agents_and_for_this_one_is_none() -> None:
    quota = Quota()
    with use(quota):
        Agent("a", llm=ScriptedLLM("x"), plugins=[quota], quiet=True, log=False)
