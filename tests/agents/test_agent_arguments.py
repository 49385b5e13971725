"""What `Agent(...)` does not take is told where it is given, with what would be accepted."""

from __future__ import annotations

from typing import Any

import pytest

from connectagent import Agent
from connectagent.errors import ConfigError
from connectagent.testing import ScriptedLLM


@pytest.mark.parametrize(
    ("argument", "value", "accepted"),
    [
        ("model", 42, "model is a str such as 'claude-sonnet-4-5' or 'provider/model', or None, not int 42"),
        ("model", b"gpt-4o", "model is a str"),
        ("model", ["gpt-4o"], "model is a str"),
        ("model", "", "unknown model ''"),
        ("model", ScriptedLLM(), "an LLM is given as llm="),
        ("llm", 42, r"llm is an object with model, a str, and complete\(messages, tools=None\), not int 42"),
        ("llm", "gpt-4o", "a name is given as model='gpt-4o'"),
        ("llm", object(), "llm is an object with model"),
        ("llm", ScriptedLLM, "llm is an object with model"),
        ("llm", ScriptedLLM(model=3), "llm is an object with model"),  # type: ignore[arg-type]
        ("api_key", 42, "api_key is a str or None, not int"),
        ("base_url", 42, "base_url is an address that begins with http"),
        ("base_url", "localhost:8000", "base_url is an address that begins with http"),
        ("options", 42, "options is a dict of the provider's parameters by name, not int"),
        ("options", {1: 2}, "options is a dict"),
        ("options", [("temperature", 1)], "options is a dict"),
        ("max_iterations", "3", "max_iterations is a whole number"),
        ("log", 42, "log is None, False or the text log's path, not int 42"),
        ("description", 42, "description of agent 'a' is a str or None, not 42"),
        ("output_key", 42, "output_key of agent 'a' is a str or None, not 42"),
        ("transfer_to", 42, "transfer_to takes 'children', 'parent', 'siblings', in a tuple, not 42"),
    ],
)
def test_what_is_not_accepted_is_a_config_error(argument: str, value: Any, accepted: str) -> None:
    given = {"model": "offline"} if argument in ("options", "log", "description", "output_key", "transfer_to") else {}
    given |= {"model": "openai/x"} if argument in ("api_key", "base_url") else {}
    with pytest.raises(ConfigError, match=accepted):
        Agent("a", **{"log": False, "quiet": True, **given, argument: value})


def test_a_key_of_another_type_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        Agent("a", model="openai/x", api_key=b"secret-bytes")  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


def test_directions_may_come_from_any_iterable() -> None:
    agent = Agent("a", model="offline", transfer_to=(one for one in ["parent"]), log=False, quiet=True)
    assert agent.transfer_to == ("parent",)
