"""Tools: what the model may call, made from functions, methods, callables or a given JSON Schema."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any, overload

from connectagent.errors import ToolDefinitionError, ToolNotFound
from connectagent.tools.arguments import Check, GivenCheck, misfit, short
from connectagent.tools.results import error_content, harmless, result_content
from connectagent.tools.running import settled
from connectagent.tools.schema import check_name, given_schema
from connectagent.tools.signature import (
    Interface,
    function_name,
    interface,
    marks_of,
    origin,
    plain_function,
    shown,
    tool,
)

__all__ = ["Tool", "ToolRegistry", "collect_tools", "error_content", "result_content", "tool"]

AgentTool = Callable[[Any], "Tool"]

_DESCRIPTION_LENGTH = 1_024  # OpenAI refuses more


@dataclass(slots=True, eq=False, weakref_slot=True)
class Tool:
    """One thing that the model may call.

    `Tool.from_function(f)` reads everything from a function. Given a JSON Schema (of an MCP server, from a
    recording), arguments are checked against its top level and passed to `function` as they are.

    Args:
        name: letters, digits, `_` and `-`, at most 64.
        description: what the model is told; made from the name where it is empty.
        parameters: the JSON Schema of the arguments, an object. A copy is kept, completed for the providers.
        function: is called with the arguments by name, and with the agent if it has a parameter `agent`.
        read_only: it changes nothing.
        idempotent: running it twice is as good as once.

    Attributes:
        schema: `{"type": "function", "function": {"name", "description", "parameters"}}`; do not change it.
        takes_agent: whether the function is given the agent.

    Raises:
        ToolDefinitionError: a name or schema that providers refuse.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., Any]
    _: KW_ONLY
    read_only: bool = False
    idempotent: bool = False
    known: InitVar[Interface | None] = None
    schema: dict[str, Any] = field(init=False, repr=False)
    takes_agent: bool = field(init=False, repr=False)
    _check: Check = field(init=False, repr=False)

    def __post_init__(self, known: Interface | None) -> None:
        check_name(self.name, origin(self.function) if callable(self.function) else "Tool(...)")
        if not isinstance(self.description, str | None):
            raise ToolDefinitionError(f"tool {self.name!r}: description must be text, got {shown(self.description)}.")
        if not callable(self.function):
            raise ToolDefinitionError(f"tool {self.name!r}: function must be callable, got {shown(self.function)}.")
        if known is None:
            self.parameters = given_schema(self.parameters, self.name)
            self.takes_agent = "agent" not in self.parameters["properties"] and _has_agent(self.function)
            self._check = GivenCheck(self.parameters)
        else:
            self.takes_agent, self._check = known.takes_agent, known.check
        self.description = harmless(self.description or "") or _sentence(self.name)
        told = self.description
        if len(told) > _DESCRIPTION_LENGTH:
            told = told[: _DESCRIPTION_LENGTH - 4].rstrip() + " ..."
        function = {"name": self.name, "description": told, "parameters": self.parameters}
        self.schema = {"type": "function", "function": function}

    @classmethod
    def from_function(cls, function: Callable[..., Any]) -> Tool:
        """A tool from a function, bound method, async function, partial or callable object.

        Name and description come from the function and its docstring (Google, NumPy or ReST), or from `@tool`;
        the schema from its annotations. What is read is remembered, so the second time costs microseconds.

        Raises:
            ToolDefinitionError: a parameter without an annotation, or with one that no JSON Schema describes.
        """
        if isinstance(function, type) or not callable(function):
            raise ToolDefinitionError(_not_a_tool(function))
        marks = marks_of(function)
        name = (marks and marks.name) or function_name(function)
        known = interface(function, name)
        return cls(
            name,
            (marks and marks.description) or known.description,
            known.parameters,
            function,
            read_only=marks is not None and marks.read_only,
            idempotent=marks is not None and marks.idempotent,
            known=known,
        )

    @property
    def origin(self) -> str:
        """Where its function is defined, as `file:line`."""
        return origin(self.function)

    def bind(self, arguments: dict[str, Any], agent: object = None) -> dict[str, Any]:
        """Validate and coerce the model's arguments into the keyword arguments of the call.

        Args:
            arguments: what the model sent.
            agent: what the parameter `agent` receives, if there is one.

        Raises:
            ToolArgumentsError: something is missing, unknown or of the wrong type; the text is for the model.
        """
        if not isinstance(arguments, dict):
            what = f"they must be a JSON object, not {short(arguments)}"
            raise misfit(self.name, self.parameters, [what])
        values = self._check(self.name, arguments)
        if self.takes_agent:
            values["agent"] = agent
        return values

    def run(self, kwargs: dict[str, Any]) -> Any:
        """Call the function; what it awaits or yields is run to its end.

        Raises:
            RuntimeError: the function called `sys.exit`, which must not end the agent.
            Exception: whatever the function raises.
        """
        try:
            return settled(self.function(**kwargs))
        except SystemExit as error:
            raise RuntimeError(f"the tool called sys.exit({error.code!r})") from error


def _sentence(name: str) -> str:
    """A description where nobody wrote one: `read_file` is "Read file."."""
    words = re.sub(r"[-_]+", " ", name).strip() or name
    return f"{words[:1].upper()}{words[1:]}."


def _has_agent(function: Callable[..., Any]) -> bool:
    try:
        found = inspect.signature(function).parameters.get("agent")
    except (ValueError, TypeError, NameError):
        return False
    return found is not None and found.kind in (found.POSITIONAL_OR_KEYWORD, found.KEYWORD_ONLY)


# -- collecting ----------------------------------------------------------------------------------


