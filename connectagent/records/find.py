"""Where records are, and how they are found."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from connectagent.errors import ConfigError
from connectagent.settings import co_folder

_ID_LINE = re.compile(rb'^id: "([0-9a-f]+)"$', re.MULTILINE)
_BEGINS_ID = re.compile("[0-9a-f]{4,}", re.ASCII)
_MOST_HEAD = 1 << 13  # bytes in which a head has its id
_SETTLED_NS = 2_000_000_000  # what is made in one tick of a file system's clock leaves the folder's time as it is
_STAMP = re.compile(r"(.*)_(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d)(?:-(\w+))?(?:\.incomplete)?", re.ASCII | re.DOTALL)


def records_folder() -> Path:
    """The folder of the records; it need not exist."""
    return co_folder() / "evals"


def all_records(folder: Path | None = None) -> list[Path]:
    """The records of a folder, the newest first, by the time in their names; none where there is no folder.

    Only regular files count: a link may lead anywhere, and a pipe keeps its reader waiting.
    """
    paths = []
    try:
        with os.scandir(folder or records_folder()) as found:
            for entry in found:
                with contextlib.suppress(FileNotFoundError):  # removed just now
                    if entry.name.endswith(".yaml") and entry.is_file(follow_symlinks=False):
                        paths.append((_age(entry), entry.path))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [Path(path) for _, path in sorted(paths, reverse=True)]


class Listing:
    """The records of a folder for a reader that asks again and again: it is listed when it has changed."""

    def __init__(self) -> None:
        self._known: tuple[Path, int, list[Path]] | None = None

    def records(self, folder: Path) -> list[Path]:
        """As `all_records()`."""
        try:
            changed = os.stat(folder).st_mtime_ns
        except OSError:
            return all_records(folder)
        known = self._known
        if known is None or known[:2] != (folder, changed):
            settled = time.time_ns() - changed > _SETTLED_NS
            known = folder, changed, all_records(folder)
            self._known = known if settled else None
        return known[2]


def _age(entry: os.DirEntry[str]) -> tuple[str, int, int]:
    modified = entry.stat(follow_symlinks=False).st_mtime_ns
    found = _STAMP.fullmatch(entry.name.removesuffix(".yaml"))
    if found is None:
        return time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime(modified / 1e9)), 1, modified
    number = found[3] or "1"
    return found[2], int(number) if number.isdecimal() and len(number) < 3 else 100, modified


def agent_in_name(path: Path) -> str:
    """The agent's name in a record's file name."""
    found = _STAMP.fullmatch(path.stem)
    return found[1] if found else path.stem.partition("@")[0]  # before the key of a session with one


def find_record(text: str | None = None) -> Path:
    """Find a record. Whole names come before their beginnings.

    Args:
        text: a path; the name of a file in the records' folder; an agent's name, for its newest record; a session's
            id; the beginning of a file's name, or at least four characters of an id; None or `last` for the newest
            of all.

    Raises:
        ConfigError: there is none, or several begin like that; the message lists candidates.
    """
    known = all_records()
    if text and text != "last" and os.path.isfile(text):
        if text.endswith(".py"):
            raise ConfigError(f"{text} is a script, not a record: connectagent log list shows those that it has left")
        return Path(text)
    if not known:
        what = f"there is no record {text!r}: " if text else ""
        raise ConfigError(f"{what}{records_folder()}: no records yet; run an agent first")
    return known[0] if not text or text == "last" else _called(text, known)


def find_records(names: Iterable[str] = (), *, agent: str | None = None, every: bool = False) -> list[Path]:
    """Several records, each once, by their absolute paths; without any argument the newest.

    Args:
        names: what `find_record` takes, each.
        agent: all records of this agent too.
        every: all records too.

    Raises:
        ConfigError: one is not there, or there are none of the agent.
    """
    from connectagent.records.paths import safe_name

    paths = [find_record(name).absolute() for name in names]
    if every or agent is not None:
        paths += [path for path in all_records() if agent is None or agent_in_name(path) == safe_name(agent)]
        if not paths:
            raise ConfigError(f"there are no records of agent {agent!r}" if agent else "there are no records yet")
    return list(dict.fromkeys(paths or [find_record(None).absolute()]))


def last_record_of(agent: str) -> Path:
    """The newest record of an agent.

    Raises:
        ConfigError: it has none.
    """
    known = all_records()
    for path in _of_agent(agent, known):
        return path
    near = ", ".join(dict.fromkeys(agent_in_name(path) for path in known)) or "no records yet"
    raise ConfigError(f"agent {agent!r} has no record in {records_folder()}; there is: {near}")


def session_id(path: Path) -> str | None:
    """The id in the head of a record; None where it has none that can be read."""
    from connectagent.records.file import open_to_read

    with contextlib.suppress(OSError, ConfigError), open_to_read(path) as file:
        head = file.read(_MOST_HEAD).partition(b"\nturns:\n")[0]
        found = _ID_LINE.search(head)
        return found[1].decode() if found else None
    return None


def _called(text: str, known: list[Path]) -> Path:
    """The record of this name, agent or id, or the only one whose file name or id begins with it.

    Raises:
        ConfigError: there is none, or several begin like that.
    """
    for path in known:
        if text in (path.name, path.stem):
            return path
    for path in _of_agent(text, known):
        return path
    ids = _ids(text, known)
    found = [path for path in known if path.name.startswith(text) or path in ids]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(path.stem + (f" (id {ids[path]})" if path in ids else "") for path in found[:3])
        raise ConfigError(
            f"{len(found)} records begin with {text!r}, the newest {names}; give more of the name or the id"
        )
    near = _near(text, known) or [known[0].stem]
    raise ConfigError(f"there is no record {text!r} in {records_folder()}; there is: {', '.join(near)}")


def _of_agent(agent: str, known: list[Path]) -> list[Path]:
    from connectagent.records.paths import safe_name

    return [path for path in known if agent_in_name(path) == safe_name(agent)]


def _ids(text: str, known: list[Path]) -> dict[Path, str]:
    """The records whose id begins with a text, each with its id; the files are only read for what may be an id."""
    if not _BEGINS_ID.fullmatch(text):
        return {}
    return {path: id for path in known if (id := session_id(path)) is not None and id.startswith(text)}


def _near(text: str, known: list[Path]) -> list[str]:
    from difflib import get_close_matches

    possible = [*dict.fromkeys(agent_in_name(path) for path in known), *(path.stem for path in known)]
    near = get_close_matches(text, possible, 3, 0.5)
    if near or not _BEGINS_ID.fullmatch(text):
        return near
    return [f"{path.stem} (id {session_id(path)})" for path in known[:3]]
