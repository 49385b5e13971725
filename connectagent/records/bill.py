"""Who fills the context of a record's model calls, and who breaks the provider's prompt cache.

A provider reports the tokens of a call, and not of its parts: they are divided in proportion to the parts' size in
bytes. Nothing is estimated beyond that; where the record does not tell, the tokens are nobody's (`?`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from connectagent.data import TokenUsage, TraceEntry
from connectagent.records import parts as dividing
from connectagent.records.parts import ANSWER, NOT_RECORDED, SCHEMA, UNKNOWN, Divided, Part, same_until, size_of, who_of
from connectagent.records.requests import Sending
from connectagent.records.tally import Rates, Share, Tally
from connectagent.records.watched import request_of, watched_agents
from connectagent.session.journal import is_aside
from connectagent.session.moments import Moment
from connectagent.session.usage import Spent, spent_in, took_tokens, usage_of

Price = Callable[[TraceEntry, TokenUsage], float | None]
"""What a call of an `llm_call` entry would cost with other tokens, in USD; None where the price is unknown."""


@dataclass(slots=True)
class Item:
    """One line of a bill.

    Args:
        agent: the branch of the agent inside, or the name of the record's own.
        who, kind, name: as of a part.
        bytes: of its text, in all calls.
        tokens: of all calls whose usage is known.
        cached: how many of these the provider read from its cache.
        cost: USD; None where a price is unknown.
        calls: in how many calls it was.
    """

    agent: str
    who: str
    kind: str
    name: str
    tokens: int = 0
    cached: int = 0
    cost: float | None = 0.0
    calls: int = 0
    bytes: int = 0

    def add(self, share: Share, size: int) -> None:
        """Add its share of calls, in which it had so many bytes."""
        self.bytes += size
        self.tokens, self.cached = self.tokens + share.tokens, self.cached + share.cached
        self.calls += share.calls
        self.cost = None if self.cost is None or share.cost is None else self.cost + share.cost


@dataclass(slots=True)
class Break:
    """A call whose request does not begin with the request before it, so that the cache of the provider is of no use.

    Args:
        agent: the agent.
        call: the number of the call in the record, from 1.
        turn, iteration: when.
        byte: the first byte that differs; tools come first, then the messages.
        kind, name: the part in which it is.
        who: whose change it is.
        tokens: those behind that byte that could have been read from the cache, and were not.
        cost: what they cost more than from the cache; None where a price is unknown.
    """

    agent: str
    call: int
    turn: int
    iteration: int
    byte: int
    kind: str
    name: str
    who: str
    tokens: int | None
    cost: float | None


@dataclass
class Billed:
    """One model call: its entry, its parts, and its agent.

    Args:
        moment: its parts; None where the record does not tell what was sent.
    """

    number: int
    entry: TraceEntry
    turn: int
    agent: str
    moment: Moment[Part] | None

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for part in self.parts or ())

    @property
    def parts(self) -> list[Part] | None:
        """Its parts in order, made anew each time; None where the record does not tell what was sent."""
        return None if self.moment is None else self.moment.since()


@dataclass
class Bill:
    """Who fills the context in a record.

    Args:
        items: by agent, who, kind and name; they add up to `spent`.
        breaks: the calls whose cache was broken.
        calls: the calls, in order.
        spent: the record's own sum.
        unpriced: calls whose price, or whose usage, is not known.
        even: calls whose cost was divided evenly over their tokens, since the table has no price for the model.
        images: calls with images or files, which have no size as text.
    """

    spent: Spent
    items: dict[tuple[str, str, str, str], Item] = field(default_factory=dict)
    breaks: list[Break] = field(default_factory=list)
    calls: list[Billed] = field(default_factory=list)
    unpriced: int = 0
    even: int = 0
    images: int = 0

    def add(self, agent: str, part: Part, share: Share) -> None:
        """Add what calls took of a part."""
        key = (agent, part.who, part.kind, part.name)
        if (item := self.items.get(key)) is None:
            item = self.items[key] = Item(*key)
        item.add(share, part.size * share.calls)


def bill_of(record: dict[str, Any], price: Price, blobs: Path | None = None, running: bool = False) -> Bill:
    """Divide the tokens and the cost of a record.

    Args:
        record: as `read_record` returns it.
        price: the price of other tokens.
        blobs: the folder of its long texts.
        running: whether its last turn may still go on.
    """
    lines = [line for turn in record["turns"] for line in turn["lines"]]
    for number, line in enumerate(lines):
        line["number"] = number
    bill = Bill(spent_in(lines, running))
    bill.calls = list(_calls(record, blobs))
    _divide(bill, price)
    bill.unpriced += bill.spent.calls - sum(took_tokens(call.entry) for call in bill.calls)  # lost, without an end
    bill.breaks = list(breaks_of(bill.calls, price))
    return bill


def _calls(record: dict[str, Any], blobs: Path | None) -> Iterator[Billed]:
    """Every attempt at a model, in the record's order: those that were rewound or done again too."""
    known: dict[Any, Moment[Part] | None] = {}
    for watched in watched_agents(record, blobs):
        divided = Divided()
        for sending in watched.sendings():
            known[sending.entry.get("number")] = _parts_of(divided, sending)
    root, place = str(record.get("agent")), 0
    for turn in record["turns"]:
        for entry in turn["lines"]:
            if entry.get("type") != "llm_call" or (entry.get("status") == "stand_in" and not took_tokens(entry)):
                continue
            place += 1
            number, agent = entry["number"], str(entry.get("branch") or root)
            moment = known[number] if number in known else _rewound(record, number, blobs)
            yield Billed(place, entry, _number(turn.get("turn")), agent, moment)


