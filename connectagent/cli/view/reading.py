"""One record for the page: rows as they come, an opened entry, a whole text, the conversation, requests, changes."""

from __future__ import annotations

import os
import shlex
import threading
import time
from pathlib import Path
from typing import Any

from connectagent.cli.view.changes import MOST_CHANGES, changes_of, request_data
from connectagent.cli.view.conversation import conversation_of, images_of, news_of
from connectagent.cli.view.editor import editor_link
from connectagent.cli.view.listing import Listing, number_lines
from connectagent.cli.view.rows import MOST_IN_DETAIL, excerpt, fields_of
from connectagent.commands.failure import decision_option
from connectagent.errors import short_path
from connectagent.output.rows import call_text
from connectagent.records.blobs import blob_folder, restored
from connectagent.records.findings import findings_file, findings_of
from connectagent.records.follow import Follower
from connectagent.records.read import read_lazily
from connectagent.records.requests import Request
from connectagent.records.summary import summarise
from connectagent.records.texts import content_text, data_text, text_of_value
from connectagent.records.watched import WatchedAgent, request_of, watched_agents
from connectagent.session.journal import calls_of

_STOPPED = ("crashed", "interrupted", "unfinished")
_AT_ONCE_S = 0.12  # how long a record is read before its first part is shown


