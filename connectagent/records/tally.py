"""Divides what calls took over the parts of their requests, without a look at each part for each call.

The newest parts of a request each have their own share of a call. Older ones are divided as groups, the larger the
older they are; what a group took is divided over its parts when the group changes, and in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from connectagent.data import TokenUsage
from connectagent.records.parts import Part
from connectagent.session.moments import Moment

_ALONE = 150
_GROUP = 16  # so many parts have a share of their own, and so many more become a group


@dataclass(slots=True)
class Rates:
    """What one call's tokens cost, in USD a token; they add up to the call's own cost.

    Args:
        plain, cached, written: input that was not in the cache, was read from it, and was written into it.
        output: the whole answer.
        even: whether the table has no price for the model.
    """

    plain: float | None = None
    cached: float | None = None
    written: float | None = None
    output: float | None = None
    even: bool = False

    def cost(self, plain: int, cached: int, written: int) -> float | None:
        """What so many tokens of each kind cost."""
        if self.plain is None or self.cached is None or self.written is None:
            return None
        return plain * self.plain + cached * self.cached + written * self.written


@dataclass(slots=True)
class Share:
    """What calls took of some parts.

    Args:
        tokens: of all these calls.
        cached: how many of these the provider read from its cache.
        cost: USD; None where a price is unknown.
        calls: in how many calls they were.
    """

    tokens: int = 0
    cached: int = 0
    cost: float | None = 0.0
    calls: int = 0

    def add(self, tokens: int, cached: int, cost: float | None) -> None:
        """Add what one call took."""
        self.tokens += tokens
        self.cached += cached
        self.calls += 1
        self.cost = None if self.cost is None or cost is None else self.cost + cost


@dataclass(slots=True)
class _PartGroup:
    """Successive parts of a request, with what they took together since they are a group."""

    parts: list[Part]
    size: int
    share: Share


class Tally:
    """The parts of an agent's newest request, which take their shares of calls.

    Args:
        take: is called with a part and what it took.

    Attributes:
        files: how many parts have images or files.
    """

    def __init__(self, take: Callable[[Part, Share], object]) -> None:
        self._take = take
        self._moment: Moment[Part] = Moment([])
        self._groups: list[_PartGroup] = []  # the oldest parts
        self._alone: list[Part] = []  # those behind them
        self.files = 0

    def go_to(self, moment: Moment[Part]) -> None:
        """Go on to the next request; what it shares with the one before stays as it is."""
        kept = moment.kept_of(self._moment)
        self._leave(len(self._moment) - kept)
        new = moment.since(kept)
        self._alone += new
        self.files += sum(map(_has_files, new))
        self._moment = moment
        while len(self._alone) > _ALONE + _GROUP:
            self._group(self._alone[:_GROUP])
            del self._alone[:_GROUP]

    def charge(self, usage: TokenUsage | None, rates: Rates) -> None:
        """Divide a call in proportion to bytes; the first tokens are those from the cache, then those written to it."""
        parts: list[Part | _PartGroup] = [*self._groups, *self._alone]
        if usage is None:
            for part in parts:
                self._add(part, 0, 0, None)
            return
        edge = usage.cached_tokens, usage.cached_tokens + (usage.cache_write_tokens or 0)
        for part, (start, end) in zip(parts, spans([part.size for part in parts], usage.input_tokens), strict=True):
            cached = end - start if end <= edge[0] else _overlap(start, end, 0, edge[0])
            written = _overlap(start, end, *edge) if end > edge[0] else 0
            self._add(part, end - start, cached, rates.cost(end - start - cached - written, cached, written))

    def close(self) -> None:
        """Leave all parts out; each has taken what is its own then."""
        self.go_to(Moment([]))

    def _add(self, part: Part | _PartGroup, tokens: int, cached: int, cost: float | None) -> None:
        if isinstance(part, _PartGroup):
            part.share.add(tokens, cached, cost)
        else:
            self._take(part, Share(tokens, cached, cost, 1))

    def _group(self, parts: list[Part]) -> None:
        """Make a group of parts, with those before them that are no more."""
        while self._groups and len(self._groups[-1].parts) <= len(parts):
            parts = [*self._ungrouped(), *parts]
        self._groups.append(_PartGroup(parts, sum(part.size for part in parts), Share()))

    def _ungrouped(self) -> list[Part]:
        """The parts of the last group, which is no more: each has its share of what the group took."""
        group = self._groups.pop()
        share = group.share
        sizes = [part.size for part in group.parts]
        size = group.size or 1
        plain = spans(sizes, share.tokens - share.cached)
        cached = spans(sizes, share.cached)
        for part, new, read in zip(group.parts, plain, cached, strict=True) if share.calls else ():
            tokens = new[1] - new[0] + read[1] - read[0]
            of_cache = read[1] - read[0]
            cost = None if share.cost is None else share.cost * part.size / size
            self._take(part, Share(tokens, of_cache, cost, share.calls))
        return group.parts

    def _leave(self, count: int) -> None:
        """Leave the last parts out."""
        while count > len(self._alone) and self._groups:
            self._alone[:0] = self._ungrouped()
        left = self._alone[len(self._alone) - count :]
        self.files -= sum(map(_has_files, left))
        del self._alone[len(self._alone) - count :]


def spans(sizes: list[int], tokens: int) -> list[tuple[int, int]]:
    """The first and the last token of each part, in proportion to bytes; whole numbers that add up."""
    total = sum(sizes) or 1
    at = 0
    found = []
    for number, size in enumerate(sizes):
        start = at
        at += size
        end = at if number < len(sizes) - 1 else total
        found.append((tokens * start // total, tokens * end // total))
    return found


def _overlap(start: int, end: int, low: int, high: int) -> int:
    return max(0, min(end, high) - max(start, low))


def _has_files(part: Part) -> bool:
    """Whether the message of a part has images or files."""
    content = part.line.message.get("content") if part.line is not None else None
    return isinstance(content, list) and any(isinstance(one, dict) and one.get("type") != "text" for one in content)
