"""What an agent takes from the world around it; replay and tests of plugins put their own in its place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from connectagent.data import LLM


def _go(agent: Any, what: str, action: Callable[[], Any]) -> Any:
    return action()


@dataclass
class Runtime:
    """Where an agent's models, its waiting and its turns come from.

    Attributes:
        create_model: makes the model of a name; None: as the agent's key and plugins say.
        asked_model: answers handlers and tools that ask a model themselves, whichever it is.
        sleep: waits, in seconds, before a call is made again.
        run: runs `action`, which is the agent's `what`: `input`, `execute_tool` or `resume`.
    """

    create_model: Callable[[str], LLM] | None = None
    asked_model: Callable[[str], LLM] | None = None
    sleep: Callable[[float], None] = time.sleep
    run: Callable[[Any, str, Callable[[], Any]], Any] = _go


_default = [Runtime()]


def default() -> Runtime:
    """The runtime that new agents get."""
    return _default[-1]


@contextmanager
def for_new_agents(runtime: Runtime) -> Iterator[None]:
    """Meanwhile agents are made with this runtime."""
    _default.append(runtime)
    try:
        yield
    finally:
        _default.remove(runtime)
