"""Fresh agents of the same definition, in this process or another."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from connectagent.agents.agent_tool import TRANSFER, AskAgent
from connectagent.agents.awaitable import AsyncMethods
from connectagent.agents.tree import Node, settle_all
from connectagent.hooks.handler import Handler, name_of
from connectagent.session.usage import Account
from connectagent.settings import looking_once
from connectagent.tools.registry import ToolRegistry
from connectagent.tools.tool import Tool

if TYPE_CHECKING:
    from connectagent.agents.batch import Item
    from connectagent.agents.keyed_session import KeyedSession
    from connectagent.records.store import Store

_SECRET = "api_key"
_CHANGEABLE = ("system_prompt", "max_iterations", "parallel_tools")


class Repeatable(AsyncMethods):
    """An agent that can be made again."""

    added: tuple[Any, ...] = ()  # plugins that `again()` added
    _arguments: tuple[tuple[Any, ...], dict[str, Any]]
    _listed: list[Handler]  # what the arguments gave
    _values: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        self._arguments = (args, kwargs)  # those of a subclass's own __init__, too
        return self

    def again(self, plugins: Any = None, *, quiet: bool = False) -> Self:
        """A fresh agent of the same definition, with the agents below it, without the session.

        Tools and plugins that were added or removed since are, too. Functions, plugin objects and `llm=` are shared.

        Args:
            plugins: more of them, as for `Agent(plugins=...)`; they run after the others.
            quiet: whether nothing of it is shown on the terminal, nor of the agents below.

        Raises:
            ConfigError, PluginError: a plugin cannot be used.
        """
        agent: Self = _Made(quiet).again(self).with_plugins(plugins).make()
        return agent

    def for_session(self, key: str, store: Store | None = None) -> KeyedSession:
        """The session of this agent's definition that has a key: a chat, a ticket, an item of a batch.

        A fresh agent takes its turns: `agent.for_session("ticket-7").turn("Hello", number=1)`.

        Args:
            key: names the session among those of agents with this name.
            store: keeps the session too, for other machines, such as `SqliteStore("sessions.db")`. Without one, its
                file is all there is.

        Raises:
            ConfigError: the agent is not recorded, the key is empty or not a str, or the store lacks a method.
        """
        from connectagent.agents.keyed_session import KeyedSession  # loads the reader of records

        return KeyedSession(self, key, store)

    def map(
        self,
        prompts: Iterable[Any] | Mapping[str, Any],
        concurrency: int = 16,
        *,
        run: str | None = None,
        ordered: bool = False,
        max_failures: int | None = None,
        budget_usd: float | None = None,
        timeout_s: float | None = None,
        max_iterations: int | None = None,
        output: Any = None,
        store: Store | None = None,
    ) -> Iterator[Item]:
        """Take a turn for each prompt, several at the same time; each has a fresh agent and a session of its own.

        Args:
            prompts: prompts as for `input()`, pairs of id and prompt, or a dict of prompts by id; an iterator is read
                as far as it is needed. Without ids, the id is made from the prompt's text.
            concurrency: how many run at the same time.
            run: a name. The items' records are then its state: the same call again takes what is missing, goes on with
                what was stopped, and reads the rest.
            ordered: whether the items come in the order of the prompts, in place of that in which they end.
            max_failures: how many prompts may fail before no more are begun.
            budget_usd: how much may be spent before no more are begun.
            timeout_s: how long prompts are begun.
            max_iterations, output: as for `input()`.
            store: keeps the run's sessions too, as for `for_session()`.

        Yields:
            an `Item` for each prompt: `id`, `status`, `result`, `error`, `record`, `cost` and more. An error of one
            prompt does not stop the others. Leaving the loop stops all before their next step.

        Raises:
            BatchStopped: a limit was reached. It comes after the items that ran and, of a list, all done ones.
            ConfigError: an argument cannot be used.
        """
        from connectagent.agents.batch import Batch, BatchLimits, in_order  # loads the reader of records

        limits = BatchLimits(max_failures, budget_usd, timeout_s)
        options = {"max_iterations": max_iterations, "output": output}
        items = Batch(self, prompts, concurrency, run, limits, options, store=store).items()
        return in_order(items) if ordered else items

    def remember(self, handlers: list[Handler]) -> None:
        """Remember what the arguments gave, to find later changes."""
        self._listed, self._named = handlers, self.tools.names()
        self._values = {name: getattr(self, name) for name in _CHANGEABLE}

    def __reduce__(self) -> Any:
        definition = definition_of(self)
        definition.check_travels(self.name)
        return definition.make, ()

    def __copy__(self) -> NoReturn:
        raise TypeError(
            f"agent {self.name!r} cannot be copied: agent.again() makes a fresh one of the same definition, and "
            "agent.resume(record, fork=True) goes on with a copy of its session"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self.__copy__()


@dataclass
class Definition:
    """How an agent was made, and what was changed in it since.

    Args:
        kind: the class.
        args, kwargs: its arguments.
        added: plugins that `again()` added.
        tools: those that were added later.
        dropped: the names of the tools that were removed.
        handlers: those that were registered later.
        handed: those that it inherits from its parent; a fresh agent without one keeps them.
        unregistered: those that were removed, as plugin, hook and name.
        values: attributes that were set.
    """

    kind: type[Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    added: tuple[Any, ...]
    tools: list[Any] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    handlers: list[Handler] = field(default_factory=list)
    handed: tuple[Handler, ...] = ()
    unregistered: set[tuple[str, str, str]] = field(default_factory=set)
    values: dict[str, Any] = field(default_factory=dict)

    def with_plugins(self, plugins: Any) -> Definition:
        """The same with more plugins."""
        return self if plugins is None else dataclasses.replace(self, added=(*self.added, plugins))

    def make(self) -> Any:
        """An agent of this definition."""
        agent = self.kind.__new__(self.kind, *self.args, **self.kwargs)
        agent.added = self.added
        looking_once(lambda: agent.__init__(*self.args, **self.kwargs))
        gone = [one for one in agent.hooks.loaded if _key(one) in self.unregistered] if self.unregistered else []
        if gone or self.handlers or self.handed:
            agent._handed = self.handed
            agent.hooks.without(gone)
            agent.hooks.add(*[dataclasses.replace(one, account=Account()) for one in self.handlers])
            settle_all(agent)
        for tool in self.tools:
            if tool.name not in agent.tools:  # a plugin's, which has brought it to this agent as well
                agent.add_tool(tool)
        for name in self.dropped:
            if name in agent.tools:
                agent.remove_tool(name)
        for name, value in self.values.items():
            setattr(agent, name, value)
        return agent

    def arguments(self) -> dict[str, Any]:
        """The arguments by name."""
        try:
            return dict(inspect.signature(self.kind).bind(*self.args, **self.kwargs).arguments)
        except TypeError:
            return {**{f"argument {number}": one for number, one in enumerate(self.args)}, **self.kwargs}

    def check_travels(self, name: str) -> None:
        """Refuse to send what no other process can have.

        Raises:
            TypeError: an argument cannot travel; the message names it and says what to do.
        """
        named = self.arguments() | {"plugins of again()": self.added, "a tool that was added": self.tools}
        if named.get(_SECRET) is not None:
            raise TypeError(
                f"agent {name!r} has api_key=..., which does not travel: leave it out, and set the provider's "
                "environment variable where the agent is to run"
            )
        registered = [*self.handlers, *self.handed]
        sent = {} if _by_value() else {**named, "a plugin that was registered": registered}
        for argument, value in sent.items():
            if (why := _cannot_travel(value)) is not None:
                raise TypeError(
                    f"agent {name!r} cannot travel to another process: {argument}={value!r:.80}: {why}\n"
                    "Functions travel by the name of their module; define them there. Give model= in place of llm=."
                )


def definition_of(agent: Any) -> Definition:
    """How an agent was made, with the changes since."""
    args, kwargs = agent._arguments
    definition = Definition(type(agent), args, kwargs, agent.added)
    names, before = agent.tools.names(), agent._values
    definition.tools = [agent.tools.get(name) for name in names if name not in (TRANSFER, *agent._named)]
    definition.dropped = [name for name in agent._named if name not in names]
    definition.values = {name: getattr(agent, name) for name in before if getattr(agent, name) != before[name]}
    definition.handed = tuple(agent._copies.values())
    definition.handlers = _handlers_since(agent, loaded := agent.hooks.loaded)
    if gone := [one for one in agent._listed if one not in loaded]:
        definition.unregistered = {_key(one) for one in gone} - {_key(one) for one in loaded}
    return definition


def _handlers_since(agent: Any, loaded: list[Handler]) -> list[Handler]:
    """The agent's own handlers that the arguments did not give."""
    inherited = list(agent._copies.values())
    return [one for one in loaded if one not in inherited and one not in agent._listed and not one.builtin]


