"""Ctrl-C at every line while agents ask each other at the same time and hand over: the whole tree goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from test_conversation_interrupts import PACKAGE, CtrlC

from connectagent import Agent, after_user_input
from connectagent.testing import ScriptedLLM, call
from connectagent.testing import conversation_problems as problems

WATCHED = tuple(
    f"{PACKAGE}/{name}.py"
    for name in [
        "agents/agent",
        "agents/handoff",
        "agents/tree",
        "loop/parallel",
        "loop/tool_call",
        "loop/turn",
        "session/conversation",
    ]
)


def mark(agent: Any, x: int) -> str:
    """Mark."""
    agent.current_session["state"]["x"] = x
    return "marked"


def _made(name: str, *script: Any, **options: Any) -> Agent:
    return Agent(name, llm=ScriptedLLM(*script), log=False, quiet=True, **options)


def _tree() -> Agent:
    return _made(
        "root",
        [call("a", prompt="x"), call("b", prompt="y")],
        call("transfer_to_agent", agent_name="c"),
        "End.",
        tools=[_made("a", call("mark", x=1), "A", tools=[mark]), _made("b", "B")],
        sub_agents=[
            _made("c", call("transfer_to_agent", agent_name="d")),
            _made("d", call("transfer_to_agent", agent_name="root")),
        ],
    )


_before: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def threads_of_other_tests() -> None:
    _before.update(threading.enumerate())


def _what_is_wrong(root: Agent) -> list[str]:
    """With the tree after the interrupt, and with its next turn."""
    new = [thread for thread in threading.enumerate() if thread.name.startswith("agent-") and thread not in _before]
    found = [f"{thread} still runs" for thread in new]
    session: Any = root.current_session
    if session is not None:
        session["active_agent"] = None
    agents = [root, *root.children]
    for agent in agents:
        agent.llm = ScriptedLLM(f"again {agent.name}")
    root.llm = ScriptedLLM([call("a", prompt="x"), call("b", prompt="y")], call("transfer_to_agent", agent_name="c"))
    try:
        if (result := root.input("Go on.")) != "again c":
            found.append(f"the next turn gave {result!r}")
    except BaseException as error:
        found.append(f"the next turn failed: {error!r}")
    for agent in agents:
        assert isinstance(agent.llm, ScriptedLLM)
        found += [text for request in agent.llm.requests for text in problems(request.messages)]
        session = agent.current_session
        if agent.in_turn or agent.boundary.innermost() or (session is not None and session["pending_tool"]):
            found.append(f"{agent.name} is not at rest")
    return found


STEP = 1 if os.environ.get("CONNECTAGENT_CUTS") == "all" else 3  # by default every third line


def test_a_tree_that_is_interrupted_at_any_line_of_the_package_can_go_on() -> None:
    with CtrlC(0, WATCHED) as watch:
        _tree().input("Go.")
    seen: Counter[str] = Counter()
    broken: dict[str, list[str]] = {}
    for number, place in enumerate(watch.lines, start=1):
        seen[place] += 1
        if seen[place] > 1 or len(seen) % STEP:
            continue
        root = _tree()
        with CtrlC(number, WATCHED) as ctrl_c:
            try:
                root.input("Go.")
            except KeyboardInterrupt:
                pass
            else:
                assert not ctrl_c.where, f"{ctrl_c.where}: the interrupt was swallowed"
        if ctrl_c.where and (found := _what_is_wrong(root)):
            broken.setdefault(ctrl_c.where, found)
    assert len(seen) > 300
    assert not broken, "\n".join(f"{where}: {found}" for where, found in broken.items())


class Pressing(list[Any]):
    """The turns inside a turn; Ctrl-C comes just before another one is added."""

    def __init__(self, turn: Any) -> None:
        self.turn = turn

    def append(self, inner: Any) -> None:
        self.turn.stop()
        super().append(inner)


@pytest.mark.parametrize("moment", ["before the tool asks", "while the turn begins"])
def test_an_agent_that_is_asked_in_a_stopped_turn_asks_no_model(moment: str) -> None:
    below = Agent("below", llm=ScriptedLLM("Well."), log=False, quiet=True)

    def ask(agent: Agent) -> str:
        """Ask another agent, though Ctrl-C has come."""
        turn: Any = agent.turn
        turn.stop() if moment == "before the tool asks" else setattr(turn, "inner", Pressing(turn))
        return str(below.input("Go"))

    above = Agent("above", [ask], llm=ScriptedLLM(call("ask"), "Done."), log=False, quiet=True, sub_agents=[below])
    with pytest.raises(KeyboardInterrupt):  # not an empty text as what `below` said
        above.input("Go")
    assert below.llm.requests == [] and above.turn is None  # type: ignore[attr-defined]


HALF_A_TURN = """
import os, signal, time
from connectagent import Agent, Parallel, on_complete
from connectagent.testing import ScriptedLLM

