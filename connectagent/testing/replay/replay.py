"""Replay: the recorded answers of model and tools through today's handlers, offline.

The turns go through the agent's own loop; only its model and its tools' functions answer from the record.
What handlers decided then is not replayed: today's handlers decide.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from connectagent.agents.agent import Agent
from connectagent.agents.resume import is_record, resume
from connectagent.data import Message, TraceEntry
from connectagent.errors import Paused
from connectagent.output.rows import call_text, many
from connectagent.output.text import describe
from connectagent.session.history import History
from connectagent.session.state import clone
from connectagent.testing.replay.compare import (
    Call,
    Divergence,
    changed_calls,
    compared,
    diff,
    first_difference,
    new_errors,
)
from connectagent.testing.replay.player import Player, RecordEnds, RecordMiss, apply_change, canonical
from connectagent.testing.replay.recorded_form import RecordedForm
from connectagent.testing.replay.recording import PROGRAM, RecordedTurn, Recording, Run, Sent, conversation_of, runs_of


@dataclass
class Replay:
    """What became of a record with today's handlers.

    Attributes:
        record: the record.
        agent: the agent, as it is afterwards.
        divergence: the first thing that is not as it was, or None.
        rejected: the calls that would now be rejected and were not then; see `Call.had_succeeded`.
        stand_ins: the calls for which a handler would now stand in.
        errors: the calls that would now fail.
        changed: the other calls that become of something else: another result, or run where they were not.
        not_recorded: what was asked now and not then, one dict each: `what` (`model`, `tool`), `reason`, `turn` ...
        hook_errors: `error` entries of handlers that raise now and did not then.
        ran_out: where the record had no more answers of the model, as `TURN.ITERATION`; None where it had.
        requests: what the model was sent, each as its messages and its tools.
        results: what each turn returned, or `Type: text` of what it raised.
        recorded_results: the same of the record; None of a turn that was cut off.
    """

    record: Path
    agent: Agent
    divergence: Divergence | None = None
    rejected: list[Call] = field(default_factory=list)
    stand_ins: list[Call] = field(default_factory=list)
    errors: list[Call] = field(default_factory=list)
    changed: list[Call] = field(default_factory=list)
    not_recorded: list[dict[str, Any]] = field(default_factory=list)
    hook_errors: list[TraceEntry] = field(default_factory=list)
    ran_out: str | None = None
    requests: list[tuple[list[Message], list[dict[str, Any]]]] = field(default_factory=list)
    results: list[str | None] = field(default_factory=list)
    recorded_results: list[str | None] = field(default_factory=list)

    @property
    def result(self) -> str | None:
        """What the last turn returned, or `Type: text` of what it raised."""
        return self.results[-1] if self.results else None

    @property
    def same(self) -> bool:
        """Whether everything is as it was."""
        lists = (self.rejected, self.stand_ins, self.errors, self.changed, self.not_recorded, self.hook_errors)
        return self.divergence is None and not any(lists)

    def diverged(self, divergence: Divergence) -> None:
        """Keep the first divergence."""
        self.divergence = self.divergence or divergence

    def take(self, calls: list[Call]) -> None:
        """Sort calls that differ into the lists, without those that the record cannot answer."""
        unknown = {(one["turn"], one.get("call_id")) for one in self.not_recorded}
        by_status = {"rejected": self.rejected, "stand_in": self.stand_ins, "error": self.errors}
        for call in calls:
            if (call.turn, call.call_id) not in unknown:
                (self.changed if call.now == call.then else by_status.get(call.now, self.changed)).append(call)


def replay(
    record: str | os.PathLike[str] | Recording, agent: Agent | None = None, *, live_tools: bool = False
) -> Replay:
    """Play a record with an agent: its handlers run, its model and tools answer from the record.

    No record is written, and nothing is shown. The agent is changed for good.

    Args:
        record: the record's path.
        agent: whose handlers, tools and prompts they are; without it, one that is made from the record.
        live_tools: whether the agent's own tools run.

    Raises:
        OSError, ConfigError: the record cannot be read.
        KeyboardInterrupt: Ctrl-C was pressed now; one that is in the record is played.
    """
    recording = record if isinstance(record, Recording) else Recording(is_record(record))
    return Replaying(recording, agent_of(recording) if agent is None else agent, live_tools).run()


def agent_of(recording: Recording, plugins: Any = None, **options: Any) -> Agent:
    """An agent from a record alone: its name, its model's name, its system prompt and limit.

    Args:
        recording: the record.
        plugins: the agent's plugins.
        options: what else `Agent` takes.
    """
    head = recording.head
    named: Any = _Named(str(head.get("model") or "?"))
    limit = int(head.get("max_iterations") or 10)
    given = {"log": False, "quiet": True, "max_iterations": limit, "llm": named, **options}
    agent = Agent(str(head.get("agent") or "replayed"), plugins=plugins, **given)
    if "system_prompt" not in options:
        prompt, extended = str(head.get("system_prompt") or ""), agent.system_prompt  # by `on_agent_ready`
        agent.system_prompt = prompt if prompt.endswith(extended) else prompt + extended
    return agent


class _Named:
    """A model that is known by its name only."""

    def __init__(self, model: str) -> None:
        self.model = model

    def complete(self, messages: Any, tools: Any = None) -> Any:
        raise RecordEnds("the agent of a record has no model of its own")


class Replaying:
    """One record on its way through an agent.

    Args:
        recording: the record.
        agent: the agent; an agent of `agent_of` is offered the tools that the record's had.
        live_tools: whether its tools run.

    Attributes:
        out: what became of it so far.

    Raises:
        ConfigError: the conversation was handed over in it.
    """

    def __init__(self, recording: Recording, agent: Agent, live_tools: bool = False) -> None:
        recording.refuse_handoffs()
        self.recording, self.agent, self.made = recording, agent, isinstance(agent.llm, _Named)
        self.player = Player(agent, live_tools)
        self.player.on_request = self._compare
        self.turn: RecordedTurn | None = None
        self.asked = 0  # requests of this turn
        self.is_strict = False
        self.last: tuple[str | None, BaseException | None] = (None, None)
        self.out = Replay(
            recording.path, agent, requests=self.player.requests, not_recorded=self.player.not_recorded
        )

    def run(self) -> Replay:
        """Play the whole record."""
        self._begin_session()
        for turn in self.recording.turns:
            self._before(turn)
            self._play(turn, lambda: self._input(turn))  # noqa: B023
        return self.out

    def by_turns(self) -> None:
        """Let each `input()` of the agent play the record's next turn, and return its result or raise its error.

        Where a model or a tool is asked something else than then, `input()` raises a `RecordMiss` at once.
        """
        turns = iter(self.recording.turns)
        self.is_strict = self.player.is_strict = True
        self.player.on_lack = self._miss

        def run(agent: Agent, what: str, action: Callable[[], Any]) -> Any:
            if what != "input":
                return action()
            turn = next(turns, None)
            if turn is None:
                raise RecordEnds(f"the record has {len(self.recording.turns)} turns, and this is one more")
            self.player.begin(turn, self.made)
            self._play(turn, action)
            result, error = self.last
            if error is not None:
                raise error
            return str(result)

        self.agent.runtime.run = run

    def _begin_session(self) -> None:
        first = self.recording.head.get("begins_with") or {}
        self.agent.log.id = str(self.recording.head.get("id") or self.agent.log.id)  # handlers may send it
        self.agent.current_session = None
        if first:
            prompt = self.agent.system_prompt
            system = [{"role": "system", "content": prompt}] if prompt else []
            session: Any = {"messages": clone(first.get("messages", system)), "state": clone(first.get("state") or {})}
            session["turn"] = int(first.get("turn") or 0)
            self.agent.current_session = session

    def _before(self, turn: RecordedTurn) -> None:
        """Do again what the program did before a turn: changes of the session, and calls of tools."""
        self.player.begin(_of_program(turn), self.made)
        if turn.before and self.agent.current_session is None:
            _ = self.agent.conversation.session
        for entry in turn.before:
            if (entry.get("by") or {}).get("plugin") == PROGRAM:
                apply_change(self.agent.current_session, entry)  # type: ignore[arg-type]
            elif entry.get("type") == "tool_execution" and str(entry.get("id")).startswith("B"):  # noqa: SIM102
                if "/exec:" not in entry["id"]:  # a tool or handler of that call made it
                    arguments = entry.get("original_arguments", entry.get("arguments"))
                    self.agent.execute_tool(str(entry.get("tool_name")), clone(arguments))

    # -- one turn ------------------------------------------------------------------------------

    def _play(self, turn: RecordedTurn, play: Callable[[], str]) -> None:
        """Play one turn, and keep what is other than it was."""
        self.turn, self.asked = turn, 0
        self.player.begin(turn, self.made)
        self.last = result, error = self._outcome(turn, play)
        session: Any = self.agent.current_session
        entries = self.player.entries
        calls = list(changed_calls(turn.number, turn.entries, entries))
        if isinstance(error, RecordEnds):  # whether these changed is not known
            calls = [call for call in calls if call.then not in (None, "interrupted", "skipped")]
        self.out.take(calls)
        self.out.hook_errors += new_errors(turn.entries, entries)
        iteration = int(session["iteration"]) if session else 0
        self.out.results.append(_outcome_text(result, error))
        then = _outcome_text(turn.end.get("result"), turn.end.get("error"))
        self.out.recorded_results.append(None if turn.is_cut else then)
        if isinstance(error, RecordEnds):
            self.out.ran_out = self.out.ran_out or f"{turn.number}.{iteration}"
        else:
            self._compare_ends(turn, iteration, result, error)

    def _compare_ends(self, turn: RecordedTurn, iteration: int, result: Any, error: BaseException | None) -> None:
        if self.player.left:
            lines = [f"- the model was asked {many(len(self.player.left), 'time')} more", "+ the turn ends"]
            self.out.diverged(Divergence(turn.number, iteration, "calls", lines))
        if turn.is_cut or (turn.was_stopped and error is None):  # what stopped it came from outside
            return
        then, now = _outcome_text(turn.end.get("result"), turn.end.get("error")), _outcome_text(result, error)
        if turn.end.get("status") == "paused" and isinstance(error, Paused):
            pauses = [entry.get("reason") for entry in turn.entries if entry.get("type") == "paused"]
            then, now = str(pauses[-1:]), str([error.reason])
        if canonical(then) != canonical(now):
            what = "error" if error is not None or turn.end.get("error") else "result"
            lines = diff(str(then).splitlines(), str(now).splitlines())
            by = self._by_now(error)
            self.out.diverged(Divergence(turn.number, iteration, what, lines, {}, by))

    def _by_now(self, error: BaseException | None) -> dict[str, Any]:
        """The handler whose error ended the turn, or {}."""
        session: Any = self.agent.current_session or {}
        trace: Any = session.get("trace") or [{}]
        last = trace[-1] if error is not None and isinstance(trace[-1], dict) else {}
        return (last.get("by") or {}) if last.get("type") == "error" else {}

    def _outcome(self, turn: RecordedTurn, play: Callable[[], str]) -> tuple[str | None, BaseException | None]:
        """What the turn returns, or raises."""
        try:
            return play(), None
        except KeyboardInterrupt as error:
            if not any(error is known for known in self.player.raised) and not _expected(turn):
                raise
            return None, error
        except BaseException as error:
            return None, error

    def _input(self, turn: RecordedTurn) -> str:
        """Give the agent the turn's input; where it was paused then and decided, go on."""
        content, limit = turn.input.get("content", turn.input.get("prompt", "")), turn.input.get("max_iterations")
        paused, decided, form = 0, None, self._form(turn)
        while True:
            try:
                if decided is None:
                    return self.agent.answer(clone(content), limit, form=form)
                return str(resume(self.agent, None, None, False, decided._replace(form=form)))
            except Paused:
                decided = self.recording.decision(turn, paused)
                if decided is None:
                    raise
                paused += 1

    def _form(self, turn: RecordedTurn) -> Any:
        """The form of a turn's result: the agent's own, else what the record has of the one given to `input()`."""
        own = self.agent.form
        if not turn.input.get("output") or (own is not None and own.name == turn.input["output"]):
            return own
        form = RecordedForm(turn, self.agent)
        if self.made:
            self.agent.output_retries = len(form.sent_back)
        return form

    def _history(self, entries: list[TraceEntry]) -> History:
        """The conversation by this session's trace."""
        first = self.recording.head.get("begins_with") or {}
        history = History(self.agent.system_prompt, clone(first.get("messages")), clone(first.get("state")))
        history.turn = int(first.get("turn") or 0)
        history.extend(entries, closed=False)
        return history

    # -- one request ---------------------------------------------------------------------------

    def _compare(self, now: Sent) -> None:
        turn, number = self.turn, self.asked
        self.asked += 1
        if turn is None or self.out.divergence is not None:
            return
        if number < len(turn.sent):
            divergence = compared(turn.sent[number], now)
            if divergence is not None and divergence.what == "messages":
                now.makers = self._makers(turn.sent[number], now)
                divergence = compared(turn.sent[number], now)
            if divergence is not None:
                self.out.diverged(divergence)
        elif not turn.was_stopped:
            lines = ["- the turn ended", "+ the model is asked once more"]
            self.out.diverged(Divergence(now.turn, now.iteration, "calls", lines))
        if self.is_strict and self.out.divergence is not None:
            raise RecordMiss(self._differs(str(self.out.divergence)))

    def _miss(self, lack: dict[str, Any]) -> None:
        """Stop where the record has no answer.

        Raises:
            RecordMiss: always.
        """
        called = call_text(lack["tool_name"], lack["arguments"]) if "tool_name" in lack else "a model"
        place = f"{lack['turn']}.{lack['iteration']}"
        raise RecordMiss(self._differs(f"{place}: {called} is asked, and has no answer: {lack['reason']}"))

    def _differs(self, how: str) -> str:
        return f"{self.recording.path.name} is not replayed as it was; if it is meant: pytest --record\n{how}"

    def _makers(self, then: Sent, now: Sent) -> list[dict[str, Any]]:
        """Who made each message now; for one that is gone, who removed it."""
        session: Any = self.agent.current_session
        try:
            history = self._history(list(session["trace"]))
        except Exception:  # a handler has changed the trace
            return []
        makers = [by for _, by in conversation_of(history)]
        at = first_difference(then.messages, now.messages)
        if at is not None and at == len(now.messages):
            gone = then.messages[at].get("content")
            removed = [line for line in history.removed if line.changes[0].message is not None]
            makers[at:] = [line.changes[-1].by for line in removed if line.message.get("content") == gone][-1:]
        return makers


def _of_program(turn: RecordedTurn) -> RecordedTurn:
    """What the program did between two turns, with the runs of its tools."""
    runs: list[Run] = list(runs_of(turn.before))
    return RecordedTurn(turn.number, [], {}, turn.before, runs=runs, end={"status": "between_turns"})


def _expected(turn: RecordedTurn) -> bool:
    """Whether the turn ended by Ctrl-C then, which a handler may raise again."""
    return str(turn.end.get("error") or "").startswith("KeyboardInterrupt")


def _outcome_text(result: Any, error: Any) -> str | None:
    """The result of a turn, or its error, as text."""
    if error is None:
        return None if result is None else str(result)
    return f"{type(error).__name__}: {describe(str, error)}" if isinstance(error, BaseException) else str(error)
