"""Calls of hooks that plugins define: in a turn an operation of it, else a plain call of the handlers."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from connectagent.frame import Frame
from connectagent.hooks.executor import FiredHook
from connectagent.loop.beside import body_in
from connectagent.loop.execute import asking_in
from connectagent.loop.hook_run import HookRun
from connectagent.loop.remote import Remote
from connectagent.loop.turn import Turn
from connectagent.loop.turn_agent import TurnAgent


def fire_hook(agent: TurnAgent[Turn], hook: str, operation: Callable[[], Any] | None, given: dict[str, Any]) -> Any:
    """Call an agent's handlers of a hook that a plugin defined; the result by the hook's kind.

    Raises:
        Exception: what a handler or the operation raised.
    """
    agent.hooks.know(hook)
    call = FiredHook(given)
    call.operation = operation
    if agent.turn is None:
        return _result(HookRun(hook, "", call).call(agent.hooks, agent))
    turn = agent.turn
    asked = asking_in(turn)
    body = body_in(asked)
    if body is not None:
        return Remote(body, copy_context()).call(_in_turn, turn, asked, hook, call)
    return _in_turn(turn, asked, hook, call)


def _in_turn(turn: Turn, asked: Frame, hook: str, call: FiredHook) -> Any:
    with turn.alone(asked):
        id = turn.key(asked, "hook", hook, [value for name, value in call.items() if name != "agent"])
        run = HookRun(hook, id.removeprefix(f"{turn.id}/"), call)
        run.asked = True
        return _result(run.run(turn))


def _result(run: HookRun) -> Any:
    return run.given[run.chained] if run.chained else run.value
