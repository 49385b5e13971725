"""The handlers of each hook of an agent, their order and its reasons."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from connectagent.errors import ConnectAgentError
from connectagent.hooks.discovery import handlers_of, process_wide, shadow
from connectagent.hooks.handler import Handler
from connectagent.hooks.specs import CONTRACTS

if TYPE_CHECKING:
    from connectagent.agents.agent import Agent


class Step(NamedTuple):
    """One handler in the order of its hook.

    Args:
        handler: the handler.
        why: where it is named, and what moved it in the order.
    """

    handler: Handler
    why: str


def plan_of(agent: Agent) -> dict[str, list[Step]]:
    """The handlers of an agent by hook, in the order in which they run; hooks without handlers are left out."""
    places = _places()
    return {
        hook: [Step(handler, _why(handler, places)) for handler in agent.hooks.handlers(hook)]
        for hook in CONTRACTS
        if agent.hooks.handlers(hook)
    }


def text_of(plan: dict[str, list[Step]]) -> str:
    """A plan as text."""
    lines = []
    for hook, steps in plan.items():
        around = CONTRACTS[hook].kind == "around"
        lines.append(f"{hook}{' (the first is the outermost)' if around else ''}")
        lines += [f"  {number}. {handler_text(step.handler)}: {step.why}" for number, step in enumerate(steps, 1)]
    return "\n".join(lines)


def handler_text(handler: Handler) -> str:
    """A handler with its plugin, version, file and line."""
    by = handler.by
    version = f" {handler.version}" if handler.version else ""
    return f"{by['handler']} of {handler.plugin!r}{version} ({by['file']}:{by['line']})"


def _places() -> dict[Any, str]:
    """The place that names each process-wide handler, by the handler's code."""
    places: dict[Any, str] = {}
    for named, place in process_wide():
        item = named.plugin if isinstance(named, shadow) else named
        if isinstance(item, str) and (item.startswith("no:") or item.endswith(".py")):
            if item.endswith(".py"):  # loading it again would run it again
                places[os.path.abspath(item)] = place
            continue
        with contextlib.suppress(ConnectAgentError):
            places |= {_code(handler): place for handler in handlers_of(item)}
    return places


def _code(handler: Handler) -> tuple[str, str, int, str]:
    return handler.hook, handler.by["file"], handler.by["line"], handler.plugin


def _why(handler: Handler, places: dict[Any, str]) -> str:
    if handler.builtin:
        came = "built in"
    else:
        place = places.get(_code(handler)) or places.get(os.path.abspath(handler.by["file"]))
        came = f"named by {place}" if place else "given to the agent"
    came += ", shadowed: nothing that it does takes effect" if handler.shadowed else ""
    moved = [name for name in ("tryfirst", "trylast") if handler.opts.get(name)]
    return ", ".join([came, *moved] if moved else [came, "in the order of the list"])
