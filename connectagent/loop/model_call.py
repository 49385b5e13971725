"""One model call, with its hooks, attempts and trace entries."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from connectagent.data import LLM, LLMRequest, LLMResponse, Message, TraceEntry
from connectagent.errors import TurnEnded
from connectagent.frame import Frame
from connectagent.loop.described import describe_error, outlined
from connectagent.loop.divergence import finish
from connectagent.loop.model_choice import Choice
from connectagent.loop.refused import offered
from connectagent.loop.stored import own_tools
from connectagent.loop.turn import Turn
from connectagent.models.notes import NOTES, Notes
from connectagent.records.sent import difference, schema_key, sent_digest
from connectagent.session.edits import shown_options
from connectagent.session.journal import CLOSED
from connectagent.session.messages import as_response, describe_answer, refuse_unusable
from connectagent.session.snapshot import By, clone
from connectagent.session.usage import count
from connectagent.stop_reasons import stop_reason
from connectagent.tools.awaiting import CALLER

_GIVEN = ("before_llm", "around_llm", "after_llm", "on_error")  # the hooks whose handlers are given the request
_NOTHING: dict[str, Any] = {"tools": [], "names": [], "options": None, "output": None}  # sent before the first call


def call_model(turn: Turn) -> LLMResponse | None:
    """Ask the model, with the hooks around it; None if the turn ended before an answer.

    Raises:
        Exception: the error of the last attempt, if no handler recovered it.
    """
    agent, session, hooks = turn.agent, turn.conversation.session, turn.host
    if (caller := CALLER.get()) is not None:
        caller.before_model(agent)
    place, tools = f"{session['iteration']}/", agent.tools.offered[1]
    request = LLMRequest(session["messages"], tools, agent.llm.model)
    if turn.resumed or not hooks.others.isdisjoint(_GIVEN):  # else nobody looks at it
        request.tools, request._tools_seen = own_tools(turn, tools), tools  # a copy: agents may share the schemas
        request.options = agent.call_options()
    call = Call(turn, request, f"{turn.id}/{place[:-1]}")
    answer = turn.decide("before_llm", place, as_response, request=request) if "before_llm" in hooks.active else None
    if turn.ended is not None:
        return None
    response = (call.attempt() or call.retried()) if answer is None else call.stand_in(answer)
    if response is not None and ("after_llm" in hooks.active or turn.resumed):
        final, _ = turn.chain("after_llm", place, as_response, request=request, response=response)
        if final is not response or turn.has_changes(f"{turn.id}/{place}after_llm"):  # handlers may leave anything
            response = as_response(final)
    return response


class Call(Choice):
    """One model call of the loop, a handler or a tool: the request, the model to ask, and the attempts at it.

    `call.attempt() or call.retried()` is its answer, or None if the turn ended.

    Args:
        turn: the turn of the call.
        request: the request.
        place: of the call; its attempts are inside.
        llm: the model to ask instead of the agent's own.
        asked: the frame of the handler or tool that asks; None for the loop's own call.
        by: the handler or tool that asks.
        send: sends messages and tools to a model, for a handler or tool; None: as the turn asks.
        form: of the answer; None for text.
        must_be_whole: whether a cut text will not do, since nobody who gets it could tell. So it is with a form.

    Attributes:
        conversation: whose call it is; None for a call of a handler or tool, which is no part of the conversation.
        model, options: what the request named before handlers saw it.
        name: by which a handler chose the model of a `Retry`.
        ended: how the turn had ended before: handlers and tools may still ask then.
        tried: what was left out of such attempts, by model.
        others: whether a model has refused the schemas of tools in this conversation, or may have.
        extra: how many attempts were made without something that the provider had refused.
        number: of the newest attempt, from 1. What follows is of that attempt.
        id: its place.
        error: the error with which it failed.
        own: the model's own answer or error in the form of a trace entry; None if the model was not asked.
        messages: the messages that it is sent, which nobody else changes any more.
        sent: what the model was sent.
        unsent: the names of tools that the provider would refuse, so that they were not sent.
        noted: keys of its entry that are known before it ends.
        entry: its `llm_call` entry.
        announced: how many trace entries there were when the request was sent.
    """

    own: dict[str, Any] | None = None
    messages: list[Message]
    sent: dict[str, Any]
    extra = 0
    unsent: Sequence[str] = ()
    _began: float | None = None  # None where a handler stands in for the model

    def __init__(
        self,
        turn: Turn,
        request: LLMRequest,
        place: str,
        llm: LLM | None = None,
        asked: Frame | None = None,
        by: By | None = None,
        send: Callable[..., Any] | None = None,
        form: Any = None,
        must_be_whole: bool = False,
    ) -> None:
        self.turn, self.request, self.place, self.asked, self.by = turn, request, place, asked, by
        self.send = send or self._ask_model
        self.llm, self.name, self.ended = llm, None, turn.ended
        self.tried: list[tuple[str, str, int, str | None]] = []
        self.model, self.options = request.model, clone(request.options) if request.options else {}
        self.form = turn.output if asked is None else form
        self.must_be_whole = must_be_whole or self.form is not None
        is_heard = turn.is_heard or CALLER.get() is not None
        self._is_plain = send is None and self.form is None and not is_heard
        self.conversation = conversation = turn.conversation if asked is None else None
        self.others = conversation is not None and conversation.refused_tools != {}
        if conversation is not None and conversation.sent.get("log") != turn.log.id:
            nothing = {} if conversation.sent or conversation.begins_behind else _NOTHING  # this log may lack calls
            conversation.sent = {"log": turn.log.id, **nothing}

    def attempt(
        self, number: int = 1, by: By | None = None, refused: list[dict[str, Any]] | None = None
    ) -> LLMResponse | None:
        """Ask the model once; None if that failed with `error`, or the turn ended before it.

        Args:
            number: of the attempt.
            by: the handler that asked for it.
            refused: what is left out of the request, as the provider refused it.
        """
        turn = self.turn
        self.number, self.id = number, f"{self.place}/model{number}"
        self.error, self.own, self.sent, self._began = None, None, {}, time.perf_counter()
        self.noted = {"started": time.time(), "attempt": number if number > 1 else None, "by": self.by or by}
        if turn.resumed and (line := turn.closing(self.id)) is not None:
            return self.taken(line)
        if isinstance(self.llm, str):
            self.make_named(self.llm)
        if refused:
            self.noted["refused"] = refused
            turn.began(self.id, refused=refused)
        else:
            turn.began(self.id)
        self._since = turn.boundary.blames
        try:
            with turn.frame.inside(self.id):
                response = self._ask_around() if "around_llm" in turn.host.active else self._ask()
        except TurnEnded:
            self._not_made()
            return None
        except BaseException as error:
            if not isinstance(error, Exception) or turn.boundary.owner_of(error, self._since):
                self._lost()
                raise
            self.error, own = error, describe_error(error)
            retries = getattr(error, "retries", None)
            self.close(LLMResponse(), "error", own, {"retries": retries, **own, "from": turn.failed(self.id, error)})
            return None
        if self.own is not None and "around_llm" not in turn.host.others:  # no handler can have edited it
            self.close(response, "success", self.own)
            return response
        self.close(response, "success", describe_answer(response))
        return as_response(response)

    def _ask_around(self) -> LLMResponse:
        """Send the request inside the handlers around it."""
        turn, over = self.turn, self.running("around_llm")
        given: dict[str, Any] = {"agent": turn.agent, "request": self.request}
        around: LLMResponse = turn.host.around("around_llm", self._ask, as_response, over, **given)
        if turn.resumed:
            finish(turn, self.id)
        return around

    def _ask(self) -> LLMResponse:
        """Send the request; the innermost part of `around_llm`."""
        turn, conversation = self.turn, self.conversation
        if turn.ended is not self.ended:
            raise TurnEnded
        self.messages = self.request.messages
        if conversation is not None:
            self.messages = conversation.mend(self.request)  # here, as handlers of this call may change them
            self.announced = conversation.announced
        notes: Notes = []
        token = NOTES.set(notes)
        try:
            response = as_response(self._send())
            is_whole = stop_reason(response.finish_reason).end == "whole"
            if not is_whole and not turn.agent.replaying:  # a recorded answer was judged when it came
                refuse_unusable(response, self.noted["model"], self.noted["provider"], self.must_be_whole)
        except BaseException as error:
            self.own, usage = describe_error(error), getattr(error, "usage", None)
            self.noted["usage"] = usage
            failed = isinstance(error, Exception) and not turn.boundary.owner_of(error, self._since)
            if usage is not None or not failed:  # an interrupted attempt may have taken any number of tokens
                count(turn, usage)
            raise
        finally:
            NOTES.reset(token)
            if notes:
                self.sent["adapted"] = [text for text, _ in notes]
                self.unsent = [name for _, name in notes if name is not None]
        self.own, self.noted["usage"] = describe_answer(response), response.usage
        if conversation is not None:
            turn.agent.last_usage = response.usage
        count(turn, response.usage)
        return response

    def _send(self) -> Any:
        """Note what the model is sent, and send it."""
        turn, request, conversation, form = self.turn, self.request, self.conversation, self.form
        llm, name = turn.agent.llm, None
        options = getattr(llm, "options", None)
        if self.llm is not None or request.model != self.model or request.options != self.options:
            llm, name, options = self.choose()
        if options and "tool_choice" in options:
            llm, options = self.choosing_freely(llm, options)
        names, tools = turn.agent.tools.offered
        if self.others or request.tools != tools:  # else the agent's own list: adapters know it again
            names, tools = self._tools_for(llm, name)
        self.noted |= {"model": llm.model, "provider": getattr(llm, "provider", None)}
        self.sent = {"model": name or llm.model, "tools": tools, "options": options and shown_options(options)}
        self.sent["output"] = form and form.sent_to(llm)
        if conversation is not None:
            self.sent["names"] = names
        self._note_messages()
        ask = llm.complete if self._is_plain else partial(self.send, llm)
        try:
            return ask(self.messages, tools or None)
        finally:
            if form is not None:  # the endpoint may have refused the schema, so that it was asked in words
                self.sent["output"] = form.sent_to(llm)

    def _note_messages(self) -> None:
        """Note the messages that are sent: all of them, or as what differs from the conversation."""
        conversation = self.conversation
        edited: list[Message] | None = self.messages
        if conversation is None:
            self.sent["messages"] = clone(list(self.messages))
        elif self.request.messages is not conversation.session["messages"]:
            snapshot = conversation.snapshot
            self.sent["edited"] = clone(difference(self.messages, snapshot.originals, snapshot.copy["messages"]))
        elif conversation.announced == self.announced:  # else threads have changed it since the messages were taken
            edited = None
        if self.turn.log.recording:
            self.noted["digest"] = sent_digest(self.sent, edited, conversation)

    def _tools_for(self, llm: Any, name: str | None) -> tuple[list[str], list[dict[str, Any]]]:
        """The tools of a request that handlers edited, or whose model has refused the schemas of some."""
        names, tools = self.turn.agent.tools.offered
        if self.request.tools != tools:
            names, tools = self.edited_tools()
        return (names, tools) if self.conversation is None else offered(self.conversation, llm, name, names, tools)

    def _ask_model(self, llm: Any, messages: list[Message], tools: Any) -> Any:
        """Ask for the turn: streamed where somebody listens, and apart where the turn is awaited."""
        turn = self.turn
        stream = getattr(llm, "stream", None) if turn.is_heard else None
        apart = None if (caller := CALLER.get()) is None else caller.apart()
        emit = partial(turn.emit_text, attempt=self.number)
        on_text = emit if apart is None else partial(apart.call, emit)
        ask = llm.complete if stream is None else partial(stream, on_text=on_text)
        send = ask if turn.output is None else partial(turn.output.send, llm, ask)
        return send(messages, tools) if apart is None else apart.run(partial(send, messages, tools))

    def close(self, answer: LLMResponse, status: str, shown: TraceEntry, more: TraceEntry | None = None) -> None:
        """Trace how an attempt ended.

        Args:
            answer: the answer; an empty one, if there is none.
            status: of the entry.
            shown: the answer or the error, in the form of a trace entry.
            more: further keys of the entry.
        """
        turn, conversation, own, calls = self.turn, self.conversation, self.own, shown.get("tool_calls", [])
        if turn.ended is not self.ended and not turn.stopped:  # handlers ended it meanwhile
            self.noted["ended"] = turn.ending_as_data()
        reply = {"model": answer.model, "finish_reason": answer.finish_reason, "provider_data": answer.provider_data}
        entry = self.entry = {
            "type": "llm_call",
            "id": self.id,
            "model": self.request.model,
            "timestamp": time.time(),
            "duration_ms": 0.0 if self._began is None else round((time.perf_counter() - self._began) * 1000, 3),
            "tool_calls_count": len(calls),
            "iteration": turn.conversation.session["iteration"],
            "usage": None,
            "content": answer.content,
            "tool_calls": calls,
            "status": status,
        }
        for key, value in (*self.noted.items(), *reply.items(), ("retries", answer.retries), *(more or {}).items()):
            if value:
                entry[key] = value
        if own is not None:  # the model was asked
            if shown is not own and shown != own:
                entry["original"] = outlined(own)
            entry |= _news(self.sent, dict(_NOTHING) if conversation is None else conversation.sent)
        if conversation is not None and self._began is not None:
            conversation.changed = False
        since = self.announced if own is not None and conversation is not None else None
        turn.conversation.trace(entry, since=since)

    def _lost(self) -> None:
        """Trace an attempt whose answer was lost, because a handler raised or Ctrl-C came."""
        with contextlib.suppress(Exception):
            self.close(LLMResponse(), "interrupted", {}) if self.own is not None else self._not_made()

    def _not_made(self) -> None:
        """Write that the model was not asked, so that the attempt does not count as lost."""
        self.turn.log.append({"type": CLOSED, "id": self.id, "open": True})


def _news(sent: dict[str, Any], before: dict[str, Any]) -> TraceEntry:
    """The `request` of an `llm_call` entry, and its `tools`: what of a request the log does not have yet.

    A schema that the log has already is named by its key.

    Args:
        sent: the request.
        before: that of the call before, which becomes this one.
    """
    new: dict[str, Any] = {}
    for key, value in sent.items():
        if key not in before or (value is not before[key] and value != before[key]):
            new[key] = value
    before |= sent
    before.pop("edited", None)
    if "adapted" not in sent:  # what is adapted again later is told again
        before.pop("adapted", None)
    if not new:
        return {}
    if new.get("tools"):
        logged, tools = before.setdefault("schemas", []), []
        for tool in new["tools"]:
            if tool in logged:
                tools.append(schema_key(tool))
            else:
                tools.append(tool)
                logged.append(clone(tool))
        new["tools"] = tools
    new = clone(new)
    names = {"tools": new.pop("names")} if "names" in new else {}
    return {**names, "request": new} if new else names
