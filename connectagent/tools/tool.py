"""Tools: what the model may call, made from functions, methods, callables or a given JSON Schema."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Collection, Iterable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import partial
from typing import Any, NoReturn, Protocol

from connectagent.errors import Pause, ToolDefinitionError, cut
from connectagent.tools.arguments import Check, GivenCheck, as_json, misfit
from connectagent.tools.awaiting import STOPS, is_cancelled, was_cancelled
from connectagent.tools.results import harmless
from connectagent.tools.running import SETTLED, settled
from connectagent.tools.schema import check_name, check_timeout, given_schema
from connectagent.tools.signature import (
    Interface,
    described,
    function_name,
    interface,
    options_of,
    origin,
)

_DESCRIPTION_LENGTH = 1_024  # OpenAI refuses more


class Resources(Protocol):
    """The resources of an agent."""

    def give(self, names: Iterable[str], taker: str) -> dict[str, Any]: ...


class ResourceUser(Protocol):
    """The agent that runs a tool, as far as the tool needs it."""

    @property
    def resources(self) -> Resources: ...


@dataclass(slots=True, eq=False, weakref_slot=True)
class Tool:
    """One thing that the model may call.

    `Tool.from_function(f)` reads everything from a function. Given a JSON Schema (of an MCP server, from a
    recording), arguments are checked against its top level and passed to `function` as they are.

    Args:
        name: letters, digits, `_` and `-`, at most 64.
        description: what the model reads; made from the name where it is empty.
        parameters: the JSON Schema of the arguments, an object. A copy is kept, completed for the providers.
        function: is called with the arguments by name, and with the agent if it has a parameter `agent`. None for a
            tool that is carried out elsewhere: each call waits until `resume(answer=...)` brings its result.
        read_only: it changes nothing.
        idempotent: running it twice is as good as once.
        alone: no other call of its round runs at the same time.
        timeout_s: how many seconds a call may take; None for any.

    Attributes:
        schema: `{"type": "function", "function": {"name", "description", "parameters"}}`; do not change it.
        takes_agent: whether the function is given the agent.
        resources: the parameters for which the function is given resources of the agent.
        origin: where its function is defined, as `file:line`.
        by: names the tool in entries of the trace: `tool`, `file` and `line`.

    Raises:
        ToolDefinitionError: a name or schema that providers refuse.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., Any] | None = None
    _: KW_ONLY
    read_only: bool = False
    idempotent: bool = False
    alone: bool = False
    timeout_s: float | None = None
    known: InitVar[Interface | None] = None
    schema: dict[str, Any] = field(init=False, repr=False)
    takes_agent: bool = field(init=False, repr=False)
    resources: tuple[str, ...] = field(init=False, repr=False, default=())
    origin: str = field(init=False, repr=False)
    by: dict[str, Any] = field(init=False, repr=False)
    _check: Check = field(init=False, repr=False)

    def __post_init__(self, known: Interface | None) -> None:
        self.origin = origin(self.function) if callable(self.function) else "Tool(...)"
        file, _, line = self.origin.rpartition(":")
        self.by = {"tool": self.name, "file": file, "line": int(line) if line.isdecimal() else 0}
        check_name(self.name, self.origin)
        if not isinstance(self.description, str | None):
            given = described(self.description)
            raise ToolDefinitionError(f"tool {self.name!r}: description must be text, got {given}.")
        check_timeout(self.timeout_s, f"tool {self.name!r}")
        if self.function is not None and not callable(self.function):
            raise ToolDefinitionError(f"tool {self.name!r}: function must be callable, got {described(self.function)}.")
        if known is None:
            self.parameters = given_schema(self.parameters, self.name)
            self.takes_agent = "agent" not in self.parameters["properties"] and _has_agent(self.function)
            self._check = GivenCheck(self.parameters)
        else:
            self.takes_agent, self.resources, self._check = known.takes_agent, known.resources, known.check
        self.description = harmless(self.description or "") or _sentence(self.name)
        text = cut(self.description, _DESCRIPTION_LENGTH)
        function = {"name": self.name, "description": text, "parameters": self.parameters}
        self.schema = {"type": "function", "function": function}

    @classmethod
    def from_function(cls, function: Callable[..., Any], resources: Collection[str] = ()) -> Tool:
        """A tool from a function, bound method, async function, partial or callable object.

        Name and description come from the function and its docstring (Google, NumPy or ReST), or from `@tool`;
        the schema from its annotations. What is read is remembered, so the second time costs microseconds.

        Args:
            function: the function.
            resources: the names of the agent's resources, which the model does not see.

        Raises:
            ToolDefinitionError: a parameter without an annotation, or with one that no JSON Schema describes.
        """
        if isinstance(function, type) or not callable(function):
            raise ToolDefinitionError(not_a_tool(function))
        options = options_of(function)
        name = (options and options.name) or function_name(function)
        known = interface(function, name, resources)
        return cls(
            name,
            (options and options.description) or known.description,
            known.parameters,
            function,
            read_only=options is not None and options.read_only,
            idempotent=options is not None and options.idempotent,
            alone=options is not None and options.alone,
            timeout_s=options.timeout_s if options is not None else None,
            known=known,
        )

    def __reduce__(self) -> Any:
        if not isinstance(self._check, GivenCheck):
            return Tool.from_function, (self.function, self.resources)
        options = {name: getattr(self, name) for name in ("read_only", "idempotent", "alone", "timeout_s")}
        return partial(Tool, self.name, self.description, self.parameters, self.function, **options), ()

    def canonical(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Check the model's arguments, and bring them to the one JSON form that their values have.

        However a model spells a value, guards see one form of it, and the function gets what is read from that form.
        Given a schema, the form is what was sent. Objects that are no JSON stay as they are.

        Args:
            arguments: what the model sent. They are not changed, and returned themselves where they are canonical.

        Raises:
            ToolArgumentsError: something is missing, unknown or of the wrong type; the text is for the model.
        """
        if not isinstance(arguments, dict):
            self._refuse(arguments)
        return self._check.canonical(self.name, arguments)

    def bind(self, arguments: dict[str, Any], agent: ResourceUser | None = None) -> dict[str, Any]:
        """The keyword arguments of the call, read from the canonical form of the model's arguments.

        Args:
            arguments: what the model sent, or its canonical form.
            agent: what the parameter `agent` receives, and who has the resources.

        Raises:
            ToolArgumentsError: something is missing, unknown or of the wrong type; the text is for the model.
        """
        if not isinstance(arguments, dict):
            self._refuse(arguments)
        values = self._check.read(self.name, arguments)
        if self.takes_agent:
            values["agent"] = agent
        if self.resources:
            if agent is None:
                raise TypeError(f"tool {self.name!r} takes resources, which only an agent has")
            values |= agent.resources.give(self.resources, f"tool {self.name!r} ({self.origin})")
        return values

    def _refuse(self, arguments: object) -> NoReturn:
        raise misfit(self.name, self.parameters, [f"they must be a JSON object, not {as_json(arguments)}"])

    def run(self, kwargs: dict[str, Any]) -> Any:
        """Call the function; what it awaits or yields is run to its end.

        Raises:
            Pause: there is no function; the result is to come from elsewhere.
            RuntimeError: the function called `sys.exit`, or raised asyncio's `CancelledError`: neither must end the
                agent.
            Exception: whatever the function raises.
        """
        if self.function is None:
            raise Pause(f"{self.name} is carried out elsewhere")
        try:
            value = self.function(**kwargs)
            return value if type(value) in SETTLED else self._settled(value)
        except SystemExit as error:
            raise RuntimeError(f"the tool called sys.exit({error.code!r})") from error
        except BaseException as error:
            if is_cancelled(error):  # of something that the function waited for; the turn's own end is told otherwise
                raise was_cancelled(STOPS.get()) from error
            raise

    def _settled(self, value: object) -> Any:
        """What the function returned, run to its end."""
        return settled(value)


def _sentence(name: str) -> str:
    """A description where nobody wrote one: `read_file` is "Read file."."""
    words = re.sub(r"[-_]+", " ", name).strip() or name
    return f"{words[:1].upper()}{words[1:]}."


def _has_agent(function: Callable[..., Any] | None) -> bool:
    try:
        found = inspect.signature(function).parameters.get("agent")  # type: ignore[arg-type]
    except (ValueError, TypeError, NameError):
        return False
    return found is not None and found.kind in (found.POSITIONAL_OR_KEYWORD, found.KEYWORD_ONLY)


def not_a_tool(source: object) -> str:
    if isinstance(source, type):
        where = f"{source.__module__}.{source.__qualname__}"
        return f"the class {where} cannot be a tool: make an instance, {source.__name__}(...)."
    if isinstance(source, types.CoroutineType):
        source.close()
        return f"{source.__name__}(...) was called, and its coroutine was passed; pass the function: {source.__name__}."
    if isinstance(source, types.ModuleType):
        return f"the module {source.__name__!r} cannot be a tool: pass its functions."
    return (
        f"{described(source)} cannot be a tool. Accepted are functions, methods, callables, functools.partial, "
        "Tool(...), agents,\nand instances of classes with annotated methods; one, or a list of them."
    )
