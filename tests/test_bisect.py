"""Bisect: planted causes are found, and nobody is accused by chance."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import pytest
from fresh_environment import Environment
from pydantic import BaseModel

from connectagent import (
    Agent,
    LLMRequest,
    Pause,
    ProviderError,
    Retry,
    Sequential,
    after_each_tool,
    after_llm,
    after_user_input,
    around_tool,
    before_each_tool,
    before_llm,
    on_error,
    run_async,
)
from connectagent.cli import main
from connectagent.data import LLMResponse, TokenUsage, ToolCall
from connectagent.errors import ConfigError, Paused, ToolRejected
from connectagent.records.find import find_record
from connectagent.records.read import count_calls
from connectagent.testing import Finding, ScriptedLLM, bisect, call
from connectagent.testing.bisection import case
from connectagent.testing.bisection.chance import Judge, Rate, by_chance, halved, samples_needed
from connectagent.testing.ddmin import smallest

ROOT = Path(__file__).parents[1]
CASES = int(os.environ.get("CONNECTAGENT_BISECT", "2"))  # of each kind; 200 before a release


def refund(order: int) -> str:
    """Refund an order.

    Args:
        order: its number.
    """
    return f"refunded {order}"


class Planted:
    """A model that asks for a refund more often where the texts of some plugins are in its request."""

    model = "planted"

    def __init__(self, seed: int, is_on: Callable[[set[int]], bool], often: float, seldom: float) -> None:
        self.random, self.is_on, self.often, self.seldom, self.asked = random.Random(seed), is_on, often, seldom, 0

    def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
        self.asked += 1
        if messages[-1]["role"] == "tool":
            return LLMResponse("Done.")
        there = {int(number) for number in re.findall(r"mark (\d+)\b", json.dumps(messages))}
        if self.random.random() < (self.often if self.is_on(there) else self.seldom):
            return LLMResponse(None, [ToolCall("c1", "refund", {"order": 7})])
        return LLMResponse("No.")


def plugin(number: int) -> Any:
    """A plugin that adds a text to the conversation."""

    @after_user_input
    def mark(self: Any, agent: Agent) -> None:
        assert agent.current_session is not None
        text = f"For your notes:\nmark {number}\nThanks."
        agent.current_session["messages"].append({"role": "user", "content": text})

    return type(f"plugin{number}", (), {"mark": mark, "name": f"plugin{number}"})()


def planted(llm: Any, count: int) -> tuple[Path, Callable[[], Agent]]:
    """A record that shows a refund, and what makes its agent."""
    plugins = [plugin(number) for number in range(count)]
    for _ in range(1000):
        agent = Agent("shop", [refund], llm=llm, plugins=plugins, quiet=True)
        agent.input("Hello.")
        if any(entry["type"] == "tool_execution" for entry in agent.session["trace"]):
            assert agent.record is not None
            return agent.record, lambda: Agent("shop", [refund], llm=llm, plugins=plugins, quiet=True, log=False)
    raise AssertionError("the model never did it")


def found(seed: int, kind: str, count: int, often: float, seldom: float) -> tuple[Finding, set[str]]:
    """A search for a planted cause."""
    one, other = random.Random(f"{seed} {kind}").sample(range(count), 2)
    is_on: dict[str, Callable[[set[int]], bool]] = {
        "one": lambda there: one in there,
        "pair": lambda there: {one, other} <= there,
        "either": lambda there: bool({one, other} & there),
    }
    llm = Planted(seed, is_on[kind], often, seldom)
    record, make = planted(llm, count)
    finding = bisect(record, make, "calls refund", by=["plugins"])
    return finding, {f"plugin{one}"} if kind == "one" else {f"plugin{one}", f"plugin{other}"}


def is_exact(finding: Finding, kind: str, cause: set[str]) -> bool:
    if not finding.is_confirmed or finding.cause is None:
        return False
    needed, off = set(finding.needed), set(finding.cause.names)
    if kind == "pair":
        return needed == cause and len(off) == 1 and off <= cause
    if kind == "either":
        return off == cause and len(needed) == 1 and needed <= cause
    return needed == off == cause


@pytest.mark.parametrize("kind", ["one", "pair", "either"])
@pytest.mark.parametrize("count", [12, 40] if CASES > 2 else [12])
def test_a_planted_cause_is_found(kind: str, count: int) -> None:
    for seed in range(max(1, CASES // 6)):
        finding, cause = found(seed, kind, count, 1.0, 0.0)
        assert is_exact(finding, kind, cause), finding


def test_a_noisy_cause_is_found_and_nobody_else_is_accused() -> None:
    exact = wrong = 0
    for seed in range(CASES):
        finding, cause = found(seed, "one", 12, 0.9, 0.05)
        exact += is_exact(finding, "one", cause)
        wrong += finding.is_confirmed and not is_exact(finding, "one", cause)
    print(f"noisy: {exact} exact, {wrong} wrong of {CASES}")
    assert exact >= 0.95 * CASES - 1 and wrong <= 0.01 * CASES


@pytest.mark.parametrize("share", [1.0, 0.5, 0.9])
def test_where_there_is_no_cause_nobody_is_accused(share: float) -> None:
    confirmed = 0
    for seed in range(max(1, CASES // 3)):
        record, make = planted(Planted(seed, lambda there: True, share, share), 12)
        finding = bisect(record, make, "calls refund")
        confirmed += finding.is_confirmed
    print(f"no cause: {confirmed} confirmed of {CASES // 3}")
    assert confirmed <= 0.01 * CASES


# -- what is searched ----------------------------------------------------------------------------------


def always(asks: Callable[[str], bool]) -> Any:
    """A model that asks for a refund where the request has something, and ends the turn after it."""

    class Model:
        model = "planted"
        asked = 0

        def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
            self.asked += 1
            if any(message.get("tool_call_id") == "c1" for message in messages):
                return LLMResponse("Done.")
            if asks(json.dumps(messages)):
                return LLMResponse(None, [ToolCall("c1", "refund", {"order": 7})])
            return LLMResponse("No.")

    return Model()


def recorded(make: Callable[..., Agent], *prompts: str) -> Path:
    agent = make(log=None)
    for prompt in prompts or ("Hello.",):
        agent.input(prompt)
    assert agent.record is not None
    return agent.record


def test_a_line_in_a_long_prompt_is_found_with_few_model_calls() -> None:
    lines = [f"Rule {number}: be kind to everybody, always, wherever you are." for number in range(5_800)]
    lines[3_210] = "Rule 3210: give the money back to whoever asks."
    model = always(lambda text: "money back" in text)

    def make(log: Any = False) -> Agent:
        return Agent("shop", [refund], "\n".join(lines), llm=model, quiet=True, log=log)

    assert sum(map(len, lines)) > 330_000
    record = recorded(make)
    model.asked = 0
    finding = bisect(record, make, "calls refund", by=["prompt"], samples=5)
    assert finding.is_confirmed and finding.line == lines[3_210], finding
    assert finding.message == 0 and finding.maker == {"agent": "its beginning"}
    assert model.asked <= 30


def test_a_handler_of_a_plugin_with_several_is_found() -> None:
    class Helper:
        @after_user_input
        def note(self, agent: Agent) -> None:
            agent.session["messages"].append({"role": "user", "content": "Be quick."})

        @after_llm
        def harmless(self, response: LLMResponse) -> None: ...

        @after_user_input
        def harm(self, agent: Agent) -> None:
            agent.session["messages"].append({"role": "user", "content": "Money back!"})

    model = always(lambda text: "Money back" in text)

    def make(log: Any = False) -> Agent:
        return Agent("shop", [refund], llm=model, plugins=[Helper()], quiet=True, log=log)

    record = recorded(make)
    finding = bisect(record, make, "calls refund", by=["handlers", "prompt"])
    assert finding.is_confirmed and finding.needed == ["Helper: Helper.harm (after_user_input)"], finding
    assert finding.text is not None and finding.line == "Money back!"
    assert finding.maker["handler"] == "Helper.harm"
    both = bisect(record, make, "calls refund", by=["plugins", "handlers"])
    assert both.needed == ["Helper"] and both.handlers == ["Helper: Helper.harm (after_user_input)"], both
    assert "handlers:  Helper: Helper.harm" in str(both)


def test_what_handlers_do_themselves_is_told_without_a_model() -> None:
    class Gone:
        model = "gpt-5-mini"
        is_there = True

        def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
            if not self.is_there:
                raise ConfigError("OPENAI_API_KEY is not set")
            return always(lambda text: True).complete(messages)  # type: ignore[no-any-return]

    @before_each_tool
    def guard(tool_call: ToolCall) -> None:
        if tool_call.arguments["order"] == 7:
            raise ToolRejected("not this one")

    @after_each_tool
    def watch(tool_call: ToolCall) -> None: ...

    model = Gone()

    def make(log: Any = False) -> Agent:
        return Agent("shop", [refund], llm=model, plugins=[watch, guard], quiet=True, log=log)

    record = recorded(make)
    model.is_there = False
    finding = bisect(record, make, "rejected refund")
    assert finding.is_confirmed and finding.needed == ["guard"], finding
    assert finding.cause is not None and finding.cause.p == 0 and finding.spent.calls == 0
    assert "no model has a part in it" in str(finding)
    finding = bisect(record, make, "calls refund")
    assert not finding.is_confirmed and "OPENAI_API_KEY is not set" in str(finding)


def test_without_a_model_the_plugins_that_change_the_request_are_named() -> None:
    model: Any = always(lambda text: "mark 3" in text)
    plugins = [plugin(number) for number in range(4)]

    @after_llm
    def silent(response: LLMResponse) -> None: ...

    def make(log: Any = False) -> Agent:
        return Agent("shop", [refund], llm=model, plugins=[*plugins, silent], quiet=True, log=log)

    record = recorded(make)

    def gone(messages: Any, tools: Any = None) -> LLMResponse:
        raise ConfigError("there is no key")

    model.complete = gone
    finding = bisect(record, make, "calls refund")
    assert not finding.is_confirmed
    assert finding.suspects == ["plugin0", "plugin1", "plugin2", "plugin3"]
    assert "no model was asked: there is no key" in str(finding)


def test_what_an_around_handler_replaced_cannot_be_told() -> None:
    @around_tool
    def cleans(tool_call: ToolCall) -> Any:
        yield
        return "a clean result"

    model = always(lambda text: True)

    def make(log: Any = False) -> Agent:
        return Agent("shop", [refund], llm=model, plugins=[cleans], quiet=True, log=log)

    finding = bisect(recorded(make), make, "result /clean/")
    assert finding.verdict == "cannot tell" and not finding.is_confirmed
    assert "a handler replaced the result of refund" in str(finding)


def test_a_plugin_that_another_requires_is_not_accused() -> None:
    class Base:
        name = "base"

        @after_user_input
        def note(self, agent: Agent) -> None:
            agent.session["messages"].append({"role": "user", "content": "Money back!"})

    class Above:
        name = "above"
        requires = ("base",)

        @after_user_input
        def note(self, agent: Agent) -> None: ...

    model = always(lambda text: "Money back" in text)

    def make(log: Any = False) -> Agent:
        return Agent("shop", [refund], llm=model, plugins=[Base(), Above()], quiet=True, log=log)

    finding = bisect(recorded(make), make, "calls refund", by=["plugins"])
    assert finding.is_confirmed, finding
    assert finding.cause is not None and set(finding.cause.names) == {"base", "above"}
    assert finding.needed == ["base"]


@pytest.mark.parametrize("form", ["agent as a tool", "handoff", "sequence"])
def test_the_plugin_of_an_agent_inside_is_found(form: str) -> None:
    class Insists:
        name = "insists"

        @before_llm
        def insist(self, request: LLMRequest) -> None:
            request.messages = [*request.messages, {"role": "user", "content": "Money back!"}]

    model = always(lambda text: "Money back" in text)
    turns = {"agent as a tool": [call("billing", prompt="Do it."), "All done."],
             "handoff": [call("transfer_to_agent", agent_name="billing")], "sequence": ["First."]}[form]  # fmt: skip

    class Front:
        model = "front"

        def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
            said = sum(message["role"] == "assistant" for message in messages)
            return ScriptedLLM(*turns[said : said + 1] or ["Over."]).complete(messages, tools)

    def make(log: Any = False) -> Agent:
        billing = Agent("billing", [refund], llm=model, plugins=[plugin(1), Insists()], quiet=True, log=False)
        if form == "sequence":
            first = Agent("first", llm=Front(), quiet=True, log=False)
            return Sequential("front", [first, billing], plugins=[plugin(0)], quiet=True, log=log)
        given: dict[str, Any] = {"tools": [billing]} if form == "agent as a tool" else {"sub_agents": [billing]}
        return Agent("front", llm=Front(), plugins=[plugin(0)], quiet=True, log=log, **given)

    finding = bisect(recorded(make), make, "calls refund", by=["plugins"])
    assert finding.is_confirmed and finding.needed == ["insists"], finding
    assert finding.cause is not None and finding.cause.names == ["insists"]


def test_a_turn_that_paused_and_went_on_is_played_with_what_was_decided() -> None:
    class Guard:
        name = "guard"

        @before_each_tool
        def waits(self, tool_call: ToolCall) -> None:
            if not tool_call.approved:
                raise Pause("sure?")

    model = always(lambda text: "mark 1" in text)

    def make(log: Any = False) -> Agent:
        plugins = [Guard(), plugin(0), plugin(1)]
        return Agent("shop", [refund], llm=model, plugins=plugins, quiet=True, log=log)

    agent = make(None)
    with pytest.raises(Paused):
        agent.input("Hello.")
    assert agent.resume(agent.record, approve=True) == "Done."
    assert agent.record is not None
    finding = bisect(agent.record, make, "result /refunded 7/", by=["plugins"])
    assert finding.is_confirmed and finding.needed == ["plugin1"], finding


# -- what it answers where nothing is found ----------------------------------------------------------


def test_what_does_not_happen_again_is_said() -> None:
    answers = {"refund": True}
    model = always(lambda text: answers["refund"])

    def make(log: Any = False) -> Agent:
        return Agent("shop", [refund], llm=model, plugins=[plugin(0)], quiet=True, log=log)

    record = recorded(make)
    answers["refund"] = False
    finding = bisect(record, make, "calls refund")
    assert finding.verdict == "gone" and "it does not happen again: 0 of 10 runs show it" in str(finding)


def test_what_the_record_does_not_show_is_refused() -> None:
    model = always(lambda text: True)

    def make(log: Any = False) -> Agent:
        return Agent("shop", [refund], llm=model, quiet=True, log=log)

    with pytest.raises(ConfigError, match=r"the record does not show it; it calls: refund\. Did you mean 'refund'"):
        bisect(recorded(make), make, "calls refnud")


def test_the_budget_ends_it_with_what_is_known() -> None:
    base = always(lambda text: "mark 1" in text)

    class Priced:
        model = "planted"

        def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
            answer = base.complete(messages, tools)
            answer.usage = TokenUsage(10, 10, cost=0.01)
            return answer  # type: ignore[no-any-return]

    def make(log: Any = False) -> Agent:
        plugins = [plugin(0), plugin(1)]
        return Agent("shop", [refund], llm=Priced(), plugins=plugins, quiet=True, log=log)

    finding = bisect(recorded(make), make, "calls refund", budget_usd=0.05)
    assert finding.stopped == "budget" and not finding.is_confirmed
    assert finding.spent.calls == 5 and "$0.05" in str(finding) and "the budget is spent" in str(finding)


def test_nothing_is_written_and_no_tool_runs(tmp_path: Path) -> None:
    ran: list[int] = []

    def pay(order: int) -> str:
        """Pay."""
        ran.append(order)
        return "paid"

    class Payer:
        model = "planted"

        def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
            if messages[-1]["role"] == "tool":
                return LLMResponse("Done.")
            return LLMResponse(None, [ToolCall("c1", "pay", {"order": 7})]) if "mark 1" in json.dumps(messages) else (
                LLMResponse("No.")
            )  # fmt: skip

    def make(log: Any = False) -> Agent:
        return Agent("shop", [pay], llm=Payer(), plugins=[plugin(0), plugin(1)], quiet=True, log=log)

    record = recorded(make)
    before = {path: path.read_bytes() for path in record.parent.iterdir()}
    assert bisect(record, make, "result /paid/").is_confirmed
    assert ran == [7] and {path: path.read_bytes() for path in record.parent.iterdir()} == before


# -- the search and chance, alone ----------------------------------------------------------------------


def test_a_smallest_part_that_is_enough_is_found() -> None:
    rng = random.Random(5)
    for size in (1, 2, 3, 7, 40):
        for wanted in ({rng.randrange(size)}, {0, size - 1}, set(rng.sample(range(size), min(3, size)))):
            assert set(smallest(range(size), lambda some: wanted <= set(some))) == wanted  # noqa: B023
    assert halved(range(1_000), lambda some: 617 in some) == [617]


def test_the_chance_of_a_difference_is_fishers() -> None:
    assert by_chance(Rate(9, 10), Rate(0, 10)) == pytest.approx(5.95e-05, rel=0.01)  # 11 of 184,756
    assert by_chance(Rate(5, 10), Rate(5, 10)) > 0.5
    assert by_chance(Rate(3, 3), Rate(0, 3)) == pytest.approx(0.05)
    assert samples_needed(Rate(5, 10), Rate(5, 10)) is None
    needed = samples_needed(Rate(9, 10), Rate(1, 10))
    assert needed is not None and needed < 15


def test_few_looks_are_enough_for_what_is_clear() -> None:
    looked: list[int] = []

    def look(number: int) -> bool:
        looked.append(number)
        return True

    judge = Judge(Rate(10, 10), Rate(0, 10), 30)
    assert judge.is_bad(look, lambda: False) is True and len(looked) <= 3
    assert judge.is_bad(lambda number: None, lambda: False) is None
    assert Judge(Rate(7, 10), Rate(3, 10), 30).is_bad(lambda number: number % 2 == 0, lambda: False) is not None


# -- the command line ----------------------------------------------------------------------------------

SCRIPT = """
import json
import guard
from connectagent import Agent, LLMResponse, ToolCall, after_user_input

