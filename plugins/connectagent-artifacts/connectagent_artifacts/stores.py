"""Where artifacts are kept: what a store is, one of files, and one in memory."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from connectagent import ConnectAgentError
from connectagent.settings import co_folder

_STALE_S = 24 * 3600  # what a killed process left half-made is removed after this time
_ATTEMPTS = 1000  # at a number, while other processes save and delete the same name
# A folder that is renamed to one that is there: EACCES is Windows' word for it.
_BUSY = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT, *([errno.EACCES] if os.name == "nt" else []))


class ArtifactError(ConnectAgentError):
    """An artifact cannot be saved or read, or has a name that cannot be used."""


class ArtifactNotFound(ArtifactError, LookupError):
    """There is no artifact of that name and version."""


@dataclass(frozen=True)
class Artifact:
    """One version of a file.

    Args:
        name: as it was given, `user:` included.
        version: from 0 upwards.
        data: the content.
        mime_type: for example `text/csv`.
        timestamp: when it was saved, in Unix seconds.
    """

    name: str
    version: int
    data: bytes = field(repr=False)
    mime_type: str
    timestamp: float

    @property
    def text(self) -> str:
        """The content as text.

        Raises:
            UnicodeDecodeError: it is not UTF-8.
        """
        return self.data.decode()


@dataclass(frozen=True)
class Scope:
    """Whose names they are: of one session, or, with None as session, of all sessions of a user."""

    user: str
    session: str | None = None


class ArtifactStore(Protocol):
    """Where artifacts are kept. Names come checked, and without `user:`; calls may come from many threads."""

    def save(self, scope: Scope, name: str, data: bytes, mime_type: str) -> int:
        """Keep data as the next version of a name, which nobody else gets, and return its number."""

    def load(self, scope: Scope, name: str, version: int | None = None) -> Artifact | None:
        """One version, or the newest; None if there is none."""

    def names(self, scope: Scope) -> list[str]:
        """The names that have a version."""

    def versions(self, scope: Scope, name: str) -> list[int]:
        """The versions of a name, in ascending order."""

    def delete(self, scope: Scope, name: str) -> bool:
        """Remove all versions of a name; whether there was one."""


class InMemoryStore:
    """Artifacts that are gone with the process: for tests."""

    def __init__(self) -> None:
        self._kept: dict[Scope, dict[str, list[Artifact]]] = {}
        self._lock = threading.Lock()

    def save(self, scope: Scope, name: str, data: bytes, mime_type: str) -> int:
        """Keep data as the next version of a name."""
        with self._lock:
            versions = self._kept.setdefault(scope, {}).setdefault(name, [])
            versions.append(Artifact(name, len(versions), data, mime_type, time.time()))
            return len(versions) - 1

    def load(self, scope: Scope, name: str, version: int | None = None) -> Artifact | None:
        """One version, or the newest; None if there is none."""
        with self._lock:
            versions = self._kept.get(scope, {}).get(name, [])
            wanted = len(versions) - 1 if version is None else version
            return versions[wanted] if 0 <= wanted < len(versions) else None

    def names(self, scope: Scope) -> list[str]:
        """The names that have a version."""
        with self._lock:
            return list(self._kept.get(scope, {}))

    def versions(self, scope: Scope, name: str) -> list[int]:
        """The versions of a name, in ascending order."""
        with self._lock:
            return list(range(len(self._kept.get(scope, {}).get(name, []))))

    def delete(self, scope: Scope, name: str) -> bool:
        """Remove all versions of a name; whether there was one."""
        with self._lock:
            return self._kept.get(scope, {}).pop(name, None) is not None


class FileStore:
    """Artifacts as files: `<folder>/<user>/sessions/<session>/<name>/<version>/data.pdf` and `about.json`.

    A version is a folder that is made elsewhere and renamed to its number. So it is whole as soon as it can be
    seen, and of two processes that want the same number, one gets it and the other the next.

    Args:
        folder: where; None for `artifacts` in the data folder, `.co` or what the setting `dir` names.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = None if folder is None else Path(os.path.abspath(folder))
        self._ours = folder is None

    @property
    def folder(self) -> Path:
        """Where the files are; found out at first use, so that a tool that changes the folder moves nothing."""
        if self._folder is None:
            self._folder = co_folder("artifacts")
        return self._folder

    def save(self, scope: Scope, name: str, data: bytes, mime_type: str) -> int:
        """Keep data as the next version of a name.

        Raises:
            ArtifactError: the files cannot be written; nothing is left of them.
        """
        place, made = self._place(scope, name), self.folder / ".new" / secrets.token_hex(8)
        about = {"name": name, "mime_type": mime_type, "bytes": len(data), "timestamp": time.time()}
        try:
            self._prepare()
            made.mkdir(mode=0o700)
            _write(made / _data_name(name), data)
            _write(made / "about.json", json.dumps(about).encode())
            return self._publish(made, place)
        except OSError as error:
            where = error.filename or place
            raise ArtifactError(f"artifact {name!r} is not saved: {error.strerror or error}: {where}") from error
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def load(self, scope: Scope, name: str, version: int | None = None) -> Artifact | None:
        """One version, or the newest; None if there is none.

        Raises:
            ArtifactError: the files are there and cannot be read.
        """
        versions = self.versions(scope, name)
        wanted = version if version is not None else versions[-1] if versions else 0
        if wanted not in versions:
            return None
        folder = self._place(scope, name) / str(wanted)
        for attempt in range(_ATTEMPTS):
            try:
                about = json.loads((folder / "about.json").read_bytes())
                data = (folder / _data_name(name)).read_bytes()
                return Artifact(name, wanted, data, str(about["mime_type"]), float(about["timestamp"]))
            except (OSError, ValueError, KeyError, TypeError) as error:
                if not folder.exists():  # deleted just now
                    return None
                # A missing file: the version may have been deleted, and saved anew, between two of these lines.
                if not isinstance(error, FileNotFoundError) or attempt == _ATTEMPTS - 1:
                    reason = f"{type(error).__name__}: {error}"
                    raise ArtifactError(f"{folder} is damaged, restore or remove it: {reason}") from error
        raise AssertionError("unreachable: the last attempt returns or raises")

    def names(self, scope: Scope) -> list[str]:
        """The names that have a version."""
        folder = self._home(scope)
        try:
            found = [entry for entry in os.listdir(folder) if not entry.startswith(".")]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ArtifactError(f"{folder} cannot be read: {error.strerror or error}") from error
        names = (_decoded(folder / entry) for entry in found if _numbers(folder / entry))
        return [name for name in names if name is not None]

    def versions(self, scope: Scope, name: str) -> list[int]:
        """The versions of a name, in ascending order."""
        return _numbers(self._place(scope, name))

    def delete(self, scope: Scope, name: str) -> bool:
        """Remove all versions of a name, at once for whoever looks; whether there was one."""
        place, gone = self._place(scope, name), self.folder / ".new" / secrets.token_hex(8)
        deleted = bool(_numbers(place))
        try:
            self._prepare()
            os.rename(place, gone)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise ArtifactError(f"artifact {name!r} is not deleted: {error.strerror or error}: {place}") from error
        shutil.rmtree(gone, ignore_errors=True)
        return deleted

    def _prepare(self) -> None:
        """Make the folder for what is not whole yet, out of git and of others' sight; clear what was left in it."""
        base, new = self.folder.parent, self.folder / ".new"
        if not new.is_dir():
            fresh = not base.exists()
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            new.mkdir(mode=0o700, exist_ok=True)
            if self._ours and (fresh or base.name == ".co"):  # a folder of the user's own must not vanish from git
                with contextlib.suppress(FileExistsError), (base / ".gitignore").open("x") as file:
                    file.write("*\n")
        for entry in os.listdir(new):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - os.stat(new / entry).st_mtime > _STALE_S:
                    shutil.rmtree(new / entry, ignore_errors=True)

    def _publish(self, made: Path, place: Path) -> int:
        """Rename a finished folder to the next number that is free."""
        for attempt in range(_ATTEMPTS):
            version = [-1, *_numbers(place)][-1] + 1
            try:
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.rename(made, place / str(version))
                return version
            except OSError as error:  # others took the number, or deleted the name, between two of these lines
                if error.errno not in _BUSY or not made.exists() or attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _home(self, scope: Scope) -> Path:
        user = self.folder / _encoded(scope.user)
        return user / "user" if scope.session is None else user / "sessions" / _encoded(scope.session)

    def _place(self, scope: Scope, name: str) -> Path:
        return self._home(scope) / _encoded(name)


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.")
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)")


