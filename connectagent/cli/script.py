"""The former home of `load` and `agent_of`, which are in `connectagent.commands` now."""

from __future__ import annotations

import warnings
from typing import Any

_MOVED = ("agent_of", "load")


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from connectagent import commands
    from connectagent.errors import ConnectAgentDeprecationWarning

    text = f"connectagent.cli.script.{name} is connectagent.commands.{name} now"
    warnings.warn(text, ConnectAgentDeprecationWarning, stacklevel=2)
    return getattr(commands, name)
