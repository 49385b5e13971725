"""One model call: whatever becomes of it, with its hooks, its retries and its trace entry."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from connectagent.attribution import By, clone
from connectagent.errors import ProviderError
from connectagent.ledger import charge
from connectagent.llm import LLM
from connectagent.messages import tidy_calls, value_problem
from connectagent.session import LLMRequest, LLMResponse, Retry, TokenUsage, ToolCall, TraceEntry

if TYPE_CHECKING:
    from connectagent.agent import Agent

MAX_RETRIES = 10  # of one call by `Retry`: a handler that always answers Retry must not hang the agent


def ask_model(agent: Agent, request: LLMRequest) -> LLMResponse | None:
    """Call the model until it answers, a handler recovers, or nobody wants to try again.

    Returns:
        The response; None where the call failed and the turn was ended.

    Raises:
        Exception: what the last call raised.
    """
    llm = agent.llm
    for attempt in range(MAX_RETRIES + 1):
        asked = Asked(agent, llm, request)
        try:
            response, retry = _attempt(agent, request, asked, last=attempt == MAX_RETRIES)
        except BaseException:
            asked.lost()
            raise
        if response is not None or retry is None:
            return response
        agent.wait(retry.after_s)
        if retry.model:
            llm = agent.create_llm(retry.model)
            request.model = llm.model
    raise AssertionError("unreachable: the last attempt returns or raises")


def _attempt(agent: Agent, request: LLMRequest, asked: Asked, last: bool) -> tuple[LLMResponse | None, Retry | None]:
    """One attempt: a response, or how the next one is to be made."""
    by, since = None, agent.hooks.blames
    response: LLMResponse | None = None
    try:
        response = agent.hooks.around("around_llm", asked.ask, as_response, agent=agent, request=request)
        trace_model_call(agent, request, response, "success", asked)
        return as_response(response), None
    except Exception as error:
        if response is not None or agent.hooks.owner_of(error, since):
            raise
        answer = agent.hooks.first("on_error", agent=agent, error=error, tool_call=None)
        retry = answer.value if answer is not None and isinstance(answer.value, Retry) else None
        if answer is not None:
            agent.hooks.require(answer, LLMResponse, str, Retry)
            by = answer.by
            response = None if retry else as_response(answer.value)
        trace_model_call(agent, request, response, "recovered" if response else "error", asked, error, by)
        if agent.ended is not None:
            return response, None
        if response is None and (retry is None or last):
            raise
        return response, retry


class Asked:
    """One attempt at a model: what it answered by itself, before any handler had it.

    Attributes:
        started: of `time.perf_counter()`.
        own: the model's answer or error, as the trace shows it; None where the model was not asked.
        told: how many trace entries there had been when the request was sent.
        tools: the names of the tools in it.
        traced: whether its `llm_call` is in the trace.
    """

    def __init__(self, agent: Agent, llm: LLM, request: LLMRequest) -> None:
        self.agent, self.llm, self.request = agent, llm, request
        self.started = time.perf_counter()
        self.own: dict[str, Any] | None = None
        self.told = 0
        self.tools: list[str] = []
        self.traced = False
        self.usage: TokenUsage | None = None

    def ask(self) -> LLMResponse:
        """Send the request; the innermost part of `around_llm`."""
        agent, request = self.agent, self.request
        agent.conversation.mend(request)  # here, as handlers about this call may have changed what is sent
        self.told, self.tools = agent.conversation.told, [_tool_name(tool) for tool in request.tools]
        try:
            response = as_response(self._answer())
        except BaseException as error:
            self.own = told_error(error)
            raise
        self.own, self.usage = told_answer(response), response.usage
        charge(response.usage)
        agent.last_usage = response.usage
        if response.usage is not None:
            agent.total_cost += response.usage.cost or 0.0
        if agent.part is not None:
            agent.part.count(response.usage)
        return response

    def _answer(self) -> Any:
        agent, messages, tools = self.agent, self.request.messages, self.request.tools or None
        stream = getattr(self.llm, "stream", None) if agent.streaming else None
        if stream is None:
            return self.llm.complete(messages, tools)
        tell = lambda text: agent.hooks.observe("on_text", agent=agent, text=text)  # noqa: E731
        return stream(messages, tools, on_text=tell)

    def lost(self) -> None:
        """Trace a call whose answer reached nobody: a handler raised, or Ctrl-C came."""
        if self.own is not None and not self.traced:
            with contextlib.suppress(Exception):
                trace_model_call(self.agent, self.request, None, "interrupted", self)

    def entry(self, response: LLMResponse | None, error: Exception | None) -> dict[str, Any]:
        """What its trace entry tells of the request, and of the model's own answer where that is another."""
        talk = self.agent.conversation
        told: dict[str, Any] = {"entries_since_request": talk.told - self.told if self.own is not None else 0}
        if self.own is not None and self.tools != talk.offered:
            told["tools"] = talk.offered = self.tools
        own = told_error(error) if error is not None else told_answer(response) if response is not None else {}
        return {**told, "original": None if own == self.own else outlined(self.own)}


