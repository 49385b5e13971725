"""Errors on the command line: at most five lines, and no traceback."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import traceback
from collections.abc import Iterator

import click
import pluggy

import connectagent
from connectagent.data import Wait
from connectagent.errors import (
    ConfigError,
    ConnectAgentError,
    HandlerError,
    Paused,
    PluginError,
    cut,
    library_problem,
    short_path,
)
from connectagent.output.masking import current
from connectagent.output.text import arguments_text, clean
from connectagent.settings import overrides

MOST_LINES = 5
MOST_CHARACTERS = 400  # of a line: a provider's answer may be a whole page

# Frames of these do not help the user: this package, click and pluggy.
_FRAMEWORK = tuple(
    os.path.dirname(os.path.abspath(str(file))) + os.sep
    for file in (connectagent.__file__, click.__file__, pluggy.__file__)
)
_script: dict[str, object] = {"path": None, "traceback": False}


def script_is(path: str, whole_traceback: bool = False) -> None:
    """Set the user's script, whose lines are shown with errors."""
    _script.update(path=os.path.abspath(path), traceback=whole_traceback)


def is_whole() -> bool:
    """Whether errors are shown with their tracebacks."""
    return bool(_script["traceback"])


def show_error(error: BaseException) -> int:
    """Print an error on stderr and return the exit code: 2 for a usage error, 75 for a pause, 1 for any other.

    75 is EX_TEMPFAIL of BSD's sysexits.h: the same command may succeed later.
    """
    if isinstance(error, Paused):
        click.echo("\n".join(_lines_of_pause(error)), err=True)
        return 75
    if not _has_folder():
        click.echo("error: the current folder was removed; change to another one, for example: cd ~", err=True)
        return 1
    if _is_of_output(error):
        why = error.strerror if isinstance(error, OSError) else error
        click.echo(f"error: standard output cannot be written: {why}; free some space, or write elsewhere", err=True)
        return 1
    if _script["traceback"] and not isinstance(error, click.ClickException):
        click.echo(current().text("".join(traceback.format_exception(error))), err=True, nl=False)
        return 1
    click.echo("\n".join(lines_of(error)), err=True)
    return error.exit_code if isinstance(error, click.ClickException) else 1


def _has_folder() -> bool:
    try:
        return bool(os.getcwd())
    except OSError:
        return False


def _is_of_output(error: BaseException) -> bool:
    """Whether standard output could not be written."""
    if not isinstance(error, OSError) or error.filename is not None:
        return False
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (last.name, last.filename) == ("echo", click.utils.__file__) or last.name == flush_output.__name__


def flush_output() -> None:
    """Write what standard output holds back."""
    sys.stdout.flush()


def lines_of(error: BaseException) -> list[str]:
    """An error in at most five lines: what, where in the user's script, and the notes that were added."""
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        behind = [f"Try '{context.command_path} --help'."] if context else []
        text = error.format_message()
    else:
        named = isinstance(error, ConnectAgentError)
        text = str(error) if named and str(error) else f"{type(error).__name__}: {error}".removesuffix(": ")
        if isinstance(error, ImportError) and (problem := library_problem(error)):
            text = problem
        notes = [line for note in getattr(error, "__notes__", []) for line in plain(note).splitlines()]
        behind = [*_frames(error), *notes]
    said = [line for line in plain(f"error: {text}").splitlines() if line.strip()]
    behind = behind[: max(2, MOST_LINES - len(said))]
    lines = [*said[: MOST_LINES - len(behind)], *behind]
    return [cut(line, MOST_CHARACTERS) for line in lines]


def _lines_of_pause(pause: Paused) -> list[str]:
    call = pause.call
    name, arguments = None, None
    if isinstance(call, dict):
        name, arguments = call.get("name"), call.get("arguments")
    elif call is not None:
        name, arguments = call.name, call.arguments
    waits = f"  {name}({arguments_text(arguments)}) waits" if name else f"  {_round(pause)}"
    lines = [f"paused: {pause.reason or 'no reason was given'}", waits]
    if pause.record is None:
        lines.append("  it is not recorded, so nothing can go on with it: the process is over")
        return [cut(plain(line), MOST_CHARACTERS) for line in lines]
    lines = [cut(plain(line), MOST_CHARACTERS) for line in lines]
    for wait, command in zip(pause.waiting, commands_to_decide(pause), strict=True):
        if len(pause.waiting) > 1:
            lines.append(cut(plain(f"  {wait.agent}, {wait.reason}:"), MOST_CHARACTERS))
        lines.append(f"  {command}")
    return [*lines, f"  {OTHERWISE}"]


def _round(pause: Paused) -> str:
    """What waits where it is no single call."""
    calls = pause.waiting[0].calls
    shown = ", ".join(f"{call.get('name')}({arguments_text(call.get('arguments'))})" for call in calls)
    return f"{shown} wait" if shown else "the turn waits"


OTHERWISE = "or, with the same ID: --reject ID WHY, --answer ID TEXT"


def commands_to_decide(pause: Paused) -> list[str]:
    """For each call that waits in a record, the command that approves it, or answers it if it is carried out elsewhere.

    It has the options that this command was given for the agent.
    """
    assert pause.record is not None
    parts = ["connectagent resume", shlex.quote(short_path(pause.record)), overrides.get("agent_options")]
    command = plain(" ".join(filter(None, parts)))
    return [plain(f"{command} {decision_option(wait.id, wait.elsewhere)}") for wait in pause.waiting]


def decision_option(id: str, elsewhere: bool) -> str:
    """The option of `connectagent resume` that lets a waiting call go on."""
    return f"--answer {shlex.quote(id)} TEXT" if elsewhere else f"--approve {shlex.quote(id)}"


def call_line(wait: Wait) -> str:
    """What waits, in one line."""
    calls = [wait.call] if wait.call is not None else wait.calls
    shown = ", ".join(f"{call.get('name')}({arguments_text(call.get('arguments'))})" for call in calls)
    return plain(f"{wait.agent}: {shown or 'the turn'}: {wait.reason or 'no reason was given'}")


def _frames(error: BaseException) -> list[str]:
    """The line of the handler that raised it, else the last line in the user's script, or outside this package."""
    frames, notes = traceback.extract_tb(error.__traceback__), "\n".join(getattr(error, "__notes__", []))
    theirs = [frame for frame in frames if f"({frame.filename}:" in notes and not frame.filename.startswith(_FRAMEWORK)]
    theirs = theirs or [frame for frame in frames if os.path.abspath(frame.filename) == _script["path"]]
    if not theirs and not isinstance(error, ConnectAgentError):
        theirs = [frame for frame in frames if not frame.filename.startswith(_FRAMEWORK)] or frames
    return [plain(f"  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}") for frame in theirs[-1:]]


def usage_error(text: str) -> click.UsageError:
    """A usage error of the running command."""
    return click.UsageError(text, click.get_current_context(silent=True))


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Turn errors that say what the person can change into usage errors of the running command, which exit with 2.

    They are `ConfigError`, `PluginError`, `HandlerError` and `OSError`.

    Raises:
        click.UsageError: there was one.
    """
    try:
        yield
    except (ConfigError, PluginError, HandlerError, OSError) as error:
        raise usage_error(str(error)) from error


def plain(text: object) -> str:
    """A text without secrets and without control characters for the terminal."""
    return clean(current().text(str(text)))


def answer(text: str) -> str:
    """A result for standard output: masked for a terminal, unmasked for another program."""
    return current().text(text) if sys.stdout.isatty() else text
