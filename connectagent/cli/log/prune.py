"""`connectagent log prune`: removes the oldest records, and the blobs that only they refer to."""

from __future__ import annotations

import re
import time
from pathlib import Path

import click

from connectagent.commands.tables import each
from connectagent.commands.usage import WholeNumber
from connectagent.errors import ConfigError
from connectagent.output.text import visible
from connectagent.records.find import records_folder
from connectagent.records.locks import is_running
from connectagent.records.retention import is_paused, remove
from connectagent.records.summary import summarise

_NEVER = ("running", "paused")
_UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def _seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """A time span such as `30d`, in seconds."""
    found = re.fullmatch(r"(\d{1,6})([mhdw])", value or "", re.ASCII)
    if value is not None and found is None:
        raise click.BadParameter(f"{value!r} is no age: write a number and m, h, d or w, as 30d", context, parameter)
    return float(int(found[1]) * _UNITS[found[2]]) if found else None


@click.command("prune", short_help="Remove the oldest records.")
@click.option("--keep", type=WholeNumber(min=0), metavar="N", help="Keep the newest N.")
@click.option("--older-than", callback=_seconds, metavar="AGE", help="Only those not written to for 30d, 12h, ...")
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
def command(keep: int | None, older_than: float | None, dry_run: bool) -> None:
    """Remove the oldest records, and the blobs that no other record refers to.

    A session that is running or paused is never removed, nor is a file that cannot be read as a record. One with a key
    is removed like others, and begins anew then.

    Exit code: 1 where a record may not be removed.
    """
    if keep is None and older_than is None:
        raise click.UsageError("say what to keep: --keep N, --older-than AGE, or both", click.get_current_context())
    chosen = _chosen(keep or 0, older_than or 0)
    removed, blobs = remove(records_folder(), chosen, dry_run=dry_run) if chosen else ([], 0)
    stuck = [path for path in chosen if path not in removed and not _is_used(path)]
    _tell(chosen, removed, stuck, dry_run)
    size = sum(chosen[path] for path in removed)
    what = f"{len(removed)} record{'' if len(removed) == 1 else 's'}, {size} bytes"
    click.echo(f"{'would remove' if dry_run else 'removed'} {what}" + (f", {blobs} blobs" if blobs else ""))
    if stuck:
        raise click.exceptions.Exit(1)


def _tell(chosen: dict[Path, int], removed: list[Path], stuck: list[Path], dry_run: bool) -> None:
    for path in chosen:
        if path in removed:
            click.echo(f"{'would remove' if dry_run else 'removed'} {visible(path.name)} ({chosen[path]} bytes)")
        else:
            why = "it may not be removed" if path in stuck else "it is being written to"
            click.echo(f"{visible(path.name)} stays: {why}", err=True)


def _is_used(path: Path) -> bool:
    """Whether a record is paused, written to, or gone already."""
    try:
        return is_paused(path) or is_running(path)
    except FileNotFoundError:
        return True
    except (OSError, ConfigError):
        return False


def _chosen(keep: int, older_than: float) -> dict[Path, int]:
    """The records that may go, with their sizes."""
    before = time.time() - older_than
    return {
        path: summary.size
        for number, (path, summary) in enumerate(each(summarise))
        if number >= keep and summary.status not in _NEVER and path.stat().st_mtime <= before
    }
