"""`connectagent view`: sessions as a page in the browser, while they run."""

from __future__ import annotations

import contextlib
import html
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from connectagent.commands.usage import WholeNumber
from connectagent.output.text import visible
from connectagent.records.find import find_record, records_folder

if TYPE_CHECKING:
    from connectagent.cli.view.server import Server


@click.command(short_help="Sessions as a page in the browser, while they run.")
@click.argument("record", required=False, metavar="[RECORD]")
@click.option("--port", default=0, type=WholeNumber(0, 65535), metavar="N", help="The port; else a free one.")
@click.option("--open/--no-open", "opened", default=None, help="Open a browser; by default only on a desktop.")
def view(record: str | None, port: int, opened: bool | None) -> None:
    """Serve a page with the sessions, to this machine alone, until Ctrl-C.

    It opens with RECORD: a path, a session's id, an agent's name for its newest record, the name of a file in
    .co/evals, the beginning of an id or of such a name, or `last`. What an agent writes appears while it runs.

    With --port the address is the same each time, so that links to entries, messages and turns stay.
    """
    from connectagent.cli.view.editor import check_editor

    opened_by = contextlib.ExitStack()
    check_editor()
    server = _server(find_record(record) if record is not None else None, port)
    try:
        click.echo(visible(server.url, 2000))
        sys.stdout.flush()
        if sys.stdout.isatty():
            click.echo("Ctrl-C ends it.", err=True)
        if opened or (opened is None and sys.stdout.isatty() and has_desktop()):
            opened_by.enter_context(in_browser(server.url))
        server.serve()
    except KeyboardInterrupt:  # the usual way to end it
        click.echo(err=True)
    finally:
        opened_by.close()
        server.close()


def _server(record: Path | None, port: int) -> Server:
    """The server; with a port, at the address that the folder's page had before."""
    from connectagent.cli.view.address import kept_secret
    from connectagent.cli.view.server import Server

    return Server(record, port, kept_secret(record.parent if record else records_folder()) if port else None)


@contextlib.contextmanager
def in_browser(url: str) -> Iterator[None]:
    """Open a browser with a file that redirects to the page.

    Any user can read a browser's command line. The address has a secret part, so it is in a file that only this user
    can read.
    """
    import tempfile
    import webbrowser

    with tempfile.TemporaryDirectory(prefix="connectagent-view-") as folder:  # of mode 0700
        file = Path(folder) / "open.html"
        place = html.escape(url)
        text = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={place}">'
        file.write_text(f'{text}<title>connectagent</title><a href="{place}">The page</a>\n', "utf-8")
        webbrowser.open(file.as_uri())
        yield


def has_desktop() -> bool:
    """Whether a graphical browser can be opened; one in the terminal would take it over."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
