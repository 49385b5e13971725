"""Which plugin makes a recorded session play otherwise than it was: for `pytest --bisect`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from connectagent.agents.agent import Agent
from connectagent.agents.runtime import default, for_new_agents
from connectagent.errors import ConnectAgentError
from connectagent.hooks.handler import Handler
from connectagent.replay.network import no_network
from connectagent.replay.replaying import replay
from connectagent.replay.sandbox import sandboxed
from connectagent.testing.ddmin import smallest


def blamed(record: Path, make: Callable[[], Agent]) -> str:
    """Say without which plugins a record plays as it was.

    Args:
        record: the record.
        make: makes the agent, a fresh one each time.
    """

    def agent(off: Iterable[str]) -> Agent:
        gone = set(off)

        def takes(handler: Handler) -> bool:
            return handler.builtin or handler.plugin not in gone

        with for_new_agents(replace(default(), takes=takes)):
            return make()

    def is_same(off: list[str]) -> bool:
        try:
            return replay(record, agent(off)).same
        except ConnectAgentError:
            return False

    with sandboxed(), no_network():
        whole = agent(())
        handlers = [one for part in (whole, *whole.below) for one in part.hooks.loaded if not one.builtin]
        units = list(dict.fromkeys(handler.plugin for handler in handlers))
        if is_same([]):
            return f"{record.name} plays as it was: look at the test itself"
        if not units or not is_same(units):
            return f"{record.name} plays otherwise without any plugin too: look at the prompt, the tools and the agent"
        off = smallest(units, is_same)
    return f"{record.name} plays as it was without {' and '.join(off)}"
