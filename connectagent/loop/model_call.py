"""One model call: whatever becomes of it, with its hooks, its attempts and its trace entries."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from connectagent.data import (
    LLM,
    ConfigurableLLM,
    LLMRequest,
    LLMResponse,
    Message,
    Retry,
    TokenUsage,
    ToolCall,
    TraceEntry,
)
from connectagent.errors import ProviderError, TurnEnded
from connectagent.frame import Frame
from connectagent.loop.stored import stored_response
from connectagent.loop.turn import Turn
from connectagent.output.text import describe
from connectagent.session.journal import CLOSED
from connectagent.session.messages import tidy_calls, value_problem
from connectagent.session.raised import model_error
from connectagent.session.snapshot import By, clone, shown_options

MAX_RETRIES = 10  # of one call by `Retry`: a handler that always answers Retry must not hang the agent


def call_model(turn: Turn) -> LLMResponse | None:
    """Ask the model, with the hooks around it; None where the turn ended before it answered.

    Raises:
        Exception: what the last attempt raised, where no handler recovered it.
    """
    agent, place = turn.agent, f"{turn.iteration}/"
    messages, options = turn.conversation.session["messages"], agent.call_options()
    request = LLMRequest(messages, agent.tools.schemas(), agent.llm.model, options)
    target = Target(agent, request)
    answer = turn.decide("before_llm", place, as_response, request=request)
    if turn.ended is not None:
        return None
    if answer is None:
        response = _attempts(turn, request, target)
    else:
        response, id = answer.value, f"{turn.place}/model1"
        turn.conversation.answered()
        if turn.closing(id) is None:
            entry = {**_entry(turn, id, request, response, "stand_in"), "usage": None, "by": answer.by}
            _trace(turn, entry, answer.by)
    if response is None:
        return None
    response, _ = turn.chain("after_llm", place, as_response, request=request, response=response)
    return as_response(response)


def _attempts(turn: Turn, request: LLMRequest, target: Target) -> LLMResponse | None:
    """Ask until the model answers, a handler recovers, or nobody wants to try again."""
    by = None
    for number in range(1, MAX_RETRIES + 2):
        attempt = Attempt(turn, target, request, number, by)
        response = attempt.make()
        if response is not None or attempt.error is None:
            return response
        answer = turn.decide("on_error", f"{turn.iteration}/", suffix=number, error=attempt.error, tool_call=None)
        retry = answer.value if answer is not None and isinstance(answer.value, Retry) else None
        if answer is not None:
            turn.host.require(answer, LLMResponse, str, Retry)
        if answer is not None and retry is None:
            return attempt.recover(as_response(answer.value), answer.by)
        if turn.ended is not None:
            return None
        if answer is None or retry is None or number > MAX_RETRIES:
            raise attempt.error
        by = answer.by
        if turn.past is None or not turn.has_begun(f"{turn.place}/model{number + 1}"):
            turn.agent.runtime.sleep(retry.after_s)
        if retry.model:
            target.take(turn.agent.create_llm(retry.model))
    raise AssertionError("unreachable: the last attempt returns or raises")


class Target:
    """Whom one call is made to: the agent's model with its options, or what handlers chose in their place.

    Args:
        agent: whose call it is.
        request: what is asked, before handlers have it.
    """

    def __init__(self, agent: Any, request: LLMRequest) -> None:
        self.agent, self.request = agent, request
        self._model, self._options = request.model, clone(request.options)
        self._instead: LLM | None = None

    def take(self, llm: LLM) -> None:
        """Ask another model from now on, as `Retry(model=...)` has it."""
        self._instead, self._model = llm, llm.model
        self.request.model = llm.model

    def choose(self) -> tuple[LLM, dict[str, Any] | None]:
        """The model that the request means now, and the options that a handler changed for it, or None."""
        llm = self._instead or self.agent.llm
        if self.request.model != self._model:
            llm = self.agent.create_llm(self.request.model)
        if self.request.options == self._options or not isinstance(llm, ConfigurableLLM):
            return llm, None
        options = with_changes(llm.options, self._options, self.request.options)
        return llm.with_options(options), options


def with_changes(options: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """`options` with that in which `after` differs from `before`, dicts in them alike.

    What stands unchanged in `after` was given for one provider, headers with keys among it, and another one's
    `options` do not have it.
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


