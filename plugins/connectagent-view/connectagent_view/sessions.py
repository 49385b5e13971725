"""The list of sessions: searched, filtered, a page at a time."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from connectagent.errors import ConfigError
from connectagent.records.file import open_to_read
from connectagent.records.lines import pair_of
from connectagent_view.reading import summary_of

MOST_SESSIONS = 200  # of one answer
_TOOLS = re.compile(
    rb'^  tools_called: (\[.*\])$|^  - \{"type": "began".{0,400}?"tool_name": ("[^"]{0,200}")', re.MULTILINE
)
_HEAD = 1 << 16  # bytes of a record in which its plugins are looked for


class Sessions:
    """The summaries of records, each read again only when its file has changed.

    Args:
        paths: gives the records, the newest first.
    """

    def __init__(self, paths: Callable[[], list[Path]]) -> None:
        self._paths = paths
        self._lock = threading.Lock()
        self._known: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {}
        self._inside: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {}

    def page(self, given: dict[str, str]) -> dict[str, Any]:
        """Some of the sessions, and how many there are.

        Args:
            given: `from`: the first; `text`, `agent`, `status`, `plugin`, `tool`: what they have; `since` and `until`:
                days, as in `2026-01-31`; `cost`: USD that they cost at least.
        """
        paths, first = self._paths(), max(0, int(given.get("from") or 0))
        tests = [test for name, test in _TESTS.items() if given.get(name)]
        if not tests:
            chosen = paths[first : first + MOST_SESSIONS]
            return {"sessions": [self._summary(path) for path in chosen], "count": len(paths), "all": len(paths)}
        found = [one for path in paths if (one := self._matching(path, given)) is not None]
        return {"sessions": found[first : first + MOST_SESSIONS], "count": len(found), "all": len(paths)}

    def names(self) -> dict[str, list[str]]:
        """What the lists of the filters offer: all agents, statuses, plugins and tools."""
        found: dict[str, dict[str, None]] = {"agent": {}, "status": {}, "plugin": {}, "tool": {}}
        for path in self._paths():
            summary, inside = self._summary(path), self._parts(path)
            for key, values in (
                ("agent", [summary.get("agent")]),
                ("status", [summary["status"]]),
                ("plugin", inside["plugins"]),
                ("tool", inside["tools"]),
            ):
                found[key] |= dict.fromkeys(str(value) for value in values if value)
        return {key: sorted(values)[:500] for key, values in found.items()}

    def _matching(self, path: Path, given: dict[str, str]) -> dict[str, Any] | None:
        summary = self._summary(path)
        for name, test in _TESTS.items():
            wanted = given.get(name)
            if wanted and not test(wanted, summary, lambda: self._parts(path)):
                return None
        return summary

    def _summary(self, path: Path) -> dict[str, Any]:
        return self._cached(self._known, path, _read_summary)

    def _parts(self, path: Path) -> dict[str, Any]:
        return self._cached(self._inside, path, _read_parts)

    def _cached(
        self,
        known: dict[str, tuple[tuple[int, int, int], dict[str, Any]]],
        path: Path,
        read: Callable[[Path], dict[str, Any]],
    ) -> dict[str, Any]:
        try:
            status = os.stat(path)
        except OSError as error:
            return _unreadable(path, error)
        version = status.st_mtime_ns, status.st_size, status.st_ino
        with self._lock:
            there = known.get(str(path))
        if there is not None and there[0] == version and there[1].get("status") != "running":
            return there[1]
        made = read(path)
        with self._lock:
            known[str(path)] = version, made
        return made


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        return summary_of(path)
    except (OSError, ConfigError) as error:
        return _unreadable(path, error)


def _unreadable(path: Path, error: Exception) -> dict[str, Any]:
    return {"name": path.name, "status": "unreadable", "first_words": str(error)}


def _read_parts(path: Path) -> dict[str, Any]:
    """The plugins and tools of a session."""
    parts: dict[str, Any] = {"plugins": [], "tools": []}
    with contextlib.suppress(OSError, ConfigError, ValueError), open_to_read(path) as file:
        data = file.read()
        found = re.search(rb"^plugins: .*$", data[:_HEAD], re.MULTILINE)
        plugins = pair_of(found[0].decode("utf-8", "replace"))[1] if found else {}
        parts["plugins"] = list(plugins) if isinstance(plugins, dict) else []
        tools: dict[str, None] = {}
        for whole, one in set(_TOOLS.findall(data)):
            named = json.loads(whole or b"[%s]" % one)
            tools |= dict.fromkeys(str(name) for name in named)
        parts["tools"] = list(tools)
    return parts


_Parts = Callable[[], dict[str, Any]]


def _has_text(wanted: str, one: dict[str, Any], parts: _Parts) -> bool:
    there = " ".join(str(one.get(key) or "") for key in ("agent", "first_words", "model", "script", "name", "status"))
    return all(word in there.lower() for word in wanted.lower().split())


def _costs(wanted: str, one: dict[str, Any], parts: _Parts) -> bool:
    try:
        return one.get("cost") is not None and float(one["cost"]) >= float(wanted)
    except (TypeError, ValueError):
        return False


_TESTS: dict[str, Callable[[str, dict[str, Any], _Parts], bool]] = {
    "text": _has_text,
    "agent": lambda wanted, one, parts: one.get("agent") == wanted,
    "status": lambda wanted, one, parts: one.get("status") == wanted,
    "since": lambda wanted, one, parts: (one.get("started") or "") >= wanted,
    "until": lambda wanted, one, parts: "" < (one.get("started") or "")[:10] <= wanted,
    "cost": _costs,
    "plugin": lambda wanted, one, parts: wanted in parts()["plugins"],
    "tool": lambda wanted, one, parts: wanted in parts()["tools"],
}
