"""Limits what is kept under `.co`: removes the oldest records, and the blobs that only they needed."""

from __future__ import annotations

import contextlib
import math
import os
import re
import stat
import sys
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from connectagent.errors import ConfigError
from connectagent.output.text import clean
from connectagent.records.blobs import blob_folder
from connectagent.records.disk import read_at
from connectagent.records.file import newer_format, open_to_read
from connectagent.records.findings import forget_findings
from connectagent.records.locks import lock
from connectagent.records.paths import KEYED
from connectagent.settings import looking_once, setting

MAX_RECORDS = 1_000
MAX_RECORD_BYTES = 1 << 30
# As parts of the records: how many are removed at once, how many sessions at least begin between two looks, and how
# many at most.
_ROOM = 0.02
_SELDOM = 0.25
_BEGUN = 20  # sessions until the next look, should this one not come to its end
_LONG_COUNT = 4096  # bytes of the file that counts sessions, from which on it is begun anew
_YOUNG_S = 86_400  # younger files are not removed unasked: a running batch may need them
_MOST_TAIL = 1 << 23
_HEAD = re.compile(rb"format: \d+\nagent: [^\n]+\nmodel: ")
_STATUS = re.compile(rb"^  status: (\w+)\n", re.MULTILINE)
_DIGEST = re.compile(rb"sha256:([0-9a-f]{64})(?![0-9a-f])")
# Follow no link, wait for no pipe; Windows changes the ends of lines in a descriptor that is not binary.
_SAFELY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_announced: set[Path] = set()  # folders for which this process has printed that records were removed


@dataclass(slots=True)
class _RecordFile:
    folder: Path
    name: str
    size: int
    modified: float
    blobs: set[str] = field(default_factory=set)

    @property
    def path(self) -> Path:
        return self.folder / self.name

    @property
    def has_key(self) -> bool:
        """Whether the program knows the session by a key: the record is its state then."""
        return KEYED in self.name


@dataclass(slots=True)
class _Limits:
    """How many files and bytes are kept; None for any number."""

    files: int | None
    size: int | None

    def over(self, files: int, size: int) -> bool:
        return (self.files is not None and files > self.files) or (self.size is not None and size > self.size)

    def until_next_look(self, files: int, size: int, all_files: int) -> int:
        """How many sessions begin before the next look: few near the limits, more where there is room for many.

        Above them, where no record may be removed yet, there is as much time. A look takes as long as `all_files` are
        many, those with a key too.
        """
        if self.over(files, size):
            return int(max(all_files * _ROOM, files * _SELDOM))
        left = math.inf if self.files is None else self.files - files
        if self.size is not None and size:
            left = min(left, (self.size - size) * files / size)  # if they are as large as these on average
        return int(max(all_files * _ROOM, min(files * _SELDOM, left / 2)))

    def with_room(self, room: float) -> _Limits:
        return _Limits(*(most and most - int(most * room) for most in (self.files, self.size)))


def keep_limits(new: Path) -> None:
    """Apply the settings `max_records` and `max_record_bytes` when a session begins.

    Only some sessions look, one at a time: with 100,000 records a look takes a second. One with a key adds nothing to
    what the limits are for. Removals are printed once per process.

    Args:
        new: the session's own record, which stays.
    """
    if KEYED in new.name:
        return
    folder = new.parent
    sessions = new.parent.parent / ".sessions"
    # The folder was removed or cannot be read, or a setting was changed to an invalid one: no limits apply.
    with contextlib.suppress(OSError, ConfigError):
        if any(map(os.path.islink, (folder, folder.parent, blob_folder(new)))) or not _is_due(sessions):
            return
        files = limit("max_records", MAX_RECORDS)
        size = limit("max_record_bytes", MAX_RECORD_BYTES)
        limits = _Limits(files, size)
        found = _amount(folder)
        removed = []
        young = time.time() - _YOUNG_S
        if limits.over(*found[:2]):
            removed = remove_oldest(folder, files, size, new=new, room=_ROOM, written_before=young)
        _set_due(sessions, limits.until_next_look(*(_amount(folder) if removed else found)))
        if removed and folder not in _announced and sys.stderr is not None:
            _announced.add(folder)
            count = f"{len(removed)} old record{'' if len(removed) == 1 else 's'}"
            text = f"removed {count} from {folder}, the oldest {removed[0].name}; see max_records and max_record_bytes"
            print(f"connectagent: {clean(text)}", file=sys.stderr)