def _parts_of(divided: Divided, sending: Sending) -> Moment[Part] | None:
    """The parts of a call; None where the record does not say what was sent."""
    if not is_aside(sending.entry):
        moment = divided.moment(sending)
    else:
        messages, known = sending.messages(), sending.known
        moment = Moment(divided.parts(sending.entry, messages, known.schemas(), known.output, sending.makers))
    return moment if any(sending.pieces) else None


def _rewound(record: dict[str, Any], number: int, blobs: Path | None) -> Moment[Part] | None:
    """The parts of a call that was taken back, or done again."""
    request = request_of(record, number, blobs)
    return None if request is None or not request.count else Moment(dividing.parts_of_request(request))


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


# -- tokens and cost -----------------------------------------------------------------------------


def _divide(bill: Bill, price: Price) -> None:
    """Divide each call's tokens and cost over its parts."""
    tallies: dict[str, Tally] = {}  # by agent
    for call in bill.calls:
        alone = call.moment is None or is_aside(call.entry)
        tally = Tally(partial(bill.add, call.agent)) if alone else tallies.get(call.agent)
        if tally is None:
            tally = tallies[call.agent] = Tally(partial(bill.add, call.agent))
        tally.go_to(call.moment or Moment([Part(UNKNOWN, NOT_RECORDED, "request not in the record", "")]))
        if took_tokens(call.entry):  # no failed attempt that took no tokens
            _charge(bill, call, tally, price)
        if alone:
            tally.close()
    for tally in tallies.values():
        tally.close()


def _charge(bill: Bill, call: Billed, tally: Tally, price: Price) -> None:
    usage, by = usage_of(call.entry), call.entry.get("by")
    rates = Rates() if usage is None else rates_of(call.entry, usage, price)
    bill.unpriced += usage is None or usage.cost is None
    bill.images += bool(tally.files)
    bill.even += rates.even
    tally.charge(usage, rates)
    if usage is not None and (usage.output_tokens or (rates.output or 0)):
        asker = who_of(by) if is_aside(call.entry) and isinstance(by, dict) else "(model)"
        bill.add(call.agent, Part(asker, ANSWER, "", ""), Share(usage.output_tokens, 0, rates.output, 1))


def rates_of(entry: TraceEntry, usage: TokenUsage, price: Price) -> Rates:
    """The prices of a call: those of the table, scaled to what the call did cost."""
    if usage.cost is None:
        return Rates()
    count, read, made = usage.input_tokens, usage.cached_tokens, usage.cache_write_tokens
    whole = price(entry, TokenUsage(count, 0, cached_tokens=read, cache_write_tokens=made))
    kinds = _kinds(entry, count or 1, price)
    if whole is None or kinds is None or whole > usage.cost * (1 + 1e-9):
        each = usage.cost / ((count + usage.output_tokens) or 1)
        return Rates(each, each, each, usage.cost - each * count, even=True)
    plain, cached, written = kinds
    table = (count - read - made) * plain + read * cached + made * written
    scale = whole / table if table else 1.0
    return Rates(plain * scale, cached * scale, written * scale, usage.cost - whole)


def _kinds(entry: TraceEntry, count: int, price: Price) -> tuple[float, float, float] | None:
    """What a token costs that is plain, cached or written; with as many as the call had, on which prices may depend."""
    plain = price(entry, TokenUsage(count, 0))
    cached = price(entry, TokenUsage(count, 0, cached_tokens=count))
    written = price(entry, TokenUsage(count, 0, cache_write_tokens=count))
    if plain is None or cached is None or written is None:
        return None
    return plain / count, cached / count, written / count


# -- the cache -----------------------------------------------------------------------------------


def breaks_of(calls: list[Billed], price: Price) -> Iterator[Break]:
    """The calls whose request does not begin with the whole request of the agent's call before."""
    before: dict[str, Billed] = {}
    for call in calls:
        if call.moment is None or is_aside(call.entry):
            continue
        then = before.get(call.agent)
        before[call.agent] = call
        if then is not None:
            found = _difference(then, call)
            if found is not None:
                byte, part, who = found
                tokens, cost = _lost(then, call, byte, price)
                iteration = _number(call.entry.get("iteration"))
                place = (call.agent, call.number, call.turn, iteration)
                yield Break(*place, byte, part.kind, part.name, who, tokens, cost)


