"""A tree of agents: names, parents, who may hand over to whom, and the plugins that children inherit."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, TypeVar

from connectagent.agents.agent_tool import TRANSFER, AskAgent, TransferTool, targets, transfer_tool
from connectagent.agents.body import body_of
from connectagent.data import AgentBase, LLMResponse, Message
from connectagent.errors import ConfigError
from connectagent.hooks.entry_points import normalized
from connectagent.hooks.handler import Handler, name_of
from connectagent.hooks.host import Host
from connectagent.session.usage import Account, Spent
from connectagent.tools.registry import ToolRegistry
from connectagent.tools.tool import Tool

DIRECTIONS = ("children", "parent", "siblings")
_GUARDS = ("trust", "gate")  # built-in plugins that children inherit: a guard is never absent unnoticed
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
One = TypeVar("One", bound="Node")


class Node(AgentBase):
    """An agent as a node of a tree.

    Attributes:
        parent: the agent with this one in `sub_agents` or `tools`, or None.
        sub_agents: the agents that this one may hand over to.
        labels: keys of each of its trace entries: `author` and `branch`; {} outside a tree.
        body: the function of `Agent(run=...)` as a tool, or None.
        turn: the turn that is running, or None.
        outside: by branch, the recorded sessions of agents outside the tree, until these are asked.
        spent_outside: by branch, what those agents spent.
        waits_in: the paused root turn in which a turn of this agent waits, or None.
        left_out: the plugins that this agent leaves out, also where its parent has them.
    """

    name: str
    _handed: tuple[Handler, ...] = ()  # what the agent of whose definition it is had from its parent
    _named: list[str]  # the tools that the arguments gave, and that plugins brought when they were told of the agent
    left_out: set[str]
    turning: threading.Lock
    hooks: Host
    tools: ToolRegistry
    system_prompt: str

    def _join(
        self,
        name: str,
        sub_agents: Any,
        tools: Any,
        description: str | None,
        transfer_to: Iterable[str],
        inherit_plugins: bool,
        run: Callable[..., Any] | None,
        output_key: str | None,
    ) -> None:
        for argument, value in (("description", description), ("output_key", output_key)):
            if not isinstance(value, str | None):
                raise ConfigError(f"{argument} of agent {name!r} is a str or None, not {value!r:.80}")
        self.name, self.description, self.output_key = name, description, output_key
        self.parent: Self | None = None
        self.labels: dict[str, str] = {}
        self.turn: Any = None
        self.outside: dict[str, Any] = {}
        self.spent_outside: dict[str, Spent] = {}
        self.waits_in: Any = None
        self.inherit_plugins = inherit_plugins
        self._copies: dict[Handler, Handler] = {}
        self.transfer_to = _directions(transfer_to)
        given = sub_agents if isinstance(sub_agents, list | tuple) else [] if sub_agents is None else [sub_agents]
        self.body = None if run is None else body_of(run, name)
        self.sub_agents: tuple[Self, ...] = ()
        self.tools = ToolRegistry()
        self.check_children([*given, *agents_in(tools)])
        self.sub_agents = tuple(given)

    def _tell_ready(self, known: Iterable[Handler] = ()) -> None:
        """Call the handlers of `on_agent_ready` but the known ones; the tools that they bring are not later changes."""
        told = [one.by for one in self.hooks.loaded if any(one == other or _same(one, other) for other in known)]
        before = set(self.tools.names())
        self.hooks.observe("on_agent_ready", told, agent=self)
        self._named += [name for name in self.tools.names() if name not in before]

    def label(self, labels: dict[str, str]) -> None:
        """Set the keys of each trace entry."""
        self.labels = labels

    # -- the tree ------------------------------------------------------------------------------

    @property
    def root(self) -> Self:
        """The agent at the top of the tree; a lone agent is its own."""
        top = self
        while top.parent is not None:
            top = top.parent
        return top

    @property
    def branch(self) -> str:
        """The names from the root down to this agent: `root.billing`."""
        return self.name if self.parent is None else f"{self.parent.branch}.{self.name}"

    @property
    def children(self) -> list[Self]:
        """The agents directly below this one: its `sub_agents` and the agents among its tools."""
        return [*self.sub_agents, *agents_in(self.tools)]

    @property
    def below(self) -> list[Self]:
        """All agents of the tree below this one."""
        return list(walk(self))[1:]

    @property
    def in_turn(self) -> bool:
        """Whether a turn of this agent is running."""
        return self.turning.locked()

    def find(self, name: str) -> Self | None:
        """The agent of that name here or below, or None; `agent.root.find` looks in the whole tree."""
        return next((agent for agent in walk(self) if agent.name == name), None)

    @contextlib.contextmanager
    def _guarded_by(self, asker: Node) -> Iterator[None]:
        """Have the plugins of `asker` that reach the whole turn, for one turn that it asks of this agent.

        Agents of one tree have them already. An agent outside of the tree, such as a judge, does not, and a model that
        it asks would be out of sight of a budget.
        """
        guards = [] if not self.inherit_plugins else _missing_guards(self, asker)
        if not guards:
            yield
            return
        with self.hooks.add(*guards):
            yield

    def check_children(self, joining: list[Any]) -> None:
        """Refuse children that cannot join, before anything is changed.

        Raises:
            ConfigError: one cannot; the message names both agents and their branches.
        """
        for child in joining:
            if not isinstance(child, Node):
                raise ConfigError(f"sub_agents of {self.name!r} takes agents, not {type(child).__name__} {child!r:.80}")
            if any(child is above for above in self._line()):
                raise ConfigError(f"agent {child.name!r} would be under itself, in {self.branch!r}; make another one")
            if child.parent is not None:
                raise ConfigError(
                    f"agent {child.name!r} is under {child.parent.name!r} already ({child.branch!r}) and cannot be "
                    f"under {self.name!r} too; make one for each"
                )
        if len(set(map(id, joining))) < len(joining):
            twice = next(child.name for child in joining if sum(child is other for other in joining) > 1)
            raise ConfigError(
                f"agent {twice!r} is given to {self.name!r} twice; give it once, as a sub_agent or a tool"
            )
        if joining:
            top: Any = self._line()[-1]
            places = [(agent.name, agent.branch) for agent in walk(top)]
            places += [(agent.name, f"{self.branch}.{agent.branch}") for child in joining for agent in walk(child)]
            _check_names(places)

    def _line(self) -> list[Any]:
        line: list[Any] = [self]
        while line[-1].parent is not None:
            line.append(line[-1].parent)
        return line

    def take_in(self, tools: Iterable[Tool] = ()) -> None:
        """Add the children without a parent to the tree: all of them, or none if one cannot be added.

        Args:
            tools: the tools to remove again in that case.
        """
        new = [child for child in self.children if child.parent is None]
        if not new:
            return
        top: Any = self.root
        try:
            for child in new:
                child.parent = self
            for agent in walk(top):
                _settle(agent)
        except BaseException:
            for tool in tools:
                self.tools.remove(tool.name)
            for child in new:
                child.parent = None
            for alone in [top, *new]:
                for agent in walk(alone, but=new):
                    _settle(agent)
            raise

    def let_go(self, tool: Tool) -> None:
        """Take the agent that was a tool out of the tree."""
        for agent in agents_in(tool):
            agent.parent = None
            for one in (*walk(agent), self):
                _settle(one)


def walk(agent: One, but: Iterable[Any] = ()) -> Iterator[One]:
    """An agent and all below it, each before its children."""
    yield agent
    for child in agent.children:
        if not any(child is left for left in but):
            yield from walk(child, but)


def agents_in(tools: Any) -> list[Any]:
    """The agents in what `tools=` takes."""
    if isinstance(tools, list | tuple | ToolRegistry):
        return [agent for one in tools for agent in agents_in(one)]
    if isinstance(tools, Tool) and isinstance(tools.function, AskAgent):
        tools = tools.function.agent
    return [tools] if isinstance(tools, Node) else []


def _check_names(places: list[tuple[str, str]]) -> None:
    seen: dict[str, str] = {}
    for name, place in places:
        if not _NAME.fullmatch(name) or name == "user":
            raise ConfigError(
                f"an agent of a tree cannot be named {name!r} ({place!r}): names are letters, digits, '_' and '-', "
                "begin with a letter or '_', have at most 64 of them, and are not 'user'"
            )
        if name in seen:
            raise ConfigError(
                f"two agents of one tree are named {name!r}: {seen[name]!r} and {place!r}; name one of them otherwise"
            )
        seen[name] = place


def _directions(given: Any) -> tuple[str, ...]:
    several = isinstance(given, Iterable) and not isinstance(given, str)
    directions = tuple(given or ()) if several or not given else (given,)
    for one in directions:
        if one not in DIRECTIONS:
            raise ConfigError(f"transfer_to takes {', '.join(map(repr, DIRECTIONS))}, in a tuple, not {one!r}")
    return directions


class NoModel:
    """The `llm` of an agent that runs a function."""

    model = "function"

    def __init__(self, name: str) -> None:
        self._name = name

    def complete(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> LLMResponse:
        """Refuse.

        Raises:
            ConfigError: always; the agent was given no model.
        """
        raise ConfigError(f"agent {self._name!r} runs a function and has no model; give it one with model=...")


# -- joining -------------------------------------------------------------------------------------


def settle_all(top: Node) -> None:
    """Settle an agent and all below it, after its plugins have changed."""
    for agent in walk(top):
        _settle(agent)


def _settle(agent: Node) -> None:
    """Give an agent the labels, plugins and handoff targets of its place in the tree."""
    lone = agent.parent is None and not agent.children
    agent.label({} if lone else {"author": agent.name, "branch": agent.branch})
    _inherit(agent)
    if isinstance(getattr(agent.tools.get(TRANSFER), "function", None), TransferTool):
        agent.tools.remove(TRANSFER)
    if agent.body is None and (found := targets(agent)):
        agent.tools.add(transfer_tool(found))


def _inherit(agent: Node) -> None:
    """Put the handlers of the parent's plugins before the agent's own; new ones get `on_agent_ready`."""
    known = agent.hooks.loaded
    own = [handler for handler in known if handler not in agent._copies.values()]
    inherited = _inherited(agent, own)
    agent._copies = {one: agent._copies.get(one) or dataclasses.replace(one, account=Account()) for one in inherited}
    wanted = [one for one in own if one.builtin] + [agent._copies[one] for one in inherited]
    wanted += [one for one in own if not one.builtin]
    if set(wanted) != set(known):
        agent.hooks.load(wanted)
        agent._tell_ready(known)


def _inherited(agent: Node, own: list[Handler]) -> list[Handler]:
    """The handlers of the parent's plugins that an agent has not listed itself."""
    parent = agent.parent if agent.inherit_plugins else None
    theirs = [] if parent is None else [handler for handler in parent.hooks.loaded if _is_for(handler, agent)]
    theirs += [one for one in agent._handed if not any(_same(one, other) for other in theirs)]
    return [handler for handler in theirs if not any(_same(handler, other) for other in own)]


