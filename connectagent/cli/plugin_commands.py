"""Groups that installed plugins extend.

The commands of plugins are listed from the metadata of their distributions. A plugin is imported when one of its
commands is asked for, and not before.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial

import click
from click.shell_completion import CompletionItem

from connectagent.cli.commands import ELSEWHERE
from connectagent.commands.failure import plain
from connectagent.commands.usage import Group
from connectagent.errors import did_you_mean
from connectagent.hooks.entry_points import (
    COMMANDS,
    Installed,
    clash,
    guarded,
    how_to_get,
    installed,
    undeclared,
)

OTHER = "other"
"""The section of `--help` for commands whose distribution names none."""


class OpenGroup(Group):
    """A group with commands of its own, and those that plugins add to it.

    A plugin cannot replace one of the group's own.
    """

    path = ""
    """What stands before a command's name in metadata: nothing for `connectagent`, `"log "` for `connectagent log`."""

    def own_commands(self, ctx: click.Context) -> list[str]:
        """The names of the group's own commands."""
        return super().list_commands(ctx)

    def own_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """One of the group's own commands."""
        return super().get_command(ctx, name)

    def section_of(self, name: str) -> str:
        """The section of `--help` for one of the group's own commands."""
        return "commands"

    def brought(self) -> dict[str, Installed]:
        """The commands of plugins below this group, as their distributions declare them."""
        found = {}
        for plugin in installed(COMMANDS):
            name = plugin.name.removeprefix(self.path)
            if plugin.name.startswith(self.path) and " " not in name:
                found[name] = plugin
        return found

    def elsewhere(self) -> dict[str, str]:
        """The commands below this group that packages of this project bring, each with its package."""
        found = {}
        for whole, package in ELSEWHERE.items():
            name = whole.removeprefix(self.path)
            if whole.startswith(self.path) and " " not in name:
                found[name] = package
        return found

    def list_commands(self, ctx: click.Context) -> list[str]:
        own = self.own_commands(ctx)
        return [*own, *sorted(self.brought().keys() - {*own})]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, in sections; the lines of plugins' commands come from metadata."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, section, line in self._rows(ctx):
            sections.setdefault(section, []).append((name, line))
        if others := sections.pop(OTHER, None):
            sections["other commands"] = others
        for section, rows in sections.items():
            with formatter.section(plain(section).capitalize()):
                formatter.write_dl(rows)

    def _rows(self, ctx: click.Context) -> Iterator[tuple[str, str, str]]:
        """The name, the section and the line of each command."""
        own = self.own_commands(ctx)
        for name in own:
            command = self.own_command(ctx, name)
            if command is not None and not command.hidden:
                yield name, self.section_of(name), command.get_short_help_str(80)
        for name, plugin in sorted(self.brought().items()):
            if name not in own:
                section = "commands" if self.path else plugin.section or OTHER
                yield plain(name), section, plain(plugin.line or f"Of {plugin}.")

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = self.own_command(ctx, cmd_name)
        if own is not None:
            return own
        plugin = self.brought().get(cmd_name)
        if plugin is not None:
            return self._declared(ctx, cmd_name, plugin)
        if ctx.resilient_parsing or self.hint(cmd_name, self.list_commands(ctx)):
            return None
        return self._undeclared(cmd_name)

    def _declared(self, ctx: click.Context, name: str, plugin: Installed) -> click.Command | None:
        """The command that a plugin declares.

        Raises:
            PluginError: the plugin cannot be loaded, or has no such command. The shell's completion gets None then.
        """
        try:
            if plugin.rivals:
                raise click.ClickException(clash(plugin))
            command = _commands_of(plugin).get(self.path + name)
            if command is None:
                what = f"{plugin} declares the command {self.path + name!r}, and does not add it"
                raise click.ClickException(f"{what}: see `connectagent hooks register_commands`")
            return command
        except Exception:
            if ctx.resilient_parsing:
                return None
            raise

    def _undeclared(self, name: str) -> click.Command | None:
        """A command that its distribution does not declare; plugins that cannot be loaded do not have it."""
        for plugin in undeclared(COMMANDS):
            try:
                command = _commands_of(plugin).get(self.path + name)
            except Exception:
                continue
            if command is not None:
                return command
        return None

    def missing(self, name: str) -> str | None:
        """The error for a command of this project whose package is not installed."""
        package = self.elsewhere().get(name)
        if package is None:
            return None
        return f"the command {self.path + name!r} comes with {package}, which is not installed.\n{how_to_get(package)}"

    def known(self, ctx: click.Context) -> list[str]:
        """The commands below this group, also those whose package is not installed."""
        return [*self.list_commands(ctx), *self.elsewhere()]

    def hint(self, name: str, names: list[str]) -> str:
        return did_you_mean(name, [*names, *self.elsewhere()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands and options that begin with what was typed; no plugin is imported."""
        rows = [(name, line) for name, _, line in self._rows(ctx) if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=line) for name, line in rows]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]


@lru_cache(maxsize=256)
def _commands_of(plugin: Installed) -> dict[str, click.Command]:
    """The commands that a plugin adds, by their names below `connectagent`.

    Raises:
        PluginError: it cannot be loaded, or its handler raised.
    """
    from connectagent.hooks.discovery import handlers_of

    group = click.Group("connectagent")
    of_plugin = (plugin.distribution, plugin.entry.value)
    by_name = [one for one in installed() if (one.distribution, one.entry.value) == of_plugin]
    for handler in handlers_of(by_name[0] if by_name else plugin):
        if handler.hook == "register_commands":
            guarded(plugin, partial(handler, {"cli": group}))
    return dict(group.commands)
