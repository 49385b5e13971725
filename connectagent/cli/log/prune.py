"""`connectagent log prune`: remove the oldest records, and the blobs that only they refer to."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from pathlib import Path

import click

from connectagent.cli.log.reading import each
from connectagent.errors import ConfigError
from connectagent.output.rows import visible
from connectagent.records.find import all_records, records_folder
from connectagent.records.locks import lock
from connectagent.records.summary import Summary, summarise

_NEVER = ("running", "paused")
_HASH = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def _seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """A time span as `30d`, in seconds."""
    found = re.fullmatch(r"(\d{1,6})([mhdw])", value or "", re.ASCII)
    if value is not None and found is None:
        raise click.BadParameter(f"{value!r} is no age: write a number and m, h, d or w, as 30d", context, parameter)
    return float(int(found[1]) * _UNITS[found[2]]) if found else None


@click.command("prune", short_help="Remove the oldest records.")
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="Keep the newest N.")
@click.option("--older-than", callback=_seconds, metavar="AGE", help="Only those not written to for 30d, 12h, ...")
@click.option("--dry-run", is_flag=True, help="Only tell what would be removed.")
def command(keep: int | None, older_than: float | None, dry_run: bool) -> None:
    """Remove the oldest records, and the blobs that no other record refers to.

    A session that is running or paused is never removed, nor is a file that cannot be read as a record.
    """
    if keep is None and older_than is None:
        raise click.UsageError("say what to keep: --keep N, --older-than AGE, or both", click.get_current_context())
    chosen = _chosen(keep or 0, time.time() - (older_than or 0))
    blobs = records_folder().parent / "blobs"
    found = blob_references(summary.path for summary in chosen) if blobs.is_dir() else set()
    removed = [summary for summary in chosen if dry_run or _remove(summary)]
    orphans = _orphans(found, removed, blobs)
    if not dry_run:
        for blob in orphans:
            blob.unlink(missing_ok=True)
    _tell("would remove" if dry_run else "removed", removed, len(orphans))


def _chosen(keep: int, before: float) -> list[Summary]:
    """The records behind the newest `keep` that were not written to since `before`, and that may be removed."""
    return [
        summary
        for number, (path, summary) in enumerate(each(summarise))
        if number >= keep and summary.status not in _NEVER and path.stat().st_mtime <= before
    ]


def _orphans(found: set[str], removed: list[Summary], blobs: Path) -> list[Path]:
    """The blobs of these names that no record refers to which stays."""
    names = sorted(found - _still_used(removed)) if found else []
    return [blobs / name for name in names if (blobs / name).is_file()]


def _tell(did: str, removed: list[Summary], orphans: int) -> None:
    for summary in removed:
        click.echo(f"{did} {visible(summary.path.name)} ({summary.size} bytes)")
    size = sum(summary.size for summary in removed)
    what = f"{len(removed)} record{'' if len(removed) == 1 else 's'}, {size} bytes"
    click.echo(f"{did} {what}" + (f", {orphans} blobs" if orphans else ""))


def blob_references(paths: Iterable[Path]) -> set[str]:
    """The SHA-256 hashes that records mention: each may be the name of a blob.

    Raises:
        OSError: a record cannot be read.
    """
    return {found.decode() for path in paths for found in _HASH.findall(path.read_bytes())}


def _still_used(removed: list[Summary]) -> set[str]:
    gone = {summary.path for summary in removed}
    try:
        return blob_references(path for path in all_records() if path not in gone)
    except OSError as error:
        raise ConfigError(f"the blobs stay: a record that may refer to them cannot be read: {error}") from error


def _remove(summary: Summary) -> bool:
    """Remove a record, unless a turn has begun in it meanwhile."""
    try:
        with summary.path.open("rb") as file:
            if summarise(summary.path).status in _NEVER or lock(file.fileno()) is False:
                return False
            summary.path.unlink()
    except (OSError, ConfigError) as error:
        click.echo(f"cannot remove {visible(summary.path.name)}: {visible(error, 200)}", err=True)
        return False
    return True
