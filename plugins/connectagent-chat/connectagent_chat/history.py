"""What a person typed into chats, over all of them: a file of the user, without secrets."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path

from connectagent.output.masking import current, refresh
from connectagent.settings.own import read_own, state_folder

MOST = 2000  # messages that are kept
_MOST_BYTES = 20_000_000  # that are read


def history_file() -> Path:
    """The file.

    Raises:
        RuntimeError: the user has no home.
    """
    return state_folder() / "chat_history"


def typed_before() -> list[str]:
    """What was typed, the newest last; [] where it cannot be read, or others may write it."""
    try:
        lines = (read_own(history_file(), _MOST_BYTES) or b"").splitlines()
    except RuntimeError:
        return []
    texts = []
    for line in lines[-MOST:]:
        with contextlib.suppress(ValueError):
            text = json.loads(line)
            texts += [text] if isinstance(text, str) else []
    if len(lines) > 2 * MOST:
        _shorten(lines[-MOST:])
    return texts


def remember(text: str) -> None:
    """Add what was typed, without secrets; what begins with a space is not kept, as in shells."""
    if not text.strip() or text.startswith(" "):
        return
    refresh()
    line = json.dumps(current().text(text)) + "\n"
    with contextlib.suppress(OSError, RuntimeError):  # without a home, or on a full disk, there is none
        path = history_file()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(_opened(path), "ab", buffering=0) as file:
            file.write(line.encode())  # in one piece: other chats write too


def _opened(path: Path) -> int:
    """Open the file to append to it.

    Raises:
        OSError: it cannot be opened, or it is not this user's alone.
    """
    safely = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    if not hasattr(os, "O_NOFOLLOW") and path.is_symlink():
        raise PermissionError(f"{path} is a link")
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | safely, 0o600)
    status = os.fstat(descriptor)
    strange = hasattr(os, "geteuid") and (status.st_uid != os.geteuid() or status.st_mode & 0o077)
    if strange or not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise PermissionError(f"{path} is not of this user alone")
    return descriptor


def _shorten(lines: list[bytes]) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        path = history_file()
        new = path.with_name(f".{path.name}.{os.getpid()}")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(b"".join(line + b"\n" for line in lines))
        os.replace(new, path)
