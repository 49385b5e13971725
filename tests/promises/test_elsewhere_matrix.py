"""A call that is carried out elsewhere, in each kind of tree, however the turn is taken, over a kill too.

Beside it stand a guard that observes, a shadowed one, a tool that is tried again, and one that costs: each runs once.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from awaiting import go_on, take

from connectagent import (
    Agent,
    LLMResponse,
    Parallel,
    Paused,
    Retry,
    Sequential,
    TokenUsage,
    Tool,
    ToolCall,
    ToolRejected,
    before_each_tool,
    on_error,
    shadow,
)
from connectagent.loop.stream import streamed
from connectagent.records.history import history_of
from connectagent.records.summary import summarise
from connectagent.replay.replaying import replay
from connectagent.testing import conversation_problems

SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
COST = 0.5


def note(text: str) -> None:
    """Write to what no kill takes back."""
    with open("ledger", "a", encoding="utf-8") as file:
        file.write(f"{text}\n")


def noted() -> Counter[str]:
    return Counter(Path("ledger").read_text(encoding="utf-8").splitlines())


class Model:
    """Calls the tools once a turn, then answers; where the file `die` is, the process dies in that call."""

    model = "test/elsewhere"

    def __init__(self, *calls: ToolCall) -> None:
        self.calls = list(calls)

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        asked = max(at for at, one in enumerate(messages) if one["role"] == "user")
        is_called = not self.calls or any(one["role"] == "assistant" for one in messages[asked:])
        if is_called and Path("die").exists() and any(one["role"] == "tool" for one in messages):
            os._exit(9)
        note("model")
        return LLMResponse("Done." if is_called else None, [] if is_called else self.calls, TokenUsage(1, 1, cost=COST))


def pay(amount: int) -> str:
    """Pay; the first attempt fails."""
    note(f"pay {amount}")
    if noted()[f"pay {amount}"] == 1:
        raise ConnectionError("busy")
    return f"paid {amount}"


@before_each_tool
def watch(tool_call: ToolCall) -> None:
    note(f"watch {tool_call.name}")


@before_each_tool
def refuse(tool_call: ToolCall) -> None:
    raise ToolRejected("never")


@on_error
def again(error: Exception) -> Retry | None:
    return Retry() if isinstance(error, ConnectionError) else None


def agent_of(kind: str) -> Agent:
    def made(name: str, *tools: Any, calls: tuple[ToolCall, ...] = (), **options: Any) -> Agent:
        return Agent(name, list(tools), llm=Model(*calls), quiet=True, **options)

    calls = (ToolCall("s", "show", {"place": "here"}), ToolCall("p", "pay", {"amount": 5}))
    plugins = [watch, again, shadow(refuse)]
    shows = partial(made, "guide", Tool("show", "Show a place.", SCHEMA), pay, calls=calls)
    if kind == "alone":
        return shows(plugins=plugins)
    if kind == "asked":
        return made("root", shows(), calls=(ToolCall("a", "guide", {"prompt": "Go"}),), plugins=plugins)
    if kind == "handoff":
        to = ToolCall("t", "transfer_to_agent", {"agent_name": "guide"})
        return made("root", calls=(to,), sub_agents=[shows()], plugins=plugins)
    around = {"sequential": Sequential, "parallel": Parallel}[kind]
    return around("root", [shows(), made("other")], quiet=True, plugins=plugins)  # type: ignore[no-any-return]


def in_stream(agent: Agent, work: Callable[[], Any]) -> Any:
    return list(streamed(agent, work))[-1]["result"]


def mapped(agent: Agent) -> Any:
    (item,) = agent.map(["Go"], run="m")
    if item.error is not None:
        raise item.error
    return item.result


BEGIN: dict[str, Callable[[Agent], Any]] = {
    "plain": lambda agent: take(agent, "Go"),
    "streamed": lambda agent: in_stream(agent, partial(agent.input, "Go")),
    "awaited": lambda agent: take(agent, "Go", awaited=True),
    "keyed": lambda agent: agent.for_session("k").turn("Go", 1),
    "mapped": mapped,
}
GO_ON: dict[str, Callable[..., Any]] = {
    "plain": go_on,
    "streamed": lambda agent, record, **decided: in_stream(agent, partial(agent.resume, record, **decided)),
    "awaited": partial(go_on, awaited=True),
    "keyed": lambda agent, record, **decided: agent.for_session("k").resume(**decided),
    "mapped": go_on,
}


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.posix("has no fork"))])
@pytest.mark.parametrize("kind", ["alone", "asked", "handoff", "sequential", "parallel"])
@pytest.mark.parametrize("way", BEGIN)
def test_its_result_is_taken_once_and_nothing_is_done_again(way: str, kind: str, killed: bool, co_dir: Path) -> None:
    with pytest.raises(Paused) as paused:
        BEGIN[way](agent_of(kind))
    (wait,) = paused.value.waiting
    record = paused.value.record
    assert record is not None and wait.elsewhere and wait.agent == "guide"
    decided = {"answer": "shown", "wait": wait.id}
    if killed:
        Path("die").touch()
        pid = os.fork()
        if not pid:
            try:
                GO_ON[way](agent_of(kind), record, **decided)
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
        Path("die").unlink()
        decided = {}
    result = GO_ON[way](agent_of(kind), record, **decided)
    assert "Done." in result
    if way in ("keyed", "mapped"):
        before = noted()
        assert BEGIN[way](agent_of(kind)) == result and noted() == before  # it is only read
    seen = noted()
    assert (seen["watch show"], seen["watch pay"], seen["pay 5"]) == (1, 1, 2)  # the second attempt of one call
    assert not conversation_problems(history_of(record).messages) and "shown" in record.read_text("utf-8")
    totals = summarise(record).totals
    assert totals is not None and totals.turns == 1
    assert totals.cost == (None if killed else COST * seen["model"])  # what the killed call cost is not known
    if kind != "handoff" and not killed:
        assert (played := replay(record, agent_of(kind))).same, played
        assert noted()["pay 5"] == 2
