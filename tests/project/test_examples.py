"""Each file in examples/ runs by itself, in an empty folder, without a key, and prints what it promises."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from connectagent.models.names import PROVIDERS

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
KEYS = {provider.key_variable for provider in PROVIDERS.values()}

PRINTS = {
    "approve_before_tools": ["read_file -> (the text of old.log)", "delete_file -> rejected: The user does not allow"],
    "ask_agents": ["Go on Sunday.", "{'weather': 'Paris', 'traffic': 'Paris'}", "planner.traffic answered"],
    "cache_answers": ["success, 0 from the cache\nstand_in, 1 from the cache"],
    "hand_over": ["You owe 30 USD.", "desk.billing calls find_invoice", "Now answers: refunds"],
    "log_each_tool": [
        "INFO divide({'a': 10, 'b': 4}) = 2.5 (",
        "ERROR divide({'a': 1, 'b': 0}) failed: division by zero",
    ],
    "recover_failing_model": ["[offline]", "All models are busy. Please ask again in a minute.\n['recovered']"],
    "recover_failing_tool": ["yesterday's price", "3 attempts"],
    "redact_secrets": ["api_key = [key], support = [phone]", "The key is in the session: False"],
    "reflect_after_tools": [
        "[offline] Done, 1 tool call",
        "The model was asked: Before you go on: what did search tell you",
    ],
    "state_in_prompt": [
        "The model read: You keep the list of Ada. So far: nothing.",
        "The model read: You keep the list of Ada. So far: milk.",
        "{'items': 'milk'} by add",
    ],
    "stream_events": ["2 words so far", "left after 5 words: the outcome is ended", "[search: success]"],
    "write_and_review": ["Published: Herons, Ardea cinerea, eat fish.", "critic: Say what they eat."],
    "watch_context": ["the context is 0 % full", "2 old results are left out", "I have read three pages."],
}


def run(path, folder):
    environment = {name: value for name, value in os.environ.items() if name not in KEYS}
    environment = {name: value for name, value in environment.items() if not name.startswith("CONNECTAGENT_")}
    environment |= {"PYTHONPATH": str(path.parents[1]), "HOME": str(folder), "PYTHONWARNINGS": "error"}
    return subprocess.run(
        [sys.executable, path], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )


def test_every_example_has_its_expected_output():
    assert sorted(PRINTS) == [path.stem for path in EXAMPLES]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_does_what_it_says(path, tmp_path):
    done = run(path, tmp_path)
    assert done.returncode == 0, done.stderr
    for text in PRINTS[path.stem]:
        assert text in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_says_what_it_shows(path):
    text = path.read_text(encoding="utf-8")
    assert len(ast.get_docstring(ast.parse(text)) or "") > 80
    assert len(text.splitlines()) <= 60


def test_the_key_that_around_tool_hides_is_not_in_the_record(tmp_path):
    run(next(path for path in EXAMPLES if path.stem == "redact_secrets"), tmp_path)
    (record,) = tmp_path.glob(".co/evals/*.yaml")
    assert "[key]" in record.read_text()
    assert "sk-abc123" not in record.read_text()
