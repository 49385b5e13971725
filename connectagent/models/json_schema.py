"""What a pydantic model stands for on the wires: an object, and a class in the place of a model."""

from __future__ import annotations

from typing import Any

from connectagent.models.content import wire_name
from connectagent.tools.schema import flat_object

Schema = dict[str, Any]

_VARIANTS = ("oneOf", "anyOf", "allOf")


def object_schema(schema: object) -> Schema:
    """A tool's parameters as Anthropic takes them: an object without `oneOf`, `anyOf`, `allOf` at its top.

    Their properties are taken together; only those of `allOf` stay required.
    """
    if not isinstance(schema, dict):
        return {"type": "object", "properties": {}}
    if schema.get("type") == "object" and not any(schema.get(key) for key in _VARIANTS):
        return schema
    return flat_object(dict(schema))


def class_of(name: str, schema: Schema) -> type[Any]:
    """A class that stands for a pydantic model with this schema where a model is asked for one."""
    described = {"__doc__": str(schema.get("description") or ""), "model_json_schema": staticmethod(lambda: schema)}
    return type(wire_name(name), (), described)
