"""The person's word for a project's file, in tests that are about something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectagent.settings import asked_by
from connectagent.settings.allowed import allow


def allow_here(monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    """Allow what the current folder's pyproject.toml asks for, in a state folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    allow(Path.cwd(), asked_by(Path.cwd() / "pyproject.toml"))
