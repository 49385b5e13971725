"""How much is kept under `.co`: the oldest records go, and the blobs that only they needed."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from connectagent.errors import ConfigError
from connectagent.records.blobs import blob_folder
from connectagent.settings import setting

MAX_RECORDS = 1_000
MAX_RECORD_BYTES = 1 << 30
_ROOM = 0.02  # of what is kept goes as well, once something must: at the limit not each session reads all records
_TAIL = 65_536
_STATUS = re.compile(rb"^  status: (\w+)\n", re.MULTILINE)
_DIGEST = re.compile(rb"sha256:([0-9a-f]{64})(?![0-9a-f])")


@dataclass(slots=True)
class _RecordFile:
    path: Path
    size: int
    modified: float
    blobs: set[str] = field(default_factory=set)


def keep_limits(new: Path) -> None:
    """Keep to the settings `max_records` and `max_record_bytes`, as a session begins.

    Args:
        new: the session's own record, which stays.
    """
    # The folder was removed, or may not be read; or a setting was changed to what is none: nothing to keep to.
    with contextlib.suppress(OSError, ConfigError):
        files, size = limit("max_records", MAX_RECORDS), limit("max_record_bytes", MAX_RECORD_BYTES)
        remove_oldest(new.parent, files, size, new=new, room=_ROOM)


def check_limits() -> None:
    """Raise where one of the two settings is no number.

    Raises:
        ConfigError: it is none.
    """
    limit("max_records", MAX_RECORDS)
    limit("max_record_bytes", MAX_RECORD_BYTES)


def limit(name: str, default: int) -> int | None:
    """A limit as the settings give it; None where `0` lifts it.

    Raises:
        ConfigError: it is no whole number.
    """
    value = setting(name)
    text = str(default if value is None else value).replace("_", "")
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,18}", text):
        raise ConfigError(f"{name}={value!r:.80} is no limit: a whole number, or 0 for none")
    return int(text) or None


def remove_oldest(
    folder: Path,
    keep_files: int | None,
    keep_bytes: int | None,
    *,
    new: Path | None = None,
    room: float = 0.0,
    dry_run: bool = False,
) -> list[Path]:
    """Remove the records that were written to longest ago, until the rest is within the limits.

    A record whose last turn is paused stays, and one that a turn is being written to, and `new`; all of them
    count. Blobs that no other record needs go with theirs, and count as well.

    Args:
        folder: `.co/evals`.
        keep_files: how many records may stay; None for any number.
        keep_bytes: how many bytes records and blobs may take; None for any number.
        new: a record that stays.
        room: what part of the limits is made free, once something must be removed: 0 to 1.
        dry_run: whether nothing is removed.

    Returns:
        The records that were removed, the oldest first.

    Raises:
        OSError: the folder cannot be read.
    """
    records, blobs = _records(folder), _blobs(blob_folder(folder / "any"))
    files, size = len(records), sum(record.size for record in records) + sum(map(_size, blobs.values()))
    if not _over(files, keep_files) and not _over(size, keep_bytes):
        return []
    users = _users(records, blobs)
    keep_files = keep_files and keep_files - int(keep_files * room)
    keep_bytes = keep_bytes and keep_bytes - int(keep_bytes * room)
    removed: list[_RecordFile] = []
    for record in sorted(records, key=lambda record: (record.modified, record.path.name)):
        if not _over(files, keep_files) and not _over(size, keep_bytes):
            break
        if record.path == new or not _removed(record.path, dry_run):
            continue
        removed.append(record)
        users.subtract(record.blobs)
        freed = {digest for digest in record.blobs if not users[digest] and digest in blobs}
        files, size = files - 1, size - record.size - sum(_size(blobs[digest]) for digest in freed)
    _remove_blobs(removed, users, blobs, dry_run)
    return [record.path for record in removed]


def remove(folder: Path, paths: Collection[Path], *, dry_run: bool = False) -> tuple[list[Path], int]:
    """Remove records, as far as `remove_oldest` would, and the blobs that no other record needs.

    Args:
        folder: `.co/evals`.
        paths: which of its records.
        dry_run: whether nothing is removed.

    Returns:
        The records that were removed, and how many blobs went with them.

    Raises:
        OSError: the folder cannot be read.
    """
    records, blobs = _records(folder), _blobs(blob_folder(folder / "any"))
    users = _users(records, blobs)
    removed = [record for record in records if record.path in paths and _removed(record.path, dry_run)]
    for record in removed:
        users.subtract(record.blobs)
    return [record.path for record in removed], _remove_blobs(removed, users, blobs, dry_run)


def is_paused(path: Path) -> bool:
    """Whether a record's last turn waits to be gone on with."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        for length in (min(_TAIL, size), size):  # the whole, where the last turn's status is further up
            file.seek(size - length)
            found = [status for status in _STATUS.findall(file.read(length)) if status != b"between_turns"]
            if found:
                return bool(found[-1] == b"paused")
    return False


def _over(number: int, most: int | None) -> bool:
    return most is not None and number > most


def _size(blob: tuple[int, float, Path]) -> int:
    return blob[0]


def _records(folder: Path) -> list[_RecordFile]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".yaml") and not entry.name.startswith("."):
                with contextlib.suppress(OSError):  # removed by another process just now
                    status = entry.stat(follow_symlinks=False)
                    found.append(_RecordFile(folder / entry.name, status.st_size, status.st_mtime))
    return found


def _blobs(folder: Path) -> dict[str, tuple[int, float, Path]]:
    """The blobs by digest: size, time of the last use, path."""
    found = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if re.fullmatch("[0-9a-f]{64}", entry.name):
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    found[entry.name] = (status.st_size, status.st_mtime, folder / entry.name)
    return found


def _users(records: list[_RecordFile], blobs: dict[str, tuple[int, float, Path]]) -> Counter[str]:
    """How many records need each blob; the records are read where there are any."""
    for record in records if blobs else ():
        try:
            record.blobs = _digests(record.path)
        except PermissionError:  # it may refer to any of them
            record.blobs = set(blobs)
    return Counter(digest for record in records for digest in record.blobs)


def _digests(path: Path) -> set[str]:
    """The blobs that a record refers to."""
    found: set[str] = set()
    with contextlib.suppress(FileNotFoundError, IsADirectoryError), path.open("rb") as file:
        for line in file:
            if b"sha256:" in line:
                found.update(digest.decode() for digest in _DIGEST.findall(line))
    return found


def _removed(path: Path, dry_run: bool) -> bool:
    """Remove a record, unless it is paused or a turn is being written to it."""
    try:
        import fcntl
    except ImportError:  # Windows, where a file that is open cannot be removed anyway
        fcntl = None  # type: ignore[assignment]
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        try:
            if fcntl is not None:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if is_paused(path):
                return False
            if not dry_run:
                os.unlink(path)
        finally:
            os.close(fd)
    except OSError:  # it is being written to, is gone already, or may not be removed
        return False
    return True


def _remove_blobs(
    removed: list[_RecordFile], users: Counter[str], blobs: dict[str, tuple[int, float, Path]], dry_run: bool
) -> int:
    """Remove what only removed records needed, and count it; what another session has just begun to use stays."""
    gone = 0
    for digest in {digest for record in removed for digest in record.blobs}:
        if users[digest] or digest not in blobs:
            continue
        last = max(record.modified for record in removed if digest in record.blobs)
        path = blobs[digest][2]
        with contextlib.suppress(OSError):
            touched = path.stat().st_mtime
            if touched <= last or touched < time.time() - 3600:
                gone += 1
                if not dry_run:
                    path.unlink()
    return gone
