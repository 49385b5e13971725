"""`connectagent log grep`: searches all records for a text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click

from connectagent.cli.log.inside import agent_of, kind_of, turns_of
from connectagent.commands.failure import usage_error
from connectagent.commands.tables import agent_option, each
from connectagent.output.text import visible
from connectagent.records.read import read_record
from connectagent.session.journal import LINES

_AROUND = 100  # characters that are shown on both sides of a match in a long line


@click.command("grep", short_help="Search all records for a text.")
@click.argument("pattern")
@click.option("-i", "--ignore-case", is_flag=True, help="Ignore the difference of capital and small letters.")
@agent_option
def command(pattern: str, ignore_case: bool, agent: str | None) -> None:
    """Print each line of prompts, answers, arguments, results and errors that matches PATTERN, a regular expression.

    It is preceded by the record, the turn, the name of an agent inside, and the type of the trace entry. The exit code
    is 1 where nothing matches.
    """
    try:
        sought = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        raise usage_error(f"{pattern!r} is not a regular expression: {error}") from error
    found = False
    for path, matches in each(lambda path: list(_matches(read_record(path, conversation=False), sought)), agent):
        for place, line, match in matches:
            found = True
            start, end = max(0, match.start() - _AROUND), match.end() + _AROUND
            parts = [line[start : match.start()], line[match.start() : match.end()], line[match.end() : end]]
            before, there, after = (visible(part, len(part)) for part in parts)
            more = ("..." if start else "", "..." if end < len(line) else "")
            match_text = click.style(there, fg="red", bold=True) if there else ""
            click.echo(f"{visible(path.name)}:{place}: {more[0]}{before}{match_text}{after}{more[1]}")
    if not found:
        raise SystemExit(1)


def _matches(record: dict[str, Any], sought: re.Pattern[str]) -> Iterator[tuple[str, str, re.Match[str]]]:
    """Each line with its place and the match in it; a line that repeats within a turn comes once."""
    groups: list[tuple[str, list[tuple[str, Any]]]] = [("head", [("system_prompt", record.get("system_prompt"))])]
    root = str(record.get("agent"))
    for turn in record["turns"]:
        entries: list[tuple[str, Any]] = [("input", turn.get("input"))]
        entries += [(_place(line, root), line) for line in turn["lines"] if str(kind_of(line)) not in LINES]
        entries += [(key, turn.get(key)) for key in ("result", "error")]
        groups.append((f"turn {visible(turn.get('turn'), 20)}", entries))
    for name, entries in groups:
        seen = set()
        for kind, value in entries:
            for line in _lines(value):
                match = sought.search(line) if line not in seen else None
                if match:
                    seen.add(line)
                    yield f"{name}:{kind}", line, match


def _place(line: dict[str, Any], root: str) -> str:
    """The type of an entry, after the agent's name where it is inside another one."""
    kind, name = visible(line.get("type"), 40), agent_of(line, root)[1]
    return f"{visible(name, 60)}:{kind}" if turns_of(line) else kind


def _lines(value: object, key: str = "") -> Iterator[str]:
    if isinstance(value, str):
        yield from value.splitlines()
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in ("type", "timestamp", "file"):
                yield from _lines(item, str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _lines(item, key)
    elif value is not None and key:
        yield f"{key}: {value}"
