"""Where records are, and how they are found."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from connectagent.errors import ConfigError
from connectagent.settings import co_folder

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
    return found[1] if found else path.stem


def find_record(text: str | None = None) -> Path:
    """Find a record.

    Args:
        text: a path; the name of a file in the records' folder, or the beginning of one; an agent's name,
            for its newest record; None or `last` for the newest of all.

    Raises:
        ConfigError: there is none, or several begin like that; the message lists similar names.
    """
    known = all_records()
    if text and text != "last" and os.path.isfile(text):
        return Path(text)
    if not known:
        what = f"no record {text!r}: " if text else ""
        raise ConfigError(f"{what}{records_folder()}: no records yet; run an agent first")
    return known[0] if not text or text == "last" else _called(text, known)


def _called(text: str, known: list[Path]) -> Path:
    """The record whose file or agent has this name, or the only one whose file name begins with it.

    Raises:
        ConfigError: there is none, or several begin like that.
    """
    of_agent = [path for path in known if agent_in_name(path) == text]
    begin = [path for path in known if path.name.startswith(text)]
    exact = [path for path in begin if text in (path.name, path.stem)]
    if exact or of_agent or len(begin) == 1:
        return (exact or of_agent or begin)[0]
    if begin:
        names = ", ".join(path.stem for path in begin[:3])
        raise ConfigError(f"{len(begin)} records begin with {text!r}, the newest {names}; give more of the name")
    near = _near(text, known) or [known[0].stem]
    raise ConfigError(f"no record {text!r} in {records_folder()}; there is: {', '.join(near)}")


def _near(text: str, known: list[Path]) -> list[str]:
    from difflib import get_close_matches

    possible = [*dict.fromkeys(agent_in_name(path) for path in known), *(path.stem for path in known)]
    return get_close_matches(text, possible, 3, 0.5)
