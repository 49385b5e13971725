"""Who changes a session between the steps of a turn, where no operation of the loop repeats it when it is resumed."""

from __future__ import annotations

import re
from typing import Any

from connectagent.data import TraceEntry

OWN: dict[str, Any] = {"plugin": "connectagent"}  # by: what the loop itself changes
PROGRAM: dict[str, Any] = {"plugin": "(program)", "file": "?", "line": 0}  # by: the code that uses the agent
OUTSIDE: dict[str, Any] = {"plugin": "(outside)", "file": "?", "line": 0}  # by: outside of any handler and tool
_NOBODY = (PROGRAM["plugin"], OUTSIDE["plugin"])
_TOOL = re.compile(r"/\d+/c\d+/tool\d+$")
_HOOKS = ("on_trace", "on_text")  # what their handlers are told of is not told again


def by_agent(line: TraceEntry) -> dict[str, Any]:
    """Who made the changes of an inner turn: the agent, as the closing entry of the turn names it."""
    return {**OWN, "agent": line.get("agent"), "branch": line.get("branch")}


def is_by_observer(line: TraceEntry) -> bool:
    """Whether a change was made by the program, a handler that is told what happens, or a thread that was left."""
    by = line.get("by")  # in the record of a stranger, of any form
    return isinstance(by, dict) and (by.get("plugin") in _NOBODY or by.get("hook") in _HOOKS)


def around_tool_at(place: str) -> str:
    """The turn of a tool at a place: what observers change while it works is no change of the tool. Else the place."""
    return _TOOL.sub("", place)
