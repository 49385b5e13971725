"""`connectagent map`: a script's agent over many prompts, from a file into a file."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from connectagent.agents.batch import Batch, BatchLimits
from connectagent.commands import prompts as prompts_of
from connectagent.commands import script
from connectagent.commands.failure import usage_error
from connectagent.commands.plugin_options import AgentCommand
from connectagent.commands.progress import Progress
from connectagent.commands.written import check_written, lines_into
from connectagent.errors import BatchStopped
from connectagent.output.text import as_json
from connectagent.settings import overrides

if TYPE_CHECKING:
    from connectagent.agents.batch import Item
    from connectagent.records.sqlite import SqliteStore



@click.command("map", cls=AgentCommand, short_help="Run the agent of a script over many prompts.")
@click.argument("path", metavar="SCRIPT")
@click.argument("prompts", metavar="PROMPTS")
@click.option("-o", "--output", metavar="FILE", help="Write the results there, a line of JSON each; else to stdout.")
@click.option("--name", metavar="NAME", help="The name of the run; its records are its state. [the name of PROMPTS]")
@click.option("--store", metavar="FILE", help="An SQLite database that has the run too; made if it is missing.")
@prompts_of.prompt_options
@script.agent_options
def map(
    path: str,
    prompts: str,
    template: str | None,
    sample: int | None,
    output: str | None,
    store: str | None,
    plugins: tuple[str, ...],
    model: str | None,
    quiet: bool,
    traceback: bool,
    **options: Any,
) -> None:
    """Run the agent of SCRIPT over the prompts of a file, several at the same time.

    PROMPTS has a prompt a line (.txt), a JSON object or text a line (.jsonl), or a header and rows (.csv, .tsv); -
    reads lines from standard input. A line may have the fields `prompt` and `id`; --prompt makes the prompt of any
    fields.

    The same command again takes what is missing, and nothing else. Exits with 1 where a prompt failed or a limit was
    reached, and with 130 after Ctrl-C.
    """
    overrides.update({"trust": options["trust"]} if options["trust"] else {})
    lines = prompts_of.read_prompts(prompts, template, sample)
    check_written({"-o": output}, [path, prompts])
    taken = [line.prompt if line.id is None else (line.id, line.prompt) for line in lines]
    script.apply_options(model, True, plugins)  # agents show nothing, those inside others too; the line does
    module = script.load(path, traceback)
    if (agent := script.agent_of(module)) is None:
        raise usage_error(f"{script.shown(module)} has no 'agent'")
    run = options["name"] or ("stdin" if prompts == "-" else Path(prompts).stem)
    limits = BatchLimits(options["max_failures"], options["max_usd"])
    batch = Batch(agent, taken, options["concurrency"], run, limits, {}, store=_store_of(store))
    if not _write(batch, Progress(len(taken), batch), output, quiet):
        raise SystemExit(1)


def _store_of(path: str | None) -> SqliteStore | None:
    """The database at a path.

    Raises:
        click.UsageError: it cannot be used.
    """
    if path is None:
        return None
    from connectagent.records.sqlite import SqliteStore  # loads sqlite3

    try:
        return SqliteStore(path)
    except OSError as error:
        raise usage_error(str(error)) from None


def _write(batch: Batch, progress: Progress, output: str | None, quiet: bool) -> bool:
    """Write each item as it ends; whether all were taken and none has failed."""
    with lines_into("-o", output) as write, progress.shown(quiet):
        try:
            with contextlib.closing(batch.items()) as items:
                for item in items:
                    progress.count(item)
                    write(json.dumps(as_data(item), ensure_ascii=False, default=str))
        except BatchStopped as stopped:
            progress.stopped = str(stopped)
    return not progress.failed and progress.stopped is None


def as_data(item: Item) -> dict[str, Any]:
    """An item as data for JSON."""
    error = item.error and {"type": type(item.error).__name__, "message": str(item.error)}
    return {
        "id": item.id,
        "prompt": item.prompt,
        "status": item.status,
        "result": as_json(item.result),
        "error": error,
        "cost": item.cost,
        "tokens": item.tokens,
        "record": None if item.record is None else str(item.record),
    }