def collect_tools(source: object, *, agent_tool: AgentTool | None = None) -> list[Tool]:
    """The tools that `tools=` means.

    Args:
        source: None; a function, bound method, async function, callable, `functools.partial`, `Tool`, agent, an
            instance whose public annotated methods are tools, a registry; or a list or tuple of them, nested too.
        agent_tool: makes the tool that calls an agent.

    Raises:
        ToolDefinitionError: something else is in it, something cannot be a tool, or two have one name.
    """
    found: dict[str, Tool] = {}
    _put(found, _tools_of(source, agent_tool))
    return list(found.values())


def _put(found: dict[str, Tool], tools: Iterator[Tool]) -> None:
    for one in tools:
        if one.name in found:
            raise ToolDefinitionError(
                f"two tools are named {one.name!r}:\n  {found[one.name].origin}\n  {one.origin}\n"
                "Leave one out, or name it otherwise with @tool(name=...)."
            )
        found[one.name] = one


def _tools_of(source: Any, agent_tool: AgentTool | None) -> Iterator[Tool]:
    if source is None:
        return
    if isinstance(source, Tool):
        yield source
    elif isinstance(source, list | tuple | ToolRegistry):
        for one in source:
            yield from _tools_of(one, agent_tool)
    elif isinstance(source, type) or (type(source).__module__ == "builtins" and not callable(source)):
        raise ToolDefinitionError(_not_a_tool(source))
    elif isinstance(getattr(source, "name", None), str) and callable(getattr(source, "input", None)):
        if agent_tool is None:
            raise ToolDefinitionError(
                f"the agent {source.name!r} cannot be a tool here: pass a function that calls it."
            )
        yield agent_tool(source)
    elif callable(source):
        yield Tool.from_function(source)
    else:
        yield from _methods(source)


def _methods(instance: Any) -> Iterator[Tool]:
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
        if marks_of(method) is None and (name.startswith("_") or not plain_function(method).__annotations__):
            continue
        found = True
        try:
            yield Tool.from_function(method)
        except ToolDefinitionError as error:
            rather = f"Or pass only the methods of {type(instance).__name__} that are tools: tools=[x.{name}, ...]."
            raise ToolDefinitionError(f"{error}\n{rather}") from error
    if not found:
        raise ToolDefinitionError(
            f"{shown(instance)} has no public method with annotations, so it brings no tool.\n"
            "Annotate the parameters of its methods, or pass functions."
        )


def _not_a_tool(source: object) -> str:
    if isinstance(source, type):
        where = f"{source.__module__}.{source.__qualname__}"
        return f"the class {where} cannot be a tool: make an instance, {source.__name__}(...)."
    if isinstance(source, types.CoroutineType):
        source.close()
        return f"{source.__name__}(...) was called, and its coroutine was passed; pass the function: {source.__name__}."
    if isinstance(source, types.ModuleType):
        return f"the module {source.__name__!r} cannot be a tool: pass its functions."
    return (
        f"{shown(source)} cannot be a tool. Accepted are functions, methods, callables, functools.partial, "
        "Tool(...), agents,\nand instances of classes with annotated methods; one, or a list of them."
    )


class ToolRegistry:
    """The tools of an agent, by name and in order.

    `name in tools`, `tools["search"]`, iteration over `Tool`s, and `tools.search("x")`, which calls the function.

    Args:
        source: anything that `collect_tools` takes.
        agent_tool: makes the tool that calls an agent.
    """

    def __init__(self, source: object = None, *, agent_tool: AgentTool | None = None) -> None:
        self._tools: dict[str, Tool] = {}
        self._schemas: list[dict[str, Any]] | None = None
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
            return self._tools[name].function
        if name.startswith("__") or name == "_tools":
            raise AttributeError(name)
        raise AttributeError(str(self.missing(name)))

    @overload
    def get(self, name: str) -> Tool | None: ...
    @overload
    def get(self, name: str, default: Tool) -> Tool: ...
    def get(self, name: str, default: Tool | None = None) -> Tool | None:
        """The tool of that name, or `default`."""
        return self._tools.get(name, default)

    def names(self) -> list[str]:
        """The names of the tools, in the order in which they were added."""
        return list(self._tools)

    def add(self, source: object) -> list[Tool]:
        """Add tools, all or, if one of them cannot be added, none; returns them.

        Raises:
            ToolDefinitionError: as `collect_tools`, and for a name that is there already.
        """
        new = collect_tools(source, agent_tool=self._agent_tool)
        _put(dict(self._tools), iter(new))
        self._tools.update((one.name, one) for one in new)
        self._schemas = None
        return new

    def remove(self, name: str) -> Tool:
        """Take a tool out and return it.

        Raises:
            ToolNotFound: there is none of that name.
        """
        if name not in self._tools:
            raise self.missing(name)
        self._schemas = None
        return self._tools.pop(name)

    def schemas(self) -> list[dict[str, Any]]:
        """The schemas for the model: the same list until tools change, as providers remember what they made of it."""
        if self._schemas is None:
            self._schemas = [one.schema for one in self._tools.values()]
        return self._schemas

    def closest(self, name: str) -> str | None:
        """The name that was probably meant, or None."""
        import difflib

        plain = {_plain_name(known): known for known in self._tools}
        near = difflib.get_close_matches(_plain_name(name), plain, 1)
        return plain[near[0]] if near else None

    def missing(self, name: object) -> ToolNotFound:
        """The error that tells there is no such tool, what was probably meant, and what there is."""
        near = self.closest(str(name))
        hint = f" Did you mean {near!r}?" if near else ""
        return ToolNotFound(f"there is no tool {name!r}.{hint}\nTools: {', '.join(self._tools) or 'none'}")


def _plain_name(name: str) -> str:
    return re.sub(r"[\W_]", "", name.rpartition(".")[2]).casefold()
