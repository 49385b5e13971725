"""The tools of an agent, by name: collected from functions, methods, objects and agents."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, overload

from connectagent.data import AgentBase
from connectagent.errors import ToolDefinitionError, ToolNotFound, nearest
from connectagent.tools.signature import described, options_of, plain_function
from connectagent.tools.tool import Tool, not_a_tool

AgentTool = Callable[[Any], "Tool"]


# -- collecting ----------------------------------------------------------------------------------


def collect_tools(
    source: object, *, agent_tool: AgentTool | None = None, resources: Collection[str] = ()
) -> list[Tool]:
    """The tools that `tools=` means.

    Args:
        source: None; a function, bound method, async function, callable, `functools.partial`, `Tool`, agent, an
            instance whose public annotated methods are tools, a registry; or a list or tuple of them, nested too.
        agent_tool: makes the tool that calls an agent.
        resources: the names of the agent's resources.

    Raises:
        ToolDefinitionError: something else is in it, something cannot be a tool, or two have one name.
    """
    found: dict[str, Tool] = {}
    _put(found, _tools_of(source, agent_tool, resources))
    return list(found.values())


def _put(found: dict[str, Tool], tools: Iterator[Tool]) -> None:
    for one in tools:
        if one.name in found:
            raise ToolDefinitionError(
                f"two tools are named {one.name!r}:\n  {found[one.name].origin}\n  {one.origin}\n"
                "Leave one out, or name it otherwise with @tool(name=...)."
            )
        found[one.name] = one


def _tools_of(source: object, agent_tool: AgentTool | None, resources: Collection[str]) -> Iterator[Tool]:
    if source is None:
        return
    if isinstance(source, Tool):
        yield source
    elif isinstance(source, list | tuple | ToolRegistry):
        for one in source:
            yield from _tools_of(one, agent_tool, resources)
    elif isinstance(source, type) or (type(source).__module__ == "builtins" and not callable(source)):
        raise ToolDefinitionError(not_a_tool(source))
    elif isinstance(source, AgentBase):
        if agent_tool is None:
            raise ToolDefinitionError(
                f"the agent {source.name!r} cannot be a tool here: pass a function that calls it."
            )
        yield agent_tool(source)
    elif callable(source):
        yield Tool.from_function(source, resources)
    else:
        yield from _methods(source, resources)


def _methods(instance: object, resources: Collection[str]) -> Iterator[Tool]:
    """Tools from the public annotated methods of an object, those of base classes first."""
    names: dict[str, None] = {}
    for cls in reversed(type(instance).__mro__):
        if cls.__module__.partition(".")[0] != "pydantic":  # the annotated methods of BaseModel are not the user's
            names |= dict.fromkeys(vars(cls))
    found = False
    for name in names:
        raw = inspect.getattr_static(type(instance), name, None)
        if not isinstance(raw, types.FunctionType | staticmethod | classmethod):
            continue
        method = getattr(instance, name)
        if options_of(method) is None and (name.startswith("_") or not plain_function(method).__annotations__):
            continue
        found = True
        try:
            yield Tool.from_function(method, resources)
        except ToolDefinitionError as error:
            rather = f"Or pass only the methods of {type(instance).__name__} that are tools: tools=[x.{name}, ...]."
            raise ToolDefinitionError(f"{error}\n{rather}") from error
    if not found:
        raise ToolDefinitionError(
            f"{described(instance)} has no public method with annotations, so it brings no tool.\n"
            "Annotate the parameters of its methods, or pass functions."
        )


class ToolRegistry:
    """The tools of an agent, by name and in order.

    `name in tools`, `tools["search"]`, iteration over `Tool`s, and `tools.search("x")`, which calls the function.

    Args:
        source: anything that `collect_tools` takes.
        agent_tool: makes the tool that calls an agent.
        resources: gives the names of the agent's resources.

    Attributes:
        offered: the names of the tools and their schemas, as a model is offered them. Both lists stay the same objects
            until tools change.
        by_name: the tools that can be called; where a record is replayed, those too that are not offered any more.
    """

    def __init__(
        self,
        source: object = None,
        *,
        agent_tool: AgentTool | None = None,
        resources: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._resources = resources
        self._tools: dict[str, Tool] = {}
        self.by_name: Mapping[str, Tool] = self._tools
        self.offered: tuple[list[str], list[dict[str, Any]]] = [], []
        self._agent_tool = agent_tool
        self.add(source)

    def __contains__(self, tool: object) -> bool:
        if isinstance(tool, Tool):
            return self._tools.get(tool.name) is tool
        return isinstance(tool, str) and tool in self._tools

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(list(self._tools.values()))  # a copy: a tool may add tools

    def __repr__(self) -> str:
        return f"ToolRegistry({', '.join(self._tools)})"

    def __getitem__(self, name: str) -> Tool:
        if name not in self._tools:
            raise self.missing(name)
        return self._tools[name]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        # Not for names with two underscores: `copy` and `pickle` ask for those before there is `_tools`.
        if not name.startswith("__") and name != "_tools" and name in self._tools:
            if (function := self._tools[name].function) is not None:
                return function
            raise AttributeError(f"the tool {name!r} has no function here: it is carried out elsewhere")
        if name.startswith("__") or name == "_tools":
            raise AttributeError(name)
        raise AttributeError(str(self.missing(name)))

    @overload
    def get(self, name: str) -> Tool | None: ...
    @overload
    def get(self, name: str, default: Tool) -> Tool: ...
    def get(self, name: str, default: Tool | None = None) -> Tool | None:
        """The tool of that name, or `default`."""
        return self.by_name.get(name, default)

    def names(self) -> list[str]:
        """The names of the tools, in the order in which they were added."""
        return list(self._tools)

    def add(self, source: object) -> list[Tool]:
        """Add tools, all or, if one of them cannot be added, none; returns them.

        Raises:
            ToolDefinitionError: as `collect_tools`, and for a name that is there already.
        """
        new = collect_tools(source, agent_tool=self._agent_tool, resources=self._resources())
        _put(dict(self._tools), iter(new))
        self._tools.update((one.name, one) for one in new)
        self.offered = list(self._tools), [one.schema for one in self._tools.values()]
        return new

    def remove(self, name: str) -> Tool:
        """Take a tool out and return it.

        Raises:
            ToolNotFound: there is none of that name.
        """
        if name not in self._tools:
            raise self.missing(name)
        removed = self._tools.pop(name)
        self.offered = list(self._tools), [one.schema for one in self._tools.values()]
        return removed

    def schemas(self) -> list[dict[str, Any]]:
        """The schemas for the model: the same list until tools change, as providers remember what they made of it."""
        return self.offered[1]

    def is_elsewhere(self, name: str) -> bool:
        """Whether there is a tool of that name that is carried out elsewhere."""
        tool = self.by_name.get(name)
        return tool is not None and tool.function is None

    def closest(self, name: str) -> str | None:
        """The name that was probably meant, or None."""
        plain = {_plain_name(known): known for known in self._tools}
        near = nearest(_plain_name(name), plain)
        return plain[near] if near else None

    def missing(self, name: object) -> ToolNotFound:
        """The error for a name without a tool: what was probably meant, and what there is."""
        near = self.closest(str(name))
        hint = f" Did you mean {near!r}?" if near else ""
        return ToolNotFound(f"there is no tool {name!r}.{hint}\nTools: {', '.join(self._tools) or 'none'}")


def _plain_name(name: str) -> str:
    return re.sub(r"[\W_]", "", name.rpartition(".")[2]).casefold()
