"""What `connectagent bisect` found of a record: `.co/bisect/<record's name>.json`, removed with the record."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from connectagent.errors import ConfigError
from connectagent.records.blobs import blob_folder
from connectagent.records.file import open_to_read
from connectagent.records.locks import lock

MOST_BYTES = 1 << 20
MOST = 20  # findings of one record
_WAIT_S = 5.0  # for another process that keeps a finding
IDENTITY = ("type", "id", "timestamp", "call_id")  # the keys that tell an entry from all others of its record


def findings_of(record: Path) -> list[dict[str, Any]]:
    """The findings of a record, the newest last; [] where there are none that can be read.

    They are data, of whoever wrote the file. Each has `symptom`, the question, and `said`, its answer in lines; perhaps
    `confirmed`, `entry` (the `IDENTITY` of the one that was called bad), `maker` (who added the
    text that was found, as `by` of an entry) and `date`.
    """
    try:
        with open_to_read(findings_file(record)) as file:
            data = file.read(MOST_BYTES + 1)
        found = json.loads(data) if len(data) <= MOST_BYTES else []
    except (OSError, ConfigError, ValueError, RecursionError):
        return []
    return [one for one in found if _is_finding(one)][-MOST:] if isinstance(found, list) else []


def keep_finding(record: Path, finding: dict[str, Any]) -> None:
    """Keep a finding beside a record, in place of the one with the same question.

    Args:
        record: the record; it is for the caller to see to it that it is the person's own: see `why_not_own`.
        finding: as `findings_of` gives them, without secrets. Of `entry` only what tells it from others is kept.

    Raises:
        OSError: it cannot be written.
    """
    if "entry" in finding:
        finding = {**finding, "entry": {key: finding["entry"][key] for key in IDENTITY if key in finding["entry"]}}
    file = findings_file(record)
    if file.parent.is_symlink():
        raise OSError(errno.ELOOP, "a link may lead anywhere", str(file.parent))
    file.parent.mkdir(mode=0o700, exist_ok=True)
    safely = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a link or a pipe may lead anywhere
    with open(os.open(file.parent / ".lock", os.O_RDWR | os.O_CREAT | safely, 0o600), "rb") as alone:
        end = time.monotonic() + _WAIT_S
        while lock(alone.fileno()) is False and time.monotonic() < end:  # another search has found something
            time.sleep(0.01)
        _replace(file, _with(findings_of(record), finding))


def _with(findings: list[dict[str, Any]], new: dict[str, Any]) -> str:
    kept = [one for one in findings if one["symptom"] != new["symptom"]]
    kept = [*kept, new][-MOST:]
    while len(text := json.dumps(kept, default=str)) > MOST_BYTES and len(kept) > 1:
        del kept[0]
    return text


def _replace(file: Path, text: str) -> None:
    fd, whole = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=".new")
    try:
        with os.fdopen(fd, "w", encoding="ascii") as new:
            new.write(text)
        os.replace(whole, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(whole)
        raise


def forget_findings(record: Path) -> None:
    """Remove the findings of a record that is removed."""
    file = findings_file(record)
    with contextlib.suppress(OSError):
        if not file.parent.is_symlink():
            file.unlink()


def findings_file(record: Path) -> Path:
    """Where the findings of a record are, if there are any."""
    return blob_folder(record).with_name("bisect") / f"{record.stem}.json"


def _is_finding(one: object) -> bool:
    if not isinstance(one, dict) or not isinstance(one.get("symptom"), str) or not isinstance(one.get("said"), list):
        return False
    parts = (one.get("entry", {}), one.get("maker", {}))
    return all(isinstance(line, str) for line in one["said"]) and all(isinstance(part, dict) for part in parts)
