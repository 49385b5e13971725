"""`connectagent bisect`: which plugin, handler or text makes a recorded failure happen."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from connectagent.commands import script
from connectagent.commands.failure import usage_error
from connectagent.commands.plugin_options import plugin_option
from connectagent.commands.recorded_agent import agent_maker
from connectagent.commands.tables import echo, echo_json
from connectagent.commands.usage import WholeNumber
from connectagent.errors import ConfigError, PluginError, did_you_mean
from connectagent.output.masking import mask
from connectagent.output.rows import many
from connectagent.records.find import find_record
from connectagent.records.findings import keep_finding
from connectagent.records.own import why_not_own
from connectagent.records.read import read_head

BY = ("plugins", "handlers", "prompt")
INTERRUPTED = 130


@click.command(short_help="Which plugin, handler or text makes a recorded failure happen?")
@click.argument("record", metavar="RECORD")
@click.argument("program", required=False, metavar="[SCRIPT]")
@click.option("--bad", required=True, metavar="WHAT",
              help="The failure: 'calls NAME [/regex/]', 'says /regex/', 'result /regex/', 'error TYPE [by PLUGIN]', "
              "'rejected NAME [by PLUGIN]', or './check.py:function'.")  # fmt: skip
@click.option("--by", default="plugins,prompt", show_default=True, metavar="LIST",
              help="What is varied: plugins, handlers, prompt.")  # fmt: skip
@click.option("--versions", metavar="RANGE",
              help="Search the versions of one plugin instead: NAME=1.0..2.0, or ./file.py@REV..REV.")  # fmt: skip
@click.option("--samples", default=10, show_default=True, metavar="N", type=WholeNumber(min=1),
              help="How often each side of a comparison is run.")  # fmt: skip
@click.option("--budget", type=click.FloatRange(min=0), metavar="USD", help="How much the model calls may cost.")
@click.option("--model", metavar="NAME", help="The model to ask, in place of the agent's own.")
@click.option("--keep", multiple=True, metavar="NAME", help="A plugin that stays on. Repeatable.")
@plugin_option("A plugin to add, as for run. Repeatable.")
@click.option("--live-tools", is_flag=True, help="Run the tools; else they answer from the record.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--rate", hidden=True, metavar="FIRST,COUNT", help="Only run so often, and print how often it is bad.")
@click.option("--traceback", is_flag=True, help="Show the whole traceback of an error.")
def bisect(record: str, program: str | None, bad: str, **options: Any) -> None:
    """Find what makes a recorded failure happen, by playing it again with plugins switched off.

    Recorded answers serve while a request is the same as then; from the first difference on, the model is asked, and
    the step that is bad is always asked again. Tools answer from the record. A difference counts only if fresh samples
    confirm it. What is found is kept beside your own record, for `view` and `log summary`; nothing else is written.

    RECORD is as for `replay`; `demo` is the last demo. SCRIPT makes the agent, by default the script that a record of
    this project names.

    Exit code: 0 a cause is confirmed, 1 none is, 2 wrong usage, 130 interrupted.
    """
    by = _by(options["by"])
    try:
        path = find_record(record).absolute()
        script.apply_options(None, True, _plugins(options))
        finding = _finding(path, program, bad, by, options)
    except (ConfigError, PluginError, OSError) as error:
        raise usage_error(str(error)) from error
    _keep(path, finding)
    echo_json(mask(data_of(finding))) if options["as_json"] else echo(mask(str(finding)))
    if not finding.is_confirmed:
        raise click.exceptions.Exit(INTERRUPTED if finding.stopped == "interrupted" else 1)


def _keep(path: Path, finding: Any) -> None:
    """Keep a finding beside the record, where that is the person's own, in the folder of the records.

    Beside a copy elsewhere the file would be outside of `.co`, and nothing would ever remove it.
    """
    if finding.verdict == "cannot tell" or why_not_own(path, read_head(path)) is not None:
        return
    kept = {
        "symptom": finding.symptom,
        "confirmed": finding.is_confirmed,
        "said": str(finding).splitlines()[1:],
        "entry": finding.place.entry,
        "maker": finding.maker,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    try:
        keep_finding(path, mask(kept))
    except OSError as error:
        click.echo(f"connectagent: view will not show this: it cannot be kept: {error}", err=True)


def _plugins(options: dict[str, Any]) -> tuple[Any, ...]:
    """The plugins of the command line, in the version that is searched."""
    if options["rate"] is None:
        return tuple(options["plugins"])
    from connectagent.testing.bisection.versions import load_instead

    return tuple(load_instead(options["plugins"]))


def _finding(path: Path, program: str | None, bad: str, by: list[str], options: dict[str, Any]) -> Any:
    from connectagent.testing.bisection import bisect as search
    from connectagent.testing.bisection import bisect_versions, rate_of

    given = {"model": options["model"], "budget_usd": options["budget"], "live_tools": options["live_tools"]}
    if options["versions"] is not None:
        command = _command(path, program, bad, options)
        return bisect_versions(path, bad, options["versions"], command, options["samples"])
    make = maker(path, program, options["traceback"])
    if options["rate"] is not None:
        first, count = map(int, options["rate"].split(","))
        with silent():
            rate = rate_of(path, make, bad, first, count, **given)
        echo_json(rate)
        raise click.exceptions.Exit(0)
    kept = _kept(make, options["keep"])
    with silent(), progress_line() as show:
        return search(path, make, bad, by=by, samples=options["samples"], keep=kept, progress=show, **given)


def _command(path: Path, program: str | None, bad: str, options: dict[str, Any]) -> list[str]:
    """The command that runs one version."""
    command = [sys.executable, "-m", "connectagent", "bisect", str(path), *([program] if program else []), "--bad", bad]
    for name in ("model", "budget"):
        command += [f"--{name}", str(options[name])] if options[name] is not None else []
    return [*command, *(f"-p{one}" for one in options["plugins"]), *["--live-tools"] * options["live_tools"]]


def _by(text: str) -> list[str]:
    named = [one.strip() for one in text.split(",") if one.strip()]
    for one in named:
        if one not in BY:
            raise usage_error(f"--by {one!r}: it takes {', '.join(BY)}.{did_you_mean(one, BY)}")
    if not named:
        raise usage_error(f"--by takes some of {', '.join(BY)}")
    return named


def _kept(make: Callable[[], Any], names: tuple[str, ...]) -> list[str]:
    """The plugins that stay on.

    Raises:
        ConfigError: the agent has none of this name.
    """
    if names:
        agent = make()
        known = {one.plugin for part in (agent, *agent.below) for one in part.hooks.loaded if not one.builtin}
        for name in names:
            if name not in known:
                raise ConfigError(f"--keep {name!r}: the agent has no such plugin.{did_you_mean(name, known)}")
    return list(names)


def maker(path: Path, program: str | None, traceback: bool = False) -> Callable[[], Any]:
    """Makes a fresh agent each time: of the script, of the demo, else from the record alone.

    Raises:
        ConfigError, click.UsageError: the record is too long, there is no such script, or it may not be run unless the
            person names it.
    """
    from connectagent.testing.bisection.case import refuse_long

    refuse_long(path)
    return agent_maker(path, program, "bisect", traceback)


@contextlib.contextmanager
def progress_line() -> Iterator[Callable[[Any], None]]:
    """Show on a terminal how many runs and model calls there were so far, in one line that goes in the end."""
    if not sys.stderr.isatty():
        yield lambda spent: None
        return
    last = [0.0]

    def show(spent: Any) -> None:
        if time.monotonic() - last[0] > 0.1:
            last[0] = time.monotonic()
            text = f"{many(spent.runs, 'run')}, {many(spent.calls, 'model call')}, ${spent.cost:.2f}"
            click.echo(f"\r\x1b[K{text}", err=True, nl=False)

    try:
        yield show
    finally:
        click.echo("\r\x1b[K", err=True, nl=False)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Show nothing of what handlers and the script print: they run dozens of times."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def data_of(finding: Any) -> dict[str, Any]:
    """A finding as JSON."""
    data = asdict(finding)
    place = data.pop("place")
    where = {"turn": place["turn"] + 1, "iteration": place["entry"].get("iteration")}
    return {**data, **where, "confirmed": finding.is_confirmed}
