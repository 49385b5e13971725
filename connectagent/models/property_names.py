"""Properties by names that a provider accepts, at every level of a schema, and values with the names of either side.

A handler, a function and the record have the schema's own names; only requests and answers on the wire have the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from connectagent.tools.schema import target

Schema = dict[str, Any]

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = (
    *("additionalProperties", "unevaluatedProperties", "unevaluatedItems", "contains", "not", "if", "then", "else"),
    *("items", "contentSchema"),
)
_NEEDS = ("dependentRequired", "dependentSchemas", "dependencies")
_BRANCHES = ("anyOf", "oneOf", "allOf", "if", "then", "else")
_VALUES = ("const", "default")
_LISTS_OF_VALUES = ("enum", "examples")


class PropertyNames:
    """The names of a schema's properties as they are sent.

    Args:
        schema: the schema, with its own names.
        pattern: what a provider accepts.

    Attributes:
        sent: by a name of the schema's own: the one that is sent, where they differ.
        schema: the schema as it is sent; the same object if all its names are accepted.
    """

    def __init__(self, schema: Schema, pattern: re.Pattern[str]) -> None:
        self._own_schema = schema
        names = list(dict.fromkeys(_names_in(schema)))
        taken = set(names)
        self.sent: dict[str, str] = {}
        for own in names:
            if not pattern.fullmatch(own):
                self.sent[own] = accepted_name(own, pattern, taken)
                taken.add(self.sent[own])
        self._own = {sent: own for own, sent in self.sent.items()}
        self.schema: Schema = self._renamed(schema) if self.sent else schema

    def own_value(self, value: object) -> Any:
        """A value of the wire with the schema's own names."""
        return self._walked(value, [self._own_schema], self._own) if self.sent else value

    def sent_value(self, value: object) -> Any:
        """A value with the names that are sent."""
        return self._walked(value, [self._own_schema], self.sent) if self.sent else value

    def _walked(self, value: object, schemas: list[Any], names: Mapping[str, str]) -> Any:
        """A value with other names for the properties that its schemas have; other keys are data."""
        if isinstance(value, list):
            around = list(self._with_branches(schemas))
            return [self._walked(one, list(_items_of(around, at)), names) for at, one in enumerate(value)]
        if not isinstance(value, dict):
            return value
        around = list(self._with_branches(schemas))
        known = [one["properties"] for one in around if isinstance(one.get("properties"), dict)]
        made: dict[str, Any] = {}
        for key, item in value.items():
            other = names.get(key, key)
            own = key if names is self.sent else other
            is_property = any(own in properties for properties in known)
            inner = [properties[own] for properties in known if own in properties]
            if not is_property:
                inner = [one.get("additionalProperties") for one in around]
            made[other if is_property else key] = self._walked(item, inner, names)
        return made

    def _with_branches(self, schemas: list[Any], seen: tuple[int, ...] = ()) -> Iterator[Schema]:
        """Schemas, and all that they refer to or are made of."""
        for one in schemas:
            if not isinstance(one, dict) or id(one) in seen:
                continue
            yield one
            inside = [*seen, id(one)]
            more = [target(self._own_schema, one["$ref"])] if "$ref" in one else []
            for key in _BRANCHES:
                branches = one.get(key)
                more += branches if isinstance(branches, list) else [branches]
            yield from self._with_branches(more, tuple(inside))

    def _renamed(self, schema: object) -> Any:
        """A schema whose properties have the names that are sent, with their own as titles."""
        if not isinstance(schema, dict):
            return schema
        made = dict(schema)
        for key in _MAPS:
            if isinstance(made.get(key), dict):
                made[key] = {name: self._renamed(one) for name, one in made[key].items()}
        for key in _LISTS:
            if isinstance(made.get(key), list):
                made[key] = [self._renamed(one) for one in made[key]]
        for key in _SINGLE:
            if key in made:
                made[key] = self._renamed(made[key])
        self._rename_values(made, schema)
        if isinstance(made.get("properties"), dict):
            made["properties"] = self._renamed_properties(made["properties"])
        return self._renamed_references(made)

    def _rename_values(self, made: Schema, schema: Schema) -> None:
        """Give the values in a schema, such as defaults, the names that are sent."""
        for key in _VALUES:
            if key in made:
                made[key] = self._walked(made[key], [schema], self.sent)
        for key in _LISTS_OF_VALUES:
            if isinstance(made.get(key), list):
                made[key] = [self._walked(one, [schema], self.sent) for one in made[key]]

    def _renamed_properties(self, properties: Schema) -> Schema:
        made: Schema = {}
        for own, one in properties.items():
            new = self.sent.get(own, own)
            made[new] = {"title": own, **one} if new != own and isinstance(one, dict) else one
        return made

    def _renamed_references(self, made: Schema) -> Schema:
        """A schema whose keywords that name properties name the ones that are sent."""
        if isinstance(made.get("required"), list):
            made["required"] = [self._name(one) for one in made["required"]]
        for key in _NEEDS:
            if isinstance(made.get(key), dict):
                made[key] = {self._name(own): self._needed(value) for own, value in made[key].items()}
        discriminator = made.get("discriminator")
        if isinstance(discriminator, dict) and "propertyName" in discriminator:
            made["discriminator"] = {**discriminator, "propertyName": self._name(discriminator["propertyName"])}
        if isinstance(made.get("$ref"), str):
            made["$ref"] = self._pointed(made["$ref"])
        return made

    def _name(self, own: object) -> Any:
        return self.sent.get(own, own) if isinstance(own, str) else own

    def _needed(self, value: object) -> Any:
        return [self._name(one) for one in value] if isinstance(value, list) else value

    def _pointed(self, ref: str) -> str:
        """A reference whose way through properties goes by the names that are sent."""
        parts = ref.split("/")
        for at in range(1, len(parts)):
            if parts[at - 1] == "properties":
                own = parts[at].replace("~1", "/").replace("~0", "~")
                parts[at] = self._name(own).replace("~", "~0").replace("/", "~1")
        return "/".join(parts)


def _items_of(around: list[Schema], at: int) -> Iterator[Any]:
    """The schemas of an item of a list."""
    for one in around:
        prefix = one.get("prefixItems")
        if isinstance(prefix, list) and at < len(prefix):
            yield prefix[at]
        else:
            yield one.get("items")
        yield one.get("contains")


def _names_in(schema: object) -> Iterator[str]:
    """The names of all properties of a schema."""
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("properties"), dict):
        yield from schema["properties"]
    for key in _MAPS:
        if isinstance(schema.get(key), dict):
            for one in schema[key].values():
                yield from _names_in(one)
    for key in _LISTS:
        if isinstance(schema.get(key), list):
            for one in schema[key]:
                yield from _names_in(one)
    for key in _SINGLE:
        yield from _names_in(schema.get(key))


def accepted_name(name: str, pattern: re.Pattern[str], taken: set[str]) -> str:
    """A name that fits a pattern and is not taken; the name itself where it fits."""
    if pattern.fullmatch(name):
        return name
    plain = re.sub(r"[^a-zA-Z0-9_.-]", "_", name)[:64] or "_"
    made, count = plain, 1
    while made in taken or not pattern.fullmatch(made):
        count += 1
        made = f"{plain[: 63 - len(str(count))]}_{count}"
    return made
