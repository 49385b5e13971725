"""Builds the distributions of connectagent and its plugins, and checks whether a commit may be released.

`python release.py check` says what keeps the commit from being released; `python release.py build dist` builds every
sdist and wheel from the files that git knows. Two builds of a commit are equal, byte by byte.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent
URL = "https://github.com/connectagent/connectagent"
RAW = URL.replace("github.com", "raw.githubusercontent.com")
# What a plugin's sdist has besides its package, so that its tests run from it.
MANIFEST = "graft tests\ngraft examples\ninclude conftest.py\nglobal-exclude *.py[co]\n"
# A wheel has the modes of files as the build copies them.
BUILD = (
    "import os, sys; os.umask(0o022); from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
)
# `[words](target)` and `![words](target)`, where the target is no address and no heading of the page itself.
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:|#)([^)#]*)(#[^)]*)?\)")
# An address that takes no letters, or that stands for another one.
NOBODY = re.compile(r"no-?reply|[@.]example(\.|$)", re.IGNORECASE)


def git(*arguments: str, folder: Path = ROOT) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def version(folder: Path = ROOT) -> str:
    """The version in a clone; it is written in one place."""
    text = (folder / "connectagent" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert found, "connectagent/__init__.py has no line __version__"
    return found[1]


def folders(folder: Path = ROOT) -> list[Path]:
    """The folders with a distribution: the core's first, then the plugins'."""
    return [folder, *sorted(path.parent for path in folder.glob("plugins/*/pyproject.toml"))]


# -- building ------------------------------------------------------------------------------------


def absolute(text: str, place: str, tag: str, root: Path) -> str:
    """A page whose links to files of the repository lead to GitHub: an index shows pages without these files.

    Args:
        text: the page.
        place: its folder in the repository; "" for the top.
        tag: the version that the links lead to.
        root: the repository, where files and folders are told apart.
    """

    def link(found: re.Match[str]) -> str:
        image, words, target, anchor = found.groups()
        path = os.path.normpath(Path(place, target)).replace(os.sep, "/")
        view = "tree" if (root / path).is_dir() else "blob"
        address = f"{RAW}/{tag}/{path}" if image else f"{URL}/{view}/{tag}/{path}{anchor or ''}"
        return f"{image}[{words}]({address})"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if index % 2 else LINK.sub(link, part) for index, part in enumerate(parts))


def export(folder: Path) -> None:
    """Write the files that git knows to a folder, as they are in the working tree; READMEs get absolute links."""
    for name in git("ls-files", "-z").split("\0"):
        if name and (ROOT / name).is_file():
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((ROOT / name).read_bytes())
            copy.chmod(0o755 if os.access(ROOT / name, os.X_OK) else 0o644)
    for one in folders(folder):
        place = one.relative_to(folder).as_posix()
        page = one / "README.md"
        page.write_text(absolute(page.read_text(encoding="utf-8"), place, f"v{version()}", folder), encoding="utf-8")


def epoch() -> int:
    """The time that files in distributions have: that of the commit, or SOURCE_DATE_EPOCH."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct"))


def level(archive: Path, time: int) -> None:
    """Write an sdist again without what differs between machines: times, owners and the order of files."""
    with tarfile.open(archive) as old:
        members = [(one, old.extractfile(one)) for one in sorted(old.getmembers(), key=lambda one: one.name)]
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
            for member, content in members:
                member.mtime, member.uid, member.gid, member.uname, member.gname = time, 0, 0, "", ""
                member.mode, member.pax_headers = 0o755 if member.isdir() or member.mode & 0o100 else 0o644, {}
                new.addfile(member, content)
    archive.write_bytes(gzip.compress(packed.getvalue(), mtime=time))


def build(target: Path, names: list[str] | None = None) -> list[Path]:
    """Build an sdist, and from it a wheel, of each distribution.

    Args:
        target: where they are put.
        names: of the distributions that are built; all by default.
    """
    time, made = epoch(), []
    target = target.resolve()
    target.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(time), "PYTHONWARNINGS": "ignore", "PYTHONPATH": ""}
    with tempfile.TemporaryDirectory(prefix="connectagent-release-") as temporary:
        clean = Path(temporary, "clean")
        export(clean)
        for folder in reversed(folders(clean)):  # the core's last: builds of plugins would be seen by it
            name = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
            if names and name not in names:
                continue
            source = folder if folder == clean else _with_tests(folder, Path(temporary, "sources", name), clean)
            made += _built(source, Path(temporary, name), target, environment, time)
    return made


def _with_tests(plugin: Path, copy: Path, root: Path) -> Path:
    """A copy of a plugin's folder with what its tests need; the core's sdist has the folder without it."""
    shutil.copytree(plugin, copy)
    shutil.copy(root / "conftest.py", copy)
    (copy / "MANIFEST.in").write_text(MANIFEST, encoding="utf-8")
    return copy


