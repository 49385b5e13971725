"""`connectagent log request` shows what a model call was sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectagent import Agent, before_llm
from connectagent.cli import main
from connectagent.testing import ScriptedLLM, call


def look(query: str) -> str:
    """Look something up."""
    return f"found {query}"


@before_llm
def remind(request: Any) -> None:
    if request.messages[-1]["role"] == "tool":
        request.messages.append({"role": "user", "content": "Be brief."})


@pytest.fixture
def record(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / ".co"))
    child = Agent("helper", llm=ScriptedLLM("Four."), description="Adds.", quiet=True)
    llm = ScriptedLLM(call("look", query="tea"), call("helper", prompt="2 + 2"), "Done.")
    agent = Agent("shop", [look, child], "You sell tea.", llm=llm, on_events=[remind], quiet=True)
    agent.input("Hi")
    return agent.record


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["log", "request", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_call_is_shown_with_what_is_new_in_it_and_by_whom(record: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, str(record), "2") == [
        "scripted · call 2 of 4 · iteration 2 · 5 messages",
        "  system: You sell tea.",
        "  user: Hi",
        '+ assistant: -> look({"query": "tea"})',
        "+ tool: found tea",
        "+ user (by remind): Be brief.",
        "tools: look, helper",
    ]


def test_the_calls_of_agents_inside_count_and_the_last_is_shown_by_default(
    record: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(capsys, str(record), "3")[:2] == ["scripted · call 3 of 4 · iteration 1 · 1 message", "+ user: 2 + 2"]
    assert shown(capsys, str(record))[0] == "scripted · call 4 of 4 · iteration 3 · 8 messages"


def test_json_is_the_request_itself(record: Any, capsys: pytest.CaptureFixture[str]) -> None:
    request = json.loads("\n".join(shown(capsys, str(record), "1", "--json")))
    assert [message["content"] for message in request["messages"]] == ["You sell tea.", "Hi"]
    assert [tool["function"]["name"] for tool in request["tools"]] == ["look", "helper"]


def test_a_call_that_does_not_exist_is_said_to_be_missing(record: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "request", str(record), "9"]) == 1
    assert "has 4 model calls; there is no call 9" in capsys.readouterr().err
