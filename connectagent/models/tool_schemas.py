"""Tools as providers take them: their schemas in JSON Schema's draft 2020-12, with names that are accepted.

All providers check a schema against draft 2020-12 and refuse the whole request for one wrong keyword: "tools.N.custom.
input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12" (Anthropic; seen with a boolean
`exclusiveMinimum`: https://github.com/Dokploy/mcp/issues/74). The forms are those of the draft's own schemas,
https://json-schema.org/draft/2020-12/schema and https://json-schema.org/draft-04/schema.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from connectagent.data import LLMResponse, Message
from connectagent.errors import cut
from connectagent.models.content import as_json, read_arguments, wire_name
from connectagent.models.json_schema import object_schema
from connectagent.models.limits import Limits
from connectagent.models.notes import note
from connectagent.models.property_names import PropertyNames
from connectagent.session.state import alike
from connectagent.tools.schema import target

Schema = dict[str, Any]

_TYPES = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = (
    *("additionalProperties", "unevaluatedProperties", "unevaluatedItems", "contains", "propertyNames"),
    *("not", "if", "then", "else", "items", "contentSchema"),
)
_OWN_NAMES = ("$schema", "$id", "id")  # of a schema, which mean nothing inside a request
_DEEPEST = 100


class CannotOffer(ValueError):
    """A tool has something that no form of it would make acceptable."""


class SentTools(NamedTuple):
    """Tools in the form in which they are sent, and how to read the calls that come back.

    Attributes:
        tools: their schemas, in OpenAI's format.
        names: by the name that is sent: the tool's own.
        keys: by the tool's own name: the names of its properties, where some are sent by others.
        notes: what was adapted.
        left_out: by the name of a tool that is not sent: why.
    """

    tools: list[Schema]
    names: dict[str, str]
    keys: dict[str, PropertyNames]
    notes: list[str]
    left_out: dict[str, str]


# -- schemas -------------------------------------------------------------------------------------


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_type(value: object) -> bool:
    listed = value if isinstance(value, list) else [value]
    return bool(listed) and all(isinstance(one, str) and one in _TYPES for one in listed)


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value)) and len(set(value)) == len(value)


def _are_choices(value: object) -> bool:
    return isinstance(value, list) and len(value) > 0


_FORMS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum"), _is_number),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"), _is_count),
    **dict.fromkeys(("maxContains", "minContains"), _is_count),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _is_bool),
    **dict.fromkeys(("title", "description", "pattern", "format", "$comment", "$ref", "$dynamicRef"), _is_text),
    **dict.fromkeys(("contentEncoding", "contentMediaType"), _is_text),
    "type": _is_type,
    "required": _are_names,
    "enum": _are_choices,
    "examples": lambda value: isinstance(value, list),
    "dependentRequired": lambda value: isinstance(value, dict) and all(map(_are_names, value.values())),
}


class _Translator:
    """Brings a schema to draft 2020-12: draft 4 is translated, a keyword of a wrong form is left out.

    Attributes:
        dropped: where keywords were left out.
    """

    def __init__(self, root: Schema) -> None:
        self.root = root
        self.dropped: list[str] = []

    def translated(self, schema: object, where: str, depth: int = 0) -> Any:
        """A schema in draft 2020-12; the same object if it needs no change.

        Raises:
            CannotOffer: it is no schema.
        """
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise CannotOffer(f"{where} is no JSON Schema, but {type(schema).__name__}")
        if depth > _DEEPEST:
            raise CannotOffer(f"{where} is nested too deep")
        made = _from_draft_4(schema)
        for key in list(made):
            made = self._keyword(made, key, f"{where}.{key}", depth)
        if "$ref" in made and target(self.root, made["$ref"]) is None:
            raise CannotOffer(f"{where}.$ref leads nowhere: {made['$ref']!r:.100}")
        kinds = made.get("type")
        is_array = kinds == "array" or (isinstance(kinds, list) and "array" in kinds)
        return {**made, "items": {}} if is_array and "items" not in made else made  # OpenAI refuses it without

    def _keyword(self, schema: Schema, key: str, at: str, depth: int) -> Schema:
        """A schema with one of its keywords translated, or without it."""
        if (fits := _FORMS.get(key)) is not None and not fits(schema[key]):
            return self._without(schema, key, at)
        if key in _MAPS:
            return self._map(schema, key, at, depth)
        if key in _LISTS:
            return self._list(schema, key, at, depth)
        return self._single(schema, key, at, depth) if key in _SINGLE else schema

    def _without(self, schema: Schema, key: str, at: str) -> Schema:
        self.dropped.append(at)
        return {name: value for name, value in schema.items() if name != key}

    def _map(self, schema: Schema, key: str, at: str, depth: int) -> Schema:
        inner = schema[key]
        if not isinstance(inner, dict):
            return self._without(schema, key, at)
        made = {name: self.translated(one, f"{at}.{name}", depth + 1) for name, one in inner.items()}
        return schema if all(made[name] is inner[name] for name in inner) else {**schema, key: made}

    def _list(self, schema: Schema, key: str, at: str, depth: int) -> Schema:
        inner = schema[key]
        if not isinstance(inner, list | tuple) or not inner:
            return self._without(schema, key, at)
        made = [self.translated(one, f"{at}.{number}", depth + 1) for number, one in enumerate(inner)]
        return schema if all(new is old for new, old in zip(made, inner, strict=True)) else {**schema, key: made}

    def _single(self, schema: Schema, key: str, at: str, depth: int) -> Schema:
        inner = schema[key]
        if not isinstance(inner, dict | bool):
            return self._without(schema, key, at)
        made = self.translated(inner, at, depth + 1)
        return schema if made is inner else {**schema, key: made}


def _from_draft_4(schema: Schema) -> Schema:
    """A schema with draft 4's own keywords in the words of draft 2020-12; the same object if it has none."""
    changed = _exclusive_limits(schema)
    gone = _old_keys(schema, changed)
    if isinstance(schema.get("items"), list | tuple):
        changed |= _tuple_items(schema)
    if isinstance(schema.get("required"), bool):  # draft 3 says it at the property
        gone.add("required")
    if _is_number(schema.get("divisibleBy")):  # draft 3
        changed["multipleOf"] = schema["divisibleBy"]
        gone.add("divisibleBy")
    if isinstance(schema.get("dependencies"), dict):
        changed |= _dependencies(schema)
        gone.add("dependencies")
    if isinstance(schema.get("nullable"), bool):  # OpenAPI 3.0
        changed |= _nullable(schema)
        gone.add("nullable")
    if required := _required_properties(schema):
        changed["required"] = required
    if not changed and not gone:
        return schema
    made = {**schema, **changed}
    return {key: value for key, value in made.items() if key in changed or key not in gone}


