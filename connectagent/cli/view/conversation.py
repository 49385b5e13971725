"""The conversation for the page: each message, who made it and who changed it."""

from __future__ import annotations

from typing import Any

from connectagent.cli.log.reading import data_text
from connectagent.cli.view.rows import excerpt
from connectagent.records.history import read_history
from connectagent.session.history import Change, History, Line
from connectagent.session.messages import text_of

MOST_IN_MESSAGE = 1_500  # characters of a message, before "more" is asked for


def history_by_number(record: dict[str, Any]) -> History:
    """The history of a record, each entry with its `number` in the record, from 0.

    A rewound session numbers its entries again; the record does not.

    Args:
        record: as `read_record` returns it; its entries get their numbers.
    """
    number = 0
    for turn in record["turns"]:
        for entry in turn["trace"]:
            entry["number"], number = number, number + 1
    return read_history(record)


def conversation_of(history: History, most: int | None = MOST_IN_MESSAGE) -> list[dict[str, Any]]:
    """The messages with their changes, the removed ones last.

    Args:
        history: of `history_by_number`.
        most: characters of a text; None for all.
    """
    here = [_line_data(history, line, number, most) for number, line in enumerate(history.lines)]
    return here + [_line_data(history, line, None, most) for line in history.removed]


def content_text(message: Any) -> str:
    """The content of a message as text; "" for none."""
    content = (message or {}).get("content")
    return "" if content is None else text_of(content) if isinstance(content, str | list) else data_text(content, 2)


def _line_data(history: History, line: Line, number: int | None, most: int | None) -> dict[str, Any]:
    changes = [_change_data(history, change, most) for change in line.changes]
    return {"message": number, "role": str(line.message.get("role")), "changes": changes}


def _change_data(history: History, change: Change, most: int | None) -> dict[str, Any]:
    entry = history.entries[change.entry].get("number") if change.entry >= 0 else None
    by = {str(key): value for key, value in change.by.items() if isinstance(value, str | int)}
    data = {"did": change.did, "by": by, "turn": change.turn, "iteration": change.iteration, "entry": entry}
    if change.message is None:
        return data
    calls = [call.get("function") or {} for call in change.message.get("tool_calls") or ()]
    call_texts = [excerpt(f"{call.get('name')}({call.get('arguments')})", most)["text"] for call in calls]
    return data | excerpt(content_text(change.message), most) | {"calls": call_texts}
