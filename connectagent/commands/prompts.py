"""Prompts from a file, with the fields of each line; for the commands that take many of them."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TextIO

import click

from connectagent.commands.failure import usage_error
from connectagent.errors import did_you_mean
from connectagent.output.rows import many

_FIELD = re.compile(r"\{(\w[\w .-]*)\}")  # the header of a table may have spaces
_LONGEST_CELL = 2**31 - 1  # of a CSV file, in characters: as long as a line of JSON may be
_KINDS = "a prompt a line, in .jsonl a text or an object a line, in .csv or .tsv a header and rows"
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_A_LINE = "each line is a text or an object of its own"

Command = Callable[..., Any]


class Prompt(NamedTuple):
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


class Number(click.FloatRange):
    """A number in a range; click's own takes `nan` for one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return self.fail(f"{value!r} is no number.", param, ctx) if math.isnan(number) else number


def prompt_options(function: Command) -> Command:
    """Add the options of commands that take many prompts."""
    for option in (
        click.option(
            "--trust", metavar="POLICY", help="The policy for tool calls of agents that have none in the script."
        ),
        click.option("--max-usd", metavar="USD", type=Number(min=0), help="Begin no more once this is spent."),
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


def read_prompts(path: str, template: str | None, sample: int | None = None) -> list[Prompt]:
    """The prompts of a file, or of standard input for `-`.

    Args:
        path: the file.
        template: the prompt, with {field} for the fields of each line; None for the field `prompt`.
        sample: how many of them to take, always the same ones; None for all.

    Raises:
        click.UsageError: the file cannot be read, or a line has no prompt.
    """
    shown = "standard input" if path == "-" else repr(path)
    try:
        with _opened(path) as file:
            found = [_line(fields, template, f"{path}:{line}") for line, fields in _lines(file, path)]
    except UnicodeDecodeError:
        raise usage_error(f"{shown} is not in UTF-8; save it so, for example: iconv -t UTF-8") from None
    except OSError as error:
        near = did_you_mean(path, map(str, Path(path).parent.glob("*"))) if not Path(path).exists() else ""
        raise usage_error(f"{shown} cannot be read: {error.strerror}.{near}") from None
    if not found:
        raise usage_error(f"{shown} has no prompts; it takes {_KINDS}")
    _check_ids(found)
    if sample is not None and sample < len(found):
        chosen = sorted(random.Random(0).sample(range(len(found)), sample))
        found = [found[number] for number in chosen]
    return found


@contextlib.contextmanager
def _opened(path: str) -> Iterator[TextIO]:
    if path != "-":
        with open(path, encoding="utf-8-sig", newline="") as file:
            yield file
        return
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="strict")  # a prompt must not lose letters
    yield sys.stdin


def _lines(file: TextIO, path: str) -> Iterator[tuple[int, Any]]:
    """The lines of a file that are not empty, with their numbers: a text each, or a dict of fields."""
    suffix = Path(path).suffix.lower()
    if suffix in _SEPARATORS:
        yield from _rows(csv.reader(file, strict=True, delimiter=_SEPARATORS[suffix]), path)
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
            raise usage_error(f"{path}:{number} is not JSON: {error}; {_A_LINE}") from None


class Reader(Protocol):
    """A reader of `csv`."""

    @property
    def line_num(self) -> int: ...
    def __iter__(self) -> Iterator[list[str]]: ...
    def __next__(self) -> list[str]: ...


def _rows(reader: Reader, path: str) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a table, each with the number of its last line."""
    limit = csv.field_size_limit(_LONGEST_CELL)
    try:
        header: list[str] = next(reader, [])
        for row in filter(None, reader):
            if len(row) != len(header):
                cells = f"{many(len(row), 'cell')}, and the header {len(header)}"
                raise usage_error(f'{path}:{reader.line_num} has {cells}; a text with a separator stands in "quotes"')
            yield reader.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise usage_error(f"{path}:{reader.line_num} is no row of a table: {error}") from None
    finally:
        csv.field_size_limit(limit)


def _line(fields: object, template: str | None, place: str) -> Prompt:
    given = {"prompt": fields} if isinstance(fields, str) else fields
    if not isinstance(given, dict):
        raise usage_error(f"{place} is {json.dumps(fields)[:80]}; {_A_LINE}")
    known = ", ".join(given) or "none"
    if template is None:
        if "prompt" not in given:
            raise usage_error(f"{place} has no field 'prompt', but {known}; --prompt 'Sort {{text}}' makes one of them")
        text = given["prompt"]
        if not isinstance(text, str):
            raise usage_error(f"{place}: the field 'prompt' is no text, but {json.dumps(text)[:80]}")
    else:
        missing = [name for name in _FIELD.findall(template) if given.get(name) is None]
        if missing:
            raise usage_error(f"{place} has no field {missing[0]!r}, which --prompt uses; its fields: {known}")
        text = _FIELD.sub(lambda found: _text(given[found[1]]), template)
    if not text.strip():
        raise usage_error(f"{place}: the prompt is empty")
    return Prompt(_text(given["id"]) if given.get("id") not in (None, "") else None, text, given, place)


def _text(value: object) -> str:
    """The value of a field in a prompt: a text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _check_ids(lines: list[Prompt]) -> None:
    """Refuse an id that two lines have: their results could not be told apart, nor their records.

    Raises:
        click.UsageError: there is one.
    """
    seen: dict[str, str] = {}
    for line in lines:
        if line.id is not None and (other := seen.setdefault(line.id, line.place)) != line.place:
            raise usage_error(f"{line.place} has the id {line.id!r}, as {other} has; give each its own, or none")
