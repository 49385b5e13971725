"""What a function tells of itself as a tool: by `@tool`, its parameters, types, defaults and docstring."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload
from weakref import WeakKeyDictionary

from connectagent.errors import ToolDefinitionError
from connectagent.tools.arguments import Check, as_json, signature_check
from connectagent.tools.docstring import call_method, docstring
from connectagent.tools.schema import check_name, check_timeout, wire_schema

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

F = TypeVar("F", bound=Callable[..., Any])

OPTIONS = "__connectagent_tool__"
"""The attribute that `@tool` leaves on a function."""


# -- what @tool says ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """What `@tool` says of a function."""

    name: str | None
    description: str | None
    read_only: bool
    idempotent: bool
    alone: bool
    timeout_s: float | None
    names: dict[str, Any]  # what its annotations mean, if it was defined inside a function that has ended since


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    idempotent: bool = False,
    alone: bool = False,
    timeout_s: float | None = None,
) -> Callable[[F], F]: ...
def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    idempotent: bool = False,
    alone: bool = False,
    timeout_s: float | None = None,
) -> F | Callable[[F], F]:
    """Say more about a function that is used as a tool; the function itself does not change.

    Args:
        name: what the model calls it by; without it, the function's name.
        description: what the model reads about it; without it, the docstring.
        read_only: it changes nothing, so trust policies let it run.
        idempotent: running it twice is as good as once, so it may be run again after a crash.
        alone: no other call of its round runs at the same time, whatever `Agent(parallel_tools=...)` says.
        timeout_s: how many seconds a call may take; then it is an error that the model reads, and the turn goes on.

    Raises:
        ToolDefinitionError: what is decorated is not a function, the name is not one that providers take, or
            `timeout_s` is not a positive number.
    """
    if name is not None:
        check_name(name, "@tool")
    check_timeout(timeout_s, "@tool")

    def mark(function: F) -> F:
        target = function.__func__ if isinstance(function, staticmethod | classmethod) else function
        if isinstance(target, type) or not callable(target):
            raise ToolDefinitionError(f"@tool marks functions and methods; it was given {described(function)}.")
        names = local_names(plain_function(target))
        options = ToolOptions(name, description, read_only, idempotent, alone, timeout_s, names)
        try:
            setattr(target, OPTIONS, options)
        except (AttributeError, TypeError):
            raise ToolDefinitionError(
                f"@tool cannot mark {described(function)}. Mark the function where it is defined, or wrap it in one."
            ) from None
        return function

    return mark if function is None else mark(function)


def options_of(function: object) -> ToolOptions | None:
    """What `@tool` said of a function, through partials too."""
    options = getattr(function, OPTIONS, None)
    while options is None and isinstance(function, functools.partial):
        function = function.func
        options = getattr(function, OPTIONS, None)
    return options if isinstance(options, ToolOptions) else None  # a mock has every attribute


def function_name(function: object) -> str:
    """The name of a tool that was given none: the function's, or the class's of a callable object."""
    while isinstance(function, functools.partial) and not hasattr(function, "__name__"):
        function = function.func
    name = getattr(function, "__name__", None)
    if name == "<lambda>":
        raise ToolDefinitionError(
            f"a lambda cannot be a tool ({origin(function)}): it has no name and no annotations.\nWrite a 'def', "
            "or give both: Tool(name, description, parameters, function)."
        )
    if isinstance(name, str):
        return name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(function).__name__).lower()


def described(thing: object) -> str:
    """A thing in a message, with its type."""
    return f"{as_json(thing) if isinstance(thing, str | int | dict) else 'an object'} of type {type(thing).__name__!r}"


# -- what the function itself says ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Interface:
    """What is known of a function, whichever name it is a tool under.

    Args:
        description: from the docstring; empty where there is none.
        parameters: the JSON Schema of the arguments.
        check: validates and coerces what the model sent.
        takes_agent: whether there is a parameter `agent`, which the model does not see.
        resources: the parameters that are resources of the agent, which the model does not see either.
    """

    description: str
    parameters: dict[str, Any]
    check: Check
    takes_agent: bool
    resources: tuple[str, ...] = ()


# By function and not by method: a bound method is a new object at every access. The second one holds what is
# bound, as a function and a method of it differ in their first parameter.
_INTERFACES: tuple[WeakKeyDictionary[Any, Interface], ...] = (WeakKeyDictionary(), WeakKeyDictionary())


def interface(function: Callable[..., Any], name: str, resources: Collection[str] = ()) -> Interface:
    """The interface of a function, method, partial or callable object; made once and remembered.

    Args:
        name: what messages call the tool.
        resources: the names of the agent's resources.

    Raises:
        ToolDefinitionError: a parameter has no annotation, or one that cannot be described to a model.
    """
    if resources and any(_is_hidden(one, resources) for one in _parameters(function, name)):
        return _read(function, name, resources)
    key = getattr(function, "__func__", function)
    known = _INTERFACES[key is not function]
    if not (isinstance(key, functools.partial) or hasattr(key, "__name__")):
        key = type(key)
    with suppress(KeyError, TypeError):
        return known[key]
    made = _read(function, name)
    with suppress(TypeError):  # a callable written in C may not allow weak references
        known[key] = made
    return made


def plain_function(function: object) -> Any:
    """The function behind methods, partials, decorators and callable objects: it has the code and the names."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__func__"):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif not isinstance(function, types.FunctionType) and isinstance(call_method(function), types.FunctionType):
            function = call_method(function)
        else:
            return function


