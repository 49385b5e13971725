"""The sessions of format 1 that are stored here, one of each shape.

`python tests/support/record_formats/shapes.py FOLDER` wrote them, with the last code that wrote format 1.
Later code would write its own format.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from connectagent import Agent, Pause, Paused, ToolCall, before_each_tool
from connectagent.testing import ScriptedLLM

FOLDER = Path(__file__).parent / "format_1"
SECRET = "sk-live-0123456789abcdef"
RAN: list[str] = []  # the payments that were made in this process
_KILLED = 9


class Shape(NamedTuple):
    """How a session of one shape is made.

    Args:
        make: the agent, by what its models answer in turn.
        scripts: what the models answer; those of the agents inside come after the first.
        prompts: the turns.
        decision: what a person decides when the last turn was paused; None for nothing.
        closed: how many of its turns are closed.
        status: what `connectagent log list` says of it on another host.
        key: the session's key, if it has one.
    """

    make: Callable[..., Agent]
    scripts: tuple[tuple[Any, ...], ...]
    prompts: tuple[str, ...] = ("Go on.",)
    decision: dict[str, Any] | None = None
    closed: int = 1
    status: str = "answered"
    key: str | None = None


def pay(amount: int) -> str:
    """Pay an amount."""
    RAN.append(f"pay {amount}")
    return f"paid {amount}"


def look(what: str) -> str:
    """Look something up."""
    return f"three pages about {what}"


def die(why: str) -> str:
    """Let the process die."""
    RAN.append("die")
    os._exit(_KILLED)


def sign_in(key: str) -> str:
    """Sign in with a key."""
    return f"signed in with {key}"


@before_each_tool
def ask(tool_call: ToolCall) -> None:
    """Let a person decide about payments."""
    if tool_call.name == "pay":
        raise Pause(f"pay {tool_call.arguments['amount']}?")


def _llm(script: tuple[Any, ...]) -> ScriptedLLM:
    return ScriptedLLM(*script)


def lone(script: tuple[Any, ...]) -> Agent:
    """An agent whose payments wait for a person."""
    tools = [pay, look, die, sign_in]
    return Agent("shop", tools, "You are a shop.", llm=_llm(script), plugins=[ask], quiet=True, parallel_tools=4)


def tree(script: tuple[Any, ...], inner: tuple[Any, ...]) -> Agent:
    """An agent with another one as a tool."""
    helper = Agent("helper", [look], llm=_llm(inner), state={"seen": 0}, quiet=True)
    return Agent("desk", [helper], llm=_llm(script), state={"seen": 0}, quiet=True)


def team(script: tuple[Any, ...], inner: tuple[Any, ...]) -> Agent:
    """An agent that hands over to another one."""
    billing = Agent("billing", [look], llm=_llm(inner), quiet=True)
    return Agent("front", sub_agents=[billing], llm=_llm(script), quiet=True)


PAY = ("pay", {"amount": 5})
LOOK = ("look", {"what": "tea"})
SHAPES: dict[str, Shape] = {
    "closed": Shape(lone, ((LOOK, "Three pages.", "Yes."),), ("What about tea?", "Sure?"), closed=2),
    "paused": Shape(lone, (("Hello.", PAY),), ("Hello", "Pay 5."), status="paused"),
    "killed": Shape(lone, (("Hello.", LOOK, ("die", {"why": "now"})),), ("Hello", "Die."), status="unfinished"),
    "parallel": Shape(lone, (([LOOK, ("look", {"what": "milk"}), ("look", {"what": "salt"})], "Nine pages."),)),
    "inside": Shape(tree, ((("helper", {"task": "Look up tea."}), "Done."), (LOOK, "Three pages."))),
    "handed_over": Shape(
        team,
        ((("transfer_to_agent", {"agent_name": "billing", "message": "An invoice."}),), ("It is paid.", "Yes, paid.")),
        ("Is it paid?", "Sure?"),
        closed=2,
    ),
    "keyed": Shape(lone, ((LOOK, "Three pages.", "Yes."),), ("What about tea?", "Sure?"), closed=2, key="ticket-7"),
    "decided": Shape(lone, ((PAY, "Paid."),), ("Pay 5.",), {"approve": True}),
    "decided_open": Shape(
        lone,
        (("Hello.", PAY, ("die", {"why": "now"})),),
        ("Hello", "Pay 5."),
        {"approve": True},
        status="unfinished",
    ),
    "masked": Shape(lone, ((("sign_in", {"key": SECRET}), "Signed in."),)),
}


def _take(name: str) -> None:
    """Take the turns of a session, in the current folder."""
    shape = SHAPES[name]
    agent = shape.make(*shape.scripts)
    session = None if shape.key is None else agent.for_session(shape.key)
    for prompt in shape.prompts:
        try:
            if session is None:
                agent.input(prompt)
            else:
                session.turn(prompt)
        except Paused:
            if shape.decision is not None:
                agent.resume(**shape.decision)


def write(name: str, folder: Path) -> Path:
    """Write the record of a shape into a folder, without what tells of this machine."""
    work = folder / f".{name}"
    work.mkdir(parents=True)
    environment = {**os.environ, "SHOP_API_KEY": SECRET, "CONNECTAGENT_DIR": str(work / ".co")}
    done = subprocess.run([sys.executable, __file__, "--take", name], cwd=work, env=environment, timeout=60)
    assert done.returncode in (0, _KILLED), done
    [record] = (work / ".co" / "evals").rglob("*.yaml")
    text = record.read_text().replace(str(work), "/home/ada").replace(str(Path(__file__)), "/home/ada/shop.py")
    text = re.sub(r'owner: \{.*\}', 'owner: {"host": "desk", "boot": null, "pid": 1}', text)
    written = folder / f"{name}.yaml"
    written.write_text(text)
    return written


if __name__ == "__main__":
    if sys.argv[1] == "--take":
        _take(sys.argv[2])
    else:
        for each in SHAPES:
            print(write(each, Path(sys.argv[1])))