_LIMITS = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}


def _exclusive_limits(schema: Schema) -> Schema:
    """The limits whose value itself is not allowed, which draft 4 says by true beside them."""
    return {
        limit: schema[bound]
        for limit, bound in _LIMITS.items()
        if schema.get(limit) is True and _is_number(schema.get(bound))
    }


def _old_keys(schema: Schema, changed: Schema) -> set[str]:
    """The keys of draft 4 that go: names of schemas, and of each limit what is said by the other key now."""
    names = {key for key in _OWN_NAMES if isinstance(schema.get(key), str)}
    limits = {limit: bound for limit, bound in _LIMITS.items() if isinstance(schema.get(limit), bool)}
    return names | {bound if limit in changed else limit for limit, bound in limits.items()}


def _tuple_items(schema: Schema) -> Schema:
    """A list of `items` in the words of draft 2020-12."""
    rest = schema.get("additionalItems")
    return {"prefixItems": list(schema["items"]), "items": rest if isinstance(rest, dict | bool) else {}}


def _dependencies(schema: Schema) -> Schema:
    """What properties need, in the words of draft 2020-12, which parts lists of names from schemas."""
    names = {key: value for key, value in schema["dependencies"].items() if isinstance(value, list)}
    schemas = {key: value for key, value in schema["dependencies"].items() if isinstance(value, dict | bool)}
    made: Schema = {}
    if names:
        made["dependentRequired"] = {**(schema.get("dependentRequired") or {}), **names}
    if schemas:
        made["dependentSchemas"] = {**(schema.get("dependentSchemas") or {}), **schemas}
    return made


