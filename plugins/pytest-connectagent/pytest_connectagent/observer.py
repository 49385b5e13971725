"""Observes one plugin in one agent, and finds what breaks a rule."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from connectagent import Continue, LLMResponse, Message, Pause, Retry, ToolCall, ToolRejected, TraceEntry, hooks
from connectagent.agents.agent_tool import core_of
from connectagent.plugins import CONTRACTS, RESOURCE, Handler, place_of_result, running, same
from connectagent.testing import conversation_problems
from pytest_connectagent.effects import Effects, Held
from pytest_connectagent.faults import CHANGES, By, Fault
from pytest_connectagent.paths import OTHERS, RAN, PathError, PathModel
from pytest_connectagent.shared_state import Keeping

_CALL_ID = re.compile(r"\bcall_do_\w+?_\d+\b")  # as `call()` makes them
_fine: set[str] = set()  # conversations without problems
_MESSAGES = {"message": "added", "message_edited": "edited", "message_removed": "removed"}
_EDITED = {"tool_call": "arguments", "tool_calls": "arguments", "request": "request", "response": "response"}
_VALUES = {  # what a value that a hook takes changes
    "after_user_input": "result",
    "before_llm": "response",
    "before_each_tool": "result",
    "after_each_tool": "result",
    "on_complete": "result",
    "around_turn": "result",
    "around_llm": "response",
    "around_tool": "result",
}


@dataclass
class Observer:
    """A plugin that watches another one, handler by handler; it is listed first.

    Args:
        handlers: the watched plugin's, as `by` of each.
        path: the name of the path.
        llm: the path's model.
        declared: the kinds of change that are meant, of `CHANGES`.
        raises: the exceptions that are meant.
        keeping: takes what changes outside of the session.
        effects: takes what handlers do outside of the agent.
        number: tells the agents of one check apart.
    """

    handlers: list[By]
    path: str
    llm: PathModel
    declared: frozenset[str]
    raises: tuple[type[BaseException], ...]
    keeping: Keeping
    effects: Effects
    number: int
    faults: list[Fault] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)  # the kinds of change that were seen
    running: By | None = None  # the watched handler that runs, or ran last
    rejections: int = 0  # how often its handlers rejected calls
    agent: Any = None
    _announced: list[TraceEntry] = field(default_factory=list)  # the entries that were announced
    _said: list[Any] = field(default_factory=list)  # texts of decisions, which the loop makes into messages
    _changed_by: By | None = None  # who last changed messages
    _judged: list[Any] = field(default_factory=list)  # the requests that were checked already
    _ran: list[tuple[By, int]] = field(default_factory=list)  # the tool bodies that handlers ran by themselves

    @hooks.on_agent_ready(tryfirst=True)
    def begin(self, agent: Any) -> None:
        """Step between the agent and the watched handlers."""
        if self.agent is None:  # else it is one of the agents below, which inherit the plugin
            self.agent = self.llm.agent = agent
        # A plugin may ask for another model, by name; it is given this one, under that name.
        core_of(agent).runtime = replace(core_of(agent).runtime, create_model=lambda model: _named(self.llm, model))
        for handler in agent.hooks.loaded:
            known = handler.by in self.handlers and handler.hook != RESOURCE
            if known and not hasattr(handler.function, "connectagent_watched"):
                watched = self._around if CONTRACTS[handler.hook].kind == "around" else self._event
                function: Any = functools.wraps(handler.function)(watched(handler, handler.function))
                function.connectagent_watched = True
                function.__signature__ = inspect.signature(handler.function)  # agents below check it anew
                handler.function = function

    def _here(self) -> Any:
        """The agent whose handler runs here."""
        here = running()
        return self.agent if here is None else here.agent

    @hooks.on_trace(tryfirst=True)
    def entry(self, entry: TraceEntry) -> None:
        """Judge what a handler changed in the session."""
        self._announced.append(entry)
        by, kind = entry.get("by"), entry["type"]
        if kind == "mended":
            self._mended()
        if by not in self.handlers:
            return
        if kind in _MESSAGES:
            self._judge_message(by, entry)
        elif kind == "state_delta":
            self._change("state", by, f"changed state[{', '.join(map(repr, entry['delta']))}]")
            for key in sorted(OTHERS.keys() & entry["delta"].keys() - {by["plugin"]}):
                self.fault("foreign state", by, f"changed state[{key!r}], which is not its own")
        elif kind == "session_delta":
            self._change("session", by, f"changed session[{', '.join(map(repr, entry['delta']))}]")
        elif kind == "change" and entry["of"] in _EDITED:
            self._change(_EDITED[entry["of"]], by, f"changed {entry['of']} to {_short(entry['value'])}")

    def fault(self, rule: str, by: By | None, problem: str) -> None:
        """Note a fault, each once in a path."""
        found = Fault(rule, by, self.path, problem)
        if found not in self.faults:
            self.faults.append(found)

    def check_conversation(self) -> None:
        """Check the requests, and the conversation that the turn left, by the providers' rules."""
        agents = [] if self.agent is None else [self.agent, *self.agent.below]
        requests = [request for agent in agents for request in getattr(agent.llm, "requests", ())]
        asked = [one.messages for one in requests if not any(one is known for known in self._judged)]
        self._judged = requests
        sessions = [agent.current_session for agent in agents if agent.current_session]
        for messages in [*asked, *(session["messages"] for session in sessions)]:
            problems = _problems(messages) if messages else []
            if problems and not any(fault.rule == "order" for fault in self.faults):
                self.fault("order", self._changed_by, f"left a conversation that no provider takes: {problems[0]}")

    def check_rejected(self) -> None:
        """Check that no handler ran a call that was refused, by itself."""
        session = self.agent.current_session if self.agent is not None else None
        for entry in session["trace"] if session else ():
            if entry["type"] == "tool_execution" and entry["status"] == "rejected":
                for by, x in self._ran:
                    if entry["arguments"] == {"x": x}:
                        self.fault("rejections", by, f"ran {entry['tool_name']}(x={x}) although it was rejected")

    # -- the handlers --------------------------------------------------------------------------

    def _event(self, handler: Handler, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(handler.positional, args, strict=False)), **kwargs}
            with self._inside(handler, given, function):
                value = function(*args, **kwargs)
            return self._decided(handler, given, value)

        return watched

    def _around(self, handler: Handler, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(handler.positional, args, strict=False)), **kwargs}
            return _Generator(self, handler, given, function(*args, **kwargs), function)

        return watched

    @contextlib.contextmanager
    def _inside(
        self, handler: Handler, given: dict[str, Any], function: Any, passing: BaseException | None = None
    ) -> Iterator[None]:
        """Watch a handler, or a half of one, while it runs.

        Args:
            passing: an error that goes through it and is not its own.
        """
        agent = self._here()
        by, session = handler.by, agent.current_session
        self.running = by
        self.called.add(handler.hook)
        surface, ended, known = _surface(agent), _ended(agent), len(session["trace"]) if session else 0
        kept, ran = self.keeping.snapshot(function), len(RAN)
        begun = self.effects.begin(Held(by, self.path, self._wrote))
        try:
            yield
        except StopIteration:
            raise
        except BaseException as error:
            if error is not passing:
                self._judge_error(handler, error)
            raise
        finally:
            self.effects.end(begun)
            self._ran += [(by, x) for x in RAN[ran:]]
            self.keeping.compare(kept, self.number, by, self.path)
            self._judge_agent(by, surface, _surface(agent))
            if _ended(agent) is not ended and _ended(agent) is not None:
                self._said.append(_ended(agent).result)
                self._change("turn", by, "ended the turn")
            self._judge_trace(by, session, known)
            self._judge_request(by, given.get("request"))

    def _wrote(self, rule: str, by: By, what: str) -> None:
        """Take what a handler did outside of its agent."""
        self._change(rule, by, what) if rule in CHANGES else self.fault(rule, by, what)

    def _decided(self, handler: Handler, given: dict[str, Any], value: Any) -> Any:
        """Judge a value that a handler returned."""
        chained = CONTRACTS[handler.hook].chained
        if value is None or CONTRACTS[handler.hook].kind in ("observe", "collect"):
            return value
        if isinstance(value, Retry):
            self._change("retry", handler.by, "had the call made again")
            return replace(value, after_s=0)
        if isinstance(value, Continue):
            self._said.append(value.prompt)
            self._change("turn", handler.by, f"let the turn go on with {_short(value.prompt)}")
        elif handler.hook == "on_error":
            kind = "result" if self._here().current_session["pending_tool"] else "response"
            self._change(kind, handler.by, f"recovered the call with {_short(value)}")
        elif handler.hook in _VALUES and not (chained in given and same(given[chained], value)):
            self._said.append(value)
            self._change(_VALUES[handler.hook], handler.by, f"returned {_short(value)}")
        self._judge_kept(handler.by, given.get("response"), value)
        return value

    # -- the judgements ------------------------------------------------------------------------

    def _change(self, kind: str, by: By, what: str) -> None:
        self.changed.add(kind)
        if kind not in self.declared:
            problem = f"{what}, which was not declared. If it is meant: check(..., changes={{{kind!r}}})"
            self.fault("changes", by, problem)

    def _judge_message(self, by: By, entry: TraceEntry) -> None:
        message = entry.get("message") or {}
        if message.get("content") is not None and message["content"] in self._said:
            return  # the loop's own doing: a decision as a message
        self._changed_by = by
        which = f": {_short(message)}" if message else f" {entry['index']}"
        self._change("messages", by, f"{_MESSAGES[entry['type']]} message{which}")
        problems = conversation_problems(self._completed())
        if problems:
            self.fault("order", by, f"broke the conversation: {problems[0]}")

    def _judge_kept(self, by: By, given: Any, value: Any) -> None:
        """Check that an answer with the model's own calls keeps what the provider needs back with them."""
        if not isinstance(given, LLMResponse) or not isinstance(value, LLMResponse) or not given.provider_data:
            return
        if value.tool_calls == given.tool_calls and value.provider_data != given.provider_data:
            problem = "returned the answer without its provider_data, which the provider needs back with its calls"
            self.fault("order", by, f"{problem}: return dataclasses.replace(response, ...)")

    def _completed(self) -> list[Message]:
        """The conversation, with a result for each call that is still to have one: these are the loop's to add."""
        session = self._here().current_session
        messages = list(session["messages"])
        # Only entries of the trace as it is now count: a resumed turn runs calls again that were skipped before.
        entries = (entry for entry in session["trace"] if entry["type"] == "tool_execution")
        answered = {entry["call_id"] for entry in entries if entry.get("status") != "skipped"}
        for call in session["pending_tools"] or ():
            if call["id"] not in answered:
                index, there = place_of_result(messages, call["id"])
                if index is not None and there is None:
                    messages.insert(index, {"role": "tool", "tool_call_id": call["id"], "content": "pending"})
        return messages

    def _mended(self) -> None:
        if self._changed_by is not None and not any(fault.rule == "order" for fault in self.faults):
            self.fault("order", self._changed_by, "left a conversation that had to be mended before the next request")

    def _judge_request(self, by: By, request: Any) -> None:
        """Check a list that is only for this call: the loop mends it silently, so nobody else would notice."""
        messages = getattr(request, "messages", None)
        if isinstance(messages, list) and messages is not self._here().current_session["messages"]:
            with contextlib.suppress(Exception):  # not even messages: the host reports that
                if problems := conversation_problems(messages):
                    self.fault("order", by, f"left a request.messages that no provider takes: {problems[0]}")

    def _judge_trace(self, by: By, session: Any, known: int) -> None:
        for entry in session["trace"][known:] if session else ():
            if not any(entry is one for one in self._announced[-50:]) and isinstance(entry, dict):
                self._change("trace", by, f"added the trace entry {_short(entry)}")

    def _judge_agent(self, by: By, before: dict[str, Any], after: dict[str, Any]) -> None:
        for name, value in after.items():
            if value != before[name]:
                kind = "tools" if name == "tools" else "agent"
                self._change(kind, by, f"changed agent.{name} from {_short(before[name])} to {_short(value)}")

    def _judge_error(self, handler: Handler, error: BaseException) -> None:
        if isinstance(error, ToolRejected) and handler.hook in ("before_tools", "before_each_tool"):
            self.rejections += 1
            self._change("rejection", handler.by, f"rejected a call: {_short(str(error))}")
        elif isinstance(error, Pause) and handler.hook.startswith("before_"):
            self._change("pause", handler.by, f"paused the turn: {_short(str(error))}")
        elif not isinstance(error, (PathError, KeyboardInterrupt, *self.raises)):
            name = type(error).__name__
            self.fault("raises", handler.by, f"raised {name}: {error}. If it is meant: check(..., raises=[{name}])")


