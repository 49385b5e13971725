"""`connectagent log`: shows what agents did, from the records in `.co/evals`.

No command loads a plugin. The texts in a record come from users, models and tools: control characters are shown as
escapes.
"""

from __future__ import annotations

from importlib import import_module

import click

from connectagent.cli.plugin_commands import OpenGroup

_COMMANDS = {
    "list": "listing",
    "show": "show",
    "summary": "summary",
    "request": "request",
    "tail": "tail",
    "diff": "diff",
    "grep": "grep",
    "stats": "stats",
    "prune": "prune",
    "export": "export",
}


class _Group(OpenGroup):
    """Loads each command from its module when it is needed."""

    path = "log "

    def own_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def own_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"connectagent.cli.log.{_COMMANDS[name]}").command
        return command


@click.group(cls=_Group, short_help="List, show, follow, compare and search the records of sessions.")
def log() -> None:
    """List, show, follow, compare and search the records of sessions.

    RECORD is a path, a session's id, an agent's name for its newest record, the name of a file in .co/evals, the
    beginning of an id or of such a name, or `last` for the newest of all, which is the default.
    """
