"""What tools made of their arguments when a turn was recorded, for tools that are not there any more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from connectagent.data import TraceEntry
from connectagent.errors import ToolArgumentsError
from connectagent.records.sent import canonical
from connectagent.session.snapshot import clone


class RecordedCheck:
    """The check of tools of which only the record is left. Arguments that the turn did not have stay as they are."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], TraceEntry] = {}

    def begin(self, entries: Iterable[TraceEntry]) -> None:
        """Take the entries of another turn."""
        self._entries.clear()
        for entry in entries:
            if entry.get("type") == "tool_execution":
                name = str(entry.get("original_tool_name", entry.get("tool_name")))
                sent = entry.get("sent_arguments", entry.get("original_arguments", entry.get("arguments")))
                self._entries.setdefault((name, canonical(sent)), entry)

    def canonical(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The form that the arguments had then.

        Raises:
            ToolArgumentsError: they did not fit then.
        """
        entry = self._entries.get((name, canonical(arguments)))
        if entry is None:
            return arguments
        if entry.get("error_type") == ToolArgumentsError.__name__:
            raise ToolArgumentsError(str(entry.get("error")))
        if "sent_arguments" not in entry:
            return arguments
        form: dict[str, Any] = clone(entry.get("original_arguments", entry["arguments"]))
        return form

    def read(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments themselves: the tool answers from the record."""
        return dict(arguments)
