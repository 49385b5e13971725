"""The ledger: what each handler cost, and whose model calls were whose."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent, LLMResponse, TokenUsage, after_tools, around_llm, before_llm, llm_do, on_complete
from connectagent.testing import ScriptedLLM, call

ANSWER = LLMResponse("Good.", usage=TokenUsage(100, 10, cost=0.5))


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


def row_of(agent: Agent, handler: str) -> dict[str, Any]:
    (row,) = [row for row in agent.ledger if row["handler"].rpartition(".")[2] == handler]
    return row


def script() -> ScriptedLLM:
    return ScriptedLLM(call("double", x=2), LLMResponse("Done.", usage=TokenUsage(7, 3, cost=1.0)))


def test_a_model_call_is_on_the_account_of_the_handler_that_made_it() -> None:
    @after_tools
    def reflect() -> None:
        llm_do("Is that so?", llm=ScriptedLLM(ANSWER))

    @after_tools
    def ask_an_agent() -> None:
        Agent("judge", llm=ScriptedLLM(ANSWER), log=False, quiet=True).input("Well?")

    @before_llm
    def watch() -> None: ...

    agent = Agent("a", [double], llm=script(), plugins=[reflect, ask_an_agent, watch], log=False, quiet=True)
    agent.input("Hi")
    for handler in ("reflect", "ask_an_agent"):
        row = row_of(agent, handler)
        assert (row["calls"], row["model_calls"], row["input_tokens"], row["output_tokens"]) == (1, 1, 100, 10)
        assert row["cost"] == 0.5 and row["duration_ms"] > 0 and row["hook"] == "after_tools"
    watched = row_of(agent, "watch")
    assert (watched["calls"], watched["model_calls"], watched["cost"]) == (2, 0, 0.0)
    assert agent.total_cost == 2.0


def test_the_agents_own_model_calls_are_on_nobodys_account() -> None:
    @around_llm
    def timed() -> Any:
        yield

    agent = Agent("a", [double], llm=script(), plugins=[timed], log=False, quiet=True)
    agent.input("Hi")
    assert row_of(agent, "timed")["model_calls"] == 0
    assert row_of(agent, "timed")["calls"] == 4


def test_a_handler_that_raises_is_charged_too_and_the_next_one_pays_for_itself() -> None:
    @before_llm
    def fails() -> None:
        llm_do("Hm?", llm=ScriptedLLM(ANSWER))
        raise OSError("no disk")

    agent = Agent("a", llm=ScriptedLLM("Done."), plugins=[fails], log=False, quiet=True)
    with pytest.raises(OSError, match="no disk"):
        agent.input("Hi")
    assert row_of(agent, "fails")["input_tokens"] == 100
    llm_do("Outside", llm=ScriptedLLM(ANSWER))
    assert row_of(agent, "fails")["input_tokens"] == 100


def test_the_command_line_shows_what_handlers_cost(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "from connectagent import Agent, after_llm\n"
        "@after_llm\ndef watch(response): pass\n"
        "agent = Agent('helper', model='offline', on_events=[watch])\n"
    )
    command = [sys.executable, "-m", "connectagent", "run", "agent.py", "Hi", "--quiet", "--durations"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("[offline]")
    assert "handlers of helper" in done.stderr
    assert [line.split()[:3] for line in done.stderr.splitlines() if "watch" in line] == [["watch", "after_llm", "1"]]


def test_slow_handlers_lists_the_calls_of_this_turn_that_took_over_five_milliseconds() -> None:
    seen: list[list[tuple[str, str, float, float]]] = []

    class Plugin:
        name = "lazy"

        @after_tools
        def nap(self) -> None:
            time.sleep(0.02)

        @on_complete
        def look(self, agent: Agent) -> None:
            seen.append(agent.slow_handlers)

    agent = Agent("main", [double], llm=ScriptedLLM(call("double", x=2), "a", "b"), plugins=[Plugin()], log=False)
    agent.input("Go.")
    agent.input("Go.")
    ((plugin, hook, started, seconds),) = seen[0]
    assert (plugin, hook) == ("lazy", "after_tools")
    assert seconds >= 0.02 and abs(time.time() - started) < 60
    assert seen[1] == []
