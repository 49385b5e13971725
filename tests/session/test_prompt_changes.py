"""What handlers of `on_agent_ready` add to the system prompt is theirs: in the record, `bill`, `blame` and `bisect`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from connectagent import Agent, LLMResponse, ToolCall, on_agent_ready
from connectagent.cli.group import cli
from connectagent.records.bill import bill_of
from connectagent.records.read import read_record
from connectagent.records.watched import watched_agents
from connectagent.replay.replaying import replay
from connectagent.session.prompt import SystemPrompt, prompt_changes
from connectagent.testing import ScriptedLLM, bisect


class Adds:
    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text

    @on_agent_ready
    def add(self, agent: Agent) -> None:
        agent.system_prompt += self.text


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / ".co"))


def agent_of(*plugins: Any, prompt: str = "Be good.", **options: Any) -> Agent:
    return Agent("a", llm=ScriptedLLM("Yes."), system_prompt=prompt, plugins=list(plugins), quiet=True, **options)


def recorded(agent: Agent) -> Path:
    agent.input("Go.")
    assert agent.record is not None
    return agent.record


def test_the_bill_charges_each_plugin_for_its_own_words() -> None:
    path = recorded(agent_of(Adds("skills", " You can juggle."), Adds("memory", " He likes tea.")))
    bill = bill_of(read_record(path), lambda entry, usage: None)
    sizes = {item.who: item.bytes for item in bill.items.values() if item.kind == "system prompt"}
    assert sizes == {"(agent)": len("system: Be good.\n"), "skills": 16, "memory": 14}
    (system, *_) = watched_agents(read_record(path))[0].history.lines
    assert [change.by.get("plugin") for change in system.changes] == [None, "skills", "memory"]
    shown = CliRunner().invoke(cli, ["blame", str(path)])
    assert "Adds.add" in shown.output, shown.output


def test_a_prompt_that_is_all_a_plugins_is_its_own() -> None:
    (system, *_) = watched_agents(read_record(recorded(agent_of(Adds("p", "All."), prompt=""))))[0].history.lines
    assert [change.by.get("plugin") for change in system.changes] == ["p"]


def test_replay_and_resume_are_as_before() -> None:
    plugins = [Adds("skills", " You can juggle.")]
    path = recorded(agent_of(*plugins))
    assert replay(path, agent_of(*plugins)).same
    assert replay(path).divergence is None
    again = agent_of(*plugins)
    again.resume(path)
    assert again.session["messages"][0]["content"] == "Be good. You can juggle."


def test_of_an_agent_inside_it_is_known_too() -> None:
    child = Agent("child", llm=ScriptedLLM("Yes."), system_prompt="Be kind.", quiet=True, description="Helps.")
    llm = ScriptedLLM(("child", {"prompt": "Help."}), "Done.")
    plugins = [Adds("skills", " You can juggle.")]
    parent = Agent("a", [child], llm=llm, system_prompt="Be good.", plugins=plugins, quiet=True)
    inner = watched_agents(read_record(recorded(parent)))[1]
    assert inner.history.lines[0].message["content"] == "Be kind. You can juggle."
    assert [change.by.get("plugin") for change in inner.history.lines[0].changes] == [None, "skills"]


def test_bisect_names_who_added_the_words() -> None:
    class Juggler:
        model = "m"

        def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
            juggles = "juggle" in messages[0]["content"] and messages[-1]["role"] == "user"
            return LLMResponse(None, [ToolCall("c", "juggle", {})]) if juggles else LLMResponse("No.")

    def juggle() -> str:
        """Juggle."""
        return "done"

    def make(log: Any = False) -> Agent:
        plugins = [Adds("memory", " He likes tea."), Adds("skills", " You can juggle.")]
        return Agent("a", [juggle], llm=Juggler(), system_prompt="Be good.", plugins=plugins, quiet=True, log=log)

    finding = bisect(recorded(make(None)), make, "calls juggle")
    assert finding.is_confirmed and finding.needed == ["skills"], finding
    assert finding.maker.get("plugin") == "skills", finding


def test_the_programs_words_behind_a_plugins_are_the_programs() -> None:
    agent = agent_of(Adds("p", " Theirs."))
    agent.system_prompt += " Mine."
    bill = bill_of(read_record(recorded(agent)), lambda entry, usage: None)
    sizes = {item.who: item.bytes for item in bill.items.values() if item.kind == "system prompt"}
    assert sizes["p"] == len(" Theirs.") and sizes["(agent)"] == len("system: Be good. Mine.\n")


def test_the_changes_that_are_kept_are_few() -> None:
    prompt = SystemPrompt("")
    for number in range(100):
        prompt.change(str(number), {"plugin": f"p{number % 3}"})
    assert len(prompt.changes) == 20 and prompt.text == "99"


@pytest.mark.parametrize("odd", [None, 3, "x", {}, [1], [{"by": 1, "before": ""}], [{"by": {}}], [{"before": "x"}]])
def test_odd_changes_in_a_record_are_none(odd: Any) -> None:
    assert prompt_changes(odd) == []
