"""A budget stops before the call that would exceed it, whoever makes the call, and in whichever process."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from connectagent_budget import Budget
from pytest_connectagent import AgentTester

from connectagent import (
    Agent,
    ConfigError,
    LLMResponse,
    Pause,
    Paused,
    ProviderError,
    Retry,
    TokenUsage,
    on_complete,
    on_error,
    tool,
)
from connectagent.testing import ScriptedLLM, call, replayed

RUNS = int(os.environ.get("CONNECTAGENT_BUDGET_RUNS", "20"))
DOWN = ProviderError("down", kind="server", provider="test")


def search(query: str) -> str:
    """Search the docs."""
    return f"Two pages about {query}."


SEARCH = call("search", query="retry")


def paid(content: str | None = None, calls: Any = None, tokens: int = 10, cost: float | None = 0.5) -> LLMResponse:
    return LLMResponse(content, calls, TokenUsage(tokens, 0, cost=cost))


def agent_with(plugin: Any, *responses: Any, **options: Any) -> Agent:
    given = {"log": False, "quiet": True, "tools": [search], "plugins": [plugin], **options}
    return Agent("helper", llm=ScriptedLLM(*responses), **given)


def outcome(agent: Agent) -> Any:
    return agent.session["outcome"]


def asked(agent: Agent) -> int:
    return len(agent.llm.requests)  # type: ignore[attr-defined]


def test_it_keeps_the_rules_on_every_path(agenttester: AgentTester) -> None:
    checked = agenttester.check(Budget(model_calls=100), shares_state=True)
    assert checked.hooks == {"around_turn", "around_llm", "around_tool", "on_agent_closed"}


def test_it_keeps_the_rules_where_it_ends_the_turn(agenttester: AgentTester) -> None:
    plugin = Budget(model_calls=2, tool_calls=2)  # a call that is lost by a kill counts, so what is left differs
    agenttester.check(plugin, changes={"turn", "trace?"}, shares_state=True, leave_out={"differs"})


def test_a_turn_ends_before_the_model_call_that_is_one_too_many() -> None:
    agent = agent_with(Budget(model_calls=2), SEARCH, SEARCH, "never", "Two.")
    assert agent.input("Search") == "The budget is used up: 2 of 2 model calls a turn."
    assert (outcome(agent), asked(agent)) == ("budget", 2)
    agent.llm.responses = [*agent.llm.responses[:2], "Next."]  # type: ignore[attr-defined]
    assert agent.input("And now?") == "Next."


def test_a_turn_ends_before_the_tool_call_that_is_one_too_many() -> None:
    ran: list[int] = []

    def note(number: int) -> str:
        """Note."""
        ran.append(number)
        return "noted"

    for parallel in (1, 4):
        ran.clear()
        calls = [call("note", number=number) for number in range(4)]
        agent = agent_with(Budget(tool_calls=2), calls, "never", tools=[note], parallel_tools=parallel)
        agent.input("Note")
        assert (outcome(agent), sorted(ran), asked(agent)) == ("budget", [0, 1], 1)


def test_tokens_and_usd_end_the_turn_before_the_next_call() -> None:
    for limits in ({"tokens": 20}, {"usd": 1}):
        agent = agent_with(Budget(**limits), *[paid(None, [SEARCH])] * 3, "never")  # type: ignore[arg-type]
        agent.input("Search")
        assert (outcome(agent), asked(agent)) == ("budget", 2)


def test_what_a_failed_answer_cost_counts() -> None:
    failed = ProviderError("cut", kind="length", provider="test", usage=TokenUsage(20, 5))
    agent = agent_with([Budget(tokens=25), on_error(lambda: Retry())], failed, "never")
    agent.input("Hi")
    assert (outcome(agent), asked(agent)) == ("budget", 1)


def test_seconds_end_the_turn_before_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("connectagent_budget.time.monotonic", lambda: now[0])

    def wait() -> str:
        """Wait."""
        now[0] += 6
        return "waited"

    agent = agent_with(Budget(seconds=10), *[call("wait")] * 3, tools=[wait])
    agent.input("Wait")
    assert (outcome(agent), asked(agent)) == ("budget", 2)


def test_each_attempt_counts() -> None:
    agent = agent_with([Budget(model_calls=3), on_error(lambda: Retry())], *[DOWN] * 9)
    agent.input("Hi")
    assert (outcome(agent), asked(agent)) == ("budget", 3)


def test_a_session_has_one_budget_and_a_turn_its_own() -> None:
    agent = agent_with(Budget(model_calls=3, per="session"), "One.", "Two.", SEARCH, "never")
    assert [agent.input("a"), agent.input("b")] == ["One.", "Two."]
    agent.input("c")
    agent.input("d")
    assert (outcome(agent), asked(agent)) == ("budget", 3)


def test_children_share_the_budget_and_all_of_them_end() -> None:
    child = Agent("child", [search], llm=ScriptedLLM(SEARCH, SEARCH, "never"), quiet=True, log=False)
    agent = agent_with(Budget(model_calls=3), call("child", prompt="Look"), "never", tools=[child])
    agent.input("Ask")
    assert (outcome(agent), outcome(child), asked(agent), asked(child)) == ("budget", "budget", 1, 2)


def test_an_agent_outside_of_the_tree_with_the_same_budget_shares_it() -> None:
    budget = Budget(model_calls=3)
    other = Agent("other", llm=ScriptedLLM(*["Hello."] * 4), plugins=[budget], log=False, quiet=True)

    def search(query: str) -> str:
        """Ask the other agent."""
        return str(other.input(query))

    agent = agent_with(budget, SEARCH, SEARCH, "never", tools=[search])
    assert "3 of 3 model calls" in agent.input("Search")
    assert (outcome(agent), asked(agent), asked(other)) == ("budget", 2, 1)
    assert other.input("Hi") == "Hello."


def test_the_budget_of_a_child_ends_the_child_only() -> None:
    plugin = Budget(model_calls=1)
    child = Agent("child", [search], llm=ScriptedLLM(SEARCH, "x"), plugins=[plugin], quiet=True, log=False)
    agent = Agent("root", [child], llm=ScriptedLLM(call("child", prompt="a"), "Done."), quiet=True, log=False)
    assert agent.input("Ask") == "Done."
    assert outcome(child) == "budget"


def test_a_handler_that_asks_a_model_shares_the_budget() -> None:
    @on_complete
    def ask(agent: Agent) -> None:
        agent.ask("Is it good?")

    agent = agent_with([ask, Budget(model_calls=2)], "Done.", "Yes.")
    assert agent.input("Hi") == "Done."
    agent = agent_with([ask, Budget(model_calls=1)], "Done.", "never")
    with pytest.raises(RuntimeError, match="ended before"):
        agent.input("Hi")
    assert asked(agent) == 1


def test_a_tool_between_turns_is_rejected() -> None:
    agent = agent_with(Budget(tool_calls=1, per="session"), "Hello.")
    agent.input("Hi")
    assert agent.execute_tool("search", {"query": "a"})["status"] == "success"
    entry = agent.execute_tool("search", {"query": "a"})
    assert (entry["status"], "used up" in entry["result"]) == ("rejected", True)


def test_the_trace_warns_once_at_80_percent() -> None:
    agent = agent_with(Budget(model_calls=5), *[SEARCH] * 4, "Done.")
    assert agent.input("Search") == "Done."
    (entry,) = [entry for entry in agent.session["trace"] if entry["type"] == "budget"]
    assert (entry["of"], entry["used"], entry["limit"], entry["by"]["plugin"]) == ("model_calls", 4, 5, "budget")
    assert entry["show"] == "4 of 5 model calls a turn are used"


def test_a_streamed_turn_ends_too() -> None:
    agent = agent_with(Budget(model_calls=1), SEARCH, "never")
    assert [event["type"] for event in agent.stream("Search")].count("llm_call") == 1
    assert outcome(agent) == "budget"


def test_a_stand_in_and_a_paused_tool_cost_nothing(co_dir: Path) -> None:
    def pay() -> str:
        """Pay."""
        raise Pause("really?")

    def make() -> Agent:
        return agent_with(Budget(tool_calls=1), call("pay"), SEARCH, "Done.", tools=[pay, search], log=None)

    with pytest.raises(Paused) as paused:
        make().input("Pay")
    again = make()
    again.llm.responses = [SEARCH, "Done."]  # type: ignore[attr-defined]
    assert again.resume(paused.value.record, answer="paid") == "Done."


def test_an_agent_inside_that_waits_costs_nothing() -> None:
    def pay() -> str:
        """Pay."""
        raise Pause("really?")

    inner = Agent("helper", [pay, search], llm=ScriptedLLM(call("pay"), SEARCH, "Paid."), log=False, quiet=True)
    budget = Budget(tool_calls=2)
    llm = ScriptedLLM(call("helper", prompt="Pay."), "Done.")
    outer = Agent("outer", [inner], llm=llm, plugins=[budget], log=False, quiet=True)
    with pytest.raises(Paused):
        outer.input("Pay")
    assert outer.resume(answer="paid") == "Done." and outcome(outer) == "answered"


def test_a_day_is_one_budget_for_all_sessions_and_processes(co_dir: Path) -> None:
    for _ in range(2):
        agent_with(Budget(model_calls=3, per="day"), "Hello.").input("Hi")
    agent = agent_with(Budget(model_calls=3, per="day"), SEARCH, "never")
    agent.input("Search")
    assert (outcome(agent), asked(agent)) == ("budget", 1)
    file = co_dir / "budget.json"
    ((_, used),) = json.loads(file.read_text("utf-8")).items()
    assert used["model_calls"] == 3
    file.write_text(json.dumps({"2001-01-01": used}), "utf-8")
    assert agent_with(Budget(model_calls=3, per="day"), "Hello.").input("Hi") == "Hello."


@pytest.mark.parametrize("less", [-1000, float("nan")])
def test_a_file_that_says_that_less_than_nothing_was_used_widens_no_budget(less: float, co_dir: Path) -> None:
    co_dir.mkdir(exist_ok=True)
    (co_dir / "budget.json").write_text(json.dumps({time.strftime("%Y-%m-%d"): {"model_calls": less}}))
    agent_with(Budget(model_calls=1, per="day"), "Hello.").input("Hi")
    agent = agent_with(Budget(model_calls=1, per="day"), "never")
    agent.input("Hi")
    assert (outcome(agent), asked(agent)) == ("budget", 0)


@pytest.mark.parametrize("damage", ["{", "[]", '{"DAY": {"usd": "much"}}', '{"DAY": {"words": 1}}', None])
def test_a_file_of_the_day_that_cannot_be_used_is_told_and_nothing_is_asked(damage: str | None, co_dir: Path) -> None:
    file = co_dir / "budget.json"
    co_dir.mkdir(exist_ok=True)
    file.mkdir() if damage is None else file.write_text(damage.replace("DAY", time.strftime("%Y-%m-%d")))
    agent = agent_with(Budget(model_calls=9, per="day"), "Never.")
    with pytest.raises(ConfigError, match=r"counts of the day cannot be kept in .*budget\.json: .*remove it"):
        agent.input("Go")
    assert asked(agent) == 0


FULL_DISK = """
import resource, sys
from connectagent import Agent
from connectagent.testing import ScriptedLLM
from connectagent_budget import Budget

resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
agent = Agent("helper", llm=ScriptedLLM("Done."), plugins=[Budget(model_calls=1, per=sys.argv[1])], quiet=True)
answer = agent.input("Go")
sys.stdout.write(answer)
"""


@pytest.mark.skipif(os.name != "posix", reason="no limits for a process")
@pytest.mark.parametrize("per", ["turn", "session"])
def test_a_full_disk_costs_no_turn(per: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK, per]
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=60)
    assert done.stdout == "Done.", done.stderr


def test_a_replay_leaves_the_budget_of_the_day_alone(co_dir: Path) -> None:
    agent = agent_with(Budget(model_calls=3, per="day"), SEARCH, "Done.", log=None)
    agent.input("Search")
    before = (co_dir / "budget.json").read_text("utf-8")
    assert agent.record is not None
    replayed(agent.record, agent=agent_with(Budget(model_calls=30, per="day"), log=None))
    assert (co_dir / "budget.json").read_text("utf-8") == before


@pytest.mark.parametrize(
    "wrong", [{"usd": -1}, {"usd": "two"}, {"tokens": True}, {"usd": float("nan")}, {"per": "week"}]
)
def test_wrong_options_are_told(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Budget(**wrong)


class Killed(BaseException):
    """Stands for the end of the process."""


class World:
    """Agents at random, and what they really did, over all processes of a session."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.kills = 3
        self.texts: set[str] = set()
        kind = self.random.choice(["model_calls", "tool_calls", "both"])
        self.limits: dict[str, Any] = {name: self.random.randint(1, 12) for name in ("model_calls", "tool_calls")}
        if kind != "both":
            self.limits = {kind: self.limits[kind]}
        self.per = self.random.choice(["turn", "session", "day"])
        self.shape = [self.random.randint(0, 2) for _ in range(4)]
        self.parallel = self.random.choice([1, 1, 3])

    def happens(self, what: str, text: str = "") -> float:
        """Note a real call; a number that decides how it ends. A second attempt at a tool is not killed."""
        with self.lock:
            self.done[what] += 1
            chance = self.random.random()
            is_first, self.texts = text not in self.texts, self.texts | ({text} if text else set())
            if chance < 0.06 and self.kills and is_first:
                self.kills -= 1
                raise Killed
            return chance

    def answer(self, messages: Any, tools: Any) -> Any:
        chance = self.happens("model_calls")
        if chance < 0.2:
            return ProviderError("down", kind="server", provider="test")
        names = [one["function"]["name"] for one in tools]
        if chance > 0.9 or not names:
            return "Done."
        with self.lock:
            picked = [self.random.choice(names) for _ in range(self.random.randint(1, 3))]
            number = self.random.random()
        return [
            call(name, text=f"{number} {place}") if name == "work" else call(name, prompt=f"{number} {place}")
            for place, name in enumerate(picked)
        ]

    def agent(self, level: int = 0, name: str = "a") -> Agent:
        @tool(idempotent=True)
        def work(text: str) -> str:
            """Work."""
            if self.happens("tool_calls", text) < 0.2:
                raise ValueError("failed")
            return "worked"

        children = []
        if level < 2:
            children = [self.agent(level + 1, f"{name}_{number}") for number in range(self.shape[level])]
        llm = ScriptedLLM(*[self.answer] * 500)
        plugins = []
        if not level:
            retry = on_error(lambda attempt: Retry() if attempt < 4 else "given up")
            plugins = [Budget(**self.limits, per=self.per), retry]
        return Agent(name, [work, *children], llm=llm, plugins=plugins, quiet=True, parallel_tools=self.parallel)

    def turn(self, agent: Agent) -> Agent:
        """Take a turn, and resume it in a new process each time that it is killed."""
        try:
            agent.input("Go")
        except Killed:
            while True:
                record, agent = agent.record, self.agent()
                try:
                    agent.resume(record)
                    break
                except Killed:
                    continue
        return agent


