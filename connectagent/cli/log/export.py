"""`connectagent log export`: a record as a document or a page, or as lines for other programs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

import click

from connectagent.cli.log.inside import PLACES, Inside, kind_of
from connectagent.cli.view.page import page_parts
from connectagent.commands.tables import cost_text, local_time, number_of
from connectagent.output.text import actor_with_place, clean
from connectagent.records.blobs import blob_folder, restored
from connectagent.records.file import BETWEEN_TURNS
from connectagent.records.find import find_record
from connectagent.records.findings import findings_of
from connectagent.records.history import joined_turns
from connectagent.records.read import read_lazily, read_record, refuse_odd
from connectagent.records.texts import data_text, plain_value


def markdown(record: dict[str, Any], findings: Sequence[dict[str, Any]] = ()) -> Iterator[str]:
    """A record as a Markdown document, with what `connectagent bisect` found of it."""
    for line in _markdown_lines(record, findings):
        yield f"{clean(line)}\n"


def _markdown_lines(record: dict[str, Any], findings: Sequence[dict[str, Any]]) -> Iterator[str]:
    head = f"{_one(record.get('model') or '?')}, {local_time(record.get('started'))}"
    yield from (f"# {_one(record.get('agent') or 'empty')}", "", head)
    if record.get("system_prompt"):
        yield from ("", "## System prompt", "", _fenced(record["system_prompt"]))
    for turn in joined_turns(record):
        between = turn.get("status") == BETWEEN_TURNS
        yield from ("", "## Between turns" if between else f"## Turn {_one(turn.get('turn'))}")
        if not between:
            yield from ("", _fenced(turn.get("input")))
        yield from _entries(turn["trace"], Inside(turn["lines"]), "")
        if not between:
            cost = cost_text(number_of(turn.get("cost")), number_of(turn.get("known_cost")))
            yield from ("", f"**{_one(turn.get('status') or 'never ended')}**, cost {cost}")
            yield from (part for key in ("error", "result") if turn.get(key) for part in ("", _fenced(turn[key])))
    for one in findings:
        yield from ("", f"## bisect: {_one(one['symptom'])}", "", _fenced("\n".join(one["said"])))


def _entries(trace: list[Any], inside: Inside, agent: str) -> Iterator[str]:
    """The entries of a turn, with those of the agents inside; `agent`: the name in front of theirs."""
    for entry in trace:
        if kind_of(entry) == "agent_turn":
            yield from _entries(inside.of(entry), inside, f"{agent}{_one(entry.get('agent'))} › ")
        elif isinstance(entry, dict):
            yield from _entry_lines(entry, agent)


def _entry_lines(entry: dict[str, Any], agent: str) -> Iterator[str]:
    kind, head = entry.get("type"), f"### {agent}"
    by = f" by {_one(actor_with_place(entry['by']))}" if isinstance(entry.get("by"), dict) else ""
    if kind == "llm_call":
        yield from ("", f"{head}{_one(entry.get('model'))}: {_one(entry.get('status'))}{by}")
        values = [entry.get("content") if entry.get("tool_calls") else None, entry.get("error")]
    elif kind == "tool_execution":
        yield from ("", f"{head}{_one(entry.get('tool_name'))}: {_one(entry.get('held') or entry.get('status'))}{by}")
        values = [entry.get("arguments"), entry.get("result")]
    elif kind in ("user_input", "began"):
        return
    else:
        yield from ("", f"{head}{_one(kind)}{by}")
        values = [{key: value for key, value in entry.items() if key not in PLACES}]
    for value in values:
        if value:
            yield from ("", _fenced(value))


def _one(value: object) -> str:
    """A value on one line, with Markdown and HTML escaped."""
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", " ".join(str(value).split()))


def _fenced(value: object) -> str:
    """A value as a block; its fence is longer than any in it."""
    text = data_text(value, 2)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{'' if isinstance(value, str) else 'json'}\n{text}\n{fence}"


def json_lines(record: dict[str, Any], findings: Sequence[dict[str, Any]] = ()) -> Iterator[str]:
    """A record as lines of JSON: its head, each trace entry with its turn, and each turn's summary; then findings.

    `lines` of a summary are the turn's other lines: those of the agents inside, and of the log itself.
    """
    for line in _json_values(record, findings):
        yield json.dumps(line, default=plain_value) + "\n"


def _json_values(record: dict[str, Any], findings: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield {"type": "session", **{key: value for key, value in record.items() if key != "turns"}}
    for turn in record["turns"]:
        yield from ({"turn": turn.get("turn"), **entry} for entry in turn["trace"] if isinstance(entry, dict))
        shown = set(map(id, turn["trace"]))
        others = [line for line in turn["lines"] if id(line) not in shown]
        yield {"type": "turn_ended", **{key: value for key, value in turn.items() if key != "trace"}, "lines": others}
    yield from ({"type": "finding", **one} for one in findings)


def _page(record: dict[str, Any], findings: Sequence[dict[str, Any]] = ()) -> Iterator[str]:
    yield from page_parts(record, findings)


_PIECE = 1 << 16  # characters of an export that are in memory at once

Exporter = Callable[[dict[str, Any], Sequence[dict[str, Any]]], Iterator[str]]
EXPORTERS: dict[str, Exporter] = {"md": markdown, "jsonl": json_lines, "html": _page}
"""The forms of export by name: functions of a record, as `read_record` returns it, and its findings; in parts."""


@click.command("export", short_help="A record as Markdown, as lines of JSON or as a page.")
@click.argument("record", required=False, metavar="[RECORD]")
@click.option("--to", "form", type=click.Choice(list(EXPORTERS)), default="md", show_default=True, help="The form.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="The file; else standard output.")
@click.option("--whole", is_flag=True, help="Include long texts whole, not their head and tail.")
def command(record: str | None, form: str, output: str | None, whole: bool) -> None:
    """Print a record in another form, or write it to FILE."""
    path = find_record(record)
    data = read_record(path, conversation=False) if form == "md" else read_lazily(path)
    with SpooledTemporaryFile(_PIECE, "w+", encoding="utf-8", errors="surrogatepass", newline="") as text:
        with refuse_odd(path):  # before any of it is written
            for part in EXPORTERS[form](restored(data, blob_folder(path)) if whole else data, findings_of(path)):
                text.write(part)  # `writelines` would keep all of it in memory
        text.seek(0)
        pieces = iter(partial(text.read, _PIECE), "")
        if output is None:
            for piece in pieces:
                click.echo(piece, nl=False)
        else:
            _write(Path(output), pieces)


def _write(path: Path, pieces: Iterator[str]) -> None:
    try:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(pieces)
    except OSError as error:
        raise click.FileError(str(path), f"{error.strerror}; name another file with -o") from error
