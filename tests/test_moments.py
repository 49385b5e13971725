"""Versions of a list that store only what differs from the one before."""

from __future__ import annotations

from connectagent.session.moments import Moment


def test_a_version_shares_its_beginning_with_itself_and_the_one_before_only() -> None:
    first = Moment([1, 2, 3])
    second = Moment([4], first, 2)
    third = Moment([5, 6], second, 1)
    assert [moment.since() for moment in (first, second, third)] == [[1, 2, 3], [1, 2, 4], [1, 5, 6]]
    assert [third.since(start) for start in (1, 2, 3)] == [[5, 6], [6], []]
    assert (second.kept_of(second), second.kept_of(first)) == (3, 2)
    assert (third.kept_of(second), third.kept_of(first), third.kept_of(None)) == (1, 0, 0)
