"""One model call and one tool call: whatever becomes of it, with its hooks, its trace entry and its result."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from connectagent.attribution import By, clone
from connectagent.errors import Pause, ProviderError, ToolArgumentsError, ToolRejected
from connectagent.ledger import charge
from connectagent.llm import LLM
from connectagent.messages import NOT_RUN, tidy_calls, value_problem
from connectagent.session import LLMRequest, LLMResponse, Retry, ToolCall, TraceEntry
from connectagent.tools import Tool, error_content, result_content

if TYPE_CHECKING:
    from connectagent.agent import Agent

MAX_RETRIES = 10  # of one call by `Retry`: a handler that always answers Retry must not hang the agent


def ask_model(agent: Agent, request: LLMRequest) -> LLMResponse | None:
    """Call the model until it answers, a handler recovers, or nobody wants to try again.

    Returns:
        The response; None where it failed and the turn was ended.

    Raises:
        Exception: what the last call raised.
    """
    llm = agent.llm
    for attempt in range(MAX_RETRIES + 1):
        started, by, since = time.perf_counter(), None, agent.hooks.blames
        response: LLMResponse | None = None
        try:
            call = partial(_request, agent, llm, request)
            response = agent.hooks.around("around_llm", call, as_response, agent=agent, request=request)
            trace_model_call(agent, request, response, "success", started)
            return as_response(response)
        except Exception as error:
            if response is not None or agent.hooks.owner_of(error, since):
                raise
            answer = agent.hooks.first("on_error", agent=agent, error=error, tool_call=None)
            retry = answer.value if answer is not None and isinstance(answer.value, Retry) else None
            if answer is not None:
                agent.hooks.require(answer, LLMResponse, str, Retry)
                by = answer.by
                response = None if retry else as_response(answer.value)
            trace_model_call(agent, request, response, "recovered" if response else "error", started, error, by)
            if response is not None:
                return response
            if agent.ended is not None:
                return None
            if retry is None or attempt == MAX_RETRIES:
                raise
            time.sleep(retry.after_s)
            if retry.model:
                llm = agent.create_llm(retry.model)
                request.model = llm.model
    raise AssertionError("unreachable: the last attempt returns or raises")


def _request(agent: Agent, llm: LLM, request: LLMRequest) -> LLMResponse:
    agent.conversation.mend(request)  # here, as handlers about this call may have changed what is sent
    messages, tools = request.messages, request.tools or None
    stream = getattr(llm, "stream", None) if agent.streaming else None
    if stream is not None:
        answer = stream(messages, tools, on_text=lambda text: agent.hooks.observe("on_text", agent=agent, text=text))
    else:
        answer = llm.complete(messages, tools)
    response = as_response(answer)
    charge(response.usage)
    agent.last_usage = response.usage
    if response.usage is not None:
        agent.total_cost += response.usage.cost or 0.0
    if agent.part is not None:
        agent.part.count(response.usage)
    return response


def as_response(value: Any) -> LLMResponse:
    """What a model or a handler answered, as a response whose calls can be answered.

    Raises:
        ProviderError: it is neither an LLMResponse nor a str.
    """
    if isinstance(value, str):
        value = LLMResponse(value)
    if not isinstance(value, LLMResponse):
        problem = f"the model answered with {type(value).__name__} {value!r:.80}; complete() returns an LLMResponse"
        raise ProviderError(problem, kind="bad_response", provider="?")
    if found := value_problem(value):
        raise ProviderError(f"the model's answer cannot be used: {found}", kind="bad_response", provider="?")
    return tidy_calls(value)


def trace_model_call(
    agent: Agent,
    request: LLMRequest,
    response: LLMResponse | None,
    status: str,
    started: float | None = None,
    error: Exception | None = None,
    by: By | None = None,
) -> None:
    """Trace a model call, or what stood in for it; `started` is None where there was no call."""
    calls = (response.tool_calls if response else None) or []
    entry: TraceEntry = {
        "type": "llm_call",
        "model": (response.model if response else None) or request.model,
        "timestamp": time.time(),
        "duration_ms": 0.0 if started is None else round((time.perf_counter() - started) * 1000, 3),
        "tool_calls_count": len(calls),
        "iteration": agent.conversation.session["iteration"],
        "usage": response.usage if response else None,
        "content": response.content if response else None,
        "tool_calls": [shown_call(call) for call in calls],
        "status": status,
    }
    more = {
        "finish_reason": response.finish_reason if response else None,
        "provider_data": response.provider_data if response else None,
        "retries": getattr(response or error, "retries", None),
        "error": None if error is None else str(error),
        "error_type": None if error is None else type(error).__name__,
        "error_kind": getattr(error, "kind", None),
        "by": by,
    }
    entry.update({key: value for key, value in more.items() if value}, **agent.conversation.changed_by(by))
    agent.conversation.trace(entry)


def run_call(agent: Agent, call: ToolCall, rejection: ToolRejected | None = None) -> TraceEntry:
    """Take one tool call from `before_each_tool` to `after_each_tool`.

    Args:
        agent: whose tools and hooks they are.
        call: what the model asks for.
        rejection: set where `before_tools` rejected the whole round.

    Returns:
        The call's trace entry.
    """
    talk, entry = agent.conversation, new_entry(agent, call)
    outer = talk.session["pending_tool"]  # where a handler or tool calls execute_tool()
    talk.note_pending(shown_call(call))
    try:
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
        elif isinstance(error, Pause) and error.call is None:
            error.call = call
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


def shown_call(call: ToolCall) -> dict[str, Any]:
    """A call as the session and the trace show it."""
    told = {"id": call.id, "name": call.name, "arguments": clone(call.arguments)}
    if call.error:
        told["error"] = call.error
    return {**told, "approved": True} if call.approved else told


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
    try:
        if tool is None:
            raise agent.tools.missing(call.name)
        if call.error:
            raise ToolArgumentsError(f"the arguments could not be read: {call.error}; send one JSON object")
        run = partial(_run_function, agent, tool, call, entry)
        value = agent.hooks.around("around_tool", run, agent=agent, tool_call=call)
        entry.update(status="success", result=result_content(value))
        return None
    except (ToolRejected, Pause):
        raise
    except Exception as error:
        if agent.hooks.owner_of(error, since):
            if entry.get("timing"):
                lost = f"the tool ran, but its result was lost: {type(error).__name__}"
                entry.update(status="interrupted", result=lost)
            raise
        status = "error" if tool is not None else "not_found"
        result = error_content(error)
        entry.update(status=status, result=result, error=result, error_type=type(error).__name__)
        return error
    except BaseException as interrupt:
        entry.update(status="interrupted", result=f"interrupted before it finished: {type(interrupt).__name__}")
        raise


def _run_function(agent: Agent, tool: Tool, call: ToolCall, entry: TraceEntry) -> Any:
    arguments = tool.bind(call.arguments, agent=agent)
    started = time.perf_counter()
    try:
        return agent.hooks.run_tool(tool, arguments)
    finally:
        entry["timing"] = round((time.perf_counter() - started) * 1000, 3)


def _recover(agent: Agent, call: ToolCall, entry: TraceEntry, error: Exception | None) -> None:
    """Let handlers of `on_error` supply a result, or run a failed call again."""
    for _ in range(MAX_RETRIES):
        answer = agent.hooks.first("on_error", agent=agent, error=error, tool_call=call)
        if answer is None or (agent.ended is not None and isinstance(answer.value, Retry)):
            return
        changed: TraceEntry = {}
        if isinstance(answer.value, Retry):
            time.sleep(answer.value.after_s)
            error = _run_tool(agent, call, changed)
        else:
            changed.update(status="recovered", result=result_content(answer.value), by=answer.by)
            error = None
        agent.conversation.amend(call, entry, **changed)
        value = {"status": changed["status"], "result": changed["result"]}
        agent.conversation.trace(
            {"type": "change", "by": answer.by, "of": "tool_execution", "call_id": call.id, "value": value}
        )
        if error is None:
            return
