"""A tree of agents: names, parents, who may hand over to whom, and the plugins that children inherit."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

from connectagent.agents.agent_tool import TRANSFER, AskAgent, TransferTool, core_of, targets, transfer_tool
from connectagent.data import AgentBase
from connectagent.errors import ConfigError
from connectagent.hooks.entry_points import normalized
from connectagent.hooks.handler import Handler, name_of
from connectagent.hooks.host import Host
from connectagent.session.usage import Account
from connectagent.tools.registry import ToolRegistry
from connectagent.tools.tool import Tool

DIRECTIONS = ("children", "parent", "siblings")
_GUARDS = ("trust", "gate")  # built-in plugins that children inherit: a guard is never absent unnoticed
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class TreeArguments:
    """Where an agent stands among others, and what it has from its place."""

    sub_agents: Any
    description: str | None
    transfer_to: Iterable[str]
    inherit_plugins: bool


class TreeAgent(Protocol):
    """An agent as its tree knows it."""

    name: str
    description: str | None
    hooks: Host
    tools: ToolRegistry

    @property
    def tree(self) -> TreeNode[Self]: ...
    @property
    def body(self) -> Tool | None: ...
    @property
    def system_prompt(self) -> str: ...
    def label(self, labels: dict[str, str]) -> None:
        """Set the keys of each trace entry."""

    def tell_ready(self, known: Iterable[Handler] = ()) -> None:
        """Call the handlers of `on_agent_ready` but the known ones."""


Core = TypeVar("Core", bound=TreeAgent)


class TreeNode(Generic[Core]):
    """The place of an agent in a tree.

    Args:
        core: the agent.
        given: its arguments.

    Attributes:
        parent: the agent with this one in `sub_agents` or `tools`, or None.
        sub_agents: the agents that this one may hand over to.
        transfer_to: to whom it may hand over.
        labels: keys of each of its trace entries: `author` and `branch`; {} outside a tree.
        left_out: the plugins that this agent leaves out, also where its parent has them.
        inherited: its own copies of its parent's handlers.
        handed: the handlers that the agent of whose definition it is had from its parent.
    """

    def __init__(self, core: Core, given: TreeArguments) -> None:
        self.core = core
        self.parent: Core | None = None
        self.sub_agents: tuple[Core, ...] = ()
        self.labels: dict[str, str] = {}
        self.inherits = given.inherit_plugins
        self.transfer_to = _directions(given.transfer_to)
        self.left_out: set[str] = set()
        self.inherited: dict[Handler, Handler] = {}
        self.handed: tuple[Handler, ...] = ()

    def take_given(self, sub_agents: Any, tools: Any) -> None:
        """Take the agents of the arguments as children; their tools follow.

        Raises:
            ConfigError: one cannot be a child of this agent.
        """
        given = [sub_agents]
        if sub_agents is None:
            given = []
        elif isinstance(sub_agents, list | tuple):
            given = list(sub_agents)
        self.check_children([*given, *agents_in(tools)])
        self.sub_agents = tuple(core_of(one) for one in given)

    @property
    def root(self) -> Core:
        """The agent at the top of the tree; a lone agent is its own."""
        return self.line[-1]

    @property
    def line(self) -> list[Core]:
        """The agents from this one up to the root."""
        line = [self.core]
        while (above := line[-1].tree.parent) is not None:
            line.append(above)
        return line

    @property
    def branch(self) -> str:
        """The names from the root down to this agent: `root.billing`."""
        return self.core.name if self.parent is None else f"{self.parent.tree.branch}.{self.core.name}"

    @property
    def children(self) -> list[Core]:
        """The agents directly below this one: its `sub_agents` and the agents among its tools."""
        return [*self.sub_agents, *(core_of(one) for one in agents_in(self.core.tools))]

    @property
    def below(self) -> list[Core]:
        """All agents of the tree below this one."""
        return list(self.walk())[1:]

    def walk(self, but: Iterable[Core] = ()) -> Iterator[Core]:
        """This agent and all below it, each before its children."""
        yield self.core
        for child in self.children:
            if not any(child is left for left in but):
                yield from child.tree.walk(but)

    def find(self, name: str) -> Core | None:
        """The agent of that name here or below, or None."""
        return next((one for one in self.walk() if one.name == name), None)

    @contextlib.contextmanager
    def guarded_by(self, asker: TreeAgent) -> Iterator[None]:
        """Have the plugins of `asker` that reach the whole turn, for one turn that it asks of this agent.

        Agents of one tree have them already. An agent outside of the tree, such as a judge, does not, and a model that
        it asks would be out of sight of a budget.
        """
        guards = _missing_guards(self.core, asker) if self.inherits else []
        if not guards:
            yield
            return
        with self.core.hooks.add(*guards):
            yield

    def check_children(self, joining: list[Any]) -> None:
        """Refuse children that cannot join, before anything is changed.

        Args:
            joining: agents, as the program has them.

        Raises:
            ConfigError: one cannot; the message names both agents and their branches.
        """
        name = self.core.name
        new: list[Core] = []
        for one in joining:
            if not isinstance(one, AgentBase):
                raise ConfigError(f"sub_agents of {name!r} takes agents, not {type(one).__name__} {one!r:.80}")
            child: Core = core_of(one)
            if any(child is above for above in self.line):
                raise ConfigError(f"agent {child.name!r} would be under itself, in {self.branch!r}; make another one")
            if (parent := child.tree.parent) is not None:
                raise ConfigError(
                    f"agent {child.name!r} is under {parent.name!r} already ({child.tree.branch!r}) and cannot be "
                    f"under {name!r} too; make one for each"
                )
            new.append(child)
        if len(set(map(id, new))) < len(new):
            twice = next(child.name for child in new if sum(child is other for other in new) > 1)
            raise ConfigError(f"agent {twice!r} is given to {name!r} twice; give it once, as a sub_agent or a tool")
        if new:
            places = [(agent.name, agent.tree.branch) for agent in self.root.tree.walk()]
            places += [(agent.name, f"{self.branch}.{agent.tree.branch}") for one in new for agent in one.tree.walk()]
            _check_names(places)

    def join_children(self, tools: Iterable[Tool] = ()) -> None:
        """Add the children without a parent to the tree: all of them, or none if one cannot be added.

        Args:
            tools: the tools to remove again in that case.
        """
        new = [child for child in self.children if child.tree.parent is None]
        if not new:
            return
        top = self.root
        try:
            for child in new:
                child.tree.parent = self.core
            top.tree.settle_all()
        except BaseException:
            for tool in tools:
                self.core.tools.remove(tool.name)
            for child in new:
                child.tree.parent = None
            for alone in [top, *new]:
                for agent in alone.tree.walk(but=new):
                    agent.tree.settle()
            raise

    def part_from(self, tool: Tool) -> None:
        """Take the agent that was a tool out of the tree."""
        for face in agents_in(tool):
            agent: Core = core_of(face)
            agent.tree.parent = None
            for one in (*agent.tree.walk(), self.core):
                one.tree.settle()

    def settle_all(self) -> None:
        """Settle this agent and all below it, after plugins or places have changed."""
        for agent in self.walk():
            agent.tree.settle()

    def settle(self) -> None:
        """Give the agent the labels, plugins and handoff targets of its place in the tree."""
        core = self.core
        lone = self.parent is None and not self.children
        self.labels = {} if lone else {"author": core.name, "branch": self.branch}
        core.label(self.labels)
        self._inherit()
        if isinstance(getattr(core.tools.get(TRANSFER), "function", None), TransferTool):
            core.tools.remove(TRANSFER)
        if core.body is None and (found := targets(core)):
            core.tools.add(transfer_tool(found))

    def _inherit(self) -> None:
        """Put the handlers of the parent's plugins before the agent's own; new ones get `on_agent_ready`."""
        hooks, before = self.core.hooks, self.inherited
        known = hooks.loaded
        own = [handler for handler in known if handler not in before.values()]
        theirs = self._of_parent(own)
        self.inherited = {one: before.get(one) or dataclasses.replace(one, account=Account()) for one in theirs}
        wanted = [one for one in own if one.builtin] + [self.inherited[one] for one in theirs]
        wanted += [one for one in own if not one.builtin]
        if set(wanted) != set(known):
            hooks.load(wanted)
            self.core.tell_ready(known)

    def _of_parent(self, own: list[Handler]) -> list[Handler]:
        """The handlers of the parent's plugins that the agent has not listed itself."""
        parent = self.parent if self.inherits else None
        theirs = [] if parent is None else [one for one in parent.hooks.loaded if self._takes(one)]
        theirs += [one for one in self.handed if not any(same_handler(one, other) for other in theirs)]
        return [handler for handler in theirs if not any(same_handler(handler, other) for other in own)]

    def _takes(self, handler: Handler) -> bool:
        """Whether the agent inherits a handler of its parent."""
        own_to_parent = handler.local or (handler.builtin and handler.plugin not in _GUARDS)
        return not own_to_parent and normalized(handler.plugin) not in self.left_out


def agents_in(tools: Any) -> list[AgentBase]:
    """The agents in what `tools=` takes."""
    if isinstance(tools, list | tuple | ToolRegistry):
        return [agent for one in tools for agent in agents_in(one)]
    if isinstance(tools, Tool) and isinstance(tools.function, AskAgent):
        tools = tools.function.agent
    return [tools] if isinstance(tools, AgentBase) else []


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


# -- handlers of others ----------------------------------------------------------------------------


def _missing_guards(agent: TreeAgent, asker: TreeAgent) -> list[Handler]:
    """The handlers of the asking agent that reach the whole turn, as far as an agent has not got them."""
    left_out = agent.tree.left_out
    reaching = [one for one in asker.hooks.loaded if one.reaches_turn and normalized(one.plugin) not in left_out]
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
    return same_handler(own, guard)


def same_handler(one: Handler, other: Handler) -> bool:
    """Whether two agents list the same handler: the same function, or the same method of two objects of one plugin."""
    if one.hook != other.hook:
        return False
    if one.function == other.function:
        return True
    places = [
        (handler.plugin, name_of(handler.function), handler.by["file"], handler.by["line"]) for handler in (one, other)
    ]
    return places[0] == places[1] and not getattr(one.function, "__closure__", None)
