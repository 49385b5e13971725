"""What providers publish of the schemas that they enforce, as a server checks it, whatever connectagent sends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_COMMON = {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const"}
_SAID = {"$ref", "$defs", "title", "description"}
OPENAI = _COMMON | _SAID | {"pattern", "format", "multipleOf", "maximum", "exclusiveMaximum", "minimum"}
OPENAI |= {"exclusiveMinimum", "minItems", "maxItems"}
ANTHROPIC = _COMMON | _SAID | {"pattern", "format", "minItems", "allOf", "default"}
FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def strict_problems(schema: Any) -> Iterator[str]:
    """What OpenAI's strict mode refuses: platform.openai.com/docs/guides/structured-outputs#supported-schemas."""
    if schema.get("type") != "object" or "anyOf" in schema:
        yield "schema must have type 'object' and not have 'anyOf' at the top level"
    yield from _problems(schema, schema, OPENAI, FORMATS, "")


def enforced_problems(schema: Any) -> Iterator[str]:
    """What Anthropic refuses in a form: platform.claude.com/docs/en/build-with-claude/structured-outputs."""
    yield from _problems(schema, schema, ANTHROPIC, FORMATS | {"uri"}, "")
    if schema.get("minItems") not in (None, 0, 1):
        yield "minItems: only 0 and 1"
    if _circular(schema, schema, ()):
        yield "Circular reference detected in schema definitions"


def tool_problems(schema: Any) -> Iterator[str]:
    """What Anthropic refuses in a tool's schema."""
    if not all(map(_KEY.fullmatch, schema.get("properties") or ())):
        yield "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"
    if any(key in schema for key in ("anyOf", "oneOf", "allOf")):
        yield "input_schema does not support oneOf, allOf, or anyOf at the top level"
    yield from unresolved(schema, schema)


def unresolved(schema: Any, root: Any) -> Iterator[str]:
    """References that lead nowhere, which every server refuses."""
    if isinstance(schema, list):
        for one in schema:
            yield from unresolved(one, root)
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str) and resolved(root, schema["$ref"]) is None:
            yield f"unresolved reference {schema['$ref']}"
        for one in schema.values():
            yield from unresolved(one, root)


def resolved(root: Any, ref: str) -> Any:
    found = root
    for part in ref.removeprefix("#").split("/")[1:]:
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _problems(schema: Any, root: Any, keywords: set[str], formats: set[str], at: str) -> Iterator[str]:
    if not isinstance(schema, dict):
        yield f"{at}: schema must be an object"
        return
    for key in schema.keys() - keywords:
        yield f"In context={at}, '{key}' is not permitted"
    if "$ref" in schema:
        yield from unresolved(schema, root)
        if len(schema) > 1 and schema is not root:
            yield f"In context={at}, $ref cannot have keywords {set(schema) - {'$ref'}}"
        return
    if schema.get("format", "date") not in formats:
        yield f"In context={at}, '{schema['format']}' is not a valid format"
    if re.search(r"\(\?[=!<]", schema.get("pattern", "")):
        yield f"In context={at}, lookaround is not supported"
    if not schema.keys() & {"type", "anyOf", "enum", "const"}:
        yield f"In context={at}, schema must have a 'type' key"
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            yield f"In context={at}, 'additionalProperties' is required to be supplied and to be false"
        if keywords is OPENAI and set(schema.get("required", ())) != set(schema.get("properties", ())):
            yield f"In context={at}, 'required' is required to be supplied and to be an array including every key"
    if schema.get("type") == "array" and "items" not in schema:
        yield f"In context={at}, array schema missing items"
    parts = {**(schema.get("properties") or {}), **{f"$defs {k}": v for k, v in (schema.get("$defs") or {}).items()}}
    parts |= {f"anyOf {number}": one for number, one in enumerate(schema.get("anyOf") or ())}
    if "items" in schema:
        parts["items"] = schema["items"]
    for name, part in parts.items():
        yield from _problems(part, root, keywords, formats, f"{at}/{name}")


def _circular(value: Any, root: Any, above: tuple[str, ...]) -> bool:
    if isinstance(value, list):
        return any(_circular(one, root, above) for one in value)
    if not isinstance(value, dict):
        return False
    if isinstance(ref := value.get("$ref"), str):
        return ref in above or _circular(resolved(root, ref), root, (*above, ref))
    return any(_circular(one, root, above) for key, one in value.items() if key != "$defs")


def as_asked(value: Any, schema: Any, root: Any) -> Any:
    """A value with the names of the properties that a schema asks for, found by their titles."""
    if isinstance(schema, dict) and "$ref" in schema:
        return as_asked(value, resolved(root, schema["$ref"]), root)
    if isinstance(schema, dict) and "anyOf" in schema:
        for branch in schema["anyOf"]:
            branch = resolved(root, branch["$ref"]) if "$ref" in branch else branch
            is_meant = isinstance(value, dict) if branch.get("type") == "object" else isinstance(value, list)
            if is_meant and branch.get("type") in ("object", "array"):
                return as_asked(value, branch, root)
        return value
    if isinstance(value, list):
        return [as_asked(one, schema.get("items", {}), root) for one in value]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties") or {}
    made = {}
    for key, one in value.items():
        titled = (name for name, part in properties.items() if part.get("title") == key)
        name = key if key in properties else next(titled, key)
        made[name] = as_asked(one, properties.get(name, {}), root)
    return made
