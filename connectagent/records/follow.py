"""Reads records while they grow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from connectagent.errors import ConfigError
from connectagent.records.file import BETWEEN_TURNS, open_to_read, refuse_newer
from connectagent.records.find import records_folder
from connectagent.records.lines import MAX_VALUES, count_values, entry_of, pair_of, text_of
from connectagent.records.read import ODD, is_shown
from connectagent.session.journal import HOOKS_ENDED


class Follower:
    """Reads the entries of a growing record, line by line.

    Args:
        path: the record.
        whole: whether it reads all lines, and not only those that people are shown of the record's agent.

    Attributes:
        path: the record.
        turn: the number of the last entry's turn.
        item: the pairs of that turn's item so far, without its messages; a new dict for each item.
    """

    def __init__(self, path: Path, whole: bool = False) -> None:
        self.path = path
        self._whole = whole
        self.turn: Any = None
        self.item: dict[str, Any] = {}
        self._offset = 0
        self._agent: Any = None
        self._values = 0

    def entries(self) -> Iterator[dict[str, Any]]:
        """The new entries: trace entries, and for a turn's end `{"type": "turn_ended", ...}` with its summary.

        What cannot be read is left out.

        Raises:
            OSError: the file cannot be read, for example because it was removed.
            ConfigError: it is no record, or holds more than is read at once.
        """
        with open_to_read(self.path) as file:
            if self._offset == 0:
                refuse_newer(file, self.path)
            # The writer removes a line that it could not write whole, as on a full disk.
            self._offset = min(self._offset, os.fstat(file.fileno()).st_size)
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                if line.startswith(b"  messages: "):  # half of the record, which its entries tell as well
                    continue
                entry = self._read(line)
                if entry is not None:
                    yield entry

    def _read(self, data: bytes) -> dict[str, Any] | None:
        try:
            line = text_of(data)
            self._values += count_values(line)
            if self._values > MAX_VALUES:
                raise ConfigError(f"{self.path}: it holds over {MAX_VALUES} values: more than is read at once")
            if line.startswith("  - {"):
                entry = entry_of(line)
                entry.pop(HOOKS_ENDED, None)
                return entry if self._whole or is_shown(entry, self._agent) else None
            if line.startswith("- "):
                key, self.turn = pair_of(line[2:])
                self.item = {key: self.turn}
            elif line.startswith("agent: "):
                self._agent = pair_of(line)[1]
            elif line.startswith("  ") and line != "  trace:":
                key, value = pair_of(line[2:])
                self.item[key] = value
                if key == "status" and value != BETWEEN_TURNS:
                    return {"type": "turn_ended", **self.item}
        except ConfigError:
            raise
        except ODD:
            pass
        return None


def follow(
    newest: Callable[[], Path | None],
    every_s: float = 0.15,
    wait: Callable[[float], Any] = time.sleep,
    *,
    whole: bool = False,
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield entries as any process writes them, each with its record; it never ends.

    Args:
        newest: returns the record to follow; called again when its folder has changed.
        every_s: seconds between two looks.
        wait: sleeps that long.
        whole: as for `Follower`.
    """
    follower: Follower | None = None
    seen: Any = None
    while True:
        changed = _modified(follower.path.parent if follower else records_folder())
        if follower is None or changed != seen:
            seen = changed
            path = newest()
            if path is not None and (follower is None or path != follower.path):
                if follower is not None:  # what came between the last look and the next record
                    yield from ((follower.path, entry) for entry in _left(follower))
                follower = Follower(path, whole)
        if follower is not None:
            yield from ((follower.path, entry) for entry in _left(follower))
        wait(every_s)


def _left(follower: Follower) -> Iterator[dict[str, Any]]:
    try:
        yield from follower.entries()
    except FileNotFoundError:  # it was removed: the next one may come
        return


def _modified(folder: Path) -> int | None:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return None
