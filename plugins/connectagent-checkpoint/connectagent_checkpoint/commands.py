"""`connectagent checkpoint list`, `diff` and `restore`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import click

from connectagent_checkpoint.store import CheckpointError, Store


def group(store: Callable[[], Store]) -> click.Group:
    """The commands about the current folder.

    Args:
        store: makes its store.
    """

    @click.group()
    @click.pass_context
    def checkpoint(context: click.Context) -> None:
        """Snapshots of the current folder, taken before tools wrote."""
        context.obj = store()

    for command in (show, diff, restore):
        checkpoint.add_command(command)
    return checkpoint


@click.command("list")
@click.pass_obj
def show(store: Store) -> None:
    """List all snapshots, the oldest first."""
    found = store.snapshots()
    for one in found:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.time))
        click.echo(f"{one.commit[:12]}  {when}  {one.label}")
    if not found:
        click.echo("no snapshots of this folder yet", err=True)


@click.command()
@click.argument("snapshot", default="last")
@click.pass_obj
def diff(store: Store, snapshot: str) -> None:
    """Show what has changed since a SNAPSHOT: the beginning of its id, or `last`."""
    _tell(lambda: store.diff(snapshot, color=sys.stdout.isatty()))


@click.command()
@click.argument("snapshot")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def restore(store: Store, snapshot: str, yes: bool) -> None:
    """Put the folder back to a SNAPSHOT: the beginning of its id, or `last`.

    A snapshot is taken before. Ignored and large files stay as they are.
    """
    if not yes:
        click.confirm(f"Put {store.folder} back to snapshot {snapshot}?", abort=True)
    _tell(lambda: f"restored; as it was before: connectagent checkpoint restore {store.restore(snapshot)[:12]}")


def _tell(work: Callable[[], str]) -> None:
    """Print a text; an error of the store is wrong usage.

    Raises:
        click.UsageError: with the error's text.
    """
    try:
        text = work()
    except CheckpointError as error:
        raise click.UsageError(str(error)) from error
    if text:
        click.echo(text)
