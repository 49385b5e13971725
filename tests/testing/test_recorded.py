"""The fixture `recorded`: a test's records by its name, misses that stop it at once, and no secret on the disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SECRET = "sk-proj-" + "a1B2c3D4" * 5
TEST = '''
import json
import os
import pytest
from connectagent import Agent, after_tools, before_each_tool
from connectagent.testing import ScriptedLLM, call

CHANGED = os.environ.get("CHANGED", "")

def refund(order: int) -> str:
    """Refund an order."""
    open("live.txt", "a").write("x")
    return f"refunded {order} with " + os.environ["OWN_TOKEN"]

@after_tools
def ask(agent):
    agent.ask("Is it " + ("wrong" if CHANGED == "ask" else "right") + "?", model="offline")

@before_each_tool
def change(tool_call):
    if CHANGED == "arguments":
        tool_call.arguments["order"] = 8

def make_agent(handlers=()):
    calls = [call("refund", order=7), "Done.", "Again."]
    return Agent("shop", [refund], llm=ScriptedLLM(*calls), on_events=list(handlers), quiet=True, log=False)

@pytest.mark.parametrize("prompt", ["Refund 7."])
def test_refund(recorded, prompt):
    agent = recorded(make_agent)
    try:
        assert agent.input("Refund 9." if CHANGED == "prompt" else prompt) == "Done."
    except Exception:
        pass  # no miss may be caught
    if CHANGED == "turn":
        agent.input("More")

def test_two(recorded):
    for prompt in ("One", "Two"):
        agent = recorded(lambda: make_agent([ask, change]))
        assert agent.input(prompt) == "Done."
'''


@pytest.fixture(scope="module")
def tests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tests whose records are written."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "conftest.py").write_text('pytest_plugins = ["connectagent.testing"]\n')
    (folder / "test_shop.py").write_text(TEST)
    done = pytest_in(folder, "--record", CONNECTAGENT_MASK="off")
    assert done.returncode == 0, done.stdout
    (folder / "live.txt").unlink()
    return folder


def pytest_in(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    given = {**os.environ, "OWN_TOKEN": SECRET, **variables}
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, timeout=100)


def test_records_have_the_names_of_their_tests_and_no_secret_even_where_masking_is_off(tests: Path) -> None:
    records = {path.name: path.read_text("utf-8") for path in (tests / "records").iterdir()}
    assert sorted(records) == ["test_shop.test_refund_Refund_7._.yaml", "test_shop.test_two-2.yaml",
                               "test_shop.test_two.yaml"]  # fmt: skip
    assert not any(SECRET in text for text in records.values())
    assert "refunded 7 with [masked: OWN_TOKEN]" in records["test_shop.test_two.yaml"]


def test_what_is_as_it_was_passes_without_running_anything(tests: Path) -> None:
    assert pytest_in(tests).returncode == 0
    assert not (tests / "live.txt").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("prompt", ["1.1: other messages", "- user: Refund 7.", "+ user: Refund 9."]),
        ("turn", ["the record has 1 turns, and this is one more"]),
        ("ask", ["1.1: a model is asked, and has no answer: it asked something else there then"]),
        ("arguments", ["1.1: refund(order=8) is asked, and has no answer: it ran with other arguments then"]),
    ],
)
def test_a_miss_stops_the_test_and_says_what_differs(tests: Path, changed: str, said: list[str]) -> None:
    done = pytest_in(tests, "-k", "two" if changed in ("ask", "arguments") else "refund", CHANGED=changed)
    assert done.returncode == 1 and "1 failed" in done.stdout and "error" not in done.stdout.splitlines()[-1]
    for text in said:
        assert text in done.stdout
    assert not (tests / "live.txt").exists()


def test_bisect_says_which_plugin_changed_a_recorded_session(tests: Path) -> None:
    done = pytest_in(tests, "--bisect", "-k", "two", CHANGED="arguments")
    assert done.returncode == 1 and "bisect" in done.stdout
    assert "plays as it was without change" in done.stdout, done.stdout
    done = pytest_in(tests, "--bisect", "-k", "refund", CHANGED="prompt")
    assert "plays as it was: look at the test itself" in done.stdout, done.stdout
    assert "bisect" not in pytest_in(tests, "-k", "two", CHANGED="arguments").stdout
