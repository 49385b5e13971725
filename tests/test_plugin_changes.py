"""What plugins changed, as `connectagent.records` tells it of a record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent, LLMResponse, after_user_input, before_llm
from connectagent.cli import main
from connectagent.records.changes_by_plugins import PluginChange, plugin_changes
from connectagent.records.read import read_record
from connectagent.records.watched import watched_agents
from connectagent.testing import ScriptedLLM, call


def fetch(place: str) -> str:
    """Fetch something."""
    raise OSError("gone")


class Editor:
    name = "editor"
    version = "1.2"

    @after_user_input
    def soften(self, agent: Any) -> None:
        agent.current_session["messages"][-1]["content"] = "Find it, please"
        agent.state["asked"] = 1

    @before_llm
    def stand_in(self, request: Any) -> LLMResponse | None:
        """Answer once a tool has ended."""
        if any(message["role"] == "tool" for message in request.messages):
            return LLMResponse("It is gone.")
        return None


@pytest.fixture
def changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[PluginChange]:
    monkeypatch.chdir(tmp_path)
    agent = Agent("finder", [fetch], llm=ScriptedLLM(call("fetch", place="x")), plugins=[Editor()], quiet=True)
    assert agent.input("Find it") == "It is gone."
    assert agent.record is not None
    return plugin_changes(watched_agents(read_record(agent.record)))


def test_each_change_has_what_was_done_and_the_texts_before_and_after(changes: list[PluginChange]) -> None:
    told = [(change.did, change.before, change.after) for change in changes]
    assert told[0] == ("edited a user message", "Find it", "Find it, please")
    assert told[1] == ("changed the state", "{}", '{\n  "asked": 1\n}')
    assert told[2] == ("answered", "", "It is gone.")
    assert len(told) == 3


def test_each_change_has_its_maker_and_its_place(changes: list[PluginChange]) -> None:
    assert {change.plugin for change in changes} == {"editor"}
    assert changes[0].place.startswith(f"{__file__}:") and changes[0].by["hook"] == "after_user_input"
    assert changes[0].inside == ""


def test_blame_prints_them_and_gives_them_as_json(
    changes: list[PluginChange], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["blame", "finder", "plugin:editor"]) == 0
    shown = capsys.readouterr().out
    assert "edited a user message, " in shown and "Find it{+, please+}" in shown
    assert main(["blame", "finder", "plugin:editor", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [one["did"] for one in data] == [change.did for change in changes]
    assert data[0]["diff"] == [["=", "Find it"], ["+", ", please"]] and data[0]["hook"] == "after_user_input"


def test_what_a_handler_raised_is_told_without_the_errors_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @before_llm
    def break_down() -> None:
        raise ValueError("no idea")

    monkeypatch.chdir(tmp_path)
    agent = Agent("finder", llm=ScriptedLLM("never"), on_events=[break_down], quiet=True)
    with pytest.raises(ValueError, match="no idea"):
        agent.input("Find it")
    assert agent.record is not None
    (change,) = plugin_changes(watched_agents(read_record(agent.record)))
    assert (change.did, change.before, change.after) == ("raised", "", "no idea")
