"""`connectagent log export`: a record as a document or a page, or as lines for other programs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from connectagent.cli.log.reading import cost_text, data_text, local_time, number_of, plain_value
from connectagent.cli.view.page import page_of
from connectagent.output.text import actor_with_place, clean
from connectagent.records.blobs import blob_folder, restored
from connectagent.records.file import BETWEEN_TURNS
from connectagent.records.find import find_record
from connectagent.records.findings import findings_of
from connectagent.records.history import joined_turns
from connectagent.records.read import read_record, refuse_odd


def markdown(record: dict[str, Any], findings: Sequence[dict[str, Any]] = ()) -> str:
    """A record as a Markdown document, with what `connectagent bisect` found of it."""
    head = f"{_one(record.get('model') or '?')}, {local_time(record.get('started'))}"
    lines = [f"# {_one(record.get('agent') or 'empty')}", "", head]
    if record.get("system_prompt"):
        lines += ["", "## System prompt", "", _fenced(record["system_prompt"])]
    for turn in joined_turns(record):
        between = turn.get("status") == BETWEEN_TURNS
        lines += ["", "## Between turns" if between else f"## Turn {_one(turn.get('turn'))}"]
        if not between:
            lines += ["", _fenced(turn.get("input"))]
        for entry in turn["trace"]:
            lines += _entry_lines(entry) if isinstance(entry, dict) else []
        if not between:
            cost = cost_text(number_of(turn.get("cost")))
            lines += ["", f"**{_one(turn.get('status') or 'never ended')}**, cost {cost}"]
            lines += [part for key in ("error", "result") if turn.get(key) for part in ("", _fenced(turn[key]))]
    for one in findings:
        lines += ["", f"## bisect: {_one(one['symptom'])}", "", _fenced("\n".join(one["said"]))]
    return clean("\n".join(lines)) + "\n"


def _entry_lines(entry: dict[str, Any]) -> Iterator[str]:
    kind = entry.get("type")
    by = f" by {_one(actor_with_place(entry['by']))}" if isinstance(entry.get("by"), dict) else ""
    if kind == "llm_call":
        yield from ("", f"### {_one(entry.get('model'))}: {_one(entry.get('status'))}{by}")
        values = [entry.get("content") if entry.get("tool_calls") else None, entry.get("error")]
    elif kind == "tool_execution":
        yield from ("", f"### {_one(entry.get('tool_name'))}: {_one(entry.get('status'))}{by}")
        values = [entry.get("arguments"), entry.get("result")]
    elif kind in ("user_input", "began"):
        return
    else:
        yield from ("", f"### {_one(kind)}{by}")
        values = [{key: value for key, value in entry.items() if key not in ("type", "by", "timestamp")}]
    for value in values:
        if value:
            yield from ("", _fenced(value))


def _one(value: Any) -> str:
    """A value on one line, with Markdown and HTML escaped."""
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", " ".join(str(value).split()))


def _fenced(value: Any) -> str:
    """A value as a block; its fence is longer than any in it."""
    text = data_text(value, 2)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{'' if isinstance(value, str) else 'json'}\n{text}\n{fence}"


def json_lines(record: dict[str, Any], findings: Sequence[dict[str, Any]] = ()) -> str:
    """A record as lines of JSON: its head, each trace entry with its turn, and each turn's summary; then findings."""
    lines: list[Any] = [{"type": "session", **{key: value for key, value in record.items() if key != "turns"}}]
    for turn in record["turns"]:
        lines += [{"turn": turn.get("turn"), **entry} for entry in turn["trace"] if isinstance(entry, dict)]
        lines.append({"type": "turn_ended", **{key: value for key, value in turn.items() if key != "trace"}})
    lines += [{"type": "finding", **one} for one in findings]
    return "".join(json.dumps(line, default=plain_value) + "\n" for line in lines)


Exporter = Callable[[dict[str, Any], Sequence[dict[str, Any]]], str]
EXPORTERS: dict[str, Exporter] = {"md": markdown, "jsonl": json_lines, "html": page_of}
"""The forms of export by name: functions of a record, as `read_record` returns it, and its findings."""


@click.command("export", short_help="A record as Markdown, as lines of JSON or as a page.")
@click.argument("record", required=False, metavar="[RECORD]")
@click.option("--to", "form", type=click.Choice(list(EXPORTERS)), default="md", show_default=True, help="The form.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="The file; else standard output.")
@click.option("--whole", is_flag=True, help="Include long texts whole, not their head and tail.")
def command(record: str | None, form: str, output: str | None, whole: bool) -> None:
    """Print a record in another form, or write it to FILE."""
    path = find_record(record)
    data = read_record(path)
    with refuse_odd(path):
        text = EXPORTERS[form](restored(data, blob_folder(path)) if whole else data, findings_of(path))
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        Path(output).write_text(text, "utf-8")
    except OSError as error:
        raise click.FileError(output, f"{error.strerror}; name another file with -o") from error
