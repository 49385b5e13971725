"""A record may hold as many values as the limit says, and not one more."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectagent import Agent
from connectagent.errors import ConfigError
from connectagent.records import follow, lines
from connectagent.records.follow import Follower
from connectagent.records.lines import MAX_DEPTH, count_values, value_of
from connectagent.records.read import read_record
from connectagent.testing import ScriptedLLM


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    agent = Agent("a", llm=ScriptedLLM("Done."), quiet=True)
    agent.input("Go.")
    return Path(str(agent.record))


def values_in(record: Path, without: str = "?") -> int:
    return sum(map(count_values, (line for line in record.read_text("utf-8").splitlines() if without not in line)))


def test_a_record_with_as_many_values_as_allowed_is_read_and_one_with_more_is_refused(record: Path) -> None:
    values = values_in(record)
    assert read_record(record, values)["turns"]
    with pytest.raises(ConfigError, match=f"behind {values - 1} values"):
        read_record(record, values - 1)


def test_a_record_that_is_followed_has_the_same_limit(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = values_in(record, "  messages: ")
    monkeypatch.setattr(follow, "MAX_VALUES", values)
    assert list(Follower(record).entries())
    monkeypatch.setattr(follow, "MAX_VALUES", values - 1)
    with pytest.raises(ConfigError, match=f"over {values - 1} values"):
        list(Follower(record).entries())


def test_a_value_of_a_line_has_the_same_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    many = MAX_DEPTH + 1
    text = "[" + ",".join(["[]"] * many) + "]"
    monkeypatch.setattr(lines, "MAX_VALUES", 1 + text.count(",") + text.count("["))
    assert value_of(text) == [[]] * many
    monkeypatch.setattr(lines, "MAX_VALUES", text.count(",") + text.count("["))
    with pytest.raises(ValueError, match="values"):
        value_of(text)
