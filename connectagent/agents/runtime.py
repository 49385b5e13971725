"""What an agent takes from its environment; replay and the plugin tester replace it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from connectagent.data import LLM
from connectagent.hooks.handler import Handler
from connectagent.tools.awaiting import CALLER


def _go(agent: Any, what: str, action: Callable[[], Any]) -> Any:
    running = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)
    if running is None or running() is None:
        return action()
    from connectagent.tools.loops import on_loop_thread  # loads asyncio

    return on_loop_thread(what, action)


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
        run: runs `action` for the agent's method `what`: `input`, `execute_tool` or `resume`.
        replays: whether the agent plays a record.
        on_inner: of a root agent: is called with each agent that takes a turn inside its own, and with its branch.
        takes: whether a new agent takes a handler.
    """

    create_model: Callable[[str], LLM] | None = None
    asked_model: Callable[[str], LLM] | None = None
    stand_in: Callable[[LLM], LLM] | None = None
    sleep: Callable[[float], None] = _sleep
    run: Callable[[Any, str, Callable[[], Any]], Any] = _go
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
