"""Whose code is running here: the package's one context variable.

A frame names the turn that the code belongs to, and the place in it. A thread that is started with a copy of the
context stays in the frame; any other thread has none.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from contextvars import ContextVar, Token
from functools import lru_cache
from threading import get_ident
from typing import Any, Protocol

from connectagent.data import AgentBase, ToolCall

_APART = re.compile("[%/~#]")


def in_id(name: Any) -> str:
    """A name as a part of an id, with separators escaped."""
    return _APART.sub(lambda found: f"%{ord(found[0]):02X}", str(name))


def handler_in_id(plugin: Any, handler: Any) -> str:
    """A handler as a part of an id."""
    return f"{in_id(plugin)}.{in_id(handler)}"


_of_handler = lru_cache(maxsize=1024)(handler_in_id)


class FrameAgent(Protocol):
    """The agent whose code runs in a frame."""

    @property
    def name(self) -> str: ...
    @property
    def face(self) -> AgentBase: ...
    @property
    def shows_calls(self) -> bool: ...


class HandlersRun(Protocol):
    """One run of the handlers of a hook."""

    def ran(self, by: dict[str, Any], builtin: bool = False, edited: bool = False) -> None:
        """Note that a handler has run."""


class FrameTurn(Protocol):
    """The turn that code belongs to.

    Attributes:
        innermost: the frame in which code of the turn's own thread runs.
        thread, ident: that thread.
    """

    innermost: Frame
    thread: threading.Thread
    ident: int

    @property
    def id(self) -> str: ...
    @property
    def over(self) -> bool: ...
    @property
    def asked(self) -> Frame | None: ...
    @property
    def agent(self) -> FrameAgent: ...
    @property
    def runs(self) -> Mapping[str, HandlersRun]: ...
    def is_own_thread(self) -> bool:
        """Whether this is the thread in which the turn ran."""

    def retrying(self, retry: dict[str, Any]) -> None:
        """Trace that a provider's SDK waits before it repeats a failed request."""


class FrameBody(Protocol):
    """A parallel body, which runs in a thread of its own and with a copy of the state."""

    @property
    def left(self) -> bool: ...
    @property
    def over(self) -> bool: ...
    @property
    def by(self) -> dict[str, Any] | None: ...
    @property
    def state(self) -> dict[str, Any]: ...
    @property
    def waited_s(self) -> float: ...
    def session(self) -> Mapping[str, Any]:
        """`current_session` for the code of the body."""


class Frame:
    """Where code runs inside a turn, and whose it is: `with frame:` runs code in it, one block at a time.

    Args:
        turn: the turn.
        id: the place of the operation that runs here, or of one handler in it.
        by: the handler or tool; None for the loop's own code.
        account: is charged for model calls made here; None if no account is kept.
        body: the parallel body that runs here, in a thread of its own and with a copy of the state; None on the turn's
            own thread.
        call: the tool call that runs here, if it is one of this turn.
        place: the operation to which changes made here belong; by default `id`.
    """

    __slots__ = ("_around", "_outer", "account", "body", "by", "call", "id", "place", "turn")

    def __init__(
        self,
        turn: FrameTurn,
        id: str,
        by: dict[str, Any] | None = None,
        account: Any = None,
        body: FrameBody | None = None,
        call: ToolCall | None = None,
        place: str | None = None,
    ) -> None:
        self.turn = turn
        self.id = id
        self.by = by
        self.account = account
        self.body = body
        self.call = call
        self.place = id if place is None else place

    def inside(self, id: str, call: ToolCall | None = None) -> Frame:
        """The frame of an operation of this turn that begins here; `call`: the tool call that it is."""
        outer = CURRENT.get()
        if outer is None:
            return Frame(self.turn, id, None, None, None, call)
        if outer.turn is not self.turn:
            return Frame(self.turn, id, None, outer.account, None, call)
        return Frame(self.turn, id, None, outer.account, outer.body, call or outer.call)

    def of_handler(self, by: dict[str, Any], account: Any) -> Frame:
        """The frame of one handler that runs here."""
        id = f"{self.id}/{_of_handler(by.get('plugin'), by.get('handler'))}"
        return Frame(self.turn, id, by, account, self.body, self.call, self.place)

    def in_body(self, body: FrameBody | None) -> Frame:
        """The same frame in a parallel body; None: on the turn's own thread."""
        return Frame(self.turn, self.id, self.by, self.account, body, self.call, self.place)

    def __enter__(self) -> Frame:  # not a generator: contextlib would set attributes of exceptions that pass
        turn, self._around = self.turn, None
        if turn.ident == get_ident():
            self._around, turn.innermost = turn.innermost, self
        self._outer: Token[Frame | None] = CURRENT.set(self)
        return self

    def __exit__(self, *raised: object) -> None:
        CURRENT.reset(self._outer)
        if self._around is not None and self.turn.ident == get_ident():  # Ctrl-C may have left this thread behind
            self.turn.innermost = self._around

    def __repr__(self) -> str:
        return f"Frame({self.id!r})"


CURRENT: ContextVar[Frame | None] = ContextVar("connectagent_frame", default=None)


current = CURRENT.get
"""The frame in which this code runs; None outside of turns, and in threads without one."""