def refund(order: int) -> str:
    "Refund."
    return "refunded"

class Model:
    model = "planted"
    def complete(self, messages, tools=None):
        if messages[-1]["role"] == "tool":
            return LLMResponse("Done.")
        if "Give it back" in json.dumps(messages):
            return LLMResponse(None, [ToolCall("c1", "refund", {"order": 7})])
        return LLMResponse("No.")

@after_user_input
def polite(agent):
    print("a handler prints")
    agent.session["messages"].append({"role": "user", "content": "Thanks."})

agent = Agent("shop", [refund], llm=Model(), plugins=[polite, guard.tone], quiet=True)

if __name__ == "__main__":
    agent.input("Order 7 is late.")
"""
GUARD = """
from connectagent import after_user_input

@after_user_input
def tone(agent):
    agent.session["messages"].append({"role": "user", "content": "TEXT"})
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in git whose guard.py has five versions; from the fourth on the agent refunds."""

    tmp_path = tmp_path_factory.mktemp("project")

    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "script.py").write_text(SCRIPT)
    git("init", "-q")
    texts = ["Be kind.", "Be quick.", "Be both.", "Give it back.", "Give it back, quickly."]
    for number, text in enumerate(texts):
        broken = "this is no Python" if number == 2 else GUARD.replace("TEXT", text)
        (tmp_path / "guard.py").write_text(broken)
        git("add", "-A")
        git("commit", "-qm", f"Version {number}")
        git("tag", f"v{number}")
    run_in(tmp_path, "script.py")
    return tmp_path


def run_in(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "CONNECTAGENT_DIR"}
    environment |= {"PYTHONPATH": str(ROOT), "HOME": str(folder), "COLUMNS": "80"}
    return forked.run(*command, cwd=folder, env=environment, timeout=120)


def bisected(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_in(folder, "-m", "connectagent", "bisect", *arguments)


def test_the_command_names_the_plugin_and_the_text(project: Path) -> None:
    done = bisected(project, "last", "--bad", "calls refund")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith(": calls refund in turn 1, iteration 1; 2 plugins")
    assert lines[1] == "needed:    tone (after_user_input, guard.py:4)"
    assert lines[2] == "turn off:  tone         with it 10 of 10, without it 0 of 10 (fresh samples), p < 0.001"
    assert lines[3].endswith(' in "Give it back, quickly.", message 2, added by tone')
    assert re.fullmatch(r"\d+ runs, \d+ model calls, \d+ answers? from the record, \$\?", lines[4])
    as_json = bisected(project, "last", "--bad", "calls refund", "--json", "--by", "plugins")
    assert json.loads(as_json.stdout)["needed"] == ["tone"] and json.loads(as_json.stdout)["confirmed"] is True


def test_the_first_bad_version_of_a_file_is_found_and_a_broken_one_skipped(project: Path) -> None:
    done = bisected(project, "last", "--bad", "calls refund", "--versions", "./guard.py@v0..HEAD", "--samples", "5")
    assert done.returncode == 0, done.stderr + done.stdout
    assert re.search(r"last good: \./guard\.py \w+ Version 1\n", done.stdout)
    assert re.search(r"first bad: \./guard\.py \w+ Version 3  5 of 5, before it 0 of 5 \(fresh samples\)", done.stdout)
    assert re.search(r"cannot tell of \./guard\.py \w+ Version 2: ", done.stdout)
    assert (project / "guard.py").read_text() == GUARD.replace("TEXT", "Give it back, quickly.")


def wheel(folder: Path, version: str, text: str) -> Path:
    """A release of the plugin `tone`, which adds this text to each conversation."""
    info = f"connectagent_tone-{version}.dist-info"
    files = {
        "tone_plugin.py": GUARD.replace("TEXT", text),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: connectagent-tone\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[connectagent]\ntone = tone_plugin\n",
    }
    path = folder / f"connectagent_tone-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, f"{info}/RECORD": "".join(f"{name},,\n" for name in files)}.items():
            archive.writestr(name, content)
    return path


def test_the_first_bad_release_of_an_installed_plugin_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"1.0": "Be kind.", "1.1": "Be quick.", "2.0": "Give it back.", "2.1": "Give it back, quickly."}
    (tmp_path / "index").mkdir()
    wheels = [wheel(tmp_path / "index", version, text) for version, text in texts.items()]
    with zipfile.ZipFile(wheels[-1]) as newest:
        newest.extractall(tmp_path / "site")
    script = SCRIPT.replace("import guard\n", "").replace("guard.tone", '"tone"')
    (tmp_path / "script.py").write_text(script)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("CONNECTAGENT", "PIP_"))}
    environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path / 'site'}", "HOME": str(tmp_path)}
    environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "index"), "PIP_CONFIG_FILE": os.devnull}
    assert forked.run("script.py", cwd=tmp_path, env=environment).returncode == 0
    asked = ["last", "--bad", "calls refund", "--versions", "tone=1.0..2.1", "--samples", "5"]
    done = forked.run("-m", "connectagent", "bisect", *asked, cwd=tmp_path, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "last good: tone 1.1\n" in done.stdout and "first bad: tone 2.0  5 of 5, before it 0 of 5" in done.stdout
    unknown = forked.run("-m", "connectagent", "bisect", *asked[:4], "tone=1.0..3.0", cwd=tmp_path, env=environment)
    assert unknown.returncode == 2 and "has no version 3.0; the package index has: 1.0, 1.1, 2.0, 2.1" in unknown.stderr
    environment["PIP_FIND_LINKS"] = str(tmp_path)
    nothing = forked.run("-m", "connectagent", "bisect", *asked, cwd=tmp_path, env=environment)
    assert nothing.returncode == 2
    assert "pip finds no version of connectagent-tone: ERROR: No matching distribution" in nothing.stderr


def test_without_pip_the_command_that_brings_it_is_told(project: Path, tmp_path: Path) -> None:
    environment = Environment(shutil.copytree(project, tmp_path / "project"), pip=False)
    with zipfile.ZipFile(wheel(tmp_path, "1.0", "Be kind.")) as archive:
        archive.extractall(environment.site)
    done = environment.co("bisect", "last", "--bad", "calls refund", "--versions", "tone=0.9..1.0")
    assert done.returncode == 2
    assert done.stderr.splitlines()[:3] == [
        f"error: --versions tone=... asks pip for the releases, and {environment.python} has none. Run one of:",
        f"{environment.python} -m ensurepip",
        f"uv pip install --python {environment.python} pip",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["last"], "Missing option '--bad'"),
        (["last", "--bad", "calls"], "is not whole: it is written as calls NAME"),
        (["last", "--bad", "cals refund"], "Did you mean 'calls'?"),
        (["last", "--bad", "calls refnd"], "it calls: refund. Did you mean 'refund'?"),
        (["last", "--bad", "says /(/"], "is no regular expression"),
        (["last", "--bad", "./check.py:f"], "check.py"),
        (["last", "--bad", "calls refund", "--by", "plugin"], "Did you mean 'plugins'?"),
        (["last", "--bad", "calls refund", "--keep", "tona"], "Did you mean 'tone'?"),
        (["last", "--bad", "calls refund", "--samples", "0"], "--samples"),
        (["last", "--bad", "calls refund", "--versions", "guard"], "is not NAME=1.0..2.0"),
        (["last", "--bad", "calls refund", "--versions", "./guard.py@v9..HEAD"], "v9"),
        (["last", "--bad", "calls refund", "--versions", "./gard.py@v0..HEAD"], "gard.py"),
        (["last", "--bad", "calls refund", "--versions", "tona=1..2"], "tona"),
        (["lost", "--bad", "calls refund"], "lost"),
        (["last", "scrpt.py", "--bad", "calls refund"], "scrpt.py"),
    ],
)
def test_a_mistake_gets_one_message(project: Path, arguments: list[str], said: str) -> None:
    done = bisected(project, *arguments)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) <= 6 and not done.stdout


def test_a_long_record_is_refused_before_anything_is_read_or_run(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setattr(case, "MOST_CALLS", 1)
    monkeypatch.setattr(case, "Recording", None)
    path = find_record("last")
    for arguments in (["bisect", "last"], ["compare", "last", "-p", "no:x"]):
        assert main([*arguments, "--bad", "calls refund"]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert f"{path.name} has {count_calls(path)} model calls in 0 MB" in said and "take up to 1 calls" in said


def test_a_record_of_a_stranger_does_not_run_its_script(project: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path
    (record,) = (project / ".co" / "evals").glob("*.yaml")
    (elsewhere / "bug.yaml").write_bytes(record.read_bytes())
    done = bisected(elsewhere, "bug.yaml", "--bad", "calls refund")
    assert done.returncode == 2 and "is not run by itself" in done.stderr
    assert "connectagent bisect bug.yaml" in done.stderr


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_secret_in_the_text_that_is_found_is_not_shown(project: Path, form: list[str]) -> None:
    secret = "sk-proj-" + "a1B2c3D4" * 5
    script = SCRIPT.replace('"Give it back" in json', f'"{secret}" in json').replace("import guard\n", "")
    text = f'"Thanks. Use {secret} now."'
    (project / "secret.py").write_text(script.replace('"Thanks."', text).replace(", guard.tone", ""))
    run_in(project, "secret.py")
    done = bisected(project, "last", "secret.py", "--bad", "calls refund", *form)
    assert done.returncode == 0, done.stderr
    assert "polite" in done.stdout and secret not in done.stdout + done.stderr


def test_ctrl_c_ends_it_with_what_is_known(project: Path) -> None:
    slow = SCRIPT.replace("    def complete(self, messages, tools=None):\n", SLOW)
    (project / "slow.py").write_text(slow)
    environment = {key: value for key, value in os.environ.items() if key != "CONNECTAGENT_DIR"}
    environment |= {"PYTHONPATH": str(ROOT), "HOME": str(project)}
    command = [sys.executable, "-m", "connectagent", "bisect", "last", "slow.py", "--bad", "calls refund"]
    with subprocess.Popen(
        command, cwd=project, env=environment, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as running:  # fmt: skip
        until = time.monotonic() + 60
        while not (project / "asked.txt").exists() and time.monotonic() < until:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=30)
    assert running.returncode == 130 and "interrupted" in said, said


SLOW = """    def complete(self, messages, tools=None):
        import pathlib, time
        pathlib.Path("asked.txt").write_text("x")
        time.sleep(0.3)
