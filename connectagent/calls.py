"""One tool call: whatever becomes of it, with its hooks, its trace entry and its result."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from connectagent.asking import MAX_RETRIES, outlined, shown_call
from connectagent.attribution import By, clone
from connectagent.errors import Pause, ToolArgumentsError, ToolRejected
from connectagent.messages import NOT_RUN
from connectagent.session import Retry, ToolCall, TraceEntry
from connectagent.tools import Tool, error_content, result_content

if TYPE_CHECKING:
    from connectagent.agent import Agent

_TOLD_TYPES = (dict, list, int, float, bool, type(None))  # values that can be made again of a result, which is text
_OF_ATTEMPT = ("status", "result", "error_type", "result_type", "original", "ended_turn")


def run_call(
    agent: Agent, call: ToolCall, rejection: ToolRejected | None = None, done: TraceEntry | None = None
) -> TraceEntry:
    """Take one tool call from `before_each_tool` to `after_each_tool`.

    Args:
        agent: whose tools and hooks they are.
        call: what the model asks for.
        rejection: set where `before_tools` rejected the whole round.
        done: its trace entry, where all was done in another process but `after_each_tool`.

    Returns:
        The call's trace entry.
    """
    talk, entry = agent.conversation, done or new_entry(agent, call)
    outer = talk.session["pending_tool"]  # where a handler or tool calls execute_tool()
    talk.note_pending(shown_call(call))
    try:
        if done is None:
            error = _decide(agent, call, entry, rejection)
            talk.place(call, entry)
            if error is not None:
                _recover(agent, call, entry, error)
        take = partial(_take_result, agent, call, entry)
        agent.hooks.chain(
            "after_each_tool", take, agent=agent, tool_call=call, result=entry.get("result"), entry=entry
        )
        return entry
    except BaseException as error:
        if entry.get("status") == "interrupted":
            talk.answer(call, entry["result"])
            talk.trace_quietly(entry)
        elif isinstance(error, Pause):
            error.call = call  # the outermost, where a tool or handler called execute_tool()
        raise
    finally:
        talk.note_pending(outer)


def _take_result(agent: Agent, call: ToolCall, entry: TraceEntry, value: Any) -> Any:
    """Put what a handler returned in the place of a call's result, before the next handler sees the conversation."""
    result = result_content(value)
    agent.conversation.amend(call, entry, result=result)
    return result


def new_entry(agent: Agent, call: ToolCall) -> TraceEntry:
    """The trace entry of a call that has not been decided yet."""
    return {
        "type": "tool_execution",
        "tool_name": call.name,
        "arguments": clone(call.arguments),
        "call_id": call.id,
        "timing": 0.0,
        "iteration": agent.conversation.session["iteration"],
        "timestamp": time.time(),
    }


def _decide(agent: Agent, call: ToolCall, entry: TraceEntry, rejection: ToolRejected | None) -> Exception | None:
    """Fill the entry with what becomes of a call; the error, where it failed."""
    try:
        if rejection is not None:
            raise rejection
        answer = None
        if agent.ended is None:
            answer = agent.hooks.first("before_each_tool", agent=agent, tool_call=call)
        if call.arguments != entry["arguments"]:
            entry.update(original_arguments=entry["arguments"], arguments=clone(call.arguments))
        if agent.ended is not None:
            entry.update(status="skipped", result=NOT_RUN.format(reason="the turn was ended"))
        elif answer is not None:
            entry.update(status="stand_in", result=result_content(answer.value), by=answer.by)
            entry.update(agent.conversation.changed_by(answer.by))
        else:
            return _run_tool(agent, call, entry)
    except ToolRejected as rejected:
        by = agent.hooks.owner_of(rejected)
        entry.update(status="rejected", result=f"rejected: {rejected}", **({"by": by} if by else {}))
        entry.update(agent.conversation.changed_by(by))
    return None


