"""The click group: it loads commands when they are needed, and turns errors into exit codes."""

from __future__ import annotations

import os
import select
import sys
from importlib import import_module

import click

from connectagent import __version__
from connectagent.cli.commands import COMMANDS, GROUPS, SECTIONS
from connectagent.cli.plugin_commands import OpenGroup
from connectagent.commands.failure import flush_output, show_error
from connectagent.output.masking import current

COMPLETE = "_CONNECTAGENT_COMPLETE"  # set by the shell's completion, as click names it


class LazyGroup(OpenGroup):
    """The built-in commands, each loaded from its module when it is needed, and those of installed plugins."""

    def own_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def own_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[name]), name)
        return command

    def section_of(self, name: str) -> str:
        return next(section for section, commands in SECTIONS.items() if name in commands)

    def hint(self, name: str, names: list[str]) -> str:
        from connectagent.hooks.entry_points import OFFICIAL, PREFIX, how_to_get, named

        if name in OFFICIAL and not named(name):
            return f" The plugin {name!r} is not installed. {how_to_get(PREFIX + name)}."
        if name.endswith(".py"):
            return f" Did you mean 'connectagent run {name}'?"
        for group in GROUPS:
            command = self.own_command(click.Context(self), group)
            if isinstance(command, OpenGroup) and name in command.known(click.Context(command)):
                return f" Did you mean 'connectagent {group} {name}'?"
        return super().hint(name, names)


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


def _code(code: object) -> int:
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
