"""What is sent: objects like OpenAI's, and events of AG-UI."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from ag_ui.core import (
    BaseEvent,
    Interrupt,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
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
from pydantic_core import to_jsonable_python

from connectagent import Paused, SessionBusy, mask

_ANSWER = {
    "type": "object",
    "properties": {"approve": {"type": "boolean"}, "reject": {"type": "string"}, "answer": {}},
    "maxProperties": 1,
    "minProperties": 1,
}


def data(value: Any) -> str:
    """A value as one event of a stream."""
    return f"data: {json.dumps(value, default=str)}\n\n"


def text_of(result: Any) -> str:
    """A turn's result as text: JSON, where the agent has `output=`."""
    return result if isinstance(result, str) else json.dumps(to_jsonable_python(result, fallback=str))


def completion(made: dict[str, Any], result: Any) -> dict[str, Any]:
    """A whole answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text_of(result)}, "finish_reason": "stop"}
    return {**made, "object": "chat.completion", "choices": [choice]}


def chunk(made: dict[str, Any], delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
    """A piece of a streamed answer."""
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {**made, "object": "chat.completion.chunk", "choices": [choice]}


async def run_events(run: RunAgentInput, entries: Any) -> AsyncIterator[str]:
    """The events of a run, from the entries of its turn."""
    encode = EventEncoder().encode
    yield encode(RunStartedEvent(thread_id=run.thread_id, run_id=run.run_id))
    try:
        async with aclosing(entries):
            async for entry in entries:
                for event in _events(entry):
                    yield encode(event)
    except Paused as paused:
        outcome = RunFinishedInterruptOutcome(interrupts=[_interrupt(one) for one in paused.waiting])
        yield encode(RunFinishedEvent(thread_id=run.thread_id, run_id=run.run_id, outcome=outcome))
        return
    except Exception as error:
        code = "busy" if isinstance(error, SessionBusy) else type(error).__name__
        yield encode(RunErrorEvent(message=mask(str(error)) or code, code=code))
        return
    yield encode(RunFinishedEvent(thread_id=run.thread_id, run_id=run.run_id))


def _interrupt(wait: Any) -> Interrupt:
    """What waits for a person, and what answers it."""
    call = mask(wait.call) or {}
    return Interrupt(
        id=wait.id, reason="approval", message=mask(wait.reason), tool_call_id=call.get("id"),
        response_schema=_ANSWER, metadata={"agent": wait.agent, "call": call},
    )  # fmt: skip


def refused(message: str) -> str:
    """The event of a run that does not begin."""
    return EventEncoder().encode(RunErrorEvent(message=message, code="busy"))


def _events(entry: Any) -> list[BaseEvent]:
    one = uuid.uuid4().hex
    if entry["type"] == "tool_execution" and entry["status"] != "skipped":  # a call that waits, or that was not made
        one = entry.get("call_id") or one
        arguments, result = mask(entry.get("arguments") or {}), mask(str(entry.get("result", entry.get("error", ""))))
        return [
            ToolCallStartEvent(tool_call_id=one, tool_call_name=entry["tool_name"]),
            ToolCallArgsEvent(tool_call_id=one, delta=json.dumps(arguments, default=str)),
            ToolCallEndEvent(tool_call_id=one),
            ToolCallResultEvent(message_id=uuid.uuid4().hex, tool_call_id=one, content=result),
        ]
    if entry["type"] == "result" and entry["result"] not in ("", None):
        return [
            TextMessageStartEvent(message_id=one, role="assistant"),
            TextMessageContentEvent(message_id=one, delta=text_of(entry["result"])),
            TextMessageEndEvent(message_id=one),
        ]
    return []
