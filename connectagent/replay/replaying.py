"""Replay: the recorded answers of model and tools through today's handlers, offline.

The turns go through the agent's own loop; only its model and its tools' functions answer from the record.
What handlers decided then is not replayed: today's handlers decide.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from connectagent.agents.agent import Agent
from connectagent.agents.resume import is_record
from connectagent.data import TraceEntry
from connectagent.errors import Paused
from connectagent.output.rows import call_text, many
from connectagent.output.text import describe
from connectagent.records.sent import canonical
from connectagent.replay.compare import (
    Divergence,
    changed_calls,
    compared,
    diff,
    first_difference,
    new_errors,
)
from connectagent.replay.inside import InnerPlayer, turns_inside
from connectagent.replay.outcome import Replay
from connectagent.replay.player import Player, RecordEnds, RecordMiss
from connectagent.replay.playing import Playing, agent_from_record
from connectagent.replay.recording import RecordedTurn, Recording, Sent, conversation_of
from connectagent.session.history import History
from connectagent.session.moments import Moment
from connectagent.session.snapshot import clone


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
    return Replaying(recording, agent_from_record(recording) if agent is None else agent, live_tools).run()


class Replaying(Playing):
    """One record on its way through an agent.

    Args:
        recording: the record.
        agent: the agent; an agent of `agent_from_record` is offered the tools that the record's had.
        live_tools: whether its tools run.

    Attributes:
        out: what became of it so far.

    Raises:
        ConfigError: the conversation was handed over in it, and the agent is one of `agent_from_record`.
    """

    def __init__(self, recording: Recording, agent: Agent, live_tools: bool = False) -> None:
        self.is_strict, self.inside, self.live_tools = False, turns_inside(recording), live_tools
        super().__init__(recording, agent, lambda one: Player(one, live_tools))
        self.player.on_request = self._compare
        self._compared: dict[int, tuple[Moment[Any], Moment[Any]]] = {}  # of the request before, by the player
        self.last: tuple[str | None, BaseException | None] = (None, None)
        self.out = Replay(recording.path, agent, requests=self.player.requests, not_recorded=self.player.not_recorded)

    def run(self) -> Replay:
        """Play the whole record."""
        self.begin_session()
        for turn in self.recording.turns:
            self.before(turn)
            self._play(turn, lambda: self.input(turn))  # noqa: B023
        return self.out

    def by_turns(self) -> None:
        """Let each `input()` of the agent play the record's next turn, and return its result or raise its error.

        Where a model or a tool is asked something else than then, `input()` raises a `RecordMiss` at once.
        """
        turns = iter(self.recording.turns)
        self.is_strict = True
        for player in (self.player, *self.player.inside.values()):
            player.is_strict, player.on_lack = True, self._miss

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

    def _meet(self, agent: Agent, branch: str) -> None:
        """Let an agent inside the played one, and those below it, answer from the record too."""
        for one in (agent, *agent.below):
            if one is self.agent or id(one) in self.player.inside:
                continue
            place = f"{branch}{one.branch.removeprefix(agent.branch)}".partition(".")[2]
            player = InnerPlayer(one, self.inside.setdefault(place, {}), self.player, self.live_tools)
            player.on_request = self._compare
            if self.is_strict:
                player.is_strict, player.on_lack = True, self._miss
            self.player.inside[id(one)] = player

    # -- one turn ------------------------------------------------------------------------------

    def _play(self, turn: RecordedTurn, play: Callable[[], str]) -> None:
        """Play one turn, and note the differences."""
        self.player.begin(turn, self.made)
        self.last = result, error = self.outcome(turn, play)
        session: Any = self.agent.current_session
        entries = self.player.entries
        self._take_changes(turn, entries, isinstance(error, RecordEnds))
        for player in self.player.inside.values():
            self._end_inside(turn, player, isinstance(error, RecordEnds))
        iteration = int(session["iteration"]) if session else 0
        self.out.results.append(_outcome_text(result, error))
        then = _outcome_text(turn.end.get("result"), turn.end.get("error"))
        self.out.recorded_results.append(None if turn.is_cut else then)
        if isinstance(error, RecordEnds):
            self.out.ran_out = self.out.ran_out or f"{turn.number}.{iteration}"
        else:
            self._compare_ends(turn, iteration, result, error)

    def _take_changes(self, then: RecordedTurn, now: list[TraceEntry], ran_out: bool, agent: str = "") -> None:
        """Keep the calls and errors of handlers of one agent's turn that differ from then."""
        calls = list(changed_calls(then.number, then.entries, now, agent))
        if ran_out:  # whether these changed is not known
            calls = [call for call in calls if call.then not in (None, "interrupted", "skipped")]
        self.out.take(calls)
        self.out.hook_errors += new_errors(then.entries, now)

    def _end_inside(self, turn: RecordedTurn, player: InnerPlayer, ran_out: bool) -> None:
        """Keep the differences in the turns of an agent inside."""
        name, lacking = player.agent.name, []
        for then, entries, left in player.take_played():
            self._take_changes(then, entries, ran_out, name)
            lacking += [(then, left)] if left else []
        lacking += [(one, len(one.answers)) for one in player.missed(turn.number)]
        for then, count in lacking:
            if not (ran_out or turn.was_stopped or then.was_stopped):
                lines = [f"- the model was asked {many(count, 'time')} more", "+ the turn ends"]
                at = then.sent[-1].iteration
                self.out.diverged(Divergence(then.number, at, "calls", lines, agent=name))

    def _compare_ends(self, turn: RecordedTurn, iteration: int, result: object, error: BaseException | None) -> None:
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

    def _history(self, agent: Agent, entries: list[TraceEntry]) -> History:
        """The conversation of an agent by its session's trace."""
        first = (self.recording.head.get("begins_with") or {}) if agent is self.agent else {}
        messages, state = (clone(first.get(key)) for key in ("messages", "state"))
        history = History(agent.system_prompt, messages, state, 0, agent.prompted.changes)
        history.turn = int(first.get("turn") or 0)
        history.extend(entries, closed=False)
        return history

    # -- one request ---------------------------------------------------------------------------

    def _compare(self, player: Player, now: Sent) -> None:
        turn, number = player.turn, player.asked - 1
        name = "" if player is self.player else player.agent.name
        if turn is None or self.out.divergence is not None:
            return
        if number < len(turn.sent):
            then = turn.sent[number]
            now.agreed = self._agreed(player, then, now)
            divergence = compared(then, now)
            if divergence is not None and divergence.what == "messages":
                makers = self._makers(player.agent, then, now)
                at = first_difference(then.messages, now.messages)
                divergence.now_by = makers[at] if at is not None and at < len(makers) else {}
            if divergence is not None:
                divergence.agent = name
                self.out.diverged(divergence)
        elif not turn.was_stopped:
            lines = ["- the turn ended", "+ the model is asked once more"]
            self.out.diverged(Divergence(now.turn, now.iteration, "calls", lines, agent=name))
        if self.is_strict and self.out.divergence is not None:
            raise RecordMiss(self._differs(str(self.out.divergence)))

    def _agreed(self, player: Player, then: Sent, now: Sent) -> int:
        """How many messages from the start were compared in the request before, and are the same since."""
        if then.own is not None or now.own is not None:
            return 0
        before = self._compared.get(id(player))
        self._compared[id(player)] = then.moment, now.moment
        return 0 if before is None else min(then.moment.kept_of(before[0]), now.moment.kept_of(before[1]))

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

    def _makers(self, agent: Agent, then: Sent, now: Sent) -> list[dict[str, Any]]:
        """Who made each message now; for one that is gone, who removed it."""
        session: Any = agent.current_session
        try:
            history = self._history(agent, list(session["trace"]))
        except Exception:  # a handler has changed the trace
            return []
        makers = [by for _, by in conversation_of(history)]
        at = first_difference(then.messages, now.messages)
        if at is not None and at == len(now.messages):
            gone = then.messages[at].get("content")
            removed = [line for line in history.removed if line.changes[0].message is not None]
            makers[at:] = [line.changes[-1].by for line in removed if line.message.get("content") == gone][-1:]
        return makers


def _outcome_text(result: object, error: object) -> str | None:
    """The result of a turn, or its error, as text."""
    if error is None:
        return None if result is None else str(result)
    return f"{type(error).__name__}: {describe(str, error)}" if isinstance(error, BaseException) else str(error)