class Reading:
    """A record while it grows.

    Args:
        path: the record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listing = Listing()
        self._follower = Follower(path, whole=True)
        self._item: Any = None  # the follower's item of the newest turn
        self._lock = threading.Lock()
        self._watched: tuple[int, dict[str, Any], list[WatchedAgent]] | None = None  # with the size of the record
        self._requests: dict[tuple[int, int], Request | None] = {}
        self._found_at: int | None = None  # when the findings were written that the rows show

    def news(self, row: int = 0, item: int = 0) -> dict[str, Any]:
        """What is new: `rows` and `items` (the turns) from these numbers on, `changed` rows, `summary`; all of `found`.

        Of a long record it is the beginning, with `more`: the reader shows it while the rest is read.

        Raises:
            OSError: the file cannot be read.
            ConfigError: it is not a record.
        """
        summary = summary_of(self.path)
        with self._lock:
            more = self._read_on(_AT_ONCE_S)
            listing = self._listing
            rows, items = listing.rows[max(0, row) :], listing.items[max(0, item) :]
            changed = [listing.rows[number] for when, number in listing.changed if when >= row > number]
            news = {"rows": rows, "changed": changed, "items": [dict(one) for one in items], "summary": summary}
            if more:
                return {**news, "more": True}
            if found := self._found():
                news["found"] = found
            if rows:
                news["agents"] = listing.agents()
            if summary["status"] == "paused":
                news["waits"] = self._waits()
            elif summary["status"] in _STOPPED:
                news["resume"] = self._resume()
            return news

    def read(self) -> None:
        """Read all there is."""
        with self._lock:
            self._read_on(None)

    def _read_on(self, seconds: float | None) -> bool:
        """Read what was written since, for so long; whether there is more."""
        end = None if seconds is None else time.monotonic() + seconds
        for entry in self._follower.entries():
            self._take(entry)
            if end is not None and time.monotonic() > end:
                return True
        return False

    def _found(self) -> dict[str, Any]:
        """The `rows` at which `connectagent bisect` has found something, and when (`at`); {} if it never has."""
        try:
            written = os.stat(findings_file(self.path)).st_mtime_ns
        except OSError:
            written = None
        if written != self._found_at:
            self._found_at = written
            self._listing.show_findings(findings_of(self.path))
        rows = [self._listing.rows[number] for number in self._listing.found]
        return {"at": str(self._found_at), "rows": rows} if rows else {}

    def _waits(self) -> list[dict[str, Any]]:
        """What a person is to decide, each with the commands for it."""
        waits = []
        for id, line in self._listing.waits.items():
            shown = ", ".join(call_text(call["name"], call.get("arguments") or {}) for call in calls_of(line))
            command = self._resume()
            waits.append({
                "reason": excerpt(data_text(line.get("reason") or "no reason was given"), 600)["text"],
                "call": excerpt(shown, 600)["text"],
                "agent": data_text(line.get("agent")),
                "commands": [
                    f"{command} {decision_option(id, bool(line.get('elsewhere')))}",
                    f"{command} --reject {shlex.quote(id)} 'why not'",
                ],
            })  # fmt: skip
        return waits

    def _resume(self) -> str:
        """The command that goes on with the session."""
        return f"connectagent resume {shlex.quote(short_path(self.path))}"

    def entry(self, number: int) -> dict[str, Any]:
        """An opened entry: `fields`, each a text that may be shortened, and `edit`, the link to the code behind it.

        Raises:
            LookupError: there is none.
        """
        entry = self._entry(number)
        return {"fields": fields_of(entry), "edit": editor_link(entry.get("by"))}

    def field(self, number: int, key: str) -> str:
        """One value of an entry as a whole text, with its blobs.

        Raises:
            LookupError: there is none.
        """
        return data_text(restored(self._entry(number)[key], blob_folder(self.path)), 2)

    def end(self, item: int, key: str) -> str:
        """The whole `result`, `error` or `input` of an item of the record.

        Raises:
            LookupError: there is none.
        """
        if item < 0 or key not in ("result", "error", "input"):
            raise IndexError(item)
        return data_text(restored(self._listing.ends[item][key], blob_folder(self.path)), 2)

    def conversation(self, branch: str = "", known: int = -1) -> dict[str, Any]:
        """The messages with their changes, the removed ones last; long texts are shortened.

        Args:
            branch: of an inner agent; "" for the root.
            known: the number of the newest entry that the reader knows; messages that have not changed since are only
                named. -1 for none.
        """
        return news_of(conversation_of(self._agent(branch).history), known)

    def message(self, branch: str, line: int, change: int) -> str:
        """The whole text of a message after one of its changes.

        Args:
            branch: of an inner agent; "" for the root.
            line: its place in `conversation()`.
            change: the place of the change in its changes.

        Raises:
            LookupError: there is none.
        """
        return str(restored(content_text(self._message(branch, line, change)), blob_folder(self.path)))

    def image(self, branch: str, line: int, change: int, image: int) -> str:
        """An image of a message, as the address of its data.

        Raises:
            LookupError: there is none.
        """
        if image < 0:
            raise IndexError(image)
        return str(restored(images_of(self._message(branch, line, change))[image], blob_folder(self.path)))

    def changes(self, number: int | None = None) -> dict[str, Any]:
        """What plugins changed: the newest ones of very many; of one entry, where it is given."""
        found = changes_of(self._all()[1], number)
        return {"changes": found[-MOST_CHANGES:], "count": len(found)}

    def request(self, number: int, all_messages: bool) -> dict[str, Any] | None:
        """What the model call of an entry was sent; None where the record does not tell."""
        request = self._request(number)
        return None if request is None else request_data(request, MOST_IN_DETAIL, all_messages)

    def request_text(self, number: int, place: int | None) -> str:
        """A request as JSON, or the whole text of one of its messages.

        Raises:
            LookupError: there is none.
        """
        request = self._request(number)
        if request is None or (place is not None and place < 0):
            raise IndexError(number)
        if place is None:
            return data_text(request.data(), 2)
        return text_of_value(request.messages[place].message)

    def find(self, text: str) -> list[int]:
        """The numbers of the entries that contain a text, ignoring case; also in texts that are files of their own."""
        sought, folder = text.lower(), blob_folder(self.path)
        entries = enumerate(list(self._listing.entries))
        return [number for number, entry in entries if _holds(restored(entry, folder), sought)]

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

    def _message(self, branch: str, line: int, change: int) -> Any:
        history = self._agent(branch).history
        if line < 0 or change < 0:
            raise IndexError(line)
        return [*history.lines, *history.removed][line].changes[change].message

    def _agent(self, branch: str) -> WatchedAgent:
        agents = {agent.branch or "": agent for agent in self._all()[1]}
        return agents[branch]

    def _request(self, number: int) -> Request | None:
        record, _ = self._all()
        size = self._watched[0] if self._watched else 0
        with self._lock:
            key = size, number
            if key not in self._requests:
                self._requests = dict(list(self._requests.items())[-3:])
                self._requests[key] = request_of(record, number, blob_folder(self.path))
            return self._requests[key]

    def _all(self) -> tuple[dict[str, Any], list[WatchedAgent]]:
        """The record as data, and its agents."""
        with self._lock:
            size = os.stat(self.path).st_size
            if self._watched is None or self._watched[0] != size:
                record = read_lazily(self.path)
                number_lines(record)
                self._watched = size, record, watched_agents(record)
            return self._watched[1:]


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
