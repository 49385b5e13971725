"""Checks the arguments that a model sends, and makes the error that it reads where they do not fit."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from connectagent.errors import ToolArgumentsError, cut, libraries, nearest
from connectagent.tools.fields import Fields, Parameter
from connectagent.tools.schema import target


class Check(Protocol):
    """Brings the arguments that a model sends to their canonical form, and makes the keyword arguments from it."""

    def canonical(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The one JSON form of the arguments of a tool; the same object where they have it already.

        Raises:
            ToolArgumentsError: they do not fit.
        """

    def read(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments that a tool's function gets, read from the canonical form of the arguments.

        Raises:
            ToolArgumentsError: they do not fit.
        """


def signature_check(
    annotations: dict[str, Any],
    required: set[str],
    extra: Any,
    fill: dict[str, Callable[[], Any]],
    hidden: Collection[str],
    refuse: Callable[[str, str], typing.NoReturn],
) -> tuple[dict[str, Any], SignatureCheck]:
    """The schema of annotated parameters, and the check that validates and coerces arguments for them.

    Args:
        annotations: parameter to type, resolved.
        required: the parameters without a default.
        extra: the type of `**kwargs`, or None where there are none.
        fill: makes the values of parameters that the model left out and the function cannot fill in.
        hidden: parameters that are given the agent or a resource, which the model must not fill in.
        refuse: raises the error for an annotation that has no schema, given what is wrong and a remedy.
    """
    with libraries():
        import pydantic  # noqa: F401 - else its absence would be blamed on the first annotation
    try:
        own = Fields(annotations, required)
        schema = own.schema()
        more = None
        if extra is not None:
            more = Fields({"kwargs": dict[str, extra]}, {"kwargs"})
            described = more.schema()
            schema["additionalProperties"] = described["properties"]["kwargs"].get("additionalProperties", True)
            schema.setdefault("$defs", {}).update(described.get("$defs", {}))
    except Exception as error:
        _refuse_culprit({**annotations, "kwargs": extra}, refuse, error)
    return schema, SignatureCheck(schema, own, more, fill, hidden)


def _refuse_culprit(
    annotations: dict[str, Any], refuse: Callable[[str, str], typing.NoReturn], error: Exception
) -> typing.NoReturn:
    """Find the parameter whose type pydantic does not take, and refuse it by name."""
    remedy = "Take text, numbers, lists, dicts, dataclasses or pydantic models, and make the object inside the function"
    for name, kind in annotations.items():
        try:
            Fields({name: kind}, {name}).schema()
        except Exception as found:
            text = getattr(kind, "__qualname__", None) or str(kind)
            reason = str(found).partition("\n")[0].partition(". Set `arbitrary")[0]
            refuse(f"parameter {name!r} is of type {text}, which cannot be described to a model: {reason}", remedy)
    refuse(f"its parameters cannot be described to a model: {error}", remedy)


class SignatureCheck:
    """Validates arguments with pydantic, in its lax mode: "3" is an int, 3 is a str, "three" is neither.

    What comes of them has one JSON form, however it was spelled: handlers see that form, and the function's values
    are read from it.

    Args:
        schema: the JSON Schema of the arguments.
        own: the parameters.
        more: what stands for `**kwargs`, as a dict that is called `kwargs`.
        fill: makes the values of parameters that the model left out and the function cannot fill in.
        hidden: parameters that the model must not fill in.
    """

    def __init__(
        self,
        schema: dict[str, Any],
        own: Fields,
        more: Fields | None,
        fill: dict[str, Callable[[], Any]],
        hidden: Collection[str],
    ) -> None:
        self.schema = schema
        self._own = own
        self._more = more
        self._fill = fill
        self._hidden = hidden
        self._required = own.required_keys
        self._extra = None if more is None else more.extra_parameter()
        self._named = {*own.parameters, *hidden}  # what goes there is validated as a parameter, or refused
        self._shapes = {key: own.parameters[key].shape if key in own.parameters else None for key in self._named}
        self._extra_shape = None if self._extra is None else self._extra.shape
        self._is_itself = own.is_itself and (more is None or more.is_itself)
        self._values: Callable[[dict[str, Any]], dict[str, Any]] = own.validate if more is None else self._all_values

    def canonical(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The one JSON form of the arguments; objects that are no JSON stay as they are."""
        return arguments if self._known(arguments) is not None else self._settled(name, arguments).form

    def read(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments, read from the canonical form of the arguments."""
        values: dict[str, Any] | None = None
        if self._is_itself:  # so each spelling is read as the canonical form is
            try:
                values = self._values(arguments)
            except Exception:  # they do not fit, or are JSON inside a string
                values = None
        if values is None:
            strict = self._known(arguments)
            settled = self._settled(name, arguments) if strict is None else Settled(arguments, strict)
            values = self._read(name, settled)
        for key, make in self._fill.items():
            if key not in values:
                values[key] = make()
        return values

    def _known(self, arguments: dict[str, Any]) -> set[str] | None:
        """Which arguments are read strictly, if all are known to be canonical, by type or since they were found so."""
        strict: set[str] = set()
        shapes = self._shapes
        for key, given in arguments.items():
            shape = shapes.get(key, self._extra_shape)
            if shape is not None and shape(given):
                continue
            try:
                is_strict = self._parameter(key).found.get(given)
            except KeyError:
                return None
            if is_strict is None:
                return None
            if is_strict:
                strict.add(key)
        return strict if arguments.keys() >= self._required else None

    def _settled(self, name: str, arguments: dict[str, Any]) -> Settled:
        """The canonical form of arguments that are not known to have it, and how it is read.

        Raises:
            ToolArgumentsError: they do not fit.
        """
        sent, values = self._validated(name, arguments)
        form: dict[str, Any] = {}
        strict: set[str] = set()
        problems: list[str] = []
        for key, given in sent.items():
            parameter = self._parameter(key)
            try:
                settled = parameter.settle(key, given, values.get(parameter.name or key))
                shown = parameter.key or key
                form[shown] = settled.form
                if settled.is_strict:
                    strict.add(shown)
            except Exception as error:  # validators of users' models may raise anything
                problems += _problems(error, sent, self.schema)
        if problems:
            raise misfit(name, self.schema, problems)
        is_same = form.keys() == arguments.keys() and all(form[key] is arguments[key] for key in form)
        return Settled(arguments if is_same else form, strict)

    def _parameter(self, key: str) -> Parameter:
        """The parameter that a key of the arguments means.

        Raises:
            KeyError: there is none.
        """
        found = self._own.parameters.get(key)
        if found is None and key not in self._hidden:
            found = self._extra
        if found is None:
            raise KeyError(key)
        return found

    def _read(self, name: str, settled: Settled) -> dict[str, Any]:
        try:
            if not settled.strict:
                return self._values(settled.form)
            values: dict[str, Any] = {}
            for key, given in settled.form.items():
                parameter = self._parameter(key)
                values |= parameter.strict(key, given) if key in settled.strict else parameter.lax(key, given)
            return values
        except Exception as error:  # validators of users' models may raise anything
            raise misfit(name, self.schema, _problems(error, settled.form, self.schema)) from error

    def _validated(self, name: str, arguments: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arguments and their values, as they were sent, else as some models mean them (`_amended`)."""
        sent: dict[str, Any] | None = arguments
        first: Exception | None = None
        while sent is not None:  # once more for `**kwargs`, whose errors come after those of parameters
            try:
                return sent, self._values(sent)
            except Exception as error:  # validators of users' models may raise anything
                first = first or error  # what was sent is reported, not what was made of it
                sent = _amended(sent, error, self._required)
        assert first is not None
        raise misfit(name, self.schema, _problems(first, arguments, self.schema)) from first

    def _all_values(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The values of the parameters and those of `**kwargs`."""
        assert self._more is not None
        own = {key: value for key, value in arguments.items() if key in self._named}
        values = self._own.validate(own)
        extra = {key: value for key, value in arguments.items() if key not in own}
        return {**values, **self._more.validate({"kwargs": extra})["kwargs"]}


class Settled(NamedTuple):
    """The canonical form of arguments, and which of them are read strictly."""

    form: dict[str, Any]
    strict: set[str]


class NotedCheck:
    """A check that passes the arguments as they were given to `note` before they are read."""

    def __init__(self, check: Check, note: Callable[[dict[str, Any]], None]) -> None:
        self._check, self._note = check, note
        self.canonical = check.canonical

    def read(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """What the other check makes of them."""
        self._note(arguments)
        return self._check.read(name, arguments)


def _amended(arguments: dict[str, Any], error: Exception, required: Collection[str]) -> dict[str, Any] | None:
    """The arguments that did not fit as some models mean them; None where that changes nothing.

    Lists and objects that came as JSON inside a string are read. null for a parameter that has a default and takes
    no null leaves it out.
    """
    made = dict(arguments)
    for item in _errors(error):
        at = _location(item, arguments)
        name = at[0] if at else None
        sent = arguments.get(name) if isinstance(name, str) else None
        if sent is None and name in arguments and name not in required and item["type"] != "extra_forbidden":
            made.pop(name, None)
        if isinstance(name, str) and isinstance(sent, str) and sent.lstrip()[:1] in ("[", "{"):
            try:
                made[name] = json.loads(sent)
            except (ValueError, RecursionError):
                continue
    return made if made != arguments else None


def _errors(error: Exception) -> list[Any]:
    return error.errors(include_url=False, include_context=False) if hasattr(error, "errors") else []


def _location(item: dict[str, Any], arguments: dict[str, Any]) -> tuple[Any, ...]:
    """Where in the arguments an error is; those for `**kwargs` were validated as the items of a dict of that name."""
    at: tuple[Any, ...] = item["loc"]
    return at[1:] if at[:1] == ("kwargs",) and "kwargs" not in arguments else at


def _problems(error: Exception, arguments: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """One line for each place that is wrong: where, what was sent, what is accepted."""
    found: dict[str, tuple[str, list[str]]] = {}
    for item in _errors(error):
        at = _location(item, arguments)
        path = _path(at, arguments)
        sent = f" (you sent {as_json(item['input'])})"
        if item["type"] == "missing":
            path, text, sent = _joined(path, at[-1]), "missing, but required", ""
        elif item["type"] == "extra_forbidden" and len(at) == 1:
            text, sent = _unknown(str(at[0]), arguments, schema), ""
        elif item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            text = "there is no such key"
        else:
            text = _for_a_model(item["msg"])
        found.setdefault(path, (sent, []))[1].append(text)
    lines = [
        f"{path or 'arguments'}: {'; or '.join(dict.fromkeys(texts))}{sent}" for path, (sent, texts) in found.items()
    ]
    return lines or [f"they were refused: {type(error).__name__}: {error}"]


def _for_a_model(message: str) -> str:
    """Pydantic's message in JSON's words, and without Python's."""
    for python, plain in (("a dictionary", "an object"), ("valid dictionary", "object"), ("valid list", "list")):
        message = message.replace(python, plain)
    return message.partition(" or an instance of ")[0].removeprefix("Value error, ")


def _path(location: tuple[int | str, ...], value: Any) -> str:
    """A pydantic location as a path into what was sent; the names of union branches, which it holds too, fall out."""
    path = ""
    for step in location:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            continue
        path = _joined(path, step)
    return path


def _joined(path: str, step: object) -> str:
    return f"{path}[{step}]" if isinstance(step, int) else f"{path}.{step}" if path else str(step)


def _unknown(key: str, arguments: dict[str, Any], schema: dict[str, Any]) -> str:
    near = nearest(key, [name for name in schema.get("properties", {}) if name not in arguments])
    return "there is no such parameter" + (f"; did you mean {near!r}?" if near else "")


def misfit(name: str, schema: dict[str, Any], problems: list[str]) -> ToolArgumentsError:
    """The error for arguments that do not fit, as a model reads it."""
    required = schema.get("required", ())
    takes = [
        f"{key} ({_kind(value, schema)}{', required' if key in required else ''})"
        for key, value in schema.get("properties", {}).items()
    ]
    more = [f"- and {len(problems) - 10} more"] if len(problems) > 10 else []
    lines = [f"The arguments of {name!r} do not fit.", *(f"- {problem}" for problem in problems[:10]), *more]
    return ToolArgumentsError("\n".join([*lines, f"It takes: {', '.join(takes) or 'no arguments'}."]))


def _kind(schema: object, root: dict[str, Any]) -> str:
    """A schema in few words: `integer`, `"a" or "b"`, `list of string`."""
    if not isinstance(schema, dict):
        return "any"
    if "$ref" in schema:
        found = target(root, schema["$ref"])
        return _kind({k: v for k, v in found.items() if k != "$ref"}, root) if isinstance(found, dict) else "any"
    if "enum" in schema or "const" in schema:
        return " or ".join(as_json(value) for value in schema.get("enum", [schema.get("const")]))
    branches = schema.get("anyOf") or schema.get("oneOf")
    if branches:
        return " or ".join(dict.fromkeys(_kind(branch, root) for branch in branches))
    kinds = schema.get("type", "any")
    if kinds == "array":
        return f"list of {_kind(schema['items'], root)}" if schema.get("items") else "list"
    return " or ".join(kinds) if isinstance(kinds, list) else str(kinds)


def as_json(value: object) -> str:
    """A value in JSON, at most 80 characters of it, safe to put into a message."""
    if isinstance(value, str):
        value = value[:100]
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):
        text = f"a {type(value).__name__}"
    return cut(text.encode("utf-8", "replace").decode())


# -- arguments against a given schema ------------------------------------------------------------

_INSTANCES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list | tuple),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


@dataclass(slots=True)
class GivenCheck:
    """Checks names and JSON types of the top level. The rest is for whoever wrote the schema.

    Nothing is changed, but for a null that means that an optional parameter is left out, where it takes no null.
    """

    schema: dict[str, Any]

    def canonical(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments, as they were sent."""
        left_out = [key for key, value in arguments.items() if value is None and self._takes_no_null(key)]
        if left_out:
            arguments = {key: value for key, value in arguments.items() if key not in left_out}
        problems = list(self._problems(arguments))
        if problems:
            raise misfit(name, self.schema, problems)
        return arguments

    def read(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """A copy of the arguments."""
        return dict(self.canonical(name, arguments))

    def _takes_no_null(self, key: str) -> bool:
        """Whether a parameter may be left out, and must not be null."""
        schema = self.schema["properties"].get(key, True)
        return key not in self.schema.get("required", ()) and schema is not True and not self._fits(schema, None)

    def _problems(self, arguments: dict[str, Any]) -> Iterator[str]:
        properties = self.schema["properties"]
        closed = self.schema.get("additionalProperties") is False and not self.schema.get("patternProperties")
        for key in self.schema.get("required", ()):
            if key not in arguments:
                yield f"{key}: missing, but required"
        for key, value in arguments.items():
            if key not in properties:
                if closed:
                    yield f"{key}: {_unknown(key, arguments, self.schema)}"
            elif not self._fits(properties[key], value):
                yield f"{key}: must be {_kind(properties[key], self.schema)} (you sent {as_json(value)})"

    @staticmethod
    def _fits(schema: dict[str, Any], value: object) -> bool:
        kinds = schema.get("type", ())
        kinds = kinds if isinstance(kinds, list) else [kinds] if kinds else []
        return (
            (not kinds or any(_INSTANCES[kind](value) for kind in kinds))
            and ("enum" not in schema or value in schema["enum"])
            and ("const" not in schema or value == schema["const"])
        )
