"""What an agent takes from its environment; replay and the plugin tester replace it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from connectagent.data import LLM
from connectagent.hooks.handler import Handler
from connectagent.tools.awaiting import CALLER


def _sleep(seconds: float) -> None:
    caller = CALLER.get()
    time.sleep(seconds) if caller is None or caller.is_here else caller.sleep(seconds)


@dataclass
class Runtime:
    """How an agent makes models, sleeps and runs its turns.

    Attributes:
        create_model: makes a model from its name; None: with the agent's key and plugins.
        asked_model: makes the model for model calls of handlers and tools.
        stand_in: makes what is asked in the place of a model that a handler gives; None: that model itself.
        sleep: sleeps for seconds, before a call is made again.
        run: runs `action` for the agent's method `what`: `input`, `execute_tool` or `resume`; None: as `start` of
            `links.py` does.
        replays: whether the agent plays a record.
        on_inner: of a root agent: is called with each agent that takes a turn inside its own, and with its branch.
        takes: whether a new agent takes a handler.
    """

    create_model: Callable[[str], LLM] | None = None
    asked_model: Callable[[str], LLM] | None = None
    stand_in: Callable[[LLM], LLM] | None = None
    sleep: Callable[[float], None] = _sleep
    run: Callable[[Any, str, Callable[[], Any]], Any] | None = None
    replays: bool = False
    on_inner: Callable[[Any, str], None] = lambda agent, branch: None
    takes: Callable[[Handler], bool] = lambda handler: True


_default = [Runtime()]


def default() -> Runtime:
    """The runtime of new agents."""
    return _default[-1]


@contextmanager
def for_new_agents(runtime: Runtime) -> Iterator[None]:
    """Give this runtime to the agents that are made inside the `with` block."""
    _default.append(runtime)
    try:
        yield
    finally:
        _default.remove(runtime)
