"""The entries of the trace as types, to annotate with: `def sign(entry: ToolExecution) -> None`.

An entry is a plain dict, which its `type` tells apart; docs/record-format.md says what each key holds. Keys that are
not `Required` are present only where they say something. Plugins' own entries have types of their own.
"""

from typing import Any, Literal, Required, TypedDict

from connectagent.data import Message, Status, TokenUsage


class By(TypedDict, total=False):
    """Who did it: a handler, a tool, an agent, the program or the person."""

    plugin: str  # not of a tool of the agent itself
    version: str | None
    hook: str
    handler: str
    tool: str
    agent: str
    branch: str | None
    file: str
    line: int


class Entry(TypedDict, total=False):
    """What every entry may have."""

    id: str  # of an operation
    at: str  # the place, of what is no operation
    timestamp: Required[float]  # Unix seconds
    author: str
    branch: str
    by: By | None


class StateChange(TypedDict, total=False):
    """What was changed in the state in the same step."""

    delta: dict[str, Any]
    removed: list[str]


class MergedChange(StateChange, total=False):
    """What was changed in a copy of the state, or in a dict of it, in a form to merge."""

    appended: dict[str, list[Any] | dict[str, Any]]
    inside: dict[str, "MergedChange"]


class ModelCall(TypedDict, total=False):
    """A tool call as an answer of the model has it."""

    id: Required[str]
    name: Required[str]
    arguments: Required[dict[str, Any]]
    raw: str | None
    error: str | None


_From = TypedDict("_From", {"from": list[str]}, total=False)  # a word of Python's own


class Failure(TypedDict, total=False):
    """How it failed."""

    error: str
    error_type: str
    error_kind: str
    error_provider: str
    error_status: int | None
    retry_after_s: float | None
    finish_reason: str


class EndOfTurn(TypedDict, total=False):
    """How a turn was ended."""

    result: Any
    outcome: Required[str]
    by: Required[Any]
    scope: str


class Outward(TypedDict, total=False):
    """How a turn ended that ends those around it too."""

    result: Required[Any]
    outcome: Required[str]
    by: Required[Any]
    scope: Required[str]


class HandedOver(TypedDict, total=False):
    """The conversation was handed over."""

    target: Required[str]
    message: Required[str]
    by: Required[str]


class Outlined(Failure, total=False):
    """How a call ended before a handler replaced its outcome."""

    status: Required[str]


class Beginning(TypedDict, total=False):
    """The conversation with which a record, or an agent in it, begins."""

    messages: list[Message]
    state: dict[str, Any]
    turn: int


class PromptChange(TypedDict, total=False):
    """A handler changed the system prompt."""

    by: Required[By]
    before: Required[str]


class UserInput(Entry, total=False):
    """A turn began."""

    type: Required[Literal["user_input"]]
    turn: Required[int]
    prompt: Required[str]
    content: str | list[dict[str, Any]]
    max_iterations: int
    output: str


class Refused(TypedDict, total=False):
    """What a provider refused in a request, so that it was left out."""

    element: Required[Literal["image", "file", "text", "tool"]]
    of: Required[dict[str, Any]]  # whose it is: a `by`, or the user
    index: int  # of its message, as the request had them
    tool: str  # the name of the tool whose schema it is
    key: str  # of that schema
    error: Required[str]


class AskedOutput(TypedDict, total=False):
    """How a model was asked for a structured answer."""

    name: Required[str]  # of the type
    schema: Required[dict[str, Any]]  # JSON Schema
    in_words: bool  # the last message of the call ended with an instruction


class SentDifference(TypedDict, total=False):
    """What a model call was sent, as far as it differs from the call before."""

    model: str
    tools: list[dict[str, Any] | str]  # a text stands for a schema that the record already has
    options: dict[str, Any] | None
    output: AskedOutput | None
    messages: list[Message]
    edited: list[Any]
    adapted: list[str]  # in words


class LLMCall(Entry, StateChange, Failure, _From, total=False):
    """An attempt at a model ended, or something stood in for it."""

    type: Required[Literal["llm_call"]]
    model: Required[str]
    provider: str
    started: float  # Unix seconds; not of a stand-in
    duration_ms: Required[float]
    tool_calls_count: Required[int]
    iteration: Required[int]
    usage: Required[TokenUsage | None]
    content: Required[str | None]
    tool_calls: Required[list[ModelCall]]
    status: Required[Literal["success", "error", "stand_in", "recovered", "interrupted"]]
    provider_data: dict[str, Any]
    retries: list[dict[str, Any]]
    attempt: int
    options: dict[str, Any]
    tools: list[str]
    request: SentDifference
    digest: str
    refused: list[Refused]
    entries_since_request: int
    original: Outlined
    ended: EndOfTurn


