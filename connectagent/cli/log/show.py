"""`connectagent log show`: a session as a tree of turns, iterations, model calls and tools."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import click

from connectagent.cli.log.inside import PLACES, Inside, kind_of
from connectagent.cli.log.tree import Node, show_tree
from connectagent.commands.tables import (
    cost_text,
    echo_json,
    json_option,
    local_time,
    number_of,
    record_argument,
    rows,
    terminal,
    tokens_text,
)
from connectagent.errors import ConfigError
from connectagent.output.rows import Row, call_text, duration, spent_texts
from connectagent.output.text import actor, actor_with_place
from connectagent.records.amended import with_retries
from connectagent.records.file import BETWEEN_TURNS
from connectagent.records.find import find_record
from connectagent.records.history import joined_turns
from connectagent.records.read import read_ends, read_lazily, refuse_odd
from connectagent.records.summary import summarise
from connectagent.records.texts import data_text
from connectagent.session.usage import Spent, usage_of

Parts = tuple[tuple[str, str], ...]

_MOST = 300  # characters of a text, without --full
_LONG = 8_000_000  # bytes of a record that is shown without its middle
_LONG_VALUE = 100_000  # characters of JSON
_DONE = {"message": "added a message", "message_edited": "edited a message", "message_removed": "removed a message"}
_DONE |= {"state_delta": "changed the state", "session_delta": "changed the session"}
_BAD = ("error", "crashed", "interrupted", "cancelled")


@click.command("show", short_help="A session as a tree: who did what, when, at what cost.")
@record_argument
@click.option("--turn", "number", type=int, metavar="N", help="Only this turn.")
@click.option("--full", is_flag=True, help="Shorten nothing: arguments, results, texts and all keys of each entry.")
@json_option
def command(record: str | None, number: int | None, full: bool, as_json: bool) -> None:
    """Print a session as a tree: turns, iterations, model calls, tools, and who changed what.

    A record of over 8 MB is cut to 500 entries at each end, or to those of the turn in --turn; --full shows all.
    """
    path = find_record(record)
    with refuse_odd(path):
        _show(path, number, full, as_json)


def _show(path: Path, number: int | None, full: bool, as_json: bool) -> None:
    is_long = path.stat().st_size > _LONG and not full and not as_json
    data = read_ends(path, number) if is_long else read_lazily(path)
    turns = [turn for turn in joined_turns(data) if number is None or turn.get("turn") == number]
    if number is not None and not turns:
        known = sorted({str(turn.get("turn")) for turn in data["turns"]})
        raise ConfigError(f"{path.name} has no turn {number}; it has {', '.join(known) or 'none'}")
    if as_json:
        echo_json({**data, "turns": turns})
        return
    last = "crashed" if number is not None else summarise(path).status
    show_tree(Node(_head(path, data), chain(_given(data, full), _turns(turns, last, full))), terminal())


def _head(path: Path, data: dict[str, Any]) -> Parts:
    dot = terminal().glyphs.dot
    if "agent" not in data:  # killed before its head was written
        return ((path.name, "bold"), (f" {dot} empty", ""))
    head = f"{data['agent']} {dot} {data.get('model')} {dot} "
    return ((head, "bold"), (local_time(data.get("started"), "%Y-%m-%d %H:%M:%S"), ""))


def _given(data: dict[str, Any], full: bool) -> Iterator[Node]:
    """The beginning of the session above its turns: plugins and system prompt."""
    plugins = data.get("plugins")
    if isinstance(plugins, dict) and plugins:
        named = ", ".join(_plugin(str(name), version, data.get("plugin_sources")) for name, version in plugins.items())
        yield Node(((f"plugins: {_cut(named, full)}", "dim"),))
    if data.get("system_prompt"):
        yield Node(((f"system prompt: {_cut(data['system_prompt'], full)}", "dim"),))


def _plugin(name: str, version: object, sources: object) -> str:
    """A plugin with its version, or the beginning of its source's hash, and its options."""
    source = sources.get(name) if isinstance(sources, dict) else None
    source = source if isinstance(source, dict) else {}
    digits = str(source["sha256"])[:8] if "sha256" in source else ""
    options = source.get("options")
    given = ", ".join(f"{key}={value!r}" for key, value in options.items()) if isinstance(options, dict) else ""
    return " ".join(part for part in (name, str(version or digits), f"({given})" if given else "") if part)


def _turns(turns: list[dict[str, Any]], last: str, full: bool) -> Iterator[Node]:
    for turn in turns:
        yield _turn(turn, last if turn is turns[-1] else "crashed", full)


def _turn(turn: dict[str, Any], unended: str, full: bool) -> Node:
    status = str(turn.get("status") or unended)
    inside = Inside(turn.get("lines") or [], is_running=status == "running")
    entries = _entries(with_retries(turn["trace"]), full, inside, f"T{turn.get('turn')}")
    if status == BETWEEN_TURNS:
        return Node((("between turns", "bold"),), entries)
    parts = [status]
    if "status" in turn:
        used = number_of(turn.get("tokens"))
        parts.append(duration(number_of(turn.get("duration_ms")) or 0))
        parts.append(f"{tokens_text(None if used is None else int(used))} tok")
        parts.append(cost_text(number_of(turn.get("cost")), number_of(turn.get("known_cost"))))
    style = "red" if status in _BAD else "green" if status == "answered" else "yellow"
    ends = [
        Node(((_cut(turn[key], full), "red" if key == "error" else ""),))
        for key in ("error", "result")
        if turn.get(key) is not None
    ]
    label = ((f"turn {turn.get('turn')} ", "bold"), (_cut(turn.get("input"), full), "bold"))
    return Node(label, chain(entries, [Node((("  ".join(parts), style),), ends)]))


