"""The command lines that read a record, from click's tree of commands: a new command is among them by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click

SCRIPT = "shop.py"
BAD = ["--bad", "says /./"]
# What a command needs besides the record. A new command without a row is tried with the record alone.
MORE = {
    "bisect": [*BAD, "--samples", "1"],
    "compare": [*BAD, "-p", "no:xray"],
    "bill": ["-p", "no:xray"],
    "report": BAD,
    "blame": ["0"],
}
ENDLESS = ("view", "chat")  # they serve until they are stopped; their pages and turns have tests of their own
_RECORD = re.compile(r"records?|first|second|one|two|other|before|after")


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The command lines, each alone and with the script if it takes one; RECORD stands for the record."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        elif name not in ENDLESS and (given := list(_records(command))):
            yield (*path, name, *given, *MORE.get(name, []))
            if script := _script(command):
                yield (*path, name, *given, *script, *MORE.get(name, []))


def _records(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        if parameter.name is not None and _RECORD.fullmatch(parameter.name):
            yield from ["RECORD"] if isinstance(parameter, click.Argument) else [parameter.opts[0], "RECORD"]


def _script(command: click.Command) -> list[str]:
    """How a command is given a script; [] where it takes none."""
    context = click.Context(command)
    for parameter in command.params:
        if "--script" in parameter.opts:
            return ["--script", SCRIPT]
        if isinstance(parameter, click.Argument) and "SCRIPT" in parameter.make_metavar(context):
            return [SCRIPT]
    return []


def arguments(command: tuple[str, ...], record: str) -> list[str]:
    """The arguments of a command for a record."""
    return [record if word == "RECORD" else word for word in command]
