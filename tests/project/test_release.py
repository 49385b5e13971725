"""`python release.py check` finds what keeps a commit from being released; the workflow publishes without a token."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from test_packages import PROJECT, ROOT, release, script

CHANGELOG = """\
# Changelog

## [Unreleased]

### Added

- A thing.

[Unreleased]: https://example.org
"""

PROJECT_FILE = """\
[project]
name = "connectagent"
authors = [{ name = "A", email = "a@somebody.org" }]

[project.urls]
Source = "https://github.com/somebody/connectagent"
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A small repository whose version 0.2.0 is ready to be released."""
    (tmp_path / "connectagent").mkdir()
    (tmp_path / "connectagent" / "__init__.py").write_text('"""An agent."""\n\n__version__ = "0.1.0"\n')
    (tmp_path / "pyproject.toml").write_text(PROJECT_FILE)
    plugin = tmp_path / "plugins" / "connectagent-x"
    plugin.mkdir(parents=True)
    (plugin / "pyproject.toml").write_text('[project]\nname = "connectagent-x"\nversion = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    release.set_version("0.2.0", "2026-11-23", tmp_path)
    git(tmp_path, "init", "-q")
    git(tmp_path, "remote", "add", "origin", "git@github.com:somebody/connectagent.git")
    commit(tmp_path)
    git(tmp_path, "tag", "v0.2.0")
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    names = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *names, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "a change")


def test_a_commit_that_is_ready_has_no_problem(clone: Path) -> None:
    assert release.problems(folder=clone) == [] and release.problems("v0.2.0", clone) == []
    text = (clone / "CHANGELOG.md").read_text()
    assert "## [Unreleased]\n\n## [0.2.0] - 2026-11-23\n\n### Added\n\n- A thing.\n" in text
    assert f"[0.2.0]: {release.URL}/releases/tag/v0.2.0\n[Unreleased]:" in text
    plugin = tomllib.loads((clone / "plugins" / "connectagent-x" / "pyproject.toml").read_text())
    assert plugin["project"]["version"] == release.version(clone) == "0.2.0"


def test_a_tag_is_the_version(clone: Path) -> None:
    told = "the tag is v0.3.0, and the version 0.2.0: the tag is to be v0.2.0"
    assert release.problems("v0.3.0", clone) == [told]
    git(clone, "tag", "v0.3.0")
    assert release.problems(folder=clone) == [told]
    git(clone, "commit", "-q", "--allow-empty", "-m", "later")
    assert release.problems(folder=clone) == ["the commit has no tag: git tag v0.2.0"]


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("## [0.2.0] - 2026-11-23\n", "", "begins with Unreleased: it is to begin with '## [Unreleased]' and"),
        (" - 2026-11-23", "", "begins with Unreleased, 0.2.0: it is to begin with"),
        ("## [Unreleased]\n", "", "begins with 0.2.0: it is to begin with"),
        ("## [Unreleased]\n", "## [Unreleased]\n\n- More.\n", "has changes under Unreleased: move them to 0.2.0"),
    ],
)
def test_the_changelog_has_the_version(clone: Path, old: str, new: str, word: str) -> None:
    file = clone / "CHANGELOG.md"
    file.write_text(file.read_text().replace(old, new))
    commit(clone)
    (told,) = release.problems("v0.2.0", clone)
    assert word in told


def test_nothing_is_left_uncommitted_and_plugins_have_the_version(clone: Path) -> None:
    (clone / "new.txt").write_text("new")
    project = clone / "plugins" / "connectagent-x" / "pyproject.toml"
    project.write_text(project.read_text().replace("0.2.0", "0.1.0"))
    assert release.problems(folder=clone) == [
        "connectagent-x has version 0.1.0: plugins are released with version 0.2.0",
        "not committed: plugins/connectagent-x/pyproject.toml, new.txt",
    ]


@pytest.mark.parametrize(
    "origin",
    [
        "https://github.com/Somebody/connectagent",
        "https://github.com/somebody/connectagent.git/",
        "https://x-access-token:abc@github.com/somebody/connectagent",
        "ssh://git@github.com/somebody/connectagent.git",
    ],
)
def test_the_metadata_lead_to_the_repository_that_is_released(clone: Path, origin: str) -> None:
    git(clone, "remote", "set-url", "origin", origin)
    assert release.problems(folder=clone) == []


def test_metadata_that_lead_elsewhere_are_not_released(clone: Path) -> None:
    told = "the metadata lead to https://github.com/somebody/connectagent, and "
    see = ": see 'Before the first release' in RELEASING.md"
    git(clone, "remote", "set-url", "origin", "https://github.com/else/connectagent")
    elsewhere = "the remote 'origin' is https://github.com/else/connectagent"
    assert release.problems(folder=clone) == [told + elsewhere + see]
    git(clone, "remote", "remove", "origin")
    assert release.problems(folder=clone) == [told + "there is no remote 'origin'" + see]


@pytest.mark.parametrize("address", ["x@users.noreply.github.com", "no-reply@a.org", "me@example.org", "me@a.example"])
def test_an_address_that_nobody_reads_is_not_released(clone: Path, address: str) -> None:
    file = clone / "pyproject.toml"
    file.write_text(file.read_text().replace("a@somebody.org", address))
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "--amend", "-m", "a change")
    told = f"nobody reads {address}: see 'Before the first release' in RELEASING.md"
    assert release.problems("v0.2.0", clone) == [told]


def test_the_page_says_what_the_made_up_addresses_are() -> None:
    page = (ROOT / "RELEASING.md").read_text("utf-8").partition("## Before the first release")[2]
    assert PROJECT["urls"]["Source"].removeprefix("https://") in page
    assert all(author["email"] in page for author in PROJECT["authors"])


def test_a_version_that_is_none_changes_nothing(clone: Path) -> None:
    with pytest.raises(SystemExit, match="is no version"):
        release.set_version("v1", "2026-11-23", clone)
    assert release.version(clone) == "0.2.0"


def test_this_changelog_can_become_a_version(tmp_path: Path) -> None:
    (tmp_path / "connectagent").mkdir()
    for name in ("CHANGELOG.md", "connectagent/__init__.py"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    release.set_version("7.0.0", "2026-11-23", tmp_path)
    assert release._changelog_problems("7.0.0", (tmp_path / "CHANGELOG.md").read_text("utf-8")) == []


# -- the legs and the workflows ------------------------------------------------------------------


def test_the_classifiers_are_the_pythons_that_the_legs_run() -> None:
    lines = (ROOT / "noxfile.py").read_text("utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith("PYTHONS = "))
    pythons = line.partition("[")[2].rstrip("]").replace('"', "").split(", ")
    classified = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if one.startswith("Programming Language")]
    assert [one for one in classified if one != "Only"] == pythons
    assert PROJECT["requires-python"] == f">={pythons[0]}"
    workflow = workflows()["tests.yml"]["jobs"]["leg"]["steps"][1]
    assert workflow["with"]["python-version"].split() == pythons


def workflows() -> dict[str, dict]:
    return {path.name: yaml.safe_load(path.read_text("utf-8")) for path in (ROOT / ".github/workflows").glob("*.yml")}


def test_the_publishing_workflow_has_no_secret_and_only_the_rights_that_it_needs() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text("utf-8")
    found = workflows()["release.yml"]
    assert "secrets." not in text and "password" not in text and found["permissions"] == {}
    assert found["jobs"]["build"]["permissions"] == {"contents": "read"}
    assert found["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert found["jobs"]["publish"]["needs"] == "build"
    publishing = found["jobs"]["publish"]["steps"][-1]
    assert publishing["uses"] == "pypa/gh-action-pypi-publish@release/v1"


def test_the_legs_are_those_of_the_noxfile() -> None:
    nox = pytest.importorskip("nox", reason="nox is not installed: pip install -e '.[legs]'")
    legs = script("noxfile")
    assert {"lint", "tests", "lowest", "lowest_core", "newest", "sdist", "wheels"} <= set(nox.options.sessions)
    assert all((ROOT / name.partition("::")[0]).is_file() for name in legs.QUICK)
    heavy = [f"connectagent-{name}" for name in legs.HEAVY]
    plugins = {path.parent.name for path in ROOT.glob("plugins/connectagent-*/pyproject.toml")}
    assert plugins - set(PROJECT["optional-dependencies"]["all"]) == set(heavy)
