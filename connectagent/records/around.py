"""What handlers around a turn changed, in turns that were stopped and went on.

Such a handler runs anew each time, with all that it changes, and its last run counts. What it changed before its turn
began belongs to the beginning of the turn, though its line comes after those of the earlier times.
"""

from __future__ import annotations

from typing import Any

from connectagent.data import TraceEntry
from connectagent.records.file import BETWEEN_TURNS
from connectagent.session.journal import BEGAN, place_of, turns_in

_CHANGES = ("message", "message_edited", "message_removed", "state_delta", "session_delta")
Item = dict[str, Any]


def settle_around(items: list[Item]) -> None:
    """Leave of each turn's lines those of the last run of the handlers around it, where they belong.

    Args:
        items: of a record, each with its `lines`, which are changed.
    """
    turn: list[Item] = []  # with the items that go on with it
    for item in items:
        if item.get("status") == BETWEEN_TURNS:
            continue
        if not (turn and goes_on(item) and item.get("turn") == turn[0].get("turn")):
            _settle(turn)
            turn = []
        turn.append(item)
    _settle(turn)


def goes_on(item: Item) -> bool:
    """Whether an item goes on with its turn, or begins it anew, since its record was resumed."""
    if item.get("resumed"):
        return True
    is_another = "from" in item or item.get("status") == BETWEEN_TURNS  # the session was rewound, or in no turn
    return not is_another and [line.get("type") for line in item["lines"][:1]] == ["resumed"]


def _settle(turn: list[Item]) -> None:
    if len(turn) < 2 or not any(_is_change(line) for item in turn for line in item["lines"]):
        return
    runs, first, last = _runs(turn)
    gone: set[int] = set()
    placed: dict[tuple[int, int], list[TraceEntry]] = {}
    for place, lines in runs.items():
        newest = last[place] if "/" in place else len(turn) - 1
        for number, line, is_ahead in lines:
            if is_ahead or number < newest:
                gone.add(id(line))
            if is_ahead and number == newest:
                placed.setdefault(first[place], []).append(line)
    for number, item in enumerate(turn):
        settled: list[TraceEntry] = []
        for at, line in enumerate(item["lines"]):
            settled += placed.get((number, at), ())
            settled += [line] if id(line) not in gone else []
        item["lines"] = settled


_Runs = dict[str, list[tuple[int, TraceEntry, bool]]]


def _runs(turn: list[Item]) -> tuple[_Runs, dict[str, tuple[int, int]], dict[str, int]]:
    """By the place of each turn: what its handlers changed, where its first line is, and which item has its last one.

    Each change with the number of its item, and whether it comes before all else that happened in the turn.
    """
    runs: _Runs = {}
    first: dict[str, tuple[int, int]] = {}
    last: dict[str, int] = {}
    for number, item in enumerate(turn):
        entered: set[str] = set()
        for at, line in enumerate(item["lines"]):
            place = place_of(line)
            if not place:
                continue
            for one in (place.partition("/")[0], *turns_in(place)):
                last[one] = number
                if not (one == place and line.get("type") == BEGAN):
                    first.setdefault(one, (number, at))
                    if not (one == place and _is_change(line)):
                        entered.add(one)
            if _is_change(line):
                runs.setdefault(place, []).append((number, line, place not in entered))
    return runs, first, last


def _is_change(line: TraceEntry) -> bool:
    by = line.get("by")
    return line.get("type") in _CHANGES and isinstance(by, dict) and by.get("hook") == "around_turn"