def _run_tool(agent: Agent, call: ToolCall, entry: TraceEntry) -> Exception | None:
    tool, since = agent.tools.get(call.name), agent.hooks.blames
    own: TraceEntry = {}
    try:
        if tool is None:
            raise agent.tools.missing(call.name)
        if call.error:
            raise ToolArgumentsError(f"the arguments could not be read: {call.error}; send one JSON object")
        run = partial(_run_function, agent, tool, call, entry, own)
        value = agent.hooks.around("around_tool", run, agent=agent, tool_call=call)
        entry.update(status="success", result=result_content(value))
        return None
    except ToolRejected:
        raise
    except Pause as pause:
        agent.hooks.keep_owner(pause, {"tool": call.name})  # whoever raised it in a call that the tool made
        raise
    except Exception as error:
        if agent.hooks.owner_of(error, since):
            if entry.get("timing"):
                lost = f"the tool ran, but its result was lost: {type(error).__name__}"
                entry.update(status="interrupted", result=lost)
            raise
        entry.update(_failure(error) if tool is not None else {**_failure(error), "status": "not_found"})
        return error
    except BaseException as interrupt:
        entry.update(_interruption(interrupt))
        raise
    finally:
        if any(entry.get(key) != own[key] for key in own):
            entry["original"] = outlined(own)


def _run_function(agent: Agent, tool: Tool, call: ToolCall, entry: TraceEntry, own: TraceEntry) -> Any:
    """Run the tool's function; `own` takes what came of it, where handlers may make something else of that."""
    arguments = tool.bind(call.arguments, agent=agent)
    handled = any(not handler.trusted for handler in agent.hooks.handlers["around_tool"])
    started, ended = time.perf_counter(), agent.ended
    try:
        value = agent.hooks.run_tool(tool, arguments)
        if type(value) in _TOLD_TYPES:
            entry["result_type"] = type(value).__name__
        if handled:
            own.update(status="success", result=result_content(value))
        return value
    except BaseException as error:
        if handled and not isinstance(error, (ToolRejected, Pause)):
            own.update(_failure(error) if isinstance(error, Exception) else _interruption(error))
        raise
    finally:
        entry["timing"] = round((time.perf_counter() - started) * 1000, 3)
        if agent.ended is not None and agent.ended is not ended:
            entry["ended_turn"] = agent.ended.value


def _failure(error: Exception) -> TraceEntry:
    text = error_content(error)
    return {"status": "error", "result": text, "error": text, "error_type": type(error).__name__}


def _interruption(error: BaseException) -> TraceEntry:
    kind = type(error).__name__
    return {"status": "interrupted", "result": f"interrupted before it finished: {kind}", "error_type": kind}


def _recover(agent: Agent, call: ToolCall, entry: TraceEntry, error: Exception | None) -> None:
    """Let handlers of `on_error` supply a result, or run a failed call again."""
    for _ in range(MAX_RETRIES):
        answer = agent.hooks.first("on_error", agent=agent, error=error, tool_call=call)
        if answer is None or (agent.ended is not None and isinstance(answer.value, Retry)):
            return
        changed: TraceEntry = {}
        if isinstance(answer.value, Retry):
            agent.wait(answer.value.after_s)
            try:
                error = _run_tool(agent, call, changed)
            except BaseException:
                if "status" in changed:
                    with contextlib.suppress(Exception):
                        _take_attempt(agent, call, entry, changed, answer.by)
                raise
        else:
            changed.update(status="recovered", result=result_content(answer.value), by=answer.by)
            error = None
        _take_attempt(agent, call, entry, changed, answer.by)
        if error is None:
            return


def _take_attempt(agent: Agent, call: ToolCall, entry: TraceEntry, changed: TraceEntry, by: By) -> None:
    """Put what came of a call that had failed into its entry, and trace it."""
    agent.conversation.amend(call, entry, **changed)
    value = {key: changed[key] for key in _OF_ATTEMPT if key in changed}
    told = {"type": "change", "by": by, "of": "tool_execution", "call_id": call.id, "value": value}
    agent.conversation.trace(told)
