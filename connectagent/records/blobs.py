"""Long texts of records, as files of their own: `.co/blobs/<sha256>`, one for each text.

The record has a place holder with the text's head and tail. `restored` replaces it by the whole text.
"""

from __future__ import annotations

import contextlib
import operator
import os
import re
from pathlib import Path
from typing import Any

from connectagent.records.disk import to_disk
from connectagent.settings.own import read_regular

LARGEST = 32_768  # bytes of UTF-8 of a text in the record itself
SHOWN = 1_000  # characters of head, and of tail
_LARGEST_BLOB = 1 << 30  # bytes that are read

_MARK = "\n[... {bytes} bytes, sha256:{digest} ...]\n"
_NOT_KEPT = "\n[... {bytes} bytes, not kept: the file could not be written ...]\n"
REFERENCE = re.compile(r"\[\.\.\. (\d+) bytes, sha256:([0-9a-f]{64}) \.\.\.\]")
_WHOLE = re.compile(
    rf"(?P<head>.{{{SHOWN}}})\n\[\.\.\. (?P<bytes>\d+) bytes, sha256:(?P<digest>[0-9a-f]{{64}}) \.\.\.\]\n"
    rf"(?P<tail>.{{{SHOWN}}})",
    re.DOTALL,
)


def is_long(text: str) -> bool:
    """Whether a text is kept as a blob: it has over 32,768 bytes, or looks like a blob's place holder."""
    if len(text) <= LARGEST // 4:
        return len(text) >= 2 * SHOWN and _WHOLE.fullmatch(text) is not None
    return len(text) > LARGEST or len(_data(text)) > LARGEST


def is_place_holder(text: str) -> bool:
    """Whether a text looks like a blob's place holder."""
    return _WHOLE.fullmatch(text) is not None


def place_holder(text: str, *, kept: bool = True) -> str:
    """The place holder of a long text in the record: head, size and hash, tail.

    Args:
        kept: whether its file was written; if not, the hash is left out.
    """
    data = _data(text)
    mark = (_MARK if kept else _NOT_KEPT).format(bytes=len(data), digest=_digest(data))
    return text[:SHOWN] + mark + text[-SHOWN:]


def store_blob(text: str, folder: Path, *, synced: bool = False) -> None:
    """Write a text to its file, unless the file exists.

    Args:
        folder: `.co/blobs`, which must exist.
        synced: whether it is on the disk when this returns.

    Raises:
        OSError: it cannot be written.
    """
    data = _data(text)
    path = folder / _digest(data)
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size == len(data):
            os.utime(path)  # it is in use: see `retention`
            return
    import tempfile

    fd, name = tempfile.mkstemp(prefix=".new-", dir=folder)  # of mode 0600
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            if synced:
                file.flush()
                to_disk(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def blob_folder(record: str | os.PathLike[str]) -> Path:
    """The folder of a record's blobs: `blobs` beside the record's own folder."""
    return Path(os.path.abspath(record)).parent.parent / "blobs"


def load_blob(digest: str, folder: Path) -> str:
    """The text of a blob.

    Args:
        digest: its sha256 in hex, or a text with its place holder.
        folder: `blob_folder(record)`.

    Raises:
        OSError: there is no such file, it cannot be read, or is a pipe or a device.
        ValueError: it is no digest, or the file was changed.
    """
    found = REFERENCE.search(digest)
    digest = found[2] if found else digest.removeprefix("sha256:")
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError(f"{digest!r:.80} is no sha256 of a blob: 64 hexadecimal digits")
    data = read_regular(folder / digest, _LARGEST_BLOB)
    if _digest(data) != digest:
        raise ValueError(f"{folder / digest}: the blob was changed: its hash does not match")
    return data.decode("utf-8", "surrogatepass")


_NUMBERS = frozenset((int, float, bool, type(None)))  # of which a record may hold millions


def restored(value: object, folder: Path) -> Any:
    """A value of a record with its place holders replaced by their blobs; without any, the same object.

    The place holder of a blob that is missing or was changed stays, and says so.

    Args:
        value: any value from a record: an entry, a turn, a list of messages, a text.
        folder: `blob_folder(record)`.
    """
    if isinstance(value, str):
        return _whole(value, folder)
    if isinstance(value, dict):
        items = ((key, item, restored(item, folder)) for key, item in value.items() if type(item) not in _NUMBERS)
        whole = {key: made for key, item, made in items if made is not item}
        return {**value, **whole} if whole else value
    if isinstance(value, list):
        all_made = [item if type(item) in _NUMBERS else restored(item, folder) for item in value]
        return value if all(map(operator.is_, all_made, value)) else all_made
    return value


def _whole(text: str, folder: Path) -> str:
    found = _WHOLE.fullmatch(text) if 2 * SHOWN < len(text) < 2 * SHOWN + 200 else None
    if found is None:
        return text
    try:
        return load_blob(found["digest"], folder)
    except (OSError, ValueError) as error:
        why = "missing" if isinstance(error, FileNotFoundError) else "not readable"
        return f"{found['head']}\n[... {found['bytes']} bytes, {why}, sha256:{found['digest']} ...]\n{found['tail']}"


def _data(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _digest(data: bytes) -> str:
    from hashlib import sha256  # needed for long texts only; loading OpenSSL takes 3 ms

    return sha256(data).hexdigest()
