"""The name and the JSON Schema of a tool as OpenAI and Anthropic both take them."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from connectagent.errors import ToolDefinitionError

_MAPS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_JSON_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
_PYTHON_TYPES = {
    **{"str": "string", "int": "integer", "float": "number", "bool": "boolean", "dict": "object", "bytes": "string"},
    **{"list": "array", "tuple": "array", "set": "array", "None": "null", "NoneType": "null"},
}

# OpenAI's rule for names. Anthropic takes 128 characters, but a conversation may change provider.
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def check_name(name: object, where: str) -> None:
    """Refuse a name that a provider would refuse.

    Raises:
        ToolDefinitionError: with a name that would do.
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return
    cleaned = re.sub(r"[^a-zA-Z0-9_-]+", "_", str(name)).strip("_")[:64] or "my_tool"
    raise ToolDefinitionError(
        f"{name!r} cannot be the name of a tool ({where}): providers take letters, digits, '_' and '-', "
        f"at most 64 of them.\nUse for example {cleaned!r}: @tool(name={cleaned!r})."
    )


def given_schema(parameters: object, name: str) -> dict[str, Any]:
    """A schema that somebody else wrote, checked, and completed so that both wires take it.

    Raises:
        ToolDefinitionError: it is not a JSON Schema of an object.
    """
    if not isinstance(parameters, dict):
        _bad(name, "parameters", f"must be a JSON Schema (a dict), got {type(parameters).__name__}")
    keywords = {*_MAPS, *_LISTS, *_SINGLE, "type", "required", "$ref", "title", "description", "$schema", "$id"}
    if parameters and not keywords.intersection(parameters) and all(isinstance(v, dict) for v in parameters.values()):
        raise ToolDefinitionError(
            f"tool {name!r}: parameters has names of arguments where a JSON Schema was expected.\n"
            'Write {"type": "object", "properties": {...}}.'
        )
    if parameters.get("type", "object") != "object":
        _bad(name, "parameters.type", f"must be 'object', as arguments go by name; got {parameters['type']!r}")
    return wire_schema(parameters, name, titles=True)


def wire_schema(schema: dict[str, Any], name: str, *, titles: bool = False) -> dict[str, Any]:
    """A copy of a schema as OpenAI and Anthropic take it at the top of a tool (draft 2020-12)."""
    made = _Copier(schema, name, titles).copy(schema, "parameters")
    made.pop("$schema", None)
    if "$ref" in made:
        made = {**target(made, made.pop("$ref")), **made}
    return flat_object(made)


def flat_object(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema as an object without `anyOf`, `oneOf` and `allOf`, which Anthropic refuses at the top, and only there.

    Their properties are taken together; only those of `allOf` stay required. The schema is changed.
    """
    properties, required = schema.get("properties") or {}, list(schema.get("required") or ())
    for keyword in ("oneOf", "anyOf", "allOf"):
        for branch in schema.pop(keyword, None) or ():
            found = target(schema, branch.get("$ref")) or branch if isinstance(branch, dict) else {}
            properties = {**(found.get("properties") or {}), **properties}
            required += (found.get("required") or ()) if keyword == "allOf" else ()
    made = {**schema, "type": "object", "properties": properties}
    if required:
        made["required"] = list(dict.fromkeys(name for name in required if name in properties))
    return made


@dataclass(slots=True)
class _Copier:
    root: dict[str, Any]
    name: str
    titles: bool

    def copy(self, schema: object, where: str) -> dict[str, Any]:
        if isinstance(schema, bool):
            return {} if schema else {"not": {}}
        if not isinstance(schema, dict):
            _bad(self.name, where, f"must be a schema (a dict), got {type(schema).__name__}")
        made = dict(self._items(schema, where))
        if not self.titles:
            made.pop("title", None)  # pydantic's titles are the names once more
        if "type" in made:
            self._check_type(made["type"], f"{where}.type")
        if "$ref" in made and target(self.root, made["$ref"]) is None:
            what = f"{made['$ref']!r} leads nowhere; only references like '#/$defs/X' resolve"
            _bad(self.name, f"{where}.$ref", what)
        if isinstance(made.get("required"), tuple | list):
            made["required"] = [key for key in made["required"] if key in made.get("properties", made["required"])]
        _complete_array(made)
        return made

    def _items(self, schema: dict[str, Any], where: str) -> Iterator[tuple[str, Any]]:
        for key, value in schema.items():
            at = f"{where}.{key}"
            if key in _MAPS and isinstance(value, dict):
                yield key, {k: self.copy(v, f"{at}.{k}") for k, v in value.items()}
            elif (key in _LISTS or key == "items") and isinstance(value, list | tuple):
                # a list under `items` is what draft 2020-12 calls prefixItems
                yield "prefixItems" if key == "items" else key, [self.copy(v, f"{at}.{i}") for i, v in enumerate(value)]
            elif key == "description" and isinstance(value, str):
                yield key, value.encode("utf-8", "replace").decode()  # one lone surrogate would stop every request
            elif key == "additionalProperties" and isinstance(value, bool):
                yield key, value
            elif key in (*_MAPS, *_LISTS, *_SINGLE):
                yield key, self.copy(value, at)
            else:
                yield key, value

    def _check_type(self, given: object, where: str) -> None:
        for one in given if isinstance(given, list) else [given]:
            if one in _JSON_TYPES:
                continue
            meant = _PYTHON_TYPES.get(one.__name__ if isinstance(one, type) else str(one))
            hint = f"write {meant!r}" if meant else f"accepted are {', '.join(_JSON_TYPES)}"
            _bad(self.name, where, f"{one!r} is not a JSON type: {hint}")


def _complete_array(schema: dict[str, Any]) -> None:
    """Give an array its `items`, without which OpenAI refuses it, tuples (`prefixItems`) too."""
    kinds = schema.get("type")
    if "items" in schema or not (kinds == "array" or (isinstance(kinds, list) and "array" in kinds)):
        return
    each: list[Any] = []
    for item in schema.get("prefixItems", ()):
        if item not in each:
            each.append(item)
    schema["items"] = {"anyOf": each} if len(each) > 1 else each[0] if each else {}


def target(root: dict[str, Any], ref: object) -> Any:
    """What a local reference leads to, or None."""
    if not isinstance(ref, str) or not ref.startswith("#"):
        return None
    found: Any = root
    for part in ref[2:].split("/") if ref != "#" else ():
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


def _bad(name: str, where: str, what: str) -> typing.NoReturn:
    raise ToolDefinitionError(f"tool {name!r}: {where} {what}.")


def check_timeout(timeout_s: object, where: str) -> None:
    """Refuse what is no time limit.

    Raises:
        ToolDefinitionError: it is neither None nor a positive number of seconds.
    """
    if timeout_s is None:
        return
    if isinstance(timeout_s, (int, float)) and type(timeout_s) is not bool and 0 < timeout_s < float("inf"):
        return
    raise ToolDefinitionError(f"{where}: timeout_s is a positive number of seconds, or None, not {timeout_s!r}.")
