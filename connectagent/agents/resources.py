"""The resources of an agent: which there are, for how long each is kept, and what makes them."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Iterable
from typing import Any, Protocol, Self

from connectagent import frame
from connectagent.agents.tree import TreeAgent, TreeNode
from connectagent.data import AgentBase
from connectagent.errors import HandlerError, PluginError, ResourceError, did_you_mean
from connectagent.hooks.handler import RESOURCE, Handler, who
from connectagent.hooks.resource import SCOPES, Pool, described
from connectagent.loop.turn import Turn, turn_in

_process: dict[int, Pool] = {}  # by process: connections do not survive a fork
_lock = threading.Lock()
_setup = threading.local()


class ResourceOwner(TreeAgent, Protocol):
    """The agent whose plugins bring resources."""

    face: AgentBase
    turn: Turn | None

    @property
    def tree(self) -> TreeNode[Self]: ...
    @property
    def resources(self) -> Resources: ...
    def keep_open(self) -> None:
        """Keep the agent until it is closed."""

    def closes_at_exit(self) -> None:
        """Tear down what belongs to the process when it ends."""


class Resources:
    """The resources of an agent, by the parameter names under which tools and handlers take them.

    Args:
        agent: the agent, whose plugins bring them.
        handlers: the handlers that it begins with, to be checked.

    Raises:
        PluginError: two have the same name; or one takes another that does not exist, or is torn down earlier.
        HandlerError: a handler takes one that does not exist.
    """

    def __init__(self, agent: ResourceOwner, handlers: list[Handler]) -> None:
        self._agent = agent
        self.pool = Pool()  # of the scope `agent`
        table: dict[str, Handler] = {}
        for handler in handlers:
            if handler.hook == RESOURCE and table.setdefault(handler.opts["name"], handler) is not handler:
                other = table[handler.opts["name"]]
                raise PluginError(f"{described(handler)} has the name of another one: {described(other)}")
        for handler in handlers:
            for name in handler.resources:
                if name not in table:
                    taker = described(handler) if handler.hook == RESOURCE else who(handler)
                    raise HandlerError(f"{taker} takes the resource {name!r}. {_missing(agent, name, table)}")
        for handler in table.values():
            _check_uses(handler, table, [])

    def names(self) -> list[str]:
        """Their names."""
        return list(self._table())

    def give(self, names: Iterable[str], taker: str) -> dict[str, Any]:
        """Resources by name; those that are not there yet are made.

        Args:
            names: the names.
            taker: who takes them, for errors.

        Raises:
            ResourceError: one cannot be made.
        """
        table = self._table()
        return {name: self._one(name, table, taker) for name in names}

    def _table(self) -> dict[str, Handler]:
        """By name; an agent's own come before those that it inherits."""
        return {handler.opts["name"]: handler for handler in self._agent.hooks.handlers(RESOURCE)}

    def _one(self, name: str, table: dict[str, Handler], taker: str) -> Any:
        if name not in table:
            raise ResourceError(f"{taker} takes the resource {name!r}. {_missing(self._agent, name, table)}")
        handler = table[name]
        return self._pool(handler, taker).get(handler, lambda: self._made(handler, taker))

    def _pool(self, handler: Handler, taker: str) -> Pool:
        """Who keeps a resource."""
        scope, top = handler.opts["scope"], self._agent.tree.root
        if scope == "process":
            top.closes_at_exit()
            with _lock:
                return _process.setdefault(os.getpid(), Pool())
        if scope == "agent":
            pool: Pool = top.resources.pool
            if pool.over:
                raise ResourceError(f"{taker} takes {described(handler)}, and agent {top.name!r} is closed")
            top.keep_open()
            return pool
        here = frame.current()
        turn = turn_in(here) if here is not None and not here.turn.over else self._agent.turn
        if turn is None:
            raise ResourceError(
                f"{taker} takes {described(handler)}, which is kept for a turn, and there is none now; make it with "
                "scope='agent'"
            )
        with _lock:
            if turn.root.pool is None:
                turn.root.pool = Pool()
            return turn.root.pool  # type: ignore[no-any-return]

    def _made(self, handler: Handler, taker: str) -> tuple[Any, Any]:
        """Run the function of a resource, up to its yield, outside of the turn."""
        given = self.give(handler.resources, described(handler))
        given |= {"agent": self._agent.tree.root.face} if "agent" in (*handler.positional, *handler.keywords) else {}
        token, outer = frame.CURRENT.set(None), getattr(_setup, "name", None)
        _setup.name = handler.opts["name"]
        try:
            return _begun(handler.function(**given))
        except Exception as error:
            raise ResourceError(
                f"{described(handler)}, which {taker} takes, could not be made: {type(error).__name__}: {error}"
            ) from error
        finally:
            _setup.name = outer
            frame.CURRENT.reset(token)


def refuse_in_setup(what: str) -> None:
    """Refuse what belongs to a turn in the code that makes a resource: whoever takes it first makes it.

    Raises:
        RuntimeError: a resource is being made in this thread.
    """
    if (name := getattr(_setup, "name", None)) is not None:
        raise RuntimeError(f"{what} is for handlers and tools, and was called while the resource {name!r} was made")


def close_process() -> list[Exception]:
    """Tear down the resources of this process; their errors."""
    pool = _process.pop(os.getpid(), None)
    return [] if pool is None else pool.close()


def _begun(made: Any) -> tuple[Any, Any]:
    """The value that the function of a resource returned or yielded, and its generator."""
    if not inspect.isgenerator(made):
        return made, None
    try:
        return next(made), made
    except StopIteration:
        raise ResourceError("it returned before its yield") from None


def _missing(agent: ResourceOwner, name: str, table: dict[str, Handler]) -> str:
    listed = ", ".join(table) or "none"
    return (
        f"Agent {agent.name!r} has no such resource: list it, or the plugin that has it, in plugins=."
        f"{did_you_mean(name, table)} It has: {listed}"
    )


def _check_uses(handler: Handler, table: dict[str, Handler], above: list[Handler]) -> None:
    """Check what a resource takes: it must be kept as long, and none may need itself."""
    if handler in above:
        chain = " > ".join(one.opts["name"] for one in [*above[above.index(handler) :], handler])
        raise PluginError(f"{described(handler)} needs itself: {chain}")
    for name in handler.resources:
        used = table[name]
        if SCOPES.index(used.opts["scope"]) < SCOPES.index(handler.opts["scope"]):
            raise PluginError(
                f"{described(handler)} is kept for the {handler.opts['scope']} and cannot take {described(used)}, "
                f"which is kept for the {used.opts['scope']} only"
            )
        _check_uses(used, table, [*above, handler])
