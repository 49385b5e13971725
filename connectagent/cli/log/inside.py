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


def kind_of(entry: object) -> Any:
    """The type of an entry; None of what is no entry."""
    return entry.get("type") if isinstance(entry, dict) else None


def agent_of(line: dict[str, Any], root: str) -> tuple[str, str]:
    """The branch and the name of the agent that a line is of; `root`: the record's agent."""
    place = str(line.get("id") or line.get("at") or "").rpartition("/turn:")[2]
    name = line.get("author") or (place.partition("~")[0] if "~" in place else root)
    return str(line.get("branch") or name), str(name)


def turns_of(line: dict[str, Any]) -> list[str]:
    """The turns of agents inside that a line is in, the outermost first; that of `agent_turn` is one of them."""
    return turns_in(place_of({**line, "type": str(line.get("type"))}))


def settled(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries of one agent's turn that count.

    Where it went on, a later entry replaces that of a call that waited, and that of an agent that paused.
    """
    keys = [_key(entry) for entry in entries]
    last = {key: number for number, key in enumerate(keys)}
    return [entry for number, entry in enumerate(entries) if keys[number] is None or last[keys[number]] == number]


def _key(entry: dict[str, Any]) -> tuple[Any, ...] | None:
    if entry.get("type") == "tool_execution" and entry.get("call_id"):
        return str(entry.get("iteration")), str(entry["call_id"])
    return (str(entry.get("id")),) if entry.get("type") == "agent_turn" else None


class Inside:
    """The turns of agents inside one turn, and calls without an entry.

    Args:
        lines: all lines of the turn.
        is_running: whether the turn runs now.
    """

    def __init__(self, lines: list[dict[str, Any]], is_running: bool = False) -> None:
        self.is_running = is_running
        self._turns: dict[str, list[dict[str, Any]]] = {}
        self._begun: dict[str, dict[str, dict[str, Any]]] = {}  # by turn, and by place
        self._asked: dict[str, dict[str, dict[str, Any]]] = {}  # the same of agents' turns, by the call that asks
        self._results: dict[str, Any] = {}
        for line in lines:
            self._add(line)

    def _add(self, line: dict[str, Any]) -> None:
        kind, id = kind_of(line), str(line.get("id"))
        turns = turns_of(line)[: -1 if kind == "agent_turn" else None]
        self._turns.setdefault(turns[-1] if turns else "", []).append(line)
        if kind == TOOL_ENDED:
            self._results[id] = line.get("entry")
        elif kind == "began" and "agent" in line:
            self._asked.setdefault(id.rpartition("/turn:")[0], {})[id] = line
        elif kind == "began":
            self._begun.setdefault(turns[-1] if turns else "", {})[id] = line

    def of(self, asked: dict[str, Any]) -> list[dict[str, Any]]:
        """The entries of the agent's turn that an entry or the line of its beginning is about."""
        lines = self._turns.get(str(asked.get("id")), [])
        return settled(own_entries(lines, asked.get("agent"), asked.get("branch")))

    def turns(self) -> Iterator[list[dict[str, Any]]]:
        """The lines of each agent's turn inside, one turn after the other."""
        yield from (settled(lines) for turn, lines in self._turns.items() if turn)

    def open_in(self, place: str, trace: list[Any]) -> Iterator[dict[str, Any]]:
        """What an agent's turn has begun and not ended, each with its `iteration`.

        A call that has its result, though the turn did not come to handle it, is the entry with this result.

        Args:
            place: the turn.
            trace: its entries.
        """
        ended = {str(entry.get(key)) for entry in trace if isinstance(entry, dict) for key in ("id", "call_id")}
        for id, line in self._begun.get(place if "/turn:" in place else "", {}).items():
            found = _OWN.fullmatch(id.removeprefix(f"{place}/"))
            if found is None or id in ended or str(line.get("call_id", id)) in ended:
                continue
            result = self._results.get(id)
            held = {**result, "held": result.get("status")} if isinstance(result, dict) else line
            yield {**held, "iteration": int(found[1])}

    def begun_by(self, call: dict[str, Any]) -> list[dict[str, Any]]:
        """The turns of agents inside that a call has begun and not ended."""
        return list(self._asked.get(str(call.get("id")), {}).values())