def _amount(folder: Path) -> tuple[int, int, int]:
    """How many records there are without a key, how many bytes with the blobs, and how many records with a key too."""
    records = _records(folder)
    counted = _counted(records)
    return len(counted), _sum(counted, _blobs(blob_folder(folder / "any"))), len(records)


def _is_due(sessions: Path) -> bool:
    """Count a session; whether it is time to look.

    The file ends with how many sessions that takes, and one byte for each that has begun since. Other sessions that
    begin during the look do not look too.
    """
    fd = os.open(sessions, os.O_RDWR | os.O_APPEND | os.O_CREAT | _SAFELY, 0o600)
    try:
        size = os.fstat(fd).st_size
        number, begun = (b"\n" + read_at(fd, 1 << 20, max(0, size - (1 << 20)))).split(b"\n")[-2:]
        due = not re.fullmatch(rb"\d{1,6}", number) or len(begun) >= int(number)
        if due and size > _LONG_COUNT:  # seldom, since file systems write a file that was truncated to the disk at once
            os.ftruncate(fd, 0)
        os.write(fd, b"\n%d\n" % _BEGUN if due else b".")
        return due
    finally:
        os.close(fd)


def _set_due(sessions: Path, count: int) -> None:
    fd = os.open(sessions, os.O_WRONLY | os.O_APPEND | _SAFELY)
    try:
        os.write(fd, b"\n%d\n" % count)
    finally:
        os.close(fd)


def check_limits() -> None:
    """Check both settings.

    Raises:
        ConfigError: one is no whole number.
    """
    looking_once(lambda: (limit("max_records", MAX_RECORDS), limit("max_record_bytes", MAX_RECORD_BYTES)))


def limit(name: str, default: int) -> int | None:
    """A limit from the settings; None where `0` lifts it.

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
    written_before: float | None = None,
    dry_run: bool = False,
) -> list[Path]:
    """Remove the records that were written to longest ago, until the rest is within the limits.

    Records with a paused or running turn, and `new`, stay but count. Sessions with a key and other YAML files stay and
    do not count. The blobs of what counts do too, and are removed with the last record that needs them.

    Args:
        folder: `.co/evals`.
        keep_files: how many records may stay; None for any number.
        keep_bytes: how many bytes records and blobs may take; None for any number.
        new: a record that stays.
        room: the part of the limits to free once something must be removed: 0 to 1.
        written_before: a time; records written to since then stay, and count.
        dry_run: whether nothing is removed.

    Returns:
        The records that were removed, the oldest first.

    Raises:
        OSError: the folder cannot be read.
    """
    limits = _Limits(keep_files, keep_bytes)
    records = _records(folder)
    blobs = _blobs(blob_folder(folder / "any"))
    before = math.inf if written_before is None else written_before
    counted = _counted(records)
    if not limits.over(len(counted), _sum(counted, blobs)) or not _old(counted, before, new):
        return []
    counted = [record for record in counted if record.path == new or _is_record(record.path)]
    users = _users(counted, blobs)
    old = _old(counted, before, new)
    files = len(counted)
    size = _sum(counted, _needed(users, blobs))
    if not old or not limits.over(files, size):
        return []
    users.update(_users([record for record in records if record.has_key], blobs))
    limits = limits.with_room(room)
    removed: list[_RecordFile] = []
    for record in old:
        if limits.over(files, size) and _removed(record.path, dry_run):
            removed.append(record)
            users.subtract(record.blobs)
            files -= 1
            size -= record.size + _freed(record, users, blobs)
    _remove_blobs(removed, users, blobs, dry_run)
    return [record.path for record in removed]


def _counted(records: list[_RecordFile]) -> list[_RecordFile]:
    """Those that limits are for."""
    return [record for record in records if not record.has_key]


def _old(records: list[_RecordFile], before: float, new: Path | None) -> list[_RecordFile]:
    """Those that were written to before a time, without the new one; the oldest first."""
    found = [record for record in records if record.modified < before and record.path != new]
    return sorted(found, key=lambda record: (record.modified, record.name))


def _needed(users: Counter[str], blobs: dict[str, tuple[int, float, Path]]) -> dict[str, tuple[int, float, Path]]:
    """The blobs that some record needs."""
    return {digest: blobs[digest] for digest in users.keys() & blobs}


def _freed(record: _RecordFile, users: Counter[str], blobs: dict[str, tuple[int, float, Path]]) -> int:
    """The bytes of the blobs that only this record needed."""
    return sum(blobs[digest][0] for digest in record.blobs if not users[digest] and digest in blobs)


def _sum(records: list[_RecordFile], blobs: dict[str, tuple[int, float, Path]]) -> int:
    return sum(record.size for record in records) + sum(blob[0] for blob in blobs.values())


def remove(folder: Path, paths: Collection[Path], *, dry_run: bool = False) -> tuple[list[Path], int]:
    """Remove records, unless `remove_oldest` would keep them, and the blobs that no other record needs.

    Args:
        folder: `.co/evals`.
        paths: the records.
        dry_run: whether nothing is removed.

    Returns:
        The records that were removed, and how many blobs went with them.

    Raises:
        OSError: the folder cannot be read.
    """
    records = _records(folder)
    blobs = _blobs(blob_folder(folder / "any"))
    users = _users(records, blobs)
    removed = [record for record in records if record.path in paths and _removed(record.path, dry_run)]
    for record in removed:
        users.subtract(record.blobs)
    return [record.path for record in removed], _remove_blobs(removed, users, blobs, dry_run)


def is_paused(path: Path) -> bool:
    """Whether a record's last turn is paused; also True where its status is too far up in a long file."""
    with open_to_read(path) as file:
        size = file.seek(0, os.SEEK_END)
        length = 1 << 16
        while True:
            file.seek(max(0, size - length))
            found = [status for status in _STATUS.findall(file.read(length)) if status != b"between_turns"]
            if found or length >= min(size, _MOST_TAIL):
                return found[-1] == b"paused" if found else size > length
            length *= 2


