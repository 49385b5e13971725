"""Structured answers: a pydantic model as what each wire takes for it, and a model's text as JSON."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

from connectagent.models.content import wire_name
from connectagent.tools.schema import flat_object

Schema = dict[str, Any]

_VARIANTS = ("oneOf", "anyOf", "allOf")


def response_format(output: type[Any]) -> Schema:
    """`response_format` of OpenAI's wire: strict where the schema can be, so that the answer must fit it."""
    schema = output.model_json_schema()
    strict = strict_schema(schema)
    form = {"name": wire_name(output.__name__), "schema": schema if strict is None else strict}
    return {"type": "json_schema", "json_schema": {**form, "strict": strict is not None}}


def strict_schema(schema: Schema) -> Schema | None:
    """A JSON Schema as OpenAI's strict mode takes it, or None where it cannot be said so.

    Strict mode wants every object closed and all of its properties required. It has no form for a dict
    with free keys, for `oneOf`, `allOf` and tuples.
    """
    if any(key in schema for key in ("oneOf", "allOf", "prefixItems", "patternProperties", "not")):
        return None
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}  # strict mode refuses anything beside it
    made = {key: value for key, value in schema.items() if key != "default"}
    if schema.get("type") == "object":
        if "properties" not in schema or schema.get("additionalProperties") not in (None, False):
            return None
        made |= {"additionalProperties": False, "required": list(schema["properties"])}
    elif not schema.keys() & {"type", "anyOf", "enum", "const"}:
        return None  # anything at all
    if schema.get("type") == "array" and not isinstance(schema.get("items"), dict):
        return None
    return _strict_inside(made)


def _strict_inside(made: Schema) -> Schema | None:
    for key in ("properties", "$defs"):
        if key in made:
            inner = {name: strict_schema(part) for name, part in made[key].items()}
            if None in inner.values():
                return None
            made[key] = inner
    if "anyOf" in made:
        made["anyOf"] = [strict_schema(part) for part in made["anyOf"]]
        if None in made["anyOf"]:
            return None
    if "items" in made:
        made["items"] = strict_schema(made["items"])
        if made["items"] is None:
            return None
    return made


def output_tool(output: type[Any]) -> Schema:
    """The tool that a model is made to call where the wire has no other way to ask for a form (Anthropic)."""
    return {
        "name": wire_name(output.__name__),
        "description": inspect.cleandoc(output.__doc__ or "") or "Give the answer in this form.",
        "input_schema": object_schema(output.model_json_schema()),
    }


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


def json_in(text: str) -> str:
    """The JSON object inside a text: models like to put it into a code fence, or a sentence before it."""
    fenced = re.search(r"```(?:json)?\s*(\{.*\})\s*```", text, re.DOTALL)
    if fenced:
        return fenced.group(1)
    begin, end = text.find("{"), text.rfind("}")
    return text[begin : end + 1] if 0 <= begin < end else text


def json_alone(text: str) -> str:
    """A text that is a JSON object and nothing else, out of its code fence if it stands in one; any other as it is."""
    text = text.strip()
    fenced = re.fullmatch(r"```(?:json)?\s*(\{.*\})\s*```", text, re.DOTALL)
    return fenced[1] if fenced else text


def repeated_key(text: str) -> str | None:
    """A key that stands twice in one object of a JSON text, or None; readers differ in which of the two they take."""
    found: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                found.append(key)
            seen.add(key)

    try:
        json.loads(text, object_pairs_hook=note)
    except (ValueError, RecursionError):
        return None  # whoever reads it says what is wrong
    return found[0] if found else None
