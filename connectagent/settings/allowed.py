"""What a project's file asks for beyond its own folder, and what the person has allowed.

The person's word is for one folder and one content, as with direnv: a changed address, or changed code, needs a new
one. The user's state folder has one file for each project, which nobody else may write.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from connectagent.settings.names import plugin_file
from connectagent.settings.own import read_own, read_regular, state_folder

OFF = ("0", "off", "false", "no")
_FILE = "(file)"  # the key of what a single file asks for
_PATHS = re.compile(r"[\w@%+,.-][\w@%+,./-]*")  # what may be the path of a file
_COMMANDS = {"command", "check"}  # options of plugins that are run
_MOST_FILE = 1 << 26  # bytes of a file that are hashed


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


def _asked_by(key: str, value: object, folder: Path) -> list[Asked]:
    """What one setting, or one table of options, asks for."""
    if isinstance(value, dict):
        return [Asked(key, text, content) for text, content in _of_options(key, value, folder)]
    if key == "plugins":
        files = [named for name in _strings(value) if (named := plugin_file(name)) is not None]
        return [_asked(key, "the code of plugin", file, folder) for _, file in files]
    text = str(value)
    if key == "gateway_key":
        return [Asked(key, f"{key} (its value is not shown)", text)]
    if key == "mask" and text.strip().lower() in OFF:
        return [Asked(key, "mask = off: secrets are written and shown", "off")]
    return [_asked(key, key, text, folder)] if _asks(key, text, folder) else []


def _asks(key: str, text: str, folder: Path) -> bool:
    """Whether an address, a folder or a model needs the person's word."""
    if key == "model":
        return _is_file(text, folder)
    return key == "gateway_url" or (key == "dir" and (_reaches_out(text) or _leads_out(text, folder)))


def asked_for_by_text(path: Path, text: str) -> list[Asked]:
    """What a file that says what is to run asks for: itself, and the files of the project that it names.

    Args:
        path: the file.
        text: what is in it.
    """
    asked = [Asked(_FILE, f"what {path.name} says", hashlib.sha256(text.encode()).hexdigest())]
    root = root_of(path)
    folders = [folder for folder in path.parents if folder.is_relative_to(root)]
    for name in sorted({end for found in _words(text) for end in _ends(found)}):
        found = next((folder / name for folder in folders if _is_inside(folder / name, root)), None)
        if found is not None:
            asked.append(Asked(_FILE, f"the file {str(found.relative_to(root))!r}", f"{name}{_hash_of(found)}"))
    return asked


def _words(text: str) -> Iterator[str]:
    """What may be a path in a file: as it stands there, and as a shell reads the strings of JSON."""
    yield from _PATHS.findall(text)
    with contextlib.suppress(ValueError, RecursionError):
        for command in _texts(json.loads(text)):
            yield from _PATHS.findall(command)
            with contextlib.suppress(ValueError):  # a quote without its end
                yield from shlex.split(command)


def _texts(value: object) -> Iterator[str]:
    """The strings in a value."""
    for one in _flat(value):
        if isinstance(one, dict):
            yield from _texts([*one.values()])
        elif isinstance(one, str):
            yield one


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


def _of_options(place: str, table: dict[str, Any], folder: Path, of_command: bool = False) -> Iterator[tuple[str, str]]:
    """What a table of options asks for, each with what is allowed: the whole table, and the files that it names.

    What stands beside a command or an address, such as arguments, environment and headers, is part of it. All that
    stands beside a command is shown.
    """
    content = json.dumps(table, sort_keys=True, default=str)
    commands = _COMMANDS & set(table)
    for name in commands:
        yield f"the command {place}.{name} = {_command(table[name], table.get('args'))!r}", content
    for name, value in table.items():
        for inner in _flat(value):
            if isinstance(inner, dict):
                yield from _of_options(f"{place}.{name}", inner, folder, of_command or bool(commands))
        is_shown = name in commands or (name == "args" and isinstance(value, list))
        beside = (of_command or bool(commands)) and not is_shown
        for text in [*_strings(value), *([] if beside else [name])]:
            if beside or _needs_word(text, folder):
                yield f"{place}.{name} = {_shown(text, folder)}", content + _files_called(text, folder)


def _needs_word(text: str, folder: Path) -> bool:
    """Whether a text in a table of options needs the person's word."""
    return _reaches_out(text) or _is_file(text, folder) or _leads_out(text, folder)


def _command(command: object, arguments: object) -> str:
    words = [command, *arguments] if isinstance(arguments, list) else [command]
    return " ".join(" ".join(map(str, word)) if isinstance(word, list) else str(word) for word in words)


def digest(asked: list[Asked]) -> str:
    """The hash of everything that is asked for."""
    return hashlib.sha256(json.dumps(sorted(asked)).encode()).hexdigest()


def _asked(key: str, name: str, value: str, folder: Path) -> Asked:
    text = f"{name} {'' if name.startswith('the code') else '= '}{_shown(value, folder)}"
    return Asked(key, text, value + _files_called(value, folder))


def _shown(value: str, folder: Path) -> str:
    """A value for the person, and where it leads by a link."""
    leads = not _reaches_out(value) and _leads_out(value, folder)
    return f"{value!r}, a link to {os.path.realpath(folder / value)!r}" if leads else repr(value)


def _flat(value: object) -> Iterator[Any]:
    """A value, or what is in its lists."""
    if isinstance(value, list):
        for inner in value:
            yield from _flat(inner)
    else:
        yield value


def _strings(value: object) -> list[str]:
    return [one for one in _flat(value) if isinstance(one, str)]


def _reaches_out(text: str) -> bool:
    """Whether a text is an address, a file that is code or names commands, or a path that leads out of the folder.

    A plugin may fill in `${VARIABLE}`: with a secret, or with a part of an address.
    """
    parts = text.replace("\\", "/").split("/")
    away = text.startswith(("/", "~")) or os.path.isabs(text) or ".." in parts
    return "://" in text or "${" in text or away or text.strip().endswith((".py", ".json"))


def _leads_out(text: str, folder: Path) -> bool:
    """Whether a path in the folder leads out of it by a link."""
    with contextlib.suppress(ValueError):  # a null byte
        real = os.path.realpath(folder)
        return os.path.commonpath([real, os.path.realpath(folder / text)]) != real
    return True


def _is_file(text: str, folder: Path) -> bool:
    """Whether a text names a file of the folder, or of the current one, where some plugins look; also as a model."""
    names = text, text.partition("/")[2]
    return any(name and (os.path.isfile(folder / name) or os.path.isfile(name)) for name in names)


def _files_called(text: str, folder: Path) -> str:
    """The hashes of the files that a text may name: in the folder, and in the current one if that is another."""
    names = text.strip(), text.strip().partition("/")[2]
    found = dict.fromkeys(os.path.abspath(os.path.join(place, name)) for name in names for place in (folder, os.curdir))
    return "".join(_hash_of(path) for path in found if os.path.lexists(path) and not os.path.isdir(path))


def _hash_of(path: str | Path) -> str:
    try:
        return f" {hashlib.sha256(read_regular(path, _MOST_FILE)).hexdigest()}"
    except OSError as error:
        if error.errno != errno.EFBIG:
            return " no file"
        return f" {os.path.getsize(path)} bytes, written {os.path.getmtime(path)}"


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