def _nullable(schema: Schema) -> Schema:
    """The type, and the choices, of a schema that may be null."""
    kinds = schema.get("type")
    if not schema["nullable"] or kinds is None:
        return {}
    listed = kinds if isinstance(kinds, list) else [kinds]
    made: Schema = {"type": [*listed, *(() if "null" in listed else ("null",))]}
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        made["enum"] = [*schema["enum"], None]
    return made


def _required_properties(schema: Schema) -> list[str]:
    """The required properties, if some of them say so themselves, as in draft 3; else []."""
    properties, own = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return []
    needed = [name for name, one in properties.items() if isinstance(one, dict) and one.get("required") is True]
    return list(dict.fromkeys([*(own if isinstance(own, list) else ()), *needed])) if needed else []


def sendable_schema(parameters: object) -> tuple[Schema, list[str]]:
    """The parameters of a tool in draft 2020-12, and where keywords were left out.

    Raises:
        CannotOffer: they cannot be sent in any form.
    """
    if parameters is None:
        return {"type": "object", "properties": {}}, []
    if not isinstance(parameters, dict):
        raise CannotOffer(f"its parameters are no JSON Schema, but {type(parameters).__name__}")
    if parameters.get("type", "object") != "object":
        raise CannotOffer(f"its parameters are of type {parameters['type']!r:.40}, not 'object'")
    translator = _Translator(parameters)
    made = translator.translated(parameters, "parameters")
    try:
        json.dumps(made, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise CannotOffer(f"its parameters cannot be written as JSON: {error}") from None
    return made if isinstance(made, dict) else {}, translator.dropped


# -- all tools of a request ----------------------------------------------------------------------


def sendable_tools(tools: list[Schema], limits: Limits) -> SentTools:
    """The tools of a request as a provider takes them."""
    sent = SentTools([], {}, {}, [], {})
    taken = {
        str(function.get("name")) for tool in tools if isinstance(function := _function_of(tool), dict)
    }  # fmt: skip
    for tool in tools:
        function = _function_of(tool)
        if function is None:  # in the provider's own form
            sent.tools.append(tool)
            continue
        name = str(function.get("name") or "")
        try:
            _add(sent, tool, function, name, limits, taken)
        except CannotOffer as problem:
            sent.left_out[name] = str(problem)
    return sent


def _function_of(tool: object) -> Any:
    return tool.get("function") if isinstance(tool, dict) and isinstance(tool.get("function"), dict) else None


def _add(sent: SentTools, tool: Schema, function: Schema, name: str, limits: Limits, taken: set[str]) -> None:
    """Add one tool to those that are sent.

    Raises:
        CannotOffer: it cannot be sent.
    """
    if not name:
        raise CannotOffer("it has no name")
    if limits.tools is not None and len(sent.tools) >= limits.tools:
        raise CannotOffer(f"a request may have at most {limits.tools} tools")
    if _is_sent(sent, name):
        raise CannotOffer("another tool has its name")
    wire = _wire_name(sent, name, taken)
    schema, dropped = sendable_schema(function.get("parameters"))
    keys = None
    if limits.property_names is not None:
        keys = PropertyNames(object_schema(schema), limits.property_names)
        schema = keys.schema
    if wire != name:
        sent.names[wire] = name
        sent.notes.append(f"tool {name!r} is sent as {wire!r}")
    if keys is not None and keys.sent:
        sent.keys[name] = keys
        shown = ", ".join(f"{own!r} as {new!r}" for own, new in keys.sent.items())
        sent.notes.append(f"tool {name!r}: properties are sent by other names, {shown}")
    if dropped:
        sent.notes.append(f"tool {name!r}: left out of its schema, as they have a wrong form: {', '.join(dropped)}")
    described = _described(sent, name, function, limits.tool_description)
    if described is function and schema is function.get("parameters") and wire == name:
        sent.tools.append(tool)
    else:
        sent.tools.append({**tool, "function": {**described, "name": wire, "parameters": schema}})


def _described(sent: SentTools, name: str, function: Schema, most: int | None) -> Schema:
    """A tool with a description that is no longer than the provider takes; the same object if it needs no change."""
    description = function.get("description")
    if most is None or not isinstance(description, str) or len(description) <= most:
        return function
    sent.notes.append(f"tool {name!r}: its description is cut to {most:,} of {len(description):,} characters")
    return {**function, "description": cut(description, most)}


_NO_TOOLS = SentTools([], {}, {}, [], {})


def _is_sent(sent: SentTools, name: str) -> bool:
    own = (function.get("name") for tool in sent.tools if (function := _function_of(tool)) is not None)
    return name in sent.names.values() or name in own


def _wire_name(sent: SentTools, name: str, taken: set[str]) -> str:
    """The name by which a tool is sent, which no other tool has."""
    wire = wire_name(name)
    count = 1
    while wire != name and (wire in taken or wire in sent.names):
        count += 1
        wire = f"{wire_name(name)[:60]}_{count}"
    return wire


_KEPT = 8  # lists of tools whose form is remembered


class ToolForms:
    """Remembers the form of lists of tools, which are the same in nearly every request."""

    def __init__(self) -> None:
        self._known: tuple[tuple[list[Schema], Limits, SentTools], ...] = ()

    def of(self, tools: list[Schema], provider: str, limits: Limits) -> SentTools:
        """The tools as they are sent; warns of one that is left out, the first time."""
        if not tools:
            return _NO_TOOLS
        known = (form for given, under, form in self._known if under is limits and alike(given, tools))
        if (form := next(known, None)) is None:
            form = sendable_tools(tools, limits)
            self._known = ((_copied(tools), limits, form), *self._known[: _KEPT - 1])
            for name, why in form.left_out.items():
                text = f"tool {name!r} is left out of requests to {provider}: {why}"
                warnings.warn(text, RuntimeWarning, stacklevel=2)
        for text in form.notes:
            note(text)
        for name, why in form.left_out.items():
            note(f"tool {name!r} is left out: {why}", unsent=name)
        return form


def _copied(value: object) -> Any:
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value


# -- calls ---------------------------------------------------------------------------------------


def with_own_names(response: LLMResponse, sent: SentTools) -> None:
    """Give the calls of a response the names and properties of the tools themselves."""
    for call in response.tool_calls or ():
        call.name = sent.names.get(call.name, call.name)
        if keys := sent.keys.get(call.name):
            call.arguments = keys.own_value(call.arguments)
            call.raw = None


def with_sent_names(messages: list[Message], sent: SentTools) -> list[Message]:
    """The messages with the calls of earlier answers as the model made them: with the properties that are sent."""
    if not sent.keys:
        return messages
    return [_as_sent(message, sent) if message.get("tool_calls") else message for message in messages]


def _as_sent(message: Message, sent: SentTools) -> Message:
    calls = list(message["tool_calls"])
    for at, call in enumerate(calls):
        function = _function_of(call)
        keys = sent.keys.get(str(function.get("name"))) if function else None
        if function is None or not keys:
            continue
        arguments, _ = read_arguments(function.get("arguments"))
        renamed = keys.sent_value(arguments)
        if renamed != arguments:
            calls[at] = {**call, "function": {**function, "arguments": as_json(renamed)}}
    return {**message, "tool_calls": calls}
