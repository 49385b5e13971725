"""Schemas as providers enforce them: closed objects, and the keywords that they publish.

What a provider does not take is left out, told to the model in the description, and checked on our side all the same,
as an answer is read by the model that asked for it. A schema that cannot be said so is None: it is not enforced then.

- OpenAI: https://platform.openai.com/docs/guides/structured-outputs#supported-schemas. Of formats it takes nine:
  https://github.com/cyanheads/git-mcp-server/issues/47. Fine-tuned models take no limits at all.
- Anthropic: https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations. No
  recursion: https://github.com/egonSchiele/agency-lang/issues/487. Its SDK tells the model what is left out, too.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from connectagent.tools.schema import target

Schema = dict[str, Any]

_STRUCTURE = frozenset(
    (
        *("type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const"),
        *("$ref", "$defs", "definitions", "title", "description"),
    )
)
_NUMBERS = frozenset(("multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"))
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))
# What a provider leaves out and a model should still know; other keywords say nothing of an answer.
_TOLD = frozenset(
    (
        *_NUMBERS,
        *("minLength", "maxLength", "pattern", "format", "minItems", "maxItems", "uniqueItems"),
        *("minProperties", "maxProperties", "contentEncoding", "contentMediaType", "propertyNames", "contains"),
    )
)
_NO_FORM = ("prefixItems", "patternProperties", "not", "if", "dependentSchemas", "dependentRequired")
_MAPS = ("properties", "$defs", "definitions")
# Grammars have no memory: neither what stands around a place nor what stood before can be asked for.
_LOOKS_AROUND = re.compile(r"\(\?[=!<]|\\[1-9bB]")


@dataclass(frozen=True, slots=True)
class Rules:
    """What one provider enforces.

    Args:
        keywords: those that it takes.
        formats: the values of `format` that it takes.
        all_required: whether each property must be required.
        recursive: whether a schema may refer to itself.
        most_properties: of all objects together.
        most_choices: in all `enum` together.
        deepest: how deep objects and lists may be nested.
    """

    keywords: frozenset[str]
    formats: frozenset[str]
    all_required: bool
    recursive: bool
    most_properties: int = 5000
    most_choices: int = 1000
    deepest: int = 10


OPENAI = Rules(
    _STRUCTURE | _NUMBERS | {"pattern", "format", "minItems", "maxItems"}, _FORMATS, all_required=True, recursive=True
)
OPENAI_FINE_TUNED = replace(OPENAI, keywords=_STRUCTURE, formats=frozenset[str]())
ANTHROPIC = Rules(
    _STRUCTURE | {"format", "pattern", "minItems"}, _FORMATS | {"uri"}, all_required=False, recursive=False
)


def enforced_schema(schema: Schema, rules: Rules) -> Schema | None:
    """A schema in a form that a provider enforces, or None if it has none."""
    if schema.get("type") != "object" or "anyOf" in schema:
        return None
    if not rules.recursive and _is_recursive(schema):
        return None
    made = _enforced(schema, rules)
    return made if made is not None and _is_within(made, rules) else None


def _enforced(schema: object, rules: Rules) -> Schema | None:
    """A part of a schema. Closed objects are asked for: a dict with free keys has no form, nor has anything at all."""
    if not isinstance(schema, dict) or any(key in schema for key in _NO_FORM):
        return None
    schema = _as_any_of(schema)
    if schema.keys() & {"oneOf", "allOf"}:
        return None
    if "$ref" in schema:
        return _reference(schema)
    made = {key: value for key, value in schema.items() if key in rules.keywords and _is_taken(key, value, rules)}
    if schema.get("type") == "object":
        if not _is_closed(schema):
            return None
        made["additionalProperties"] = False
        if rules.all_required:
            made["required"] = list(schema["properties"])
    elif not made.keys() & {"type", "anyOf", "enum", "const"}:
        return None
    if _is_list(schema) and not isinstance(schema.get("items"), dict):
        return None
    return _inside(_described(made, schema), rules)


def _is_closed(schema: Schema) -> bool:
    """Whether an object has no keys but its properties."""
    return "properties" in schema and schema.get("additionalProperties") in (None, False)


def _as_any_of(schema: Schema) -> Schema:
    """A schema whose `oneOf`, or `allOf` of one, is an `anyOf`: what is read knows which of them it is."""
    for key in ("oneOf", "allOf"):
        branches = schema.get(key)
        if isinstance(branches, list) and "anyOf" not in schema and (key == "oneOf" or len(branches) == 1):
            rest = {name: value for name, value in schema.items() if name not in (key, "discriminator")}
            return {**rest, "anyOf": branches}
    return schema


def _reference(schema: Schema) -> Schema:
    """A reference. Nothing may stand beside it, so that a description stands around it: `$ref` in an `anyOf` of one."""
    alone = {"$ref": schema["$ref"]}
    described = _described({key: schema[key] for key in ("title", "description") if key in schema}, schema)
    return {"anyOf": [alone], **described} if described.get("description") else alone


def _is_taken(key: str, value: Any, rules: Rules) -> bool:
    if key == "format":
        return value in rules.formats
    if key == "pattern":
        return isinstance(value, str) and not _LOOKS_AROUND.search(value)
    if key == "minItems" and not rules.all_required:
        return value in (0, 1)  # Anthropic
    if key == "enum":
        return all(one is None or isinstance(one, str | int | float | bool) for one in value)
    return True


def _described(made: Schema, schema: Schema) -> Schema:
    """A schema with what is left out of it in its description."""
    gone = [f"{key}: {_shown(value)}" for key, value in schema.items() if key in _TOLD and key not in made]
    if not gone:
        return made
    told = f"({', '.join(gone)})"
    description = schema.get("description")
    return {**made, "description": f"{description}\n{told}" if description else told}


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _is_list(schema: Schema) -> bool:
    kinds = schema.get("type")
    return kinds == "array" or (isinstance(kinds, list) and "array" in kinds)


def _inside(made: Schema, rules: Rules) -> Schema | None:
    """A schema with the enforced form of its parts; None if one has none."""
    for key in _MAPS:
        if isinstance(made.get(key), dict):
            parts = {name: _enforced(part, rules) for name, part in made[key].items()}
            if None in parts.values():
                return None
            made[key] = parts
    if "anyOf" in made:
        branches = [_enforced(part, rules) for part in made["anyOf"]]
        if None in branches:
            return None
        made["anyOf"] = branches
    if "items" in made:
        made["items"] = _enforced(made["items"], rules)
        if made["items"] is None:
            return None
    return made


def _is_within(schema: Schema, rules: Rules) -> bool:
    """Whether a schema is no larger than the provider takes."""
    sizes = _Sizes()
    sizes.add(schema, 0)
    return (
        sizes.properties <= rules.most_properties
        and sizes.choices <= rules.most_choices
        and sizes.depth <= rules.deepest
    )


@dataclass(slots=True)
class _Sizes:
    properties: int = 0
    choices: int = 0
    depth: int = 0

    def add(self, schema: object, depth: int) -> None:
        """Count what a schema has, at a depth of nested objects and lists."""
        if not isinstance(schema, dict):
            return
        depth += schema.get("type") in ("object", "array")
        self.depth = max(self.depth, depth)
        self.properties += len(schema.get("properties") or ())
        self.choices += len(schema.get("enum") or ())
        for part in (schema.get("properties") or {}).values():
            self.add(part, depth)
        for key in ("$defs", "definitions"):
            for part in (schema.get(key) or {}).values():
                self.add(part, 0)
        for part in (schema.get("items"), *(schema.get("anyOf") or ())):
            self.add(part, depth)


def _is_recursive(root: Schema) -> bool:
    """Whether a schema refers to a part that it stands in."""
    return _leads_back(root, root, ())


def _leads_back(value: object, root: Schema, above: tuple[str, ...]) -> bool:
    if isinstance(value, list):
        return any(_leads_back(one, root, above) for one in value)
    if not isinstance(value, dict):
        return False
    ref = value.get("$ref")
    if isinstance(ref, str):
        return ref in above or _leads_back(target(root, ref), root, (*above, ref))
    return any(_leads_back(one, root, above) for key, one in value.items() if key not in ("$defs", "definitions"))
