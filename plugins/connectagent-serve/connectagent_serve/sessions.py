"""The sessions of the agent that is served, and how many of its turns run at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.exceptions import HTTPException

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Sessions:
    """The sessions of one agent.

    Args:
        agent: whose definition takes the turns.
        concurrency: how many turns run at a time.
    """

    def __init__(self, agent: Any, concurrency: int) -> None:
        self.agent = agent.again(plugins=["no:console"])  # lines of many sessions would stand between each other
        self.concurrency, self.running = concurrency, 0

    def open(self, key: str) -> Any:
        """The session of a key.

        Raises:
            HTTPException: it is none.
        """
        check_key(key)
        return self.agent.for_session(key)

    @contextmanager
    def slot(self) -> Iterator[None]:
        """One of the turns that may run at a time; it is taken where the `with` begins.

        Raises:
            HTTPException: all are taken.
        """
        if self.running >= self.concurrency:
            raise HTTPException(429, "too many turns run", {"Retry-After": "1"})
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1


def check_key(key: str) -> None:
    """Refuse a key that could be no session's.

    Raises:
        HTTPException: it is none.
    """
    if not KEY.fullmatch(key):
        raise HTTPException(400, "a session's id has 1 to 128 letters, digits, '.', '_' and '-'")
