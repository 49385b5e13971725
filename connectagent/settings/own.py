"""What is the user's own: files that nobody else could have written, and marks that nobody else can make.

A mark is a keyed hash. Its key is in the user's state folder, is made with the first mark, and never leaves it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

try:  # `hashlib` loads OpenSSL, which takes 3 ms
    from _blake2 import blake2b as blake2b
except ImportError:
    from hashlib import blake2b as blake2b

_KEY_BYTES = 32


def state_folder() -> Path:
    """The folder of what connectagent stores for this user, outside of projects.

    Raises:
        RuntimeError: the user has no home.
    """
    given = os.environ.get("XDG_STATE_HOME", "")
    root = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    return root / "connectagent"


def read_regular(path: str | Path, most: int) -> bytes:
    """The content of a file that may be a stranger's: a pipe would let its reader wait, and a device has no end.

    Raises:
        OSError: it cannot be read, is no regular file, or has more bytes than `most`.
    """
    with _opened(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return content


def _opened(path: str | Path, flags: int = 0) -> BinaryIO:
    """Open a regular file to read.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    safely = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, os.O_RDONLY | safely | flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_own(path: Path, most: int) -> bytes | None:
    """The content of a file; None for one that is missing, or that somebody else, or git, may have written."""
    try:
        if not hasattr(os, "O_NOFOLLOW") and path.is_symlink():
            return None
        with _opened(path, getattr(os, "O_NOFOLLOW", 0)) as file:
            status = os.fstat(file.fileno())
            strange = hasattr(os, "geteuid") and (status.st_uid != os.geteuid() or status.st_mode & 0o077)
            return None if strange else file.read(most)
    except OSError:
        return None


def mark(*parts: str) -> str:
    """The user's mark on some texts. Where no key can be stored, it is right in this process only."""
    try:
        key = _key(state_folder())
    except RuntimeError:
        key = _key(None)
    return blake2b(json.dumps(parts).encode(), key=key, digest_size=16).hexdigest()


@lru_cache(maxsize=8)
def _key(folder: Path | None) -> bytes:
    """The user's key; one of this process if there is no folder, or it cannot be written."""
    new = os.urandom(_KEY_BYTES)
    if folder is None:
        return new
    path = folder / "key"
    own = read_own(path, _KEY_BYTES)
    if own is None:
        with contextlib.suppress(OSError):
            _store(path, new)
        own = read_own(path, _KEY_BYTES)
    return own if own is not None and len(own) == _KEY_BYTES else new


def _store(path: Path, key: bytes) -> None:
    """Write the key, unless another process does so first: whoever reads it reads all of it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f".key.{os.getpid()}.{os.urandom(4).hex()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key)
    try:
        os.link(new, path)
    finally:
        os.unlink(new)
