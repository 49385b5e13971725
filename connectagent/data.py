"""The data of a conversation: what is stored (TypedDict) and what is passed about (dataclass).

Messages are in OpenAI's chat format, whichever provider answers. Two keys are connectagent's own and
never sent: `provider_data` of an assistant message, which holds what its provider needs back, and
`author`, the agent whose words they are, where it is another one of the tree.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict, runtime_checkable

Status = Literal["success", "error", "not_found", "rejected", "stand_in", "recovered", "skipped", "interrupted"]
Outcome = Literal["answered", "truncated", "ended", "max_iterations", "transferred"]


class AgentBase:
    """What every agent is. Modules below the agent tell by it a real one from an object that looks like one."""

    name: str


@dataclass(slots=True)
class TokenUsage:
    """Tokens of one model call, and what it cost.

    Args:
        input_tokens: all input tokens on every provider, cached ones included.
        output_tokens: all output tokens, reasoning included.
        cached_tokens: the part of `input_tokens` that was read from the provider's cache.
        cache_write_tokens: the part of `input_tokens` that was written to the provider's cache.
        cost: USD, or None where the price is not known.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    cost: float | None = None


@dataclass(slots=True)
class ToolCall:
    """One request of the model to run a tool.

    Args:
        id: the provider's id of the call; the result goes back under the same one.
        name: the name of the tool, as the model wrote it.
        arguments: keyword arguments by name. Handlers of `before_each_tool` may edit them.
        error: why the model's arguments could not be read, or None. Such a call is not run.
        approved: whether the turn was paused at this call, and it was approved since.
        raw: the arguments as the provider sent them. They go back so, unless a handler has changed `arguments`:
            a byte that differs is a miss in the provider's cache.
    """

    id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    approved: bool = False
    raw: str | None = None


@dataclass(slots=True)
class LLMResponse:
    """One answer of a model.

    Args:
        content: the text, or None where there is none.
        tool_calls: the calls that the model asks for, in its order.
        usage: tokens and cost, or None where the provider did not tell.
        finish_reason: the provider's own word for why it stopped, for example `stop` or `length`.
        model: the model that answered, as the provider names it.
        provider_data: what this provider needs back with the message, `{"provider": name, ...}`.
        retries: the failed attempts before this answer, one dict each.
    """

    content: str | None = None
    tool_calls: list[ToolCall] | None = None
    usage: TokenUsage | None = None
    finish_reason: str | None = None
    model: str | None = None
    provider_data: dict[str, Any] | None = None
    retries: list[dict[str, Any]] | None = None

    @property
    def truncated(self) -> bool:
        """Whether a limit of tokens has cut the answer off."""
        return (self.finish_reason or "").lower() in _TRUNCATED


# The providers' words for it: OpenAI's, Anthropic's two, the Responses API's and Mistral's.
_TRUNCATED = {"length", "max_tokens", "model_context_window_exceeded", "max_output_tokens", "model_length"}


@dataclass(slots=True)
class LLMRequest:
    """What goes to the model in one iteration.

    Args:
        messages: the conversation. It is the session's own list: edit it in place to change the
            conversation for good, or assign a new list to change this one call.
        tools: the tools' schemas in OpenAI's format, `{"type": "function", "function": {...}}`.
        model: the model that is asked; another name asks that one in this one call.
        options: parameters of the provider's API, as they are sent in this one call; at first the agent's. Only
            what a handler changes in them is sent to another model, and to an LLM of others nothing is.
    """

    messages: list[Message]
    tools: list[dict[str, Any]]
    model: str
    options: dict[str, Any] = field(default_factory=dict)
    _tools_seen: Any = field(default=None, init=False, repr=False, compare=False)  # a copy, to compare them with


