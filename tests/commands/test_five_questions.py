"""The five questions about a session, each answered by one command; tests/test_view_page.py answers them on the page.

The records have agents inside agents, a retried attempt, edits, a pause and a crash.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from view_agents import company, killed

from connectagent import Agent, LLMResponse, ProviderError, Retry, TokenUsage, on_error
from connectagent.cli import main
from connectagent.testing import ScriptedLLM

HERE = f"{Path(__file__).parent}{os.sep}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Said:
    return Said(capsys)


class Said:
    """What a command prints."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> str:
        self._capsys.readouterr()
        assert main([*arguments]) == 0
        text = self._capsys.readouterr().out
        # A file's place is one word, which no line can break: the clone's folder may be as long as it likes.
        assert max(map(len, text.replace(HERE, "").splitlines())) <= 80
        return text


def after(text: str, heading: str) -> list[list[str]]:
    """The words of the lines below a heading."""
    lines = text.split(f"{heading}\n")[1].splitlines()
    end = next((number for number, line in enumerate(lines) if not line.startswith(" ")), len(lines))
    return [line.split() for line in lines[:end]]


def test_what_failed_and_why(shown: Said) -> None:
    company()
    failed = shown("log", "summary", "editor").split("slowest calls")[0]
    assert 'editor: search(query="bad")\n    ValueError: nothing is there' in failed
    assert "view_agents.py:" in failed and "connection reset" in failed


def test_what_ran_when_the_process_died_in_the_agents_inside_too(shown: Said) -> None:
    killed()
    failed, slowest = shown("log", "summary", "doomed").split("slowest calls")
    assert "boom" not in slowest and "miner(" not in slowest  # nobody knows how long they took
    assert 'doomed: miner(prompt="Dig")' in failed and "miner: boom(size=7)" in failed
    assert failed.count("crashed: it was running when the process ended") == 2


def test_where_the_time_went(shown: Said) -> None:
    company()
    slowest = after(shown("log", "summary", "editor", "-n", "99"), "slowest calls")
    names = [line[0] + line[1].partition("(")[0] for line in slowest]
    inside = [number for number, name in enumerate(names) if name.startswith(("finder:", "checker:"))]
    assert len(inside) > 3 and names.index("editor:finder") < min(inside)  # it waits for them
    assert all(line[-1].endswith("ms") for line in slowest)


def test_what_it_cost_by_agent(shown: Said) -> None:
    company()
    cost = {line[0]: line for line in after(shown("log", "summary", "editor"), "cost")}
    assert cost["finder"][1:4] == ["220", "tok", "$0.0100"] and cost["checker"][1:4] == ["55", "tok", "$0.0010"]


def test_what_a_plugin_changed(shown: Said, capsys: pytest.CaptureFixture[str]) -> None:
    company()
    text = shown("blame", "editor", "plugin:date")
    assert "date edited a system message, " in text and "view_agents.py:" in text
    assert "It is [-some day-]{+Tuesday+}. Be brief." in text
    assert main(["blame", "editor", "plugin:dat"]) == 1
    assert "plugin 'dat' changed nothing. Did you mean 'date'?" in capsys.readouterr().err


def test_what_was_sent_in_a_call(shown: Said) -> None:
    company()
    assert shown("log", "request", "editor", "3").splitlines()[1:] == [
        "+ system: You find.",
        "+ user: Find it",
        "tools: checker",
    ]


def test_a_session_is_shown_with_the_agents_inside(shown: Said) -> None:
    company()
    tree = shown("log", "show", "editor")
    lines = [line.lstrip("│├└─ ") for line in tree.splitlines()]
    inside = lines[next(number for number, line in enumerate(lines) if line.startswith("agent finder")) :]
    assert inside[3].startswith("agent checker") and "55 tok" in inside[3]
    assert inside[6].startswith('✓ search(query="facts")')
    assert "agent_turn" not in tree


def test_a_call_that_a_plugin_let_be_made_again_is_paid_by_the_agent(capsys: pytest.CaptureFixture[str]) -> None:
    @on_error
    def again() -> Retry:
        return Retry()

    paid = LLMResponse("One.", usage=TokenUsage(3, 4, cost=0.5))
    busy = ProviderError("busy", kind="overloaded", provider="test")
    Agent("shop", llm=ScriptedLLM(busy, paid), on_events=[again], quiet=True).input("Hi")
    assert main(["log", "summary"]) == 0
    told = capsys.readouterr().out
    assert "(plugin)" not in told and re.search(r"shop +7 tok +\$0\.5", told)
