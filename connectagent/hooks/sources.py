"""Where plugins come from: their options, and hashes of source files that belong to no distribution."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from connectagent.hooks.entry_points import Installed, imported, is_factory, options_of
from connectagent.hooks.handler import Handler
from connectagent.hooks.options import read_options

DIGITS = 16  # of a hash: to see whether two files are the same
_PLAIN = (str, int, float, bool, type(None), list, dict)


def all_options(plugin: Installed, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an installed plugin: those of the project, and those in code or on the command line."""
    factory = imported(plugin)
    own = read_options(repr(plugin.name), factory, given) if given and is_factory(factory) else {}
    return {**options_of(plugin), **own}


def source_hash(files: Iterable[str]) -> str | None:
    """The first digits of the hash of some files; None where one cannot be read."""
    from hashlib import sha256

    made = sha256()
    with suppress(OSError):
        for file in sorted(files):
            made.update(_content(file, os.stat(file).st_mtime_ns))
        return made.hexdigest()[:DIGITS]
    return None


@lru_cache(maxsize=64)
def _content(file: str, changed: int) -> bytes:
    return Path(file).read_bytes()


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options for people and records: what is not data is named by its type."""
    return {key: one if isinstance(one, _PLAIN) else type(one).__name__ for key, one in sorted(options.items())}


def as_listed(handlers: Iterable[Handler]) -> list[Handler]:
    """The handlers of plugins, those of one that was listed before another first; the built-in ones are left out."""
    return sorted((one for one in handlers if not one.builtin), key=lambda one: one.number)


def sources_of(handlers: Iterable[Handler]) -> dict[str, dict[str, Any]]:
    """What the version of each plugin does not tell.

    Returns:
        By plugin: `options`, if it was given some, and `sha256`, of the files of its handlers, if it has no version.
    """
    listed: dict[str, list[Handler]] = {}
    for handler in handlers:
        listed.setdefault(handler.plugin, []).append(handler)
    found = {}
    for name, own in listed.items():
        source: dict[str, Any] = {"options": plain(own[0].options)} if own[0].options else {}
        if own[0].version is None and (digits := source_hash({str(one.by["file"]) for one in own})) is not None:
            source["sha256"] = digits
        if source:
            found[name] = source
    return found
