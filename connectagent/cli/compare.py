"""`connectagent compare`: two versions of an agent over the same recorded sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from connectagent.cli.bisect import INTERRUPTED, maker, progress_line, silent
from connectagent.commands import script
from connectagent.commands.failure import usage_error
from connectagent.commands.option_sets import plugins_added
from connectagent.commands.plugin_options import plugin_option
from connectagent.commands.tables import echo, echo_json
from connectagent.commands.usage import WholeNumber
from connectagent.errors import ConfigError, PluginError
from connectagent.output.masking import mask
from connectagent.records.find import find_records


@click.command(short_help="Is the agent better with another plugin, prompt or model? Over recorded sessions.")
@click.argument("records", nargs=-1, metavar="RECORD... [SCRIPT]")
@click.option("--agent", metavar="NAME", help="All records of this agent.")
@plugin_option("Of the second side: ./plugin.py, an installed plugin, or no:NAME to leave one out.")
@click.option("--model", metavar="NAME", help="The model of the second side.")
@click.option("--prompt", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="The system prompt of the second side.")  # fmt: skip
@click.option("--bad", metavar="WHAT", help="What is bad, as for bisect: 'calls refund', 'says /regex/' ...")
@click.option("--good", metavar="WHAT", help="What is good, in the same form.")
@click.option("--judge", "rubric", metavar="RUBRIC", help="A model judges the last answer: what a good one is.")
@click.option("--samples", default=1, show_default=True, metavar="N", type=WholeNumber(min=1),
              help="How often a session is taken on each side, where the model is asked.")  # fmt: skip
@click.option("--budget", type=click.FloatRange(min=0), metavar="USD", help="How much the model calls may cost.")
@click.option("--live-tools", is_flag=True, help="Run the tools; else they answer from the record.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--traceback", is_flag=True, help="Show the whole traceback of an error.")
def compare(records: tuple[str, ...], agent: str | None, as_json: bool, traceback: bool, **options: Any) -> None:
    """Take the same recorded sessions with the agent as it is, and with other plugins, prompt or model.

    Where a request is the same as then, the recorded answer serves on both sides; from the first difference on, the
    model is asked. Prints in how many sessions the second side is better and worse, whether that may be chance, and
    what both sides cost. Nothing is written.

    Exit code: 0 no side is worse for certain, 1 the second side is worse, 2 wrong usage, 130 interrupted.
    """
    program = records[-1] if records and records[-1].endswith(".py") else None
    if not (options["plugins"] or options["model"] or options["prompt"]):
        raise usage_error("both sides are the same: give the second one -p PLUGIN, --model NAME or --prompt FILE")
    try:
        paths = find_records(records[:-1] if program else records, agent=agent)
        found = _compared(paths, program, traceback, options)
    except (ConfigError, PluginError, OSError) as error:
        raise usage_error(str(error)) from error
    echo_json(mask(_data(found))) if as_json else echo(mask(str(found)))
    if found.stopped == "interrupted":
        raise click.exceptions.Exit(INTERRUPTED)
    if found.is_worse:
        raise click.exceptions.Exit(1)


def _compared(paths: list[Path], program: str | None, traceback: bool, options: dict[str, Any]) -> Any:
    from connectagent.replay.sandbox import sandboxed
    from connectagent.testing.bisection.case import Case, Spent
    from connectagent.testing.bisection.comparison import Comparing, Comparison

    what, symptom = _symptom(options)
    spent, model = Spent(), options["model"]

    def case(path: Path) -> Any:
        made = Case(path, makers[path], symptom, None, options["live_tools"], options["budget"], whole=True)
        made.spent, made.progress = spent, show  # one budget for all
        return made

    makers = {path: maker(path, program, traceback) for path in paths}  # while `.co` is the project's own
    added = list(map(script.plugin_from_text, options["plugins"]))
    prompt = None if options["prompt"] is None else options["prompt"].read_text(encoding="utf-8-sig")

    def after(path: Path) -> Callable[[], Any]:
        return lambda: _changed(makers[path], added, prompt)

    comparing = Comparing(case, makers.__getitem__, after, model, options["samples"], options["good"] is not None)
    script.apply_options(None, True, ())
    with sandboxed(), silent(), progress_line() as show:
        after(paths[0])()  # what is wrong with it is said once
        return comparing.run(paths, Comparison(what), lambda path: None)


def _changed(make: Callable[[], Any], plugins: list[Any], prompt: str | None) -> Any:
    """The agent of the second side."""
    with plugins_added(plugins):
        agent = make()
    if prompt is not None:
        agent.system_prompt = prompt
    return agent


def _symptom(options: dict[str, Any]) -> tuple[str, Any]:
    """What is counted, in words, and what finds it."""
    from connectagent.testing.bisection.comparison import Judging
    from connectagent.testing.symptoms import symptom

    given = [name for name in ("bad", "good", "rubric") if options[name] is not None]
    if len(given) != 1:
        raise usage_error("give one of --bad WHAT, --good WHAT and --judge RUBRIC")
    if given == ["rubric"]:
        return "judged bad", Judging(options["rubric"], _judge)
    what = symptom(options[given[0]])
    return (what.text if given == ["bad"] else f"without: {what.text}"), what


def _judge() -> Any:
    from connectagent.agents.agent import Agent
    from connectagent.models.names import default_model

    return Agent("judge", quiet=True, log=False, plugins=["no:console"]).create_llm(default_model(overridden=False))


def _data(found: Any) -> dict[str, Any]:
    low, high = found.interval if found.differences else (None, None)
    return {**asdict(found), "p": found.p, "interval": [low, high], "sessions_needed": found.needed}
