"""The rows of a record, in turns: one for each line that tells a person something, of all agents in it."""

from __future__ import annotations

from typing import Any

from connectagent.cli.view.editor import editor_link
from connectagent.cli.view.rows import excerpt, row_of
from connectagent.commands.tables import number_of
from connectagent.records.amended import retried
from connectagent.records.changes_by_plugins import inner_turn
from connectagent.records.file import BETWEEN_TURNS
from connectagent.records.findings import IDENTITY
from connectagent.records.texts import data_text
from connectagent.session.journal import LINES, TOOL_ENDED
from connectagent.session.usage import spent_inside

_FOUND = "bisect", "bisect not confirmed"  # the badges
_OF_A_RESULT = ("status", "bad", "text", "ms", "error", "badges")  # keys of a row
_OF_AN_END = ("status", "duration_ms", "tokens", "cost", "known_cost", "result", "error")


def is_on_page(line: dict[str, Any]) -> bool:
    """Whether a line has a row: entries of a trace, what begins, and waits with their decisions."""
    kind = line.get("type")
    if kind == "began":
        return "call_id" in line or "agent" in line or "/model" in str(line.get("id")).rpartition("/turn:")[2][-10:]
    return kind in ("wait", "decided") or kind not in LINES


class Listing:
    """The rows and turns of a record, as far as it was read.

    Attributes:
        lines: all lines.
        entries: the lines that have rows.
        rows: a row for each.
        changed: rows that changed after they were made: how many rows there were then, and the number of the row.
        items: the items of the record: a turn that was paused and resumed is two.
        ends: of each item its pairs, as recorded.
        waits: the waits that nobody has decided, by their ids.
        found: the numbers of the rows with a finding, or that had one.
    """

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.entries: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = []
        self.changed: list[tuple[int, int]] = []
        self.items: list[dict[str, Any]] = []
        self.ends: list[dict[str, Any]] = []
        self.waits: dict[str, dict[str, Any]] = {}
        self.found: list[int] = []
        self._last: dict[Any, int] = {}  # of each call the number of its last attempt's row
        self._started: dict[str, int] = {}  # what has no end yet, with the number of its row

    def begin(self, item: dict[str, Any]) -> None:
        """Begin a turn; `item` has its pairs."""
        given = excerpt(data_text(item.get("input", "")), 300)["text"]
        self.items.append({"turn": data_text(item.get("turn")), "input": given, "first": len(self.entries)})
        self.items[-1] |= {key: data_text(item[key]) for key in ("from", "resumed") if key in item}
        if item.get("status") == BETWEEN_TURNS:
            self.items[-1]["status"] = BETWEEN_TURNS
        self.ends.append(item)
        self._started.clear()

    def add(self, line: dict[str, Any]) -> None:
        """Add a line to the newest turn."""
        self.lines.append(line)
        self._note_wait(line)
        self._hold(line)
        if not is_on_page(line):
            return
        row = {**row_of(line, len(self.entries)), "item": len(self.items) - 1}
        if retried(line) is not None:
            row = self._attempt(row, line)
        self._tried_again(row, line)
        if row["kind"] == "started":
            self._started[str(line.get("id"))] = row["n"]
        else:
            self._end_row(row, str(line.get("id")))
        self.entries.append(line)
        self.rows.append(row)

    def _hold(self, line: dict[str, Any]) -> None:
        """Show the result of a call that others of its round hold back in the row of its beginning."""
        number, entry = self._started.get(str(line.get("id"))), line.get("entry")
        if line.get("type") != TOOL_ENDED or number is None or not isinstance(entry, dict):
            return
        row = row_of({**entry, "held": entry.get("status")}, number)
        self.rows[number] |= {key: row[key] for key in _OF_A_RESULT if key in row}
        self.changed.append((len(self.rows), number))

    def _end_row(self, row: dict[str, Any], id: str) -> None:
        """Join a row with the row of its beginning."""
        if id not in self._started or row["kind"] not in ("tool", "model", "agent"):
            return
        row["started"] = self._started.pop(id)
        begun = self.rows[row["started"]].get("start")  # the tool's own; the entry's is before its handlers
        if row["kind"] == "tool" and begun is not None and row.get("start") is not None:
            row |= {"start": begun, "waited_ms": max(0.0, round((begun - row["start"]) * 1000, 3))}

    def _attempt(self, row: dict[str, Any], line: dict[str, Any]) -> dict[str, Any]:
        """The row of a further attempt at a tool: a change of its entry, which stands there as a call does."""
        call: dict[str, Any] = self.rows[self._last[line["call_id"]]] if line.get("call_id") in self._last else {}
        value: dict[str, Any] = line["value"]
        again = row_of({**line, **value, "type": "tool_execution", "tool_name": call.get("name")}, row["n"])
        kept: dict[str, Any] = {key: call[key] for key in ("args", "name") if key in call}
        return {**row, **again, **kept, "attempt": number_of(value.get("attempt"))}

    def _tried_again(self, row: dict[str, Any], line: dict[str, Any]) -> None:
        """Note that an attempt was followed by another one: its failure was not the end."""
        if row["kind"] not in ("tool", "model"):
            return
        call = line.get("call_id") or (str(line.get("id")).rpartition("/")[0] or None)
        before = self._last.get((inner_turn(line), call))
        if before is not None and row.get("attempt") and self.rows[before]["item"] == row["item"]:
            badges = [*self.rows[before].get("badges", ()), "tried again"]
            self.rows[before] |= {"bad": min(1, self.rows[before].get("bad", 0)), "badges": badges}
            self.changed.append((len(self.rows), before))
        self._last[inner_turn(line), call] = self._last[line.get("call_id")] = row["n"]

    def show_findings(self, findings: list[dict[str, Any]], links: bool = True) -> None:
        """Show findings at the entries that they are of, in place of those before; `links`: to code, in the editor."""
        places = {_identity(entry): number for number, entry in enumerate(self.entries)}
        shown: dict[int, list[dict[str, Any]]] = {number: [] for number in self.found}
        for one in findings:
            if (number := places.get(_identity(one.get("entry", {})))) is not None:
                shown.setdefault(number, []).append(_finding(one, links))
        for number, found in shown.items():
            badges = [badge for badge in self.rows[number].get("badges", ()) if badge not in _FOUND]
            badges += [_FOUND[0] if any(one["confirmed"] for one in found) else _FOUND[1]] if found else []
            self.rows[number] |= {"found": found, "badges": badges}
        self.found = sorted(shown)

    def _note_wait(self, line: dict[str, Any]) -> None:
        if line.get("type") == "wait":
            self.waits[str(line.get("id"))] = line
        elif line.get("type") == "decided":
            self.waits.pop(str(line.get("id")), None)

    def end(self, item: dict[str, Any]) -> None:
        """End the newest turn; `item` has its summary."""
        end: dict[str, Any] = {key: item[key] for key in _OF_AN_END if item.get(key) is not None}
        for key, value in end.items():
            number = key in ("duration_ms", "tokens", "cost", "known_cost")
            end[key] = number_of(value) if number else excerpt(data_text(value), 600)["text"]
        if "cost" in item and item["cost"] is None:
            end["cost"] = None  # unknown, not zero
        handlers = item.get("handlers")
        if isinstance(handlers, list):
            end["handlers"] = [bar for bar in map(_bar, handlers) if bar is not None]
        self.items[-1] |= end
        self.ends[-1] = item

    def agents(self) -> list[dict[str, Any]]:
        """What each inner agent took: tokens, cost, turns, time. Those that it asked follow it."""
        spent = spent_inside(self.lines)
        found: dict[str, dict[str, Any]] = {}
        turns: dict[str, set[Any]] = {}
        ended: dict[str, set[Any]] = {}
        for row in self.rows:
            branch = row.get("branch")
            if branch and row["kind"] in ("started", "agent"):
                one = found.setdefault(branch, {"branch": branch, "name": row["name"], "n": row["n"], "ms": 0.0})
                turns.setdefault(branch, set()).add(row.get("id"))
                one["ms"] += row.get("ms", 0.0)
                if row["kind"] == "agent":
                    ended.setdefault(branch, set()).add(row.get("id"))
        for branch, one in found.items():
            if ended.get(branch) != turns[branch]:
                one["ms"] = None  # not known before the end
            one["turns"] = len(turns[branch])
            if branch in spent:
                paid = spent[branch]
                one |= {"tokens": paid.tokens, "cost": paid.cost, "known_cost": paid.known_cost, "calls": paid.calls}
        places = {branch: number for number, branch in enumerate(found)}
        return sorted(found.values(), key=lambda one: _path(one["branch"], places))


