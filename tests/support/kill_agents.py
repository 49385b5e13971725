"""A process that forks agents which are killed and resumed; each line of its input is one agent, `pid` its answer."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from awaiting import go_on, take

from connectagent import Agent, after_tools, before_each_tool, tool
from connectagent.records.history import history_of
from connectagent.testing import conversation_problems


def agent_of(order: dict[str, Any]) -> Agent:
    """The agent of an order: its tools note each run in the side file, which no kill takes back."""
    side = os.open("side", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def ran(name: str, agent: Any) -> str:
        id = agent.current_session["pending_tool"]["id"]
        os.write(side, f"{name} {id}\n".encode())
        return f"result of {id} " + "é\u2028" * (os.fstat(side).st_size * 37 % 2000)  # long ones may be torn

    def step(n: int, agent: Any) -> str:
        """Do a step that must not be done twice."""
        return ran("step", agent)

    @tool(idempotent=True)
    def look(n: int, agent: Any) -> str:
        """Look at something."""
        return ran("look", agent)

    @before_each_tool
    def note(agent: Any) -> None:
        agent.current_session["state"]["calls"] = agent.current_session["state"].get("calls", 0) + 1

    @after_tools
    def reflect(agent: Any) -> None:
        agent.current_session["messages"].append({"role": "user", "content": "Go on."})

    return Agent(
        "killed",
        [step, look],
        model=order["model"],
        base_url=order["url"],
        api_key="key-of-nobody",
        quiet=True,
        stream=order["stream"],
        plugins=[note, reflect],
    )


def work(order: dict[str, Any]) -> None:
    """Take turns until killed; every tenth one begins a session of its own."""
    agent, number = agent_of(order), 0
    while True:
        number += 1
        take(agent, f"turn {number} of {order['tag']}", order["awaited"])


def resume(order: dict[str, Any]) -> dict[str, Any]:
    """Go on with what was killed, and take one more turn."""
    agent = agent_of(order)
    go_on(agent, order["record"], order["awaited"])
    result = take(agent, f"turn {order['turn']} of {order['tag']}", order["awaited"])
    assert agent.current_session is not None
    messages = agent.current_session["messages"]
    return {
        "result": result,
        "problems": conversation_problems(messages),
        "same": history_of(Path(order["record"])).messages == messages,
    }


def child(order: dict[str, Any]) -> None:
    os.chdir(order["folder"])
    try:
        if order["do"] == "work":
            work(order)
        told: dict[str, Any] = resume(order)
    except BaseException:
        told = {"error": traceback.format_exc()}
    Path("told.new").write_text(json.dumps(told))
    os.rename("told.new", order["told"])


def warm_up(url: str) -> None:
    """Load and make once what each child would load and make again."""
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    for model, address in (("claude-sonnet-4-5", url), ("gpt-4o", f"{url}/v1")):
        for stream in (False, True):
            order = {"model": model, "url": address, "stream": stream, "tag": "warm"}
            take(agent_of(order), "turn 1 of warm", awaited=stream)
    agent_of(order).resume(next(Path(".co/evals").iterdir()))
    gc.collect()
    gc.freeze()


def main() -> None:
    warm_up(sys.argv[1])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            try:
                child(json.loads(line))
            finally:
                os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
