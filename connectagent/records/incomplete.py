"""Sessions that were not recorded to their end, as the disk was full or failed: `*.incomplete.yaml`."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from connectagent.records.file import INCOMPLETE, hold
from connectagent.records.history import UNRECORDED, RecordedSession, TurnPart, parts_of
from connectagent.records.locks import owner
from connectagent.records.paths import size_of
from connectagent.records.read import read_record, refuse_odd

_WHY = "was not recorded to its end, as the disk was full or failed: what was done in it is not known"


def take_incomplete(record: Path) -> str | None:
    """Go on with the record of a session with a key that was renamed as the disk was full.

    Turns that ended count. One that was open went on without its record, so it is given up: nobody goes on with it.

    Args:
        record: the file of the session.

    Returns:
        What was lost, in words that follow the session's name; None where there is no such file, or the session began
        anew since.

    Raises:
        OSError: it cannot be written or renamed.
        ConfigError: it is not a record.
        SessionBusy: another process has it.
    """
    lost = record.with_name(record.name.removesuffix(".yaml") + INCOMPLETE)
    if not lost.exists() or size_of(record) > 0:
        return None
    with contextlib.suppress(FileNotFoundError):  # another process takes it just now
        held = hold(lost)
        try:
            last = _last_turn(lost) if held.file.has_turns else None
            if last is not None and last.is_open:
                held.file.append(_given_up(last))
            os.replace(lost, record)
        finally:
            held.close()
        return _told(last)
    return None


def lost_behind(path: Path, session: RecordedSession) -> int | None:
    """The first turn of which a record lacks each line, as the disk was full; None where nobody can tell.

    Args:
        path: the record.
        session: what it has; its last turn has ended, else nobody goes on with it.
    """
    return session.own.history.turn + 1 if path.name.endswith(INCOMPLETE) else None


def _last_turn(path: Path) -> TurnPart | None:
    with refuse_odd(path):
        return next((part for part in reversed(parts_of(read_record(path))) if part.is_turn), None)


def _given_up(part: TurnPart) -> bytes:
    """An item that ends a turn that went on without its record."""
    who = json.dumps(owner())
    pairs = f"  resumed: true\n  owner: {who}\n  trace: []\n  {UNRECORDED}: true\n  error: {json.dumps(_WHY)}\n"
    return f"- turn: {part.number}\n{pairs}  status: error\n".encode()


def _told(last: TurnPart | None) -> str:
    if last is None:
        return "was not recorded, as the disk was full or failed: what was done is not known; it begins anew"
    if last.is_open:
        return f"goes on without its turn {last.number}, which {_WHY}"
    return (
        f"was not recorded behind turn {last.number}, as the disk was full or failed: what was done after it is not "
        f"known; turn {last.number + 1} is the next"
    )