def origin(function: object) -> str:
    """Where a function is defined, as `file:line`; without a file, what is known of it."""
    code = getattr(plain_function(function), "__code__", None)
    if code is None:
        return f"{getattr(function, '__module__', None) or type(function).__module__} (no source)"
    return f"{code.co_filename}:{code.co_firstlineno}"


# -- from signature and docstring ----------------------------------------------------------------


def _is_hidden(parameter: inspect.Parameter, resources: Collection[str]) -> bool:
    return parameter.name in resources and parameter.default is parameter.empty


def _read(function: Callable[..., Any], name: str, resources: Collection[str] = ()) -> Interface:
    described, documented = docstring(function)
    fields = _Fields(function, name, resources)
    hidden = [*fields.taken, *(["agent"] if fields.takes_agent else [])]
    schema, check = signature_check(
        fields.annotations, fields.required, fields.extra, fields.fill, hidden, fields.refuse
    )
    properties = schema.setdefault("properties", {})
    for parameter, text in {**documented, **fields.notes}.items():
        if parameter in properties and text:
            properties[parameter].setdefault("description", text)
    for parameter, default in fields.defaults.items():
        _describe_default(properties[parameter], default)
    check.schema = wire_schema(schema, name)
    return Interface(described, check.schema, check, fields.takes_agent, tuple(fields.taken))


class _Fields:
    """The parameters of a function that the model fills in."""

    def __init__(self, function: Callable[..., Any], name: str, resources: Collection[str]) -> None:
        self.function, self.name, self.resources, self.taken = function, name, resources, list[str]()
        self.plain = plain_function(function)
        self.annotations: dict[str, Any] = {}
        self.required: set[str] = set()
        self.notes: dict[str, str] = {}
        self.defaults: dict[str, Any] = {}
        self.fill: dict[str, Callable[[], Any]] = {}
        self.extra: Any = None
        self.takes_agent = False
        self._names: dict[str, Any] | None = None
        for parameter in _parameters(function, name):
            self._add(parameter)

    def _add(self, parameter: inspect.Parameter) -> None:
        if parameter.kind is parameter.VAR_KEYWORD:
            self.extra = Any if parameter.annotation is parameter.empty else self._type(parameter)
            return
        if parameter.kind is parameter.VAR_POSITIONAL:
            self.refuse(f"takes '*{parameter.name}'", "Models pass arguments by name: take a list instead")
        if parameter.name == "agent":
            self.takes_agent = True
            return
        if _is_hidden(parameter, self.resources):
            self.taken.append(parameter.name)
            return
        if parameter.kind is parameter.POSITIONAL_ONLY:
            self.refuse(f"parameter {parameter.name!r} is positional-only", "Drop the '/': models pass by name")
        if parameter.annotation is parameter.empty:
            self._no_annotation(parameter)
        annotation, default = self._type(parameter), parameter.default
        for note in getattr(annotation, "__metadata__", ()):  # Annotated[str, "text"] or Annotated[str, Doc("text")]
            note = getattr(note, "documentation", note)
            if isinstance(note, str):
                self.notes.setdefault(parameter.name, note)
        if default is parameter.empty:
            self.required.add(parameter.name)
        elif default is None:
            annotation = typing.Optional[annotation]  # noqa: UP045  `|` fails for what is not a class
        elif type(default).__name__ == "FieldInfo":  # `x: int = Field(3, ge=1)`, which loads pydantic already
            annotation = self._from_field(parameter.name, annotation, default)
        else:
            self.defaults[parameter.name] = default
        self.annotations[parameter.name] = annotation

    def _from_field(self, name: str, annotation: Any, field: FieldInfo) -> Any:
        if field.is_required():
            self.required.add(name)
        else:
            self.fill[name] = functools.partial(field.get_default, call_default_factory=True)
        return typing.Annotated[annotation, field]

    def _type(self, parameter: inspect.Parameter) -> Any:
        """The annotation with its names resolved. One at a time: `agent: "Agent"` and the result need not resolve."""
        if self._names is None:
            options = options_of(self.function)
            self._names = {**(options.names if options else {}), **local_names(self.plain)}
        holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
        try:
            hints = typing.get_type_hints(holder, getattr(self.plain, "__globals__", {}), self._names, True)
            return _current_typeddicts(hints[parameter.name])
        except Exception as error:
            text = parameter.annotation if isinstance(parameter.annotation, str) else repr(parameter.annotation)
            self.refuse(
                f"the annotation {text!r} of parameter {parameter.name!r} cannot be resolved: {error}",
                "Import its names at run time (not under TYPE_CHECKING), or define them at the top of the module",
            )

    def _no_annotation(self, parameter: inspect.Parameter) -> typing.NoReturn:
        if parameter.name == "self":
            self.refuse("it is a method of a class", "Pass the method of an instance: 'Thing().method'")
        optional = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        self.refuse(
            f"parameter {parameter.name!r} has no type annotation",
            f"Write one, for example '{parameter.name}: str{optional}': the model needs the type",
        )

    def refuse(self, what: str, remedy: str) -> typing.NoReturn:
        raise ToolDefinitionError(f"tool {self.name!r}: {what}\n  at {origin(self.function)}\n{remedy}.")


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    """The parameters that are left to fill in; what a partial has bound is gone."""
    if isinstance(function, functools.partial):
        # Counted here, as `functools.update_wrapper` on a partial makes `signature` show the whole function.
        left = _parameters(function.func, name)[len(function.args) :]
        return [parameter for parameter in left if parameter.name not in function.keywords]
    try:
        return list(inspect.signature(function).parameters.values())
    except (ValueError, NameError) as error:
        raise ToolDefinitionError(
            f"tool {name!r}: its signature cannot be read: {error}\n  at {origin(function)}\n"
            "Wrap it in a function with annotations, or give the schema: Tool(name, description, parameters, function)."
        ) from error