def _difference(then: Billed, now: Billed) -> tuple[int, Part, str] | None:
    """The first byte that differs, the part, and whose it is; None where all that was sent before is sent again."""
    if then.entry.get("model") != now.entry.get("model"):  # each has a cache of its own
        by = now.entry.get("by")
        return 0, Part("", "model", str(now.entry.get("model")), ""), who_of(by if isinstance(by, dict) else {})
    assert then.moment is not None and now.moment is not None
    kept = now.moment.kept_of(then.moment)
    before, after = then.moment.since(kept), now.moment.since(kept)
    then_text, now_text = ("".join(part.text for part in parts) for parts in (before, after))
    place = same_until(then_text, now_text)
    if place == len(then_text):
        return None
    old, new = _part_at(before, place), _part_at(after, place)
    assert old is not None
    byte = sum(part.size for part in now.moment.since()[:kept]) + size_of(then_text[:place])
    return byte, old if new is None else new, _breaker(old, new, after)


def _part_at(parts: list[Part], place: int) -> Part | None:
    for part in parts:
        if place < len(part.text):
            return part
        place -= len(part.text)
    return None


def _breaker(old: Part, new: Part | None, now: list[Part]) -> str:
    """Who made the difference: the last to change or remove the old message, else who made what is there instead.

    Args:
        old, new: the parts that differ.
        now: the parts from there on.
    """
    if old.line is not None:
        lengths = {id(part.line): part.changes for part in now}
        later = old.line.changes[old.changes : lengths.get(id(old.line))]
        if later:
            return who_of(later[-1].by)
    elif old.kind != SCHEMA and old.who != UNKNOWN:  # a message of that one request
        return old.who
    return UNKNOWN if new is None else new.who


def _lost(then: Billed, now: Billed, byte: int, price: Price) -> tuple[int | None, float | None]:
    """The tokens that could have been read from the cache, and what they cost more than from it."""
    usage = usage_of(now.entry)
    if usage is None:
        return None, None
    shared = max(0, min(then.size, now.size) - byte)
    lost = min(usage.input_tokens * shared // (now.size or 1), max(0, usage.input_tokens - (usage.cached_tokens)))
    rates = rates_of(now.entry, usage, price)
    known = not rates.even and rates.plain is not None and rates.cached is not None
    return lost, lost * ((rates.plain or 0.0) - (rates.cached or 0.0)) if known else None


# -- with other requests -------------------------------------------------------------------------


def resized(bill: Bill, sent: dict[int, tuple[list[Any], list[Any], Any] | None], price: Price) -> dict[str, Any]:
    """What calls took, and what they would have taken with other requests and the same answers.

    The tokens of a call change as its bytes do, and the part of them that is cached stays as it was.

    Args:
        bill: of the record.
        sent: by the place of a call in `bill.calls`: its other messages, tools and `output`; None if nobody can tell.
        price: the price of other tokens.

    Returns:
        `calls`, how many are known; of these `then` and `now`, with `tokens`, `cost`, `breaks` and what these `lost`.
    """
    known = [(bill.calls[at], other) for at, other in sent.items() if other is not None and bill.calls[at].parts]
    now = [_resent(call, *other) for call, other in known]
    sums = []
    for calls in ([call for call, _ in known], now):
        spent = Spent()
        for call, (old, _) in zip(calls, known, strict=True):
            if took_tokens(call.entry):
                spent.add(_scaled(call.entry, call.size / (old.size or 1), price))
        breaks = list(breaks_of(calls, price))
        lost = None if any(one.cost is None for one in breaks) else sum(one.cost or 0.0 for one in breaks)
        sums.append({"tokens": spent.tokens, "cost": spent.cost, "breaks": len(breaks), "lost": lost})
    return {"calls": len(known), "then": sums[0], "now": sums[1]}


def _resent(call: Billed, messages: list[Any], tools: list[Any], output: dict[str, Any] | None) -> Billed:
    parts = Divided().parts(call.entry, [(message, {}, None, 0) for message in messages], tools, output, {})
    return Billed(call.number, call.entry, call.turn, call.agent, Moment(parts))


def _scaled(entry: TraceEntry, ratio: float, price: Price) -> TokenUsage | None:
    """The usage of a call whose request is larger or smaller."""
    usage = usage_of(entry)
    if usage is None:
        return None
    output = rates_of(entry, usage, price).output
    cost = None if usage.cost is None or output is None else (usage.cost - output) * ratio + output
    return TokenUsage(round(usage.input_tokens * ratio), usage.output_tokens, cost=cost)
