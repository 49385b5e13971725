"""The plugin tester in this repository: the examples keep its rules, and its paths are those of the hook table."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from pytest_connectagent import AgentTester
from pytest_connectagent import tester as check_module
from pytest_connectagent.paths import PATHS, TOOLS, PathModel

from connectagent.testing import (
    HookRecorder,
    run_agent,
)

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
tester = AgentTester()

DECLARED: dict[str, dict[str, Any]] = {
    "approve_before_tools": {"changes": {"rejection"}},
    "cache_answers": {"changes": {"response"}, "shares_state": True},
    "hand_over": {"changes": {"terminal"}},
    "log_each_tool": {"changes": {"terminal?"}},  # as the program has set up logging
    "recover_failing_model": {"changes": {"retry", "response"}},
    "recover_failing_tool": {"changes": {"retry", "result?"}},  # a result on few paths only
    "redact_secrets": {"changes": {"response", "result"}},
    "reflect_after_tools": {"changes": {"messages"}},
    "watch_context": {"changes": {"request?", "terminal?"}},  # the conversations of the paths are short
}


def test_every_example_that_brings_handlers_is_declared() -> None:
    marked = [
        path.stem
        for path in EXAMPLES.glob("*.py")
        if re.search(r"^ *@(on|before|after|around)_", path.read_text("utf-8"), re.M)
    ]
    assert sorted(marked) == sorted(DECLARED)


@pytest.mark.parametrize("path", [EXAMPLES / f"{name}.py" for name in DECLARED], ids=lambda path: path.stem)
def test_the_examples_keep_the_rules(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin: Any = str(path)
    for name in ("PATHS", "PLAIN"):
        monkeypatch.setattr(check_module, name, getattr(check_module, name)[::3])
    if path.stem == "cache_answers":
        scope: dict[str, Any] = {"__name__": "cache_answers"}
        exec(compile(path.read_text("utf-8"), str(path), "exec"), scope)
        plugin = scope["Cache"]()
    tester.check(plugin, **DECLARED[path.stem])


def test_a_check_takes_less_than_five_seconds() -> None:
    started = time.process_time()  # of this process alone: the machine may be busy
    tester.check(str(EXAMPLES / "redact_secrets.py"), changes={"response", "result"})
    assert time.process_time() - started < 5


def test_the_paths_are_those_of_the_hook_table() -> None:
    from test_hook_table import PATHS as TABLE
    from test_hook_table import seen, spelled_out

    reached = set()
    for path in PATHS:
        recorder, llm = HookRecorder(), PathModel(path, ["Noted."])
        options: dict[str, Any] = {"max_iterations": path.limit, "stream": True, "tools": list(TOOLS)}
        turn = run_agent(llm=llm, plugins=[recorder, *path.drivers()], **options)
        assert turn.hooks.names == recorder.names
        reached.add(shape(seen(recorder)))
    missing = [row.name for row in TABLE if shape(spelled_out(row.hooks)) not in reached]
    assert missing == []


def shape(names: list[str]) -> str:
    """A path without how often it goes round: several calls or rounds in a row are one."""
    words = [word for index, word in enumerate(names) if names[index - 1 : index] != [word]]
    again = True
    while again:
        again = False
        for length in range(2, 12):
            for start in range(len(words) - 2 * length + 1):
                if words[start : start + length] == words[start + length : start + 2 * length]:
                    del words[start : start + length]
                    again = True
                    break
    return " ".join(words)
