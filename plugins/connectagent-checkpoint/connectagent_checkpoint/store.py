"""Snapshots in a git repository of their own: the user's `.git`, index, hooks and settings are not touched."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from connectagent import ConnectAgentError
from connectagent.settings.own import mark

_REFS = "refs/checkpoints/"
_TIMEOUT_S = 60
# Stronger than any .gitattributes: files are kept byte for byte, and no filter runs.
_ATTRIBUTES = "* -text -ident -filter -working-tree-encoding\n"
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
_SETTINGS = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "core.autocrlf=false", "gc.auto=0")


class CheckpointError(ConnectAgentError):
    """A snapshot could not be taken, found or restored."""


class Snapshot(NamedTuple):
    """One snapshot."""

    commit: str
    time: float  # Unix seconds
    label: str


class Store:
    """The snapshots of one folder.

    Args:
        folder: the folder.
        home: where the repository is kept.
        keep: how many snapshots are kept.
        max_file_mb: larger files are left out.
        max_mb: of a folder whose files are larger together, no snapshot is taken.
    """

    def __init__(self, folder: Path, home: Path, keep: int = 100, max_file_mb: float = 10, max_mb: float = 500) -> None:
        self.folder = folder.resolve()
        # A name that nobody else can know: git runs what the configuration of a repository says, so that one which
        # a folder brings along must not be taken for this one.
        own = mark("checkpoints", os.fsencode(self.folder).hex())[:16]
        self.repository = home / f"{re.sub(r'[^a-zA-Z0-9]', '_', self.folder.name)}-{own}.git"
        self.keep, self.max_file, self.max_all = keep, max_file_mb * 1e6, max_mb * 1e6

    def take(self, label: str) -> str:
        """Take a snapshot; its commit. Of an unchanged folder it is that of the last one.

        Raises:
            CheckpointError: the folder is too large, or git failed.
        """
        with self._alone():
            self._add()
            tree = self._git("write-tree")
            last = self._list()[-1:]
            if last and self._git("rev-parse", f"{last[0].commit}^{{tree}}") == tree:
                return last[0].commit
            label = "".join(letter if letter.isprintable() else "?" for letter in label)
            commit = self._git("commit-tree", tree, "-m", label)
            self._git("update-ref", f"{_REFS}{time.time_ns()}", commit)
            self._prune()
            return commit

    def snapshots(self) -> list[Snapshot]:
        """All snapshots, the oldest first."""
        return self._list() if (self.repository / "HEAD").exists() else []

    def find(self, name: str) -> Snapshot:
        """The snapshot that is meant by the beginning of its commit, or by `last`.

        Raises:
            CheckpointError: there is none, or several are meant.
        """
        found = {one.commit: one for one in self.snapshots() if name == "last" or one.commit.startswith(name)}
        if found and (name == "last" or len(found) == 1):
            return list(found.values())[-1]
        problem = "several snapshots begin with" if found else "there is no snapshot"
        raise CheckpointError(f"{problem} {name!r}; `connectagent checkpoint list` shows them")

    def diff(self, name: str, color: bool = False) -> str:
        """What has changed since a snapshot, in git's form."""
        commit = self.find(name).commit
        with self._alone():
            self._add()
            return self._git("diff", "--cached", "--no-ext-diff", "--color" if color else "--no-color", commit)

    def restore(self, name: str) -> str:
        """Put the folder back; the commit of a snapshot that was taken just before.

        Files that snapshots leave out stay as they are.

        Raises:
            CheckpointError: there is no such snapshot, the folder is too large, or a file that no snapshot holds
                would be overwritten.
        """
        commit = self.find(name).commit
        before = self.take("before restore")
        with self._alone():
            self._add()
            known = set(self._names("ls-files"))
            missing = set(self._names("ls-tree", "-r", "--name-only", commit)) - known
            if lost := {there for name in missing if (there := self._in_the_way(name, known)) is not None}:
                some = ", ".join(sorted(lost)[:5])
                raise CheckpointError(f"{some} would be overwritten, which no snapshot holds: move it away first")
            self._git("read-tree", "-u", "--reset", commit)
        return before

    def _in_the_way(self, name: str, known: set[str]) -> str | None:
        """What stands where a file is to be and is in no snapshot: it, a file in place of its folder, or one inside."""
        for place in [*[str(parent) for parent in reversed(Path(name).parents)][1:], name]:
            if (self.folder / place).is_symlink() or (self.folder / place).is_file():
                return None if place in known else place
        for top, folders, found in os.walk(self.folder / name):
            for one in (*found, *(folder for folder in folders if os.path.islink(os.path.join(top, folder)))):
                if (place := os.path.relpath(os.path.join(top, one), self.folder)) not in known:
                    return place
        return None

    # -- git -----------------------------------------------------------------------------------

    def _add(self) -> None:
        """Put the folder's files into the index, without those that are ignored or too large."""
        known = self._names("ls-files")
        names = [name for name in self._names("ls-files", "-co", "--exclude-standard") if not name.endswith("/")]
        links: dict[str, bool] = {"": False}
        sizes = {name: size for name in names if (size := self._size(name, links)) is not None}
        small = {name: size for name, size in sizes.items() if size <= self.max_file}
        if sum(small.values()) > self.max_all:
            whole = sum(small.values()) / 1e6
            raise CheckpointError(f"{self.folder} has {whole:.0f} MB in files, over max_mb={self.max_all / 1e6:g}")
        gone = [name for name in known if name not in small]
        self._git("update-index", "-z", "--force-remove", "--stdin", given=gone)
        self._git("update-index", "-z", "--add", "--replace", "--stdin", given=list(small))

    def _size(self, name: str, links: dict[str, bool]) -> int | None:
        """The size of a file or link; None for what is gone, behind a link, or neither, such as a socket."""
        path = self.folder / name
        try:
            if self._behind_link(os.path.dirname(name), links) or not (path.is_symlink() or path.is_file()):
                return None
            return path.lstat().st_size
        except OSError:
            return None

    def _behind_link(self, name: str, links: dict[str, bool]) -> bool:
        """Whether a folder is a link, or in one; `links` has the folders that were looked at before."""
        if name not in links:
            links[name] = (self.folder / name).is_symlink() or self._behind_link(os.path.dirname(name), links)
        return links[name]

    def _list(self) -> list[Snapshot]:
        lines = self._git("for-each-ref", "--sort=refname", "--format=%(objectname)%00%(refname)%00%(subject)", _REFS)
        parts = [line.split("\0") for line in lines.splitlines()]
        return [Snapshot(commit, int(ref.removeprefix(_REFS)) / 1e9, label) for commit, ref, label in parts]

    def _prune(self) -> None:
        """Remove the oldest snapshots, several at a time, since it takes git a while."""
        refs = self._git("for-each-ref", "--sort=refname", "--format=%(refname)", _REFS).splitlines()
        if len(refs) > max(1, self.keep) * 1.2:
            for ref in refs[: -max(1, self.keep)]:
                self._git("update-ref", "-d", ref)
            self._git("gc", "--quiet", "--prune=now")

    def _names(self, *arguments: str) -> list[str]:
        return [name for name in self._git(*arguments, "-z").split("\0") if name]

    def _git(self, *arguments: str, given: list[str] | None = None) -> str:
        options = [option for setting in _SETTINGS for option in ("-c", setting)]
        if arguments[0] != "init":
            options += [f"--git-dir={self.repository}", f"--work-tree={self.folder}"]
        command = ["git", *options, *arguments]
        stdin = None if given is None else os.fsencode("".join(f"{name}\0" for name in given))
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=_environment(), input=stdin, capture_output=True, timeout=_TIMEOUT_S
            )
        except FileNotFoundError:
            raise CheckpointError("git is not installed") from None
        except subprocess.TimeoutExpired:
            raise CheckpointError(f"git {arguments[0]} took longer than {_TIMEOUT_S} s") from None
        if done.returncode:
            raise CheckpointError(f"git {arguments[0]}: {os.fsdecode(done.stderr).strip()}")
        return os.fsdecode(done.stdout).removesuffix("\n")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the repository, which is made if it is missing."""
        self.repository.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(self.repository / "checkpoint.lock").acquire(poll_interval=0.01):
            if not (self.repository / "HEAD").exists():
                self._git("init", "--quiet", "--bare", "--template=", str(self.repository))
            (self.repository / "info").mkdir(exist_ok=True)
            for name, text in (("config", _CONFIG), ("info/attributes", _ATTRIBUTES), ("info/exclude", self._own())):
                _keep(self.repository / name, text)
            (self.repository / "index.lock").unlink(missing_ok=True)  # of a git that was killed
            yield

    def _own(self) -> str:
        """What is never in a snapshot: the folder in which snapshots and records are."""
        home = self.repository.parent.parent.resolve()
        inside = home.is_relative_to(self.folder) and home != self.folder
        return f".co/\n/{home.relative_to(self.folder).as_posix()}/\n" if inside else ".co/\n"


def _keep(path: Path, text: str) -> None:
    """Give a file a text that others may have changed, or replaced by a link."""
    if path.is_symlink() or not path.is_file() or path.read_text() != text:
        new = path.with_name(f"{path.name}.{os.getpid()}")
        new.unlink(missing_ok=True)
        new.write_text(text)
        new.replace(path)


def _environment() -> dict[str, str]:
    """The environment without what would lead git to another repository, its settings or a prompt."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    who = {f"GIT_{role}_{part}": "connectagent" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    off = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ATTR_NOSYSTEM": "1", "LC_ALL": "C"}
    return own | who | off | {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_LITERAL_PATHSPECS": "1"}