def _missing_guards(agent: Node, asker: Node) -> list[Handler]:
    """The handlers of the asking agent that reach the whole turn, as far as an agent has not got them."""
    reaching = [one for one in asker.hooks.loaded if one.reaches_turn and normalized(one.plugin) not in agent.left_out]
    if not reaching:
        return []
    own = agent.hooks.loaded
    missing = [one for one in reaching if not any(_covers(other, one) for other in own)]
    return [dataclasses.replace(one, account=Account()) for one in missing]


def _covers(own: Handler, guard: Handler) -> bool:
    """Whether a guard's work is done by a handler that an agent has itself.

    Another object of the plugin does it too, but not of one that is for the whole process: each such object has counts
    of its own.
    """
    if getattr(guard.thing, "scope", None) == "process":
        return own.hook == guard.hook and own.function == guard.function
    return _same(own, guard)


def _is_for(handler: Handler, agent: Node) -> bool:
    """Whether an agent inherits a handler of its parent."""
    own_to_parent = handler.local or (handler.builtin and handler.plugin not in _GUARDS)
    return not own_to_parent and normalized(handler.plugin) not in agent.left_out


def _same(one: Handler, other: Handler) -> bool:
    """Whether two agents list the same handler: the same function, or the same method of two objects of one plugin."""
    if one.hook != other.hook:
        return False
    if one.function == other.function:
        return True
    places = [
        (handler.plugin, name_of(handler.function), handler.by["file"], handler.by["line"]) for handler in (one, other)
    ]
    return places[0] == places[1] and not getattr(one.function, "__closure__", None)
