"""A folder of a stranger, and what the person says of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import forked
import pytest

from connectagent.settings import asked_by
from connectagent.settings.allowed import allow

ROOT = Path(__file__).parents[2]
MARK = """
from connectagent import on_complete
open({ran!r}, "a").close()

@on_complete
def mark(result):
    return "M"
"""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clone").mkdir()
    monkeypatch.chdir(tmp_path / "clone")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("GATEWAY_URL", "GATEWAY_KEY", "PLUGINS", "MODEL", "DIR", "MASK"):
        monkeypatch.delenv(f"CONNECTAGENT_{name}", raising=False)


def project(text: str, folder: Path | None = None) -> Path:
    path = (folder or Path.cwd()) / "pyproject.toml"
    path.write_text(f"[tool.connectagent]\n{text}\n")
    return path


def allowed(folder: Path | None = None) -> None:
    folder = folder or Path.cwd()
    allow(folder, asked_by(folder / "pyproject.toml"))


def co(*arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command as one that is installed: the current folder is no place of modules."""
    return forked.run(
        "-P",
        "-m",
        "connectagent",
        *arguments,
        cwd=cwd,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "HOME": str(Path.cwd().parent / "home"),
            "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"],
            **variables,
        },
        timeout=60,
    )
