"""The click group: it loads commands when they are needed, and turns errors into exit codes."""

from __future__ import annotations

import os
import select
import sys
from importlib import import_module
from typing import Any

import click

from connectagent import __version__
from connectagent.cli.commands import COMMANDS, GROUPS
from connectagent.commands.failure import flush_output, plain, show_error
from connectagent.commands.usage import Group
from connectagent.output.masking import current

COMPLETE = "_CONNECTAGENT_COMPLETE"  # set by the shell's completion, as click names it


class LazyGroup(Group):
    """The built-in commands, and those that installed plugins add with `register_commands`.

    A plugin cannot replace a built-in command. Listing loads no plugin: it shows the commands that distributions
    declare.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._loaded: set[object] = set()  # the plugins whose commands were loaded

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *sorted({*self.commands, *_declared()} - {*COMMANDS})]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands; a plugin's command with its distribution."""
        others = {name: f"Of {plugin}." for name, plugin in _declared().items() if name not in COMMANDS}
        own = [(name, self.get_command(ctx, name)) for name in [*COMMANDS, *sorted(self.commands.keys() - {*others})]]
        rows = [(name, command.get_short_help_str(80)) for name, command in own if command is not None]
        with formatter.section("Commands"):
            formatter.write_dl([*rows, *((plain(name), plain(text)) for name, text in sorted(others.items()))])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            command: click.Command = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
            return command
        if cmd_name not in self.commands:
            self._bring(cmd_name)
        return self.commands.get(cmd_name)

    def hint(self, name: str, names: list[str]) -> str:
        from connectagent.hooks.entry_points import GET, OFFICIAL, named

        if name in OFFICIAL and not named(name):
            return f" The plugin {name!r} is not installed. {GET}{name}."
        if name.endswith(".py"):
            return f" Did you mean 'connectagent run {name}'?"
        for group in GROUPS:
            command = getattr(import_module(COMMANDS[group]), group)
            if name in command.list_commands(click.Context(command)):
                return f" Did you mean 'connectagent {group} {name}'?"
        return super().hint(name, names)

    def _bring(self, name: str) -> None:
        """Let installed plugins add a command; a broken plugin is reported, and the others stay."""
        from connectagent.hooks.discovery import handlers_of
        from connectagent.hooks.entry_points import command_plugins

        for plugin in command_plugins(name):
            if plugin.entry in self._loaded:
                continue
            self._loaded.add(plugin.entry)
            try:
                for handler in handlers_of(plugin):
                    if handler.hook == "register_commands":
                        handler({"cli": self})
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                text = f"plugin {plugin.name!r} brings no commands: {type(error).__name__}: {error}"
                click.echo(plain(text)[:300], err=True)


def _declared() -> dict[str, Any]:
    """The commands that distributions declare, each with its plugin."""
    from connectagent.hooks.entry_points import COMMANDS as GROUP
    from connectagent.hooks.entry_points import installed

    return {plugin.name: plugin for plugin in installed(GROUP)}


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Run LLM agents that plugins see and steer. Begin with: connectagent demo",
)
@click.version_option(__version__, "-V", "--version", message="connectagent %(version)s")
def cli() -> None:
    """The group itself does nothing."""


def invoke(arguments: list[str]) -> int:
    """Run the command in the arguments, and return its exit code."""
    _open_closed_streams()
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # the terminal's encoding may lack characters of a model's text
            stream.reconfigure(errors="replace" if stream is sys.stdin else "backslashreplace")
    if instruction := os.environ.get(COMPLETE):
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "connectagent", COMPLETE, instruction)
    try:
        with cli.make_context("connectagent", arguments) as context:
            cli.invoke(context)
        flush_output()
    except click.exceptions.Exit as exit:
        return _flushed(exit.exit_code)
    except SystemExit as exit:
        return _flushed(_code(exit.code))
    except click.exceptions.NoArgsIsHelpError as usage:
        click.echo(usage.format_message(), err=True)
        return 2
    except (KeyboardInterrupt, click.exceptions.Abort):
        click.echo("interrupted", err=True)
        return _flushed(130)
    except Exception as error:
        from connectagent.output.terminal import is_gone

        if is_gone(error):
            return _flushed(1) if stdout_is_gone() else show_error(error)
        return _flushed(show_error(error))
    return 0


def _open_closed_streams() -> None:
    """Put the null device in the place of standard streams that are closed, as with `2>&-` or under some daemons."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as the process lives


def _code(code: Any) -> int:
    """The exit code of `sys.exit(code)`, where `code` may be None or a text."""
    if code is None or isinstance(code, int):
        return int(code or 0)
    click.echo(current().text(str(code)), err=True)
    return 1


def stdout_is_gone() -> bool:
    """Whether standard output has no reader any more; a script's own broken pipe is an error like others."""
    # A second flush() would not raise: Python drops what it could not write.
    if not hasattr(select, "poll"):
        return True
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _flushed(code: int) -> int:
    """Flush standard output; a reader that has gone, as in `| head -1`, is no error."""
    try:
        sys.stdout.flush()
    except OSError:
        # The interpreter flushes once more when it ends, and would print that error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
