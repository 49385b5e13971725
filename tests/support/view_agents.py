"""Agents whose records have much to see: for tests of the page, and of commands that answer the same questions."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from connectagent import (
    Agent,
    LLMResponse,
    Pause,
    Paused,
    Retry,
    TokenUsage,
    ToolCall,
    after_each_tool,
    after_tools,
    before_each_tool,
    before_llm,
    on_error,
)
from connectagent.testing import ScriptedLLM, call

HOSTILE = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>\u202egnp.exe\u2066"


def search(query: str) -> str:
    """Search."""
    if query == "bad":
        raise ValueError("nothing is there")
    return f"pages about {query}\n{HOSTILE}\n" + "more\n" * 200 + "deep in the text"


@after_each_tool
def shorten(agent: Any, result: Any) -> Any:
    return str(result)[:300]


@after_tools
def remind(agent: Any) -> None:
    agent.current_session["messages"].append({"role": "user", "content": "Is the answer there?"})


def busy(name: str = "busy") -> Agent:
    """An agent after one turn in which a tool ran and two handlers changed the conversation."""
    first = LLMResponse("I search.", [call("search", query="retries")], TokenUsage(100, 20, cost=0.001))
    llm = ScriptedLLM(first, "Found.")
    agent = Agent(name, [search], "Be short.", llm=llm, on_events=[shorten, remind], quiet=True)
    agent.input("Find the retries")
    return agent


def failing(name: str = "failing") -> Agent:
    """An agent whose tool failed, and then its model."""
    llm = ScriptedLLM([call("search", query="bad")], OSError("the model is gone"))
    agent = Agent(name, [search], llm=llm, quiet=True)
    with contextlib.suppress(OSError):
        agent.input("Find what is bad")
    return agent


@before_llm
def date(agent: Any, request: Any) -> None:
    message = request.messages[0]
    if message["role"] == "system" and "some day" in message["content"]:
        message["content"] = message["content"].replace("some day", "Tuesday")


@on_error
def again(agent: Any, request: Any, attempt: int) -> Any:
    return Retry(after_s=0.03) if request is not None and attempt < 3 else None


@before_each_tool
def guard(agent: Any, tool_call: Any) -> None:
    if tool_call.name == "pay" and not tool_call.approved:
        raise Pause("a person must agree")


def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


REPORT = f"""# Report

The retries are **three**, see `ask`:

| where | how many |
| --- | ---: |
| sdk | 2 |

[a page](https://example.org/x), [a trap](javascript:window.pwned=1) {HOSTILE}
"""


class Lost(ScriptedLLM):
    """A scripted model whose first request fails."""

    def complete(self, messages: Any, tools: Any = None) -> Any:
        if not self.requests:
            self.responses.insert(0, OSError("connection reset"))  # type: ignore[arg-type]
        return super().complete(messages, tools)


def company() -> Agent:
    """An agent that asked another one, which asked a third; with a failed attempt, edits, a failed tool and a pause."""
    facts: list[Any] = [[call("search", query="facts")], LLMResponse("True.", usage=TokenUsage(50, 5, cost=0.001))]
    checker = Agent("checker", [search], "You check.", llm=ScriptedLLM(*facts), quiet=True)
    usage = TokenUsage(200, 20, cost=0.01)
    found: list[Any] = [[call("checker", prompt="Check it")], LLMResponse("Found.", usage=usage)]
    finder = Agent("finder", [checker], "You find.", llm=ScriptedLLM(*found), quiet=True)
    script: list[Any] = [
        LLMResponse("I ask.", [call("finder", prompt="Find it")], TokenUsage(1000, 60, cached_tokens=800, cost=0.02)),
        [call("search", query="bad"), call("search", query="good")],
        LLMResponse(REPORT, usage=TokenUsage(1500, 100, cost=0.03)),
        [call("pay", amount=7)],
    ]
    handlers = [shorten, date, again, guard]
    llm = Lost(*script)
    root = Agent("editor", [search, pay, finder], "It is some day. Be brief.", llm=llm, on_events=handlers, quiet=True)
    root.input("Write a report")
    with contextlib.suppress(Paused):
        root.input("Pay for it")
    return root


def run_until_killed() -> None:
    """Die in a tool of an inner agent."""

    def boom(size: int) -> str:
        """Boom."""
        os._exit(9)

    inner = Agent("miner", [boom], llm=ScriptedLLM([call("boom", size=7)]), quiet=True)
    Agent("doomed", [inner], llm=ScriptedLLM([call("miner", prompt="Dig")]), quiet=True).input("Go on until you die")


def killed() -> Path:
    """The record of a process that died."""
    subprocess.run([sys.executable, __file__, "killed"], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    return next(Path(".co/evals").glob("doomed*.yaml"))


class Big:
    """A model that asks for two tool calls in each of ten iterations, in every turn."""

    model = "test/big"
    calls = 0

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        self.calls += 1
        if self.calls % 11 == 0:
            return LLMResponse("Done.", usage=TokenUsage(100, 20, cost=1e-4))
        paths = [f"src/file_{self.calls}_{i}.py" for i in range(2)]
        return LLMResponse("On.", [ToolCall(f"c{path}", "read", {"path": path}) for path in paths], TokenUsage(100, 20))


def big(turns: int = 39, size: int = 18_000, name: str = "big") -> Agent:
    """An agent with some 2,000 entries and, with 39 turns, over 10 MB of what tools returned."""

    def read(path: str) -> str:
        """Read."""
        return "\n".join(f"{path}:{number}: {'x' * 60}" for number in range(size // 80))

    agent = Agent(name, [read], llm=Big(), quiet=True, max_iterations=20)
    for number in range(turns):
        agent.input(f"Go on with part {number}")
    return agent


def run_steps() -> None:
    """Work in steps; each goes on when a line is read."""

    def step(number: int) -> str:
        """Step."""
        sys.stdin.readline()
        return f"step {number} is done"

    calls: list[Any] = [[call("step", number=number)] for number in range(3)]
    Agent("live", [step], llm=ScriptedLLM(*calls, "All is done."), quiet=True).input("Go step by step")


if __name__ == "__main__":
    run_until_killed() if sys.argv[1:] == ["killed"] else run_steps()
