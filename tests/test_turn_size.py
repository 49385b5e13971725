"""How much of the package one plain turn visits: what somebody reads who follows it step by step."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import connectagent
from connectagent import Agent, after_tools
from connectagent.testing import ScriptedLLM, call

PACKAGE = Path(connectagent.__file__).parent
# Upper bounds, to be lowered to 100, 18 and 130. Comprehensions count as functions, as Python 3.11 runs them.
FUNCTIONS, FILES, FILE_CHANGES = 224, 32, 354


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


@after_tools
def look(agent: Any) -> None:
    """Look at a round of tools, and change nothing."""


def make_agent() -> Agent:
    llm = ScriptedLLM(call("double", x=2), "Done.")
    return Agent("a", [double], llm=llm, on_events=[look], log=False, quiet=True)


def belongs(code: CodeType) -> bool:
    """Whether a function is the package's own, and not part of the scripted model that stands in for a provider."""
    path = Path(code.co_filename)
    return path.is_relative_to(PACKAGE) and not path.is_relative_to(PACKAGE / "testing")


def visited(work: Callable[[], Any]) -> list[CodeType]:
    """The package's functions in the order in which `work` enters them, a generator anew after each yield."""
    entered: list[CodeType] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            entered.append(frame.f_code)

    gc.disable()  # what it frees may run code of its own
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return [code for code in entered if belongs(code)]


def test_a_plain_turn_visits_few_functions_and_files() -> None:
    make_agent().input("Double 2.")  # the first turn imports and fills caches
    agent = make_agent()
    results: list[str] = []
    entered = visited(lambda: results.append(agent.input("Double 2.")))
    assert results == ["Done."]
    files = [code.co_filename for code in entered]
    changes = sum(one != other for one, other in pairwise(files))
    sizes = {"functions": len(set(entered)), "files": len(set(files)), "changes of file": changes}
    bounds = {"functions": FUNCTIONS, "files": FILES, "changes of file": FILE_CHANGES}
    assert all(sizes[name] <= bound for name, bound in bounds.items()), f"{sizes} above {bounds}"
