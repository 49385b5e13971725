"""`connectagent report`: a failure in one small file that can be sent to others."""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from connectagent.cli.replay_report import check_apart, is_report
from connectagent.commands import script
from connectagent.commands.failure import usage_error
from connectagent.commands.plugin_options import plugin_option
from connectagent.commands.recorded_agent import agent_in, script_of
from connectagent.commands.tables import echo
from connectagent.errors import ConfigError, HandlerError, PluginError
from connectagent.output.text import visible
from connectagent.records.find import find_record

PluginsOf = Callable[[str], tuple[list[Any], dict[str, Any]]]
"""The plugins of the agent of a name, and what else it was given."""


@click.command(short_help="Write a failure into one small file, with which others see it again.")
@click.argument("record", metavar="[RECORD]", required=False)
@click.argument("program", metavar="[SCRIPT]", required=False)
@click.option("-o", "output", metavar="FILE", help="The file to write, for example bug.yaml.")
@click.option("--bad", metavar="WHAT", help="What the failure is, where it is not what failed last.")
@click.option("--also-mask", metavar="REGEX", multiple=True, help="Mask what this finds, too. Repeatable.")
@plugin_option("./plugin.py or an installed plugin to add; no:NAME leaves one out. Repeatable.")
@click.option("--traceback", is_flag=True, help="Show the whole traceback of an error.")
def report(
    record: str | None,
    program: str | None,
    output: str | None,
    bad: str | None,
    also_mask: tuple[str, ...],
    plugins: tuple[str, ...],
    traceback: bool,
) -> None:
    """Write the failure of a record into one small file, with which others see it again: connectagent replay FILE.

    The record is played offline with your plugins, and cut down to what still shows the failure. Secrets, home folders
    and the names of users are masked. What stays is printed before it is written; without -o nothing is written.

    RECORD is named as for replay; `last` by default. SCRIPT (*.py) makes the agent, by default the script that the
    record names. WHAT is one of: calls NAME [/regex/], says /regex/, result /regex/, error TYPE [by PLUGIN],
    rejected NAME [by PLUGIN], ./file.py:function; the function is given the list of a turn's trace entries. By default
    it is the last error of a turn or a plugin, or the last call that was rejected.

    Exit code: 0 the report is written, 1 the failure does not show when the record is played, 2 wrong usage, no
    failure, or a plugin cannot be loaded.
    """
    from connectagent.replay.sandbox import offline
    from connectagent.testing.reports.report import NotShown

    path = _found(record)
    _check_output(output, path)
    started = time.monotonic()
    try:
        recording = _read(path)
        script.apply_options(None, True, plugins)
        agent = _agent(recording, program, traceback)
        with offline(), redirect_stdout(io.StringIO()):  # handlers run dozens of times
            made = _made(recording, agent, bad, also_mask, plugins)
    except NotShown as error:
        click.echo(f"{path.name}: the failure does not show when the record is played: {visible(error, 400)}", err=True)
        raise click.exceptions.Exit(1) from error
    except (ConfigError, PluginError, HandlerError) as error:
        raise usage_error(str(error)) from error
    echo("\n".join([*_lines(path, made, time.monotonic() - started), "", made.text]))
    if output is not None:
        Path(output).write_text(made.text, "utf-8", newline="\n")
        click.echo(f"{output}: {len(made.text.encode()) / 1000:.1f} kB. Look at it before you send it.", err=True)


def _found(record: str | None) -> Path:
    try:
        return find_record(record).absolute()
    except ConfigError as error:
        raise usage_error(str(error)) from error


def _check_output(output: str | None, record: Path) -> None:
    """Refuse to write over anything but a report, before any work is done.

    Raises:
        click.UsageError: it would.
    """
    if output is None:
        return
    file = Path(output)
    if not file.parent.is_dir():
        raise usage_error(f"{output}: there is no folder {str(file.parent)!r}")
    if file.exists() and (not file.is_file() or file.samefile(record) or not is_report(file)):
        raise usage_error(f"{output} is there already, and is no report: remove it, or name another file")


def _agent(recording: Any, program: str | None, traceback: bool) -> Any:
    """The agent of a script; None where the record names none, or one that may not be run or fails, which is said."""
    from connectagent.replay.sandbox import offline

    if program is not None and not Path(program).is_file():
        raise usage_error(f"{program!r}: no such script")
    found = program or _own_script(recording.path, recording.head)
    if found is None:
        return None
    try:
        with offline(), redirect_stdout(sys.stderr):
            return agent_in(found, str(recording.head.get("agent")), traceback)
    except (PluginError, HandlerError):
        raise
    except (Exception, SystemExit) as error:
        if program is not None:
            raise
        why = visible(f"{type(error).__name__}: {error}", 200)
        click.echo(f"{found} cannot be loaded: {why}\nThe agent is made from the record.", err=True)
        return None


