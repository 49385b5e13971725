"""The difference of two texts, word by word."""

from __future__ import annotations

import random
import time

import pytest

from connectagent.output.words import word_diff


@pytest.mark.parametrize(
    ("before", "after", "pieces"),
    [
        ("", "", []),
        ("a", "a", [("=", "a")]),
        ("", "new", [("+", "new")]),
        ("old", "", [("-", "old")]),
        ("Pay 7 now.", "Pay 70 now.", [("=", "Pay "), ("-", "7"), ("+", "70"), ("=", " now.")]),
        ("one two three", "one 2 3", [("=", "one "), ("-", "two three"), ("+", "2 3")]),
        ("Be brief.", "Be brief.\nIt is today.", [("=", "Be brief."), ("+", "\nIt is today.")]),
        ("http://b.org/2", "https://b.org/2", [("-", "http"), ("+", "https"), ("=", "://b.org/2")]),
    ],
)
def test_words_that_differ_are_named(before: str, after: str, pieces: list[tuple[str, str]]) -> None:
    assert word_diff(before, after) == pieces


def test_both_texts_can_be_put_together_from_the_pieces() -> None:
    chance = random.Random(7)
    for _ in range(300):
        old = [chance.choice(["a", "b", "the", " ", "\n", ".", "\u00e9t\u00e9", "\U0001f600"]) for _ in range(40)]
        new = [word for word in old if chance.random() < 0.8]
        new.insert(chance.randrange(len(new) + 1), "NEW")
        pieces = word_diff("".join(old), "".join(new))
        assert "".join(text for kind, text in pieces if kind != "+") == "".join(old)
        assert "".join(text for kind, text in pieces if kind != "-") == "".join(new)
        assert all(text for _, text in pieces)


@pytest.mark.parametrize("unit", ["word other ", "the same line again\n", "x = 1\n"])
def test_long_texts_take_no_long_time(unit: str) -> None:
    before = unit * (1_000_000 // len(unit))
    after = unit.upper() * (500_000 // len(unit)) + before[: len(before) // 2] + "end"
    begun = time.process_time()
    pieces = word_diff(before, after)
    assert time.process_time() - begun < 4
    assert "".join(text for kind, text in pieces if kind != "+") == before