@dataclass(slots=True)
class Retry:
    """Returned by an `on_error` handler: make the failed call again.

    Args:
        after_s: seconds to wait first.
        model: for a model call, another model to ask instead: its name, or an `LLM`. A record has the name only: where
            no model can be made of it, a turn that is resumed asks the handlers of `on_error` again.
    """

    after_s: float = 0
    model: str | LLM | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, str | LLM | None) or self.model == "":
            raise ValueError(f"Retry(model=...) takes a model's name or an LLM, not {self.model!r}")
        if not isinstance(self.after_s, (int, float)) or not 0 <= self.after_s < 86_400:
            raise ValueError(f"Retry(after_s=...) takes seconds, from 0 to a day, not {self.after_s!r}")


@dataclass(slots=True)
class Continue:
    """Returned by an `on_complete` handler: the loop goes on with this as the next user message."""

    prompt: str


@dataclass(slots=True)
class Image:
    """A picture for the model, in a prompt or as the result of a tool.

    Args:
        data: the bytes of the file, or a path to it.
        media_type: for example `image/png`; told from the first bytes where it is not given.
    """

    data: bytes | str | os.PathLike[str]
    media_type: str | None = None

    def part(self) -> dict[str, Any]:
        """The image as a part of a message: `{"type": "image_url", "image_url": {"url": "data:..."}}`."""
        data = self.data
        if not isinstance(data, bytes):
            with open(data, "rb") as file:
                data = file.read()
        media_type = self.media_type or _image_type(data)
        url = f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"
        return {"type": "image_url", "image_url": {"url": url}}


def _image_type(data: bytes) -> str:
    """The media type that the first bytes of an image file tell (the formats that both wires take)."""
    for magic, media_type in ((b"\x89PNG", "image/png"), (b"\xff\xd8", "image/jpeg"), (b"GIF8", "image/gif")):
        if data.startswith(magic):
            return media_type
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    raise ValueError("not a PNG, JPEG, GIF or WebP image; name its media_type, for example 'image/bmp'")


@dataclass(slots=True)
class File:
    """A PDF or another document for the model, in a prompt or as the result of a tool.

    Args:
        data: the bytes of the file, or a path to it.
        media_type: for example `application/pdf`; told from the name or the first bytes where it is not given.
        name: what the model knows it by; that of the path where it is not given.
    """

    data: bytes | str | os.PathLike[str]
    media_type: str | None = None
    name: str | None = None

    def part(self) -> dict[str, Any]:
        """The file as a part of a message: `{"type": "file", "file": {"filename", "file_data": "data:..."}}`.

        A picture becomes the part that an `Image` is.

        Raises:
            ValueError: nothing tells what kind of file it is.
        """
        data, name = self.data, self.name
        if not isinstance(data, bytes):
            name = name or os.path.basename(data)
            with open(data, "rb") as file:
                data = file.read()
        media_type = self.media_type or _file_type(data, name)
        if media_type.startswith("image/"):
            return Image(data, media_type).part()
        url = f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"
        name = name or ("document.pdf" if media_type == "application/pdf" else "file.txt")
        return {"type": "file", "file": {"filename": name, "file_data": url}}


def _file_type(data: bytes, name: str | None) -> str:
    """The media type that the first bytes of a file tell, or its name, or that it is text."""
    if data.startswith(b"%PDF-"):
        return "application/pdf"
    import mimetypes

    if name is not None and (found := mimetypes.guess_type(name)[0]):
        return found
    try:
        data.decode()
    except UnicodeDecodeError:
        raise ValueError(
            f"nothing tells what kind of file {name or 'this'} is; name its media_type, for example 'application/pdf'"
        ) from None
    return "text/plain"


class Message(TypedDict, total=False):
    """One message of the conversation, in OpenAI's chat format."""

    role: str
    content: str | list[dict[str, Any]] | None
    tool_calls: list[dict[str, Any]]
    tool_call_id: str
    name: str
    provider_data: dict[str, Any]
    author: str


TraceEntry = dict[str, Any]
"""One item of the trace, tagged by `type`; the keys of each type are in the documentation of the record."""


CHANGES_MESSAGES = ("message", "message_edited", "message_removed", "mended", "tool_execution", "change")
"""The types of entries that tell of a change of messages, or of what becomes one."""


