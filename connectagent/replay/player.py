"""An agent whose model and tools answer from a record; its handlers and its loop are the agent's own."""

from __future__ import annotations

import copy
import functools
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from connectagent import frame
from connectagent.agents.agent import Agent
from connectagent.agents.agent_tool import AskAgent, TransferTool
from connectagent.agents.runtime import Runtime
from connectagent.data import LLM, ConfigurableLLM, LLMResponse, Message, TraceEntry, WordByWord
from connectagent.errors import Pause, ProviderError, ToolArgumentsError
from connectagent.hooks.connectonion import UNORDERED
from connectagent.hooks.handler import Handler
from connectagent.loop.ending import Ending
from connectagent.records.sent import canonical
from connectagent.replay.answers import model_answer, run_outcome
from connectagent.replay.recorded_check import RecordedCheck
from connectagent.replay.recording import PROGRAM, RecordedTurn, Sent, is_step, request_changes
from connectagent.replay.requests import Requests
from connectagent.replay.runs import Run
from connectagent.session.edits import shown_options
from connectagent.session.journal import LOST_UPDATE, is_aside
from connectagent.session.moments import Moment
from connectagent.session.requests import names_of
from connectagent.session.snapshot import clone
from connectagent.tools.arguments import Check, NotedCheck
from connectagent.tools.registry import ToolRegistry, collect_tools
from connectagent.tools.tool import Tool

WRITERS = ("textlog", "console")
NOT_RECORDED = "(not recorded: {reason})"


class RecordEnds(BaseException):
    """The record has no more answers; no Exception, as no handler could do anything about it."""


class RecordMiss(RecordEnds):
    """Something else is asked than then, so that the record has no answer to it."""


class RecordedLLM(WordByWord):
    """An LLM that answers what the record has; `model` and `context_window` are those of the LLM in its place."""

    def __init__(self, player: Player, model: str, window: object = None) -> None:
        self.player = player
        self.model = model
        self.context_window = window

    def complete(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, *, output: type[Any] | None = None
    ) -> LLMResponse:
        """The next answer.

        Raises:
            RecordEnds: there is none.
            BaseException: the answer, where it was an error.
        """
        return self.player.answer(self.model, messages, tools or [], output)


class ConfigurableRecordedLLM(RecordedLLM):
    """The same in the place of an LLM that takes parameters of its provider's API: what handlers change is compared."""

    def __init__(self, player: Player, model: str, window: object, options: dict[str, Any]) -> None:
        super().__init__(player, model, window)
        self.options = options

    def with_options(self, options: dict[str, Any]) -> ConfigurableRecordedLLM:
        """The same with other parameters."""
        return ConfigurableRecordedLLM(self.player, self.model, self.context_window, options)

    def complete(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, *, output: type[Any] | None = None
    ) -> LLMResponse:
        self.player.options = self.options
        return super().complete(messages, tools, output=output)


def stand_in(player: Player, llm: LLM) -> RecordedLLM:
    """The LLM that answers from the record in the place of an agent's own."""
    window = getattr(llm, "context_window", None)
    if isinstance(llm, ConfigurableLLM):
        return ConfigurableRecordedLLM(player, llm.model, window, llm.options)
    return RecordedLLM(player, llm.model, window)


class RecordedTools(ToolRegistry):
    """Tools that answer what the record has, those too that are added later.

    Args:
        tools: the agent's own.
        stand_in: makes the tool that answers from the record.
        agent_tool: makes the tool that calls an agent.
    """

    def __init__(
        self, tools: ToolRegistry, stand_in: Callable[[Tool], Tool], agent_tool: Callable[[Any], Tool] | None
    ) -> None:
        self._stand_in = stand_in
        self.gone: dict[str, Tool] = {}  # those that ran then and that the agent does not offer any more
        super().__init__(tools, agent_tool=agent_tool, resources=tools._resources)
        self.by_name = ChainMap(self._tools, self.gone)

    def add(self, source: object) -> list[Tool]:
        return super().add([self._stand_in(tool) for tool in self._collected(source)])

    def _collected(self, source: object) -> list[Tool]:
        return collect_tools(source, agent_tool=self._agent_tool, resources=self._resources())


