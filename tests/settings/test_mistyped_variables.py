"""An environment variable with the name of a setting, nearly: a guard that it names would silently be missing."""

from __future__ import annotations

import pytest

from connectagent import Agent, ConfigError
from connectagent.settings.values import SETTINGS
from connectagent.testing import ScriptedLLM


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("CONNECTAGENT_PLUGIN", "CONNECTAGENT_PLUGINS"),
        ("CONNECTAGENT_PULGINS", "CONNECTAGENT_PLUGINS"),
        ("CONNECTAGENT_plugins", "CONNECTAGENT_PLUGINS"),
        ("CONNECTAGENT_MASKS", "CONNECTAGENT_MASK"),
        ("CONNECTAGENT_MAX_RECORD", "CONNECTAGENT_MAX_RECORDS"),
    ],
)
def test_it_is_an_error_that_names_the_right_one(monkeypatch: pytest.MonkeyPatch, written: str, meant: str) -> None:
    monkeypatch.setenv(written, "approve")
    with pytest.raises(ConfigError, match=f"variable {written} is no setting. Did you mean '{meant}'"):
        Agent("a", llm=ScriptedLLM(), log=False)


@pytest.mark.parametrize("name", ["LOCAL_MODEL", "CHROMIUM", "NODE", "COMPLETE", "MATRIX", "BISECT", "LEGS"])
def test_other_variables_are_let_be(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"CONNECTAGENT_{name}", "x")
    Agent("a", llm=ScriptedLLM(), log=False, quiet=True)


def test_no_setting_is_taken_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.setenv(f"CONNECTAGENT_{name.upper()}", "")
    Agent("a", llm=ScriptedLLM(), log=False, quiet=True)
