"""Promise 1: whatever handlers and tools do, each request is valid on all wires and the next `input()` works."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import yaml
from faulty_sessions import (
    CASES,
    MEAN,
    TURNS,
    Fault,
    Turn,
    play,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

TOO_DEEP = Turn([(None, [("good", "c1", {"x": 1})])], [Fault("after_llm", 0, "edit_given", 90)], [])  # to be traced


@MEAN
@given(st.lists(TURNS, min_size=1, max_size=3))
@example([TOO_DEEP])
def test_whatever_handlers_do_each_request_is_valid_and_the_next_turn_works(turns: list[Turn]) -> None:
    play(turns)


@settings(MEAN, max_examples=CASES // 6)
@given(turns=st.lists(TURNS, min_size=1, max_size=2))
def test_whatever_handlers_do_in_awaited_turns_the_same_holds(turns: list[Turn]) -> None:
    play(turns, awaited=True)


@settings(MEAN, max_examples=CASES // 10)
@given(turns=st.lists(TURNS, min_size=1, max_size=2))
def test_whatever_handlers_do_the_record_is_one_yaml_document(turns: list[Turn], tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("co")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a value that cannot be recorded may cost a warning, never the turn
        patch.setenv("CONNECTAGENT_DIR", str(folder))
        play(turns, log=None)
    records = list(folder.glob("evals/*.yaml"))
    assert records
    for record in records:
        document = yaml.safe_load(record.read_text(encoding="utf-8"))
        assert document["agent"] == "mean" and document["turns"][-1]["status"] == "answered"
