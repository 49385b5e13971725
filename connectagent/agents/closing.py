"""Closing agents: `close()`, and the agents that nobody closes."""

from __future__ import annotations

import atexit
import contextlib
import threading
import warnings
import weakref
from functools import partial
from typing import Any, Self

from connectagent import frame
from connectagent.agents.handler_api import HandlerAPI
from connectagent.agents.resources import close_process
from connectagent.errors import PluginWarning, ResourceError

_HOOK = "on_agent_closed"
_open: weakref.WeakSet[Any] = weakref.WeakSet()  # agents with handlers of on_agent_closed
dropped: list[Any] = []  # agents without references
_lock = threading.Lock()


class Closable(HandlerAPI):
    """An agent that can be closed."""

    _watched = False  # whether it has handlers of on_agent_closed

    def close(self) -> None:
        """Close the agent and the agents below it: `on_agent_closed` fires once for each.

        A closed agent takes no further turn. `with Agent(...) as agent:` closes it at the end of the block. An agent
        that nobody closes is closed at the end of the process, or, once it is garbage,
        when another agent is made or takes a turn.

        Raises:
            RuntimeError: a turn is running.
            Exception: the first error of a handler, after all handlers have run; the other errors are its notes.
        """
        if not self.closed:
            self.refuse_inside("close()")
            _close(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def keep_open(self) -> None:
        """Keep the agent until it is closed: it has something to tear down then."""
        if not self._watched:
            watch(self, needed=True)

    def closes_at_exit(self) -> None:
        """Tear down what belongs to the process when it ends, after the agents were closed."""
        with _lock:
            if not _open:
                atexit.unregister(_close_all)
                atexit.register(_close_all)

    def __del__(self) -> None:
        if self._watched and not self.closed:  # not closed here: garbage is collected while code holds locks
            dropped.append(self)


def watch(agent: Any, needed: bool = False) -> None:
    """Close an agent at the end of the process, if it is still open.

    Args:
        agent: the agent.
        needed: whether there is something to close, besides handlers of `on_agent_closed`.
    """
    close_dropped()
    if not needed and not agent.hooks.handlers(_HOOK):
        return
    agent._watched = True
    agent.closes_at_exit()
    with _lock:
        _open.add(agent)


def close_dropped() -> None:
    """Close the agents without references, unless a turn runs here; errors of their handlers become warnings."""
    while dropped and frame.current() is None:
        with contextlib.suppress(IndexError):  # another thread took it
            _close_quietly(dropped.pop())


def _close(agent: Any) -> None:
    errors: list[Exception] = []
    for child in agent.children:
        _collect(errors, child.close)
    agent.closed = True
    _open.discard(agent)
    listed = agent.hooks.handlers(_HOOK)
    for one in listed:
        others = [other.by for other in listed if other is not one]
        _collect(errors, partial(agent.hooks.observe, _HOOK, others, agent=agent))
    errors += agent.resources.pool.close()
    agent.leave_log()
    if errors:
        for error in errors[1:]:
            what = "and a" if isinstance(error, ResourceError) else f"another handler of {_HOOK} raised"
            errors[0].add_note(f"{what} {type(error).__name__}: {error}")
        raise errors[0]


def _collect(errors: list[Exception], job: Any) -> None:
    try:
        job()
    except Exception as error:
        errors.append(error)


def _close_quietly(agent: Any) -> None:
    try:
        agent.close()
    except Exception as error:
        notes = "; ".join(getattr(error, "__notes__", ()))
        warnings.warn(f"agent {agent.name!r}: {type(error).__name__}: {error} ({notes})", PluginWarning, stacklevel=2)


def _close_all() -> None:
    close_dropped()
    for agent in list(_open):
        _close_quietly(agent)
    for error in close_process():
        warnings.warn(str(error), PluginWarning, stacklevel=2)
