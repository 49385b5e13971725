"""Where the project is: its folder, and the pyproject.toml that counts. Those of strangers do not."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
PROJECT_FILE = "pyproject.toml"


class _Look(threading.local):
    """What `looking_once` has found in this thread."""

    depth = 0
    known = False
    file: Path | None = None


_look = _Look()


def looking_once(work: Callable[[], T]) -> T:
    """Do something that needs several settings, and look for the project's file once meanwhile, in this thread.

    A file that changes is read anew. This is no context manager: Ctrl-C may skip what an `__exit__` in Python does.
    """
    _look.depth += 1
    try:
        return work()
    finally:
        _look.depth -= 1
        _look.known = _look.known and _look.depth > 0


def project_file(start: Path | None = None) -> Path | None:
    """The nearest pyproject.toml, from `start` or the current folder up to the repository's root.

    A stranger's is not read: the file and its folder must belong to the user or root.
    """
    if start is not None or not _look.depth:
        return _nearest_file(start)
    if not _look.known:
        _look.file = _nearest_file()
        _look.known = True
    return _look.file


def _nearest_file(start: Path | None = None) -> Path | None:
    for folder in _own_folders(start):
        path = os.path.join(folder, PROJECT_FILE)
        if not _exists(path):
            continue
        with contextlib.suppress(OSError):
            strange = {os.stat(path).st_uid, os.lstat(path).st_uid}.difference(trusted())  # the file, and a link to it
            return None if strange else Path(path)
    return None


def project_folder() -> Path:
    """The folder of the project: the repository's root, else the folder of `project_file()`, else the current one."""
    folders = list(_own_folders())
    file = project_file()
    if folders and os.path.exists(os.path.join(folders[-1], ".git")):
        return Path(folders[-1])
    return file.parent if file else Path.cwd()


def _own_folders(start: Path | None = None) -> Iterator[str]:
    """`start`, or the current folder, and those above up to the repository's root, as long as the owner is the same.

    No folder where that owner is neither the user nor root.
    """
    with contextlib.suppress(OSError):  # the current folder was removed, or one above is not readable
        folder = os.path.abspath(start or os.getcwd())  # texts: this is done for each setting that is read
        owner = found = os.stat(folder).st_uid
        if owner not in trusted():
            return
        while found == owner:
            yield folder
            above = os.path.dirname(folder)
            if above == folder or _exists(os.path.join(folder, ".git")):
                return
            folder = above
            found = os.stat(above).st_uid


def _exists(path: str) -> bool:
    """Whether there is such a file or folder; `os.path.exists` would make an exception of each that is not there."""
    return os.access(path, os.F_OK)


def trusted() -> tuple[int, int]:
    """The trusted owners: the user and root; on Windows each owner is 0."""
    return getattr(os, "geteuid", lambda: 0)(), 0


def leads_out(path: Path) -> bool:
    """Whether a file or folder of the project is a link that leads out of it."""
    if not os.path.islink(path):
        return False
    project = os.path.realpath(project_folder())
    inside = [Path(os.path.realpath(one)).is_relative_to(project) for one in (path.parent, path)]
    return inside == [True, False]
