"""What models were sent, without a copy of the conversation for each request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connectagent.data import Message
from connectagent.session.moments import Moment
from connectagent.session.snapshot import clone

Request = tuple[list[Message], list[dict[str, Any]]]


class Requests(Sequence[Request]):
    """What models were sent, each as its messages and its tools, which are made when they are looked at."""

    def __init__(self) -> None:
        self._all: list[tuple[list[Message] | None, Moment[Any], list[dict[str, Any]]]] = []

    def add(self, own: list[Message] | None, moment: Moment[Any], tools: list[dict[str, Any]]) -> None:
        """Add a request.

        Args:
            own: its messages, if they are not those of the conversation.
            moment: the conversation.
            tools: its tools.
        """
        last = self._all[-1][2] if self._all else None
        self._all.append((own, moment, last if last is not None and last == tools else clone(tools)))

    def clear(self) -> None:
        """Forget them."""
        self._all.clear()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._made(*one) for one in self._all[index]]
        return self._made(*self._all[index])

    def _made(self, own: list[Message] | None, moment: Moment[Any], tools: list[dict[str, Any]]) -> Request:
        return [one[0] for one in moment.since()] if own is None else own, tools