def _key(handler: Handler) -> tuple[str, str, str]:
    return handler.plugin, handler.hook, name_of(handler.function)


class _Made:
    """The fresh agents of one definition, each made once.

    Args:
        quiet: whether they show nothing on the terminal.
    """

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._agents, self._begun = quiet, dict[int, Any](), set[int]()

    def again(self, agent: Any) -> Definition:
        """The definition of an agent, with fresh agents in place of those in it: what these inherit, they get anew."""
        self._begun.add(id(agent))
        definition = definition_of(agent)
        if id(agent.parent) in self._begun:
            definition.handed = ()
        parts = (definition.args, definition.kwargs, definition.added, definition.tools)
        args, kwargs, added, tools = map(self._fresh, parts)
        if self._quiet and "no:console" not in added:
            added = (*added, "no:console")
        return dataclasses.replace(definition, args=args, kwargs=kwargs, added=added, tools=tools)

    def _fresh(self, value: Any) -> Any:
        """A value with fresh agents in place of those in it."""
        if isinstance(value, Node):
            if id(value) not in self._agents:
                self._agents[id(value)] = self.again(value).make()
            return self._agents[id(value)]
        if isinstance(value, Tool) and isinstance(value.function, AskAgent):
            return dataclasses.replace(value, function=AskAgent(self._fresh(value.function.agent)))
        if isinstance(value, ToolRegistry):
            return [self._fresh(one) for one in value]
        if type(value) in (list, tuple):
            return type(value)(self._fresh(one) for one in value)
        if type(value) is dict:
            return {key: self._fresh(one) for key, one in value.items()}
        return value


def _cannot_travel(value: Any) -> str | None:
    """Why a value cannot be sent to another process; None where it can."""
    try:
        pickle.dumps(value)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _by_value() -> bool:
    """Whether cloudpickle is at work, which sends functions by their code: it knows best what it can send."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if "cloudpickle" in str(frame.f_globals.get("__name__")):
            return True
        frame = frame.f_back
    return False