def _identity(entry: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(entry.get(key)) for key in IDENTITY)


def _finding(one: dict[str, Any], links: bool) -> dict[str, Any]:
    """A finding as the page shows it, with a link to the code of who made the text that was found."""
    said = "\n".join(excerpt(line, 600)["text"] for line in one["said"][:40])
    shown = {"symptom": excerpt(one["symptom"], 300)["text"], "said": said, "date": data_text(one.get("date", ""))[:40]}
    maker = one.get("maker", {})
    if maker.get("file"):
        shown["where"] = excerpt(f"{maker['file']}:{maker.get('line')}", 300)["text"]
    return {**shown, "confirmed": one.get("confirmed") is True, "edit": editor_link(maker) if links else None}


def _path(branch: str, places: dict[str, int]) -> list[int]:
    """Where an agent stands in the tree: the place of each agent above it, and its own."""
    names = branch.split(".")
    return [places.get(".".join(names[:end]), -1) for end in range(1, len(names) + 1)]


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
        for line in item["lines"]:
            listing.add(line)
        listing.end(item)
    return listing


def number_lines(record: dict[str, Any]) -> None:
    """Give each line of a record that has a row its `number`, which is the same whenever the record is read."""
    number = 0
    for item in record["turns"]:
        for line in item["lines"]:
            if is_on_page(line):
                line["number"], number = number, number + 1
