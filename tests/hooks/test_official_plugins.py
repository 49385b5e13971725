"""The plugins of this project are known by name before they are installed."""

from __future__ import annotations

from pathlib import Path

from connectagent.hooks.entry_points import OFFICIAL

PLUGINS = Path(__file__).parents[2] / "plugins"


def test_a_name_that_is_not_installed_is_known_for_every_plugin() -> None:
    folders = sorted(path.parent.name for path in PLUGINS.glob("connectagent-*/pyproject.toml"))
    assert [f"connectagent-{name}" for name in OFFICIAL] == folders
