"""What click gives poor messages for: unknown commands of a group, and numbers."""

from __future__ import annotations

import click

from connectagent.errors import did_you_mean


class WholeNumber(click.IntRange):
    """A whole number in a range; click's own error calls it an "integer range"."""

    name = "whole number"


class Group(click.Group):
    """A group that answers a mistyped command with the nearest one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            names = self.list_commands(ctx)
            hint = self.hint(args[0], names)
            raise click.UsageError(f"no command {args[0]!r}.{hint} Commands: {', '.join(names)}", ctx) from error

    def hint(self, name: str, names: list[str]) -> str:
        """The end of the error for an unknown command."""
        return did_you_mean(name, names)
