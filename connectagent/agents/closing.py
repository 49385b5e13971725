"""Closing agents: `close()`, and the agents that nobody closes."""

from __future__ import annotations

import atexit
import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Protocol, Self

from connectagent import frame
from connectagent.agents.resources import Resources, close_process
from connectagent.agents.tree import TreeAgent, TreeNode
from connectagent.data import AgentBase
from connectagent.errors import PluginWarning, ResourceError

_HOOK = "on_agent_closed"


class ClosableAgent(TreeAgent, Protocol):
    """An agent as it is closed.

    Attributes:
        closed: whether it is closed.
        watched: whether it has something to tear down, so that somebody must close it.
        resources: what it has made.
    """

    face: AgentBase
    closed: bool
    watched: bool
    resources: Resources

    @property
    def tree(self) -> TreeNode[Self]: ...
    def refuse_inside(self, what: str) -> None:
        """Refuse what may only be called between turns."""

    def leave_log(self) -> None:
        """Leave the session's log."""


_open: weakref.WeakSet[ClosableAgent] = weakref.WeakSet()  # agents with handlers of on_agent_closed
dropped: list[ClosableAgent] = []  # agents without references
_lock = threading.Lock()


def close(agent: ClosableAgent) -> None:
    """Close an agent and the agents below it: `on_agent_closed` fires once for each.

    Raises:
        RuntimeError: a turn is running.
        Exception: the first error of a handler, after all handlers have run; the other errors are its notes.
    """
    if agent.closed:
        return
    agent.refuse_inside("close()")
    errors: list[Exception] = []
    for child in agent.tree.children:
        _collect(errors, partial(close, child))
    agent.closed = True
    _open.discard(agent)
    listed = agent.hooks.handlers(_HOOK)
    for one in listed:
        others = [other.by for other in listed if other is not one]
        _collect(errors, partial(agent.hooks.observe, _HOOK, others, agent=agent.face))
    errors += agent.resources.pool.close()
    agent.leave_log()
    if errors:
        for error in errors[1:]:
            what = "and a" if isinstance(error, ResourceError) else f"another handler of {_HOOK} raised"
            errors[0].add_note(f"{what} {type(error).__name__}: {error}")
        raise errors[0]


def _collect(errors: list[Exception], job: Callable[[], object]) -> None:
    try:
        job()
    except Exception as error:
        errors.append(error)


# -- agents that nobody closes ---------------------------------------------------------------------


def watch(agent: ClosableAgent) -> None:
    """Close an agent at the end of the process, if it is still open and has handlers of `on_agent_closed`."""
    close_dropped()
    if agent.hooks.handlers(_HOOK):
        keep_open(agent)


def keep_open(agent: ClosableAgent) -> None:
    """Keep an agent until it is closed: it has something to tear down then."""
    if agent.watched:
        return
    agent.watched = True
    close_at_exit()
    with _lock:
        _open.add(agent)


def close_at_exit() -> None:
    """Close what is open at the end of the process: first the agents, then what belongs to the process."""
    with _lock:
        if not _open:
            atexit.unregister(_close_all)
            atexit.register(_close_all)


def note_dropped(agent: ClosableAgent) -> None:
    """Note that nobody holds an agent any more. It is closed later: garbage is collected while code holds locks."""
    if agent.watched and not agent.closed:  # it is no longer among the open ones: weak references go first
        dropped.append(agent)


def close_dropped() -> None:
    """Close the agents without references, unless a turn runs here; errors of their handlers become warnings."""
    while dropped and frame.current() is None:
        with contextlib.suppress(IndexError):  # another thread took it
            _close_quietly(dropped.pop())


def _close_quietly(agent: ClosableAgent) -> None:
    try:
        close(agent)
    except Exception as error:
        notes = "; ".join(getattr(error, "__notes__", ()))
        warnings.warn(f"agent {agent.name!r}: {type(error).__name__}: {error} ({notes})", PluginWarning, stacklevel=2)


def _close_all() -> None:
    close_dropped()
    for agent in list(_open):
        _close_quietly(agent)
    for error in close_process():
        warnings.warn(str(error), PluginWarning, stacklevel=2)
