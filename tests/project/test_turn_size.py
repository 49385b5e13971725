"""How much of the package one plain turn visits: what somebody reads who follows it step by step."""

from __future__ import annotations

import gc
import json
import os
import subprocess
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
# Upper bounds. Comprehensions count as functions, as Python 3.11 runs them.
# Checking the arguments of a call before its handlers, and reading them for the function, takes six functions in three
# files of their own. Judging why an answer stopped takes one file more, and so does noting who writes to the state, and
# the journal, which is empty in a turn that is not resumed.
FUNCTIONS, FILES, FILE_CHANGES = 110, 23, 146


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
    """Whether a function is the package's own."""
    return Path(code.co_filename).is_relative_to(PACKAGE)


def stands_in(code: CodeType) -> bool:
    """Whether a function is part of the scripted model that stands in for a provider."""
    return Path(code.co_filename).is_relative_to(PACKAGE / "testing")


def visited(work: Callable[[], Any]) -> list[CodeType]:
    """The package's functions in the order in which `work` enters them, a generator anew after each yield."""
    entered: list[CodeType] = []
    model: list[FrameType] = []  # the scripted model, while it answers: what it calls is not the turn's

    def note(frame: FrameType, event: str, _: Any) -> None:
        if model:
            if event == "return" and frame is model[0]:
                model.clear()
        elif event == "call" and stands_in(frame.f_code):
            model.append(frame)
        elif event == "call":
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


def sizes() -> dict[str, int]:
    """How many functions and files a plain turn visits, and how often it goes to another file."""
    make_agent().input("Double 2.")  # the first turn imports and fills caches
    agent = make_agent()
    results: list[str] = []
    entered = visited(lambda: results.append(agent.input("Double 2.")))
    assert results == ["Done."]
    files = [code.co_filename for code in entered]
    changes = sum(one != other for one, other in pairwise(files))
    return {"functions": len(set(entered)), "files": len(set(files)), "changes of file": changes}


def test_a_plain_turn_visits_few_functions_and_files() -> None:
    # In a process of its own: threads that other tests have left make a turn look for what they did.
    code = "import json, test_turn_size; print(json.dumps(test_turn_size.sizes()))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    bounds = {"functions": FUNCTIONS, "files": FILES, "changes of file": FILE_CHANGES}
    assert all(found[name] <= bound for name, bound in bounds.items()), f"{found} above {bounds}"
