"""`connectagent log summary`: what failed and why, where the time went, and what it cost, with the agents inside."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from connectagent.cli.log.inside import agent_of
from connectagent.cli.summary import Summary
from connectagent.commands.tables import record_argument, terminal
from connectagent.commands.usage import WholeNumber
from connectagent.output.rows import Row
from connectagent.output.text import visible
from connectagent.records.find import find_record
from connectagent.records.findings import findings_of
from connectagent.records.read import each_line, refuse_odd
from connectagent.records.summary import summarise

CRASHED = "unfinished", "crashed"
_MODEL = re.compile(r"/(\d+)/model\d+\Z")  # how the place of a model call ends, with its iteration


@click.command("summary", short_help="What failed and why, what took long, and what it cost.")
@record_argument
@click.option("-n", "most", type=WholeNumber(min=0), default=10, metavar="N", help="The N slowest calls; 0: all. [10]")
def command(record: str | None, most: int) -> None:
    """Print what failed and where, the slowest calls, and the cost by agent and plugin; agents inside count."""
    path = find_record(record)
    with refuse_odd(path):
        shown = terminal()
        rows = _summary(path, most).rows(shown, 1)
        for one in findings_of(path):
            rows.append(Row(0, ((visible(f"bisect: {one['symptom']}", 300), "bold"),), wrap=True))
            rows += [Row(2, ((visible(line, 600), ""),), wrap=True) for line in one["said"][:40]]
        shown.show(rows or [Row(0, (("nothing failed, and nothing was called", ""),))])


def _summary(path: Path, most: int) -> Summary:
    summary, turns = Summary(most), 0
    record: dict[str, Any] = {}
    running: dict[Any, dict[str, Any]] = {}  # what has begun in the newest turn, and has not ended
    for record, line in each_line(path):
        if len(record["turns"]) > turns:
            turns = len(record["turns"])
            running.clear()
        if line.get("type") == "began":
            if "tool_name" in line or _MODEL.search(str(line["id"])):
                running[line["id"]] = line
        else:
            running.pop(line.get("id"), None)
        if line.get("type") is not None:
            summary.add(*agent_of(line, str(record.get("agent"))), line)
    if running and summarise(path).status in CRASHED:
        for id, line in running.items():
            who, name = agent_of(line, str(record.get("agent")))
            summary.calls[who, id] = name, _crashed(line)
    return summary


def _crashed(line: dict[str, Any]) -> dict[str, Any]:
    """A call that was running when the process ended, as the summary has its calls."""
    call = {"status": "error", "error_type": "crashed", "error": "it was running when the process ended"}
    if "tool_name" in line:
        return {**line, **call, "type": "tool_execution"}
    found = _MODEL.search(str(line["id"]))
    return {**call, "type": "llm_call", "model": "the model call", "iteration": found and found[1]}
