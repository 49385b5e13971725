"""What the commands share: reading records, and showing values and tables."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from connectagent.errors import ConfigError
from connectagent.output.rows import Row, price, rows_of, tokens
from connectagent.output.terminal import Terminal
from connectagent.output.text import clean, visible
from connectagent.records.find import agent_in_name, all_records, records_folder
from connectagent.records.read import refuse_odd
from connectagent.records.texts import data_text, plain_value

Read = TypeVar("Read")


def each(read: Callable[[Path], Read], agent: str | None = None) -> Iterator[tuple[Path, Read]]:
    """The value of `read` for each record, the newest first; one that cannot be read is named on stderr.

    Args:
        read: a function of the path.
        agent: only records of this agent, by their file names.
    """
    from connectagent.records.paths import safe_name

    paths = all_records()
    if not paths:
        click.echo(f"no records in {visible(records_folder())}; an agent's first turn makes one", err=True)
    for path in paths:
        if agent is not None and agent_in_name(path) != safe_name(agent):
            continue
        try:
            with refuse_odd(path):
                value = read(path)
        except (OSError, ConfigError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error).removeprefix(f"{path}: ")
            click.echo(f"skipped {visible(path.name)}: {visible(reason, 200)}", err=True)
            continue
        yield path, value


def terminal() -> Terminal:
    """Standard output, for rows and tables."""
    return Terminal(sys.stdout)


def echo_json(value: object) -> None:
    """Print a value as JSON in ASCII, without control characters."""
    parts = json.JSONEncoder(indent=2, default=plain_value).iterencode(value)
    while some := "".join(islice(parts, 20_000)):  # a record may be long: one part after the other takes less memory
        click.echo(some, nl=False)
    click.echo()


def echo(text: object) -> None:
    """Print a text of several lines without control characters."""
    click.echo(clean(str(text)))


_LEAST_CELLS = 8  # of the last column, beside the others
_INDENT = 2  # of a second line


class Column(NamedTuple):
    """A column of a table.

    Args:
        name: its heading.
        most: its width in cells, at most.
        right: whether its cells are aligned right.
    """

    name: str
    most: int = 1000
    right: bool = False


def show_table(
    columns: list[Column], cells: list[list[str]], style: Callable[[list[str]], str] = lambda cells: ""
) -> None:
    """Print a table of one line for each row; the last column takes the rest of the terminal's width.

    What does not fit is in a second line.

    rich's own tables take a second for a thousand rows, and shrink short columns in favour of a long one.
    """
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    screen = terminal()
    table = [[screen.text(cell) for cell in row] for row in cells]
    widths, first = _widths(columns, table, screen.width)
    more, indent = screen.glyphs.more, " " * _INDENT
    lines = []
    for row, cell_texts in zip([None, *cells], [[column.name for column in columns], *table], strict=True):
        laid = []
        for column, width, cell in zip(columns, widths, cell_texts, strict=True):
            if cell_len(cell) > width:
                cell = set_cell_size(cell, width - len(more)) + more
            gap = " " * (width - cell_len(cell))
            laid.append(gap + cell if column.right else cell + gap)
        shown = [" ".join(laid[:first]), indent + " ".join(laid[first:])]
        lines += [Text(line.rstrip(), "bold" if row is None else style(row)) for line in shown if line.strip()]
    screen.show(lines)


def _widths(columns: list[Column], table: list[list[str]], room: int) -> tuple[list[int], int]:
    """The cells of each column, and how many columns are in the first line."""
    from rich.cells import cell_len

    widths = [
        min(column.most, max([cell_len(column.name), *(cell_len(row[at]) for row in table)]))
        for at, column in enumerate(columns)
    ]
    widths[-1] = min(widths[-1], _LEAST_CELLS)
    first = len(widths)
    while first > 1 and sum(widths[:first]) + first - 1 > room:
        first -= 1
    is_one = first == len(widths)
    beside = widths[:-1] if is_one else [_INDENT - 1, *widths[first:-1]]
    widths[-1] = max(8, room - sum(beside) - len(beside))
    return widths, first


def rows(entry: dict[str, Any]) -> list[Row]:
    """The rows of an entry, as the console shows it; none for a type that it does not show."""
    try:
        return rows_of(entry, terminal().glyphs)
    except Exception:  # a handler may have put anything into the trace
        return [Row(4, ((data_text(entry), "dim"),), wrap=True)]


def tokens_text(count: int | None) -> str:
    """A number of tokens, shortened; `?` for None."""
    return "?" if count is None else tokens(count)


def cost_text(cost: float | None, known: float | None = None) -> str:
    """US dollars, shortened; `?` for None, behind the part that is known."""
    if cost is not None:
        return price(cost)
    return f"{price(known)} + ?" if known else "?"


def local_time(when: object, pattern: str = "%Y-%m-%d %H:%M") -> str:
    """A time in the user's time zone; `?` for anything else."""
    return when.astimezone().strftime(pattern) if isinstance(when, datetime.datetime) else "?"


def number_of(value: object) -> float | None:
    """A finite number from a record; None for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if abs(value) < 1e300 else None


record_argument = click.argument("record", required=False, metavar="[RECORD]")
"""The argument `record`: None, or what `find_record` takes."""
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
"""The option `--json`, as the parameter `as_json`."""
agent_option = click.option("--agent", metavar="NAME", help="Only records of this agent.")
