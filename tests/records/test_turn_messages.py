"""The messages of a turn are read from its record one after the other, as a reader of the whole line has them."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent
from connectagent.records import messages as reading
from connectagent.records.lines import pair_of, text_of
from connectagent.records.messages import KEY, TurnMessages
from connectagent.records.read import read_lazily, read_record
from connectagent.records.yaml_lines import json_line
from connectagent.testing import ScriptedLLM

CASES = int(os.environ.get("PROPERTY_CASES", 10_000)) // 5
PIECES = ("a", "é", "\\", "\\\\", '"', "\n", "世", "😀", "\u2028", "\x00", "[", "]", "{", ",", " ", "\\u12", "\ud800")


def some_text(chance: random.Random) -> str:
    return "".join(chance.choices(PIECES, k=chance.randrange(30)))


def some_value(chance: random.Random, depth: int = 0) -> Any:
    if depth < 3 and chance.random() < 0.6:
        return {some_text(chance): some_value(chance, depth + 1) for _ in range(chance.randrange(4))}
    return chance.choice([1, 12345, 1.5, True, None, [], {}, [1, [2, some_text(chance)]], some_text(chance)])


def damaged(text: str, chance: random.Random) -> str:
    return text[: chance.randrange(len(text) + 1)] + chance.choice(["", "x", "]", ",", "[]", " "])


def test_they_are_those_of_the_whole_line_and_what_is_no_list_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, path = random.Random(5), tmp_path / "record.yaml"
    for _ in range(CASES):
        monkeypatch.setattr(reading, "_PIECE", chance.choice([1, 2, 3, 7, 64, 1000]))
        text = json.dumps([some_value(chance) for _ in range(chance.randrange(6))], ensure_ascii=chance.random() < 0.5)
        text = damaged(text, chance) if chance.random() < 0.2 else text
        line = KEY[:-1] + json_line(text).encode() + b"\n"
        path.write_bytes(b"format: 1\n" + line + b"  status: answered\n")
        there = TurnMessages(path, 10, 10 + len(line))
        try:
            wanted = json.loads(pair_of(text_of(line)[2:])[1])
        except ValueError:
            wanted = None
        if isinstance(wanted, list):
            assert list(there) == wanted
        else:
            with pytest.raises(ValueError, match=r"list|Expecting|delimiter"):
                list(there)


def test_a_record_is_read_without_them_until_they_are_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / ".co"))
    agent = Agent("brief", llm=ScriptedLLM("One.", "Two."), quiet=True)
    agent.input("First")
    agent.input("Second")
    path = str(agent.record)
    whole, lazy = read_record(path), read_lazily(path)
    for turn, other in zip(whole["turns"], lazy["turns"], strict=True):
        assert list(turn) == list(other)
        assert json.loads(turn.pop("messages")) == list(other.pop("messages"))
    assert whole == lazy


def test_a_line_of_messages_that_is_torn_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / ".co"))
    agent = Agent("brief", llm=ScriptedLLM("One."), quiet=True)
    agent.input("First")
    path = tmp_path / "torn.yaml"
    text = Path(str(agent.record)).read_text("utf-8")
    path.write_text(text[: text.index("  messages: ") + 30], "utf-8")
    assert "messages" not in read_lazily(path)["turns"][0]
    assert read_lazily(path) == read_record(path)
