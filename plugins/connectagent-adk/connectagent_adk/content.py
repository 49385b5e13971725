"""Stand-ins for what ADK callbacks take from `google.genai.types`: `from connectagent_adk import types`.

They have the names and fields that callbacks read and write, and need no package of Google's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any


class FinishReason(StrEnum):
    """Why a model stopped."""

    STOP = "STOP"
    MAX_TOKENS = "MAX_TOKENS"
    SAFETY = "SAFETY"
    OTHER = "OTHER"


class Shown:
    """Shows the fields that are set: a callback's print() is to be readable."""

    def __repr__(self) -> str:
        values = ((each.name, getattr(self, each.name)) for each in fields(self))  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values if value is not None)})"


@dataclass(repr=False)
class FunctionCall(Shown):
    """One call that the model asks for."""

    id: str | None = None
    name: str | None = None
    args: dict[str, Any] | None = None


@dataclass(repr=False)
class FunctionResponse(Shown):
    """The result of one call."""

    id: str | None = None
    name: str | None = None
    response: dict[str, Any] | None = None


@dataclass(repr=False)
class Blob(Shown):
    """Bytes in a message, such as an image."""

    data: bytes | None = None
    mime_type: str | None = None
    display_name: str | None = None


@dataclass(repr=False)
class FileData(Shown):
    """A file in a message, by its address."""

    file_uri: str | None = None
    mime_type: str | None = None


@dataclass(repr=False)
class Part(Shown):
    """One piece of a message: text, a call, a result or a file."""

    text: str | None = None
    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None
    inline_data: Blob | None = None
    file_data: FileData | None = None
    thought: bool | None = None

    @classmethod
    def from_text(cls, *, text: str) -> Part:
        """A piece of text."""
        return cls(text=text)

    @classmethod
    def from_bytes(cls, *, data: bytes, mime_type: str) -> Part:
        """A file by its bytes."""
        return cls(inline_data=Blob(data, mime_type))

    @classmethod
    def from_uri(cls, *, file_uri: str, mime_type: str | None = None) -> Part:
        """A file by its address."""
        return cls(file_data=FileData(file_uri, mime_type))

    @classmethod
    def from_function_call(cls, *, name: str, args: dict[str, Any]) -> Part:
        """A call of a tool."""
        return cls(function_call=FunctionCall(name=name, args=args))

    @classmethod
    def from_function_response(cls, *, name: str, response: dict[str, Any]) -> Part:
        """The result of a call."""
        return cls(function_response=FunctionResponse(name=name, response=response))


@dataclass(repr=False)
class Content(Shown):
    """One message: its pieces, and whose it is, `user` or `model`."""

    parts: list[Part] | None = None
    role: str | None = None


@dataclass(repr=False)
class FunctionDeclaration(Shown):
    """A tool as it is described to the model."""

    name: str | None = None
    description: str | None = None
    parameters: Any = None
    parameters_json_schema: Any = None


@dataclass(repr=False)
class Tool(Shown):
    """Tools that the model may call."""

    function_declarations: list[FunctionDeclaration] | None = None


@dataclass(repr=False)
class GenerateContentConfig(Shown):
    """What goes with a request. Of these, a callback may change `system_instruction` and `tools`."""

    system_instruction: Any = None
    tools: list[Any] | None = field(default_factory=list)
    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    max_output_tokens: int | None = None
    stop_sequences: list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_mime_type: str | None = None
    response_schema: Any = None
    response_json_schema: Any = None
    safety_settings: list[Any] | None = None
    tool_config: Any = None
    thinking_config: Any = None


@dataclass(repr=False)
class GenerateContentResponseUsageMetadata(Shown):
    """The tokens of one model call."""

    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    cached_content_token_count: int | None = None
    total_token_count: int | None = None
