"""The data of a conversation: what is stored (TypedDict) and what is passed around (dataclass).

Messages are in OpenAI's chat format, whichever provider answers. Two keys are connectagent's own and
never sent: `provider_data` holds what a model needs back with its assistant message; `author` names
the agent that wrote a message, if it is another one of the tree.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, Protocol, Required, TypedDict, runtime_checkable

from connectagent.stop_reasons import is_whole, stop_reason

Status = Literal["success", "error", "not_found", "rejected", "stand_in", "recovered", "skipped", "interrupted"]
Outcome = Literal["answered", "truncated", "refused", "ended", "max_iterations", "transferred"]


class AgentBase:
    """The base of every agent. Modules below the agent recognize one by it."""

    name: str


@dataclass(slots=True)
class TokenUsage:
    """Tokens of one model call, and what it cost.

    Args:
        input_tokens: all input tokens on every provider, cached ones included.
        output_tokens: all output tokens, reasoning included.
        cached_tokens: the part of `input_tokens` that was read from the provider's cache.
        cache_write_tokens: the part of `input_tokens` that was written to the provider's cache.
        cost: USD, or None if the price is not known.
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
        id: the provider's id of the call; the result carries the same id.
        name: the name of the tool, as the model wrote it.
        arguments: keyword arguments by name, in the tool's one JSON form from `before_tools` on: all spellings that the
            function gets as one value look the same. Handlers of `before_tools` and `before_each_tool` may edit them.
        error: why the model's arguments could not be read, or None. Such a call is not run.
        approved: whether a person has approved this call after a pause.
        raw: the arguments as the provider sent them. They are sent back unchanged unless a handler has changed
            `arguments`: one different byte misses the provider's cache.
        misfit: why `arguments` do not fit the tool, as the model would read it, or None. Such a call is not run, unless
            a handler edits it so that it fits.
        sent: the arguments as the model sent them, or as the handler wrote that edited them last; None if the form is
            the same.
    """

    id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    approved: bool = False
    raw: str | None = None
    misfit: str | None = field(default=None, repr=False)
    sent: dict[str, Any] | None = field(default=None, repr=False)


@dataclass(slots=True)
class LLMResponse:
    """One answer of a model.

    Args:
        content: the text, or None.
        tool_calls: the calls that the model asks for, in its order.
        usage: tokens and cost, or None if the provider did not report them.
        finish_reason: why it stopped, in the provider's own word, for example `stop` or `length`.
        model: the model that answered, as the provider names it.
        provider_data: what this model needs back with the message, and whose that is:
            `{"provider": ..., "address": ..., "model": ..., ...}`. It is sent to nobody else.
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
        """Whether a token limit cut the answer off."""
        return stop_reason(self.finish_reason).end == "truncated"

    @property
    def whole(self) -> bool:
        """Whether the answer is known to have come to its end: its reason is one that says so, or none was given."""
        return is_whole(self.finish_reason)


@dataclass(slots=True)
class LLMRequest:
    """What goes to the model in one iteration.

    Args:
        messages: the conversation. It is the session's own list: edit it in place to change the
            conversation for good, or assign a new list to change this one call.
        tools: the tools' schemas in OpenAI's format, `{"type": "function", "function": {...}}`.
        model: the model that is asked; a handler may name another one for this call.
        options: parameters of the provider's API for this call; at first the agent's. Another model gets only what
            a handler changed in them, and an LLM without `with_options` gets none.
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
        model: for a model call, another model to ask instead: its name, or an `LLM`. A record has only the name. If no
            model can be made from it, a resumed turn runs the `on_error` handlers again.
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
        data: the bytes of the file, a path to it, or a `data:` URL in base64.
        media_type: for example `image/png`; by default detected from the first bytes.
    """

    data: bytes | str | os.PathLike[str]
    media_type: str | None = None

    def part(self) -> dict[str, Any]:
        """The image as a part of a message: `{"type": "image_url", "image_url": {"url": "data:..."}}`."""
        data = self.data
        if isinstance(data, str) and data[:5].lower() == "data:":
            data = base64.b64decode(data.partition(",")[2])
        if not isinstance(data, bytes):
            with open(data, "rb") as file:
                data = file.read()
        media_type = self.media_type or _image_type(data)
        url = f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"
        return {"type": "image_url", "image_url": {"url": url}}