"""


# -- with everything else that a session may have -------------------------------------------------------


class Harm:
    """The guilty one: it adds a text, however the turn runs."""

    name = "harm"

    @after_user_input
    def add(self, agent: Agent) -> None:
        agent.session["messages"].append({"role": "user", "content": "Money back!"})


class Asks:
    """A handler that asks a model itself."""

    name = "asks"

    @after_user_input
    def ask(self, agent: Agent) -> None:
        agent.session["state"]["said"] = agent.ask("Is it day?")


class TriesAgain:
    name = "tries_again"

    @on_error
    def again(self, error: Exception, tool_call: Any) -> Any:
        return Retry() if tool_call is None else None


class Typed(BaseModel):
    text: str


class Model:
    """Asks for two refunds at once where it reads of money; it fails first where it is to be tried again."""

    model = "planted"
    fails = False

    def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
        if messages[-1]["content"] == "Is it day?":
            return LLMResponse("Yes.")
        if self.fails and len(messages) % 2 == 0:
            type(self).fails = False
            raise ProviderError("busy", kind="overloaded", provider="planted")
        if any(message.get("tool_call_id") == "c1" for message in messages):
            return LLMResponse('{"text": "Done."}')
        if "Money back" in json.dumps(messages):
            return LLMResponse(None, [ToolCall("c1", "refund", {"order": 7}), ToolCall("c2", "refund", {"order": 8})])
        return LLMResponse('{"text": "No."}')


def taken(form: str, make: Callable[..., Agent]) -> Path:
    agent = make(None)
    if form == "stream":
        list(agent.stream("Hello."))
    elif form == "typed":
        assert agent.input("Hello.", output=Typed).text == "Done."
    elif form == "async":
        assert run_async(agent.ainput("Hello."))
    elif form == "second turn":
        agent.input("First.")
        agent.input("Hello.")
    elif form == "resumed elsewhere":
        agent.input("First.")
        agent = make(None)
        agent.resume(max(Path(".co/evals").glob("*.yaml"), key=lambda path: path.stat().st_mtime_ns))
        agent.input("Hello.")
    else:
        agent.input("Hello.")
    assert agent.record is not None
    return agent.record


FORMS = ("stream", "typed", "async", "second turn", "resumed elsewhere", "retry", "ask", "parallel", "warn")


@pytest.mark.parametrize("form", FORMS)
def test_the_plugin_is_found_in_any_kind_of_session(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)

    def make(log: Any = False) -> Agent:
        plugins: list[Any] = [plugin(0), Harm(), plugin(1)]
        plugins += {"ask": [Asks()], "retry": [TriesAgain()]}.get(form, [])
        more: dict[str, Any] = {"parallel": {"parallel_tools": 4}, "warn": {"plugin_errors": "warn"}}.get(form, {})
        return Agent("shop", [refund], llm=Model(), plugins=plugins, quiet=True, log=log, **more)

    monkeypatch.setattr(Model, "fails", form == "retry")
    record = taken(form, make)
    finding = bisect(record, make, "calls refund", by=["plugins", "prompt"])
    assert finding.is_confirmed and finding.needed == ["harm"], finding
    assert finding.cause is not None and finding.cause.names == ["harm"]
    assert finding.line == "Money back!" and finding.maker["plugin"] == "harm"
