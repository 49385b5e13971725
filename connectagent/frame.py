"""Whose code is running here: the package's one context variable.

A frame says which turn the code belongs to and where in it the code runs. Threads that are started with a copy of
the context stay in their frame; others are in none.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from threading import get_ident
from typing import Any


class Frame:
    """Code of others, or of the loop, that runs inside a turn. It never changes.

    Args:
        turn: the turn.
        id: the place of the operation that runs here, or the place of one handler in it.
        by: whose code it is; None for the loop's own.
        account: who pays for model calls that are made here; None where nobody keeps one.
        body: what runs here beside others of its turn, in a thread of its own and with a copy of the state; None for
            what runs on the turn's own thread.
        place: the operation to which changes belong that are made here; `id`, where it is not one handler's frame.
    """

    __slots__ = ("account", "body", "by", "id", "place", "turn")

    def __init__(
        self,
        turn: Any,
        id: str,
        by: dict[str, Any] | None = None,
        account: Any = None,
        body: Any = None,
        place: str | None = None,
    ) -> None:
        self.turn, self.id, self.by, self.account, self.body = turn, id, by, account, body
        self.place = id if place is None else place

    def of_handler(self, by: dict[str, Any], account: Any) -> Frame:
        """The frame of one handler that runs here."""
        id = f"{self.id}/{by.get('plugin')}.{by.get('handler')}"
        return Frame(self.turn, id, by, account, self.body, self.place)

    def __repr__(self) -> str:
        return f"Frame({self.id!r})"


CURRENT: ContextVar[Frame | None] = ContextVar("connectagent_frame", default=None)


def current() -> Frame | None:
    """The frame in which this code runs, or None outside of turns and in threads that know of none."""
    return CURRENT.get()


def enter(frame: Frame | None) -> Token[Frame | None]:
    """Let what follows run in a frame, until `leave`."""
    if frame is not None and frame.turn.ident == get_ident():
        frame.turn.innermost = frame
    return CURRENT.set(frame)


def leave(token: Token[Frame | None]) -> None:
    """Go back to the frame that was left by `enter`."""
    CURRENT.reset(token)
    here = CURRENT.get()
    if here is not None and here.turn.ident == get_ident():
        here.turn.innermost = here


class within:  # used as a function; not a generator: contextlib would set attributes of exceptions that pass
    """Run what follows in a frame: `with within(frame):`."""

    __slots__ = ("_frame", "_token")

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def __enter__(self) -> Frame:
        self._token = enter(self._frame)
        return self._frame

    def __exit__(self, *raised: object) -> None:
        leave(self._token)
