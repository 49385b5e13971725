"""The form of a structured answer, as each wire asks for it, and what was learnt about those that refuse one."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from connectagent.models.content import as_json, wire_name
from connectagent.models.json_schema import object_schema
from connectagent.models.json_text import objects_in
from connectagent.models.limits import Limits
from connectagent.models.notes import note
from connectagent.models.property_names import PropertyNames
from connectagent.models.strict_schemas import Rules, enforced_schema
from connectagent.models.tool_schemas import CannotOffer, Schema, sendable_schema
from connectagent.tools.schema import target

STRICT = "strict"
BY_SCHEMA = "schema"
IN_WORDS = "words"
# A refusal that names the schema, or `strict`, says nothing against the same schema without it.
_SPEAKS_OF_SCHEMA = re.compile(r"invalid schema|strict|additional_?properties|\bkeyword|in context=", re.IGNORECASE)
_MOST_ENDPOINTS = 256


@dataclass(frozen=True, slots=True)
class OutputForm:
    """A structured answer that is asked for.

    Args:
        name: of the form, as a provider takes it.
        description: of the form.
        own_schema: the JSON Schema with its own names, in draft 2020-12.
        names: those of its properties that are sent.
        way: by which it is asked for; a word of the wire.
    """

    name: str
    description: str
    own_schema: Schema
    names: PropertyNames | None
    way: str = IN_WORDS

    @classmethod
    def of(cls, output: type[Any], limits: Limits | None = None, taken: Sequence[str] = ()) -> OutputForm:
        """The form of a pydantic model, or of a class of `class_of`.

        Args:
            output: the model.
            limits: what the provider takes in a request.
            taken: the names of tools in the request.
        """
        schema, dropped = _schema_of(output)
        if dropped:
            note(f"the form {output.__name__}: left out of its schema, as they have a wrong form: {', '.join(dropped)}")
        pattern = limits.property_names if limits is not None else None
        names = None if pattern is None else PropertyNames(schema, pattern)
        if names is not None and names.sent:
            shown = ", ".join(f"{own!r} as {new!r}" for own, new in names.sent.items())
            note(f"the form {output.__name__}: properties are sent by other names, {shown}")
        name = wire_name(output.__name__)
        while name in taken:
            name = f"{name[:57]}_answer"
        return cls(name, inspect.cleandoc(output.__doc__ or ""), schema, names)

    @property
    def schema(self) -> Schema:
        """The JSON Schema as it is sent."""
        return self.own_schema if self.names is None else self.names.schema

    @property
    def key(self) -> str:
        """What is the same for two forms of one schema."""
        return json.dumps([self.name, self.own_schema], sort_keys=True, default=str)

    def by(self, way: str) -> OutputForm:
        """The form, asked for in another way."""
        return replace(self, way=way)

    def enforced(self, rules: Rules) -> Schema | None:
        """The schema in the form that a provider enforces; None if it has none."""
        return enforced_schema(self.schema, rules)

    def tool(self) -> Schema:
        """The tool that a model is made to call where the form cannot be asked for otherwise (Anthropic)."""
        return {
            "name": self.name,
            "description": self.description or "Give the answer in this form.",
            "input_schema": object_schema(self.schema),
        }

    def own_text(self, text: str) -> str:
        """The text of an answer with the schema's own names in its objects."""
        if self.names is None or not self.names.sent:
            return text
        for begin, end in reversed(objects_in(text)):
            text = text[:begin] + as_json(self.names.own_value(json.loads(text[begin:end]))) + text[end:]
        return text


_schemas: WeakKeyDictionary[type[Any], tuple[Schema, list[str]]] = WeakKeyDictionary()


def _schema_of(output: type[Any]) -> tuple[Schema, list[str]]:
    """The schema of a form in draft 2020-12, and where keywords were left out."""
    found = _schemas.get(output)
    if found is None:
        schema = _rooted(output.model_json_schema())
        try:
            found = sendable_schema(schema)
        except CannotOffer:
            found = schema, []  # no schema of an object: the provider says what it thinks of it
        _schemas[output] = found
    return found


def _rooted(schema: Schema) -> Schema:
    """A schema without a reference at its root: that of a recursive model is nothing else."""
    seen: list[str] = []
    while (ref := schema.get("$ref")) is not None and ref not in seen:
        found = target(schema, ref)
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        if not isinstance(found, dict) or found is schema:
            break
        seen.append(ref)
        schema = {**found, **rest}
    return schema


def is_worth_trying(way: str, refusal: str) -> bool:
    """Whether a form may be taken in another way, after what the provider said of the first one."""
    return way != BY_SCHEMA or _SPEAKS_OF_SCHEMA.search(refusal) is not None


def response_format(form: OutputForm, rules: Rules) -> Schema:
    """`response_format` of OpenAI's wire: strict if it is asked for so and the schema can be."""
    strict = form.enforced(rules) if form.way == STRICT else None
    asked = {"name": form.name, "schema": form.schema if strict is None else strict, "strict": strict is not None}
    return {"type": "json_schema", "json_schema": asked}


class Learnt:
    """Which forms a model at an address has refused, by the way in which they were asked for."""

    def __init__(self) -> None:
        self._refused: set[tuple[str, str]] = set()

    def refuses(self, form: OutputForm, way: str) -> bool:
        """Whether a form was refused when it was asked for in this way."""
        return (way, form.key) in self._refused

    def note(self, form: OutputForm, ways: Sequence[str]) -> None:
        """Note that these ways were refused, and another one was taken."""
        self._refused.update((way, form.key) for way in ways)


_known: dict[tuple[str, ...], Learnt] = {}


def learnt_at(*address: str) -> Learnt:
    """What this process has learnt about a model at an address, for all agents and calls."""
    found = _known.get(address)
    if found is None:
        while len(_known) >= _MOST_ENDPOINTS:
            _known.pop(next(iter(_known)), None)
        found = _known[address] = Learnt()
    return found


def forget() -> None:
    """Forget what was learnt."""
    _known.clear()
