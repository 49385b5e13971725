"""How often the project's file is looked for: each time takes a walk up the folders."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_turn_size import visited

from connectagent import Agent
from connectagent.settings import looking_once, project, project_file, setting
from connectagent.testing import ScriptedLLM


def walks(work: Callable[[], Any]) -> int:
    """How often something walked up the folders."""
    return visited(work).count(project._nearest_file.__code__)


def test_neither_a_new_agent_nor_a_turn_looks_for_each_setting_anew() -> None:
    agents: list[Agent] = []
    assert walks(lambda: agents.append(Agent("a", llm=ScriptedLLM("One.", "Two."), quiet=True))) <= 3
    assert walks(lambda: agents.append(agents[0].again())) <= 3
    assert walks(lambda: agents[0].input("first")) <= 4
    assert walks(lambda: agents[0].input("second")) <= 2


def test_a_setting_is_seen_as_soon_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert setting("model") is None
    file = tmp_path / "pyproject.toml"
    file.write_text('[tool.connectagent]\nmodel = "one"\n', encoding="utf-8")
    assert setting("model") == "one"

    def changed() -> None:
        assert setting("model") == "one"
        file.write_text('[tool.connectagent]\nmodel = "two"\n', encoding="utf-8")
        os.utime(file, ns=(1, 1))
        assert setting("model") == "two"

    looking_once(changed)
    file.unlink()
    assert project_file(tmp_path) is None
    assert setting("model") is None


def test_what_was_found_is_forgotten_where_the_work_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.connectagent]\n", encoding="utf-8")

    def failing() -> None:
        assert project_file() == tmp_path / "pyproject.toml"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        looking_once(lambda: looking_once(failing))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "pyproject.toml").write_text("[tool.connectagent]\n", encoding="utf-8")
    monkeypatch.chdir(elsewhere)
    assert project_file() == elsewhere / "pyproject.toml"
