"""The command `connectagent view`: sessions as a page in the browser, read while they grow, or written as one file.

No plugin is loaded. The texts in a record come from users, models and tools: the page shows them as text.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from connectagent import register_commands


@register_commands
def view_command(cli: Any) -> None:
    """Add the command `view`."""
    from connectagent_view.command import view

    cli.add_command(view)


@contextlib.contextmanager
def served(record: Path) -> Iterator[str]:
    """Serve the page of a record to this machine alone, from a thread; gives its address.

    Args:
        record: the record that the page opens with.

    Raises:
        ConfigError: no port can be used.
    """
    from connectagent_view.server import Server

    server = Server(record)
    threading.Thread(target=server.serve, name="connectagent-view", daemon=True).start()
    try:
        yield server.url
    finally:
        server.close()


@contextlib.contextmanager
def opened(address: str) -> Iterator[None]:
    """Open a browser with the page at an address, if this machine has a desktop.

    Args:
        address: of `served`.
    """
    from connectagent_view.command import has_desktop, in_browser

    with in_browser(address) if has_desktop() else contextlib.nullcontext():
        yield