def told_answer(response: LLMResponse) -> dict[str, Any]:
    """A model's answer as a trace entry shows it."""
    told = {"content": response.content, "tool_calls": [shown_call(call) for call in response.tool_calls or ()]}
    return {**told, "provider_data": clone(response.provider_data)} if response.provider_data else told


def told_error(error: BaseException) -> dict[str, Any]:
    """An error as a trace entry shows it."""
    from connectagent.builtin.files import told as told_str

    told: dict[str, Any] = {"error": told_str(str, error), "error_type": type(error).__name__}
    if isinstance(error, ProviderError):
        told |= {"error_kind": error.kind, "error_provider": error.provider, "error_status": error.status}
        told["retry_after_s"] = error.retry_after_s
    return {key: value for key, value in told.items() if value is not None}


def outlined(own: dict[str, Any] | None) -> dict[str, Any] | None:
    """What became of a call before an around handler made something else of it: no texts, as those may be secret."""
    if own is None:
        return None
    kept = ("error_type", "error_kind", "error_provider", "error_status", "retry_after_s")
    status = own.get("status") or ("error" if "error_type" in own else "success")
    return {"status": status, **{key: own[key] for key in kept if key in own}}


def _tool_name(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, dict) else None
    return str(function.get("name")) if isinstance(function, dict) else "?"


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
    asked: Asked | None = None,
    error: Exception | None = None,
    by: By | None = None,
) -> None:
    """Trace a model call, or what stood in for it; `asked` is None where there was no call."""
    calls = (response.tool_calls if response else None) or []
    entry: TraceEntry = {
        "type": "llm_call",
        "model": (response.model if response else None) or request.model,
        "timestamp": time.time(),
        "duration_ms": 0.0 if asked is None else round((time.perf_counter() - asked.started) * 1000, 3),
        "tool_calls_count": len(calls),
        "iteration": agent.conversation.session["iteration"],
        "usage": response.usage if response else asked.usage if asked else None,
        "content": response.content if response else None,
        "tool_calls": [shown_call(call) for call in calls],
        "status": status,
    }
    more = {
        "finish_reason": response.finish_reason if response else None,
        "provider_data": response.provider_data if response else None,
        "retries": getattr(response or error, "retries", None),
        **({} if error is None else told_error(error)),
        **({} if asked is None else asked.entry(response, error)),
        "by": by,
    }
    if asked is not None:
        asked.traced = True
    entry.update({key: value for key, value in more.items() if value or key == "tools"})
    entry.update(agent.conversation.changed_by(by))
    agent.conversation.trace(entry)


def shown_call(call: ToolCall) -> dict[str, Any]:
    """A call as the session and the trace show it."""
    told = {"id": call.id, "name": call.name, "arguments": clone(call.arguments)}
    if call.error:
        told["error"] = call.error
    return {**told, "approved": True} if call.approved else told
