"""Settings of the process and the project: environment variables, then `[tool.connectagent]`.

An argument of `Agent(...)` overrides both, and the command line overrides everything. `SETTINGS` is the whole list;
docs/settings.md is generated from it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connectagent.errors import ConfigError, cut, did_you_mean, nearest
from connectagent.settings.names import plugin_file
from connectagent.settings.project import PROJECT_FILE, leads_out, project_file, trusted

if TYPE_CHECKING:
    from connectagent.settings.allowed import Asked

SETTINGS: dict[str, str] = {
    "model": "the model of agents that name none, for example `claude-sonnet-4-5`",
    "dir": "where records and logs are written, instead of `.co` in the current folder",
    "quiet": "`1`: nothing is shown on the terminal",
    "still": "`1`: no line on the terminal moves; a call that takes long is announced by one line",
    "traceback": "`full`: tracebacks show connectagent's own frames, which are hidden otherwise",
    "fsync": "`1`: each line of the record is on the disk before the agent goes on; survives a power cut",
    "mask": "`off`: secrets are not masked; else what is masked as well: names and `/regular expressions/`, by commas",
    "max_records": "how many records without a key are kept (1000); the oldest go when a session begins; `0`: no limit",
    "max_record_bytes": "how many bytes records and blobs may take (1073741824); `0`: no limit",
    "plugins": "installed plugins and files that every agent has: a list, in the variable separated by commas",
    "editor": "what opens code from the page: `vscode`, `cursor`, `zed`, `idea`, `editor` for `editor://`, or `off`",
    "gateway_url": "base URL of the gateway of `co/<model>`, which speaks OpenAI's API",
    "gateway_key": "the key for that gateway",
}

# From the command line, for every agent of this process: settings, `trust`, `stream`, `max_iterations`, and by name the
# command's `own_plugins`. No context variable: it would not reach agents that a script makes in threads of its own.
overrides: dict[str, Any] = {}

_PREFIX = "CONNECTAGENT_"
_MOST_FILE = 1 << 24  # bytes of a settings file
_OTHERS = (f"{_PREFIX}COMPLETE", f"{_PREFIX}LOCAL_MODEL")  # of shells, and of plugins

# The settings in a project's file that the person must allow: `settings/allowed.py` has the rules.
_NEED_A_WORD = ("gateway_url", "gateway_key", "dir", "mask")


@contextlib.contextmanager
def override(name: str, value: object) -> Iterator[None]:
    """Override a setting meanwhile.

    A thread that leaves it late, since something hung in it, leaves alone what others have set by then.
    """
    before = overrides.get(name)
    overrides[name] = value
    try:
        yield
    finally:
        if overrides.get(name) is value:
            overrides.pop(name) if before is None else overrides.update({name: before})


def setting(name: str, overridden: bool = True) -> Any:
    """The value of one of `SETTINGS`, or None where it is not set.

    Args:
        name: the setting.
        overridden: whether the command line's value wins.

    Raises:
        ConfigError: the project's pyproject.toml cannot be read, has an unknown setting, or asks for
            something that the person has not allowed.
    """
    if overridden and name in overrides:
        return overrides[name]
    value = os.environ.get(f"CONNECTAGENT_{name.upper()}")
    if value:
        return value
    value = project_settings().get(name)
    if value is not None and (name in _NEED_A_WORD or (name == "model" and "/" in str(value))):
        check_allowed(name)
    return value


def enabled(name: str) -> bool:
    """Whether a setting is on: `1`, `true`, `yes` or `on`.

    Raises:
        ConfigError: its value is neither one of these nor `0`, `false`, `no`, `off` or empty.
    """
    value = str(setting(name) or "").lower()
    if value in ("1", "true", "yes", "on"):
        return True
    if value not in ("", "0", "false", "no", "off"):
        raise ConfigError(f"the setting {name} is {value!r}: write 1 to switch it on, 0 to switch it off")
    return False


def co_folder(inside: str = "") -> Path:
    """The folder of records and logs, `.co` or the setting `dir`, or what is in it. It need not exist.

    Args:
        inside: the name of a file or folder in it.

    Raises:
        ConfigError: it is a link that leads out of the project, or `setting("dir")` raises.
    """
    named = setting("dir")
    folder = Path(os.path.abspath(os.path.expanduser(str(named or ".co"))))
    for path in (*([] if named else [folder]), *([folder / inside] if inside else [])):
        if leads_out(path):
            problem = f"{path} is a link that leads out of the project, to {os.path.realpath(path)}: it is not used."
            raise ConfigError(f"{problem} If it is meant: CONNECTAGENT_DIR={os.path.realpath(folder)}")
    return folder / inside


def project_settings() -> dict[str, Any]:
    """`[tool.connectagent]` of `project_file()`; {} without one."""
    return _settings_in(project_file())


def _settings_in(path: Path | None) -> dict[str, Any]:
    try:
        return _read(path, path.stat().st_mtime_ns) if path else {}
    except FileNotFoundError:  # removed just now
        return {}


# -- what needs the person's word ------------------------------------------------------------------


def check_allowed(key: str) -> None:
    """Refuse what the project's file asks for under a key, until the person has said `connectagent allow`.

    Args:
        key: a setting, or the name of a plugin's table of options.

    Raises:
        ConfigError: the person has not allowed what the file asks for now.
    """
    message = refusal(key)
    if message is not None:
        raise ConfigError(message)


def check_file(file: str, place: str) -> None:
    """Refuse a file of code that a project's file names.

    A program inside the project may load it: whoever runs that program runs the folder's code anyway.

    Args:
        file: the file of code.
        place: where it is named.

    Raises:
        ConfigError: a project's file names it, and the person has not allowed it, or it belongs to another user.
    """
    path = Path(place)
    if path.name != PROJECT_FILE or _runs_program_of(path.parent):
        return
    _refuse_of_others(Path(file))
    if path != project_file():
        raise ConfigError(f"{path} is no longer the settings of this project, so that {file} is not run")
    check_allowed("plugins")


def _refuse_of_others(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # which whoever loads it finds out
        if path.stat().st_uid not in trusted():
            raise ConfigError(f"{path} belongs to another user, so that nothing in it is run")


def read_allowed(path: Path) -> str:
    """The text of a project's file that says what is to run, for the plugin that runs it.

    The person's word covers the file and the files of the project that it names. A program inside the project needs
    none, as for plugins: whoever runs that program runs the project's code anyway.

    Raises:
        ConfigError: the person has not allowed what is in the file now, or it belongs to another user.
        OSError, UnicodeDecodeError: it cannot be read.
    """
    from connectagent.settings.allowed import asked_for_by_text, digest, root_of, word_for

    path = path.absolute()
    text = _text_of(path)
    _refuse_of_others(path)
    if _runs_program_of(root_of(path)):
        return text
    asked, word = asked_for_by_text(path, text), word_for(path)
    if word is None or word["digest"] != digest(asked):
        since = "has changed since you allowed it, or a file that it names" if word else "is not allowed yet"
        raise ConfigError(
            f"{path} {since}: it says what is to run\nLook at it. If you trust it: connectagent allow {path}"
        )
    return text


def asked_by(file: Path) -> list[Asked]:
    """What a project's file asks for that the person must allow: a pyproject.toml, or a file for `read_allowed`.

    Raises:
        ConfigError: the file cannot be read.
    """
    from connectagent.settings.allowed import asked_for, asked_for_by_text

    if file.name != PROJECT_FILE:
        try:
            return asked_for_by_text(file, _text_of(file))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: cannot be read: {error}") from error
    return asked_for(_read(file, file.stat().st_mtime_ns), file.parent)


def refusal(key: str | None = None) -> str | None:
    """The error message where the project's file asks for something that is not allowed; None where all is.

    Args:
        key: as for `check_allowed`; None for everything in the file.
    """
    path = project_file()
    if path is None or not project_settings():
        return None
    from connectagent.settings.allowed import digest, word_for

    asked = asked_by(path)
    if not [one for one in asked if key in (None, one.key)]:
        return None
    word = word_for(path.parent)
    if word is not None and word["digest"] == digest(asked):
        return None
    asked.sort(key=lambda one: one.key != key)
    since = "has changed since you allowed it; it" if word else "is not allowed yet; it"
    more = [f"  and {len(asked) - 1} more: connectagent allow --show {path.parent}"] if len(asked) > 1 else []
    lines = [f"{path} {since} asks for", f"  {cut(asked[0].text, 240)}", *more]
    return "\n".join([*lines, f"Look at it. If you trust it: connectagent allow {path.parent}"])


def _runs_program_of(folder: Path) -> bool:
    """Whether the running script is in a folder, and not in this Python's environment."""
    named = overrides.get("program", getattr(sys.modules.get("__main__"), "__file__", None))
    if not named:
        return False
    above = Path(os.path.abspath(named)).resolve().parents
    return folder.resolve() in above and Path(sys.prefix).resolve() not in above


