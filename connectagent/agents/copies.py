"""Fresh agents of the same definition, in this process or another."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import sys
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol, Self

from connectagent.agents.agent_tool import TRANSFER, AskAgent, core_of
from connectagent.agents.tree import TreeAgent, TreeNode
from connectagent.data import AgentBase
from connectagent.hooks.handler import Handler, name_of
from connectagent.session.usage import Account
from connectagent.settings import looking_once
from connectagent.tools.registry import ToolRegistry
from connectagent.tools.tool import Tool

_SECRET = "api_key"
_CHANGEABLE = ("system_prompt", "max_iterations", "parallel_tools")


class CopiedAgent(TreeAgent, Protocol):
    """An agent as its definition is read from it."""

    face: AgentBase
    made_with: MadeWith

    @property
    def tree(self) -> TreeNode[Self]: ...


class MadeWith:
    """How an agent was made, to find what was changed since.

    Args:
        args, kwargs: the arguments of its class; those of a subclass's own `__init__`, too.

    Attributes:
        added: plugins that `again()` added.
        handlers: those that the arguments gave.
        tools: the tools that the arguments gave, and that plugins brought when they were told of the agent.
        values: the attributes that may be set, as the arguments gave them.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs
        self.added: tuple[Any, ...] = ()
        self.handlers: list[Handler] = []
        self.tools: list[str] = []
        self.values: dict[str, Any] = {}

    def note(self, core: CopiedAgent, handlers: list[Handler]) -> None:
        """Note what the arguments gave."""
        self.handlers = handlers
        self.tools = core.tools.names()
        self.values = {name: getattr(core, name) for name in _CHANGEABLE}


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
        agent._made_with.added = self.added
        looking_once(lambda: agent.__init__(*self.args, **self.kwargs))
        hooks = agent.hooks
        gone = [one for one in hooks.loaded if _key(one) in self.unregistered] if self.unregistered else []
        if gone or self.handlers or self.handed:
            tree = core_of(agent).tree
            tree.handed = self.handed
            hooks.without(gone)
            hooks.add(*[dataclasses.replace(one, account=Account()) for one in self.handlers])
            tree.settle_all()
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


def definition_of(agent: CopiedAgent) -> Definition:
    """How an agent was made, with the changes since."""
    made = agent.made_with
    definition = Definition(type(agent.face), made.args, made.kwargs, made.added)
    names, before = agent.tools.names(), made.values
    definition.tools = [agent.tools.get(name) for name in names if name not in (TRANSFER, *made.tools)]
    definition.dropped = [name for name in made.tools if name not in names]
    definition.values = {name: getattr(agent, name) for name in before if getattr(agent, name) != before[name]}
    definition.handed = tuple(agent.tree.inherited.values())
    loaded = agent.hooks.loaded
    definition.handlers = _handlers_since(agent, loaded)
    if gone := [one for one in made.handlers if one not in loaded]:
        definition.unregistered = {_key(one) for one in gone} - {_key(one) for one in loaded}
    return definition


def _handlers_since(agent: CopiedAgent, loaded: list[Handler]) -> list[Handler]:
    """The agent's own handlers that the arguments did not give."""
    known = [*agent.tree.inherited.values(), *agent.made_with.handlers]
    return [one for one in loaded if one not in known and not one.builtin]


def made_again(agent: CopiedAgent, plugins: Any = None, quiet: bool = False) -> Any:
    """A fresh agent of the same definition, with the agents below it, without the session.

    Args:
        agent: the agent.
        plugins: more of them; they run after the others.
        quiet: whether nothing of it is shown on the terminal.
    """
    return _Fresh(quiet).again(agent).with_plugins(plugins).make()


def _key(handler: Handler) -> tuple[str, str, str]:
    return handler.plugin, handler.hook, name_of(handler.function)


class _Fresh:
    """The fresh agents of one definition, each made once.

    Args:
        quiet: whether they show nothing on the terminal.
    """

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._agents: dict[int, Any] = {}
        self._begun: set[int] = set()

    def again(self, agent: CopiedAgent) -> Definition:
        """The definition of an agent, with fresh agents in place of those in it: what these inherit, they get anew."""
        self._begun.add(id(agent))
        definition = definition_of(agent)
        if id(agent.tree.parent) in self._begun:
            definition.handed = ()
        parts = (definition.args, definition.kwargs, definition.added, definition.tools)
        args, kwargs, added, tools = map(self._fresh, parts)
        if self._quiet and "no:console" not in added:
            added = (*added, "no:console")
        return dataclasses.replace(definition, args=args, kwargs=kwargs, added=added, tools=tools)

    def _fresh(self, value: Any) -> Any:
        """A value with fresh agents in place of those in it."""
        if isinstance(value, AgentBase):
            if id(value) not in self._agents:
                self._agents[id(value)] = self.again(core_of(value)).make()
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