def _built(folder: Path, work: Path, target: Path, environment: dict[str, str], time: int) -> list[Path]:
    """Build in a copy: a build writes into the folder that it builds."""
    made = []
    work.mkdir(parents=True)
    for step in ("build_sdist", "build_wheel"):
        command = [sys.executable, "-c", BUILD, step, str(work)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{step} of {folder.name} failed:\n{done.stderr[-2000:]}")
        (archive,) = work.glob("*.tar.gz" if step == "build_sdist" else "*.whl")
        if step == "build_sdist":
            level(archive, time)
            with tarfile.open(archive) as packed:
                packed.extractall(work, filter="data")
            (folder,) = (path for path in work.iterdir() if path.is_dir())
        made.append(archive.replace(target / archive.name))
    return made


# -- checking ------------------------------------------------------------------------------------


def problems(tag: str | None = None, folder: Path = ROOT) -> list[str]:
    """What keeps the commit from being released, in words; nothing, if it may be.

    Args:
        tag: the tag; by default, the one at the commit.
        folder: the clone.
    """
    own = version(folder)
    tags = [tag] if tag else [one for one in git("tag", "--points-at", "HEAD", folder=folder).split() if one[:1] == "v"]
    found = [f"the tag is {one}, and the version {own}: the tag is to be v{own}" for one in tags if one != f"v{own}"]
    if not tags:
        found.append(f"the commit has no tag: git tag v{own}")
    found += _changelog_problems(own, (folder / "CHANGELOG.md").read_text(encoding="utf-8"))
    for plugin in folders(folder)[1:]:
        project = tomllib.loads((plugin / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        if project["version"] != own:
            found.append(f"{project['name']} has version {project['version']}: plugins are released with version {own}")
    found += _address_problems(folder)
    if changed := git("status", "--porcelain", folder=folder):
        found.append("not committed: " + ", ".join(line.split(maxsplit=1)[1] for line in changed.splitlines()))
    return found


def _address_problems(folder: Path) -> list[str]:
    """Whether the metadata lead to the repository that is released, and to somebody who reads letters."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    told = project["urls"]["Source"]
    origin = git("config", "--default", "", "--get", "remote.origin.url", folder=folder)
    found = []
    if _repository(told) != _repository(origin):
        is_it = f"the remote 'origin' is {origin}" if origin else "there is no remote 'origin'"
        found.append(f"the metadata lead to {told}, and {is_it}: see 'Before the first release' in RELEASING.md")
    for author in project["authors"]:
        if NOBODY.search(author["email"]):
            found.append(f"nobody reads {author['email']}: see 'Before the first release' in RELEASING.md")
    return found


def _repository(address: str) -> str:
    """Host and path of a repository, however its address is written: https://..., git@host:path, ssh://..."""
    bare = re.sub(r"^\w+://", "", address.strip().lower()).rpartition("@")[2]
    return bare.replace(":", "/", 1).rstrip("/").removesuffix(".git")


def _changelog_problems(own: str, text: str) -> list[str]:
    """Whether the changelog's first sections are an empty `Unreleased` and this version, as Keep a Changelog has it."""
    sections = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if [name for name, _, _ in sections[:2]] != ["Unreleased", own] or not sections[1][1]:
        first = ", ".join(name for name, _, _ in sections[:2])
        wanted = f"'## [Unreleased]' and '## [{own}] - YYYY-MM-DD'"
        return [f"CHANGELOG.md begins with {first or 'no section'}: it is to begin with {wanted}"]
    left = re.sub(r"^\[.*$", "", sections[0][2], flags=re.MULTILINE).strip()
    return [f"CHANGELOG.md has changes under Unreleased: move them to {own}"] if left else []


def set_version(new: str, day: str, folder: Path = ROOT) -> None:
    """Write a version into the code, the plugins and the changelog.

    Args:
        new: the version.
        day: its date, YYYY-MM-DD.
        folder: the clone.
    """
    old = version(folder)
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", new):
        raise SystemExit(f"{new!r} is no version: write it as 1.2.3 or 1.2.3rc1")
    _replace(folder / "connectagent" / "__init__.py", f'__version__ = "{old}"', f'__version__ = "{new}"')
    for plugin in folders(folder)[1:]:
        project = tomllib.loads((plugin / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        _replace(plugin / "pyproject.toml", f'\nversion = "{project["version"]}"', f'\nversion = "{new}"')
    _replace(folder / "CHANGELOG.md", "## [Unreleased]\n", f"## [Unreleased]\n\n## [{new}] - {day}\n")
    link = f"[{new}]: {URL}/releases/tag/v{new}"
    _replace(folder / "CHANGELOG.md", "\n[Unreleased]: ", f"\n{link}\n[Unreleased]: ")


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise SystemExit(f"{file} is to have {old.strip()!r} once")
    file.write_text(text.replace(old, new), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check", help="say what keeps the commit from being released")
    checking.add_argument("--tag", help="the tag; by default, the one at the commit")
    building = commands.add_parser("build", help="build every sdist and wheel")
    building.add_argument("target", type=Path)
    building.add_argument("names", nargs="*", help="of the distributions; all by default")
    setting = commands.add_parser("version", help="write a version into the code, the plugins and the changelog")
    setting.add_argument("version")
    given = parser.parse_args()
    if given.command == "build":
        print("\n".join(str(path) for path in build(given.target, given.names)))
    elif given.command == "version":
        set_version(given.version, date.today().isoformat())
    elif found := problems(given.tag):
        raise SystemExit("not ready:\n" + "\n".join(f"- {line}" for line in found))
    else:
        print(f"ready: {version()}")


if __name__ == "__main__":
    main()
