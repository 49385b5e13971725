"""Ctrl-C between an agent's last step and the line that ends its turn: no handler that has run does so again."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from test_conversation_interrupts import PACKAGE, CtrlC

from connectagent import Agent, Parallel, Sequential, after_each_tool, around_turn, frame, on_complete
from connectagent.loop.turn import Turn
from connectagent.testing import ScriptedLLM, call

WATCHED = tuple(f"{PACKAGE}/{name}.py" for name in ("agents/agent", "loop/nested", "loop/run", "loop/turn"))
WATCHED += tuple(f"{PACKAGE}/{name}.py" for name in ("records/turn_item", "records/encode"))

STEP = 1 if os.environ.get("CONNECTAGENT_CUTS") == "all" else 9  # by default every ninth line


def _tree(kind: str, completed: list[str], *plugins: Any, calls: Any = ()) -> Agent:
    @on_complete
    def note(agent: Agent) -> None:
        completed.append(agent.name)

    def made(name: str, *script: Any, **options: Any) -> Agent:
        return Agent(name, llm=ScriptedLLM(*script), quiet=True, **options)

    inner = made("inner", "I.", plugins=[note, *plugins])
    if kind == "tool":
        return made("root", *calls, "End.", tools=[inner])
    if kind == "sequential":
        return Sequential("root", [inner, made("last", "L.")], quiet=True)
    if kind == "parallel":
        return Parallel("root", [inner], quiet=True)
    if kind == "body":
        return Agent("root", run=lambda prompt: inner.input(prompt), sub_agents=[inner], quiet=True)
    return inner


class Armed(CtrlC):
    """Ctrl-C at the n-th line after the handlers of `inner` have seen its result."""

    def __enter__(self) -> Armed:
        complete = self.complete = Turn.complete

        def completing(turn: Turn, ending: Any) -> Any:
            more = complete(turn, ending)
            if turn.agent.name == "inner":
                CtrlC.__enter__(self)
                self.begin_here()
            return more

        Turn.complete = completing  # type: ignore[method-assign]
        return self

    def begin_here(self) -> None:
        """Trace the functions that run already."""
        frame = sys._getframe(1)
        while frame is not None:
            frame.f_trace = self._trace if frame.f_code.co_filename.startswith(self.watched) else None
            frame = frame.f_back  # type: ignore[assignment]

    def __exit__(self, *given: object) -> None:
        Turn.complete = self.complete  # type: ignore[method-assign]
        if hasattr(self, "before"):
            super().__exit__(*given)


def _interrupted(kind: str, at: int) -> tuple[str, list[str], Any]:
    """Where Ctrl-C came, which agents' handlers ran until the turn was over, and its result."""
    completed: list[str] = []
    root = _tree(kind, completed, calls=[call("inner", prompt="x")])
    with Armed(at, WATCHED) as ctrl_c, contextlib.suppress(KeyboardInterrupt):
        return "", completed, root.input("Go.")
    assert ctrl_c.where
    assert frame.current() is None  # else this thread could take no turn any more
    return ctrl_c.where, completed, _tree(kind, completed).resume(root.record)


@pytest.mark.parametrize("kind", ["tool", "sequential", "parallel", "body", "root"])
def test_what_has_seen_a_result_does_not_see_it_again_after_ctrl_c(kind: str, co_dir: Path) -> None:
    expected = _tree(kind, [], calls=[call("inner", prompt="x")]).input("Go.")
    seen: Counter[str] = Counter()
    for at in range(1, 500, STEP):
        where, completed, result = _interrupted(kind, at)
        if not where:
            break
        seen[where] += 1
        assert (completed, result) == (["inner"], expected), where
    assert len(seen) > 40 / STEP


def test_what_has_seen_a_result_does_not_see_it_again_after_a_later_error(co_dir: Path) -> None:
    completed: list[str] = []

    @around_turn
    def audit(agent: Agent) -> Any:
        yield
        if len(completed) < 2:
            completed.append("failed")
            raise OSError("no disk")

    def made() -> Agent:
        return _tree("sequential", completed, audit)

    root = made()
    with pytest.raises(OSError, match="no disk"):
        root.input("Go.")
    assert made().resume(root.record) == "L."
    assert completed == ["inner", "failed"]


def test_what_watches_a_tool_of_a_handler_that_fails_later_sees_it_once(co_dir: Path) -> None:
    seen: list[str] = []

    def look() -> str:
        """Look."""
        return "looked"

    @after_each_tool
    def note(entry: Any) -> None:
        seen.append(entry["tool_name"])

    @on_complete
    def check(agent: Agent) -> None:
        agent.execute_tool("look")
        if len(seen) < 2:
            seen.append("failed")
            raise OSError("no disk")

    def made() -> Agent:
        return Agent("root", [look], llm=ScriptedLLM("R."), plugins=[note, check], quiet=True)

    root = made()
    with pytest.raises(OSError, match="no disk"):
        root.input("Go.")
    assert made().resume(root.record) == "R."
    assert seen == ["look", "failed"]
