"""The parameters of a function as pydantic reads them: laxly what a model sent, strictly their canonical form."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from connectagent.tools.forms import alike, json_form
from connectagent.tools.shapes import Shape, kinds_in, shape_of

_MOST_KEPT = 64
_LONGEST_KEPT = 200
_ITSELF = frozenset(("typed-dict", "typed-dict-field", "default", "nullable", "union", "literal")) | frozenset(
    ("any", "none", "str", "int", "float", "bool", "list", "dict")
)


def json_text(value: Any) -> str | None:
    """A value as JSON text; None if it is none, as objects of programs are."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return None


class Settled(NamedTuple):
    """The canonical form of an argument, and how its value is read from it."""

    form: Any
    strict: str | None = None
    """None for pydantic's lax mode. Else JSON text, an object that has the argument under its key, which is read in
    the strict mode: what was sent is kept, as the value is not read back from a form of its own."""


class Found:
    """The arguments that were found canonical last, so that they are not checked again when they are read."""

    def __init__(self) -> None:
        self._strict: dict[str | bytes, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._strict)

    def get(self, text: str) -> bool | None:
        """Whether an argument that was found canonical is read strictly; None if it was not found.

        Args:
            text: the argument as JSON.
        """
        return self._strict.get(self._key(text))

    def add(self, text: str, is_strict: bool) -> None:
        """Keep that an argument is canonical."""
        self._strict[self._key(text)] = is_strict
        if len(self._strict) > _MOST_KEPT:
            with suppress(KeyError, StopIteration, RuntimeError):  # other threads do the same
                del self._strict[next(iter(self._strict))]

    @staticmethod
    def _key(text: str) -> str | bytes:
        if len(text) <= _LONGEST_KEPT:
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

    Attributes:
        shape: tells JSON that is canonical by its type; None if pydantic has to be asked.
        found: what was found canonical.
    """

    def __init__(self, fields: Fields, name: str | None, key: str | None, schema: Any) -> None:
        self.name = name
        self.key = key
        self.shape: Shape | None = shape_of(schema) if name == key else None
        self.found = Found()
        self._fields = fields

    def settle(self, key: str, given: Any, sent: str | None, value: Any) -> Settled:
        """The canonical form of an argument.

        Args:
            key: what it was called.
            given: what was sent.
            sent: JSON text of an object that has it under its key, if that is made already.
            value: what pydantic made of it in its lax mode.

        Raises:
            Exception: the value is not read back from JSON, and what was sent does not fit when it is read strictly.
        """
        if self.shape is not None and self.shape(value):
            return Settled(given if self.shape(given) else value)
        sent = json_text({key: given}) if sent is None else sent
        if sent is None:
            return Settled(given)  # it is no JSON
        shown = self.key or key
        for form in self._forms(value, given):
            text = json_text({shown: form})
            if text is None:
                continue
            if text == sent or self._reads_back(shown, form, text, value):
                self.found.add(text, False)
                return Settled(given if text == sent else form)
        self.strict(key, sent)
        self.found.add(sent, True)
        return Settled(given, sent)

    def strict(self, key: str, text: str) -> Any:
        """The value of an argument that is read strictly.

        Args:
            key: what it is called.
            text: JSON: an object that has it under its key.
        """
        if self.name is None:
            text = '{"kwargs": ' + text + "}"
        return self._only(self._fields.partial.validate_json(text, strict=True), key)

    def lax(self, key: str, given: Any) -> Any:
        """The value of an argument in pydantic's lax mode, as always but for those that are read strictly."""
        whole = {"kwargs": {key: given}} if self.name is None else {key: given}
        return self._only(self._fields.partial.validate_python(whole), key)

    def _only(self, values: dict[str, Any], key: str) -> Any:
        return values["kwargs"][key] if self.name is None else values[self.name]

    def _reads_back(self, key: str, form: Any, text: str, value: Any) -> bool:
        """Whether a form is read as an equal value, so that it is the value's own form again."""
        try:
            return alike(value, self.lax(key, json.loads(text)[key]), form)
        except Exception:  # validators of users' models may raise anything
            return False

    def _forms(self, value: Any, sent: Any) -> Iterator[Any]:
        """What the value may be read from, the best first. They are not tried yet."""
        with suppress(Exception):  # objects of users may raise anything
            yield json_form(value, sent)
        if self._fields.is_dumped:
            with suppress(Exception):
                yield self._dumped(value)

    def _dumped(self, value: Any) -> Any:
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
            keys = _keys(field.get("validation_alias"), name)
            for key in keys:
                self.parameters[key] = Parameter(self, name, keys[0], field.get("schema"))
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

    @functools.cached_property
    def is_dumped(self) -> bool:
        """Whether pydantic's dumps may be forms: they use up what is read once, and give sets in no fixed order."""
        return self._kinds.isdisjoint(("generator", "set", "frozenset"))

    @functools.cached_property
    def is_itself(self) -> bool:
        """Whether JSON of the right type is the value itself, for each parameter."""
        return _ITSELF.issuperset(self._kinds)

    @functools.cached_property
    def _kinds(self) -> set[str]:
        return kinds_in(self.core_schema)

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


def _keys(alias: Any, name: str) -> list[str]:
    """The keys under which the arguments may have a parameter; first the one that its schema shows.

    Args:
        alias: a name, or names and paths as lists, as a core schema has them.
        name: the name of the parameter, without an alias its only key.
    """
    if alias is None:
        return [name]
    if isinstance(alias, str):
        return [alias]
    paths = [path if isinstance(path, list) else [path] for path in alias]
    paths.sort(key=lambda path: len(path) > 1)
    return [str(path[0]) for path in paths]


@functools.lru_cache(maxsize=1)
def _generator() -> Any:
    from pydantic.json_schema import GenerateJsonSchema

    class Quiet(GenerateJsonSchema):
        """A default inside somebody's model that JSON cannot hold is left out of the schema without a warning."""

    Quiet.ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}
    return Quiet
