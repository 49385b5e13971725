"""What all files under `.co` share: the folder, file names, and warnings about failures."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import time
import weakref
from pathlib import Path
from typing import Any, Protocol

from connectagent.data import Session
from connectagent.output.masking import current
from connectagent.output.text import clean
from connectagent.records.disk import folder_to_disk
from connectagent.settings import co_folder, enabled, leads_out

# What Windows takes for a device, whatever comes behind the dot.
_DEVICE = re.compile(r"(con|prn|aux|nul|(com|lpt)[0-9¹²³])(\.|$)", re.IGNORECASE)
_last: dict[str, tuple[Path, int]] = {}  # the newest record without its number, and the number
KEYED = "@"  # between the agent's name and the key, in the name of a file; no other record has it
_PLAIN = "abcdefghijklmnopqrstuvwxyz0123456789._-"


def data_folder(name: str) -> Path:
    """A folder in `.co`, or in the folder that the setting `dir` names; it is made if it is missing.

    Only its owner may read it, and `.co` is ignored by git.

    Args:
        name: the folder's name; a plugin takes its own.

    Raises:
        OSError: it cannot be made, or is a link that leads out of the project.
    """
    base = co_folder()
    folder, ignore, made = base / name, base / ".gitignore", False
    refuse_link(folder)
    if not os.path.isdir(folder):
        made = not os.path.isdir(base)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (made or base.name == ".co") and not os.path.lexists(ignore):  # a user's own folder must not vanish from git
        with contextlib.suppress(OSError):
            fd = os.open(ignore, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            with os.fdopen(fd, "wb") as file:
                file.write(b"*\n")
    return folder


def refuse_link(folder: Path) -> None:
    """Refuse a folder of records that is a link out of the project.

    Raises:
        OSError: it is one.
    """
    if leads_out(folder):
        raise OSError(errno.ELOOP, "it is a link that leads out of the project", str(folder))


def safe_name(name: str) -> str:
    """An agent's name as part of a file name: no separators, not hidden, no device, at most 100 bytes."""
    safe = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)
    safe = "_" + safe[1:] if safe.startswith(".") else safe
    safe = "_" + safe if _DEVICE.match(safe) else safe
    return safe.encode()[:100].decode("utf-8", "ignore") or "agent"


def new_record(agent: str, started: time.struct_time) -> Path:
    """Create the file of a new session, under a name that no other has.

    Raises:
        OSError: it cannot be created.
    """
    stem = f"{safe_name(agent)}_{time.strftime('%Y-%m-%dT%H-%M-%S', started)}"
    folder = data_folder("evals")
    before, last = _last.get("record", (folder, 0))
    for number in range(last + 1 if before == folder / stem else 1, 2000):  # many begin in one second
        ending = "" if number == 1 else f"-{number}" if number < 100 else f"-{os.urandom(6).hex()}"
        path = folder / f"{stem}{ending}.yaml"
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            continue
        _last["record"] = folder / stem, min(number, 1000)
        if enabled("fsync"):
            folder_to_disk(folder)
        return path
    raise FileExistsError(17, "no name is free", str(folder / stem))


def keyed_record(agent: str, key: str) -> Path:
    """The file of the session with a key; it need not exist."""
    return co_folder() / "evals" / f"{safe_name(agent)}{KEYED}{_safe_key(key, agent)}.yaml"


def is_keyed(record: Path) -> bool:
    """Whether a record is that of a session with a key, and so the state of a program."""
    return KEYED in record.name


def create_empty(path: Path) -> None:
    """Create the file of a session with a key, where it is missing.

    Raises:
        OSError: it cannot be created.
    """
    data_folder("evals")
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        if enabled("fsync"):
            folder_to_disk(path.parent)


def size_of(record: Path) -> int:
    """How many bytes a file has; 0 where it is missing."""
    try:
        return record.stat().st_size
    except FileNotFoundError:
        return 0


def _safe_key(key: str, agent: str) -> str:
    """A key as part of a file name: keys or agents that differ have names that differ, also where case does not count.

    The hash is that of the key, and of the agent's name where this does not stand in the file name as it is.
    """
    from hashlib import sha256  # few agents have keys

    safe = "".join(letter if letter in _PLAIN else "_" for letter in key)[:60]
    whole = key if set(agent) <= set(_PLAIN) and safe_name(agent) == agent else f"{key}\0{agent}"
    return safe if safe == whole else f"{safe}-{sha256(whole.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


class SessionOwner(Protocol):
    """An agent, by its session."""

    @property
    def current_session(self) -> Session | None: ...


_warned: weakref.WeakKeyDictionary[Any, tuple[Any, set[Any]]] = weakref.WeakKeyDictionary()
_OF_ONE_FILE = (errno.EAGAIN, errno.ESTALE, errno.ENOENT)  # another agent writes it, or it was removed


def warn(agent: SessionOwner, what: str, error: Exception) -> None:
    """Warn on stderr that a file cannot be written, once per session and reason.

    Where the record cannot be written, as on a full disk, nothing of the session is written into `.co` any more.

    Args:
        agent: the agent.
        what: `record`, `text log` or `long text`.
        error: why.
    """
    warned, reason = _warnings_of(agent), getattr(error, "errno", None) or str(error)
    is_known = not {(kind, reason) for kind in (what, "record")}.isdisjoint(warned)
    warned.add((what, reason))
    ends_all = what == "record" and reason not in _OF_ONE_FILE
    if ends_all:
        warned.add(agent)
    if is_known:
        return
    behind = "the agent goes on without it"
    if ends_all:
        turn = "" if agent.current_session is None else f"from turn {agent.current_session['turn']} on "
        behind = f"{turn}no record, text log and long texts of this session are kept"
    behind += ". CONNECTAGENT_DIR can name another folder"
    tell(f"the {what} cannot be written: {error}; {behind}")


def tell(text: str) -> None:
    """Print a warning on stderr, in one line."""
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):  # a terminal that is gone
        print(f"connectagent: {' '.join(clean(current().text(text)).split())}", file=sys.stderr)


def is_given_up(agent: SessionOwner) -> bool:
    """Whether nothing of the agent's session is written into `.co` any more."""
    return bool(_warned) and agent in _warnings_of(agent)


def _warnings_of(agent: SessionOwner) -> set[Any]:
    """The warnings about the agent's session, as pairs of `what` and reason."""
    known = _warned.get(agent)
    if known is None or known[0] is not agent.current_session:
        known = _warned[agent] = (agent.current_session, set())
    return known[1]