def _is_record(path: Path) -> bool:
    """Whether a file has the head of a record, in a format that this version knows."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | _SAFELY)
        try:
            head = read_at(fd, 8192, 0)
            return stat.S_ISREG(os.fstat(fd).st_mode) and _HEAD.match(head) is not None and newer_format(head) is None
        finally:
            os.close(fd)
    return False


def _records(folder: Path) -> list[_RecordFile]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".yaml") and not entry.name.startswith("."):
                with contextlib.suppress(OSError):  # removed by another process just now
                    status = entry.stat(follow_symlinks=False)
                    if not stat.S_ISREG(status.st_mode):
                        continue
                    found.append(_RecordFile(folder, entry.name, status.st_size, status.st_mtime))
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
    """How many records need each blob; without blobs no record is read."""
    for record in records if blobs else ():
        try:
            record.blobs = _digests(record.path)
        except PermissionError:  # it may need any of them
            record.blobs = set(blobs)
    return Counter(digest for record in records for digest in record.blobs)


def _digests(path: Path) -> set[str]:
    """The blobs that a record refers to."""
    found: set[str] = set()
    with contextlib.suppress(FileNotFoundError, ConfigError), open_to_read(path) as file:
        for line in file:
            if b"sha256:" in line:
                found.update(digest.decode() for digest in _DIGEST.findall(line))
    return found


def _removed(path: Path, dry_run: bool) -> bool:
    """Remove a record, unless it is paused or a turn is being written to it."""
    windows = os.name == "nt"  # where a file that is open, here or elsewhere, cannot be removed
    try:
        fd = os.open(path, os.O_RDONLY | _SAFELY)
        try:
            if not _is_record(path) or lock(fd, shared=True) is not True or is_paused(path):
                return False
            if not windows and not dry_run:
                os.unlink(path)
        finally:
            os.close(fd)
        if windows and not dry_run:
            os.unlink(path)
    except (OSError, ConfigError):  # it is gone already, or may not be removed
        return False
    return True


def _remove_blobs(
    removed: list[_RecordFile], users: Counter[str], blobs: dict[str, tuple[int, float, Path]], dry_run: bool
) -> int:
    """Remove what only removed records needed; how many blobs. One that a session has just begun to use stays."""
    gone = 0
    for record in removed if not dry_run else ():
        forget_findings(record.path)
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