class ToolExecution(Entry, StateChange, _From, total=False):
    """A tool call has its result."""

    type: Required[Literal["tool_execution"]]
    tool_name: Required[str]
    original_tool_name: str
    arguments: Required[dict[str, Any]]
    original_arguments: dict[str, Any]
    sent_arguments: dict[str, Any]
    call_id: Required[str]
    result: Required[str | list[dict[str, Any]]]
    result_type: str
    status: Required[Status]
    started: float  # Unix seconds; only where the tool was run
    duration_ms: float  # only where the tool was run
    timing: Required[float]  # ms, of the tool alone
    iteration: Required[int]
    error: str
    error_type: str
    raised_at: str
    left_behind: bool
    unsettled: bool
    held: str
    attempt: int
    attempts: list[dict[str, Any]]
    original: Outlined
    ended_turn: str | None
    ended: EndOfTurn
    handoff: HandedOver


class AgentTurn(Entry, MergedChange, Failure, _From, total=False):
    """The turn of an agent inside this one ended."""

    type: Required[Literal["agent_turn"]]
    agent: Required[str]
    turn: Required[int]
    record: Required[str | None]
    started: Required[float]
    duration_ms: Required[float]
    usage: Required[TokenUsage | None]
    outcome: Required[str]
    result: str | None
    open: bool
    handoff: HandedOver
    outward: Outward


class MessageAdded(Entry, StateChange, total=False):
    """Somebody other than the user and the model added a message."""

    type: Required[Literal["message"]]
    index: Required[int]
    message: Required[Message]


class MessageEdited(Entry, total=False):
    """A message was changed."""

    type: Required[Literal["message_edited"]]
    index: Required[int]
    message: Required[Message]
    refused: Refused


class MessageRemoved(Entry, total=False):
    """A message was removed."""

    type: Required[Literal["message_removed"]]
    index: Required[int]


class AssistantAdded(Entry, total=False):
    """The model's answer was added to the messages after something else had changed them."""

    type: Required[Literal["assistant"]]
    index: Required[int]
    message: Required[Message]


class Mended(Entry, total=False):
    """The messages were put into an order that providers take."""

    type: Required[Literal["mended"]]
    messages_before: Required[int]
    messages: Required[int]


class StateDelta(Entry, total=False):
    """The state was changed."""

    type: Required[Literal["state_delta"]]
    delta: Required[dict[str, Any]]
    added: dict[str, int]
    removed: list[str]


class LostWrite(TypedDict, total=False):
    """A write to the state that is overwritten: it set a key, added to a list, or removed a key."""

    key: Required[list[Any]]  # the key of the state, the key in its dict, and so on
    by: Required[By]
    value: Any
    appended: list[Any]
    removed: bool


class LostUpdate(Entry, total=False):
    """A change of the state overwrote what others had written since its maker's copy of the state was made."""

    type: Required[Literal["lost_update"]]
    lost: Required[list[LostWrite]]


class SessionDelta(Entry, total=False):
    """Another key of the session was changed."""

    type: Required[Literal["session_delta"]]
    delta: Required[dict[str, Any]]


class Change(Entry, StateChange, total=False):
    """A handler changed or replaced what its hook is about."""

    type: Required[Literal["change"]]
    of: Required[str]  # the chained parameter, for a hook that a plugin defines
    value: Required[Any]
    call_id: str
    iteration: int | None


class Error(Entry, total=False):
    """An error stopped the turn, or a handler raised under `plugin_errors="warn"`."""

    type: Required[Literal["error"]]
    error: Required[str]
    error_type: Required[str]
    handling: dict[str, Any]  # the error that an `on_error` handler was to handle when it raised this one


class TraceRestored(Entry, total=False):
    """Entries of the trace were changed or removed, and are put back."""

    type: Required[Literal["trace_restored"]]
    entries: Required[list[str]]


class WaitingCall(TypedDict, total=False):
    """A call that waits."""

    id: Required[str | None]
    name: Required[str]
    arguments: Required[Any]


class TurnPaused(Entry, total=False):
    """The turn was paused."""

    type: Required[Literal["paused"]]
    hook: Required[str]
    reason: Required[str]
    call: Required[WaitingCall | None]
    waits: Required[list[str]]
    inner: dict[str, Any]


class Resumed(Entry, total=False):
    """The session was taken up again."""

    type: Required[Literal["resumed"]]
    record: str
    turn: Required[int]
    iteration: int
    decided: dict[str, Any]
    plugins: dict[str, list[str]]
    switched_off: list[str]
    undone: int
    not_recorded_from: int


