"""Requests to models, each as what differs from the one before: nothing is copied that two of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from connectagent.data import Message, TraceEntry
from connectagent.records.sent import SentSoFar
from connectagent.session.history import Line
from connectagent.session.instruction import with_instruction
from connectagent.session.lines import Said
from connectagent.session.moments import Moment
from connectagent.session.snapshot import By

NEW, CHANGED, SAME = "new", "changed", "same"

Sent = tuple[Message, By, Line | None, int]
"""A message that was sent, by whom, its line, and how often that was changed then."""

Piece = range | Sent
"""Messages of the conversation, by their places in it, or a message of one request only."""


@dataclass(slots=True)
class SentMessage:
    """One message of a request.

    Args:
        message: the message.
        by: who made it, or changed it last; {} where it is not known.
        state: since the call before: `new`, `changed` or `same`.
        before: of a changed one: what it was.
        line: its line in the conversation; None for a message of this request only.
        changes: how many changes its line had then.
    """

    message: Message
    by: By
    state: str
    before: Message | None = None
    line: Line | None = None
    changes: int = 0


@dataclass(slots=True)
class Request:
    """What one model call was sent, in the form in which connectagent gives it to a model's adapter.

    Args:
        entry: the `llm_call` entry.
        pieces: its messages in order; those of the conversation that are as in the call before, by their places.
        moment: the conversation as it was.
        gone: the messages of the call before that were not sent again.
        tools: the schemas of the tools; their names where the record has no schemas.
        options: the parameters of the provider's API.
        before: the `llm_call` entry of the call before; None for the first.
        model: the model that was asked; of a record that does not tell, the one that answered.
        output: how a structured answer was asked for: `name`, `schema`, and `in_words` if the last message asks.
        tool_makers: by the name of a tool: who added or changed it for this request only.
    """

    entry: TraceEntry
    pieces: list[range | SentMessage]
    moment: Moment[Said]
    gone: list[Message]
    tools: list[Any]
    options: dict[str, Any]
    before: TraceEntry | None = None
    model: Any = None
    output: dict[str, Any] | None = None
    tool_makers: dict[str, By] = field(default_factory=dict)

    @property
    def messages(self) -> list[SentMessage]:
        """All messages, each with what is new since the call before; made anew each time."""
        said = self.moment.since()
        made: list[SentMessage] = []
        for piece in self.pieces:
            if isinstance(piece, SentMessage):
                made.append(piece)
            else:
                own = said[piece.start : piece.stop]
                made += [SentMessage(message, by, SAME, None, line, changes) for message, by, line, changes in own]
        return made

    @property
    def count(self) -> int:
        """How many messages it has."""
        return sum(1 if isinstance(piece, SentMessage) else len(piece) for piece in self.pieces)

    def news(self) -> Iterator[tuple[int, SentMessage]]:
        """The messages that are not as in the call before, each with its place."""
        place = 0
        for piece in self.pieces:
            if isinstance(piece, SentMessage):
                if piece.state != SAME:
                    yield place, piece
                place += 1
            else:
                place += len(piece)

    def data(self) -> dict[str, Any]:
        """The whole request as data."""
        messages = [sent.message for sent in self.messages]
        asked = self.output or {}
        if asked.get("in_words"):
            messages = with_instruction(messages, asked["schema"])
        more = {"tools": self.tools, "output": None if asked.get("in_words") else self.output}
        given = {key: value for key, value in more.items() if value}
        return {"model": self.model, "messages": messages, **given, **self.options}


class Unrolled:
    """The conversation at one moment after the other, as one list in which only what differs is replaced.

    Attributes:
        moment: the newest one.
        said: its messages.
        kept: how many of them, from the start, are as they were at the last `mark()`.
        gone: what stood behind them then.
    """

    def __init__(self) -> None:
        self.moment: Moment[Said] = Moment([])
        self.said: list[Said] = []
        self.kept = 0
        self.gone: list[Said] = []
        self._texts: dict[Any, list[int]] = {}  # the places of messages, by their texts
        self._known = 0  # how many messages are in there

    def go_to(self, moment: Moment[Said]) -> None:
        """Go on to a later moment."""
        kept = moment.kept_of(self.moment)
        if kept < self.kept:
            self.gone, self.kept = [*self.said[kept : self.kept], *self.gone], kept
        while self._known > kept:
            self._known -= 1
            self._texts[_text(self.said[self._known][0])].pop()
        self.said[kept:] = moment.since(kept)
        self.moment = moment

    def mark(self) -> None:
        """Count from here on what is replaced."""
        self.kept, self.gone = len(self.said), []

    def then(self, place: int) -> Said:
        """A message as it was at the last `mark()`."""
        return self.said[place] if place < self.kept else self.gone[place - self.kept]

    def places_of(self, message: Message) -> Iterator[int]:
        """The places of the messages that are equal to one, in order."""
        for place in range(self._known, len(self.said)):
            self._texts.setdefault(_text(self.said[place][0]), []).append(place)
        self._known = len(self.said)
        return (place for place in self._texts.get(_text(message), ()) if self.said[place][0] == message)


@dataclass(slots=True)
class Sending:
    """What a model call is sent, while the calls of an agent are gone through.

    Args:
        entry: the `llm_call` entry.
        pieces: its messages.
        conversation: as it was; it goes on with the next call.
        known: what else it was sent.
        makers: by the name of a tool: who added or changed it for this request only.
    """

    entry: TraceEntry
    pieces: list[Piece]
    conversation: Unrolled
    known: SentSoFar
    makers: dict[str, By]

    def messages(self, start: int = 0) -> list[Sent]:
        """Its messages from a place on; one that stayed the same is the same tuple in each call."""
        found: list[Sent] = []
        for piece in self.pieces:
            own = piece[start:] if isinstance(piece, range) else [] if start else [piece]
            found += self.conversation.said[own.start : own.stop] if isinstance(own, range) else own
            start = max(0, start - (len(piece) if isinstance(piece, range) else 1))
        return found

    def shared(self, before: Sending | None) -> int:
        """How many messages it begins with that the call before began with too."""
        first, then = (one.pieces[0] if one is not None and one.pieces else None for one in (self, before))
        if not isinstance(first, range) or not isinstance(then, range) or first.start or then.start:
            return 0
        return min(first.stop, then.stop, self.conversation.kept)


def _text(message: Message) -> tuple[str | None, ...]:
    """What equal messages have in common, as a key."""
    values = (message.get(key) for key in ("role", "content", "tool_call_id"))
    return tuple(value if isinstance(value, str) else None for value in values)


def alone(messages: Iterable[Any] | None, by: By) -> list[Sent]:
    """Messages of one request only."""
    own: list[Any] = [message for message in messages or () if isinstance(message, dict)]
    return [(message, by, None, 0) for message in own]


# -- an edited request ---------------------------------------------------------------------------


def pieces_of(given: SentSoFar, conversation: Unrolled, by: By) -> list[Piece]:
    """The messages of a request: those of the conversation, and others by who edited it.

    Args:
        given: what the call was sent besides the conversation.
        conversation: as it was.
        by: who edited the request; {} where nobody can tell.
    """
    if not given.is_edited:
        return [range(len(conversation.said))]
    parts = given.edited if given.edited is not None else [one[0] for one in alone(given.messages, by)]
    pieces = _pieces(parts, conversation, by)
    ranges = [piece for piece in pieces if isinstance(piece, range)]
    in_order = all(one.stop <= other.start for one, other in pairwise(ranges))
    if in_order and all(one.step == 1 for one in ranges):
        return pieces
    said = conversation.said
    return list(_matched(alone(given.own([one[0] for one in said]), by), said))


def _pieces(parts: list[Any], conversation: Unrolled, by: By) -> list[Piece]:
    count, pieces = len(conversation.said), list[Piece]()
    for part in parts:
        own = range(*slice(*part).indices(count)) if isinstance(part, list) else None
        pieces += alone([part], by) if own is None else [own] if own else []
    taken = [piece for piece in pieces if isinstance(piece, range)]
    for number, piece in enumerate(pieces):
        if not isinstance(piece, range):
            equal = conversation.places_of(piece[0])
            at = next((place for place in equal if not any(place in one for one in taken)), None)
            if at is not None:
                pieces[number] = range(at, at + 1)
                taken.append(range(at, at + 1))
    return pieces


def _matched(made: list[Sent], said: Sequence[Said]) -> list[Sent]:
    """Messages in any order: those that the conversation has too are its own, each once."""
    free = dict(enumerate(said))
    for place, (message, *_) in enumerate(made):
        at = next((at for at, one in free.items() if one[0] == message), None)
        if at is not None:
            made[place] = free.pop(at)
    return made


# -- beside the request before -------------------------------------------------------------------


class Compared:
    """A request beside the one before it.

    Args:
        now, then: the messages of both.
        conversation: as it is now; it was marked at the request before.

    Attributes:
        pieces: the messages, as `Request` has them.
        gone: those of the request before that were not sent again.
    """

    def __init__(self, now: list[Piece], then: list[Piece], conversation: Unrolled) -> None:
        both = list(_common(now, then, conversation.kept))
        self._then = {place: one for place, one in _apart(then, both, conversation.then) if not isinstance(one, range)}
        self._lines = {id(one[2]): place for place, one in self._then.items() if one[2] is not None}
        self._texts: dict[Any, list[int]] = {}
        for place, one in self._then.items():
            self._texts.setdefault(_text(one[0]), []).append(place)
        self._sent_again: set[int] = set()
        self.pieces: list[range | SentMessage] = [
            one if isinstance(one, range) else self._sent(place, one)
            for place, one in _apart(now, both, conversation.said.__getitem__)
        ]
        self.gone = [one[0] for place, one in self._then.items() if place not in self._sent_again]

    def _sent(self, place: int, now: Sent) -> SentMessage:
        message, by, line, changes = now
        at = self._place_then(place, now)
        if at is None:
            return SentMessage(message, by, NEW, None, line, changes)
        self._sent_again.add(at)
        then = self._then[at]
        same = then[2:] == (line, changes) or then[0] == message
        return SentMessage(message, by, SAME if same else CHANGED, None if same else then[0], line, changes)

    def _place_then(self, place: int, now: Sent) -> int | None:
        """Where a message stood in the call before; None if it is new."""
        if now[2] is not None and id(now[2]) in self._lines:
            return self._lines[id(now[2])]
        equal = self._texts.get(_text(now[0]), ())
        places = [place, *equal] if place in self._then else equal  # at the same place, or anywhere
        return next((at for at in places if at not in self._sent_again and self._then[at][0] == now[0]), None)


def _common(now: list[Piece], then: list[Piece], kept: int) -> Iterator[range]:
    """The messages of the conversation that are in both requests, and have not changed: the first ones are kept."""
    theirs = [piece for piece in then if isinstance(piece, range)]
    at = 0
    for piece in now:
        if not isinstance(piece, range):
            continue
        while at < len(theirs) and theirs[at].start < piece.stop:
            one = range(max(piece.start, theirs[at].start), min(piece.stop, theirs[at].stop, kept))
            if one:
                yield one
            if theirs[at].stop > piece.stop:
                break
            at += 1


def _apart(pieces: list[Piece], both: list[range], said: Callable[[int], Said]) -> Iterator[tuple[int, range | Sent]]:
    """The messages of a request, each with its place in it; those that are in both requests as ranges."""
    place, common = 0, iter(both)
    shared = next(common, None)
    for piece in pieces:
        if not isinstance(piece, range):
            yield place, piece
            place += 1
            continue
        at = piece.start
        while at < piece.stop:
            if shared is not None and at == shared.start:
                yield place, shared
                at, place, shared = shared.stop, place + len(shared), next(common, None)
            else:
                yield place, said(at)
                at, place = at + 1, place + 1
