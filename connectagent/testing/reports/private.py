"""Takes what is private out of a report: secrets, home folders, the names of users and machines."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterable, Iterator
from typing import Any

from connectagent.errors import ConfigError
from connectagent.output.masking import current
from connectagent.testing.recorded_sessions import masking

HOME, PROJECT, USER, MACHINE, MASKED = "~", "<project>", "[user]", "[machine]", "[masked]"

_BEGINS = r"(?:(?<![\w.~-])|(?<=\\[nrt]))"  # also behind an escaped end of a line
_NAME = r"[^/\s\"'`:;,<>()\[\]{}\\|*?&]+"
_HOMES = re.compile(
    rf"{_BEGINS}(?:/private|/var|/export)?/(?:home|Users)/(?P<unix>{_NAME})"
    rf"|{_BEGINS}[A-Za-z]:(?:\\{{1,4}}|/)Users(?:\\{{1,4}}|/)"
    rf"(?P<windows>[^\\/\"'<>|*?:\n]{{1,40}}(?=[\\/])|{_NAME})"
    r"|%2[Ff](?:home|Users)%2[Ff](?P<quoted>[^/%\s\"'&]+)"
)
_NEAR = ("/home/", "/Users/", "Users\\", ":/Users", "%2Fhome%2F", "%2fhome%2f", "%2FUsers%2F", "%2fUsers%2f")
_ROOT = re.compile(r"(?<![\w.~/-])/root(?=/|\b)")
# They say nothing about who it is, and are words of other texts.
_ANYBODY = frozenset(
    """root user users admin administrator ubuntu debian fedora centos ec2-user runner vagrant docker app node python
    test guest home default public shared agent nobody daemon www-data jenkins git localhost vm host
    work""".split()  # noqa: SIM905
)
_SHORTEST = 3  # letters of a name


class Private:
    """What is private on this machine and in a record.

    Args:
        also: further regular expressions that are masked.
        texts: the record's texts, whose home folders tell further names of users.
        machines: names of machines.
        project: the folders of the project.

    Raises:
        ConfigError: one is no regular expression, or would be found everywhere.
    """

    def __init__(
        self, also: Iterable[str], texts: str, machines: Iterable[str] = (), project: Iterable[str] = ()
    ) -> None:
        self._also = [_pattern(regex) for regex in also]
        with masking():
            self._mask = current()
        home = os.path.expanduser("~")
        folders = sorted({folder for folder in project if folder not in ("/", home, "")}, key=len, reverse=True)
        self._project = _any_of(folders)
        self._home = _any_of([home] if home.count("/") > 1 else [])
        self._users = Names([*_own_names(), *_named_in(texts)])
        self._machines = Names([*machines, socket.gethostname(), socket.gethostname().partition(".")[0]])

    def value(self, value: Any) -> Any:
        """A value without what is private, as data."""
        return self._without(self._mask.value(value))

    def text(self, text: str) -> str:
        """A text without what is private."""
        for pattern in self._also:
            text = pattern.sub(MASKED, text)
        if self._project is not None:
            text = self._project.sub(PROJECT, text)
        if self._home is not None:
            text = self._home.sub(HOME, text)
        if any(word in text for word in _NEAR):
            text = _HOMES.sub(HOME, text)
        if "/root" in text:
            text = _ROOT.sub(HOME, text)
        return self._machines.replaced(self._users.replaced(text, USER), MACHINE)

    def _without(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self._without(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._without(item) for item in value]
        if isinstance(value, int) and not isinstance(value, bool) and self._also:
            text = self.text(str(value))
            return value if text == str(value) else text
        return value


def _pattern(regex: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise ConfigError(f"--also-mask {regex!r} is no regular expression: {error}") from error
    if pattern.search("") is not None:
        raise ConfigError(f"--also-mask {regex!r} matches the empty text: it would be found everywhere")
    return pattern


def _any_of(texts: list[str]) -> re.Pattern[str] | None:
    """A pattern for paths, each up to the end of its last name."""
    return re.compile(rf"(?:{'|'.join(map(re.escape, texts))})(?![\w.-]*\w)") if texts else None


def _own_names() -> Iterator[str]:
    """The names of the user of this process: the one to log in with, and the person's."""
    for variable in ("USER", "LOGNAME", "USERNAME", "SUDO_USER"):
        yield os.environ.get(variable, "")
    yield os.path.basename(os.path.expanduser("~"))
    with contextlib.suppress(ImportError, KeyError, AttributeError):  # Windows; a user without an entry
        import pwd

        entry = pwd.getpwuid(os.getuid())
        yield entry.pw_name
        yield entry.pw_gecos.partition(",")[0]


class Names:
    """Names that are found as words, also in paths and JSON that are escaped.

    Args:
        names: the names; those that are short, or that anybody may have, are left out.
    """

    def __init__(self, names: Iterable[str]) -> None:
        telling = {name.lower() for name in names if len(name) >= _SHORTEST and name.lower() not in _ANYBODY}
        self._names = sorted(telling, key=len, reverse=True)
        begins = r"(?:(?<![^\W_])|(?<=%2[Ff])|(?<=%20)|(?<=\\[nrt]))"
        self._pattern = re.compile(rf"{begins}(?:{'|'.join(map(re.escape, self._names))})(?![^\W_])", re.IGNORECASE)

    def replaced(self, text: str, mark: str) -> str:
        """A text with a mark in place of the names."""
        low = text.lower() if self._names else ""
        return self._pattern.sub(mark, text) if any(name in low for name in self._names) else text


def _named_in(texts: str) -> Iterator[str]:
    """The names of users in the home folders of a long text: around the few words that may be of one."""
    for word in _NEAR:
        at = texts.find(word)
        while at >= 0:
            for match in _HOMES.finditer(texts, max(0, at - 20), at + 100):
                yield next(filter(None, match.groups()), "")
            at = texts.find(word, at + len(word))
