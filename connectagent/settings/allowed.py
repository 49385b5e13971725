"""What a project's file asks for beyond its own folder, and what the person has allowed.

The person's word is for one folder and one content, as with direnv: a changed address, or changed code, needs a new
one. The user's state folder has one file for each project, which nobody else may write.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from connectagent.settings.own import read_own, state_folder

OFF = ("0", "off", "false", "no")
_SHOWN = 200  # characters of a value
_FILE = "(file)"  # the key of what a single file asks for
_PATHS = re.compile(r"[\w@%+,.-][\w@%+,./-]*")  # what may be the path of a file
_COMMANDS = {"command", "check"}  # options of plugins that are run


class Asked(NamedTuple):
    """One thing that a project's file asks for.

    Args:
        key: the setting, or the table of a plugin's options.
        text: the description for the person, without the value of a key.
        content: what is allowed: the value, and for code a hash of the file.
    """

    key: str
    text: str
    content: str


def asked_for(table: dict[str, Any], folder: Path) -> list[Asked]:
    """What `[tool.connectagent]` asks for that the person must allow.

    Addresses, keys, code, commands, files outside of the project's folder, and `mask = "off"`.

    Args:
        table: the settings.
        folder: the project's folder.
    """
    return [one for key, value in table.items() for one in _asked_by(key, value, folder)]


def _asked_by(key: str, value: Any, folder: Path) -> list[Asked]:
    """What one setting, or one table of options, asks for."""
    if isinstance(value, dict):
        out = [_asked(key, f"{key}.{name}", text, folder) for name, text in _texts(value) if _reaches_out(text)]
        return [*_commands(key, value), *out]
    if key == "plugins":
        return [_asked(key, "the code of plugin", name, folder) for name in _files(value)]
    text = str(value)
    if key == "gateway_key":
        return [Asked(key, f"{key} (its value is not shown)", text)]
    if key == "mask" and text.strip().lower() in OFF:
        return [Asked(key, "mask = off: secrets are written and shown", "off")]
    asks = key == "gateway_url" or (key == "dir" and _reaches_out(text))
    return [_asked(key, key, text, folder)] if asks else []


def asked_for_by_text(path: Path, text: str) -> list[Asked]:
    """What a file that says what is to run asks for: itself, and the files of the project that it names.

    Args:
        path: the file.
        text: what is in it.
    """
    asked = [Asked(_FILE, f"what {path.name} says", hashlib.sha256(text.encode()).hexdigest())]
    root = root_of(path)
    folders = [folder for folder in path.parents if folder.is_relative_to(root)]
    for name in sorted({end for found in _PATHS.findall(text) for end in _ends(found)}):
        found = next((folder / name for folder in folders if _is_inside(folder / name, root)), None)
        if found is not None:
            asked.append(Asked(_FILE, f"the file {str(found.relative_to(root))!r}", f"{name}{_hash_of(found)}"))
    return asked


def _ends(name: str) -> list[str]:
    """A path, and what is left of it without its first folders, one of which may be a variable's name."""
    parts = name.split("/")
    return ["/".join(parts[n:]) for n in range(len(parts))]


def root_of(path: Path) -> Path:
    """The folder of the project that a file belongs to: the repository's root, else the first one without a dot."""
    repository = next((folder for folder in path.parents if (folder / ".git").exists()), None)
    return repository or next(folder for folder in path.parents if not folder.name.startswith("."))


def _is_inside(path: Path, root: Path) -> bool:
    try:
        return path.is_file() and path.resolve().is_relative_to(root.resolve())
    except (OSError, ValueError):
        return False
def _commands(key: str, table: dict[str, Any]) -> Iterator[Asked]:
    """The commands in a table of options: with what stands beside them, such as their arguments and environment."""
    for name in _COMMANDS & set(table):
        beside = table.get("args")
        words = [table[name], *beside] if isinstance(beside, list) else [table[name]]
        shown = " ".join(" ".join(map(str, word)) if isinstance(word, list) else str(word) for word in words)
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
        content = json.dumps(table, sort_keys=True, default=str)
        yield Asked(key.partition(".")[0], f"the command {key}.{name} = {shown!r}", content)
    for name, value in table.items():
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                yield from _commands(f"{key}.{name}", inner)


def _files(names: Any) -> list[str]:
    """The files of code among the named plugins."""
    listed = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    return [name.removeprefix("shadow:").strip() for name in listed if _is_code(name) and not name.startswith("no:")]


def digest(asked: list[Asked]) -> str:
    """The hash of everything that is asked for."""
    return hashlib.sha256(json.dumps(sorted(asked)).encode()).hexdigest()


def _asked(key: str, name: str, value: str, folder: Path) -> Asked:
    shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
    text = f"{name} {shown!r}" if name.startswith("the code") else f"{name} = {shown!r}"
    return Asked(key, text, value + (_hash_of(folder / value.strip()) if _is_code(value) else ""))


def _texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The strings in an option's value, each with its place."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, name)
    elif isinstance(value, str):
        yield name, value


def _reaches_out(text: str) -> bool:
    """Whether a text is an address, a file that is code or names commands, or a path that leads out of the folder."""
    parts = text.replace("\\", "/").split("/")
    return "://" in text or _is_code(text) or text.startswith(("/", "~")) or os.path.isabs(text) or ".." in parts


def _is_code(text: str) -> bool:
    return text.strip().endswith((".py", ".json"))


def _hash_of(path: Path) -> str:
    try:
        return f" {hashlib.sha256(path.read_bytes()).hexdigest()}"
    except (OSError, ValueError):
        return " missing"


# -- the person's word ---------------------------------------------------------------------------


def store() -> Path:
    """The folder of this user's words.

    Raises:
        RuntimeError: the user has no home.
    """
    return state_folder() / "allowed"


def word_for(folder: Path) -> dict[str, Any] | None:
    """What the person allowed for a folder: `folder`, `digest`, `asked` and `when`; None where there is no word."""
    with contextlib.suppress(RuntimeError):
        return _read(_file(folder))
    return None


def words() -> list[dict[str, Any]]:
    """All words of this user, by folder."""
    with contextlib.suppress(RuntimeError, OSError):
        found = [word for path in store().glob("*.json") if (word := _read(path)) is not None]
        return sorted(found, key=lambda word: str(word["folder"]))
    return []


def allow(folder: Path, asked: list[Asked]) -> None:
    """Store the person's word for what a folder asks for now.

    Raises:
        OSError: it cannot be written.
        RuntimeError: the user has no home.
    """
    path = _file(folder)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    word = {"folder": str(folder.resolve()), "digest": digest(asked), "asked": [one.text for one in asked]}
    word["when"] = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):  # of a killed process with the same number
        new.unlink()
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(word, file)
    os.replace(new, path)


def revoke(folder: Path) -> bool:
    """Remove the word for a folder; whether there was one.

    Raises:
        OSError: it cannot be removed.
        RuntimeError: the user has no home.
    """
    try:
        _file(folder).unlink()
    except FileNotFoundError:
        return False
    return True


def _file(folder: Path) -> Path:
    return store() / f"{hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()}.json"


def _read(path: Path) -> dict[str, Any] | None:
    """A word from its file; None for a file that somebody else, or git, may have written."""
    try:
        word = json.loads(read_own(path, 1_000_000) or b"")
    except ValueError:
        return None
    fits = isinstance(word, dict) and isinstance(word.get("asked"), list)
    return word if fits and all(isinstance(word.get(key), str) for key in ("folder", "digest", "when")) else None
