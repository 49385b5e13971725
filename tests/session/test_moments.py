"""Versions of a list that store only what differs from the one before."""

from __future__ import annotations

from typing import Any

from connectagent.records.requests import Unrolled
from connectagent.session.moments import Moment


def test_a_version_shares_its_beginning_with_itself_and_the_one_before_only() -> None:
    first = Moment([1, 2, 3])
    second = Moment([4], first, 2)
    third = Moment([5, 6], second, 1)
    assert [moment.since() for moment in (first, second, third)] == [[1, 2, 3], [1, 2, 4], [1, 5, 6]]
    assert [third.since(start) for start in (1, 2, 3)] == [[5, 6], [6], []]
    assert (second.kept_of(second), second.kept_of(first)) == (3, 2)
    assert (third.kept_of(second), third.kept_of(first), third.kept_of(None)) == (1, 0, 0)


def test_equal_messages_are_found_where_they_are_now_when_the_end_was_replaced() -> None:
    def said(text: str) -> Any:
        return {"role": "user", "content": text}, {}, None, 0

    def places(text: str) -> list[int]:
        return list(conversation.places_of(said(text)[0]))

    conversation, first = Unrolled(), Moment([said(text) for text in "abab"])
    conversation.go_to(first)
    assert [places(text) for text in "abc"] == [[0, 2], [1, 3], []]
    conversation.go_to(Moment([said(text) for text in "cb"], first, 1))
    assert [places(text) for text in "abc"] == [[0], [2], [1]]
