"""What became of a record that was played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from connectagent.agents.agent import Agent
from connectagent.data import TraceEntry
from connectagent.replay.compare import Call, Divergence
from connectagent.replay.requests import Request


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
    requests: Sequence[Request] = field(default_factory=list)
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
