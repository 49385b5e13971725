"""One record for the page: rows as they come, an opened entry, a whole text, the conversation."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from connectagent.cli.log.reading import data_text, number_of
from connectagent.cli.view.conversation import content_text, conversation_of, history_by_number
from connectagent.cli.view.rows import excerpt, fields_of, row_of
from connectagent.records.amended import retried, with_retries
from connectagent.records.blobs import blob_folder, restored
from connectagent.records.file import BETWEEN_TURNS
from connectagent.records.follow import Follower
from connectagent.records.read import read_record
from connectagent.records.summary import summarise
from connectagent.session.history import History

_OF_AN_END = ("status", "duration_ms", "tokens", "cost", "result", "error")


class Listing:
    """The rows and turns of a record, as far as it was read.

    Attributes:
        entries: the entries.
        rows: a row for each.
        items: the items of the record: a turn that was paused and resumed is two.
    """

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = []
        self.items: list[dict[str, Any]] = []
        self._calls: dict[Any, int] = {}  # tool calls, each with the number of its entry
        self._started: dict[str, int] = {}  # calls that have no end yet, each with the number of its entry

    def begin(self, item: dict[str, Any]) -> None:
        """Begin a turn; `item` has its pairs."""
        given = excerpt(data_text(item.get("input", "")), 300)["text"]
        self.items.append({"turn": data_text(item.get("turn")), "input": given, "first": len(self.entries)})
        self.items[-1] |= {key: data_text(item[key]) for key in ("from", "resumed") if key in item}
        if item.get("status") == BETWEEN_TURNS:
            self.items[-1]["status"] = BETWEEN_TURNS
        self._started.clear()

    def add(self, entry: dict[str, Any]) -> None:
        """Add an entry to the newest turn."""
        row = {**row_of(entry, len(self.entries)), "item": len(self.items) - 1}
        if retried(entry) is not None and entry.get("call_id") in self._calls:
            self._try_again(self._calls[entry["call_id"]], entry)
        if entry.get("type") == "tool_execution":
            self._calls[entry.get("call_id")] = row["n"]
        if row["kind"] == "started":
            self._started[row["call"]] = row["n"]
        elif row["kind"] == "tool" and row["call"] in self._started:
            row["started"] = self._started.pop(row["call"])
            begun = self.rows[row["started"]].get("start")  # the tool's own; the entry's is before its handlers
            if begun is not None and row.get("start") is not None:
                row |= {"start": begun, "waited_ms": max(0.0, round((begun - row["start"]) * 1000, 3))}
        self.entries.append(entry)
        self.rows.append(row)

    def _try_again(self, number: int, again: dict[str, Any]) -> None:
        """Let the row of a call show its last attempt."""
        entry = with_retries([self.entries[number], again])[0]
        kept = {key: value for key, value in self.rows[number].items() if key not in ("error", "status", "bad")}
        self.rows[number] = {**kept, **row_of(entry, number)}

    def end(self, item: dict[str, Any]) -> None:
        """End the newest turn; `item` has its summary."""
        end: dict[str, Any] = {key: item[key] for key in _OF_AN_END if item.get(key) is not None}
        for key, value in end.items():
            number = key in ("duration_ms", "tokens", "cost")
            end[key] = number_of(value) if number else excerpt(data_text(value), 600)["text"]
        if "cost" in item and item["cost"] is None:
            end["cost"] = None  # unknown, not zero
        handlers = item.get("handlers")
        if isinstance(handlers, list):
            end["handlers"] = [bar for bar in map(_bar, handlers) if bar is not None]
        self.items[-1] |= end


def _bar(value: Any) -> dict[str, Any] | None:
    """A handler's slow call as a bar of the page; None for anything else."""
    if not isinstance(value, list) or len(value) != 4:
        return None
    start, ms = number_of(value[2]), number_of(value[3])
    plugin, hook = (excerpt(data_text(name), 60)["text"] for name in value[:2])
    return None if start is None or ms is None else {"plugin": plugin, "name": hook, "start": start, "ms": ms}


def listing_of(record: dict[str, Any]) -> Listing:
    """The listing of a record, as `read_record` returns it."""
    listing = Listing()
    for item in record["turns"]:
        listing.begin(item)
        for entry in item["trace"]:
            listing.add(entry if isinstance(entry, dict) else {"type": "?", "value": entry})
        listing.end(item)
    return listing


class Reading:
    """A record while it grows.

    Args:
        path: the record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listing = Listing()
        self._follower = Follower(path)
        self._item: Any = None  # the follower's item of the newest turn
        self._lock = threading.Lock()
        self._history: tuple[int, History] | None = None  # with the size of the record that it was read from

    def news(self, row: int = 0, item: int = 0) -> dict[str, Any]:
        """What is new: `rows` and `items` (the turns) from these numbers on, and `summary`.

        Raises:
            OSError: the file cannot be read.
            ConfigError: it is not a record.
        """
        summary = summary_of(self.path)
        with self._lock:
            for entry in self._follower.entries():
                self._take(entry)
            rows, items = self._listing.rows[max(0, row) :], self._listing.items[max(0, item) :]
            return {"rows": rows, "items": [dict(item) for item in items], "summary": summary}

    def entry(self, number: int) -> dict[str, Any]:
        """An opened entry: `fields`, each a text that may be shortened.

        Raises:
            LookupError: there is none.
        """
        return {"fields": fields_of(self._entry(number))}

    def field(self, number: int, key: str) -> str:
        """One value of an entry as a whole text, with its blobs.

        Raises:
            LookupError: there is none.
        """
        return data_text(restored(self._entry(number)[key], blob_folder(self.path)), 2)

    def conversation(self) -> list[dict[str, Any]]:
        """The messages with their changes, the removed ones last; long texts are shortened."""
        return conversation_of(self._whole_history())

    def message(self, line: int, change: int) -> str:
        """The whole text of a message after one of its changes.

        Args:
            line: its place in `conversation()`.
            change: the place of the change in its changes.

        Raises:
            LookupError: there is none.
        """
        history = self._whole_history()
        lines = [*history.lines, *history.removed]
        if line < 0 or change < 0:
            raise IndexError(line)
        return str(restored(content_text(lines[line].changes[change].message), blob_folder(self.path)))

    def find(self, text: str) -> list[int]:
        """The numbers of the entries that contain a text, ignoring case."""
        sought = text.lower()
        return [number for number, entry in enumerate(self._listing.entries) if _holds(entry, sought)]

    def _entry(self, number: int) -> dict[str, Any]:
        if number < 0:
            raise IndexError(number)
        return self._listing.entries[number]

    def _take(self, entry: dict[str, Any]) -> None:
        item = self._follower.item
        if item is not self._item:
            self._item = item
            self._listing.begin(item)
        if entry.get("type") == "turn_ended" and "status" in item:
            self._listing.end(item)
        else:
            self._listing.add(entry)

    def _whole_history(self) -> History:
        with self._lock:
            size = os.stat(self.path).st_size
            if self._history is None or self._history[0] != size:
                self._history = size, history_by_number(read_record(self.path))
            return self._history[1]


def summary_of(path: Path) -> dict[str, Any]:
    """The summary of a record as in `connectagent log list --json`, with `name` for its path.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is not a record.
    """
    data = summarise(path).data()
    return {"name": path.name, **{key: value for key, value in data.items() if key != "path"}}


def _holds(value: Any, sought: str) -> bool:
    if isinstance(value, dict):
        return any(_holds(item, sought) for item in value.values())
    if isinstance(value, list):
        return any(_holds(item, sought) for item in value)
    return sought in (value if isinstance(value, str) else str(value)).lower()
