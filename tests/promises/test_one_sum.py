"""Tokens and cost are one sum, whoever tells it: agent, terminal, record, lists, page and ledger."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import forked
import pytest
import yaml
from interrupted_writes import ctrl_c_after

from connectagent import Agent, LLMResponse, Retry, TokenUsage, after_tools, around_llm, llm_do, on_complete, on_error
from connectagent.builtin.console import Console
from connectagent.cli.view.page import page_of
from connectagent.cli.view.reading import Reading
from connectagent.errors import ProviderError
from connectagent.records.read import read_record
from connectagent.session.usage import spent_in
from connectagent.testing import ScriptedLLM, call


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_failed_call_that_a_handler_around_it_recovers_costs_nothing() -> None:
    @around_llm
    def recover() -> Any:
        try:
            return (yield)
        except ProviderError:
            return "Recovered."

    down = ProviderError("down", kind="connection", provider="p")
    agent = Agent("a", llm=ScriptedLLM(down), quiet=True, on_events=[recover])
    assert agent.input("Hi") == "Recovered."
    (turn,) = read_record(str(agent.record))["turns"]
    assert turn["cost"] == spent_in(turn["lines"]).cost == agent.total_cost == 0.0


class Prices:
    """Answers with random tokens and prices, each noted; prices are powers of two, so that any order sums up alike."""

    def __init__(self, seed: int, unknown: bool) -> None:
        self.random, self.unknown = random.Random(seed), unknown
        self.tokens, self.cost = 0, 0.0

    def usage(self, known: bool = True) -> TokenUsage:
        cost = 2.0 ** -self.random.randint(2, 9)
        used = TokenUsage(self.random.randint(1, 900), self.random.randint(1, 90), cost=cost)
        self.tokens += used.input_tokens + used.output_tokens
        if known or not self.unknown:
            self.cost += cost
            return used
        return TokenUsage(used.input_tokens, used.output_tokens)

    def answer(self, content: str | None, *calls: Any, known: bool = True) -> Any:
        return lambda messages, tools: LLMResponse(content, list(calls), self.usage(known))

    def failure(self, kind: str = "length") -> Any:
        return lambda messages, tools: ProviderError("cut", kind=kind, provider="p", usage=self.usage())


def run_session(prices: Prices, terminal: io.StringIO) -> Agent:
    """A session of three turns, the second of which fails."""

    @on_error
    def again(error: Exception) -> Any:
        return Retry() if getattr(error, "kind", "") == "length" else None

    @after_tools
    def reflect() -> None:
        llm_do("Is that so?", llm=ScriptedLLM(prices.answer("Yes."), model="judge"))

    @on_complete
    def check() -> None:
        judge = Agent("judge", llm=ScriptedLLM(prices.answer("Good.")), quiet=True, log=False)
        judge.input("Well?")

    child = Agent("child", llm=ScriptedLLM(prices.failure(), prices.answer("Found.")), description="Finds.", quiet=True)
    closer = Agent("closer", llm=ScriptedLLM(prices.answer("Closed."), prices.answer("Bye.")), quiet=True)
    own = ScriptedLLM(
        prices.failure(),
        prices.answer(None, call("child", prompt="Find.")),
        prices.answer("Done.", known=False),
        prices.answer(None, call("child", prompt="Again.")),
        prices.failure("refusal"),
        prices.answer(None, call("transfer_to_agent", agent_name="closer", message="Close.")),
    )
    agent = Agent(
        "boss",
        [child],
        llm=own,
        sub_agents=[closer],
        quiet=True,
        plugins=[again],
        on_events=[reflect, check, Console(terminal, 200)],
    )
    assert agent.input("One") == "Done."
    with pytest.raises(ProviderError):
        agent.input("Two")
    assert agent.input("Three") == "Closed."
    return agent


def shown_number(cost: float | None) -> str:
    return "?" if cost is None else (f"${cost:.4f}" if cost < 1 else f"${cost:.2f}")


def told(*words: str) -> str:
    """What a command writes."""
    done = forked.run("-m", "connectagent", *words, check=True)
    return done.stdout


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_everybody_tells_the_same_sum(seed: int, unknown: bool) -> None:
    prices, terminal = Prices(seed, unknown), io.StringIO()
    agent = run_session(prices, terminal)
    cost = None if unknown else prices.cost
    same = (prices.tokens, cost)
    record = Path(str(agent.record))
    assert agent.total_cost == prices.cost
    assert (agent.spent.tokens, agent.spent.cost) == same

    turns = yaml.safe_load(record.read_text())["turns"]
    assert sum(turn["tokens"] for turn in turns) == prices.tokens
    costs = [turn["cost"] for turn in turns]
    assert [one is None for one in costs] == [unknown, False, False]
    assert unknown or sum(costs) == cost
    ended = [line for line in terminal.getvalue().splitlines() if line[2:3].strip() and " iteration" in line]
    for line, turn in zip(ended, turns, strict=True):
        known = "+ ?" if turn["cost"] is None else shown_number(turn["cost"])
        assert known in line, (line, turn["cost"])

    (listed,) = json.loads(told("log", "list", "--json"))
    assert (listed["tokens"], listed["cost"]) == same
    stats = json.loads(told("log", "stats", "--json"))
    (own,) = stats["agents"].values()
    assert (own["tokens"], own["cost"]) == same
    assert sum(one["tokens"] for one in stats["models"].values()) == prices.tokens
    assert unknown or sum(one["cost"] for one in stats["models"].values()) == cost
    summary = Reading(record).news()["summary"]
    assert (summary["tokens"], summary["cost"]) == same
    exported = page_of(read_record(record)).partition('id="data-shown">')[2].partition("</script>")[0]
    assert (json.loads(exported)["summary"]["tokens"], json.loads(exported)["summary"]["cost"]) == same

    lines = [line for turn in read_record(record)["turns"] for line in turn["lines"]]
    branches = {line.get("branch") for line in lines if line["type"] == "llm_call"}
    assert {"boss", "boss.child", "boss.closer", "boss.judge"} <= branches
    for row in agent.ledger:
        mine = [line for line in lines if (line.get("by") or {}).get("handler") == row["handler"]]
        if row["handler"].endswith("reflect"):
            spent = spent_in(mine)
            assert row["model_calls"] == spent.calls == 3
            assert (row["input_tokens"] + row["output_tokens"], row["cost"]) == (spent.tokens, spent.cost)
    resumed = Agent("boss", llm=ScriptedLLM(), sub_agents=[Agent("closer", llm=ScriptedLLM())], quiet=True)
    resumed.resume(record)
    assert resumed.total_cost == prices.cost and (resumed.spent.tokens, resumed.spent.cost) == same


def test_a_handler_whose_price_is_unknown_has_no_cost_in_the_ledger() -> None:
    @on_complete
    def ask() -> None:
        llm_do("Well?", llm=ScriptedLLM(LLMResponse("Hm.", usage=TokenUsage(3, 4))))

    agent = Agent("a", llm=ScriptedLLM("Done."), on_events=[ask], log=False, quiet=True)
    agent.input("Hi")
    assert [row["cost"] for row in agent.ledger if row["handler"].endswith("ask")] == [None]


def test_what_stands_in_for_a_model_is_not_paid() -> None:
    from connectagent import around_llm, before_llm

    @before_llm
    def cached(agent: Agent) -> Any:
        if agent.current_session["turn"] == 1:  # type: ignore[index]
            return LLMResponse("Cached.", usage=TokenUsage(10, 10, cost=5.0))
        return None

    @around_llm
    def replaced() -> Any:
        yield
        return LLMResponse("Other.", usage=TokenUsage(10, 10, cost=5.0))

    llm = ScriptedLLM(LLMResponse("Own.", usage=TokenUsage(1, 2, cost=0.5)))
    agent = Agent("a", llm=llm, on_events=[cached, replaced], quiet=True)
    assert [agent.input("Hi"), agent.input("Hi")] == ["Cached.", "Other."]
    (listed,) = json.loads(told("log", "list", "--json"))
    (stats,) = json.loads(told("log", "stats", "--json"))["agents"].values()
    assert agent.total_cost == listed["cost"] == stats["cost"] == 0.5
    assert agent.spent.tokens == listed["tokens"] == stats["tokens"] == 3


CRASHES = '''
import os
from connectagent import Agent, LLMResponse, TokenUsage, llm_do, on_complete
from connectagent.testing import ScriptedLLM, call

def dies(messages=None, tools=None):
    os._exit(9)

def look() -> str:
    """Look."""
    llm_do("Hm?", llm=ScriptedLLM(LLMResponse("x", usage=TokenUsage(30, 4, cost=0.25)), model="judge"))
    return "seen"

again = os.path.exists("again")
first = LLMResponse("One.", usage=TokenUsage(1, 2, cost=0.5))
second = LLMResponse(None, [call("look")], TokenUsage(10, 20, cost=0.125))
last = LLMResponse("Two.", usage=TokenUsage(100, 200, cost=2.0))
llm = ScriptedLLM(last) if again else ScriptedLLM(first, second, dies)
agent = Agent("a", [look], llm=llm, quiet=True)
if __name__ == "__main__":
    if again:
        import glob
        print(agent.resume(glob.glob(".co/evals/*.yaml")[0]))
        print(agent.spent.tokens, agent.spent.usage.cost, agent.spent.cost)
    else:
        agent.input("Hi")
        agent.input("Hi again")
'''


def test_a_killed_turn_counts_what_it_received_and_does_not_know_what_it_lost() -> None:
    Path("script.py").write_text(CRASHES)
    assert forked.run("script.py", check=False).returncode == 9

    def tell_all() -> list[tuple[int, float | None]]:
        (listed,) = json.loads(told("log", "list", "--json"))
        (stats,) = json.loads(told("log", "stats", "--json"))["agents"].values()
        (record,) = Path(".co/evals").glob("*.yaml")
        page = Reading(record).news()["summary"]
        return [(one["tokens"], one["cost"]) for one in (listed, stats, page)]

    assert tell_all() == [(1 + 2 + 10 + 20 + 30 + 4, None)] * 3  # the call in which it died may have cost anything
    Path("again").touch()
    resumed = forked.run("script.py", check=True).stdout
    assert resumed.splitlines() == ["Two.", "367 2.875 None"]
    assert tell_all() == [(367, None)] * 3


def test_what_a_tool_between_turns_asks_is_in_the_sums() -> None:
    def look() -> str:
        """Look."""
        return llm_do("Hm?", llm=ScriptedLLM(LLMResponse("x", usage=TokenUsage(30, 4, cost=0.25))))

    agent = Agent("a", [look], llm=ScriptedLLM(LLMResponse("Hi.", usage=TokenUsage(1, 1, cost=0.5))), quiet=True)
    agent.execute_tool("look")
    agent.input("Hi")
    agent.execute_tool("look")
    (listed,) = json.loads(told("log", "list", "--json"))
    (stats,) = json.loads(told("log", "stats", "--json"))["agents"].values()
    assert agent.total_cost == listed["cost"] == stats["cost"] == 1.0
    assert listed["status"] == "answered"


FAMILY = '''
import glob, os, sys
from connectagent import Agent, LLMResponse, TokenUsage, tool
from connectagent.testing import ScriptedLLM, call

related, logged, dies = sys.argv[1] == "related", sys.argv[2] == "logged", sys.argv[3:] == ["dies"]

def die(messages=None, tools=None):
    os._exit(9)

def cheap(text, *calls):
    return LLMResponse(text, list(calls), TokenUsage(1, 1, cost=0.25))

grand = Agent("grand", llm=ScriptedLLM(cheap("Deep.")), quiet=True, description="Digs.")
script = [cheap("First."), cheap(None, call("grand", prompt="Dig.")), die] if dies else [cheap("Second.")]
log = None if logged else False
child = Agent("child", [grand], llm=ScriptedLLM(*script), quiet=True, description="Helps.", log=log)

@tool(idempotent=True)
def ask(prompt: str) -> str:
    """Ask."""
    return child.input(prompt)

name = "child" if related else "ask"
one, two = cheap(None, call(name, prompt="One")), cheap(None, call(name, prompt="Two"))
script = [one, two] if dies else [cheap("Done.")]
root = Agent("root", [child if related else ask], llm=ScriptedLLM(*script), quiet=True)
if dies:
    root.input("Hi")
print(root.resume(glob.glob(".co/evals/root*.yaml")[0]))
for agent in (root, child, grand):
    print(agent.name, agent.total_cost, agent.spent.cost, agent.spent.tokens)
'''


@pytest.mark.parametrize("logged", ["logged", "unlogged"])
@pytest.mark.parametrize("related", ["related", "unrelated"])
def test_what_agents_inside_spent_is_known_in_the_process_that_goes_on(related: str, logged: str) -> None:
    Path("family.py").write_text(FAMILY)
    assert forked.run("family.py", related, logged, "dies", check=False).returncode == 9
    resumed = forked.run("family.py", related, logged, check=True)
    assert resumed.stdout.splitlines() == ["Done.", "root 1.75 None 14", "child 1.0 None 8", "grand 0.25 0.25 2"]


def test_a_session_that_was_reset_has_cost_nothing() -> None:
    paid = LLMResponse("Done.", usage=TokenUsage(3, 4, cost=0.5))
    child = Agent("child", llm=ScriptedLLM(paid, paid), quiet=True)
    boss = Agent("boss", [child], llm=ScriptedLLM(call("child", prompt="x"), paid, paid), quiet=True)
    boss.input("Hi")
    first = boss.record
    assert (boss.total_cost, child.total_cost) == (1.0, 0.5) and first is not None
    boss.reset_conversation()
    assert (boss.total_cost, child.total_cost) == (0, 0) and boss.spent.calls == 0
    boss.input("Hi again")
    assert boss.record is not None
    cost = read_record(boss.record)["turns"][-1]["session"]["cost"]
    assert (boss.total_cost, cost) == (0.5, 0.5)
    boss.reset_conversation()
    boss.resume(first)
    assert boss.total_cost == 1.0


def test_a_call_that_was_interrupted_may_have_cost_anything_whatever_a_handler_would_answer() -> None:
    @on_error
    def recovers() -> str:
        return "recovered"

    paid = LLMResponse("One.", usage=TokenUsage(3, 4, cost=0.5))
    agent = Agent("a", llm=ScriptedLLM(paid, KeyboardInterrupt()), on_events=[recovers], quiet=True)
    agent.input("One")
    with pytest.raises(KeyboardInterrupt):
        agent.input("Two")
    (listed,) = json.loads(told("log", "list", "--json"))
    (stats,) = json.loads(told("log", "stats", "--json"))["agents"].values()
    assert [(one["tokens"], one["cost"]) for one in (listed, stats)] == [(7, None)] * 2


def test_a_call_that_ctrl_c_kept_from_being_made_is_unknown_to_everybody() -> None:
    paid = LLMResponse("One.", usage=TokenUsage(3, 4, cost=0.5))
    agent = Agent("a", llm=ScriptedLLM(paid), quiet=True)
    agent.input("One")
    with pytest.raises(KeyboardInterrupt), ctrl_c_after(b'"began", "id": "T2/1/model1"'):
        agent.input("Two")
    (listed,) = json.loads(told("log", "list", "--json"))
    other = Agent("a", llm=ScriptedLLM(paid), quiet=True)
    assert other.resume(agent.record) == "One."
    (after,) = json.loads(told("log", "list", "--json"))
    assert (agent.spent.cost, listed["cost"], other.spent.cost, after["cost"]) == (None,) * 4
    assert (agent.spent.tokens, listed["tokens"], other.spent.tokens, after["tokens"]) == (7, 7, 14, 14)
