"""Agents that run others: one after the other, at the same time, or repeatedly.

Each is an `Agent` whose body is a function, with the hooks, the record and the tree of every agent.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from connectagent.agents.agent import Agent
from connectagent.agents.agent_tool import core_of
from connectagent.agents.handoff import HandoffRequest, run_hops, users_message
from connectagent.errors import ConfigError
from connectagent.loop.parallel import at_once


def Sequential(name: str, agents: Iterable[Agent], **options: Any) -> Agent:
    """An agent that runs others one after the other; its result is the last one's.

    Each reads the user's message and what those before it have said. All share the state: give an agent an
    `output_key` to find its result there.

    Args:
        name: the name of the agent.
        agents: in the order in which they run; they become its `sub_agents`.
        options: other arguments of `Agent`.
    """
    return Agent(name, sub_agents=_agents(name, agents), run=_in_order, **options)


def Parallel(name: str, agents: Iterable[Agent], **options: Any) -> Agent:
    """An agent that runs others at the same time, in threads; its result has a paragraph `name: result` for each.

    Each reads the user's message only, and begins with the state as it was. Their changes to it are merged in
    the order of `agents`, key by key, also in dicts inside. Where two set one key to different values, the later
    one wins, and a `lost_update` entry of the trace has the other.

    Args:
        name: the name of the agent.
        agents: they become its `sub_agents`.
        options: other arguments of `Agent`.
    """
    return Agent(name, sub_agents=_agents(name, agents), run=_at_once, **options)


def Loop(name: str, agents: Iterable[Agent], max_rounds: int = 5, **options: Any) -> Agent:
    """An agent that runs others one after the other, repeatedly; its result is the last one's.

    It ends after `max_rounds`, or when a tool or handler of one of them calls
    `agent.end_turn(result, scope="loop")`.

    Args:
        name: the name of the agent.
        agents: in the order in which they run; they become its `sub_agents`.
        max_rounds: how often each of them runs at most.
        options: other arguments of `Agent`.

    Raises:
        ConfigError: `max_rounds` is not a whole number from 1 on.
    """
    if type(max_rounds) is not int or max_rounds < 1:
        raise ConfigError(f"max_rounds of Loop {name!r} is a whole number, at least 1, not {max_rounds!r}")
    return Agent(name, sub_agents=_agents(name, agents), run=_Rounds(max_rounds), **options)


def _agents(name: str, agents: Iterable[Agent]) -> list[Agent]:
    given = list(agents)
    if not given:
        raise ConfigError(f"{name!r} has no agents: give it a list of at least one")
    return given


# The bodies find their agents in `sub_agents`: an agent that is made again has others.


def _in_order(agent: Agent, rounds: int = 1) -> str | None:
    result: str | None = None
    core = core_of(agent)
    for step in core.tree.sub_agents * rounds:
        answer = run_hops(core.turn, HandoffRequest(step))
        if answer is None:  # the turn was ended
            return None
        result = answer.result
        # The step handed over, so its own turn has no result: what the other agent answered is the step's.
        if step.output_key is not None and answer.by is not step.by:
            core.turn.conversation.set_key(step.output_key, result, step.by)
    return result


def _at_once(agent: Agent) -> str:
    core = core_of(agent)
    prompt: Any = users_message(core.turn)["content"]
    steps = agent.sub_agents
    results = at_once(core.turn, [(core_of(one), partial(one.input, prompt)) for one in steps])
    return "\n\n".join(f"{one.name}: {result}" for one, result in zip(steps, results, strict=True))


class _Rounds:
    """The body of a `Loop`."""

    repeats = True  # where end_turn(scope="loop") ends

    def __init__(self, number: int) -> None:
        self._number = number
        self.__name__ = "run"

    def __call__(self, agent: Agent) -> str | None:
        return _in_order(agent, self._number)
