"""Copies of a conversation at many moments, which share what stayed the same."""

from __future__ import annotations

from itertools import zip_longest

from connectagent.data import Message
from connectagent.session.snapshot import clone


class KeptCopies:
    """Copies of conversations, each message copied once as long as it stays the same."""

    def __init__(self) -> None:
        self._last: list[Message] = []

    def of(self, messages: list[Message]) -> list[Message]:
        """A copy of the messages."""
        last = self._last
        if messages[: len(last)] == last:  # in C, where nearly always nothing else happens
            self._last = [*last, *map(clone, messages[len(last) :])]
        else:
            pairs = zip_longest(messages, last[: len(messages)])
            self._last = [then if then == now else clone(now) for now, then in pairs]
        return self._last