CORE_TYPES = frozenset(
    (
        *("user_input", "llm_call", "tool_execution", "agent_turn", "message", "message_edited", "message_removed"),
        *("assistant", "mended", "state_delta", "session_delta", "change", "error", "paused", "resumed", "shadow"),
        *("trace_restored", "began", "closed", "handlers", "tool_ended", "turn_ended", "wait", "left"),
        *("decided", "retrying"),
    )
)
"""The types of entries and lines that connectagent itself makes: code of others gives its own entries other ones."""


class Session(TypedDict, total=False):
    """`agent.current_session`: one conversation, a plain dict at run time."""

    messages: list[Message]
    trace: list[TraceEntry]
    turn: int
    iteration: int
    user_prompt: str
    pending_tool: dict[str, Any] | None
    pending_tools: list[dict[str, Any]] | None
    result: str | None
    outcome: Outcome | None
    state: dict[str, Any]
    active_agent: str | None  # who answers, where the agent has handed over to another one
    heard: dict[str, int]  # by the agent that led the turn: how many of its messages this one knows


@runtime_checkable
class LLM(Protocol):
    """Anything that answers a conversation.

    `complete` takes messages in OpenAI's chat format and tools as `{"type": "function", "function":
    {...}}`; it returns one `LLMResponse`, and raises `ProviderError` where the call failed.
    """

    model: str

    def complete(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> LLMResponse: ...


@runtime_checkable
class ConfigurableLLM(LLM, Protocol):
    """An LLM that sends parameters of its provider's API, and can be had with others for one call."""

    options: dict[str, Any]

    def with_options(self, options: dict[str, Any]) -> LLM: ...


@runtime_checkable
class StreamingLLM(LLM, Protocol):
    """An LLM that also tells its text as it arrives; the response that it returns is the whole one."""

    def stream(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        *,
        on_text: Callable[[str], None],
    ) -> LLMResponse: ...


class WordByWord:
    """`stream` for an LLM that has its whole answer at once: it tells the text word by word."""

    complete: Callable[..., LLMResponse]

    def stream(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        *,
        on_text: Callable[[str], None],
        **options: Any,
    ) -> LLMResponse:
        """As `complete`, with the text told word by word."""
        response = self.complete(messages, tools, **options)
        for word in re.findall(r"\S+\s*|\s+", response.content or ""):
            on_text(word)
        return response


@dataclass(frozen=True, slots=True)
class Wait:
    """A call that waits for a person's decision.

    Args:
        id: the place of the wait, by which it is decided: `agent.resume(record, approve=id)`.
        agent: the agent whose call it is.
        call: the tool call as `{"id", "name", "arguments"}`; None where a model call or a round of calls waits.
        reason: what is to be decided.
        digest: of the call's arguments, so that a person who decides can tell one call from another.
        by: the handler or the tool that asked.
    """

    id: str
    agent: str
    call: dict[str, Any] | None
    reason: str
    digest: str
    by: dict[str, Any]


class Log(Protocol):
    """Where the lines of a session are written: what the loop did, and where a turn stands.

    Attributes:
        id: the session's id.
        path: the record's file, or None where nothing is written.
        recording: whether it is for sessions that are written.
    """

    id: str
    recording: bool

    @property
    def path(self) -> Path | None: ...

    def append(self, line: TraceEntry) -> None:
        """Write one line: an entry of the trace, or what only the log has. Nobody changes it afterwards."""

    def follow(self, agent: Any) -> None:
        """Go over to the session that the agent has now."""

    def leave(self) -> None:
        """The session is over."""

    def lines(self) -> list[TraceEntry]:
        """The lines of the turn that is open, as they were before anything in them was masked."""

    def withhold(self, turn: str) -> None:
        """Write the lines of a turn inside, of an agent that is not to be recorded, without texts and arguments."""

    def begin(self, turn: Any) -> None:
        """A root turn begins, or goes on."""

    def end(self, turn: Any, result: str | None, error: BaseException | None) -> None:
        """A root turn is over, or has stopped."""
