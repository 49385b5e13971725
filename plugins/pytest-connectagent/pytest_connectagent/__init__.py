"""Tests of agents and plugins in pytest: the plugin tester, and fixtures that need no conftest.py.

    def test_it_keeps_the_rules_on_every_path(agenttester):
        agenttester.check(my_plugin, changes={"messages"})

`from pytest_connectagent import AgentTester` serves outside of pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_connectagent.faults import CHANGES, RULES, Fault
    from pytest_connectagent.tester import AgentTester, Checked, PluginFaults

__all__ = ["CHANGES", "RULES", "AgentTester", "Checked", "Fault", "PluginFaults"]


def __getattr__(name: str) -> Any:
    # Importing the tester costs every run of pytest some time, and pytest rewrites no module that is imported already.
    if name in ("CHANGES", "RULES", "Fault"):
        from pytest_connectagent import faults

        return getattr(faults, name)
    if name in __all__:
        from pytest_connectagent import tester

        return getattr(tester, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
