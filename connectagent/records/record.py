"""A record as one object: its turns, its entries, its agents, and what their models were sent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from connectagent.data import TraceEntry
from connectagent.records.blobs import blob_folder
from connectagent.records.history import read_history
from connectagent.records.read import read_lazily
from connectagent.records.requests import Request
from connectagent.records.watched import WatchedAgent, request_of, watched_agents
from connectagent.session.history import History
from connectagent.session.journal import LINES


class Record:
    """A record, read once.

    It may come from a stranger: wrap what reads its values in `refuse_odd(path)`, and ask `why_not_own` and
    `why_not_run` before anything that it names is believed or run.

    Args:
        path: the file.

    Attributes:
        path: the file.
        head: the keys above the turns, such as `id`, `agent`, `model`, `system_prompt`.
        turns: the turns, each with its keys, its `lines`, and in `trace` those that people are shown. Each line has
            its `number` in the record, from 0.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is not a record, or is too large to be read at once.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._data = read_lazily(self.path)
        self.turns: list[dict[str, Any]] = self._data["turns"]
        self.head: dict[str, Any] = {key: value for key, value in self._data.items() if key != "turns"}
        for number, line in enumerate(self.lines()):
            line["number"] = number

    def lines(self) -> Iterator[TraceEntry]:
        """All lines of all turns, in order: entries, and what only the log has."""
        return (line for turn in self.turns for line in turn["lines"])

    def entries(self) -> Iterator[TraceEntry]:
        """The trace entries of all agents, in the order in which they were written."""
        return (line for line in self.lines() if line.get("type") not in LINES)

    @cached_property
    def agents(self) -> list[WatchedAgent]:
        """The agents, that of the record first, each with its entries, requests and changes; long texts are whole."""
        return watched_agents(self._data, blob_folder(self.path))

    def request(self, number: int) -> Request | None:
        """What a model call was sent; None where the record does not tell.

        Args:
            number: the number of the line of its `llm_call`.
        """
        return request_of(self._data, number, blob_folder(self.path))

    def history(self) -> History:
        """The conversation of the record's agent: each message with who made and changed it; long texts are whole."""
        return read_history(self._data, blob_folder(self.path))
