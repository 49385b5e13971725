"""Settings of a process and of a project: environment variables, then `[tool.connectagent]`.

An argument of `Agent(...)` wins over both, and the command line over all. The table `SETTINGS` is the
whole list; the README's is checked against it.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from connectagent.errors import ConfigError

SETTINGS: dict[str, str] = {
    "model": "the model of agents that name none, for example `claude-sonnet-4-5`",
    "dir": "where records and logs are written, instead of `.co` in the current folder",
    "quiet": "`1`: nothing is shown on the terminal",
    "fsync": "`1`: each line of the record is on the disk before the agent goes on; survives a power cut",
    "gateway_url": "base URL of the gateway that `co/<model>` asks (OpenAI's wire)",
    "gateway_key": "the key for that gateway",
}

# What the command line said: `model`, `quiet` and `plugins` for every agent of this process. A plain dict:
# a context variable would not reach the agents that a script makes in threads of its own.
overrides: dict[str, Any] = {}


def setting(name: str) -> Any:
    """The value of one of `SETTINGS`, or None where it is not set.

    Raises:
        ConfigError: the project's pyproject.toml cannot be read, or names a setting that there is none.
    """
    if name in overrides:
        return overrides[name]
    value = os.environ.get(f"CONNECTAGENT_{name.upper()}")
    if value:
        return value
    return project_settings().get(name)


def enabled(name: str) -> bool:
    """Whether a setting that is on or off is on: `1`, `true`, `yes` or `on`."""
    return str(setting(name) or "").lower() in ("1", "true", "yes", "on")


def project_settings() -> dict[str, Any]:
    """`[tool.connectagent]` of the nearest pyproject.toml, from the current folder upwards; {} without one."""
    try:
        folder = Path.cwd()
    except OSError:  # the current folder was removed
        return {}
    for parent in (folder, *folder.parents):
        path = parent / "pyproject.toml"
        try:
            modified = path.stat().st_mtime_ns
        except OSError:
            continue
        return _read(path, modified)
    return {}


@lru_cache(maxsize=8)
def _read(path: Path, modified: int) -> dict[str, Any]:
    """One pyproject.toml's table; `modified` makes a changed file a new entry of the cache."""
    import tomllib

    try:
        with path.open("rb") as file:
            table = tomllib.load(file).get("tool", {}).get("connectagent", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: [tool.connectagent] must be a table, not {type(table).__name__}")
    unknown = [key for key, value in table.items() if key not in SETTINGS and not isinstance(value, dict)]
    if unknown:
        raise ConfigError(f"{path}: [tool.connectagent] has no setting {unknown[0]!r}; known: {', '.join(SETTINGS)}")
    return table
