"""Stand-ins for ADK's request, response and tool, and which kinds of object a callback is given."""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any

from connectagent_adk import content as own_types


@dataclass(repr=False)
class LlmRequest(own_types.Shown):
    """What goes to the model: `contents` is the conversation, `config.system_instruction` the system prompt."""

    model: str | None = None
    contents: list[Any] = field(default_factory=list)
    config: Any = field(default_factory=own_types.GenerateContentConfig)
    tools_dict: dict[str, Any] = field(default_factory=dict)

    def append_instructions(self, instructions: list[str]) -> None:
        """Add paragraphs to the system instruction."""
        earlier = self.config.system_instruction
        if earlier is not None and not isinstance(earlier, str):
            earlier = "".join(part.text or "" for part in earlier.parts or ())
        self.config.system_instruction = "\n\n".join([*([earlier] if earlier else []), *instructions])


@dataclass(repr=False)
class LlmResponse(own_types.Shown):
    """What the model answered, or what stands in for it."""

    content: Any = None
    error_code: str | None = None
    error_message: str | None = None
    finish_reason: Any = None
    usage_metadata: Any = None
    model_version: str | None = None
    custom_metadata: dict[str, Any] | None = None
    grounding_metadata: Any = None
    citation_metadata: Any = None
    partial: bool | None = None
    turn_complete: bool | None = None
    interrupted: bool | None = None

    def get_function_calls(self) -> list[Any]:
        """The calls that the model asks for."""
        parts = (self.content.parts if self.content else None) or []
        return [part.function_call for part in parts if part.function_call]

    def get_function_responses(self) -> list[Any]:
        """The results in the response."""
        parts = (self.content.parts if self.content else None) or []
        return [part.function_response for part in parts if part.function_response]


class BasePlugin:
    """The base of plugins as ADK has them: a plugin has those of ADK's methods that it needs."""

    def __init__(self, name: str) -> None:
        self.name = name


@dataclass
class BaseTool:
    """The tool that a callback is about."""

    name: str
    description: str
    is_long_running: bool = False
    custom_metadata: dict[str, Any] | None = None


@dataclass(frozen=True)
class Kinds:
    """The classes of the objects that one callback is given.

    Args:
        types: the module of `Content`, `Part` and so on.
        request: `LlmRequest`.
        response: `LlmResponse`.
        tool: `BaseTool`.
        event: `Event`; None for the stand-in.
    """

    types: Any = own_types
    request: Any = LlmRequest
    response: Any = LlmResponse
    tool: Any = BaseTool
    event: Any = None


def kinds_for(function: Any) -> Kinds:
    """Google's own classes where a callback or its module imports them, since it may build on what it is given."""
    mentioned = _google_packages(function)
    if not mentioned:
        return Kinds()
    try:
        types = importlib.import_module("google.genai.types")
    except ImportError:  # the callback may do without it
        return Kinds()
    if "google.adk" not in mentioned and "google.adk.models" not in sys.modules:
        return Kinds(types)
    return google_kinds()


def google_kinds() -> Kinds:
    """Google's own classes."""
    types = importlib.import_module("google.genai.types")
    models = importlib.import_module("google.adk.models")
    tools = importlib.import_module("google.adk.tools.base_tool")
    event = importlib.import_module("google.adk.events.event").Event
    return Kinds(types, models.LlmRequest, models.LlmResponse, tools.BaseTool, event)


def _google_packages(function: Any) -> set[str]:
    """Which of Google's packages a function or its module imports; none where it imports the stand-ins."""
    code = getattr(function, "__code__", None)
    inside = list(code.co_names) if isinstance(code, CodeType) else []
    around = [name for value in getattr(function, "__globals__", {}).values() if (name := _home(value))]
    if {own_types.__name__, __name__} & set(around):
        around = []
    packages = ("google.genai", "google.adk")
    return {package for package in packages for name in inside + around if f"{name}.".startswith(f"{package}.")}


def _home(value: Any) -> str:
    """The module that a value is, or comes from."""
    if isinstance(value, ModuleType):
        return value.__name__
    return str(getattr(value, "__module__", "")) if isinstance(value, type) or inspect.isroutine(value) else ""
