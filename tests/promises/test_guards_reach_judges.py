"""What any part of a turn asks a model is seen by redact, counted by a budget, and in the record and the cost."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from connectagent_adk import EventsCompactionConfig, adk_compaction
from connectagent_budget import Budget
from connectagent_compact import Compact
from connectagent_redact import Redact
from connectagent_reflect import Reflect
from connectagent_shellhooks import ShellHooks
from connectagent_shellhooks.settings import Hook

from connectagent import Agent, LLMResponse, TokenUsage, before_each_tool, llm_do
from connectagent.records import read_record
from connectagent.testing import ScriptedLLM, call

ROOT = Path(__file__).parents[2]
ADDRESS = "bob@example.com"
YES = '{"allowed": true, "reason": "The policy allows it."}'

# The files of first-party parts that ask a model, and how each does. A new one belongs here, and in a test below.
ASKS = {
    "connectagent/builtin/trust.py": {"verdict", "input"},
    "plugins/connectagent-adk/connectagent_adk/compaction.py": {"ask"},
    "plugins/connectagent-compact/connectagent_compact/__init__.py": {"ask"},
    "plugins/connectagent-reflect/connectagent_reflect/__init__.py": {"llm_do"},
    "plugins/connectagent-shellhooks/connectagent_shellhooks/__init__.py": {"ask"},
}
WAYS = {"ask", "llm_do", "verdict", "complete", "input", "ainput"}


def paid(text: str) -> LLMResponse:
    return LLMResponse(text, None, TokenUsage(3000, 0, cost=0.5))  # so many that compact finds them too many


def asks_in(source: str) -> set[str]:
    """The ways in which some code asks a model."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", None))
            if name in WAYS:
                found.add(str(name))
    return found


def test_each_part_that_asks_a_model_is_in_the_table() -> None:
    files = [*(ROOT / "connectagent/builtin").glob("*.py"), *ROOT.glob("plugins/*/connectagent_*/**/*.py")]
    found = {str(file.relative_to(ROOT)): asks_in(file.read_text("utf-8")) for file in files}
    assert {
        file: ways for file, ways in found.items() if ways & (WAYS - {"input", "ainput", "complete"}) or file in ASKS
    } == ASKS


def asked_by_policy(llm: ScriptedLLM) -> dict[str, Any]:
    return {"trust": "Mails may go to everybody."}  # its model is the agent's own, which answers in turn


def asked_by_agent(llm: ScriptedLLM) -> dict[str, Any]:
    return {"trust": Agent("judge", llm=llm, log=False, quiet=True)}


def asked_by_handler(llm: ScriptedLLM) -> dict[str, Any]:
    @before_each_tool(trylast=True)
    def check(agent: Agent) -> None:
        llm_do(f"May {ADDRESS} have a mail?", llm=llm)

    return {"on_events": [check]}


def asked_by_agent_of_a_handler(llm: ScriptedLLM) -> dict[str, Any]:
    critic = Agent("critic", llm=llm, log=False, quiet=True)

    @before_each_tool(trylast=True)
    def check(agent: Agent) -> None:
        critic.input(f"May {ADDRESS} have a mail?")

    return {"on_events": [check]}


