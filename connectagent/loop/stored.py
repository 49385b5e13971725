"""The decisions of handlers as data for lines of the log, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from connectagent.data import LLM, LLMRequest, LLMResponse, Retry, TokenUsage, ToolCall, TraceEntry
from connectagent.errors import ConfigError
from connectagent.loop.call_arguments import repeat_edit
from connectagent.output.masking import current
from connectagent.records.own import written_digest
from connectagent.records.sent import difference, rebuilt
from connectagent.session.conversation import Conversation
from connectagent.session.edits import shown_options
from connectagent.session.journal import MASKED, WAIT_OF, digest_of, marks_in
from connectagent.session.snapshot import clone, same
from connectagent.tools.registry import ToolRegistry


class AskingAgent(Protocol):
    """The agent whose model is asked."""

    @property
    def llm(self) -> LLM: ...
    @property
    def tools(self) -> ToolRegistry: ...
    @property
    def conversation(self) -> Conversation: ...
    def call_options(self) -> dict[str, Any]:
        """A copy of the provider's parameters for a model call."""


class EditableTools(Protocol):
    """A turn, by the schemas of tools that its handlers may edit."""

    own_tools: list[dict[str, Any]] | None


def input_digest(value: Any) -> str:
    """A digest to distinguish inputs; one for all inputs with secrets, as another process may have others."""
    return MASKED if marks_in(current().value(value)) else digest_of(value)


def wait_id(place: str, name: Any, calls: Sequence[TraceEntry], reason: str) -> str:
    """The id of a wait: its place, who asked, and a digest of the calls that it is about; of the reason without calls.

    A person decides by this id. So the decision is about these calls only, whatever waits at the place later.
    """
    about = [[call["name"], call["arguments"]] for call in calls] or reason
    return f"{place}{WAIT_OF}{name}~{written_digest(about)[:12]}"


def as_stored(value: Any) -> Any:
    """The value of a handler, as data."""
    if isinstance(value, LLMResponse):
        return {"response": {**dataclasses.asdict(value), "provider_data": clone(value.provider_data)}}
    if isinstance(value, Retry):
        retry = {"after_s": value.after_s, "model": getattr(value.model, "model", value.model)}
        return {"retry": retry, "given": value.model is not None and not isinstance(value.model, str)}
    return {"value": clone(value)}


def from_stored(data: Any) -> Any:
    """The value from data of `as_stored`."""
    if "response" in data:
        return stored_response(data["response"])
    return Retry(**data["retry"]) if "retry" in data else clone(data.get("value"))


def stored_response(data: dict[str, Any]) -> LLMResponse:
    """A model's answer from data of `as_stored`, or from an `llm_call` entry.

    Raises:
        ConfigError: its calls or its usage have a form that no record has.
    """
    usage = data.get("usage")
    try:
        calls = [ToolCall(**{**clone(call), "approved": False}) for call in data.get("tool_calls") or ()]
        usage = TokenUsage(**usage) if isinstance(usage, dict) else usage
    except TypeError as error:
        raise ConfigError(f"the record has a model's answer with values that no record has: {error}") from None
    return LLMResponse(
        data.get("content"),
        calls,
        usage,
        data.get("finish_reason"),
        data.get("model"),
        clone(data.get("provider_data")),
        data.get("retries"),
    )


def sent_before(line: TraceEntry, request: LLMRequest) -> dict[str, Any]:
    """What was sent, from an `llm_call` entry; where something in it is masked, what this process would send."""
    known: dict[str, Any] = {"names": line["tools"]} if "tools" in line else {}
    known |= {"model": line["request"]["model"]} if "model" in (line.get("request") or {}) else {}
    known |= {"output": line["request"]["output"]} if "output" in (line.get("request") or {}) else {}
    own = {"tools": request.tools, "options": shown_options(request.options)}
    recorded = line.get("request") or {}
    return known | {key: own[key] if marks_in(recorded[key]) else recorded[key] for key in own if key in recorded}


