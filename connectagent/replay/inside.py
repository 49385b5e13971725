"""The agents inside the one that is played: their recorded turns, and what answers in them."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

from connectagent.agents.agent import Agent
from connectagent.data import TraceEntry
from connectagent.records.history import inside_begun, parts_of, turn_of, void_entries
from connectagent.records.read import own_entries, refuse_odd
from connectagent.records.sent import SentSoFar, canonical
from connectagent.replay.player import Player
from connectagent.replay.recording import RecordedTurn, Recording, Watched, asks_in, sends_in, sent_of
from connectagent.replay.runs import ended_bodies, runs_of
from connectagent.session.journal import ABANDONED, BEGAN, WITHHELD

Turns = dict[str, RecordedTurn]
_OF_TOOL = re.compile(r"/tool\d+/turn:")  # in an id: a tool asked for the turn, and tools do not run


def turns_inside(recording: Recording) -> dict[str, Turns]:
    """The recorded turns of the agents inside: by the agent's branch below the record's agent, and by id.

    Agents whose texts are not recorded, and turns that were abandoned, are left out.

    Raises:
        ConfigError: the record has values that no record has.
    """
    with refuse_odd(recording.path):
        return _turns_inside(recording)


def _turns_inside(recording: Recording) -> dict[str, Turns]:
    parts = parts_of({"turns": recording.items})
    void = {number for part in parts for number in void_entries(part)}
    lines = [line for part in parts for line in part.lines if not line.get(WITHHELD) and id(line) not in void]
    ends = {str(line.get("id")): line for line in lines if line.get("type") == "agent_turn"}
    names = {line.get("branch"): line.get("agent") for line in lines if line.get("type") == BEGAN and "agent" in line}
    found, bodies = {}, ended_bodies(lines)
    for branch, history in inside_begun(lines, (), Watched):
        turns = _turns(own_entries(lines, names[branch], branch), history, ends, bodies)
        found[branch.partition(".")[2]] = {
            id: turn for id, turn in turns.items() if ends.get(id, {}).get("outcome") != ABANDONED
        }
    return found


def _turns(
    entries: list[TraceEntry], history: Watched, ends: dict[str, TraceEntry], bodies: dict[str, list[TraceEntry]]
) -> Turns:
    """The turns of one agent, from all its entries."""
    sends = sends_in(entries)
    history.marks = set(sends.values())
    for id, group in groupby(entries, turn_of):
        history.extend(list(group), closed=id in ends)
    turns: Turns = {}
    given = SentSoFar()
    for at, entry in enumerate(entries):
        if not (id := turn_of(entry)):
            continue
        turn = turns.setdefault(id, RecordedTurn(0, [], {}, end=_end(ends.get(id, {}))))
        turn.entries.append(entry)
        if entry.get("type") == "user_input":
            turn.input, turn.number = entry, int(entry.get("turn") or 0)
        if at in sends:
            given.take(entry)
            turn.answers.append(entry)
            turn.sent.append(sent_of(turn, history.seen[sends[at]], at - sends[at], given, None))
    for id, turn in turns.items():
        turn.runs, turn.asks = runs_of(turn.entries, bodies.get(id, ())), asks_in(turn.entries)
    return turns


def _end(line: TraceEntry) -> dict[str, Any]:
    return {"status": line["outcome"], "result": line.get("result"), "outward": line.get("outward")} if line else {}


class InnerPlayer(Player):
    """Stands in for the model and tools of an agent inside the one that is played.

    Args:
        agent: the agent; it is changed.
        recorded: the turns of its branch, which are taken out when they are played.
        outer: the player of the record's agent.
        live_tools: whether its tools run.

    Attributes:
        played: the turns that it took since the last `take_played()`: the recorded one, today's entries, and how many
            answers were not used.
    """

    def __init__(self, agent: Agent, recorded: Turns, outer: Player, live_tools: bool) -> None:
        super().__init__(agent, live_tools, outer.inside)
        self.requests, self.not_recorded, self.raised = outer.requests, outer.not_recorded, outer.raised
        self.played: list[tuple[RecordedTurn, list[TraceEntry], int]] = []
        self._recorded, self._outer = recorded, outer
        self._id, self._expected = "", ""

    def expects(self, place: str, prompt: str, is_known: bool) -> bool:
        """Whether the record has a turn for this prompt, the one at this place if it can be.

        Args:
            place: where the agent is asked.
            prompt: what it is asked.
            is_known: whether the record has what came of the call that asks.
        """
        if self._id.startswith(f"{place}/turn:"):  # it goes on
            return True
        same = [id for id, turn in self.open_in(place).items() if _prompt(turn) == canonical(prompt)]
        self._expected = next((id for id in same if id.startswith(f"{place}/turn:")), same[0] if same else "")
        return bool(self._expected) and not (is_known and self._recorded[self._expected].was_stopped)

    def open_in(self, place: str) -> Turns:
        """The turns inside the root turn of a place that were not played yet."""
        root = f"{place.partition('/')[0]}/"
        return {id: turn for id, turn in self._recorded.items() if id.startswith(root)}

    def missed(self, turn: int) -> list[RecordedTurn]:
        """The turns with answers inside a root turn that were not played, though no recorded tool asked for them."""
        left = self.open_in(f"T{turn}").items()
        return [one for id, one in left if one.answers and not _OF_TOOL.search(id)]

    def take_played(self) -> list[tuple[RecordedTurn, list[TraceEntry], int]]:
        """The turns that were played, which are forgotten."""
        self._keep()
        played, self.played, self.turn, self._id = self.played, [], None, ""
        return played

    def begin(self, turn: RecordedTurn, offered: bool = False) -> None:
        self._keep()
        super().begin(turn, offered)

    def _keep(self) -> None:
        if self.turn is not None:
            self.played.append((self.turn, self.entries, len(self.left)))

    def _note_entry(self, entry: TraceEntry) -> None:
        self._follow()
        super()._note_entry(entry)

    def _follow(self) -> None:
        """Take the answers of the recorded turn that the agent's turn is."""
        turn = self.agent.turn
        if turn is None or turn.id == self._id:
            return
        self._id = turn.id
        near = next(iter(self.open_in(turn.id)), "")
        found = next((id for id in (self._expected, turn.id, near) if id in self._recorded), None)
        self._expected = ""
        stopped = self._outer.turn is None or self._outer.turn.was_stopped
        missing = RecordedTurn(0, [], {}, end={} if stopped else {"status": "answered"})
        self.begin(missing if found is None else self._recorded.pop(found))


def _prompt(turn: RecordedTurn) -> str:
    return canonical(turn.input.get("content", turn.input.get("prompt")))
