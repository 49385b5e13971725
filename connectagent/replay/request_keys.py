"""Keys of requests: the same for equal ones as the record has them, whichever model is asked."""

from __future__ import annotations

from typing import Any

from connectagent.data import Message
from connectagent.records.requests import Sending, Sent
from connectagent.records.sent import Digests, mark_of
from connectagent.session.edits import shown_options
from connectagent.session.snapshot import clone


class RecordedKeys:
    """The keys of an agent's recorded requests, in order; what is as in the one before is not looked at again."""

    def __init__(self) -> None:
        self._digests = Digests()
        self._before: Sending | None = None
        self._marks: dict[int, tuple[Sent, bytes]] = {}  # by Python's id of a message as it was sent

    def of(self, sending: Sending) -> str:
        """The key of the next request."""
        known, first = sending.known, sending.pieces[0] if sending.pieces else None
        if sending.shared(self._before) < self._digests.count:
            self._digests = Digests()
        self._before, start = sending, self._digests.count
        lead = first.stop if isinstance(first, range) and not first.start else 0
        marks = [self._mark(sent) for sent in sending.messages(start)]
        return self._digests.of(marks, lead - start, None, known.schemas(), shown_options(known.options or {}),
                                known.output)  # fmt: skip

    def _mark(self, sent: Sent) -> bytes:
        found = self._marks.get(id(sent))
        if found is None:
            found = self._marks[id(sent)] = sent, mark_of(sent[0])
        return found[1]


class LiveKeys:
    """The keys of the requests of a run; a message that has stayed as it was is not encoded again."""

    def __init__(self) -> None:
        self._marks: dict[int, tuple[Message, Message, bytes]] = {}  # by Python's id: the message, a copy, its mark

    def of(self, messages: list[Message], tools: list[Any], options: dict[str, Any] | None, output: Any) -> str:
        """The key of a request."""
        marks = list(map(self._mark, messages))
        return Digests().of(marks, 0, None, tools, shown_options(options or {}), output)

    def _mark(self, message: Message) -> bytes:
        found = self._marks.get(id(message))
        if found is None or found[1] != message:
            found = self._marks[id(message)] = message, clone(message), mark_of(message)
        return found[2]
