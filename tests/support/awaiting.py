"""How tests take a turn: plainly, or awaited by an event loop."""

from __future__ import annotations

import asyncio
from typing import Any

from connectagent import Agent


def take(agent: Agent, prompt: Any, awaited: bool = False, **options: Any) -> Any:
    """The result of a turn."""
    return asyncio.run(agent.ainput(prompt, **options)) if awaited else agent.input(prompt, **options)


def go_on(agent: Agent, record: Any = None, awaited: bool = False, **decided: Any) -> Any:
    """The result of a turn that is resumed."""
    return asyncio.run(agent.aresume(record, **decided)) if awaited else agent.resume(record, **decided)