def _image_type(data: bytes) -> str:
    """The media type of an image, from its first bytes (the formats that both wires take)."""
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
        media_type: for example `application/pdf`; by default detected from the name or the first bytes.
        name: the file name that the model sees; by default the path's.
    """

    data: bytes | str | os.PathLike[str]
    media_type: str | None = None
    name: str | None = None

    def part(self) -> dict[str, Any]:
        """The file as a part of a message: `{"type": "file", "file": {"filename", "file_data": "data:..."}}`.

        An image becomes an image part.

        Raises:
            ValueError: the kind of file is not known.
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
    """The media type of a file, from its first bytes, its name, or the fact that it is text."""
    if data.startswith(b"%PDF-"):
        return "application/pdf"
    import mimetypes

    if name is not None and (found := mimetypes.guess_type(name)[0]):
        return found
    try:
        data.decode()
    except UnicodeDecodeError:
        raise ValueError(
            f"{name or 'the data'}: unknown kind of file; name its media_type, for example 'application/pdf'"
        ) from None
    return "text/plain"


Content = str | list[dict[str, Any]] | None
"""The content of a message: a text, or a list of parts."""


class Message(TypedDict, total=False):
    """One message of the conversation, in OpenAI's chat format."""

    role: Required[str]
    content: Required[str | list[dict[str, Any]] | None]
    tool_calls: list[dict[str, Any]]
    tool_call_id: str
    name: str
    provider_data: dict[str, Any]
    author: str


TraceEntry = dict[str, Any]
"""One item of the trace, tagged by `type`; the keys of each type are in the documentation of the record."""


BEFORE_ANSWER = ("message", "message_edited", "message_removed", "mended", "tool_execution", "change", "error")
"""The types of entries behind an `llm_call` after which the answer's message has an entry of its own."""

BEHIND_ANSWER = ("after_llm", "on_trace")
"""The hooks whose handlers run between a model's answer and its message."""


CORE_TYPES = frozenset(
    (
        *("user_input", "llm_call", "tool_execution", "agent_turn", "message", "message_edited", "message_removed"),
        *("assistant", "mended", "state_delta", "session_delta", "change", "error", "paused", "resumed", "shadow"),
        *("trace_restored", "began", "closed", "handlers", "tool_ended", "turn_ended", "wait", "left"),
        *("decided", "retrying", "lost_update"),
    )
)
"""The types of entries and lines that connectagent itself writes. Plugins use other types for their own."""


class Session(TypedDict):
    """`agent.current_session`: one conversation, a plain dict at run time."""

    id: str  # of the session; inside another agent's turn, of the outer session
    messages: list[Message]
    trace: list[TraceEntry]
    turn: int
    iteration: int
    user_prompt: str
    pending_tool: dict[str, Any] | None
    pending_tools: list[dict[str, Any]] | None
    result: str | None
    outcome: str | None  # an `Outcome`, or a handler's own word
    state: dict[str, Any]
    active_agent: NotRequired[str | None]  # the agent that answers, after a handoff
    heard: NotRequired[dict[str, int]]  # by leading agent: how many of its messages this one has seen


@runtime_checkable
class LLM(Protocol):
    """Anything that answers a conversation.

    `complete` takes messages in OpenAI's chat format and tools as `{"type": "function", "function":
    {...}}`; it returns one `LLMResponse`, and raises `ProviderError` if the call fails.
    """

    model: str

    def complete(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> LLMResponse: ...


@runtime_checkable
class ConfigurableLLM(LLM, Protocol):
    """An LLM that sends parameters of its provider's API, and takes others for one call."""

    options: dict[str, Any]

    def with_options(self, options: dict[str, Any]) -> LLM: ...


@runtime_checkable
class StreamingLLM(LLM, Protocol):
    """An LLM that also streams its text; it returns the whole response."""

    def stream(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        *,
        on_text: Callable[[str], None],
    ) -> LLMResponse: ...


class WordByWord:
    """`stream` for an LLM that has its whole answer at once: it passes the text on word by word."""

    complete: Callable[..., LLMResponse]

    def stream(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        *,
        on_text: Callable[[str], None],
        **options: Any,
    ) -> LLMResponse:
        """Like `complete`, but the text is also passed to `on_text`, word by word."""
        response = self.complete(messages, tools, **options)
        for word in re.findall(r"\S+\s*|\s+", response.content or ""):
            on_text(word)
        return response


@dataclass(frozen=True, slots=True)
class Wait:
    """A call that waits for a person's decision.

    Args:
        id: the place of the wait, to decide it by: `agent.resume(record, approve=id)`.
        agent: the agent whose call it is.
        call: the tool call as `{"id", "name", "arguments"}`; None if a model call or a round of calls waits.
        reason: what is to be decided.
        digest: of the call's arguments, to distinguish similar calls.
        by: the handler or the tool that asked.
        elsewhere: whether the call is carried out elsewhere, and its result is waited for: it is answered or rejected.
        calls: of a round of calls that waits: the calls, each as `call`.
    """

    id: str
    agent: str
    call: dict[str, Any] | None
    reason: str
    digest: str
    by: dict[str, Any]
    elsewhere: bool = False
    calls: list[dict[str, Any]] = field(default_factory=list)
