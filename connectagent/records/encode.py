"""Values as lines of the record: secrets masked, long texts replaced by place holders of their blobs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from connectagent.data import TraceEntry
from connectagent.output.masking import current
from connectagent.output.text import describe
from connectagent.records import yaml_lines
from connectagent.records.blobs import LARGEST, is_long, is_place_holder, place_holder, store_blob
from connectagent.records.paths import SessionOwner, data_folder, is_keyed, refuse_link, warn
from connectagent.session.journal import TURN_ENDED, WITHHELD
from connectagent.settings import enabled

_WITHOUT_TEXTS = {
    *("type", "id", "at", "agent", "author", "branch", "turn", "iteration", "timestamp", "started", "duration_ms"),
    *("timing", "usage", "model", "status", "outcome", "tool_name", "call_id", "tool_calls_count", "attempt"),
    *("error_type", "error_kind", "from", "record", "open", "by", "of", "hook", "waits", "over"),
}
_STATE = ("delta", "appended", "inside", "removed")


def without_texts(line: TraceEntry) -> TraceEntry:
    """A line of an agent with `log=False`: what happened and what it cost, without texts and arguments.

    Its turn's changes to the state stay: they concern the agents around it too.
    """
    ends_turn = line.get("type") in ("agent_turn", TURN_ENDED)
    kept = _WITHOUT_TEXTS.union(_STATE) if ends_turn else _WITHOUT_TEXTS
    return {**{key: value for key, value in line.items() if key in kept}, WITHHELD: True}


class Encoder:
    """Makes the lines of one session's record.

    Args:
        agent: the agent, for a warning when a long text cannot be written.
        record: the session's file, if it exists already.
    """

    def __init__(self, agent: SessionOwner, record: Path | None = None) -> None:
        self._agent = agent
        self.record = record
        self._folder: Path | None = None

    def entry(self, entry: TraceEntry) -> str:
        """An entry of the trace as one line; its key `masked` lists the places where something was masked."""
        return self._line(entry, yaml_lines.entry_line, list_masked=True)

    def line(self, value: object) -> str:
        """A value as one line."""
        return self._line(value, yaml_lines.json_line)

    def scalar(self, text: str) -> str:
        """A text as one line, without quotes where it needs none."""
        return self._line(text, yaml_lines.scalar)

    def messages(self, messages: list[Any]) -> str:
        """Messages as one line: a text that is JSON."""
        return yaml_lines.json_line(self._line(messages, yaml_lines.json_text))

    def _line(self, value: Any, encode: Callable[[Any], str], list_masked: bool = False) -> str:
        """A value as a line. Most have no secret and no long text: a cheap look at the encoded line shows it."""
        line: str = encode(value)
        try:
            if current().suspects(line):
                given, value = value, current().value(value)
                if list_masked and value is not given:
                    value = {**value, "masked": sorted(set(_changed(given, value)))}
                line = encode(value)
            if len(line) > LARGEST // 4:
                line = encode(self._short(value))
        except Exception as error:  # another thread changes it meanwhile: the turn must go on
            line = encode(
                {"type": "", "not_recorded": current().text(f"{type(error).__name__}: {describe(str, error)}")}
            )
        return line

    def _short(self, value: object, above: tuple[int, ...] = ()) -> Any:
        """A value with place holders for its long texts, and a note in place of a value that contains itself."""
        if isinstance(value, str):
            return self._blob(value) if is_long(value) else value
        if value is None or isinstance(value, (int, float)):
            return value
        if id(value) in above or len(above) > yaml_lines.MAX_DEPTH:
            return f"<{type(value).__name__}: {'it contains itself' if id(value) in above else 'too many levels'}>"
        return self._short_items(value, (*above, id(value)))

    def _short_items(self, value: object, above: tuple[int, ...]) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {name: getattr(value, name, None) for name in value.__dataclass_fields__}
        if isinstance(value, Mapping):
            return {key: self._short(item, above) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self._short(item, above) for item in value]
        text = str(value) if isinstance(value, os.PathLike) else describe(repr, value)
        return self._blob(text) if is_long(text) else value

    def _blob(self, text: str) -> str:
        try:
            if self._folder is None:
                # Beside the record: the program may have changed its folder since.
                evals = data_folder("evals") if self.record is None else self.record.parent
                folder = evals.parent / "blobs"
                refuse_link(folder)
                folder.mkdir(mode=0o700, exist_ok=True)
                self._folder = folder
            store_blob(text, self._folder, synced=enabled("fsync"))
        except (OSError, ValueError) as error:  # ValueError: a setting that cannot be read
            if self.record is not None and is_keyed(self.record) and not is_place_holder(text):
                return text  # in the line itself: the record is the program's state, which is to lack nothing
            warn(self._agent, "long text", error)
            return place_holder(text, kept=False)
        return place_holder(text)


def _changed(given: object, masked: object, place: str = "") -> list[str]:
    """The places where masking changed something, as `arguments.key` or `tool_calls.0.arguments.key`."""
    if given is masked:
        return []
    pairs: Any = ()
    if isinstance(given, Mapping) and isinstance(masked, dict):
        pairs = zip(masked, given.values(), masked.values(), strict=True)
    elif isinstance(given, (list, tuple)) and isinstance(masked, list):
        pairs = zip(range(len(masked)), given, masked, strict=True)
    found: list[str] = []
    for key, one, other in pairs:
        found += _changed(one, other, f"{place}.{key}".lstrip("."))
    return found or [place]
