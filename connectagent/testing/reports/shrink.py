"""Shrinks a session to what still shows a failure: turns, then rounds, calls, entries, values and texts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from connectagent.testing.ddmin import ddmin, shortest
from connectagent.testing.reports.session import Tree, size

CUT = "..."  # in place of a text that is not needed
SHORT = 3  # characters of a text that is left as it is
LONG = 200
LIMIT_S = 20.0

Place = tuple[int, Any]
"""A place in a tree: Python's id of the container, and the key or index in it."""

Shows = Callable[[Tree], bool]

# What an entry or a turn needs not have.
_OPTIONAL = ("usage", "provider_data", "finish_reason", "tools", "model", "error", "max_iterations")
_HEAD = ("begins_with", "max_iterations", "system_prompt", "tools")
# What holds what somebody wrote, or what a tool returned; the other texts of an entry say what it is.
_CONTENTS = (
    *("prompt", "content", "result", "arguments", "message", "delta", "value", "provider_data", "reason", "error"),
)


class Shrinking:
    """Shrinks a tree as long as it shows the failure.

    Args:
        tree: the tree, which shows it.
        shows: whether a tree does.

    Attributes:
        tree: the smallest one so far.
        tries: how often `shows` was asked.
        is_over: whether it took too long, so that it may be larger than it need be.
    """

    def __init__(self, tree: Tree, shows: Shows, limit_s: float = LIMIT_S) -> None:
        self.tree, self._shows = tree, shows
        self._until = time.monotonic() + limit_s
        self.tries, self.is_over = 0, False

    def run(self) -> Tree:
        """Shrink it as far as it goes."""
        self._cut_long()
        before = -1
        while before != (before := size(self.tree)):
            for units in (_turns, _rounds, _calls, _entries, _optional):
                self._leave_out(units(self.tree))
            for depth in range(6):
                self._leave_out(_items(self.tree, depth))
            self._shorten()
        return self.tree

    def shows(self, tree: Tree) -> bool:
        """Whether a tree shows the failure; False where there is no more time."""
        if self.is_over or time.monotonic() > self._until:
            self.is_over = True
            return False
        self.tries += 1
        return self._shows(tree)

    def _leave_out(self, units: Iterator[list[Place]]) -> None:
        """Leave out those units, each some places, that are not needed."""
        listed = [unit for unit in units if unit]
        if not listed:
            return

        def without(kept: list[int]) -> Tree:
            stay = set(kept)
            gone = {place for at, unit in enumerate(listed) if at not in stay for place in unit}
            return edited(self.tree, gone, {})

        needed = ddmin(range(len(listed)), lambda kept: self.shows(without(kept)))
        if len(needed) < len(listed):
            self.tree = without(needed)

    def _cut_long(self) -> None:
        """Cut all long texts at once, if that does not matter: what follows is faster then."""
        long = {place: text[:LONG] for place, text in _texts(self.tree) if len(text) > 2 * LONG}
        cut = edited(self.tree, set(), long) if long else None
        if cut is not None and self.shows(cut):
            self.tree = cut

    def _shorten(self) -> None:
        """Replace the texts that are not needed, and shorten the others."""
        texts = dict(_texts(self.tree))
        if not texts:
            return

        def without(kept: list[Place]) -> Tree:
            return edited(self.tree, set(), {place: CUT for place in texts if place not in set(kept)})

        needed = ddmin(list(texts), lambda kept: self.shows(without(kept)))
        new: dict[Place, Any] = dict.fromkeys(texts, CUT)
        new.update({place: texts[place] for place in needed})
        for place in needed:

            def with_text(text: str) -> Tree:
                return edited(self.tree, set(), {**new, place: text})  # noqa: B023

            new[place] = shortest(texts[place], lambda text: self.shows(with_text(text)))
        self.tree = edited(self.tree, set(), new)


def edited(tree: Tree, gone: set[Place], new: dict[Place, Any]) -> Tree:
    """A copy of a tree without some places and with other values in others; what is one object stays one."""
    copy: Tree = _edited(tree, gone, new, {})
    return copy


def _edited(value: Any, gone: set[Place], new: dict[Place, Any], made: dict[int, Any]) -> Any:
    if not isinstance(value, (dict, list)):
        return value
    here = id(value)
    if here not in made:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        kept = [
            (key, new[here, key] if (here, key) in new else _edited(item, gone, new, made))
            for key, item in pairs
            if (here, key) not in gone
        ]
        made[here] = dict(kept) if isinstance(value, dict) else [item for _, item in kept]
    return made[here]


