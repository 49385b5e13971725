"""Agents that are made without some of their handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from connectagent.agents.agent import Agent
from connectagent.agents.runtime import default, for_new_agents
from connectagent.hooks.entry_points import check_required
from connectagent.hooks.handler import Handler


@contextmanager
def with_handlers(takes: Callable[[Handler], bool]) -> Iterator[None]:
    """Meanwhile each agent that is made gets only some of its handlers.

    Args:
        takes: whether an agent gets a handler; those that are `builtin` are asked about too.
    """
    with for_new_agents(replace(default(), takes=takes)):
        yield


def made_with(make: Callable[[], Agent], takes: Callable[[Handler], bool]) -> Agent:
    """An agent with only some of its handlers, and those below it too.

    Args:
        make: makes the agent.
        takes: whether an agent gets a handler; those that are `builtin` are asked about too.

    Raises:
        PluginError: a plugin that is left needs one that is not.
        Exception: `make` raised it.
    """
    with with_handlers(takes):
        agent = make()
    for one in (agent, *agent.below):
        check_required(loaded_handlers(one))
    return agent


def loaded_handlers(agent: Agent) -> list[Handler]:
    """The handlers of an agent's plugins, but for those of connectagent itself."""
    return [handler for handler in agent.hooks.loaded if not handler.builtin]