def local_names(function: Callable[..., Any]) -> dict[str, Any]:
    """What the annotations of a nested function may mean: names of the functions about it that run right now."""
    parents = getattr(function, "__qualname__", "").split(".<locals>.")[:-1]
    if not parents:
        return {}
    scopes = {".<locals>.".join(parents[: depth + 1]) for depth in range(len(parents))}
    wanted = set(re.findall(r"[^\W\d]\w*", " ".join(map(str, getattr(function, "__annotations__", {}).values()))))
    found: dict[str, Any] = {}
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals is function.__globals__ and frame.f_code.co_qualname in scopes:
            found = {name: value for name, value in frame.f_locals.items() if name in wanted} | found
        frame = frame.f_back  # type: ignore[assignment]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # a cell that is still empty
            found.setdefault(name, cell.cell_contents)
    return found


def _current_typeddicts(annotation: Any) -> Any:
    """The annotation with `typing.TypedDict` replaced, which pydantic refuses before Python 3.12."""
    if sys.version_info >= (3, 12):
        return annotation
    if type(annotation).__module__ == "typing" and typing.is_typeddict(annotation):
        return _current_typeddict(annotation)
    inner = typing.get_args(annotation)
    if not inner or typing.get_origin(annotation) is typing.Literal:
        return annotation
    replaced = tuple(map(_current_typeddicts, inner))
    if replaced == inner:
        return annotation
    if typing.get_origin(annotation) is types.UnionType:
        return typing.Union[replaced]  # noqa: UP007  the members are only known here
    if typing.get_origin(annotation) is typing.Annotated:
        return typing.Annotated[replaced]
    copy_with = getattr(annotation, "copy_with", None)  # of `typing.List[X]`; `list[X]` has none
    return copy_with(replaced) if copy_with else typing.get_origin(annotation)[replaced]


@functools.lru_cache(maxsize=256)  # one class for one class, or a schema would define it twice
def _current_typeddict(old: Any) -> Any:
    import typing_extensions

    hints = typing.get_type_hints(old, include_extras=True)
    required, optional = (
        (typing.Required, typing_extensions.Required),
        (typing.NotRequired, typing_extensions.NotRequired),
    )
    fields: dict[str, Any] = {}
    for key, hint in hints.items():
        said = typing.get_origin(hint)  # the class itself does not know what string annotations say
        left_out = said in optional or (key in old.__optional_keys__ and said not in required)
        wrap: Any = typing_extensions.NotRequired if left_out else typing_extensions.Required
        fields[key] = wrap[_current_typeddicts(typing.get_args(hint)[0] if said in required + optional else hint)]
    typed_dict: Any = typing_extensions.TypedDict
    made = typed_dict(old.__name__, fields)
    made.__module__, made.__qualname__, made.__doc__ = old.__module__, old.__qualname__, old.__doc__
    return made


def _describe_default(schema: dict[str, Any], default: object) -> None:
    """Tell the model a default, if it is short and can be written in JSON."""
    import json

    from pydantic_core import to_jsonable_python

    with suppress(Exception):  # a default that cannot be shown is still the function's default
        plain = to_jsonable_python(default)
        if len(json.dumps(plain, allow_nan=False)) <= 200:
            schema.setdefault("default", plain)