def changed_request(agent: AskingAgent, request: LLMRequest) -> dict[str, Any]:
    """What `before_llm` handlers changed for this one call, without the values of headers; {} for nothing."""
    changed: dict[str, Any] = {}
    tools = agent.tools.offered[1]
    messages = agent.conversation.session["messages"]
    if request.messages is not messages:
        changed["edited"] = clone(difference(request.messages, messages))
    if request.tools is not tools and request.tools != tools:
        changed["tools"] = clone(list(request.tools))
    if request.model != agent.llm.model:
        changed["model"] = request.model
    own = agent.call_options()
    if request.options != own:
        changed["options"] = shown_options(request.options)
        if given := _other_headers(request.options, own):
            changed["hidden"] = given
    return changed


def _other_headers(options: dict[str, Any], own: dict[str, Any]) -> list[str]:
    """The names of the headers that handlers gave or changed."""
    headers, before = (side.get("extra_headers") for side in (options, own))
    if not isinstance(headers, dict):
        return []
    before = before if isinstance(before, dict) else {}
    return [str(name) for name, value in headers.items() if name not in before or before[name] != value]


def hides_values(line: TraceEntry) -> bool:
    """Whether a line has `changed_request` without values that handlers gave."""
    return bool((line.get("request") or {}).get("hidden"))


def no_values(place: str) -> str:
    """The message for handlers that neither go on nor begin again, since the record hides values of theirs."""
    why = "a handler there set request options whose values records do not contain, such as headers"
    return f"{place} cannot go on: {why}; set them in around_llm, or behind the handler that pauses or asks"


def with_changes(options: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """`options` with the differences between `before` and `after`, also inside dicts.

    Unchanged options in `after`, for example headers with keys, were meant for one provider; those of another provider
    do not get them.
    """
    changed = {key: value for key, value in options.items() if key in after or key not in before}
    for key, value in after.items():
        old, own = before.get(key), options.get(key)
        if key in before and value == old:
            continue
        if isinstance(value, dict) and isinstance(old, dict):
            value = with_changes(own if isinstance(own, dict) else {}, old, value)
        changed[key] = value
    return changed


def change_request(request: LLMRequest, changed: dict[str, Any]) -> None:
    """Apply the changes of `changed_request` to a request; headers that no handler changed keep their values."""
    own = request.options.get("extra_headers")
    if "edited" in changed:  # a record of an older version has them as `messages`
        request.messages = clone(rebuilt(changed["edited"], request.messages))
    for name in changed.keys() & {"messages", "tools", "model", "options"}:
        setattr(request, name, clone(changed[name]))
    headers = request.options.get("extra_headers") if "options" in changed else None
    if isinstance(headers, dict) and isinstance(own, dict):
        headers.update((name, own[name]) for name in headers if name in own)


def edit_again(given: dict[str, Any], changes: list[TraceEntry]) -> None:
    """Repeat the edits that handlers made of the arguments of their hook."""
    for change in changes:
        value = change.get("value")
        if change.get("type") != "change":
            continue
        if change.get("of") in ("tool_call", "tool_calls"):
            calls = [given["tool_call"]] if "tool_call" in given else given.get("tool_calls") or []
            listed = value if isinstance(value, list) else [value]
            for call in calls:
                for edited in listed:
                    if isinstance(edited, dict) and edited.get("id") == call.id:
                        repeat_edit(given["agent"].tools, call, edited["name"], edited["arguments"])
        elif (
            change.get("of") == "response"
            and isinstance(value, dict)
            and isinstance(given.get("response"), LLMResponse)
        ):
            stored, response = stored_response(value), given["response"]
            response.content, response.tool_calls = stored.content, stored.tool_calls
            response.provider_data = stored.provider_data or response.provider_data


def own_tools(turn: EditableTools, schemas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A copy of the tools' schemas for handlers to edit: the one of the last call, unless it was edited."""
    if turn.own_tools is None or not same(turn.own_tools, schemas):  # comparing costs less than a copy
        turn.own_tools = list(clone(schemas))
    return turn.own_tools
