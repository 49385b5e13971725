"""What the lines of a turn say of the agents inside it, for the commands that read records."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from connectagent.records.read import own_entries
from connectagent.session.journal import TOOL_ENDED, place_of, turns_in

PLACES = ("type", "by", "timestamp", "at", "author", "branch")
"""Keys of entries that readers are shown by where an entry stands."""
_OWN = re.compile(r"(\d+)/(?:c\d+/tool\d+|model\d+)")  # a model call or a tool call of a turn, and its iteration


def kind_of(entry: Any) -> Any:
    """The type of an entry; None of what is no entry."""
    return entry.get("type") if isinstance(entry, dict) else None


def agent_of(line: dict[str, Any], root: str) -> tuple[str, str]:
    """The branch and the name of the agent that a line is of; `root`: the record's agent."""
    place = str(line.get("id") or line.get("at") or "").rpartition("/turn:")[2]
    name = line.get("author") or (place.partition("~")[0] if "~" in place else root)
    return str(line.get("branch") or name), str(name)


def settled(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Entries of one agent's turn, without those that another took the place of: of calls that waited, and of agents
    that were asked and had paused."""
    keys = [_key(entry) for entry in entries]
    last = {key: number for number, key in enumerate(keys)}
    return [entry for number, entry in enumerate(entries) if keys[number] is None or last[keys[number]] == number]


def _key(entry: dict[str, Any]) -> tuple[Any, ...] | None:
    if entry.get("type") == "tool_execution" and entry.get("call_id"):
        return entry.get("iteration"), entry["call_id"]
    return (entry.get("id"),) if entry.get("type") == "agent_turn" else None


class Inside:
    """The turns of agents inside one turn, and calls without an entry.

    Args:
        lines: all lines of the turn.
        is_running: whether the turn runs now.
    """

    def __init__(self, lines: list[dict[str, Any]], is_running: bool = False) -> None:
        self._lines, self.is_running = lines, is_running
        self._begun = {str(line.get("id")): line for line in lines if kind_of(line) == "began"}
        self._results = {line.get("id"): line.get("entry") for line in lines if kind_of(line) == TOOL_ENDED}

    def of(self, asked: dict[str, Any]) -> list[dict[str, Any]]:
        """The entries of the agent's turn that an entry or the line of its beginning is about."""
        place = str(asked.get("id"))
        below = [line for line in self._lines if _is_below(line, place)]
        return settled(own_entries(below, asked.get("agent"), asked.get("branch")))

    def turns(self) -> Iterator[list[dict[str, Any]]]:
        """The lines of each agent's turn inside, one turn after the other."""
        found: dict[str, list[dict[str, Any]]] = {}
        for line in self._lines:
            if turns := turns_in(place_of(line)):
                found.setdefault(turns[-1], []).append(line)
        yield from map(settled, found.values())

    def open_in(self, place: str, trace: list[Any]) -> Iterator[dict[str, Any]]:
        """What an agent's turn has begun and not ended, each with its `iteration`.

        A call that has its result, though the turn did not come to handle it, is the entry with this result.

        Args:
            place: the turn.
            trace: its entries.
        """
        ended = {entry.get(key) for entry in trace if isinstance(entry, dict) for key in ("id", "call_id")}
        for id, line in self._begun.items():
            found = _OWN.fullmatch(id.removeprefix(f"{place}/"))
            if found is None or id in ended or line.get("call_id", id) in ended:
                continue
            result = self._results.get(id)
            held = {**result, "held": result.get("status")} if isinstance(result, dict) else line
            yield {**held, "iteration": int(found[1])}

    def begun_by(self, call: dict[str, Any]) -> list[dict[str, Any]]:
        """The turns of agents inside that a call has begun and not ended."""
        place = f"{call.get('id')}/turn:"
        begun = [(id, line) for id, line in self._begun.items() if "agent" in line and id.startswith(place)]
        return [line for id, line in begun if "/" not in id.removeprefix(place)]


def _is_below(line: dict[str, Any], place: str) -> bool:
    """Whether a line is of the turn at a place; the turn's own `agent_turn` is not."""
    own = str(line.get("id") or line.get("at") or "")
    return own.startswith(f"{place}/") or (own == place and kind_of(line) != "agent_turn")
