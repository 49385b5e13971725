"""Checks of wrong plugins that end with the first fault of a kind: going on finds it on a few hundred other paths."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from pytest_connectagent.faults import report
from pytest_connectagent.turns import Check


def end_when_found(rule: str, words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """End each check of this test once it has found a fault of a rule, with the words that its report is to have.

    CONNECTAGENT_TESTER=all takes every path.
    """
    if os.environ.get("CONNECTAGENT_TESTER") == "all" or rule == "hangs":
        return
    take = Check.take

    def taking(check: Check, run: Any) -> None:
        take(check, run)
        found = report(check.faults, check.turns, 0) if any(fault.rule == rule for fault in check.faults) else ""
        check.stopped = check.stopped or all(word in found for word in (rule, "(/", *words))

    monkeypatch.setattr(Check, "take", taking)
