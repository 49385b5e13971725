"""What is sent: objects like OpenAI's, and events of AG-UI."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

from ag_ui.core import (
    BaseEvent,
    Interrupt,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)
from ag_ui.encoder import EventEncoder

from connectagent import Paused
from connectagent_serve.frontend import FrontEnd
from connectagent_serve.outcomes import FAULTS, choice_of
from connectagent_serve.refusals import refusal_of
from connectagent_serve.state import Share
from connectagent_serve.told import told, told_text

_ANSWER = {
    "type": "object",
    "properties": {"approve": {"type": "boolean"}, "reject": {"type": "string"}, "answer": {}},
    "maxProperties": 1,
    "minProperties": 1,
}


def data(value: Any) -> str:
    """A value as one event of a stream."""
    return f"data: {json.dumps(value, default=str)}\n\n"


def usage_of(usage: Any) -> dict[str, Any]:
    """The tokens of a turn, and their price (USD), None where it is not known."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "cost": usage.cost,
    }


def completion(made: dict[str, Any], text: str, outcome: str, usage: dict[str, Any]) -> dict[str, Any]:
    """An answer in one piece; `outcome` is the turn's."""
    said, reason = choice_of(text, outcome)
    choice = {"index": 0, "message": {"role": "assistant", **said}, "finish_reason": reason}
    return {**made, "object": "chat.completion", "choices": [choice], "usage": usage}


async def chunks(made: dict[str, Any], text: str, outcome: str, usage: dict[str, Any] | None) -> AsyncIterator[str]:
    """A streamed answer, with its usage where the client has asked for it; `outcome` is the turn's."""
    made = {**made, "object": "chat.completion.chunk"}
    said, end = choice_of(text, outcome)
    for delta, reason in (({"role": "assistant", **said}, None), ({}, end)):
        yield data({**made, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
    if usage is not None:
        yield data({**made, "choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


async def run_events(run: RunAgentInput, entries: Any, front: FrontEnd, share: Share) -> AsyncIterator[str]:
    """The events of a run, from the entries of its turn.

    Args:
        run: the run.
        entries: what happens in it.
        front: what its front end brings; calls that it was told are not told again.
        share: the state that the two have in common.
    """
    encode = EventEncoder().encode
    yield encode(RunStartedEvent(thread_id=run.thread_id, run_id=run.run_id))
    outcome = ""
    try:
        async with aclosing(entries):
            async for entry in entries:
                outcome = entry["outcome"] if entry["type"] == "result" else outcome
                for event in [*share.events(entry["type"]), *_events(entry, front)]:
                    yield encode(event)
    except Paused as paused:
        for event in [*share.events(), *_paused(run, paused.waiting, front)]:
            yield encode(event)
        return
    except Exception as error:
        yield failed(error, run.thread_id)
        return
    if outcome in FAULTS:  # a run that is finished has succeeded: AG-UI has no other word for it
        yield encode(RunErrorEvent(message=FAULTS[outcome], code=outcome))
    else:
        yield encode(RunFinishedEvent(thread_id=run.thread_id, run_id=run.run_id))


def failed(error: Exception, key: str) -> str:
    """The event that ends a run with an error."""
    refusal = refusal_of(error, key)
    code = getattr(refusal, "code", None) or type(error).__name__
    return EventEncoder().encode(RunErrorEvent(message=told(refusal.detail), code=code))


def _paused(run: RunAgentInput, waits: list[Any], front: FrontEnd) -> Iterator[BaseEvent]:
    """The end of a run whose turn waits: the calls that wait, and what a person is to decide.

    A call that the front end carries out is told when it may be: front ends carry out what they are told.
    """
    pending: list[str] = []
    interrupts: list[Interrupt] = []
    for wait in waits:
        call = told(wait.call) or {}
        known = None if not wait.elsewhere and call.get("name") in front.names else call.get("id")
        id = wait.id if wait.elsewhere else known
        if id and id not in front.told:  # an interrupt is about a call that was told
            yield from _call(id, call.get("name", ""), call.get("arguments"))
            pending += [id] if wait.elsewhere else []
        if not wait.elsewhere:
            interrupts.append(_interrupt(wait, call, known))
    outcome: Any = RunFinishedSuccessOutcome(pending_tool_call_ids=pending or None)
    if interrupts:
        outcome = RunFinishedInterruptOutcome(interrupts=interrupts)
    yield RunFinishedEvent(thread_id=run.thread_id, run_id=run.run_id, outcome=outcome)


def _interrupt(wait: Any, call: dict[str, Any], id: str | None) -> Interrupt:
    """What waits for a person, and what answers it; `id`: of the call, where it was told."""
    return Interrupt(
        id=wait.id, reason="approval", message=told(wait.reason), tool_call_id=id,
        response_schema=_ANSWER, metadata={"agent": wait.agent, "call": call},
    )  # fmt: skip


def _call(id: str, name: str, arguments: Any) -> list[BaseEvent]:
    return [
        ToolCallStartEvent(tool_call_id=id, tool_call_name=name),
        ToolCallArgsEvent(tool_call_id=id, delta=json.dumps(arguments or {}, default=str)),
        ToolCallEndEvent(tool_call_id=id),
    ]


def _result(entry: Any, front: FrontEnd) -> list[BaseEvent]:
    """What a call came to, with the call where it was not told; nothing where the front end has brought it."""
    place = f"{entry.get('id')}/wait:"
    waited = next((id for id in (*front.told, *front.results) if id.startswith(place)), None)
    id = waited if waited is not None else entry.get("call_id") or uuid.uuid4().hex
    answered = entry["status"] == "stand_in" and (entry.get("by") or {}).get("plugin") == "(resume)"
    if waited in front.results or (answered and entry["tool_name"] in front.names and id != waited):
        return []
    call = [] if id in front.told else _call(id, entry["tool_name"], told(entry.get("arguments")))
    result = told(str(entry.get("result", entry.get("error", ""))))
    return [*call, ToolCallResultEvent(message_id=uuid.uuid4().hex, tool_call_id=id, content=result)]


def _events(entry: Any, front: FrontEnd) -> list[BaseEvent]:
    one = uuid.uuid4().hex
    if entry["type"] == "tool_execution" and entry["status"] != "skipped":  # a call that waits, or that was not made
        return _result(entry, front)
    if entry["type"] == "result" and entry["result"] not in ("", None):
        return [
            TextMessageStartEvent(message_id=one, role="assistant"),
            TextMessageContentEvent(message_id=one, delta=told_text(entry["result"])),
            TextMessageEndEvent(message_id=one),
        ]
    return []
