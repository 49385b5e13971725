"""Going on with records of earlier formats, in records of this one."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from connectagent.errors import ConfigError, short_path
from connectagent.records.file import Held, hold, open_to_read
from connectagent.records.format_1 import begins_as_format_1
from connectagent.records.head import forked
from connectagent.records.history import Part, parts_of
from connectagent.records.locks import owner
from connectagent.records.paths import KEYED, create_empty, is_keyed, new_record
from connectagent.records.read import read_record, refuse_odd
from connectagent.records.store import Kept
from connectagent.session.journal import ABANDONED


def is_older(path: Path) -> bool:
    """Whether a record is in an earlier format; a file that is missing or empty is not.

    Raises:
        OSError: it cannot be read.
        ConfigError: it is no regular file.
    """
    try:
        with open_to_read(path) as file:
            return begins_as_format_1(file.read(16))
    except FileNotFoundError:
        return False


def later_record(keyed: Path) -> Path:
    """The file in which a session with a key goes on, if its own is in an earlier format."""
    return keyed.with_name(f"{keyed.stem}{KEYED}2.yaml")  # no key has such a name


def go_on_anew(
    path: Path, agent: str, elsewhere: Kept | None = None, at: tuple[int, int] | None = None, abandon: bool = False
) -> Held:
    """Begin a record of this format with what one of an earlier format has; the new one, locked.

    A session with a key goes on in the one that was begun so before.

    Args:
        path: the earlier one.
        agent: the agent's name.
        elsewhere: the store that has the new one too.
        at: the turn and iteration before which the session goes on; None for the end.
        abandon: whether a last turn that was stopped is left as it is.

    Raises:
        ConfigError: its last turn was stopped, and is not to be left; or it cannot be read.
        SessionBusy: another agent has the new one.
        OSError: it cannot be written.
    """
    if is_keyed(path):
        data = b""  # only made if the later record is empty
        new = later_record(path)
        create_empty(new)
    else:  # nothing is created if the record is refused
        data = _as_later(path, at, abandon)
        new = new_record(agent, time.gmtime())
    held = hold(new, elsewhere)
    try:
        if not held.file.has_turns:
            held.file.begin(data or _as_later(path, at, abandon))
            held.file.complete()
        return held
    except BaseException:
        held.close()
        raise


def _as_later(path: Path, at: tuple[int, int] | None, abandon: bool) -> bytes:
    """An earlier record as one of this format, with an id of its own: see `go_on_anew`."""
    with refuse_odd(path):
        parts = [part for part in parts_of(read_record(path)) if part.is_turn]
    if not abandon:
        _refuse_open(path, parts, at)
    data = forked(path, os.urandom(6).hex())
    return data + _ended_by_nobody(parts[-1]) if abandon and parts and parts[-1].is_open else data


def abandon_open(held: Held) -> None:
    """End the last turn of a locked record if it was stopped: nobody goes on with it.

    Raises:
        ConfigError: the record cannot be read.
        OSError: it cannot be written.
    """
    path = held.file.path
    with refuse_odd(path):
        parts = [part for part in parts_of(read_record(path)) if part.is_turn]
    if parts and parts[-1].is_open:
        held.file.append(_ended_by_nobody(parts[-1]))


def _ended_by_nobody(part: Part) -> bytes:
    """The item that ends a turn that was stopped, and that nobody goes on with."""
    who = json.dumps(owner())
    return f"- turn: {part.number}\n  resumed: true\n  owner: {who}\n  trace: []\n  status: {ABANDONED}\n".encode()


def _refuse_open(path: Path, parts: list[Part], at: tuple[int, int] | None) -> None:
    """Refuse to go on with a turn that was stopped; one that is taken again from its beginning is not gone on with.

    Raises:
        ConfigError: it was stopped.
    """
    number, iteration = at or (parts[-1].number if parts else 0, 1)
    found = next((part for part in reversed(parts) if part.number == number), None)
    if found is None or not found.is_open or not iteration:
        return
    name = short_path(path)
    raise ConfigError(
        f"{path}: turn {number} was stopped, and an earlier version of connectagent wrote its record; this version "
        f"does not go on with such a turn. To leave it as it is, so that the session goes on after it: connectagent "
        f"resume {name} --abandon, or agent.resume(record, abandon=True). To take it again: place={number}"
    )
