"""`connectagent log stats`: sums of all sessions, by agent, model and tool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from connectagent.cli.log.inside import Inside
from connectagent.commands.tables import (
    Column,
    agent_option,
    cost_text,
    each,
    echo_json,
    json_option,
    number_of,
    show_table,
    tokens_text,
)
from connectagent.output.rows import FAILED, duration
from connectagent.records.amended import with_retries
from connectagent.records.file import BETWEEN_TURNS
from connectagent.records.history import joined_turns
from connectagent.records.read import read_record
from connectagent.records.summary import summarise
from connectagent.session.usage import Spent, spent_in


@dataclass(slots=True)
class _Sums:
    """The sums of one agent, model or tool."""

    sessions: int = 0
    count: int = 0
    failed: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    spent: Spent = field(default_factory=Spent)
    times_ms: list[float] = field(default_factory=list)

    def took(self, ms: object) -> None:
        ms = number_of(ms)
        if ms is not None:
            self.times_ms.append(ms)

    def percentile(self, part: float) -> float | None:
        """A percentile of the times, in ms."""
        times = sorted(self.times_ms)
        return times[max(0, -int(-part * len(times) // 1) - 1)] if times else None

    def data(self, counted: str) -> dict[str, Any]:
        times = {"median_ms": self.percentile(0.5), "p95_ms": self.percentile(0.95)}
        sums = {counted: self.count, "failed": self.failed, "statuses": dict(self.statuses)}
        spent = {"tokens": self.spent.tokens, "cost": self.spent.cost, "known_cost": self.spent.known_cost}
        return {"sessions": self.sessions, **sums, **spent, **times}


@click.command("stats", short_help="Sums of all sessions by agent, model and tool.")
@agent_option
@json_option
def command(agent: str | None, as_json: bool) -> None:
    """Print sums of all sessions: turns of each agent, and calls of each model and tool, by agents inside too.

    Times are the median and the 95th percentile: of a turn for agents, of a call for models and tools. ? is unknown.
    """
    agents: dict[str, _Sums] = {}
    models: dict[str, _Sums] = {}
    tools: dict[str, _Sums] = {}
    for _, (record, running) in each(_countable, agent):
        _count(record, running, agents, models, tools)
    groups = (("agent", "turns", agents), ("model", "calls", models), ("tool", "calls", tools))
    if as_json:
        echo_json({f"{name}s": {key: one.data(counted) for key, one in sums.items()} for name, counted, sums in groups})
        return
    groups_met = [group for group in groups if group[2]]
    for number, (name, counted, sums) in enumerate(groups_met):
        if number:
            click.echo()
        _show(name, counted, sums)


def _countable(path: Path) -> tuple[dict[str, Any], bool]:
    """A record, and whether its last turn is running; one that cannot be counted fails before any of it is."""
    record = read_record(path, conversation=False)
    running = bool(record["turns"]) and "status" not in record["turns"][-1] and summarise(path).status == "running"
    _count(record, running, {}, {}, {})
    return record, running


def _count(
    record: dict[str, Any],
    running: bool,
    agents: dict[str, _Sums],
    models: dict[str, _Sums],
    tools: dict[str, _Sums],
) -> None:
    if "agent" not in record:  # killed before its head was written
        return
    own = agents.setdefault(str(record["agent"]), _Sums())
    own.sessions += 1
    spent_in((line for item in record["turns"] for line in item["lines"]), running, own.spent)
    met: dict[int, _Sums] = {}
    for turn in joined_turns(record):
        status = str(turn.get("status") or "unfinished")
        if status != BETWEEN_TURNS:
            own.count += 1
            own.statuses[status] += 1
            own.failed += status in ("error", "unfinished")
            own.took(turn.get("duration_ms"))
        calls = [line for line in turn["lines"] if line.get("type") == "llm_call"]  # of inner agents too
        for entry in [*calls, *_tools_in(turn)]:
            sums = _count_entry(entry, models, tools)
            met[id(sums)] = sums
    for sums in met.values():
        sums.sessions += 1


def _tools_in(turn: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The tool calls of a turn and of the agents inside, each with what came of it in the end."""
    for entries in (turn["trace"], *Inside(turn["lines"]).turns()):
        yield from (entry for entry in with_retries(entries) if entry.get("type") == "tool_execution")


def _count_entry(entry: dict[str, Any], models: dict[str, _Sums], tools: dict[str, _Sums]) -> _Sums:
    status = str(entry.get("status"))
    if entry.get("type") == "llm_call":
        sums = models.setdefault(str(entry.get("model")), _Sums())
        spent_in([entry], spent=sums.spent)
        sums.took(entry.get("duration_ms") if status in ("success", "error") else None)
        sums.failed += status in ("error", "recovered")
    else:
        sums = tools.setdefault(str(entry.get("tool_name")), _Sums())
        sums.took(entry.get("timing") if status in ("success", "error") else None)
        sums.failed += status in FAILED
    sums.count += 1
    sums.statuses[status] += 1
    return sums


def _show(name: str, counted: str, all_sums: dict[str, _Sums]) -> None:
    spends = name != "tool"
    columns = [Column(name, 24), *(Column(head, right=True) for head in ("sessions", counted, "failed"))]
    columns += [Column(head, right=True) for head in (("tok", "cost") if spends else ())]
    columns += [Column("median", right=True), Column("p95", right=True), Column("statuses")]
    cells = []
    for key, sums in sorted(all_sums.items(), key=lambda item: -item[1].count):
        times = ["" if ms is None else duration(ms) for ms in (sums.percentile(0.5), sums.percentile(0.95))]
        spent = [tokens_text(sums.spent.tokens), cost_text(sums.spent.cost, sums.spent.known_cost)] if spends else []
        statuses = ", ".join(f"{status} {count}" for status, count in sums.statuses.most_common())
        cells.append([key, str(sums.sessions), str(sums.count), str(sums.failed), *spent, *times, statuses])
    show_table(columns, cells)
