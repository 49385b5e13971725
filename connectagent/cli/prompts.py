"""Prompts from a file, with the fields of each line; for the commands that take many of them."""

from __future__ import annotations

import contextlib
import csv
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import click

from connectagent.cli.failure import usage_error

_FIELD = re.compile(r"\{(\w+)\}")

Command = Callable[..., Any]


class Line(NamedTuple):
    """A prompt of a file.

    Args:
        id: its id, or None.
        prompt: the prompt.
        fields: all fields of the line.
        place: the file and the number of the line.
    """

    id: str | None
    prompt: str
    fields: dict[str, Any]
    place: str


def many_options(function: Command) -> Command:
    """Add the options of commands that take many prompts."""
    for option in (
        click.option(
            "--trust", metavar="POLICY", help="The policy for tool calls of agents that have none in the script."
        ),
        click.option(
            "--max-usd", metavar="USD", type=click.FloatRange(min=0), help="Begin no more once this is spent."
        ),
        click.option(
            "--max-failures", metavar="N", type=click.IntRange(min=0), help="Begin no more when over N have failed."
        ),
        click.option(
            "--sample", metavar="N", type=click.IntRange(min=1), help="Take N of the prompts, always the same ones."
        ),
        click.option(
            "--prompt", "template", metavar="TEXT", help="The prompt, with {field} for the fields of each line."
        ),
        click.option(
            "-j", "--concurrency", metavar="N", type=click.IntRange(1), default=16, help="How many run at once. [16]"
        ),
    ):
        function = option(function)
    return function


def read(path: str, template: str | None, sample: int | None = None) -> list[Line]:
    """The prompts of a file, or of standard input for `-`.

    Args:
        path: the file.
        template: the prompt, with {field} for the fields of each line; None for the field `prompt`.
        sample: how many of them to take, always the same ones; None for all.

    Raises:
        click.UsageError: the file cannot be read, or a line has no prompt.
    """
    try:
        with contextlib.ExitStack() as stack:
            file = sys.stdin if path == "-" else stack.enter_context(open(path, encoding="utf-8-sig", newline=""))
            found = [_line(fields, template, f"{path}:{line}") for line, fields in _lines(file, Path(path).suffix)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise usage_error(f"{path!r} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not found:
        raise usage_error(f"{path!r} has no prompts")
    if sample is not None and sample < len(found):
        chosen = sorted(random.Random(0).sample(range(len(found)), sample))
        found = [found[number] for number in chosen]
    return found


def _lines(file: TextIO, suffix: str) -> Iterator[tuple[int, Any]]:
    """The lines of a file that are not empty, with their numbers: a text each, or a dict of fields."""
    if suffix == ".csv":
        reader = csv.DictReader(file)
        yield from ((reader.line_num, fields) for fields in reader)
        return
    for number, line in enumerate(file, 1):
        if not (line := (line.removeprefix("\ufeff") if number == 1 else line).strip()):
            continue
        if suffix not in (".jsonl", ".ndjson", ".json"):
            yield number, line
            continue
        try:
            yield number, json.loads(line)
        except ValueError as error:
            raise usage_error(f"{file.name}:{number} is not JSON: {error}") from None


def _line(fields: Any, template: str | None, place: str) -> Line:
    given = {"prompt": fields} if isinstance(fields, str) else fields
    if not isinstance(given, dict):
        raise usage_error(f"{place} is neither a text nor an object with fields: {json.dumps(fields)[:80]}")
    known = ", ".join(str(name) for name in given) or "none"
    if template is None:
        text = given.get("prompt")
        if not isinstance(text, str) or not text.strip():
            raise usage_error(f"{place} has no field 'prompt', but {known}; --prompt 'Sort {{text}}' makes one of them")
    else:
        missing = [name for name in _FIELD.findall(template) if name not in given]
        if missing:
            raise usage_error(f"{place} has no field {missing[0]!r}, which --prompt uses; its fields: {known}")
        text = _FIELD.sub(lambda found: str(given[found[1]]), template)
    return Line(None if given.get("id") is None else str(given["id"]), text, given, place)