class Attempt:
    """One attempt at a model.

    Args:
        turn: whose call it is.
        target: whom it is made to.
        request: what it is sent.
        number: from 1.
        by: the handler that wanted this attempt, after the first.

    Attributes:
        error: what it failed with.
        entry: its `llm_call`.
        own: the model's own answer or error, as the trace tells it; None where the model was not asked.
    """

    def __init__(self, turn: Turn, target: Target, request: LLMRequest, number: int, by: By | None) -> None:
        self.turn, self.target, self.request, self.number, self.by = turn, target, request, number, by
        self.id = f"{turn.place}/model{number}"
        self.error: Exception | None = None
        self.entry: TraceEntry = {}
        self.own: dict[str, Any] | None = None
        self.usage: TokenUsage | None = None
        self.model: str | None = None  # the model that was asked, and what a handler changed of its options
        self.options: dict[str, Any] | None = None
        self._since = 0  # older blames of handlers do not count
        self.announced = 0  # how many trace entries there had been when the request was sent
        self.tools: list[str] = []
        self.started = time.time()
        self._began = time.perf_counter()

    def make(self) -> LLMResponse | None:
        """The answer; None where there is none: `error` tells why, or the turn was ended before."""
        turn = self.turn
        if (line := turn.closing(self.id)) is not None:
            turn.conversation.answered()
            self.entry = line
            turn.conversation.offered = line.get("tools", turn.conversation.offered)
            if line.get("status") in ("error", "recovered"):
                self.error = self._raised(line)
                return None
            turn.agent.last_usage = line.get("usage")
            return stored_response(line)
        turn.began(self.id)
        self._since = turn.boundary.blames
        try:
            with turn.within(self.id):
                response = turn.host.around(
                    "around_llm", self._ask, as_response, agent=turn.agent, request=self.request
                )
        except TurnEnded:
            self._not_made()
            return None
        except Exception as error:
            if turn.boundary.owner_of(error, self._since):
                self._lost()
                raise
            self.error = error
            told = {**describe_error(error), "from": turn.failed(self.id, error)}
            self._close(None, "error", error, told)
            return None
        except BaseException:
            self._lost()
            raise
        self._close(response, "success")
        return as_response(response)

    def _raised(self, line: TraceEntry) -> Exception:
        error = model_error({**line, "error": line.get("error")}, line)
        self.turn.failed(self.id, error)
        return error if isinstance(error, Exception) else Exception(str(error))

    def _ask(self) -> LLMResponse:
        """Send the request; the innermost part of `around_llm`."""
        turn, request = self.turn, self.request
        if turn.ended is not None:
            raise TurnEnded
        turn.conversation.mend(request)  # here, as handlers about this call may have changed what is sent
        self.announced, self.tools = turn.conversation.announced, [_tool_name(tool) for tool in request.tools]
        try:
            response = as_response(self._send())
        except BaseException as error:
            self.own, self.usage = describe_error(error), getattr(error, "usage", None)
            failed = isinstance(error, Exception) and not turn.boundary.owner_of(error, self._since)
            if self.usage is not None or not failed:  # one that was cut short may have taken anything
                turn.count(self.usage)
            raise
        self.own, self.usage = describe_answer(response), response.usage
        turn.agent.last_usage = response.usage
        turn.count(response.usage)
        return response

    def _send(self) -> Any:
        turn, messages, tools = self.turn, self.request.messages, self.request.tools or None
        llm, options = self.target.choose()
        self.model, self.options = llm.model, None if options is None else shown_options(options)
        stream = getattr(llm, "stream", None) if turn.agent.streaming or turn.listeners else None
        if stream is None:
            return llm.complete(messages, tools)
        return stream(messages, tools, on_text=turn.tell_text)

    def _lost(self) -> None:
        """Trace an attempt whose answer reached nobody: a handler raised, or Ctrl-C came."""
        with contextlib.suppress(Exception):
            if self.own is not None:
                self._close(None, "interrupted")
            else:
                self._not_made()

    def _not_made(self) -> None:
        """Write that the model was not asked after all, so that nobody takes the attempt for a lost one."""
        self.turn.log.append({"type": CLOSED, "id": self.id, "open": True})

    def _close(
        self, response: LLMResponse | None, status: str, error: Exception | None = None, told: Any = None
    ) -> None:
        turn, conversation = self.turn, self.turn.conversation
        entry = _entry(turn, self.id, self.request, response, status)
        entry["timestamp"] = time.time()
        if self.model is not None and (response is None or response.model is None):
            entry["model"] = self.model
        entry |= {"started": self.started, "duration_ms": round((time.perf_counter() - self._began) * 1000, 3)}
        entry["usage"] = self.usage
        own = describe_error(error) if error is not None else describe_answer(response) if response is not None else {}
        more: dict[str, Any] = {
            "options": self.options,
            "attempt": self.number if self.number > 1 else None,
            "retries": getattr(error, "retries", None),
            "entries_since_request": conversation.announced - self.announced if self.own is not None else None,
            "original": None if own == self.own else outlined(self.own),
            **(told or {}),
            "by": self.by,
        }
        entry.update({key: value for key, value in more.items() if value})
        if self.own is not None and self.tools != conversation.offered:
            entry["tools"] = conversation.offered = self.tools
        self.entry = entry
        conversation.answered()
        conversation.trace(entry)

    def recover(self, response: LLMResponse, by: By) -> LLMResponse:
        """Take a handler's answer in the place of an error."""
        value = {**describe_answer(response), "status": "recovered", "tool_calls_count": len(response.tool_calls or ())}
        change = {
            "type": "change",
            "by": by,
            "of": "llm_call",
            "value": value,
            "iteration": self.entry.get("iteration"),
        }
        self.turn.conversation.amend_entry(self.entry, **value, by=by)
        self.turn.conversation.answered()
        self.turn.trace_once(change, f"{self.id}/recovered")
        return response


