"""The version of one plugin with which a recorded failure begins: each runs in a process of its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from connectagent.errors import ConfigError, cut
from connectagent.hooks.entry_points import find
from connectagent.testing.bisection import finding as found
from connectagent.testing.bisection.chance import ALPHA, Rate, by_chance
from connectagent.testing.bisection.finding import Finding
from connectagent.testing.signs import shown_p

INSTEAD = "CONNECTAGENT_BISECT_INSTEAD"  # in the environment of a run: a file, and the one to load in its place
_RANGE = re.compile(r"(?:(?P<file>.+\.py)@|(?P<name>[^=@]+)=)(?P<first>[^.].*?)\.\.(?P<last>.+)")
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


@dataclass(slots=True)
class Version:
    """One version of a plugin.

    Attributes:
        name: the version, or the revision with its subject.
        environment: the variables with which it is used.
        why: why it cannot be used, or "".
    """

    name: str
    environment: dict[str, str]
    why: str = ""


class Versions:
    """The versions from one to another, the oldest first.

    Args:
        text: `NAME=1.0..2.0`, or `./file.py@REVISION..REVISION`.
        folder: where the versions are put.

    Raises:
        ConfigError: they cannot be found.
    """

    def __init__(self, text: str, folder: Path) -> None:
        match = _RANGE.fullmatch(text)
        if match is None:
            raise ConfigError(f"--versions {text!r} is not NAME=1.0..2.0 or ./file.py@REVISION..REVISION")
        self.folder, self.first, self.last = folder, match["first"], match["last"]
        self._made: dict[str, Version] = {}
        if match["file"]:
            self.what, self._file = match["file"], Path(match["file"]).absolute()
            self.names, self._make = self._revisions(), self._from_git
        else:
            plugin = find(match["name"], "--versions")
            self.what, self._distribution = match["name"], str(plugin.distribution)
            self.names, self._make = self._released(), self._from_pip

    def make(self, name: str) -> Version:
        """One of them, ready to be used."""
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    # -- a file in git -------------------------------------------------------------------------

    def _git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self._file.parent, capture_output=True, text=True)
        if done.returncode:
            raise ConfigError(f"git {' '.join(arguments[:2])}: {done.stderr.strip()}")
        return done.stdout

    def _revisions(self) -> list[str]:
        if not self._file.parent.is_dir():
            raise ConfigError(f"{self.what}: there is no such folder")
        for revision in (self.first, self.last):
            try:
                self._git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
            except ConfigError as error:
                raise ConfigError(f"{self.what}: git knows no revision {revision!r}") from error
        between = self._git("log", "--reverse", "--format=%h %s", f"{self.first}..{self.last}", "--", self._file.name)
        first = self._git("log", "-1", "--format=%h %s", self.first).strip()
        names = [first, *between.splitlines()]
        if len(names) < 2:
            raise ConfigError(f"{self.what} is the same from {self.first} to {self.last}")
        return names

    def _from_git(self, name: str) -> Version:
        revision = name.split()[0]
        copy = self.folder / revision / self._file.name
        copy.parent.mkdir(exist_ok=True)
        try:
            copy.write_text(self._git("show", f"{revision}:./{self._file.name}"), "utf-8")
        except ConfigError as error:
            return Version(name, {}, str(error))
        return Version(name, {INSTEAD: json.dumps([str(self._file), str(copy)])})

    # -- an installed plugin -------------------------------------------------------------------

    def _released(self) -> list[str]:
        if not find_spec("pip"):
            raise ConfigError(
                f"--versions {self.what}=... asks pip for the releases, and {sys.executable} has none. Run one of:\n"
                + shlex.join([sys.executable, "-m", "ensurepip"])
                + "\n"
                + shlex.join(["uv", "pip", "install", "--python", sys.executable, "pip"])
            )
        done = subprocess.run([*_PIP, "index", "versions", self._distribution], capture_output=True, text=True)
        listed = re.search(r"Available versions: (.*)", done.stdout)
        names = listed[1].split(", ")[::-1] if listed else []
        if not names:
            raise ConfigError(f"pip finds no version of {self._distribution}: {_last_line(done)}")
        for one in (self.first, self.last):
            if one not in names:
                known = cut(", ".join(names), 200)
                raise ConfigError(f"{self._distribution} has no version {one}; the package index has: {known}")
        return names[names.index(self.first) : names.index(self.last) + 1]

    def _from_pip(self, name: str) -> Version:
        target = self.folder / name
        command = [*_PIP, "install", "-q", "--no-deps", "--target", str(target), f"{self._distribution}=={name}"]
        done = subprocess.run(command, capture_output=True, text=True)
        path = os.pathsep.join(filter(None, [str(target), os.environ.get("PYTHONPATH", "")]))
        return Version(name, {"PYTHONPATH": path}, done.stderr.strip() if done.returncode else "")


class Search:
    """Finds the first bad version.

    Args:
        versions: the versions.
        look: runs a version so many times, the first time with this number; how often it was bad, or why that
            cannot be told.
        samples: how often a version is run.
        finding: takes what is found.
    """

    def __init__(
        self,
        versions: Versions,
        look: Callable[[Version, int, int], Rate | str],
        samples: int,
        finding: Finding,
    ) -> None:
        self.versions, self.look, self.samples, self.finding = versions, look, samples, finding

    def run(self) -> Finding:
        """Search."""
        names, finding = self.versions.names, self.finding
        finding.without, finding.with_ = self._rate(names[0]), self._rate(names[-1])
        if not finding.without.of or not finding.with_.of:
            finding.why = "; ".join(f"{name}: {why}" for name, why in finding.untold.items())
            return finding
        if by_chance(finding.with_, finding.without) >= ALPHA:
            finding.verdict = found.CHANCE
            finding.why = f"{names[0]}: {finding.without}, {names[-1]}: {finding.with_}"
            return finding
        good, bad = self._between(0, len(names) - 1)
        less, more = self._rate(names[good], 1_000), self._rate(names[bad], 1_000)
        p = by_chance(more, less) if more.of and less.of else 1.0
        finding.verdict = found.CONFIRMED if p < ALPHA else found.CHANCE
        finding.with_, finding.without = more, less
        what = self.versions.what
        finding.versions = [
            f"last good: {what} {names[good]}",
            f"first bad: {what} {names[bad]}  {more}, before it {less} (fresh samples), {shown_p(p)}",
        ]
        return finding

    def _between(self, good: int, bad: int) -> tuple[int, int]:
        """The neighbours between which it changes; those that cannot be told are skipped."""
        names, middle = self.versions.names, (self.finding.with_.share + self.finding.without.share) / 2
        skipped: set[int] = set()
        while open_ := [at for at in range(good + 1, bad) if at not in skipped]:
            at = open_[len(open_) // 2]
            rate = self._rate(names[at])
            if not rate.of:
                skipped.add(at)
            elif rate.share > middle:
                bad = at
            else:
                good = at
        return good, bad

    def _rate(self, name: str, first: int = 0) -> Rate:
        version = self.versions.make(name)
        rate = version.why or self.look(version, first, self.samples)
        if isinstance(rate, Rate):
            return rate
        self.finding.untold[f"{self.versions.what} {name}"] = rate
        return Rate()


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def in_a_process(command: Sequence[str]) -> Callable[[Version, int, int], Rate | str]:
    """Looks at versions with a command that prints the rate as JSON; it gets `--rate FIRST,COUNT`."""

    def look(version: Version, first: int, count: int) -> Rate | str:
        environment = {**os.environ, **version.environment}
        done = subprocess.run(
            [*command, "--rate", f"{first},{count}"], env=environment, capture_output=True, text=True, check=False
        )
        try:
            data = json.loads(done.stdout)
        except ValueError:
            return _last_line(done)
        return Rate(data["bad"], data["of"]) if data["of"] else str(data["why"])

    return look


class _Instead(MetaPathFinder):
    """Loads another file in place of one."""

    def __init__(self, file: str, copy: str) -> None:
        self._file, self._copy = os.path.realpath(file), copy

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None or os.path.realpath(spec.origin) != self._file:
            return None
        return spec_from_file_location(name, self._copy)


def load_instead(plugins: Sequence[Any]) -> list[Any]:
    """Use the version that the environment names, in imports and among the plugins of the command line."""
    given = os.environ.get(INSTEAD)
    if given is None:
        return list(plugins)
    file, copy = json.loads(given)
    sys.meta_path.insert(0, _Instead(file, copy))
    real = os.path.realpath(file)
    return [copy if isinstance(one, str) and os.path.realpath(one) == real else one for one in plugins]