def _made(recording: Any, agent: Any, bad: str | None, also: Sequence[str], plugins: Sequence[str]) -> Any:
    """The report.

    Raises:
        PluginError: the failure does not show, and plugins of the record are not here.
    """
    from connectagent.settings import override
    from connectagent.testing.reports.report import NotShown, make

    head = recording.head
    plugins_of, missing = _of_agent(agent) if agent is not None else _of_record(recording.path, head, plugins)
    private = _private(recording.path, head, also)
    if bad is not None and private.text(bad) != bad:
        raise ConfigError(f"--bad {bad!r} looks for what is masked in a report")
    try:
        with override("plugins", []):  # what of these is needed is found out
            made = make(recording, plugins_of, private, bad)
        check_apart(made)
        return made
    except NotShown as error:
        if not missing:
            raise
        raise PluginError(
            f"the failure does not show when the record is played: {error}\n"
            f"Plugins of the record that are not here: {', '.join(missing)}. Name them: -p ./{missing[0]}.py"
        ) from error


def _read(record: Path) -> Any:
    from connectagent.testing.bisection.case import refuse_long
    from connectagent.testing.reports import session

    try:
        refuse_long(record)
        return session.read(record)
    except OSError as error:
        raise usage_error(f"{record} cannot be read: {error.strerror}") from error


def _own_script(record: Path, head: dict[str, Any]) -> str | None:
    """The script that a record names; None without one, or where it may not be run, which is said."""
    try:
        return script_of(record, head, "report")
    except click.UsageError as error:
        click.echo(f"{error.format_message()}\nThe agent is made from the record.", err=True)
        return None


def _of_agent(agent: Any) -> tuple[PluginsOf, list[str]]:
    """The plugins of a script's agents, by name."""
    from connectagent.testing.reports.plugins import everywhere, of_agent

    named = everywhere()

    def plugins_of(name: str) -> tuple[list[Any], dict[str, Any]]:
        found = next((one for one in (agent, *agent.below) if one.name == name), agent)
        warns = found.boundary.warn_only
        options = {"stream": found.streaming, "plugin_errors": "warn" if warns else "raise"}
        return of_agent(found, named), options

    return plugins_of, []


def _of_record(record: Path, head: dict[str, Any], plugins: Sequence[str]) -> tuple[PluginsOf, list[str]]:
    """The plugins that a record names, as far as they are here, and those that are not."""
    from connectagent.testing.reports.plugins import of_record

    sources, missing = of_record(record, head, [one[3:] for one in plugins if one.startswith("no:")])
    return lambda name: (sources, {}), missing


def _private(record: Path, head: dict[str, Any], also: Sequence[str]) -> Any:
    """What is private in a record and on this machine."""
    from connectagent.settings import project_folder
    from connectagent.testing.reports.private import Private

    text = record.read_text("utf-8", errors="replace")
    hosts = set(re.findall(r'^  owner: \{"host": "([^"]+)"', text, re.MULTILINE))
    programs = [str(Path(str(head["script"])).parent)] if head.get("script") else []
    return Private(also, text, hosts, [str(project_folder()), str(Path.cwd()), *programs])


# -- showing -------------------------------------------------------------------------------------


def _lines(record: Path, made: Any, took_s: float) -> Iterator[str]:
    yield f"{record.name}: {visible(made.wanted.text)}, in turn {made.turn}{made.inside}"
    if made.shown.text:
        yield f"  {visible(made.shown.text, 200)}"
    kept = ", ".join(f"{made.after[key]:,} of {count:,} {key}" for key, count in made.before.items())
    yield f"left: {kept}; played {made.tries} times in {took_s:.1f} s"
    if made.is_over:
        yield "it may be larger than it need be: it took too long"
    names = [name for source in made.needed for name in source.names]
    if names:
        yield f"needs: {visible(', '.join(names), 400)}"
    else:
        yield "needs no plugin: what the model answered then, or a tool, shows it without any"
    for fact in (fact for source in made.needed for fact in source.facts if fact["from"] == "code"):
        yield f"  {visible(fact['name'])} is in your code: others need it as a file, -p ./{visible(fact['name'])}.py"
