"""What pytest loads where this distribution is installed: `agenttester`, and the fixtures of `connectagent.testing`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_connectagent.tester import AgentTester

pytest_plugins = ["connectagent.testing"]


@pytest.fixture
def agenttester() -> AgentTester:
    """Drives a plugin along every path of a turn: `agenttester.check(plugin, changes={...})`."""
    from pytest_connectagent.tester import AgentTester

    return AgentTester()