def _entries(trace: list[Any], full: bool, inside: Inside, place: str) -> Iterator[Node]:
    """The entries below their iterations; the first ones belong to the turn itself."""
    iteration, below = None, list[Any]()
    own = [entry for entry in trace if kind_of(entry) not in ("user_input", "began")]
    for entry in chain(own, inside.open_in(place, own)):
        if kind_of(entry) in ("llm_call", "began") and entry.get("iteration") != iteration:
            yield from _iteration(iteration, below, full, inside)
            iteration, below = entry.get("iteration"), []
        below.append(entry)
    yield from _iteration(iteration, below, full, inside)


def _iteration(iteration: object, entries: list[Any], full: bool, inside: Inside) -> Iterator[Node]:
    nodes = (_entry(entry, full, inside) for entry in entries)
    if iteration is None:
        yield from nodes
    else:
        yield Node(((f"iteration {iteration}", "dim"),), nodes)


def _entry(entry: dict[str, Any], full: bool, inside: Inside) -> Node:
    first, *more = _rows(entry, inside.is_running)
    below = chain((Node(_row(row, full)) for row in more), _details(entry, full))
    if kind_of(entry) == "agent_turn":
        below = chain(below, _of_agent(entry, full, inside))
    elif kind_of(entry) == "began":
        agents = ((((f"agent {one.get('agent')}", "cyan"),), one) for one in inside.begun_by(entry))
        below = chain(below, (Node(label, _of_agent(one, full, inside)) for label, one in agents))
    return Node(_row(first, full), below)


def _of_agent(asked: dict[str, Any], full: bool, inside: Inside) -> Iterator[Node]:
    """What happened in the turn of an agent inside."""
    return _entries(with_retries(inside.of(asked)), full, inside, str(asked.get("id")))


def _details(entry: dict[str, Any], full: bool) -> Iterator[Node]:
    """Who wrote an entry, and with `full` its keys."""
    if not isinstance(entry, dict):
        return
    by = entry.get("by")
    if isinstance(by, dict) and actor_with_place(by) != actor(by):
        yield Node(((f"by {actor_with_place(by)}", "dim"),))
    for key, value in entry.items() if full else ():
        if key not in ("type", "by") and value not in (None, "", [], {}):
            yield Node(((f"{key}: {_lines(value)}", "dim"),), is_whole=True)


def _lines(value: object) -> str:
    """A value on several lines; a long one on one line, which takes a fraction of the time."""
    text = data_text(value)
    return text if isinstance(value, str) or len(text) > _LONG_VALUE else data_text(value, 2)


def _rows(entry: dict[str, Any], is_running: bool) -> list[Row]:
    kind, glyphs = kind_of(entry), terminal().glyphs
    if kind == "began":
        call = call_text(entry["tool_name"], entry.get("arguments")) if "tool_name" in entry else "the model call"
        if is_running:
            return [Row(4, ((f"{glyphs.other} {call} is running", "yellow"),))]
        return [Row(4, ((f"{glyphs.bad} {call} was running when the turn stopped", "red"),))]
    if kind == "left_out":
        return [Row(4, ((f"{entry.get('lines')} lines are left out: --full, or --turn N", "yellow"),))]
    if kind == "agent_turn":
        return [Row(4, ((f"agent {entry.get('agent')}", "cyan"),), _spent(entry))]
    if made := rows(entry) if kind is not None else []:
        return made
    if kind in _DONE:
        return [_done(entry, str(kind))]
    rest = {key: value for key, value in entry.items() if key not in PLACES} if kind else entry
    return [Row(4, ((f"{kind or 'entry'}: ", ""), (data_text(rest), "dim")))]


def _done(entry: dict[str, Any], kind: str) -> Row:
    """What was said or set, which the console does not show."""
    message, delta = entry.get("message"), entry.get("delta")
    text = data_text(message.get("content")) if isinstance(message, dict) else ""
    if isinstance(delta, dict):
        gone = [str(key) for key in entry.get("removed") or ()]
        given = [f"{key} = {data_text(value)}" for key, value in delta.items() if key not in gone]
        text = ", ".join([*given, *(f"{key} was removed" for key in gone)])
    return Row(4, ((f"+ {actor(entry.get('by'))} {_DONE[kind]}", ""), (f": {text}" if text else "", "dim")))


def _spent(entry: dict[str, Any]) -> str:
    spent = Spent()
    spent.add(usage_of(entry))
    return "  ".join([duration(number_of(entry.get("duration_ms")) or 0), *filter(None, spent_texts(spent))])


def _row(row: Row, full: bool) -> Parts:
    right = ((f"  {row.right}", "dim"),) if row.right else ()
    return (*((_cut(text, full), style) for text, style in row.parts), *right)


def _cut(value: object, full: bool) -> str:
    text = data_text(value)
    return text if full or len(text) <= _MOST else f"{text[:_MOST]}... ({len(text) - _MOST} more characters)"