@pytest.mark.parametrize("seed", range(RUNS))
def test_never_one_call_more(seed: int, co_dir: Path) -> None:
    world = World(seed)
    agent = world.agent()
    for _ in range(3):
        before = Counter() if world.per != "turn" else world.done.copy()
        agent = world.turn(agent)
        for name, limit in world.limits.items():
            assert world.done[name] - before[name] <= limit, (name, world.limits, world.per)
        if outcome(agent) == "budget" and list(world.limits) == ["model_calls"]:
            assert world.done["model_calls"] - before["model_calls"] == world.limits["model_calls"]  # and none less


def test_the_budget_of_a_child_goes_on_where_it_stopped(co_dir: Path) -> None:
    def make(fate: list[Any]) -> Agent:
        llm = ScriptedLLM(*fate)
        child = Agent("child", [search], llm=llm, plugins=[Budget(model_calls=2)], quiet=True)
        return Agent("root", [child], llm=ScriptedLLM(call("child", prompt="a"), "Done."), quiet=True)

    first = make([SEARCH, Killed()])
    with pytest.raises(Killed):
        first.input("Ask")
    again = make(["never"])
    again.llm.responses = ["Done."]  # type: ignore[attr-defined]
    assert again.resume(first.record) == "Done."
    child = again.find("child")
    assert child is not None
    assert (asked(child), outcome(child)) == (0, "budget")


def test_the_command_line_takes_its_options(tmp_path: Path) -> None:
    found = tmp_path / "connectagent_budget-0.1.0.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Name: connectagent-budget\nVersion: 0.1.0\n", "utf-8")
    (found / "entry_points.txt").write_text("[connectagent]\nbudget = connectagent_budget:Budget\n", "utf-8")
    script = """
from connectagent import Agent
def search(query: str) -> str:
    "Search."
    return query
agent = Agent("h", [search], model="offline")
"""
    (tmp_path / "agent.py").write_text(script, "utf-8")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    for options, used in ((["-p", "budget:model_calls=1"], "model calls"), (["--budget-usd", "0"], "USD")):
        command = [sys.executable, "-m", "connectagent", "run", "agent.py", 'search "a"', "--quiet", *options]
        ran = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True)
        assert f"{used} a turn" in ran.stdout.decode(), ran.stderr.decode()


def test_the_example_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CONNECTAGENT_MODEL", "offline")
    text = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    exec(text.split("```python\n")[1].split("```")[0], {})
    assert "budget" in capsys.readouterr().out
