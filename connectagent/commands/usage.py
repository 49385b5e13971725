"""What click gives poor messages for: unknown commands of a group, and numbers."""

from __future__ import annotations

from typing import Any

import click

from connectagent.errors import did_you_mean


class WholeNumber(click.IntRange):
    """A whole number in a range; click's own error calls it an "integer range"."""

    name = "whole number"


def refuse_repeats(command: click.Command) -> None:
    """Let a command refuse an option that takes one value and is given twice; click keeps the last in silence."""
    if "make_parser" in vars(command):
        return
    make = command.make_parser

    def make_parser(ctx: click.Context) -> Any:
        parser = make(ctx)
        parse = parser.parse_args

        def parse_args(args: list[str]) -> Any:
            values, rest, order = parse(args)
            for one in order:
                if isinstance(one, click.Option) and not _may_repeat(one) and order.count(one) > 1:
                    raise click.UsageError(f"option {one.opts[-1]!r} is given twice, and takes one value", ctx)
            return values, rest, order

        parser.parse_args = parse_args  # type: ignore[method-assign]
        return parser

    command.make_parser = make_parser  # type: ignore[method-assign]


def _may_repeat(option: click.Option) -> bool:
    return option.multiple or option.is_flag or option.count


class Group(click.Group):
    """A group that answers a mistyped command with the nearest one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            name, command, rest = super().resolve_command(ctx, args)
            if command is not None and not isinstance(command, click.Group):
                refuse_repeats(command)
            return name, command, rest
        except click.UsageError as error:
            if missing := self.missing(args[0]):
                raise click.UsageError(missing, ctx) from error
            names = self.list_commands(ctx)
            hint = self.hint(args[0], names)
            raise click.UsageError(f"no command {args[0]!r}.{hint} Commands: {', '.join(names)}", ctx) from error

    def missing(self, name: str) -> str | None:
        """The error for a command that a package brings which is not installed; None where none is known to."""
        return None

    def hint(self, name: str, names: list[str]) -> str:
        """The end of the error for an unknown command."""
        return did_you_mean(name, names)
