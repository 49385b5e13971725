"""Settings of a process and of a project: environment variables, then `[tool.connectagent]`.

An argument of `Agent(...)` wins over both, and the command line over all. The table `SETTINGS` is the
whole list; docs/settings.md is made from it.
"""

from __future__ import annotations

import contextlib
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
    "mask": "`off`: secrets are not masked; else what is masked as well: names and `/regular expressions/`, by commas",
    "max_records": "how many records are kept (1000); the oldest are removed when a session begins; `0`: no limit",
    "max_record_bytes": "how many bytes records and blobs may take (1073741824); `0`: no limit",
    "plugins": "installed plugins and files that every agent has: a list, in the variable separated by commas",
    "gateway_url": "base URL of the gateway of `co/<model>`, which speaks OpenAI's API",
    "gateway_key": "the key for that gateway",
}

# What the command line said: `model`, `quiet` and `plugins` for every agent of this process. A plain dict:
# a context variable would not reach the agents that a script makes in threads of its own.
overrides: dict[str, Any] = {}


def setting(name: str, overridden: bool = True) -> Any:
    """The value of one of `SETTINGS`, or None where it is not set.

    Args:
        name: the setting.
        overridden: whether the command line's value wins.

    Raises:
        ConfigError: the project's pyproject.toml cannot be read, or names a setting that there is none.
    """
    if overridden and name in overrides:
        return overrides[name]
    value = os.environ.get(f"CONNECTAGENT_{name.upper()}")
    if value:
        return value
    return project_settings().get(name)


def enabled(name: str) -> bool:
    """Whether a setting that is on or off is on: `1`, `true`, `yes` or `on`."""
    return str(setting(name) or "").lower() in ("1", "true", "yes", "on")


def co_folder() -> Path:
    """Where records and logs are: `.co`, or what the setting `dir` names. It need not exist."""
    return Path(os.path.abspath(os.path.expanduser(str(setting("dir") or ".co"))))


def project_settings() -> dict[str, Any]:
    """`[tool.connectagent]` of `project_file()`; {} without one."""
    path = project_file()
    try:
        return _read(path, path.stat().st_mtime_ns) if path else {}
    except FileNotFoundError:  # removed just now
        return {}


def project_file() -> Path | None:
    """The nearest pyproject.toml, from the current folder up to the repository's root.

    A stranger's is not read: it must be the user's or root's, as the folders of `_own_folders` are.
    """
    for folder in _own_folders():
        path = folder / "pyproject.toml"
        with contextlib.suppress(OSError):
            return path if path.stat().st_uid in _trusted() else None
    return None


def project_folder() -> Path:
    """The folder of the project: the repository's root, else the folder of `project_file()`, else the current one."""
    folders, file = _own_folders(), project_file()
    if folders and (folders[-1] / ".git").exists():
        return folders[-1]
    return file.parent if file else Path.cwd()


def _own_folders() -> list[Path]:
    """The current folder and those above, up to the repository's root, as far as they have one owner.

    None where that owner is neither the user nor root.
    """
    found: list[Path] = []
    with contextlib.suppress(OSError):  # the current folder was removed, or one above may not be looked into
        folder = Path.cwd()
        owner = folder.stat().st_uid
        for parent in (folder, *folder.parents) if owner in _trusted() else ():
            if parent.stat().st_uid != owner:
                break
            found.append(parent)
            if (parent / ".git").exists():
                break
    return found


def _trusted() -> tuple[int, int]:
    """The owners whose files count: the user and root; on Windows each owner is 0."""
    return getattr(os, "geteuid", lambda: 0)(), 0


def named_plugins() -> list[tuple[str, str]]:
    """The plugins that the project and the environment name for every agent, each with where it is named.

    Raises:
        ConfigError: the project's `plugins` is no list of names.
    """
    path, listed = project_file(), project_settings().get("plugins", [])
    if not isinstance(listed, list) or not all(isinstance(name, str) and name.strip() for name in listed):
        raise ConfigError(f"{path}: [tool.connectagent] plugins is a list of names, not {listed!r:.80}")
    found = []
    for name in map(str.strip, listed):
        # A file is found from the project's folder, wherever the program is started.
        mode = "shadow:" if name.startswith("shadow:") else ""
        bare = name.removeprefix(mode)
        found.append((f"{mode}{path.parent / bare}" if path and bare.endswith(".py") else name, str(path)))
    variable = "CONNECTAGENT_PLUGINS"
    names = (name.strip() for name in os.environ.get(variable, "").split(","))
    return [*found, *((name, variable) for name in names if name)]


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