def mail(to: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


@pytest.mark.parametrize("part", [asked_by_policy, asked_by_agent, asked_by_handler, asked_by_agent_of_a_handler])
def test_its_model_call_is_redacted_counted_recorded_and_paid(
    part: Callable[[ScriptedLLM], dict[str, Any]], co_dir: Path
) -> None:
    placeholder = Redact().text(ADDRESS)
    first = LLMResponse(None, [call("mail", to=placeholder)], TokenUsage(10, 0, cost=0.5))
    own = part is asked_by_policy
    llm = ScriptedLLM(first, *([paid(YES)] if own else []), paid("Done."))
    other = ScriptedLLM(paid(YES))
    budget = Budget(model_calls=9)
    plugins = [Redact(restore=["mail"]), budget]
    agent = Agent("helper", [mail], llm=llm, quiet=True, plugins=plugins, **part(other))
    assert agent.input(f"Mail {ADDRESS}") == "Done."

    requests = [*llm.requests, *other.requests]
    assert len(requests) == 3 and ADDRESS not in str(requests)
    assert agent.total_cost == pytest.approx(1.5)
    assert agent.record is not None
    lines = read_record(agent.record)["turns"][0]["lines"]
    assert sum(line["type"] == "llm_call" for line in lines) == 3
    assert [used.used.model_calls for used in budget._ledgers.values()] == [3]


# -- plugins that ask --------------------------------------------------------------------------------


def compacting(other: ScriptedLLM, folder: Path) -> Any:
    return Compact(window=1000, share=0.5, to=0.2)


def reflecting(other: ScriptedLLM, folder: Path) -> Any:
    return Reflect()


def reflecting_with_another_model(other: ScriptedLLM, folder: Path) -> Any:
    return Reflect(model=other)


def asking_as_a_hook(other: ScriptedLLM, folder: Path) -> Any:
    hooks = ShellHooks(user=False, project=False, folder=str(folder))
    hooks._hooks = [Hook("PreToolUse", "", "May it run?", "prompt", 10)]
    return hooks


def compacting_as_adk(other: ScriptedLLM, folder: Path) -> Any:
    return adk_compaction(EventsCompactionConfig(compaction_interval=1, overlap_size=0))


PLUGINS: dict[str, tuple[Callable[[ScriptedLLM, Path], Any], int]] = {
    # by the file that asks: the plugin, and how often it asks in the two turns
    "compact": (compacting, 1),
    "reflect": (reflecting, 5),
    "reflect with another model": (reflecting_with_another_model, 5),
    "shellhooks": (asking_as_a_hook, 1),
    "adk": (compacting_as_adk, 2),
}
OWN = 3  # model calls of the agent itself
FILLER = f"{ADDRESS} knows. " + "nothing of interest " * 300


def answer(messages: Any, tools: Any) -> Any:
    """What a model says: to the agent, or to who asks it something else."""
    last = str(messages[-1]["content"])
    if "JSON Schema" in last or "Judge whether" in str(messages[0]["content"]):
        return paid('{"ok": true}' if "Verdict" in last else '{"done": true}')
    if tools and not any(one["role"] == "tool" for one in messages) and "Mail" in str(messages):
        return LLMResponse(None, [call("mail", to=Redact().text(ADDRESS))], TokenUsage(10, 0, cost=0.5))
    return paid("Done.")


def two_turns(what: str, budget: Budget, folder: Path) -> tuple[Agent, list[Any]]:
    """Take two turns with a plugin that asks; the agent, and all requests."""
    llm, other = (ScriptedLLM(*[answer] * 20, model=name) for name in ("own", "other"))
    plugins = [Redact(restore=["mail"]), budget, PLUGINS[what][0](other, folder)]
    agent = Agent("helper", [mail], llm=llm, quiet=True, plugins=plugins)
    agent.input(FILLER)
    agent.input(f"Mail {ADDRESS}")
    return agent, [*llm.requests, *other.requests]


@pytest.mark.parametrize("what", PLUGINS)
def test_what_a_plugin_asks_is_redacted_counted_recorded_and_paid(what: str, tmp_path: Path, co_dir: Path) -> None:
    budget = Budget(model_calls=19, per="session")
    agent, requests = two_turns(what, budget, tmp_path)
    count = OWN + PLUGINS[what][1]
    assert len(requests) == count and ADDRESS not in str(requests)
    assert agent.total_cost == pytest.approx(0.5 * count)
    assert agent.record is not None
    lines = [line for turn in read_record(agent.record)["turns"] for line in turn["lines"]]
    assert sum(line["type"] == "llm_call" for line in lines) == count
    assert [used.used.model_calls for used in budget._ledgers.values()] == [count]


@pytest.mark.parametrize("what", PLUGINS)
def test_a_plugin_that_asks_stays_within_the_budget(what: str, tmp_path: Path, co_dir: Path) -> None:
    for most in range(1, OWN + PLUGINS[what][1]):
        _, requests = two_turns(what, Budget(model_calls=most, per="session"), tmp_path)
        assert len(requests) <= most


def test_each_plugin_that_asks_has_a_row() -> None:
    asking = {file.split("/")[1].removeprefix("connectagent-") for file in ASKS if file.startswith("plugins/")}
    assert asking == {what.split()[0] for what in PLUGINS}


# -- judges ------------------------------------------------------------------------------------------


def test_a_judge_ends_the_turn_where_the_budget_is_used_up(co_dir: Path) -> None:
    judge = Agent("judge", llm=ScriptedLLM(*[YES] * 9), log=False, quiet=True)
    llm = ScriptedLLM(*[call("mail", to="a")] * 9)
    agent = Agent("helper", [mail], llm=llm, quiet=True, trust=judge, plugins=[Budget(model_calls=3)])
    agent.input("Mail")
    assert agent.session["outcome"] == "budget"
    assert len(llm.requests) + len(judge.llm.requests) == 3  # type: ignore[attr-defined]
    assert not any(handler.plugin == "budget" for handler in judge.hooks.loaded)


TWICE = ['{"allowed": false, "allowed": true, "reason": "x"}', '{"allowed": true, "reason": "x", "allowed": true}']


@pytest.mark.parametrize("answer", TWICE)
@pytest.mark.parametrize("judged_by", ["agent", "policy"])
def test_a_verdict_with_a_key_twice_is_no(answer: str, judged_by: str) -> None:
    own = [answer, answer] if judged_by == "policy" else []  # the model may correct itself once
    llm = ScriptedLLM(call("mail", to="a"), *own, "Done.")
    judge = Agent("judge", llm=ScriptedLLM(answer), log=False, quiet=True)
    trust: Any = judge if judged_by == "agent" else "Mails may go to everybody."
    agent = Agent("helper", [mail], llm=llm, log=False, quiet=True, trust=trust)
    assert agent.input("Mail") == "Done."
    assert [one["status"] for one in agent.session["trace"] if one["type"] == "tool_execution"] == ["rejected"]


def test_a_typed_answer_with_a_key_twice_is_asked_for_again() -> None:
    llm = ScriptedLLM('{"value": 1, "value": 2}', '{"value": 3}')
    assert llm_do("A number?", int, llm=llm) == 3