@dataclass
class _Generator:
    """A watched around handler, as the host drives it."""

    watch: Observer
    handler: Handler
    given: dict[str, Any]
    generator: Any
    function: Any
    entered: bool = False

    def __iter__(self) -> _Generator:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """The first or the second half, the operation having returned a value."""
        try:
            with self.watch._inside(self.handler, self.given, self.function):
                return self.generator.send(value)
        except StopIteration as stop:
            if not same(stop.value, value):
                self.watch._decided(self.handler, self.given, stop.value)
            raise

    def throw(self, error: BaseException) -> Any:
        """The second half, the operation having raised."""
        pressed = not isinstance(error, Exception)
        try:
            with self.watch._inside(self.handler, self.given, self.function, error):
                return self.generator.throw(error)
        except StopIteration as stop:
            if pressed:
                self._swallowed(error, "swallowed")
            elif stop.value is not None:
                self.watch._decided(self.handler, self.given, stop.value)
            raise
        except BaseException as raised:
            if pressed and raised is not error and isinstance(raised, Exception):
                self._swallowed(error, f"turned into {type(raised).__name__}")
            raise

    def close(self) -> None:
        self.generator.close()

    @property
    def gi_frame(self) -> Any:
        return self.generator.gi_frame  # None where it is over, as a dry run asks

    def _swallowed(self, error: BaseException, what: str) -> None:
        if "interrupts" not in self.watch.declared:
            problem = f"{what} {type(error).__name__}"
            if what != "swallowed":
                problem = f"{type(error).__name__} was {what}"
            self.watch.fault("interrupts", self.handler.by, f"{problem}: catch Exception, never BaseException")


def _problems(messages: list[Message]) -> list[str]:
    """What providers would refuse. Most conversations of a check are alike but for the ids of their calls."""
    numbers: dict[str, str] = {}
    text = _CALL_ID.sub(lambda id: numbers.setdefault(id[0], f"call_{len(numbers)}"), repr(messages))
    if text in _fine:
        return []
    problems = conversation_problems(messages)
    if not problems:
        _fine.add(text)
    return problems


def _named(llm: PathModel, model: str) -> PathModel:
    named = copy.copy(llm)  # the lists of responses and requests stay the same ones
    named.model = model
    return named


def _surface(agent: Any) -> dict[str, Any]:
    """What a handler can change of an agent beside its session."""
    names = ("name", "system_prompt", "max_iterations", "llm")
    return {"tools": agent.tools.names(), **{name: getattr(agent, name) for name in names}}


def _short(value: Any) -> str:
    text = repr({"id": value.id, "name": value.name} if isinstance(value, ToolCall) else value)
    return text if len(text) <= 120 else f"{text[:119]}…"


def _ended(agent: Any) -> Any:
    """How the agent's turn is to end, or None."""
    return None if core_of(agent).turn is None else core_of(agent).turn.ended