def _encoded(name: str) -> str:
    """A name as that of one file, another one for each name on every file system.

    Capitals are encoded since some systems take `A` for `a`, all that is not ASCII since some take `e` with an
    accent for the letter of its own, a dot at the end since Windows leaves it out.
    """
    letters = [c if c in _PLAIN else "".join(f"%{b:02x}" for b in c.encode("utf-8", "surrogatepass")) for c in name]
    if letters[0] == "." or _DEVICES.match(name):
        letters[0] = f"%{ord(name[0]):02x}"
    if letters[-1] == ".":
        letters[-1] = "%2e"
    encoded = "".join(letters)
    if len(encoded) <= 140:  # bytes; some encrypted file systems take no more than 143
        return encoded
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{re.sub('%.?$', '', encoded[:60])}~{digest}"  # no encoded name has a ~


def _decoded(place: Path) -> str | None:
    """The name that a folder of versions stands for; None where it is gone."""
    if "~" not in place.name:
        return urllib.parse.unquote(place.name)
    for version in _numbers(place):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads((place / str(version) / "about.json").read_bytes())["name"])
    return None


def _numbers(place: Path) -> list[int]:
    try:
        return sorted(int(entry) for entry in os.listdir(place) if re.fullmatch("0|[1-9][0-9]{0,17}", entry))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ArtifactError(f"{place} cannot be read: {error.strerror or error}") from error


def _data_name(name: str) -> str:
    """The name of the file itself: with the name's ending, so that it opens with a double click."""
    ending = re.search(r"\.[A-Za-z0-9]{1,8}$", name)
    return f"data{ending[0]}" if ending else "data"


def _write(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # else a power cut could leave a version that is seen and empty
