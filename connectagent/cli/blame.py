"""`connectagent blame`: who made each message of a conversation, and who changed it."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from connectagent.commands.tables import (
    Column,
    echo,
    echo_json,
    json_option,
    record_argument,
    show_table,
    terminal,
)
from connectagent.errors import ConfigError, did_you_mean
from connectagent.output.rows import first_line
from connectagent.output.text import actor, actor_with_place, clean, visible
from connectagent.output.words import ADDED, REMOVED, SAME, Piece, word_diff
from connectagent.records.blobs import blob_folder
from connectagent.records.changes_by_plugins import PluginChange, plugin_changes
from connectagent.records.find import find_record
from connectagent.records.history import history_of
from connectagent.records.read import read_lazily, refuse_odd
from connectagent.records.texts import data_text
from connectagent.records.watched import watched_agents
from connectagent.session.history import Change, History, Line

_NEAR = 200  # characters that are shown around a change
_MARKS: dict[str, tuple[str, dict[str, Any]]] = {
    SAME: ("{}", {}),
    REMOVED: ("[-{}-]", {"fg": "red", "strikethrough": True}),
    ADDED: ("{{+{}+}}", {"fg": "green"}),
}


@click.command(short_help="Who made each message of a session, and who changed it.")
@record_argument
@click.argument("what", required=False, metavar="[MESSAGE|entry:N|plugin:NAME]")
@json_option
def blame(record: str | None, what: str | None, as_json: bool) -> None:
    """Print who made each message of a session, and who changed it.

    With the number of a message, print all of its changes. With entry:N, print what that trace entry changed. With
    plugin:NAME, print all that a plugin changed, in the agents inside too.
    """
    path = find_record(record)
    with refuse_odd(path):
        if what is not None and what.startswith("plugin:"):
            _plugin(path, what.removeprefix("plugin:"), as_json)
        else:
            _print_blame(history_of(path), what, as_json)


def _print_blame(history: History, what: str | None, as_json: bool) -> None:
    if what is None:
        changes = _listed(history)
        echo_json([_data(line, number) for number, line in changes]) if as_json else _table(changes)
    elif what.startswith("entry:"):
        _entry(history, _number(what[6:], len(history.entries), "entry"), as_json)
    else:
        number = _number(what.removeprefix("message:"), len(history.lines), "message")
        line = history.lines[number]
        echo_json(_data(line, number)) if as_json else _message(line, number)


def _plugin(path: Path, name: str, as_json: bool) -> None:
    """Print what a plugin changed."""
    changes = plugin_changes(watched_agents(read_lazily(path), blob_folder(path)))
    mine = [change for change in changes if change.plugin == name]
    if not mine:
        known = sorted({change.plugin for change in changes})
        hint = did_you_mean(name, known)
        raise ConfigError(f"plugin {name!r} changed nothing.{hint} There are changes by: {', '.join(known) or 'none'}")
    if as_json:
        return echo_json([_change_data(change) for change in mine])
    for number, change in enumerate(mine):
        if number:
            echo("")
        inside = f" in {visible(change.inside)}" if change.inside else ""
        echo(f"{change.maker} {change.did}{inside}, {change.place}")
        _show(word_diff(change.before, change.after))


def _change_data(change: PluginChange) -> dict[str, Any]:
    data = {"plugin": change.plugin, "by": change.maker, "did": change.did}
    more = {"hook": change.by.get("hook"), "where": change.place, "in": change.inside}
    data |= {key: value for key, value in more.items() if value}
    return {**data, "diff": word_diff(change.before, change.after)}


def _listed(history: History) -> list[tuple[int | None, Line]]:
    """The messages with their numbers, then the removed ones."""
    return [*enumerate(history.lines), *((None, line) for line in history.removed)]


def _number(text: str, count: int, kind: str) -> int:
    number = int(text) if text.isdecimal() else -1
    if not 0 <= number < count:
        known = f"0 to {count - 1}" if count else "none"
        raise ConfigError(f"there is no {kind} {text!r}; the record has {known}")
    return number


def _table(changes: list[tuple[int | None, Line]]) -> None:
    cells = []
    for number, line in changes:
        first, *rest = line.changes
        since = ", ".join(f"{change.did} by {actor(change.by)}" for change in rest)
        cells.append([
            "-" if number is None else str(number),
            visible(line.message.get("role"), 20),
            _when(first),
            actor(first.by),
            visible(since),
            visible(_words(line.message), 200),
        ])  # fmt: skip
    columns = [Column("#", right=True), Column("role", 9), Column("turn", 6), Column("made by", 30)]
    show_table([*columns, Column("and then", 40), Column("message")], cells)


def _when(change: Change) -> str:
    return f"{change.turn}.{change.iteration}" if change.iteration else str(change.turn)


def _words(message: Any) -> str:
    calls = ", ".join(str((call.get("function") or {}).get("name")) for call in message.get("tool_calls") or ())
    text = first_line(message.get("content") or "")
    return f"{text} -> {calls}" if text and calls else text or (f"-> {calls}" if calls else "")


def _message(line: Line, number: int) -> None:
    echo(f"message {number}, {visible(line.message.get('role'), 20)}")
    before = None
    for change in line.changes:
        entry = f"; entry:{change.entry}" if change.entry >= 0 else ""
        echo(f"\n{change.did} by {actor_with_place(change.by)}\nin turn {_when(change)}{entry}")
        if change.message is not None:
            _show(_words_changed(before, change.message))
            before = change.message


def _words_changed(before: Any, now: Any) -> list[Piece]:
    return [(SAME, _whole(now))] if before is None else word_diff(_whole(before), _whole(now))


def _show(pieces: list[Piece]) -> None:
    """Print a text with its changes: `[-removed-]`, `{+added+}`, on a terminal also in red and green.

    Of what is the same between changes, the middle of a long text is left out.
    """
    coloured = terminal().interactive and not os.environ.get("NO_COLOR")
    shown = []
    for number, (kind, text) in enumerate(pieces):
        marks, style = _MARKS[kind]
        if kind == SAME and len(pieces) > 1:
            text = _without_middle(text, number > 0, number < len(pieces) - 1)
        shown.append(click.style(marks.format(clean(text)), **style) if coloured else marks.format(clean(text)))
    click.echo(_indented("".join(shown)))


def _without_middle(text: str, follows: bool, goes_on: bool) -> str:
    """What is the same, without what is far from a change."""
    head, tail = _NEAR * follows, _NEAR * goes_on
    if len(text) <= head + tail + _NEAR:
        return text
    return f"{text[:head]}[... {len(text) - head - tail} characters ...]{text[len(text) - tail :]}"


def _entry(history: History, number: int, as_json: bool) -> None:
    entry, by = history.entries[number], history.entries[number].get("by") or {}
    touched = [
        (place, line, change)
        for place, line in _listed(history)
        for change in line.changes
        if change.entry == number
    ]  # fmt: skip
    if as_json:
        messages = [{"message": place, "did": change.did, "by": change.by} for place, _, change in touched]
        return echo_json({"entry": number, **entry, "messages": messages})
    echo(f"entry {number}, {visible(entry.get('type'), 40)}" + (f", by {actor_with_place(by)}" if by else ""))
    for place, line, change in touched:
        which = f"message {place}" if place is not None else "a message that is gone"
        echo(f"{change.did} {which}, by {actor_with_place(change.by)}")
        before = [one.message for one in line.changes[: line.changes.index(change)]]
        if change.message is not None and before:
            _show(_words_changed(before[-1], change.message))
    echo(_indented(data_text({key: value for key, value in entry.items() if key != "by"}, indent=2)))


def _whole(message: Any) -> str:
    calls = [call.get("function") or {} for call in message.get("tool_calls") or ()]
    calls_text = [f"-> {call.get('name')}({call.get('arguments')})" for call in calls]
    content = message.get("content")
    return "\n".join([*([data_text(content)] if content not in (None, "") else []), *calls_text]) or "(empty)"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _data(line: Line, number: int | None) -> dict[str, Any]:
    now = None if number is None else line.message
    return {"message": number, "now": now, "changes": [asdict(change) for change in line.changes]}
