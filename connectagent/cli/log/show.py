"""`connectagent log show`: a session as a tree of turns, iterations, model calls and tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from connectagent.cli.log.reading import (
    cost_text,
    data_text,
    echo_json,
    json_option,
    local_time,
    number_of,
    record_argument,
    rows,
    sum_text,
    terminal,
)
from connectagent.errors import ConfigError
from connectagent.output.rows import Row, duration
from connectagent.output.text import actor_with_place, clean, visible
from connectagent.records.amended import with_retries
from connectagent.records.file import BETWEEN_TURNS
from connectagent.records.find import find_record
from connectagent.records.history import joined_turns
from connectagent.records.read import read_ends, read_record, refuse_odd
from connectagent.records.summary import summarise

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

_MOST = 300  # characters of a text, without --full
_LONG = 8_000_000  # bytes of a record that is shown without its middle
_BAD = ("error", "crashed", "interrupted")


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
    data = read_ends(path, number) if is_long else read_record(path)
    turns = [turn for turn in joined_turns(data) if number is None or turn.get("turn") == number]
    if number is not None and not turns:
        known = sorted({str(turn.get("turn")) for turn in data["turns"]})
        raise ConfigError(f"{path.name} has no turn {number}; it has {', '.join(known) or 'none'}")
    if as_json:
        echo_json({**data, "turns": turns})
        return
    from rich.tree import Tree

    last = summarise(path).status
    root = Tree(_head(path, data), guide_style="dim")
    _add_given(root, data, full)
    for turn in turns:
        _add_turn(root, turn, last if turn is turns[-1] and number is None else "crashed", full)
    terminal().show([root])


def _head(path: Path, data: dict[str, Any]) -> Text:
    dot = terminal().glyphs.dot
    if "agent" not in data:  # killed before its head was written
        return _text(((path.name, "bold"), (f" {dot} empty", "")))
    head = f"{data['agent']} {dot} {data.get('model')} {dot} "
    return _text(((head, "bold"), (local_time(data.get("started"), "%Y-%m-%d %H:%M:%S"), "")))


def _add_given(root: Tree, data: dict[str, Any], full: bool) -> None:
    """Add the beginning of the session above its turns: plugins and system prompt."""
    plugins = data.get("plugins")
    if isinstance(plugins, dict) and plugins:
        named = ", ".join(f"{name} {version}" if version else str(name) for name, version in plugins.items())
        root.add(_text(((f"plugins: {named}", "dim"),)))
    if data.get("system_prompt"):
        root.add(_text(((f"system prompt: {_cut(data['system_prompt'], full)}", "dim"),)))


def _add_turn(root: Tree, turn: dict[str, Any], unended: str, full: bool) -> None:
    status = str(turn.get("status") or unended)
    if status == BETWEEN_TURNS:
        node = root.add(_text((("between turns", "bold"),)))
    else:
        node = root.add(_text(((f"turn {turn.get('turn')} ", "bold"), (_cut(turn.get("input"), full), "bold"))))
    _add_entries(node, with_retries(turn["trace"]), full)
    if status == BETWEEN_TURNS:
        return
    parts = [status]
    if "status" in turn:
        used = number_of(turn.get("tokens"))
        parts.append(duration(number_of(turn.get("duration_ms")) or 0))
        parts.append(f"{sum_text(None if used is None else int(used))} tok")
        parts.append(cost_text(number_of(turn.get("cost"))))
    style = "red" if status in _BAD else "green" if status == "answered" else "yellow"
    end = node.add(_text((("  ".join(parts), style),)))
    for key in ("error", "result"):
        if turn.get(key) is not None:
            end.add(_text(((_cut(turn[key], full), "red" if key == "error" else ""),)))


def _add_entries(turn: Tree, trace: list[Any], full: bool) -> None:
    """Add the entries below their iterations; the first ones belong to the turn itself."""
    ended = {entry.get("call_id") for entry in trace if _kind(entry) == "tool_execution"}
    node, iteration = turn, None
    for entry in trace:
        kind = _kind(entry)
        if kind == "user_input" or (kind == "began" and entry.get("call_id") in ended):
            continue
        if kind == "llm_call" and entry.get("iteration") != iteration:
            iteration = entry.get("iteration")
            node = turn.add(_text(((f"iteration {iteration}", "dim"),)))
        _add_entry(node, entry, full)


def _kind(entry: Any) -> Any:
    return entry.get("type") if isinstance(entry, dict) else None


def _add_entry(node: Tree, entry: Any, full: bool) -> None:
    made = _rows(entry)
    head = node.add(_row(made[0], full))
    for row in made[1:]:
        head.add(_row(row, full))
    by = entry.get("by") if isinstance(entry, dict) else None
    if isinstance(by, dict):
        head.add(_text(((f"by {actor_with_place(by)}", "dim"),)))
    if full and isinstance(entry, dict):
        for key, value in entry.items():
            if key not in ("type", "by") and value not in (None, "", [], {}):
                head.add(_text(((f"{key}: {data_text(value, 2)}", "dim"),), whole=True))


def _rows(entry: Any) -> list[Row]:
    kind = _kind(entry)
    if kind == "began":
        call = f"{entry.get('tool_name')}({data_text(entry.get('arguments'))})"
        return [Row(4, ((f"{terminal().glyphs.bad} {call} was started and never ended", "red"),))]
    if kind == "left_out":
        return [Row(4, ((f"{entry.get('lines')} lines are left out: --full, or --turn N", "yellow"),))]
    made = rows(entry) if kind is not None else []
    if made:
        return made
    rest = {key: value for key, value in entry.items() if key not in ("type", "by", "timestamp")} if kind else entry
    return [Row(4, ((f"{kind or 'entry'}: ", ""), (data_text(rest), "dim")))]


def _row(row: Row, full: bool) -> Text:
    right = ((f"  {row.right}", "dim"),) if row.right else ()
    return _text((*((_cut(text, full), style) for text, style in row.parts), *right))


def _cut(value: Any, full: bool) -> str:
    text = data_text(value)
    return text if full or len(text) <= _MOST else f"{text[:_MOST]}... ({len(text) - _MOST} more characters)"


def _text(parts: tuple[tuple[str, str], ...], whole: bool = False) -> Text:
    """Styled text; lines stay lines, other control characters are shown as escapes."""
    from rich.text import Text

    made = Text()
    for text, style in parts:
        made.append(clean(text) if whole or "\n" in text else visible(text, max(400, len(text))), style)
    return made