class PlayedAgent(AskAgent):
    """The function of a tool that asks an agent: the agent takes a turn that the record has, or its result is taken.

    Args:
        agent: the agent.
        player: of the agent that asks.
    """

    def __init__(self, agent: Agent, player: Player) -> None:
        super().__init__(agent)
        self._player = player

    def __call__(self, prompt: str) -> str:
        return super().__call__(prompt) if self._player.plays(self.agent, prompt) else self._player.run(self.agent.name)


class Player:
    """Stands in for an agent's model and tools.

    Args:
        agent: the agent; it is changed.
        live_tools: whether its tools run.
        inside: the players of the agents inside it, by Python's id of these.

    Attributes:
        turn: the recorded turn that is played, or None.
        asked: how often the model was asked in it.
        requests: what the model was sent, as it received it.
        sent: the same, as it is compared with the record.
        not_recorded: what was asked that the record has no answer for.
        entries: the turn's trace entries as they were announced, as the record has them.
        raised: the interrupts that were raised since they are in the record.
    """

    def __init__(self, agent: Agent, live_tools: bool = False, inside: dict[int, Any] | None = None) -> None:
        self.agent = agent
        self.inside: dict[int, Any] = {} if inside is None else inside
        self.requests = Requests()
        self.sent: list[Sent] = []
        self.not_recorded: list[dict[str, Any]] = []
        self.raised: list[BaseException] = []
        self.entries: list[TraceEntry] = []
        self.on_request: Callable[[Player, Sent], None] = lambda player, sent: None
        self.is_strict = False  # whether an answer is only for the very question of a handler or tool
        self.on_lack: Callable[[dict[str, Any]], None] = lambda lack: None
        self.turn: RecordedTurn | None = None
        self._answered = self.asked = 0
        self._runs: dict[tuple[str, str], list[Run]] | None = None  # by name and arguments
        self._moment: Moment[Any] = Moment([])
        self.options: dict[str, Any] | None = None  # of the request, where the agent's LLM takes some
        self.is_made = False  # whether the agent was made from the record alone
        self._arguments: Any = {}
        self._recorded_check = RecordedCheck()
        agent.llm = stand_in(self, agent.llm)
        recorded = partial(RecordedLLM, self)
        agent.runtime = Runtime(recorded, recorded, partial(stand_in, self), lambda after_s: None, replays=True)
        agent.hooks.without(one for one in agent.hooks.loaded if one.builtin and one.plugin in WRITERS)
        agent.hooks.add(Handler("on_trace", self._note_entry, dict(UNORDERED), "replay", builtin=True))
        if not live_tools:
            agent.tools = RecordedTools(agent.tools, self._recorded_tool, agent.tools._agent_tool)

    def begin(self, turn: RecordedTurn, offered: bool = False) -> None:
        """Take the answers from this turn on.

        Args:
            turn: the turn.
            offered: whether the model is offered the tools that ran then and that the agent does not have.
        """
        self.turn, self._answered, self.asked, self.entries, self._runs = turn, 0, 0, [], None
        tools, ran = self.agent.tools, [run.name for run in turn.runs]
        if not isinstance(tools, RecordedTools):
            return
        tools.gone.clear()
        self._recorded_check.begin(turn.entries)
        first = turn.sent[0].tools if turn.sent else None
        for name in dict.fromkeys((first or ran) if offered else ran):
            if name not in tools:
                tool = Tool(name, "", {"type": "object", "properties": {}}, _no_function)
                if offered:
                    tools.add(tool)
                else:
                    tools.gone[name] = self._recorded_tool(tool)

    @property
    def left(self) -> list[TraceEntry]:
        """The answers of the turn that were not used yet."""
        return self.answers[self._answered :]

    @property
    def answers(self) -> list[TraceEntry]:
        """All answers of the turn."""
        return self.turn.answers if self.turn is not None else []

    def lacks(self, what: str, reason: str, **more: Any) -> str:
        """Remember that the record has no answer, and say so."""
        session: Any = self.agent.current_session or {}
        place = {"turn": session.get("turn"), "iteration": session.get("iteration")}
        self.not_recorded.append({**place, "what": what, "reason": reason, **more})
        self.on_lack(self.not_recorded[-1])
        return NOT_RECORDED.format(reason=reason)

    @contextmanager
    def _noting_interrupts(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception):
                self.raised.append(error)
            raise

    def _note_entry(self, entry: TraceEntry) -> None:
        self.entries.append(clone(entry))
        left = self.turn is not None and self.turn.end.get("stream_left")
        if left and is_step(entry) and sum(map(is_step, self.entries)) == self.turn.steps:  # type: ignore[union-attr]
            self.agent.turn.end(Ending(None, "ended", {"plugin": PROGRAM}))  # as the program did then

    # -- the model -----------------------------------------------------------------------------

    def answer(
        self, model: str, messages: list[Message], tools: list[dict[str, Any]], output: type[Any] | None = None
    ) -> LLMResponse:
        """The turn's next answer, whatever the request is; the request is remembered."""
        asking, here = self.agent.boundary.innermost(), frame.current()
        if here is not None and is_aside({"id": here.id}):
            return self._answer_aside(model, here.id)
        if asking is not None:  # it called `complete()` itself, which is in no trace
            reason = f"{asking.get('handler') or asking.get('tool')} asked the model itself"
            raise ProviderError(self.lacks("model", reason), kind="not_recorded", provider="replay", model=model)
        self._note(model, messages, tools, output)
        if self._answered == len(self.answers):
            raise RecordEnds(f"{self.sent[-1].place}: the record has no more answers of the model")
        entry = self.answers[self._answered]
        self._answered += 1
        with self._noting_interrupts():
            return model_answer(entry)

    def _answer_aside(self, model: str, id: str) -> LLMResponse:
        """The recorded answer for a handler or tool that asks a model: of the same question, else the next there."""
        asks = {} if self.turn is None else self.turn.asks
        place, _, attempt = id.rpartition("/")
        same = f"{place.rpartition('/ask:')[0]}/ask:"
        near = (one for one in asks if one.startswith(same) and one.endswith(f"/{attempt}"))
        other = next(near, None)
        found = id if id in asks else None if self.is_strict else other
        if found is None:
            reason = "it asked no model there then" if other is None else "it asked something else there then"
            raise ProviderError(self.lacks("model", reason), kind="not_recorded", provider="replay", model=model)
        return model_answer(asks.pop(found))

    def _note(self, model: str, messages: list[Message], tools: list[dict[str, Any]], output: type[Any] | None) -> None:
        session: Any = self.agent.conversation.session
        trace = session["trace"]
        since = len(trace)
        while since and trace[since - 1].get("type") not in ("llm_call", "user_input"):
            since -= 1
        is_own = messages is session["messages"] or messages == self.agent.conversation.snapshot.copy["messages"]
        own = None if is_own else clone(messages)
        names, changes = names_of(tools), request_changes(trace[since:])
        moment = self._moment_now()
        self.requests.add(own, moment, tools)
        sent = Sent(session["turn"], session["iteration"], model, moment, names, changes, own=own)
        if output is not None:
            sent.output = {"name": output.__name__, "schema": output.model_json_schema()}
        if not self.is_made:
            sent.schemas, sent.options = tools, None if self.options is None else shown_options(self.options)
        self.sent.append(sent)
        self.asked += 1
        self.on_request(self, sent)

    def _moment_now(self) -> Moment[Any]:
        """The conversation; what is as it was in the request before is neither compared nor copied."""
        snapshot = self.agent.conversation.snapshot
        kept = min(snapshot.marked, len(self._moment))
        messages = snapshot.copy["messages"]  # not those that a thread may change
        self._moment = Moment([(clone(one), {}) for one in messages[kept:]], self._moment, kept)
        snapshot.marked = len(messages)
        return self._moment

    # -- the tools -----------------------------------------------------------------------------

    def _recorded_tool(self, tool: Tool) -> Tool:
        """A tool with the same name, schema, check and origin, whose function answers from the record."""
        if isinstance(tool.function, TransferTool):
            return tool
        made = copy.copy(tool)

        def recorded(**arguments: Any) -> Any:
            return self.run(tool.name)

        def note(arguments: dict[str, Any]) -> None:
            self._arguments = clone(arguments)  # what the model and the handlers gave, before defaults

        asked = tool.function
        if asked is not None:
            functools.update_wrapper(recorded, asked, assigned=(), updated=())
        made.function = PlayedAgent(asked.agent, self) if isinstance(asked, AskAgent) else recorded
        check: Check = self._recorded_check if asked is _no_function else tool._check
        made._check = NotedCheck(check, note)
        made.resources = ()  # what does not run makes none
        return made

    def plays(self, agent: Agent, prompt: str) -> bool:
        """Whether an agent that is a tool is to take a recorded turn now."""
        inside, here = self.inside.get(id(agent)), frame.current()
        if inside is None or here is None:
            return False
        run, _ = self._find_call(agent.name)
        if not inside.expects(here.id, prompt, run is not None):
            return False
        if run is not None:
            run.used = True
        return True

    def run(self, name: str) -> Any:
        """What a tool came to then."""
        session: Any = self.agent.conversation.session
        pending = session.get("pending_tool")
        id = pending.get("id") if isinstance(pending, dict) else None
        run, reason = self._find_call(name)
        if run is None and self._ends():
            raise RecordEnds("the record ends while the tool runs")
        if run is None:
            return self.lacks("tool", reason, tool_name=name, call_id=id, arguments=self._arguments)
        run.used = True
        for entry in run.changes:
            apply_change(session, entry)
            if entry["type"] == LOST_UPDATE:  # the recorded state has been merged already, so none is found
                self.agent.conversation.trace({key: clone(entry[key]) for key in ("type", "by", "lost")})
        if "ended_turn" in run.outcome:
            outward: Any = (self.turn.end if self.turn is not None else {}).get("outward") or {}
            is_own = (outward.get("by") or {}).get("tool") == name
            self.agent.end_turn(run.outcome["ended_turn"], scope=outward["scope"] if is_own else "agent")
        if run.outcome.get("status") == "paused":
            raise Pause(str(run.outcome.get("reason") or ""))
        with self._noting_interrupts():
            return run_outcome(run)

    def _find_call(self, name: str) -> tuple[Run | None, str]:
        """The recorded run of the call that is made now."""
        pending: Any = self.agent.conversation.session.get("pending_tool")
        id = pending.get("id") if isinstance(pending, dict) else None
        return self._find(name, id, canonical(self._arguments))

    def _ends(self) -> bool:
        """Whether nothing more is recorded of a turn that was stopped."""
        turn = self.turn
        return turn is not None and turn.was_stopped and not self.left and all(run.used for run in turn.runs)

    def _find(self, name: str, id: object, arguments: str) -> tuple[Run | None, str]:
        """The run of the turn that this call is, the first that was not taken yet."""
        same = self._left_of(name, arguments)
        found = next((run for run in same if run.id == id), same[0] if same else None)
        if found is not None:
            return found, ""
        runs = [run for run in self.turn.runs if run.name == name] if self.turn is not None else []
        if any(run.id == id and not run.used for run in runs):
            return None, "it ran with other arguments then"
        return None, "it ran once less then" if runs else "it did not run then"

    def _form_of(self, run: Run) -> Any:
        """The arguments of a run in the form of the tool as it is now: older records have them as they were sent."""
        tool = self.agent.tools.get(run.name)
        try:
            return run.arguments if tool is None else tool.canonical(run.arguments)
        except ToolArgumentsError:
            return run.arguments

    def _left_of(self, name: str, arguments: str) -> list[Run]:
        """The runs with these arguments that were not taken yet."""
        turn = self.turn
        if turn is not None and self._runs is None:
            self._runs = {}
            for run in turn.runs:
                self._runs.setdefault((run.name, canonical(self._form_of(run))), []).append(run)
        left = [run for run in (self._runs or {}).get((name, arguments), ()) if not run.used]
        if left and self._runs is not None:
            self._runs[name, arguments] = left
        return left


def _no_function(**arguments: Any) -> str:
    return NOT_RECORDED.format(reason="the tool is not there any more")


def apply_change(session: dict[str, Any], entry: TraceEntry) -> None:
    """Apply a trace entry to a session, as far as it still fits."""
    kind, messages, index = entry.get("type"), session["messages"], entry.get("index", 0)
    if kind == "message":
        messages.insert(index, clone(entry["message"]))
    elif kind == "message_edited" and index < len(messages):
        messages[index].clear()
        messages[index].update(clone(entry["message"]))
    elif kind == "message_removed" and index < len(messages):
        del messages[index]
    elif kind == "state_delta":
        for key, value in (entry.get("delta") or {}).items():
            if key in (entry.get("removed") or ()):
                session["state"].pop(key, None)
            else:
                session["state"][key] = clone(value)
    elif kind == "session_delta":
        session.update(clone(entry.get("delta") or {}))
