"""What the distributions of this project say of themselves and contain, and that a release is built the same twice."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
FOLDERS = sorted(path.parent for path in ROOT.glob("plugins/connectagent-*/pyproject.toml"))
PROJECTS = {folder: tomllib.loads((folder / "pyproject.toml").read_text("utf-8")) for folder in FOLDERS}
in_each_plugin = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def script(name: str) -> ModuleType:
    """A script of the repository's top, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release = script("release")


# -- what they say --------------------------------------------------------------------------------


@in_each_plugin
def test_a_plugin_says_of_itself_what_the_core_says(folder: Path) -> None:
    project = PROJECTS[folder]["project"]
    for key in ("version", "classifiers", "authors", "license", "license-files", "requires-python"):
        assert project[key] == (release.version() if key == "version" else PROJECT[key]), key
    assert project["readme"] == "README.md" and {"agents", "connectagent", "llm"} < set(project["keywords"])
    assert project["urls"] == {
        "Homepage": f"{release.URL}/tree/main/plugins/{folder.name}",
        **{key: PROJECT["urls"][key] for key in ("Source", "Issues", "Changelog")},
    }


@in_each_plugin
def test_a_plugin_has_the_license_and_brings_its_types(folder: Path) -> None:
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    tool = PROJECTS[folder]["tool"]["setuptools"]
    assert "py-modules" not in tool, "type checkers take the types of packages only: make the module a package"
    for package in tool["packages"]:
        assert (folder / package.replace(".", "/")).is_dir()
        if "." not in package:
            assert (folder / package / "py.typed").is_file() and "py.typed" in tool["package-data"][package]


def test_the_lowest_versions_of_plugins_are_those_that_the_tests_can_install() -> None:
    """The tests run with the lowest versions of what the core and its extra `test` require."""
    known = [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
    wanted = {re.split(r"[^\w.-]", one)[0]: one for one in known}
    for folder, data in PROJECTS.items():
        for one in data["project"]["dependencies"]:
            name = re.split(r"[^\w.-]", one)[0]
            if name in wanted and name != "connectagent":
                assert one == wanted[name], folder.name


# -- building -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The distributions of the core and of one plugin, by suffix and name."""
    if not (ROOT / ".git").exists():
        pytest.skip("no clone: a release is built from the files that git knows")
    made = release.build(tmp_path_factory.mktemp("dist"), ["connectagent", "connectagent-verify"])
    return {path.name.partition("-0")[0] + path.suffix: path for path in made}


def metadata(wheel: Path) -> Any:
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(files.read(name).decode())


def test_a_wheel_has_types_license_and_what_an_index_shows(built: dict[str, Path]) -> None:
    for name in ("connectagent", "connectagent_verify"):
        with zipfile.ZipFile(built[f"{name}.whl"]) as files:
            names = files.namelist()
        assert f"{name}/py.typed" in names and any(one.endswith("/licenses/LICENSE") for one in names)
        told = metadata(built[f"{name}.whl"])
        assert told["Author-email"] and told["Keywords"] and told["License-Expression"] == "MIT"
        assert "Operating System :: POSIX" in told.get_all("Classifier") and len(told.get_all("Project-URL")) >= 4


def test_the_page_on_an_index_has_no_link_that_needs_the_files_beside_it(built: dict[str, Path]) -> None:
    page = metadata(built["connectagent.whl"]).get_payload()
    links = re.findall(r"\]\(([^)]+)\)", re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL))
    assert len(links) > 15 and all(link.startswith("https://") for link in links)
    for link in links:
        path = link.partition("#")[0].removeprefix(release.RAW).removeprefix(release.URL)
        assert (ROOT / re.sub(r"^/((blob|tree)/)?v[\d.]+/", "", path)).exists(), link


def test_the_sdist_has_every_file_of_the_repository(built: dict[str, Path]) -> None:
    with tarfile.open(built["connectagent.gz"]) as files:
        packed = {name.partition("/")[2] for name in files.getnames()}
        assert {(one.mtime, one.uid, one.uname) for one in files} == {(release.epoch(), 0, "")}
    known = {name for name in release.git("ls-files").splitlines() if (ROOT / name).exists()}
    assert {name for name in known - packed if not name.startswith(".co/")} == set()


def test_a_plugins_sdist_has_its_tests_and_what_they_need(built: dict[str, Path]) -> None:
    with tarfile.open(built["connectagent_verify.gz"]) as files:
        packed = {one.name.partition("/")[2]: files.extractfile(one) for one in files}
        conftest = packed["conftest.py"]
        assert conftest and conftest.read() == (ROOT / "conftest.py").read_bytes()
    folder = ROOT / "plugins" / "connectagent-verify"
    known = {name for name in release.git("ls-files", folder=folder).splitlines() if (folder / name).exists()}
    assert known - set(packed) == set() and "tests/test_verify.py" in known


def test_two_builds_are_equal(built: dict[str, Path], tmp_path: Path) -> None:
    again = release.build(tmp_path, ["connectagent-verify"])
    for path in again:
        same = built[f"connectagent_verify{path.suffix}"]
        assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(same.read_bytes()).digest(), path.name


def test_an_sdist_is_the_same_whatever_the_machine_notes_in_it(tmp_path: Path) -> None:
    for number, order in enumerate(("ab", "ba")):
        with tarfile.open(tmp_path / f"{number}.tar.gz", "w:gz") as packed:
            for name in order:
                (tmp_path / name).write_text(name)
                (tmp_path / name).chmod(0o600 if number else 0o664)
                packed.add(tmp_path / name, name)
        release.level(tmp_path / f"{number}.tar.gz", 1_700_000_000)
    assert (tmp_path / "0.tar.gz").read_bytes() == (tmp_path / "1.tar.gz").read_bytes()


def test_links_to_files_become_addresses_and_nothing_else_does() -> None:
    page = "![a](docs/images/view.png) [b](docs/trust.md#x) [c](#here) [d](https://e.org) [`f`](plugins)\n"
    page += "```\n[g](h)\n```\n"
    assert release.absolute(page, "", "v1.0", ROOT) == (
        f"![a]({release.RAW}/v1.0/docs/images/view.png) [b]({release.URL}/blob/v1.0/docs/trust.md#x) [c](#here) "
        f"[d](https://e.org) [`f`]({release.URL}/tree/v1.0/plugins)\n```\n[g](h)\n```\n"
    )
    assert release.absolute("[a](../x.md)", "plugins/y", "v1", ROOT) == f"[a]({release.URL}/blob/v1/plugins/x.md)"
