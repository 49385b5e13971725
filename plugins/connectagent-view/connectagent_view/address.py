"""The secret part of the page's address: with a fixed port it is the same after a restart, so that links stay.

Without one it is new each time: on a machine with others, somebody could listen on the port of a page that has ended,
and be told the secret by a tab that is still open.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
from pathlib import Path

from connectagent.settings.allowed import store

_SECRET = re.compile(r"[A-Za-z0-9_-]{32}")


def kept_secret(folder: Path) -> str:
    """The secret part of the address of a folder's page; a new one where there is none yet.

    It is in a file of the user's state folder. A file that somebody else may have written or read does not count.

    Args:
        folder: the folder with the records.
    """
    made = secrets.token_urlsafe(24)
    try:
        path = store().parent / "view" / hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()
        if there := _read(path):
            return there
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(made)
    except (OSError, RuntimeError):  # it is not kept
        pass
    return made


def _read(path: Path) -> str | None:
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            strange = hasattr(os, "geteuid") and (status.st_uid != os.geteuid() or status.st_mode & 0o077)
            text = file.read(100).decode("ascii", "replace")
            return text if not strange and stat.S_ISREG(status.st_mode) and _SECRET.fullmatch(text) else None
    return None
