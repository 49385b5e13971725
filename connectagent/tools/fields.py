"""The parameters of a function as pydantic reads them: laxly what a model sent, strictly their canonical form."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from connectagent.tools.forms import ATOMS, alike, json_form
from connectagent.tools.shapes import Shape, kinds_in, shape_of

_MOST_KEPT = 64
_encode = json.JSONEncoder().encode  # `json.dumps` looks at its options first
_LONGEST_KEPT = 200
_ITSELF = frozenset(("typed-dict", "typed-dict-field", "default", "nullable", "union", "literal")) | frozenset(
    ("any", "none", "str", "int", "float", "bool", "list", "dict")
)


def json_text(value: object) -> str | None:
    """A value as JSON text; None if it is none, as objects of programs are.

    Raises:
        RecursionError: it is nested too deeply. A model may send that, so it must not pass as an object does.
    """
    try:
        return _encode(value)
    except (TypeError, ValueError):
        return None


class Settled(NamedTuple):
    """The canonical form of an argument, and how its value is read from it."""

    form: Any
    is_strict: bool = False
    """Whether it is read in pydantic's strict JSON mode and not in the lax one: what was sent is kept, as the value is
    not read back from a form of its own."""


class Found:
    """The canonical forms that were found last, so that they are not checked again when they are read."""

    def __init__(self) -> None:
        self._strict: dict[Hashable, bool] = {}

    def get(self, form: object) -> bool | None:
        """Whether an argument that was found canonical is read strictly; None if it was not found."""
        return self._strict.get(self._key(form)) if self._strict else None

    def add(self, form: object, *, is_strict: bool) -> None:
        """Keep that it is canonical."""
        self._strict[self._key(form)] = is_strict
        if len(self._strict) > _MOST_KEPT:
            with suppress(KeyError, StopIteration, RuntimeError):  # other threads do the same
                del self._strict[next(iter(self._strict))]

    @staticmethod
    def _key(form: Any) -> Hashable:
        kind = type(form)
        if kind in ATOMS and (kind is not str or len(form) <= _LONGEST_KEPT):
            return kind, form  # as 1 == True
        try:
            text = json_text(form)
        except RecursionError:
            text = None
        if text is None or len(text) <= _LONGEST_KEPT:
            return text
        from hashlib import blake2b

        return blake2b(text.encode(), digest_size=16).digest()


class Parameter:
    """One parameter, or what stands for `**kwargs`.

    Args:
        fields: has its type.
        name: what the function calls it; None for `**kwargs`.
        key: what the model calls it, an alias maybe; None for `**kwargs`.
        schema: pydantic's core schema of its type.
        is_path: whether it is found at a path inside of what has that key.

    Attributes:
        names: the same name, and those of other parameters that are found under the same key.
        shape: tells JSON that is canonical by its type; None if pydantic has to be asked.
        found: what was found canonical.
    """

    def __init__(
        self, fields: Fields, name: str | None, key: str | None, schema: object, *, is_path: bool = False
    ) -> None:
        self.name = name
        self.key = key
        self.names = [] if name is None else [name]
        self.is_path = is_path
        self.shape: Shape | None = shape_of(schema) if name == key else None
        self.found = Found()
        self._fields = fields
        self._schema = schema

    def share(self, name: str) -> None:
        """Note that another parameter is found under the same key."""
        self.names.append(name)
        self.is_path = True
        self.shape = None

    def settle(self, key: str, given: object, value: object) -> Settled:
        """The canonical form of an argument.

        Args:
            key: what it was called.
            given: what was sent.
            value: what pydantic made of it in its lax mode.

        Raises:
            Exception: the value is not read back from JSON, and what was sent does not fit when it is read strictly.
        """
        if self.shape is not None and self.shape(value):
            return Settled(given if self.shape(given) else value)
        is_atom = type(given) in ATOMS
        sent = None if is_atom else json_text(given)
        if sent is None and not is_atom:
            return Settled(given)  # it is no JSON
        for form in () if self.is_path else self._forms(value, given):
            is_sent = type(form) is type(given) and (form == given if is_atom else json_text(form) == sent)
            if is_sent or self._reads_back(self.key or key, form, value):
                settled = given if is_sent else form
                self.found.add(settled, is_strict=False)
                return Settled(settled)
        self.strict(key, given)
        self.found.add(given, is_strict=True)
        return Settled(given, is_strict=True)

    def strict(self, key: str, given: object) -> dict[str, Any]:
        """The values of an argument that is read strictly, by the names that the function has for them."""
        whole = {"kwargs": {key: given}} if self.name is None else {key: given}
        return self._named(self._fields.partial.validate_json(_encode(whole), strict=True))

    def lax(self, key: str, given: object) -> dict[str, Any]:
        """The same in pydantic's lax mode, as always but for those that are read strictly."""
        whole = {"kwargs": {key: given}} if self.name is None else {key: given}
        return self._named(self._fields.partial.validate_python(whole))

    def _named(self, values: dict[str, Any]) -> dict[str, Any]:
        if self.name is None:
            found: dict[str, Any] = values["kwargs"]
            return found
        return {name: values[name] for name in self.names if name in values}  # others have their defaults

    def _reads_back(self, key: str, form: object, value: object) -> bool:
        """Whether a form is read as an equal value, so that it is the value's own form again."""
        try:
            return alike(value, self.lax(key, form)[self.name or key], form)
        except Exception:  # validators of users' models may raise anything
            return False

    def _forms(self, value: object, sent: object) -> Iterator[Any]:
        """What the value may be read from, the best first. They are not tried yet."""
        makers: list[Callable[[], Any]] = [lambda: json_form(value, sent)]
        if self._is_dumped:
            makers.append(lambda: self._dumped(value))
        for make in makers:
            with suppress(Exception):  # objects of users may raise anything
                form = make()
                if type(form) in ATOMS or json_text(form) is not None:
                    yield form

    @functools.cached_property
    def _is_dumped(self) -> bool:
        # a dump uses up what is read once, and has sets in an order that changes with the process
        kinds = kinds_in(self._schema)
        if "definition-ref" in kinds:
            kinds |= kinds_in(self._fields.core_schema.get("definitions"))
        return kinds.isdisjoint(("generator", "set", "frozenset"))

    def _dumped(self, value: object) -> Any:
        """Pydantic's own form, which knows what the type says, as base64 for bytes."""
        name, given = ("kwargs", {"-": value}) if self.name is None else (self.name, value)
        dumped = self._fields.partial.dump_python(
            {name: given}, mode="json", by_alias=True, exclude_unset=True, warnings=False
        )
        (form,) = dumped.values()
        return form["-"] if self.name is None else form


