"""What building leaves in a clone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGINS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
BUILD = "import sys\nfrom setuptools import build_meta\nbuild_meta.build_wheel(sys.argv[1])"  # as pip calls it


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_building_a_plugin_leaves_nothing_for_git_to_show(plugin: Path, tmp_path: Path) -> None:
    clone, wheels = tmp_path / "clone", tmp_path / "wheels"
    folder = clone / plugin.relative_to(ROOT)
    shutil.copytree(plugin, folder, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    shutil.copy(ROOT / ".gitignore", clone)
    git(clone, "init", "-q")
    git(clone, "add", ".")
    before = git(clone, "status", "--porcelain")
    subprocess.run([sys.executable, "-c", BUILD, wheels], cwd=folder, check=True, capture_output=True)
    assert [path.suffix for path in wheels.iterdir()] == [".whl"]
    assert (folder / "build").is_dir() and [*folder.glob("*.egg-info")]
    assert git(clone, "status", "--porcelain") == before
