"""The sessions of format 1 that are stored here, one of each shape.

`python tests/support/record_formats/shapes.py FOLDER` wrote them, with the last code that wrote format 1.
Later code would write its own format.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from connectagent import (
    Agent,
    Pause,
    Paused,
    ToolCall,
    after_each_tool,
    after_llm,
    after_tools,
    around_tool,
    around_turn,
    before_each_tool,
    before_llm,
)
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


@after_tools
def die_after_tools(agent: Agent) -> None:
    """Let the process die, in the second round that it sees."""
    agent.session["state"]["rounds"] = agent.session["state"].get("rounds", 0) + 1
    if agent.session["state"]["rounds"] == 2:
        os._exit(_KILLED)


@before_llm
def remind(agent: Agent) -> None:
    """Add a message, and edit one."""
    if agent.session["iteration"] == 2:
        agent.session["messages"].append({"role": "user", "content": "Be short."})
        agent.session["messages"][1]["content"] = "What about green tea?"


@after_llm
def watch(agent: Agent) -> None:
    """Observe."""


@after_each_tool
def shorten(result: str) -> str:
    """Change a result."""
    return result.upper()


@around_turn
def count_turns(agent: Agent) -> Iterator[None]:
    """Change the state around a turn."""
    agent.session["state"]["begun"] = agent.session["state"].get("begun", 0) + 1
    yield
    agent.session["state"]["ended"] = agent.session["state"].get("ended", 0) + 1


@around_tool
def time_tool(tool_call: ToolCall) -> Iterator[None]:
    """Change nothing."""
    yield


def _llm(script: tuple[Any, ...]) -> ScriptedLLM:
    return ScriptedLLM(*script)


def lone(script: tuple[Any, ...]) -> Agent:
    """An agent whose payments wait for a person."""
    tools = [pay, look, die, sign_in]
    return Agent("shop", tools, "You are a shop.", llm=_llm(script), plugins=[ask], quiet=True, parallel_tools=4)


def watched(script: tuple[Any, ...]) -> Agent:
    """An agent with handlers that dies in one of them."""
    handlers = [watch, die_after_tools]
    return Agent("shop", [look], llm=_llm(script), on_events=handlers, state={"rounds": 0}, quiet=True)


def edited(script: tuple[Any, ...]) -> Agent:
    """An agent whose handlers change its messages, results and state."""
    handlers = [remind, watch, shorten, count_turns, time_tool]
    return Agent("shop", [look], "You are a shop.", llm=_llm(script), on_events=handlers, quiet=True)


def paused_tree(script: tuple[Any, ...], inner: tuple[Any, ...]) -> Agent:
    """An agent with another one as a tool, whose payments wait for a person."""
    helper = Agent("helper", [look, pay], llm=_llm(inner), plugins=[ask], quiet=True)
    return Agent("desk", [helper], llm=_llm(script), quiet=True)


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
    "inside": Shape(tree, ((("helper", {"prompt": "Look up tea."}), "Done."), (LOOK, "Three pages."))),
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
    "hooked": Shape(watched, ((LOOK, "Three pages.", LOOK),), ("Hello", "Again"), status="unfinished"),
    "edited": Shape(edited, ((LOOK, "THREE.", "Yes."),), ("What about tea?", "Sure?"), closed=2),
    "paused_inside": Shape(
        paused_tree,
        (("Hello.", ("helper", {"prompt": "Pay 5."})), (LOOK, PAY)),
        ("Hello", "Pay."),
        status="paused",
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