# -- what may be left out ------------------------------------------------------------------------


def _turns(tree: Tree) -> Iterator[list[Place]]:
    yield from ([(id(tree["turns"]), at)] for at in range(len(tree["turns"])))


def _rounds(tree: Tree) -> Iterator[list[Place]]:
    """The iterations of each turn: a model call with its round of tools."""
    for turn in tree["turns"]:
        rounds: dict[int, list[Place]] = {}
        for at, entry in enumerate(turn["entries"]):
            if isinstance(entry.get("iteration"), int):
                rounds.setdefault(entry["iteration"], []).append((id(turn["entries"]), at))
        yield from rounds.values()


def _calls(tree: Tree) -> Iterator[list[Place]]:
    """The tool calls of each turn, each with the entries about it."""
    for turn in tree["turns"]:
        entries = turn["entries"]
        for entry in entries:
            for at, call in enumerate(entry.get("tool_calls") or ()):
                about = [n for n, one in enumerate(entries) if one.get("call_id") == call.get("id") is not None]
                yield [(id(entry["tool_calls"]), at), *((id(entries), n) for n in about)]


def _entries(tree: Tree) -> Iterator[list[Place]]:
    """Single entries, without the inputs of turns and the calls of tools."""
    for turn in tree["turns"]:
        yield from ([(id(turn["before"]), at)] for at in range(len(turn["before"])))
        listed = enumerate(turn["entries"])
        stay = ("user_input", "tool_execution")
        yield from ([(id(turn["entries"]), at)] for at, entry in listed if entry.get("type") not in stay)


def _optional(tree: Tree) -> Iterator[list[Place]]:
    """Keys that need not be there: each of them in all entries at once, then in single ones."""
    entries = [entry for turn in tree["turns"] for part in ("before", "entries") for entry in turn[part]]
    entries += [turn["end"] for turn in tree["turns"]]
    for key in _OPTIONAL:
        yield [(id(entry), key) for entry in entries if key in entry]
    yield from ([(id(tree["head"]), key)] for key in _HEAD if key in tree["head"])


def _items(tree: Tree, depth: int) -> Iterator[list[Place]]:
    """The items of what is inside contents, at one depth: arguments, parts of a message, values of the state."""
    level = [root for root, _ in _roots(tree) if isinstance(root, (dict, list))]
    for _ in range(depth):
        level = [item for one in level for item in _values(one) if isinstance(item, (dict, list))]
    seen: set[int] = set()
    for one in level:
        if id(one) not in seen:
            seen.add(id(one))
            yield from ([(id(one), key)] for key in (one if isinstance(one, dict) else range(len(one))))


def _texts(tree: Tree) -> Iterator[tuple[Place, str]]:
    """The texts that somebody wrote or a tool returned, each with its place."""
    seen: set[int] = set()
    for root, place in _roots(tree):
        if isinstance(root, str):
            yield from [(place, root)] if len(root) > SHORT else []
        elif isinstance(root, (dict, list)):
            yield from _texts_in(root, seen)


def _texts_in(value: Any, seen: set[int]) -> Iterator[tuple[Place, str]]:
    if id(value) in seen:
        return
    seen.add(id(value))
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, str) and len(item) > SHORT and key not in ("role", "type", "id", "name", "tool_call_id"):
            yield (id(value), key), item
        elif isinstance(item, (dict, list)):
            yield from _texts_in(item, seen)


def _roots(tree: Tree) -> Iterator[tuple[Any, Place]]:
    """The contents of a session, each with its place."""
    head = tree["head"]
    yield from ((head[key], (id(head), key)) for key in ("system_prompt", "tools") if key in head)
    begins = head.get("begins_with") or {}
    yield from ((begins[key], (id(begins), key)) for key in ("messages", "state") if key in begins)
    for turn in tree["turns"]:
        yield turn["input"], (id(turn), "input")
        for entry in (*turn["before"], *turn["entries"]):
            yield from ((entry[key], (id(entry), key)) for key in _CONTENTS if key in entry)
            for call in (*_list(entry.get("tool_calls")), entry.get("call")):
                if isinstance(call, dict) and "arguments" in call:
                    yield call["arguments"], (id(call), "arguments")
        yield from ((turn["end"][key], (id(turn["end"]), key)) for key in ("error",) if key in turn["end"])


def _values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def _list(value: Any) -> list[Any]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