def named_plugins() -> list[tuple[str, str]]:
    """The plugins that the project and the environment name for every agent, each with its place.

    Raises:
        ConfigError: the project's `plugins` is no list of names, or an environment variable seems to be mistyped.
    """
    _refuse_mistyped(tuple(name for name in os.environ if name.upper().startswith(_PREFIX)))
    listed = _settings_in(path := project_file()).get("plugins", [])
    if not isinstance(listed, list) or not all(isinstance(name, str) and name.strip() for name in listed):
        raise ConfigError(f"{path}: [tool.connectagent] plugins is a list of names, not {listed!r:.80}")
    found = []
    for name in map(str.strip, listed):
        # A file is found from the project's folder, wherever the program is started.
        file = plugin_file(name)
        found.append((f"{file[0]}{path.parent / file[1]}" if path and file else name, str(path)))
    variable = "CONNECTAGENT_PLUGINS"
    names = (name.strip() for name in os.environ.get(variable, "").split(","))
    return [*found, *((name, variable) for name in names if name)]


@lru_cache(maxsize=8)
def _refuse_mistyped(variables: tuple[str, ...]) -> None:
    """Refuse variables whose names are nearly that of a setting: a guard that one of them names would be missing."""
    known = {name.upper(): f"{_PREFIX}{name.upper()}" for name in SETTINGS}
    for variable in variables:
        if variable in (*known.values(), *_OTHERS):
            continue
        if near := nearest(variable[len(_PREFIX) :].upper(), known, 0.8):
            raise ConfigError(f"the environment variable {variable} is no setting. Did you mean {known[near]!r}?")


def _text_of(path: Path) -> str:
    """The text of a file that may be a stranger's."""
    from connectagent.settings.own import read_regular

    return read_regular(path, _MOST_FILE).decode("utf-8-sig").replace("\r\n", "\n")


@lru_cache(maxsize=8)
def _read(path: Path, modified: int) -> dict[str, Any]:
    """One pyproject.toml's table; `modified` makes a changed file a new entry of the cache."""
    import tomllib

    try:
        table = tomllib.loads(_text_of(path)).get("tool", {}).get("connectagent", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: [tool.connectagent] must be a table, not {type(table).__name__}")
    unknown = [key for key, value in table.items() if key not in SETTINGS and not isinstance(value, dict)]
    if unknown:
        hint = did_you_mean(unknown[0], SETTINGS)
        known = ", ".join(SETTINGS)
        raise ConfigError(f"{path}: [tool.connectagent] has no setting {unknown[0]!r}.{hint} Known: {known}")
    return table
