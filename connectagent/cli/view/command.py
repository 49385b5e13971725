"""`connectagent view`: sessions as a page in the browser, while they run."""

from __future__ import annotations

import os
import sys

import click

from connectagent.output.text import visible
from connectagent.records.find import find_record


@click.command(short_help="Sessions as a page in the browser, while they run.")
@click.argument("record", required=False, metavar="[RECORD]")
@click.option("--port", default=0, type=click.IntRange(0, 65535), metavar="N", help="The port; else a free one.")
@click.option("--open/--no-open", "opened", default=None, help="A browser too; else only at a desktop's terminal.")
def view(record: str | None, port: int, opened: bool | None) -> None:
    """Serve a page with the sessions, to this machine alone, until Ctrl-C.

    It opens with RECORD: a path, the name of a file in .co/evals or the beginning of one, an agent's name for its
    newest record, or `last`. What an agent writes appears while it runs.
    """
    from connectagent.cli.view.server import Server

    server = Server(find_record(record) if record is not None else None, port)
    try:
        click.echo(visible(server.url, 2000))
        sys.stdout.flush()
        if sys.stdout.isatty():
            click.echo("Ctrl-C ends it.", err=True)
        if opened or (opened is None and sys.stdout.isatty() and _has_desktop()):
            import webbrowser

            webbrowser.open(server.url_for_once())
        server.serve()
    except KeyboardInterrupt:  # the way to end it: nothing has failed
        click.echo(err=True)
    finally:
        server.close()


def _has_desktop() -> bool:
    """Whether a browser has a window to show; one in the terminal would take it over."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
