"""One model call, with its hooks, attempts and trace entries."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from connectagent.data import LLM, ConfigurableLLM, LLMRequest, LLMResponse, Message, Retry, TokenUsage, TraceEntry
from connectagent.errors import TurnEnded
from connectagent.frame import Frame
from connectagent.hooks.executor import HandlerValue
from connectagent.loop.described import (
    as_response,
    describe_answer,
    describe_error,
    model_entry,
    not_known,
    outlined,
    shown_call,
)
from connectagent.loop.stored import own_tools, sent_before, stored_response, with_changes
from connectagent.loop.turn import Turn
from connectagent.records.sent import difference, sent_digest
from connectagent.session.edits import shown_options
from connectagent.session.journal import CLOSED
from connectagent.session.raised import model_error
from connectagent.session.requests import names_of
from connectagent.session.snapshot import By
from connectagent.session.state import clone
from connectagent.session.surroundings import threads
from connectagent.tools.awaiting import CALLER

_GIVEN = ("before_llm", "around_llm", "after_llm", "on_error")  # the hooks whose handlers are given the request
MAX_RETRIES = 10  # of one call: a handler that always returns Retry must not hang the agent


def call_model(turn: Turn) -> LLMResponse | None:
    """Ask the model, with the hooks around it; None if the turn ended before an answer.

    Raises:
        Exception: the error of the last attempt, if no handler recovered it.
    """
    agent, place = turn.agent, f"{turn.conversation.session['iteration']}/"
    messages, tools = turn.conversation.session["messages"], agent.tools.schemas()
    request = LLMRequest(messages, tools, agent.llm.model, agent.call_options())
    if not turn.host.others.isdisjoint(_GIVEN):  # agents may share the schemas
        request.tools, request._tools_seen = own_tools(turn, tools), tools
    call = Call(turn, request, f"{turn.id}/{place[:-1]}")
    answer = turn.decide("before_llm", place, as_response, request=request)
    if turn.ended is not None:
        return None
    response: LLMResponse | None
    if answer is None:
        response = call.attempts()
    else:
        response, id = answer.value, f"{call.id}/model1"
        turn.conversation.changed = turn.between.has_failed(id)
        if turn.closing(id) is None:
            calls = list(map(shown_call, response.tool_calls or ()))
            entry = {**model_entry(turn, id, request, response, "stand_in", calls), "usage": None, "by": answer.by}
            turn.conversation.trace({**entry, **turn.conversation.changed_by(answer.by)})
        else:
            turn.between.behind(id)
    if response is None:
        return None
    if "after_llm" in turn.host.active or turn.past is not None:
        final, _ = turn.chain("after_llm", place, as_response, request=request, response=response)
        if final is not response or turn.has_changes(f"{turn.id}/{place}after_llm"):  # handlers may leave anything
            response = as_response(final)
    return response


class Call:
    """One model call of the loop, a handler or a tool: the request, and the model to ask.

    Args:
        turn: the turn of the call.
        request: the request.
        id: the place of the call; its attempts are inside.
        llm: the model to ask instead of the agent's own.
        asked: the frame of the handler or tool that asks; None for the loop's own call.
        by: the handler or tool that asks.
        send: sends messages and tools to a model, for a handler or tool.
        form: of the answer; None for text.
    """

    def __init__(
        self,
        turn: Turn,
        request: LLMRequest,
        id: str,
        llm: LLM | None = None,
        asked: Frame | None = None,
        by: By | None = None,
        send: Callable[..., Any] | None = None,
        form: Any = None,
    ) -> None:
        self.turn, self.request, self.id, self.asked, self.by, self.send = turn, request, id, asked, by, send
        self.form = turn.output if asked is None else form
        self.llm: Any = llm
        self._model, self._options = request.model, clone(request.options)
        self.name: str | None = None  # by which a handler chose the model
        self.ended = turn.ended  # handlers and tools may still ask in an ended turn

    def take(self, retry: Retry) -> None:
        """Ask the model of a `Retry` from now on, if it has one; a name becomes a model when it is asked."""
        model, stand_in = retry.model, self.turn.agent.runtime.stand_in
        if model is not None:
            self._use(model if isinstance(model, str) or stand_in is None else stand_in(model))

    def make_named(self, name: str) -> None:
        """Make the model that a handler named."""
        self._use(self.turn.agent.create_llm(name))
        self.name = name

    def _use(self, model: LLM | str) -> None:
        self.llm, self.name = model, None
        self._model = self.request.model = getattr(model, "model", str(model))

    def choose(self) -> tuple[LLM, dict[str, Any] | None]:
        """The model to ask now, and its options if a handler changed them, or None."""
        agent, llm = self.turn.agent, self.llm or self.turn.agent.llm
        self.name = self.name if self.llm else None
        if self.request.model != self._model:
            self.name, llm = self.request.model, agent.create_llm(self.request.model)
        elif self.asked is not None and agent.runtime.asked_model is not None:
            llm = agent.runtime.asked_model(self.request.model)
        if self.request.options == self._options or not isinstance(llm, ConfigurableLLM):
            return llm, None
        options = with_changes(llm.options, self._options, self.request.options)
        return llm.with_options(options), options

    def running(self, hook: str) -> list[list[Any]]:
        """The running handlers of a hook that made this call, as `[plugin, handler]`: they do not run for it."""
        if self.asked is None:
            return []
        running = [self.asked.by, *self.turn.boundary.running]
        return [[by.get("plugin"), by.get("handler")] for by in running if by is not None and by.get("hook") == hook]

    def attempts(self) -> LLMResponse | None:
        """Ask until the model answers, a handler recovers, or no handler retries; None if the turn ended.

        Raises:
            Exception: the error of the last attempt.
        """
        turn, by = self.turn, None
        for number in range(1, MAX_RETRIES + 2):
            attempt = Attempt(self, number, by)
            response = attempt.make()
            if response is not None or attempt.error is None:
                return response
            answer = self._on_error(attempt.error, number)
            if answer is not None and not isinstance(answer.value, Retry):
                return attempt.recover(as_response(answer.value), answer.by)
            if turn.ended is not self.ended:
                return None
            if answer is None or number > MAX_RETRIES:
                raise attempt.error
            by = answer.by
            if turn.past is None or not turn.has_begun(f"{self.id}/model{number + 1}"):
                turn.agent.runtime.sleep(answer.value.after_s)
            self.take(answer.value)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _on_error(self, error: Exception, number: int) -> HandlerValue | None:
        """The value of an `on_error` handler for a failed attempt, or None."""
        place = self.id.removeprefix(f"{self.turn.id}/")
        given: dict[str, Any] = {"error": error, "tool_call": None, "request": self.request, "attempt": number}
        answer = self.turn.decide("on_error", f"{place}/", suffix=number, over=self.running("on_error"), **given)
        if answer is not None:
            self.turn.host.require(answer, LLMResponse, str, Retry)
        return answer


class Attempt:
    """One attempt at a model.

    Args:
        call: the call.
        number: the number of the attempt, from 1.
        by: the handler that asked for this attempt, after the first.

    Attributes:
        error: the error with which it failed.
        entry: its `llm_call` entry.
        own: the model's own answer or error in the form of a trace entry; None if the model was not asked.
        usage: the tokens that the model reported.
        model, provider: the model that was asked.
        options: what a handler changed.
        digest: of all that was sent.
        announced: how many trace entries there were when the request was sent.
        before: what the conversation's model call before was sent, as far as it is known that this log has it.
    """

    error: Exception | None = None
    own: dict[str, Any] | None = None
    _answer: LLMResponse | None = None  # the model's own
    usage: TokenUsage | None = None
    model: str | None = None
    provider: str | None = None
    options: dict[str, Any] | None = None
    digest: str | None = None
    announced = _since = 0  # older blames of handlers than `_since` do not count

    def __init__(self, call: Call, number: int, by: By | None) -> None:
        self.call, self.turn, self.request, self.number = call, call.turn, call.request, number
        self.by = call.by or by
        self.id = f"{call.id}/model{number}"
        # A call of a handler or tool is no part of the conversation.
        self.conversation = self.turn.conversation if call.asked is None else None
        self.entry: TraceEntry = {}
        self.sent: dict[str, Any] = {}
        self.before: dict[str, Any] = {"tools": [], "names": [], "options": None, "output": None}
        if (conversation := self.conversation) is not None:
            if conversation.sent.get("log") != self.turn.log.id:  # this log may lack calls of another one
                nothing = {} if conversation.sent or conversation.begins_behind else self.before
                conversation.sent = {"log": self.turn.log.id, **nothing}
            self.before = conversation.sent
        self.started, self._began = time.time(), time.perf_counter()

    def make(self) -> LLMResponse | None:
        """The answer; None if the attempt failed with `error`, or the turn ended before it."""
        turn, call = self.turn, self.call
        if turn.past is not None and (line := turn.closing(self.id)) is not None:
            return self._made(line)
        if isinstance(call.llm, str):
            call.make_named(call.llm)
        turn.began(self.id)
        self._since = turn.boundary.blames
        try:
            with turn.inside(self.id):
                response = self._ask_around() if "around_llm" in turn.host.active else self._ask()
        except TurnEnded:
            self._not_made()
            return None
        except BaseException as error:
            if not isinstance(error, Exception) or turn.boundary.owner_of(error, self._since):
                self._lost()
                raise
            self.error, own = error, describe_error(error)
            self._close(None, "error", own, {**own, "from": turn.failed(self.id, error)})
            return None
        if response is self._answer and "around_llm" not in turn.host.others:  # no handler can have edited it
            self._close(response, "success", self.own)
            return response
        self._close(response, "success", describe_answer(response))
        return as_response(response) if "around_llm" in turn.host.others else response

    def _ask_around(self) -> LLMResponse:
        """Send the request inside the handlers around it."""
        turn, over = self.turn, self.call.running("around_llm")
        given: dict[str, Any] = {"agent": turn.agent, "request": self.request}
        around: LLMResponse = turn.host.around("around_llm", self._ask, as_response, over, **given)
        return around

    def _made(self, line: TraceEntry) -> LLMResponse | None:
        """The answer from the log; None if the log has an error."""
        self.entry = line
        if self.conversation is not None:
            self.conversation.changed = self.turn.between.has_failed(self.id)
            self.before.update(sent_before(line, self.request))
            self.turn.between.behind(self.id)
        if line.get("status") in ("error", "recovered"):
            self.error = self._raised(line)
            return None
        if self.conversation is not None:
            self.turn.agent.last_usage = line.get("usage")
        return stored_response(line)

    def _raised(self, line: TraceEntry) -> Exception:
        error = model_error({**line, "error": line.get("error")}, line)
        self.turn.failed(self.id, error)
        return error if isinstance(error, Exception) else Exception(str(error))

    def _ask(self) -> LLMResponse:
        """Send the request; the innermost part of `around_llm`."""
        turn, conversation = self.turn, self.conversation
        if turn.ended is not self.call.ended:
            raise TurnEnded
        if conversation is not None:
            if threads() > 0:  # a thread that a handler left behind may have changed the request
                turn.boundary.settle()
            conversation.mend(self.request)  # here, as handlers of this call may have changed the messages
            self.announced = conversation.announced
        try:
            response = as_response(self._send())
        except BaseException as error:
            self.own, self.usage = describe_error(error), getattr(error, "usage", None)
            failed = isinstance(error, Exception) and not turn.boundary.owner_of(error, self._since)
            if self.usage is not None or not failed:  # an interrupted attempt may have taken any number of tokens
                turn.count(self.usage)
            raise
        self._answer, self.own, self.usage = response, describe_answer(response), response.usage
        if conversation is not None:
            turn.agent.last_usage = response.usage
        turn.count(response.usage)
        return response

    def _send(self) -> Any:
        messages, own = self.request.messages, self.turn.agent.tools
        schemas = own.schemas()
        tools = schemas if self.request.tools == schemas else self.request.tools  # adapters cache them by identity
        llm, options = self.call.choose()
        self.model, self.options = llm.model, None if options is None else shown_options(options)
        self.provider = getattr(llm, "provider", None)
        given = getattr(llm, "options", None) if options is None else options
        self.sent = {"model": self.call.name or llm.model, "tools": tools, "options": given and shown_options(given)}
        form = self.call.form
        self.sent["output"] = None if form is None else form.sent_to(llm)
        if (conversation := self.conversation) is None:
            self.sent["messages"] = clone(list(messages))
        elif messages is not conversation.session["messages"]:
            self.sent["edited"] = clone(difference(messages, conversation.session["messages"]))
        if self.turn.log.recording:
            self.digest = sent_digest(self.sent, messages, conversation, self.before)
        if conversation is not None:
            self.sent["names"] = own.names() if tools is schemas else names_of(tools)
        try:
            return (self.call.send or self._ask_model)(llm, messages, tools or None)
        finally:
            if form is not None:  # the endpoint may have refused the schema, so that it was asked in words
                self.sent["output"] = form.sent_to(llm)

    def _ask_model(self, llm: Any, messages: list[Message], tools: Any) -> Any:
        """Ask for the turn: streamed where somebody listens, and apart where the turn is awaited."""
        turn = self.turn
        stream = getattr(llm, "stream", None) if turn.agent.streaming or turn.listeners else None
        apart = None if (caller := CALLER.get()) is None else caller.apart()
        on_text = turn.emit_text if apart is None else partial(apart.call, turn.emit_text)
        ask = llm.complete if stream is None else partial(stream, on_text=on_text)
        send = ask if turn.output is None else partial(turn.output.send, llm, ask)
        return send(messages, tools) if apart is None else apart.run(partial(send, messages, tools))

    def _lost(self) -> None:
        """Trace an attempt whose answer was lost, because a handler raised or Ctrl-C came."""
        with contextlib.suppress(Exception):
            self._close(None, "interrupted", {}) if self.own is not None else self._not_made()

    def _not_made(self) -> None:
        """Write that the model was not asked, so that the attempt does not count as lost."""
        self.turn.log.append({"type": CLOSED, "id": self.id, "open": True})

    def _close(self, response: LLMResponse | None, status: str, own: Any, described: Any = None) -> None:
        turn, conversation = self.turn, self.conversation
        entry = model_entry(turn, self.id, self.request, response, status, own.get("tool_calls", []))
        if self.model is not None and (response is None or response.model is None):
            entry["model"] = self.model
        entry |= {"started": self.started, "duration_ms": round((time.perf_counter() - self._began) * 1000, 3)}
        entry["usage"], self.entry = self.usage, entry
        more: dict[str, Any] = {
            "provider": self.provider,
            "options": self.options,
            "attempt": self.number if self.number > 1 else None,
            "retries": getattr(self.error, "retries", None),
            "original": None if own == self.own else outlined(self.own),
            **(described or {}),
            "digest": self.digest,
            "by": self.by,
        }
        if conversation is not None:
            if self.own is not None:
                more["entries_since_request"] = conversation.announced - self.announced
                if "names" in self.sent and self.sent["names"] != self.before.get("names"):
                    entry["tools"] = self.sent["names"]
            conversation.changed = False
        if self.own is not None:
            more["request"] = not_known(self.sent, self.before)
        for key, value in more.items():
            if value:
                entry[key] = value
        turn.conversation.trace(entry)

    def recover(self, response: LLMResponse, by: By) -> LLMResponse:
        """Replace the error by a handler's answer."""
        value = {**describe_answer(response), "status": "recovered", "tool_calls_count": len(response.tool_calls or ())}
        change: TraceEntry = {"type": "change", "by": by, "of": "llm_call", "value": value}
        change["iteration"] = self.entry.get("iteration")
        self.turn.conversation.amend_entry(self.entry, **value, by=by)
        if self.conversation is not None:
            self.conversation.changed = self.turn.between.has_failed(f"{self.id}/recovered")
        if self.turn.closing(id := f"{self.id}/recovered") is None:
            self.turn.conversation.trace({**change, "id": id})
        elif self.conversation is not None:
            self.turn.between.behind(id)
        return response
