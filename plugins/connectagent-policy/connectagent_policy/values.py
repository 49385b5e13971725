"""What a value means: a path, a host or a command, whatever it is written like."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shlex
import socket
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

_SIMPLE = re.compile(r"[A-Za-z0-9_@%+:,./=\- ]+|(?:[A-Za-z0-9_@%+:,./=\- ]|'[^']*')+")
_DEPTH = 50
# Of an address with another scheme nobody knows here whether its host is what is asked: file://localhost/etc/passwd.
_SCHEMES = {"", "http", "https", "ws", "wss", "ftp", "ftps", "sftp", "ssh", "git", "git+ssh", "git+https"}
# Programs that run others, or code, which they name in their arguments.
_RUNNERS = re.compile(
    r"(ba|da|z|k|fi)?sh|busybox|toybox|env|sudo|doas|su|nice|ionice|nohup|timeout|time|stdbuf|setsid|chroot|unshare|"
    r"command|builtin|exec|eval|xargs|parallel|find|fd|g?awk|sed|ssh|docker|podman|make|npx|uvx|watch|script|strace|"
    r"(python|perl|ruby|node|deno|php|lua)[\d.]*"
)
_V4_IN_V6 = tuple(ipaddress.ip_network(one) for one in ("::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16"))


def strings(value: Any, depth: int = 0) -> Iterator[str]:
    """All texts in a value, keys too, however deep. A value that is too deep is a text that no rule allows."""
    if depth > _DEPTH:
        yield "\0"
    elif isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode(errors="replace")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from strings(key, depth + 1)
            yield from strings(inner, depth + 1)
    elif isinstance(value, list | tuple | set):
        for inner in value:
            yield from strings(inner, depth + 1)
    elif value is None or isinstance(value, bool | int | float):
        yield json.dumps(value)
    else:
        yield str(value)


def _odd(text: str) -> bool:
    """Whether a text has control characters, or characters that others may read as another one."""
    return not text.isprintable() or unicodedata.normalize("NFKC", text) != text


def inside(text: str, folders: list[str], every: bool) -> bool:
    """Whether a path lies in one of the folders, with links followed.

    Args:
        text: the path as the model wrote it.
        folders: paths; a pattern such as `**/.env` fits a name at any depth.
        every: whether doubt means no (to allow) or yes (to deny).
    """
    if not text or _odd(text) or text.startswith("~") or any(sign in text for sign in "\\%$*?[{"):
        return not every
    if "://" in text:
        return not every
    path = os.path.realpath(text)
    return any(_within(path, os.path.normpath(text), folder, every) for folder in folders)


def _within(path: str, written: str, folder: str, every: bool) -> bool:
    if folder.startswith("**/"):
        names = {part.casefold() for one in (path, written) for part in one.split("/")}
        return folder[3:].casefold() in names
    root = os.path.realpath(os.path.expanduser(folder))
    if not every:  # on some file systems these are the same
        path, root = path.casefold(), root.casefold()
    return path == root or path.startswith(root.rstrip("/") + "/")


def folded(text: str) -> str:
    """A text for a comparison that doubt must not pass: without case, styles, invisible characters and white space."""
    shown = "".join(sign for sign in unicodedata.normalize("NFKC", text) if unicodedata.category(sign) != "Cf")
    return shown.strip().casefold()


def numbers(text: str) -> list[str]:
    """The ways in which JSON may write a whole number, `1000` and `1000.0`; [] for any other text."""
    if not re.fullmatch(r"-?[0-9]{1,300}(\.0+)?", text):
        return []
    whole = text.partition(".")[0]
    return [whole, f"{whole}.0"]


def host_of(text: str) -> str:
    """The host of an address in its plain form; "" for what is no clear address, which no rule allows."""
    text = text.strip(" ")
    if _odd(text) or "\\" in text or " " in text:
        return ""
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        host = (parts.hostname or "").rstrip(".").lower()
        _ = parts.port
    except ValueError:
        return ""
    if parts.username is not None or parts.password is not None or unquote(host) != host or not host.isascii():
        return ""
    return "" if parts.scheme not in _SCHEMES else _address(host)


def _address(host: str) -> str:
    """A host in its plain form; "" for what is none, or what programs read differently."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        mapped = getattr(address, "ipv4_mapped", None)
        hides = address.version == 6 and int(address) > 1 and any(address in one for one in _V4_IN_V6)
        return "" if hides else str(mapped or address)
    with suppress(OSError):  # 127.1, 0x7f000001 and 2130706433 are addresses too; 0177.0.0.1 is one of two
        found = socket.inet_ntoa(socket.inet_aton(host))
        return "" if re.search(r"(^|\.)0[0-9]", host) else found
    return host if re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", host) else ""


def program_of(text: str) -> list[str]:
    """The words of a line that is one simple command; [] for every other line."""
    if _odd(text) or not _SIMPLE.fullmatch(text):
        return []
    words = shlex.split(text)
    return [] if not words or "=" in words[0] or any(" " in word for word in words[:2]) else words


def runs_others(program: str) -> bool:
    """Whether a program runs others, or code, so that its name says little."""
    return _RUNNERS.fullmatch(program.rpartition("/")[2].casefold()) is not None
