"""What guards see of each type of argument is what the function gets, where another process goes on with the turn.

Two of the four ways to wait are tried; `CONNECTAGENT_MATRIX=all` tries each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from argument_types import KINDS
from resumed_guards import WAITS, Guarded
from test_canonical_arguments import plain, text
from test_guards_see_one_form import sendable

from connectagent import Paused, mask
from connectagent.testing import call

ALL_WAYS = [(waits, parallel) for waits in WAITS for parallel in (1, 4)]
WAYS = ALL_WAYS if os.environ.get("CONNECTAGENT_MATRIX") == "all" else ALL_WAYS[1:3]
MOST = 4
"""Spellings of a type in one round."""


def spellings_of(name: str) -> list[Any]:
    found = sendable(name)
    return found if len(found) <= MOST else found[:: len(found) // MOST][:MOST]


@pytest.fixture(scope="module", params=WAYS, ids=[f"{waits}, {parallel} at once" for waits, parallel in WAYS])
def resumed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """By type: what this process expects and its guards saw, and what the other process saw when it went on."""
    (waits, parallel), folder = request.param, tmp_path_factory.mktemp("resumed")
    patch = pytest.MonkeyPatch()
    patch.chdir(folder)
    found: dict[str, Any] = {}
    asked: dict[str, Any] = {}
    for name in KINDS:
        sent = spellings_of(name)
        one = Guarded(name, waits, parallel, folder, [call("take", value=value) for value in sent])
        with pytest.raises(Paused) as stopped:
            one.agent.input("Go")
        one.undo()
        record = str(one.agent.record)
        found[name] = {
            "forms": [text(one.tool.canonical({"value": value})) for value in sent],
            "values": [str(plain(one.tool.bind({"value": value})["value"])) for value in sent],
            "guards": one.seen.by_guard,
            "waits": [text(wait.call["arguments"]) for wait in stopped.value.waiting if wait.call],
        }
        asked[name] = (name, waits, parallel, record, [wait.id for wait in stopped.value.waiting])
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    ended = subprocess.run(
        [sys.executable, str(Path(__file__).parents[1] / "support" / "resumed_guards.py")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "5"},
    )
    patch.undo()
    assert ended.returncode == 0, ended.stderr
    yield {name: {**found[name], "there": there} for name, there in json.loads(ended.stdout).items()}


@pytest.mark.parametrize("name", KINDS)
def test_guards_and_function_agree_in_another_process(name: str, resumed: dict[str, Any]) -> None:
    one = resumed[name]
    there = one["there"]
    if mask(one["forms"]) != one["forms"]:  # what is masked in a record cannot be run from it
        assert there["got"] == []
        return
    assert sorted(there["got"]) == sorted(one["values"])
    assert sorted(there["entries"]) == sorted(one["forms"])
    seen = {guard: [*shown, *there["guards"][guard]] for guard, shown in one["guards"].items()}
    assert set(seen) == {"policy", "shell hook", "adk", "approve"}
    for guard, shown in seen.items():  # each has decided once about each call, here or there
        assert sorted(shown) == sorted(one["forms"]), guard
    assert set(one["waits"] + there["waits"]) <= set(one["forms"])