def ask_in_turn(asked: Frame, llm: Any, messages: list[Message], **options: Any) -> LLMResponse:
    """A model call of a handler or tool: an operation of its own, traced and counted with who made it."""
    turn: Turn = asked.turn
    with turn.alone(asked):
        id = turn.key(asked, "ask", str(llm.model), messages)
        if (line := turn.closing(id)) is not None:
            return stored_response(line)
        turn.began(id)
    started, began = time.time(), time.perf_counter()
    request = LLMRequest(messages, [], llm.model)
    try:
        response = as_response(llm.complete(messages, **options))
    except Exception as error:
        entry = {**_entry(turn, id, request, None, "error"), **describe_error(error), "from": turn.failed(id, error)}
        if (usage := getattr(error, "usage", None)) is not None:
            entry["usage"] = usage
            turn.count(usage)
        _trace_asked(turn, asked, entry, started, began)
        raise
    turn.count(response.usage)
    _trace_asked(turn, asked, _entry(turn, id, request, response, "success"), started, began)
    return response


def _trace_asked(turn: Turn, asked: Frame, entry: TraceEntry, started: float, began: float) -> None:
    by = asked.by or turn.boundary.running() or turn.agent.by
    entry |= {"by": by, "started": started, "duration_ms": round((time.perf_counter() - began) * 1000, 3)}
    with turn.alone(asked):
        turn.conversation.trace(entry)


def _entry(turn: Turn, id: str, request: LLMRequest, response: LLMResponse | None, status: str) -> TraceEntry:
    """The `llm_call` entry of an answer, or of what stood in for it."""
    calls = (response.tool_calls if response else None) or []
    told: dict[str, Any] = {
        "finish_reason": response.finish_reason if response else None,
        "provider_data": response.provider_data if response else None,
        "retries": response.retries if response else None,
    }
    return {
        "type": "llm_call",
        "id": id,
        "model": (response.model if response else None) or request.model,
        "timestamp": time.time(),
        "duration_ms": 0.0,
        "tool_calls_count": len(calls),
        "iteration": turn.conversation.session["iteration"],
        "usage": response.usage if response else None,
        "content": response.content if response else None,
        "tool_calls": [shown_call(call) for call in calls],
        "status": status,
        **{key: value for key, value in told.items() if value},
    }


def _trace(turn: Turn, entry: TraceEntry, by: By) -> None:
    turn.conversation.trace({**entry, **turn.conversation.changed_by(by)})


def describe_answer(response: LLMResponse) -> dict[str, Any]:
    """A model's answer as a trace entry tells it."""
    told = {"content": response.content, "tool_calls": [shown_call(call) for call in response.tool_calls or ()]}
    return {**told, "provider_data": clone(response.provider_data)} if response.provider_data else told


def describe_error(error: BaseException) -> dict[str, Any]:
    """An error as a trace entry tells it."""
    told: dict[str, Any] = {"error": describe(str, error), "error_type": type(error).__name__}
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
        problem, usage = f"the model's answer cannot be used: {found}", value.usage
        usage = usage if isinstance(usage, TokenUsage) else TokenUsage()
        raise ProviderError(problem, kind="bad_response", provider="?", usage=usage)
    return tidy_calls(value)


def shown_call(call: ToolCall) -> dict[str, Any]:
    """A call as the session and the trace show it."""
    told = {"id": call.id, "name": call.name, "arguments": clone(call.arguments)}
    if call.error:
        told["error"] = call.error
    return {**told, "approved": True} if call.approved else told
