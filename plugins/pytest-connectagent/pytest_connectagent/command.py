"""`connectagent plugins test`: takes a plugin along every path of a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectagent import register_commands

if TYPE_CHECKING:
    import click


@register_commands
def bring(cli: click.Group) -> None:
    """Add `connectagent plugins test`."""
    from pytest_connectagent.pairs import test

    cli.add_command(test, "plugins test")
