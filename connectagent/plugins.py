"""What tools about plugins need: finding and loading them, their handlers, the hooks' contracts, and whose code runs.

The plugin tester in the distribution pytest-connectagent is built on these names. Agents and plugins need none of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from connectagent import frame
from connectagent.errors import did_you_mean
from connectagent.hooks.contract import Contract
from connectagent.hooks.discovery import handlers_of
from connectagent.hooks.entry_points import (
    Installed,
    find,
    installed,
    is_factory,
    load,
    missing_options,
    normalized,
    options_of,
)
from connectagent.hooks.files import module_from_path
from connectagent.hooks.foreign import ForeignMarks, register_marks
from connectagent.hooks.handler import RESOURCE, Handler, name_of, place_of
from connectagent.hooks.specs import AROUND, CONTRACTS, EVENTS
from connectagent.records.sent import canonical
from connectagent.session.journal import is_aside
from connectagent.session.messages import place_of_result
from connectagent.session.snapshot import same
from connectagent.tools.signature import plain_function

__all__ = [
    "AROUND",
    "CONTRACTS",
    "EVENTS",
    "RESOURCE",
    "Contract",
    "ForeignMarks",
    "Handler",
    "Installed",
    "Running",
    "canonical",
    "did_you_mean",
    "find",
    "handlers_of",
    "installed",
    "is_factory",
    "load",
    "missing_options",
    "module_from_path",
    "name_of",
    "normalized",
    "options_of",
    "place_of",
    "place_of_result",
    "plain_function",
    "register_marks",
    "running",
    "same",
]


class Running(NamedTuple):
    """Whose code runs in a turn.

    Attributes:
        agent: the agent of the innermost turn here.
        by: the handler or tool; None for the loop.
        asks: whether a model call of a handler or tool runs, outside of the conversation: `agent.ask()`.
    """

    agent: Any
    by: dict[str, Any] | None
    asks: bool


def running() -> Running | None:
    """Whose code runs here, in this thread or task; None outside of a turn."""
    here = frame.current()
    return None if here is None else Running(here.turn.agent.face, here.by, is_aside({"id": here.id}))
