"""Virtual environments for tests of what is installed."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# A build takes the setuptools that is installed here, if it is new enough, and asks no registry for one.
OFFLINE = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1"} if int(version("setuptools").split(".")[0]) >= 77 else {}


def wheel(folder: Path, name: str, text: str, lines: list[str]) -> Path:
    """A wheel of one module, written by hand: no build tool is asked."""
    bare = f"connectagent_{name.replace('-', '_')}"
    groups = [line if " = " in line else f"[{line}]" for line in lines]
    files = {
        f"{name.replace('-', '_')}_plugin.py": text,
        f"{bare}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: connectagent-{name}\nVersion: 1.0\n",
        f"{bare}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{bare}-1.0.dist-info/entry_points.txt": "\n".join(groups),
    }
    record = f"{bare}-1.0.dist-info/RECORD"
    rows = []
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(content.encode())}\n")
    made = folder / f"{bare}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for path, content in {**files, record: "".join(rows) + f"{record},,\n"}.items():
            archive.writestr(path, content)
    return made


class Environment:
    """A fresh virtual environment that sees this one's packages behind its own.

    Args:
        folder: where it is made; also the current folder of what is run.
        checkout: whether `connectagent` is that of the checkout, without being installed.
        pip: whether it has pip; without it, none is seen behind it either.
    """

    def __init__(self, folder: Path, *, checkout: bool = True, pip: bool = True) -> None:
        self.folder = folder
        made = [sys.executable, "-m", "venv", folder / "venv", *([] if pip else ["--without-pip"])]
        subprocess.run(made, check=True)
        self.bin = folder / "venv" / "bin"
        self.python = self.bin / "python"
        (self.site,) = (folder / "venv").glob("lib/python*/site-packages")
        for path in self.site.glob("*") if OFFLINE else ():  # Python 3.11 brings an old setuptools that comes first
            if path.name.startswith(("setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence")):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        behind = Path(sysconfig.get_paths()["purelib"])
        if not (pip and checkout):
            behind = _without(behind, folder / "behind", *(["pip"] if not pip else []), "connectagent", "__editable__")
        (self.site / "host.pth").write_text("\n".join([*([str(ROOT)] if checkout else []), str(behind), ""]))

    def run(self, *arguments: Any, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, *arguments],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder), **variables},
            capture_output=True,
            text=True,
            timeout=120,
        )

    def co(self, *arguments: Any, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "connectagent", *arguments, **variables)

    def listed(self) -> dict[str, Any]:
        found = json.loads(self.co("plugins", "doctor", "--json").stdout)
        return {row["distribution"]: row for row in found["plugins"]}

    def install_checkout(self) -> None:
        """Install a copy of the checkout: a build writes into the folder that it builds."""
        copy = self.folder / "checkout"
        shutil.copytree(ROOT / "connectagent", copy / "connectagent", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, copy / name)
        done = self.run("-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", str(copy), **OFFLINE)
        assert done.returncode == 0, done.stderr


def _without(packages: Path, folder: Path, *names: str) -> Path:
    """A folder of links to all packages but some."""
    folder.mkdir()
    for path in packages.iterdir():
        if not path.name.lower().startswith(names):
            (folder / path.name).symlink_to(path)
    return folder
