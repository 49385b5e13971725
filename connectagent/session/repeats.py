"""What a resumed turn does again in the conversation, of which its log has the entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from connectagent.data import TraceEntry

_TYPES = {"user_input", "assistant", "message", "message_edited", "mended", "state_delta", "session_delta"}


class Repeats:
    """The entries that the loop makes again in a resumed turn: they are in its log, and not traced again.

    Args:
        entries: those of the log, in order.
        repeated: is given each as soon as the loop has made it again.
    """

    def __init__(self, entries: Iterable[TraceEntry], repeated: Callable[[TraceEntry], Any]) -> None:
        self._repeated = repeated
        self._waiting: dict[str, list[TraceEntry]] = {}
        for entry in entries:
            self._waiting.setdefault(entry["type"], []).append(entry)

    def has(self, entry: TraceEntry, place: str | None) -> bool:
        """Whether the log has an entry that the loop has made at a place; it is not expected any more."""
        waiting = self._waiting.get(entry["type"])
        if not waiting or "id" in entry or entry["type"] not in _TYPES or place != waiting[0]["at"]:
            return False
        self._repeated(waiting.pop(0))
        return True
