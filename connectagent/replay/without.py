"""What each model call of a record would have been sent by another agent, as far as replay can tell."""

from __future__ import annotations

from typing import Any

from connectagent.agents.agent import Agent
from connectagent.data import TraceEntry
from connectagent.replay.player import Player
from connectagent.replay.recording import Recording, Sent
from connectagent.replay.replaying import Replaying

Key = tuple[str, Any]


def key_of(entry: TraceEntry) -> Key:
    """What tells an `llm_call` from others: its place, and when it was."""
    return str(entry.get("id")), entry.get("timestamp")


class Resent(Replaying):
    """Plays a record, and keeps what each of its model calls is sent now.

    Attributes:
        sent: by the key of the recorded call: its messages, its tools, and how it asks for a structured answer.
        until: `TURN.ITERATION` from which replay cannot tell, and why; None where it can tell all.
    """

    def __init__(self, recording: Recording, agent: Agent) -> None:
        self.sent: dict[Key, tuple[list[Any], list[Any], Any]] = {}
        self._places: dict[Key, tuple[int, int]] = {}
        super().__init__(recording, agent)

    @property
    def until(self) -> str | None:
        cut = self._cut()
        return None if cut is None else f"{cut[0]}.{cut[1]}: {cut[2]}"

    def play(self) -> None:
        """Play the record, and forget what was sent after the point from which replay cannot tell."""
        self.run()
        if (cut := self._cut()) is not None:
            self.sent = {key: one for key, one in self.sent.items() if self._places[key] <= cut[:2]}

    def _compare(self, player: Player, now: Sent) -> None:
        super()._compare(player, now)
        turn, number = player.turn, player.asked - 1
        if turn is None or number >= len(turn.answers) or self.out.not_recorded:
            return
        key = key_of(turn.answers[number])
        asked = turn.sent[number].output  # where it was asked in words, it would be now
        output = {**asked, **now.output} if now.output and asked else asked or now.output
        self.sent[key] = now.messages, player.requests[-1][1], output
        session: Any = self.agent.current_session or {}
        self._places[key] = int(session.get("turn") or 0), int(session.get("iteration") or 0)

    def _cut(self) -> tuple[int, int, str] | None:
        """The first place at which something came of a call that the record cannot tell the rest of."""
        out = self.out
        cuts = [(int(one["turn"] or 0), int(one["iteration"] or 0), str(one["reason"])) for one in out.not_recorded]
        for call in (*out.rejected, *out.stand_ins, *out.errors, *out.changed):
            what = f"the call of {call.name} would be {call.now}, and was {call.then}"
            cuts.append((call.turn, 0 if call.agent else call.iteration, what))
        if out.divergence is not None and out.divergence.what == "calls":
            cuts.append((out.divergence.turn, out.divergence.iteration, "the model would be asked more or less often"))
        if out.ran_out is not None:
            turn, _, iteration = out.ran_out.partition(".")
            cuts.append((int(turn), int(iteration.split()[0]), "the record has no more answers of the model"))
        return min(cuts, default=None)
