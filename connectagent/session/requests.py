"""Checks of the tools and options of a request, and which tools were changed."""

from __future__ import annotations

import json
import re
from typing import Any

from connectagent.session.snapshot import clone, same

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_encode = json.JSONEncoder(allow_nan=False, default=repr).encode  # objects become text on the wire


def tools_problem(tools: list[Any]) -> str | None:
    """Why a provider would refuse tools, or None."""
    names: set[str] = set()
    for tool in tools:
        name = name_of(tool)
        if name is None:
            form = "{'type': 'function', 'function': {'name': ..., 'parameters': ...}}"
            return f"a tool is {form}, not {tool!r:.200}"
        if not _NAME.fullmatch(name):
            return f"the name of a tool has up to 64 letters, digits, _ and -, not {name!r:.80}"
        if name in names:
            return f"two tools are named {name!r}"
        names.add(name)
        if problem := json_problem(tool) or _function_problem(tool.get("function")):
            return f"tool {name!r}: {problem}"
    return None


def name_of(tool: object) -> str | None:
    """The name of a tool, which may be in a provider's own form; None if it has none."""
    if not isinstance(tool, dict):
        return None
    function = tool.get("function")
    if isinstance(function, dict):
        name = function.get("name") if tool.get("type", "function") == "function" else None
    else:
        name = tool.get("name", tool.get("type")) if function is None and tool.get("type") != "function" else None
    return name if isinstance(name, str) else None


def names_of(tools: list[Any]) -> list[str]:
    """The names of tools as a record lists them; "?" for one that has none."""
    return [name_of(tool) or "?" for tool in tools]


def json_problem(value: object) -> str | None:
    """Why a value cannot be written as JSON, or None."""
    try:
        _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        return f"it cannot be written as JSON ({error})"
    return None


def changed_tools(before: list[Any], now: list[Any]) -> dict[str, Any]:
    """The new and changed tools by name; None for a removed one."""
    old, new = ({str(name_of(tool)): tool for tool in tools} for tools in (before, now))
    changed = {name: clone(tool) for name, tool in new.items() if name not in old or not same(old[name], tool)}
    return changed | {name: None for name in old if name not in new}


def _function_problem(function: object) -> str | None:
    """Why a function cannot be offered to a model, or None. A tool in a provider's own form is not checked."""
    if not isinstance(function, dict):
        return None
    if not isinstance(function.get("description", ""), str | None):
        return "its description is a str"
    parameters = function.get("parameters")
    if parameters is None:
        return None
    if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
        return "its parameters are a JSON Schema of type 'object'"
    return _schema_problem(parameters)


def _schema_problem(schema: dict[str, Any]) -> str | None:
    """Why a dict is no JSON Schema of an object, as far as providers check."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not all(
        isinstance(name, str) and isinstance(one, dict | bool) for name, one in properties.items()
    ):
        return "its properties are schemas by name"
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        return "its 'required' is a list of names"
    return None
