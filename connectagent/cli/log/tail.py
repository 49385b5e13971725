"""`connectagent log tail`: the end of a session, and with `-f` new entries."""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from connectagent.cli.group import stdout_is_gone
from connectagent.cli.log.inside import agent_of, turns_of
from connectagent.commands.tables import cost_text, number_of, record_argument, rows, terminal, tokens_text
from connectagent.output.rows import Row, duration
from connectagent.output.text import visible
from connectagent.records.find import all_records, find_record
from connectagent.records.follow import Follower, follow
from connectagent.session.journal import LINES, TURN_ENDED

_INDENT, _DEEPEST = 2, 6  # cells for each agent around, of so many


@click.command("tail", short_help="The end of a session; with -f, new entries.")
@record_argument
@click.option("-n", "number", default=10, show_default=True, metavar="N", help="How many entries; 0 for all.")
@click.option("-f", "--follow", "following", is_flag=True, help="Print new entries until Ctrl-C.")
def command(record: str | None, number: int, following: bool) -> None:
    """Print the last entries of a session, with those of agents inside.

    With -f and without RECORD, follow the newest session, and each later one as soon as it begins.
    """
    fixed = find_record(record) if record not in (None, "last") or not following else None
    if not following:
        assert fixed is not None
        for entry in deque(_shown(fixed), max(0, number) or None):
            _show(entry)
        return

    def newest() -> Path | None:
        return fixed or next(iter(all_records()), None)

    first = newest()
    skip = _skipped(first, number)
    at = first
    for path, entry in follow(newest, wait=_wait, whole=True):
        _end_without_reader()
        if not _is_shown(entry):
            continue
        if path != at or (first is None and at is None):
            at = path
            click.secho(visible(f"== {path.name}"), dim=True)
        if path == first and skip > 0:
            skip -= 1
        else:
            _show(entry)


def _wait(seconds: float) -> None:
    _end_without_reader()
    time.sleep(seconds)


def _end_without_reader() -> None:
    """End when the output has no reader any more, as in `| head -1`."""
    if hasattr(select, "poll") and stdout_is_gone():
        raise SystemExit(0)


def _skipped(path: Path | None, number: int) -> int:
    """How many entries come before the last ones of a record."""
    if path is None:
        return 0
    try:
        return max(0, sum(1 for _ in _shown(path)) - number) if number else 0
    except OSError:
        return 0


def _shown(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a record so far, those of agents inside too."""
    return filter(_is_shown, Follower(path, whole=True).entries())


def _is_shown(entry: dict[str, Any]) -> bool:
    """Whether an entry has rows; what an agent inside came to is its tool's result."""
    return entry.get("type") not in (*LINES, "agent_turn") or _is_end(entry)


def _is_end(entry: dict[str, Any]) -> bool:
    """Whether an entry is the summary of the session's own turn; that of an agent inside has a place."""
    return entry.get("type") == TURN_ENDED and "id" not in entry


def _show(entry: dict[str, Any]) -> None:
    made, depth, out = _ended(entry) if _is_end(entry) else rows(entry), len(turns_of(entry)), terminal()
    for row in made if depth else ():
        row.indent += _INDENT * min(depth, _DEEPEST)
    if made and depth:
        made[0].parts = ((f"{visible(agent_of(entry, '')[1], 60)} ", "magenta"), *made[0].parts)
    if made:
        out.show(made)
    if out.is_gone:
        raise SystemExit(0)


def _ended(turn: dict[str, Any]) -> list[Row]:
    status = str(turn.get("status"))
    style = "red" if status in ("error", "interrupted", "cancelled") else "green"
    used = number_of(turn.get("tokens"))
    right = [duration(number_of(turn.get("duration_ms")) or 0), f"{tokens_text(int(used) if used else None)} tok"]
    text = turn.get("error") or turn.get("result") or ""
    cost = cost_text(number_of(turn.get("cost")), number_of(turn.get("known_cost")))
    head = Row(2, ((status, style),), "  ".join([*right, cost]), stack=True)
    return [head, Row(4, ((visible(text), ""),), wrap=True)]
