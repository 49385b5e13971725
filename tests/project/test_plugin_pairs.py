"""Plugins of this project keep the rules beside each other, in any order; `CONNECTAGENT_TESTER=all` takes each pair."""

from __future__ import annotations

import importlib
import os
import random
from collections.abc import Callable
from itertools import permutations
from typing import Any

import forked
import pytest
from pytest_connectagent.pairs import orders, outcomes
from pytest_connectagent.tester import declared_by

ALL = os.environ.get("CONNECTAGENT_TESTER") == "all"
SAMPLE = 1  # a pair takes some seconds

# How each is made; those that need a server or a large library are left out.
MADE: dict[str, Callable[[Any], Any]] = {
    "approve": lambda module: module.Approve(),
    "artifacts": lambda module: module.Artifacts(),
    "budget": lambda module: module.Budget(model_calls=100),
    "checkpoint": lambda module: module.Checkpoint(),
    "compact": lambda module: module.Compact(window=100_000),
    "loopguard": lambda module: module.LoopGuard(),
    "memory": lambda module: module.Memory(),
    "policy": lambda module: module.Policy(text="rules: [{allow: '*'}]"),
    "redact": lambda module: module.Redact(),
    "retry": lambda module: module.Retries(wait_s=0, attempts=2),
    "shellhooks": lambda module: module.ShellHooks(project=False, user=False),
    "verify": lambda module: module.Verify(lambda answer: None),
}
PAIRS = list(permutations(MADE, 2))
SEED = int(os.environ.get("CONNECTAGENT_TESTER_SEED", "7"))


def maker_of(name: str) -> Callable[[], Any]:
    module = pytest.importorskip(f"connectagent_{name}")
    return lambda: MADE[name](module)


@pytest.mark.parametrize("pair", PAIRS if ALL else random.Random(SEED).sample(PAIRS, SAMPLE), ids="-".join)
def test_two_plugins_keep_the_rules_together(pair: tuple[str, str]) -> None:
    (outcome,) = outcomes([pair], maker_of)
    assert not outcome.problem, outcome.problem


@pytest.mark.parametrize("name", MADE)
def test_what_a_plugin_declares_is_found_and_known(name: str) -> None:
    from pytest_connectagent.faults import CHANGES

    module = importlib.import_module(f"connectagent_{name}")
    assert {kind.removesuffix("?") for kind in declared_by(MADE[name](module)).changes} <= CHANGES.keys()


def test_a_pair_is_taken_in_both_orders_and_alone_without_another() -> None:
    assert orders("a", ()) == [("a",)] == orders("a", ("A",))
    assert orders("a", ("b", "c", "b")) == [("a", "b"), ("b", "a"), ("a", "c"), ("c", "a")]


PLUGIN = '''
from connectagent import after_tools

{changes}

@after_tools
def say(agent):
    agent.current_session["messages"].append({{"role": "user", "content": "Go on."}})
'''


@pytest.mark.parametrize(("declared", "code"), [('changes = ("messages",)', 0), ("", 1)])
def test_the_command_says_what_was_kept_and_ends_with_one_where_a_rule_was_broken(
    declared: str, code: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(PLUGIN.format(changes=declared))
    done = forked.run("-m", "connectagent", "plugins", "test", "own.py", check=False)
    assert done.returncode == code, done.stderr
    assert ("own.py: FAULTS" in done.stdout) == bool(code)
    assert f"{1 - code} of 1 kept the rules" in done.stdout