class Shadow(Entry, total=False):
    """A shadowed handler would have done something."""

    type: Required[Literal["shadow"]]
    hook: Required[str]
    would: Required[dict[str, Any]]
    call_id: str


class Retrying(Entry, total=False):
    """A request to a model has failed, and the provider's SDK waits and makes it again."""

    type: Required[Literal["retrying"]]
    model: Required[str]
    status: Required[int]
    retry_after_s: float | None
    attempt: Required[int]


ENTRIES: dict[str, Any] = {
    "user_input": UserInput,
    "llm_call": LLMCall,
    "tool_execution": ToolExecution,
    "agent_turn": AgentTurn,
    "message": MessageAdded,
    "message_edited": MessageEdited,
    "message_removed": MessageRemoved,
    "assistant": AssistantAdded,
    "mended": Mended,
    "state_delta": StateDelta,
    "lost_update": LostUpdate,
    "session_delta": SessionDelta,
    "change": Change,
    "error": Error,
    "trace_restored": TraceRestored,
    "paused": TurnPaused,
    "resumed": Resumed,
    "shadow": Shadow,
    "retrying": Retrying,
}
"""The entries that connectagent itself writes, by their `type`."""


class Retried(TypedDict, total=False):
    """Another attempt that a handler asked for."""

    after_s: Required[float]
    model: Required[str | None]


class Stored(TypedDict, total=False):
    """A handler's value, or a person's answer, as data."""

    value: Any
    response: dict[str, Any]
    retry: Retried
    given: bool


class RequestChange(TypedDict, total=False):
    """What handlers changed in a request, for one call."""

    edited: list[Any]  # a message, or from where to where the conversation has them
    messages: list[Message]
    tools: list[dict[str, Any]]
    model: str
    options: dict[str, Any]
    hidden: list[str]


class More(TypedDict, total=False):
    """The loop goes on with another message."""

    prompt: Required[Stored]
    by: Required[By | None]


class LogLine(TypedDict, total=False):
    """What every line has that only the log holds."""

    id: Required[str]
    timestamp: float
    author: str
    branch: str
    by: By | None


class Began(LogLine, total=False):
    """An operation begins."""

    type: Required[Literal["began"]]
    call_id: str
    tool_name: str
    arguments: Any
    agent: str
    heard: dict[str, int]
    begins_with: Beginning
    system_prompt: str
    system_prompt_changes: list[PromptChange]
    reason: str
    refused: list[Refused]


class Closed(LogLine, StateChange, _From, total=False):
    """Handlers decided or changed something, or a turn ended with an error."""

    type: Required[Literal["closed"]]
    value: Stored
    rejected: str
    again: list[list[Any]]
    more: More
    ended: EndOfTurn
    request: RequestChange
    error_type: str
    open: bool


class Handlers(LogLine, StateChange, total=False):
    """Handlers have run, and do not run again."""

    type: Required[Literal["handlers"]]
    over: Required[list[list[Any]]]
    value: Stored
    ended: EndOfTurn
    request: RequestChange


class ToolEnded(LogLine, _From, total=False):
    """The body of a tool ended."""

    type: Required[Literal["tool_ended"]]
    entry: Required[dict[str, Any]]
    changes: list[dict[str, Any]]


class TurnEndedLine(LogLine, Failure, _From, total=False):
    """The turn of an agent ended in a body that runs beside others."""

    type: Required[Literal["turn_ended"]]
    agent: str
    turn: int
    usage: TokenUsage | None
    outcome: str
    result: str | None
    open: bool


class WaitsForPerson(LogLine, StateChange, total=False):
    """A call waits for a person."""

    type: Required[Literal["wait"]]
    hook: str
    of: str
    agent: str
    call: WaitingCall | None
    calls: list[WaitingCall]
    reason: str
    digest: str
    elsewhere: bool
    over: list[list[Any]]
    value: Stored
    ended: EndOfTurn
    request: RequestChange


class Left(LogLine, total=False):
    """A wait passed out of a tool's function."""

    type: Required[Literal["left"]]
    waits: Required[list[str]]


class Decided(LogLine, total=False):
    """A person decided."""

    type: Required[Literal["decided"]]
    approve: bool
    reject: str
    answer: Stored


LOG_LINES: dict[str, Any] = {
    "began": Began,
    "closed": Closed,
    "handlers": Handlers,
    "tool_ended": ToolEnded,
    "turn_ended": TurnEndedLine,
    "wait": WaitsForPerson,
    "left": Left,
    "decided": Decided,
}
"""The lines that are in the log only, by their `type`."""
