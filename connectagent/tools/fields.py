"""The parameters of a function as pydantic reads them: laxly what a model sent, strictly their canonical form."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from connectagent.tools.forms import ATOMS, alike, json_form
from connectagent.tools.shapes import Shape, copied, is_json, kinds_in, shape_of

_MOST_KEPT = 64
_LONGEST_KEPT = 200


def json_text(value: Any) -> str | None:
    """A value as JSON text; None if it is none, as objects of programs are."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return None


class Settled(NamedTuple):
    """The canonical form of an argument, and how the function's value is made from it."""

    form: Any
    how: str
    text: str = ""  # JSON: an object that has the form under the key of its parameter


ITSELF = "itself"
"""The form is the value."""
STRICT = "strict"
"""The value is read from the form, in pydantic's strict JSON mode."""
OBJECT = "object"
"""What was given is no JSON; pydantic takes it or makes the value from it, in its lax mode."""


class SettledTexts:
    """The arguments that were found canonical last, so that they are not validated again when they are read."""

    def __init__(self) -> None:
        self._found: dict[str | bytes, str] = {}

    def get(self, text: str) -> str | None:
        """How an argument is read whose JSON text was found canonical; None if it was not."""
        return self._found.get(self._key(text)) if self._found else None

    def add(self, text: str, how: str) -> None:
        """Keep that it is canonical."""
        self._found[self._key(text)] = how
        if len(self._found) > _MOST_KEPT:
            with suppress(KeyError, StopIteration, RuntimeError):  # other threads do the same
                del self._found[next(iter(self._found))]

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
        shape: tells JSON that is its own value; None if pydantic has to be asked.
    """

    def __init__(self, fields: Fields, name: str | None, key: str | None, schema: Any) -> None:
        self.name = name
        self.key = key
        self.shape: Shape | None = shape_of(schema) if name == key else None
        self._fields = fields
        self._texts = SettledTexts()

    def known(self, key: str, given: Any) -> Settled | None:
        """An argument that is known to be canonical: plain, or found to be so before."""
        if self.shape is not None and self.shape(given):
            return Settled(given, ITSELF)
        text = json_text({key: given})
        how = None if text is None else self._texts.get(text)
        return None if how is None or text is None else Settled(given, how, text)

    def settle(self, key: str, given: Any, value: Any) -> Settled:
        """The canonical form of an argument.

        Args:
            key: what it was called.
            given: what was sent.
            value: what pydantic made of it in its lax mode.

        Raises:
            Exception: the value cannot be read from JSON again, and what was sent does not fit when read strictly.
        """
        if self.shape is not None and self.shape(value):
            return Settled(given if self.shape(given) else value, ITSELF)
        sent = json_text({key: given})
        if sent is None:
            return Settled(given, OBJECT)
        made = self._readable(key, given, value, sent)
        if made is None and is_json(value) and json_text({key: value}) == sent:
            made = Settled(given, ITSELF, sent)
        if made is None:
            self._read(sent, key)
            made = Settled(given, STRICT, sent)
        self._texts.add(made.text, made.how)
        return made

    def value(self, key: str, settled: Settled) -> Any:
        """What the function gets for an argument."""
        if settled.how == ITSELF:
            return settled.form if type(settled.form) in ATOMS else copied(settled.form)
        return self._lax(key, settled.form) if settled.how == OBJECT else self._read(settled.text, key)

    def _readable(self, key: str, given: Any, value: Any, sent: str) -> Settled | None:
        """The form that is read as an equal value, if there is one."""
        shown = self.key or key
        for form in self._forms(value, given):
            text = json_text({shown: form})
            if text is not None and self._reads_back(text, sent, shown, form, value):
                return Settled(given if text == sent else form, STRICT, text)
        return None

    def _reads_back(self, text: str, sent: str, key: str, form: Any, value: Any) -> bool:
        """Whether a form is read as an equal value in both modes, so that it is the value's form again."""
        try:
            if not alike(value, self._read(text, key), form):
                return False
            if text == sent:
                return True
            return alike(value, self._lax(key, json.loads(text)[key]), form)
        except Exception:  # validators of users' models may raise anything
            return False

    def _forms(self, value: Any, sent: Any) -> Iterator[Any]:
        """What the value may be read from, the best first. They are not tried yet."""
        with suppress(Exception):  # objects of users may raise anything
            yield json_form(value, sent)
        if self._is_dumped:
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

    @functools.cached_property
    def _is_dumped(self) -> bool:
        # a dump uses up what can be read once, and has sets in an order that changes with the process
        return kinds_in(self._fields.core_schema).isdisjoint(("generator", "set", "frozenset"))

    def _read(self, text: str, key: str) -> Any:
        """The value from the text of a JSON object that has it under a key, strictly."""
        if self.name is None:
            text = '{"kwargs": ' + text + "}"
        return self._only(self._fields.partial.validate_json(text, strict=True), key)

    def _lax(self, key: str, given: Any) -> Any:
        whole = {"kwargs": {key: given}} if self.name is None else {key: given}
        return self._only(self._fields.partial.validate_python(whole), key)

    def _only(self, values: dict[str, Any], key: str) -> Any:
        return values["kwargs"][key] if self.name is None else values[self.name]


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
