"""`connectagent log list`: one line for each session, from its record's head and tail."""

from __future__ import annotations

from itertools import islice

import click

from connectagent.commands.tables import (
    Column,
    agent_option,
    cost_text,
    each,
    echo_json,
    json_option,
    local_time,
    show_table,
    terminal,
    tokens_text,
)
from connectagent.records.find import all_records
from connectagent.records.summary import Summary, summarise

_STYLES = {"error": "red", "crashed": "red"}
_STYLES |= dict.fromkeys(("interrupted", "cancelled", "max_iterations", "truncated", "refused"), "yellow")
_STYLES |= {"running": "cyan", "paused": "cyan"}


@click.command("list", short_help="One line for each session, the newest first.")
@click.option("--limit", default=20, show_default=True, metavar="N", help="The most to list; 0 for all.")
@click.option("--status", metavar="STATUS", help="Only sessions whose last turn is: answered, error, crashed, ...")
@agent_option
@json_option
def command(limit: int, status: str | None, agent: str | None, as_json: bool) -> None:
    """Print one line for each session, the newest first.

    The column id has the beginning of the session's id, which other commands take as RECORD. The column turns is
    turns/iterations; sums are of finished turns; ? is unknown. The status is the last turn's: answered, truncated,
    refused, ended, max_iterations, error, interrupted, cancelled, paused, running, crashed (it did not end, and no
    process is writing the record), unfinished (another host began it, so nobody here can tell), or
    not recorded from a turn on (as on a full disk).
    """
    known = (summary for _, summary in each(summarise, agent))
    found = (one for one in known if status is None or one.status == status or one.status.startswith(f"{status} from"))
    listed = list(islice(found, limit or None))
    if as_json:
        echo_json([summary.data() for summary in listed])
        return
    if listed:
        _show(listed)
    elif all_records():
        click.echo("no record is like that", err=True)
    if limit and len(listed) == limit and len(all_records()) > limit:
        click.echo(f"the newest {limit}; all of them: --limit 0", err=True)


def _show(summaries: list[Summary]) -> None:
    narrow = terminal().width < 110
    columns = [
        Column("started"),
        Column("id", 6),
        Column("agent", 12 if narrow else 30),
        Column("model", 11 if narrow else 30),
        Column("status", 11 if narrow else 26),
        *(Column(name, right=True) for name in ("turns", "tools", "tok", "cost")),
        Column("first words"),
    ]
    show_table(columns, [_cells(summary) for summary in summaries], lambda cells: _STYLES.get(cells[4], ""))


def _cells(summary: Summary) -> list[str]:
    sums = summary.totals
    return [
        local_time(summary.started, "%m-%d %H:%M"),
        (summary.id or "?")[:6],
        summary.agent,
        str(summary.model or "?").rpartition("/")[2],
        summary.status,
        f"{'?' if summary.turns is None else summary.turns}/{sums.iterations if sums else '?'}",
        str(sums.tools if sums else "?"),
        tokens_text(sums.tokens if sums else None),
        cost_text(sums.cost, sums.known_cost) if sums else cost_text(None),
        summary.first_words,
    ]
