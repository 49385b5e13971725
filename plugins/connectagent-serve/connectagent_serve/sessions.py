"""The sessions of the agent that is served, and how many of its turns run at a time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from connectagent import Store, Tool
from connectagent_serve.frontend import speakers
from connectagent_serve.refusals import Refused
from connectagent_serve.state import SharedState

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Sessions:
    """The sessions of one agent.

    Args:
        agent: whose definition takes the turns.
        concurrency: how many turns run at a time.
        shared: the state that front ends share.
        store: keeps the sessions too, or None.
    """

    def __init__(self, agent: Any, concurrency: int, shared: SharedState, store: Store | None = None) -> None:
        # Not on the terminal: lines of many sessions would stand between each other.
        self.agent = agent.again([shared] if shared.keys else None, quiet=True)
        self.concurrency, self.ending, self._store = concurrency, False, store
        self._running: list[asyncio.Task[Any] | None] = []  # the task of each turn

    def open(self, key: str, tools: list[Tool] | None = None) -> Any:
        """The session of a key.

        Args:
            key: the key.
            tools: more of them, for each agent that may answer the user.

        Raises:
            Refused: it is none.
        """
        check_key(key)
        session = self.agent.for_session(key, self._store)
        if tools:
            for agent in speakers(session.agent):
                agent.add_tool(tools)
        return session

    @contextmanager
    def slot(self) -> Iterator[None]:
        """One of the turns that may run at a time; it is taken where the `with` begins.

        Raises:
            Refused: all are taken, or the server ends.
        """
        if self.ending:
            raise ended()
        if len(self._running) >= self.concurrency:
            said = f"{self.concurrency} turns run, and no more at a time: ask again later"
            raise Refused(429, said, "too_many_turns", {"Retry-After": "1"})
        task = asyncio.current_task()
        self._running.append(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self.ending or task is None:
                raise
            task.uncancel()
            raise ended() from None
        finally:
            self._running.remove(task)

    def end(self) -> None:
        """Stop all turns, and begin no more. Their records say so, and the same requests go on with them later."""
        self.ending = True
        for task in {task for task in self._running if task is not None}:
            task.cancel()


def ended() -> Refused:
    """What is said of a turn that the end of the server has stopped."""
    headers = {"Retry-After": "5", "X-Should-Retry": "false"}
    return Refused(503, "the server ends: the same request goes on with the turn when it is back", "ended", headers)


def check_key(key: str) -> None:
    """Refuse a key that could be no session's.

    Raises:
        Refused: it is none.
    """
    if not KEY.fullmatch(key):
        raise Refused(400, "a session's id has 1 to 128 of a-z, A-Z, 0-9, '.', '_' and '-', the first no mark")