class Fields:
    """Annotated parameters, as the keys of a TypedDict: they may have any names ("schema", "_x", "copy").

    Left-out ones stay left out: the function's own defaults apply. Extra keys are forbidden, in dataclasses below
    as well.

    Args:
        annotations: parameter to type, resolved.
        required: the parameters without a default.
    """

    def __init__(self, annotations: dict[str, Any], required: set[str]) -> None:
        self._annotations, self._required = annotations, required
        self._adapter = self._made(required)
        self.validate: Callable[[dict[str, Any]], dict[str, Any]] = self._adapter.validate_python
        self.core_schema: Any = self._adapter.core_schema
        self.parameters: dict[str, Parameter] = {}
        self.required_keys: set[str] = set()
        found = self._schemas()
        for name in annotations:
            field = found.get(name, {})
            paths = _paths(field.get("validation_alias"), name)
            keys = [str(path[0]) for path in paths]
            for key, path in zip(keys, paths, strict=True):
                is_path = len(path) > 1
                if key in self.parameters:
                    self.parameters[key].share(name)
                else:
                    self.parameters[key] = Parameter(self, name, keys[0], field.get("schema"), is_path=is_path)
            if name in required:
                self.required_keys.add(keys[0])

    def schema(self) -> dict[str, Any]:
        """The JSON Schema."""
        made: dict[str, Any] = self._adapter.json_schema(schema_generator=_generator())
        return made

    def extra_parameter(self) -> Parameter:
        """The values of the parameter `kwargs`, a dict, as a parameter of any name."""
        schema = self._schemas().get("kwargs", {}).get("schema", {})
        return Parameter(self, None, None, schema.get("values_schema"))

    @property
    def is_itself(self) -> bool:
        """Whether each parameter is of a plain type, the values of which are their own canonical form."""
        shapes = [parameter.shape for parameter in self.parameters.values()]
        return None not in shapes and _ITSELF.issuperset(kinds_in(self.core_schema))

    @functools.cached_property
    def partial(self) -> Any:
        """The same with nothing required, to read one parameter at a time."""
        return self._made(set()) if self._required else self._adapter

    def _made(self, required: set[str]) -> Any:
        import typing_extensions
        from pydantic import ConfigDict, TypeAdapter

        maybe: Any = typing_extensions.NotRequired
        fields = {name: kind if name in required else maybe[kind] for name, kind in self._annotations.items()}
        typed_dict: Any = typing_extensions.TypedDict
        shape = typed_dict("arguments", fields)
        shape.__pydantic_config__ = ConfigDict(extra="forbid", coerce_numbers_to_str=True)
        return TypeAdapter(shape)

    def _schemas(self) -> dict[str, Any]:
        schema = self.core_schema
        while schema.get("type") == "definitions":
            schema = schema["schema"]
        fields: dict[str, Any] = schema.get("fields", {})
        return fields


def _paths(alias: str | list[Any] | None, name: str) -> list[list[Any]]:
    """Where the arguments may have a parameter: under a key, or at a path. First the one that its schema shows.

    Args:
        alias: a name, or names and paths as lists, as a core schema has them.
        name: the name of the parameter, without an alias its only key.
    """
    if alias is None or isinstance(alias, str):
        return [[alias or name]]
    return sorted((path if isinstance(path, list) else [path] for path in alias), key=lambda path: len(path) > 1)


@functools.lru_cache(maxsize=1)
def _generator() -> Any:
    from pydantic.json_schema import GenerateJsonSchema

    class Quiet(GenerateJsonSchema):
        """A default inside somebody's model that JSON cannot hold is left out of the schema without a warning."""

    Quiet.ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}
    return Quiet
