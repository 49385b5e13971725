"""What all files under `.co` share: the folder, names, harmless text, and how a failure is told."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connectagent.masking import current
from connectagent.settings import co_folder, enabled

if TYPE_CHECKING:
    from connectagent.agent import Agent

def data_folder(name: str) -> Path:
    """A folder in `.co`, or in what the setting `dir` names instead; it is made where it is missing.

    Raises:
        OSError: it cannot be made.
    """
    base = co_folder()
    made = not base.exists()
    (base / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    if made or base.name == ".co":  # a folder of the user's own must not vanish from git
        with contextlib.suppress(OSError):
            fd = os.open(base / ".gitignore", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            with os.fdopen(fd, "wb") as file:
                file.write(b"*\n")
    return base / name


def safe_name(name: str) -> str:
    """An agent's name as a part of a file's name: no separators, not hidden, at most 100 bytes."""
    safe = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)
    safe = "_" + safe[1:] if safe.startswith(".") else safe
    return safe.encode()[:100].decode("utf-8", "ignore") or "agent"


def new_record(agent: str, started: time.struct_time) -> Path:
    """Create the file of a new session, which no other thread or process has.

    Raises:
        OSError: it cannot be created.
    """
    stem = f"{safe_name(agent)}_{time.strftime('%Y-%m-%dT%H-%M-%S', started)}"
    folder = data_folder("evals")
    for number in range(1, 1000):
        ending = "" if number == 1 else f"-{number}" if number < 100 else f"-{secrets.token_hex(6)}"
        path = folder / f"{stem}{ending}.yaml"
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            continue
        if enabled("fsync"):
            _sync_folder(folder)
        return path
    raise FileExistsError(17, "no name is free", str(folder / stem))


def _sync_folder(folder: Path) -> None:
    """Keep a power cut from taking a new file's name."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_warned: weakref.WeakKeyDictionary[Any, tuple[Any, set[Any]]] = weakref.WeakKeyDictionary()


def warn(agent: Agent, what: str, error: Exception) -> None:
    """Tell on stderr that a file cannot be written: once a session for one reason, whichever files it hits."""
    session, reasons = _warned.get(agent, (None, set()))
    if session is not agent.current_session:
        reasons = set()
    _warned[agent] = (agent.current_session, reasons)
    reason = getattr(error, "errno", None) or str(error)
    if reason in reasons or sys.stderr is None:
        return
    reasons.add(reason)
    text = " ".join(clean(current().text(str(error))).split())
    with contextlib.suppress(OSError, ValueError):  # a terminal that is gone
        print(f"connectagent: the {what} cannot be written: {text}; the agent goes on without it", file=sys.stderr)


# Control characters, what turns the direction of text round, line separators, and lone surrogates.
_UNREADABLE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def clean(text: str) -> str:
    """Text in which only newlines are left of what a terminal would act upon; the rest is shown as escapes."""
    text = text.replace("\r\n", "\n").replace("\t", "    ")
    return _UNREADABLE.sub(lambda match: ascii(match[0])[1:-1], text)


def told(how: Callable[[Any], str], value: Any) -> str:
    """The `str` or `repr` of a value, or that it has none."""
    try:
        return str(how(value))
    except Exception as error:
        return f"<{type(value).__name__}, whose {how.__name__}() raised {type(error).__name__}>"


def shortened(value: Any, length: int) -> str:
    """A value as text without secrets, of at most `length` characters, and a mark that tells how much is left out."""
    value = current().text(value if isinstance(value, str) else told(str, value))
    left_out = len(value) - length
    return clean(value[:length]) + (f"... ({left_out} more characters)" if left_out > 0 else "")