said, completed = [], []

@on_complete
def note(agent):
    completed.append(agent.name)

def made(*script):
    left, right = Agent("left", llm=ScriptedLLM(*script), quiet=True), Agent("right", llm=ScriptedLLM("R."), quiet=True)

    def ask(prompt):
        for one in (left, right):
            said.append(one.input(prompt))
        return " ".join(said)

    boss = Agent("boss", run=ask, sub_agents=[left, right], quiet=True)
    other = Agent("other", llm=ScriptedLLM(lambda *given: time.sleep(0.2) or "O."), quiet=True)
    return Parallel("all", [boss, other], plugins=[note], quiet=True)

def slow(messages, tools):
    os.kill(os.getpid(), signal.SIGINT)
    end = time.time() + 10
    while not root.find("left").turn.stopped and time.time() < end:
        time.sleep(0.001)
    return "L."

root = made(slow)
try:
    root.input("Go")
except KeyboardInterrupt:
    print(said, completed)
print([made().resume(root.record)], sorted(completed))
"""


@pytest.mark.usefixtures("ctrl_c")
def test_a_function_gets_no_result_of_an_agent_whose_turn_was_interrupted(co_dir: Path) -> None:
    script = Path("half.py")
    script.write_text(HALF_A_TURN)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    interrupted, resumed = done.stdout.splitlines()
    assert interrupted == "[] []"  # `ask` did not go on with an empty text
    assert resumed == "['boss: L. R.\\n\\nother: O.'] ['all', 'boss', 'left', 'other', 'right']"


class Slow(dict[str, int]):
    """A value whose first copy for the turn of an inner agent is over when Ctrl-C has ended the root's turn."""

    pressed, over = threading.Lock(), threading.Event()

    def __copy__(self) -> Slow:
        asked = any(frame.name == "_inner_turn" for frame in traceback.extract_stack())
        if asked and self.pressed.acquire(blocking=False):
            time.sleep(0.1)  # a signal just before the main thread waits is heard only when it wakes
            os.kill(os.getpid(), signal.SIGINT)
            self.over.wait(10)
        return Slow(self)


@pytest.mark.usefixtures("ctrl_c")
def test_the_turn_of_an_agent_that_is_left_behind_before_it_begins_does_nothing() -> None:
    @after_user_input
    def give(agent: Agent) -> None:
        agent.state["slow"] = Slow()

    below = [_made(name, call("mark", x=1), name, tools=[mark]) for name in "ab"]
    root = _made("root", [call("a", prompt="x"), call("b", prompt="y")], tools=below, on_events=[give])
    with pytest.raises(KeyboardInterrupt):
        root.input("Go.")
    Slow.over.set()
    for thread in threading.enumerate():
        if thread.name.startswith("agent-") and thread not in _before:
            thread.join(10)
    assert [agent.llm.requests for agent in below if isinstance(agent.llm, ScriptedLLM)] == [[], []]
