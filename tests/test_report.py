"""Reports: a failure in one file that shows it elsewhere, as small as it can be and without what is private."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent
from connectagent.cli import main
from connectagent.errors import Paused
from connectagent.records.read import read_record
from connectagent.settings import overrides
from connectagent.testing import ScriptedLLM, call
from connectagent.testing.ddmin import ddmin, shortest
from connectagent.testing.reports.private import Private

MEGABYTES = float(os.environ.get("CONNECTAGENT_REPORT_MEGABYTES", "1"))

CLOCK = """
from connectagent import after_user_input

@after_user_input
def clock(agent, prompt):
    if "boom" in prompt:
        raise KeyError("boom")
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of a user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


@pytest.fixture
def run(capsys: Any) -> Run:
    """Runs a command: its exit code, and what it prints."""

    def running(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main(list(arguments))
        finally:
            overrides.clear()
        return code, *capsys.readouterr()

    return running


def plugin(folder: Path, text: str, name: str = "clock") -> str:
    (folder / f"{name}.py").write_text(text)
    return f"./{name}.py"


def refund(order: int, amount: int = 1) -> str:
    """Refund an order."""
    return f"refunded {amount}"


def talk(*answers: Any, prompts: Any = ("Hello",), tools: Any = (refund,), **options: Any) -> Agent:
    """An agent's session, whose turns may fail."""
    agent = Agent("shop", tools=list(tools), llm=ScriptedLLM(*answers), quiet=True, **options)
    for prompt in prompts:
        with contextlib.suppress(Exception):
            agent.input(prompt)
    return agent


# -- what the failure is -------------------------------------------------------------------------


def test_a_turn_that_a_plugin_failed_is_reported_and_reproduced(here: Path, run: Run) -> None:
    clock = plugin(here, CLOCK)
    talk("One.", "Two.", prompts=["Hello", "What time is it?", "boom, please"], plugins=[clock])
    code, out, err = run("report", "last", "-p", clock, "-o", "bug.yaml")
    assert code == 0, err
    assert "error KeyError by clock, in turn 3" in out and "left: 1 of 3 turns, 0 of 2 model calls" in out
    assert (here / "bug.yaml").read_text() in out and "Look at it before you send it" in err
    head = read_record(here / "bug.yaml")
    assert head["needs"][0]["name"] == "clock" and len(head["needs"][0]["sha256"]) == 16
    assert head["python"].startswith("CPython 3") and "pluggy" in head["packages"]
    assert head["shows"]["raised_in"] == "clock.py:7"
    assert [entry["prompt"] for turn in head["turns"] for entry in turn["trace"]] == ["boom"]
    assert run("replay", "bug.yaml", "-p", clock)[:2] == (1, "\n".join([
        "bug.yaml: reproduced: error KeyError by clock",
        "  'boom'",
        "  by clock (after_user_input, clock.py:4)",
        "  raised in clock.py:7",
        "  with clock",
        "",
    ]))  # fmt: skip
    plugin(here, CLOCK.replace('raise KeyError("boom")', "pass"))
    code, out, _ = run("replay", "bug.yaml", "-p", clock)
    assert code == 0 and "not reproduced: error KeyError by clock" in out
    assert "its errors: nothing" in out and "clock: its source is not the report's" in out
    data = json.loads(run("replay", "bug.yaml", "-p", "no:clock", "--json")[1])
    assert data["reproduced"] is False and data["plugins"] == [] and data["differs"] == ["clock: left out"]


def test_without_a_failure_the_command_asks_for_one(here: Path, run: Run) -> None:
    talk(call("refund", order=7), "Done.")
    code, _, err = run("report", "last", "-o", "bug.yaml")
    assert code == 2 and "nothing failed in" in err and "--bad 'calls NAME'" in err
    code, _, err = run("report", "last", "--bad", "calls refnd")
    assert code == 2 and "the record does not show it; it calls: refund. Did you mean 'refund'?" in err
    code, _, err = run("report", "last", "--bad", "call refund")
    assert code == 2 and "Did you mean 'calls'?" in err
    assert not (here / "bug.yaml").exists()


def test_what_the_model_did_is_reported_and_needs_no_plugin(here: Path, run: Run) -> None:
    talk("Hm.", call("refund", order=7), "Done.", prompts=["Hello", "Refund order 7."])
    code, out, err = run("report", "last", "--bad", "calls refund /order/", "-o", "bug.yaml")
    assert code == 0 and "needs no plugin: what the model answered then" in out, err
    code, out, _ = run("replay", "bug.yaml")
    assert code == 1 and "reproduced: calls refund" in out


def test_a_rejected_call_is_a_failure(here: Path, run: Run) -> None:
    guard = plugin(here, """
from connectagent import ToolRejected, before_each_tool

@before_each_tool
def small(tool_call):
    if tool_call.arguments["amount"] > 50:
        raise ToolRejected("too much")
""", "guard")  # fmt: skip
    talk(call("refund", order=7, amount=9), call("refund", order=8, amount=99), "No.", plugins=[guard])
    code, out, err = run("report", "last", "-p", guard, "-o", "bug.yaml")
    assert code == 0 and "rejected refund by guard, in turn 1" in out, err
    assert "left: 1 of 1 turns, 1 of 3 model calls" in out and '"order"' not in (here / "bug.yaml").read_text()
    assert run("replay", "bug.yaml", "-p", guard)[0] == 1
    assert run("replay", "bug.yaml", "-p", "no:guard")[0] == 0


def test_another_failure_of_the_same_type_is_not_the_failure(here: Path, run: Run) -> None:
    both = plugin(here, """
from connectagent import after_each_tool

@after_each_tool
def check(result):
    if "refunded" not in result:
        raise ValueError("nothing was refunded")
    if "7000" in result:
        raise ValueError("far too much")
""", "both")  # fmt: skip
    talk(call("refund", order=7, amount=7000), "Done.", plugins=[both])
    assert run("report", "last", "-p", both, "-o", "bug.yaml")[0] == 0
    text = (here / "bug.yaml").read_text()
    assert '"result": "refunded 7000"' in text and '"raised_in": "both.py:9"' in text


def test_a_function_of_the_reporter_decides_and_is_not_run_elsewhere(here: Path, run: Run) -> None:
    (here / "check.py").write_text(
        "def twice(entries):\n    return sum(one['type'] == 'tool_execution' for one in entries) > 1\n"
    )
    calls = [call("refund", order=7), call("refund", order=8), call("refund", order=9)]
    talk(*calls, "Done.")
    code, out, err = run("report", "last", "--bad", "./check.py:twice", "-o", "bug.yaml")
    assert code == 0 and "2 of 4 model calls, 2 of 3 tool calls" in out, err
    (here / "check.py").rename(here / "mine.py")
    code, _, err = run("replay", "bug.yaml")
    assert code == 2 and "./check.py:twice of the reporter decides" in err and "--bad ./FILE.py:FUNCTION" in err
    assert run("replay", "bug.yaml", "--bad", "./mine.py:twice")[0] == 1


# -- the plugins ---------------------------------------------------------------------------------


def test_plugins_that_are_not_needed_are_left_out(here: Path, run: Run) -> None:
    clock = plugin(here, CLOCK)
    other = plugin(here, "from connectagent import after_llm\n\n@after_llm\ndef look(response):\n    pass\n", "other")
    talk("One.", prompts=["Hello", "boom"], plugins=[other, clock])
    assert run("report", "last", "-p", other, "-p", clock, "-o", "bug.yaml")[0] == 0
    head = read_record(here / "bug.yaml")
    assert [one["name"] for one in head["needs"]] == ["clock"] and [one["name"] for one in head["others"]] == ["other"]
    assert run("replay", "bug.yaml", "-p", clock)[0] == 1


def test_a_plugin_that_is_not_here_is_named_with_its_version(here: Path, run: Run) -> None:
    clock = plugin(here, CLOCK)
    talk("One.", prompts=["boom"], plugins=[clock])
    run("report", "last", "-p", clock, "-o", "bug.yaml")
    code, _, err = run("replay", "bug.yaml")
    assert code == 2 and "needs plugin clock, a file of the reporter, which is not here: -p ./clock.py" in err
    text = (here / "bug.yaml").read_text()
    needs = '{"name": "clock", "version": "1.2.3", "from": "acme-clock"}'
    (here / "other.yaml").write_text(text.replace(text.split("needs: [")[1].split("]")[0], needs))
    code, _, err = run("replay", "other.yaml")
    assert code == 2 and "needs plugin clock 1.2.3, which is not here: install acme-clock==1.2.3" in err
    code, _, err = run("replay", "other.yaml", "-p", "no:clok")
    assert code == 2 and "Did you mean 'clock'?" in err


def test_a_report_gives_no_texts_as_options_to_an_installed_plugin(here: Path, run: Run) -> None:
    clock = plugin(here, CLOCK)
    talk("One.", prompts=["boom"], plugins=[clock])
    run("report", "last", "-p", clock, "-o", "bug.yaml")
    text = (here / "bug.yaml").read_text()
    options = '"options": {"attempts": 2, "run": "rm"}'
    needs = f'{{"name": "retry", "version": "0.1.0", "from": "connectagent-retry", {options}}}'
    (here / "other.yaml").write_text(text.replace(text.split("needs: [")[1].split("]")[0], needs))
    code, _, err = run("replay", "other.yaml")
    assert code == 2 and ("-p retry:run=rm" in err or "connectagent-retry==0.1.0" in err)


PICKY = """
from connectagent import after_user_input

class Picky:
    def __init__(self, limit: int = 9, word: str = "x"):
        self.limit, self.word = limit, word

    @after_user_input
    def check(self, prompt):
        if self.word in prompt and len(prompt) > self.limit:
            raise LookupError(self.word)
"""


def install(folder: Path, version: str) -> str:
    """A folder for `sys.path` in which the plugin `picky` is installed."""
    info = folder / f"connectagent_picky-{version}.dist-info"
    info.mkdir(parents=True)
    (folder / "picky_of_tests.py").write_text(PICKY)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: connectagent-picky\nVersion: {version}\n")
    (info / "entry_points.txt").write_text("[connectagent]\npicky = picky_of_tests:Picky\n")
    return str(folder)


def test_an_installed_plugin_is_named_with_version_and_options(
    here: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(install(here / "one", "1.0"))
    talk("One.", prompts=["boom!"], plugins=[("picky", {"limit": 4, "word": "boom"})])
    code, out, err = run("report", "last", "-p", "picky:limit=4,word=boom", "-o", "bug.yaml")
    assert code == 0 and "needs: picky" in out, err
    (fact,) = read_record(here / "bug.yaml")["needs"]
    assert fact.pop("sha256")
    options = {"limit": 4, "word": "boom"}
    assert fact == {"name": "picky", "version": "1.0", "from": "connectagent-picky", "options": options}
    monkeypatch.syspath_prepend(install(here / "two", "2.0"))
    code, _, err = run("replay", "bug.yaml")
    assert code == 2 and "Look at them, and give them yourself: -p picky:word=boom" in err
    code, out, _ = run("replay", "bug.yaml", "-p", "picky:word=boom,limit=4")
    assert code == 1 and "with picky 2.0" in out and "picky: 2.0 here, 1.0 in the report" in out
    assert run("replay", "bug.yaml", "-p", "picky:word=other")[0] == 0
    assert run("replay", "bug.yaml", "-p", "no:picky")[0] == 0


def test_a_plugin_whose_module_remembers_is_found_out(
    here: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = install(here / "one", "1.0")
    (here / "one" / "picky_of_tests.py").write_text("""
from connectagent import after_user_input

seen = []

class Picky:
    @after_user_input
    def check(self, prompt):
        seen.append(prompt)
        if len(seen) > 2:
            raise LookupError("three")
""")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{Path(__file__).parents[1]}")
    sys.modules.pop("picky_of_tests", None)
    talk("One.", "Two.", "Three.", prompts=["a", "b", "c"], plugins=["picky"])
    code, _, err = run("report", "last", "-p", "picky", "-o", "bug.yaml")
    sys.modules.pop("picky_of_tests", None)
    assert code == 1 and "not in a process of its own: a plugin keeps something" in err
    assert not (here / "bug.yaml").exists()


def test_several_reports_are_played_at_once(here: Path, run: Run) -> None:
    clock = plugin(here, CLOCK)
    talk("One.", prompts=["boom"], plugins=[clock])
    run("report", "last", "-p", clock, "-o", "one.yaml")
    talk(call("refund", order=7), "Done.")
    run("report", "last", "--bad", "calls refund", "-o", "two.yaml")
    code, out, _ = run("replay", "one.yaml", "two.yaml", "-p", clock)
    assert code == 1 and out.count(": reproduced") == 2
    assert len(json.loads(run("replay", "one.yaml", "two.yaml", "-p", "no:clock", "--json")[1])) == 2
    code, _, err = run("report", "last", "--bad", "says /in /home/jane/", "-o", "bug.yaml")
    assert code == 2 and "looks for what is masked" in err


def test_a_plugin_that_cannot_be_loaded_is_wrong_usage_for_records_too(here: Path, run: Run) -> None:
    broken = plugin(here, "import not_there\n", "broken")
    unfit = plugin(here, "from connectagent import after_llm\n\n@after_llm\ndef f(nothing):\n    pass\n", "unfit")
    talk("One.")
    for named in (broken, unfit, "nosuch", "no:nosuch", "./gone.py"):
        assert run("replay", "last", "-p", named)[0] == 2, named
        assert run("replay", "--all", "-p", named)[0] == 2, named
        assert run("report", "last", "-p", named)[0] == 2, named


def test_the_plugins_of_the_record_that_are_not_here_are_named(here: Path, run: Run) -> None:
    clock = plugin(here, CLOCK)
    talk("One.", prompts=["boom"], plugins=[clock])
    code, _, err = run("report", "last", "-o", "bug.yaml")
    assert code == 2 and "Plugins of the record that are not here: clock. Name them: -p ./clock.py" in err


def test_plugins_that_settings_name_have_no_part_in_a_report(
    here: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = plugin(here, CLOCK)
    talk("One.", prompts=["boom"], plugins=[clock])
    run("report", "last", "-p", clock, "-o", "bug.yaml")
    fix = plugin(here, """
from connectagent import around_turn

@around_turn
def swallow(prompt):
    yield
""" + CLOCK.replace("clock", "other"), "fix")  # fmt: skip
    monkeypatch.setenv("CONNECTAGENT_PLUGINS", str(here / fix))
    lines = run("replay", "bug.yaml", "-p", clock)[1].splitlines()
    assert lines[1:3] == ["  'boom'", "  by clock (after_user_input, clock.py:4)"] and lines[4:] == ["  with clock"]


# -- sessions of all kinds -----------------------------------------------------------------------


LIMIT = """
from connectagent import before_each_tool, ToolRejected

@before_each_tool
def limit(agent, tool_call):
    agent.state["calls"] = agent.state.get("calls", 0) + 1
    if agent.state["calls"] > 2:
        raise RuntimeError("three calls")
"""


def test_turns_that_the_failure_needs_stay(here: Path, run: Run) -> None:
    limit = plugin(here, LIMIT, "limit")
    calls = [call("refund", order=number) for number in range(6)]
    answers = [one for pair in zip(calls, ["Done."] * 6, strict=True) for one in pair]
    talk("Hi.", answers[0], answers[1], "Hm.", *answers[2:], prompts=[f"Prompt {n}" for n in range(6)], plugins=[limit])
    code, out, err = run("report", "last", "-p", limit, "-o", "bug.yaml")
    assert code == 0 and "3 of 6 turns" in out, err + out
    assert run("replay", "bug.yaml", "-p", limit)[0] == 1


def test_a_failure_inside_an_agent_that_is_a_tool(here: Path, run: Run) -> None:
    clock = plugin(here, CLOCK)
    inner = Agent("billing", llm=ScriptedLLM("Fine.", "Fine."), quiet=True, description="Bills.", system_prompt="Bill.")
    asks = [call("billing", prompt="hello"), call("billing", prompt="boom at 9"), "Done."]
    talk(*asks, tools=[inner], plugins=[clock])
    code, out, err = run("report", "last", "-p", clock, "-o", "bug.yaml")
    assert code == 0, err
    assert "error KeyError by clock, in turn 2 of billing, an agent inside" in out
    assert read_record(here / "bug.yaml")["agent"] == "billing"
    assert run("replay", "bug.yaml", "-p", clock)[0] == 1


def test_a_session_with_a_handoff_that_is_needed_is_named_as_what_cannot_be_told(here: Path, run: Run) -> None:
    sign = plugin(here, """
from connectagent import on_complete

@on_complete
def sign(agent, result):
    if agent.name == "desk":
        raise ValueError("signed")
""", "sign")  # fmt: skip
    billing = Agent("billing", llm=ScriptedLLM("It is 5 EUR."), quiet=True, description="Bills.")
    transfer = call("transfer_to_agent", agent_name="billing")
    desk = Agent("desk", llm=ScriptedLLM(transfer), sub_agents=[billing], quiet=True, plugins=[sign])
    with contextlib.suppress(Exception):
        desk.input("How much?")
    code, _, err = run("report", "last", "-p", sign, "--bad", "calls transfer_to_agent", "-o", "bug.yaml")
    assert code == 1 and "handed over to billing" in err, err


def test_a_failure_after_a_pause_that_was_decided(here: Path, run: Run) -> None:
    ask = plugin(here, """
from connectagent import Pause, after_each_tool, before_each_tool

@before_each_tool
def ask(tool_call):
    raise Pause("may it?")

@after_each_tool
def check(result):
    if result.startswith("refunded"):
        raise ValueError("refunded after all")
""", "ask")  # fmt: skip
    agent = Agent("shop", tools=[refund], llm=ScriptedLLM(call("refund", order=7), "Done."), plugins=[ask], quiet=True)
    with contextlib.suppress(Paused):
        agent.input("Refund order 7.")
    again = Agent("shop", tools=[refund], llm=ScriptedLLM("Done."), plugins=[ask], quiet=True)
    with contextlib.suppress(ValueError):
        again.resume(agent.record, approve=True)
    code, out, err = run("report", "last", "-p", ask, "-o", "bug.yaml")
    assert code == 0 and "error ValueError by ask" in out, err
    assert run("replay", "bug.yaml", "-p", ask)[0] == 1
    assert run("replay", "bug.yaml", "-p", "no:ask")[0] == 0


def test_a_failure_while_an_answer_streams(here: Path, run: Run) -> None:
    listen = plugin(here, """
from connectagent import after_llm, on_text

told = []

@on_text
def listen(agent, text):
    agent.state["told"] = agent.state.get("told", "") + text

@after_llm
def check(agent):
    if "rain" in agent.state.get("told", ""):
        raise OSError("no umbrella")
""", "listen")  # fmt: skip
    talk("It will rain in the evening.", stream=True, plugins=[listen])
    code, out, err = run("report", "last", "-p", listen, "-o", "bug.yaml")
    assert code == 0 and "error OSError by listen" in out, err
    assert read_record(here / "bug.yaml")["agent_options"] == {"stream": True}
    assert run("replay", "bug.yaml", "-p", listen)[0] == 1


def test_a_plugin_that_stopped_a_stream_is_named_as_what_cannot_be_told(here: Path, run: Run) -> None:
    listen = plugin(here, """
from connectagent import on_text

@on_text
def listen(text):
    raise OSError("no umbrella")
""", "listen")  # fmt: skip
    talk("It will rain in the evening.", stream=True, plugins=[listen])
    code, _, err = run("report", "last", "-p", listen, "-o", "bug.yaml")
    assert code == 1 and "a record does not have the text of an answer that was stopped" in err
    assert not (here / "bug.yaml").exists()


def test_an_error_that_only_warned_and_a_turn_that_never_ended(here: Path, run: Run) -> None:
    clock = plugin(here, CLOCK)
    with pytest.warns(UserWarning):
        talk(call("refund", order=7), "Done.", prompts=["boom"], plugins=[clock], plugin_errors="warn")
    assert run("report", "last", "-p", clock, "-o", "bug.yaml")[0] == 0
    record = next((here / ".co" / "evals").iterdir())
    lines = record.read_text().splitlines(keepends=True)
    cut = here / "cut.yaml"
    cut.write_text("".join(lines[: next(at for at, line in enumerate(lines) if '"tool_execution"' in line) + 1]))
    code, out, err = run("report", "cut.yaml", "-p", clock, "-o", "two.yaml")
    assert code == 0 and "error KeyError by clock" in out, err
    assert run("report", "cut.yaml", "--bad", "calls refund", "-o", "three.yaml")[0] == 0


def test_a_provider_that_failed_fails_again(here: Path, run: Run) -> None:
    from connectagent import ProviderError

    class Down:
        model = "down"

        def complete(self, messages: Any, tools: Any = None) -> Any:
            raise ProviderError("no capacity for jane", kind="overloaded", provider="acme", status=529)

    with contextlib.suppress(ProviderError):
        Agent("shop", llm=Down(), quiet=True).input("Hello")
    code, out, err = run("report", "last", "-o", "bug.yaml")
    assert code == 0 and "error ProviderError, in turn 1" in out, err
    assert run("replay", "bug.yaml")[0] == 1


def test_the_plugins_of_the_users_own_script_are_taken_from_it_and_nothing_of_it_runs(here: Path, run: Run) -> None:
    (here / "shop.py").write_text(f"""
from pathlib import Path
from connectagent import Agent
from connectagent.testing import ScriptedLLM
{CLOCK}
agent = Agent("shop", llm=ScriptedLLM("One.", "Two."), on_events=[clock], quiet=True)
if __name__ == "__main__" or not Path("ran").exists():
    Path("ran").write_text("1")
    for prompt in ("Hello", "boom"):
        try:
            agent.input(prompt)
        except KeyError:
            pass
""")
    assert run("run", "shop.py")[0] in (0, 1, 2)
    code, out, err = run("report", "last", "-o", "bug.yaml")
    assert code == 0, err
    assert "clock is in your code: others need it as a file, -p ./clock.py" in out
    clock = plugin(here, CLOCK.replace("def clock", "def late").replace("boom", "ello"), "late")
    assert run("replay", "bug.yaml", "-p", plugin(here, CLOCK))[0] == 1
    code, out, err = run("report", "last", "shop.py", "-p", clock, "--bad", "error KeyError by clock", "-o", "bug.yaml")
    assert code == 0 and "needs: clock" in out, err
    (here / "shop.py").write_text("raise RuntimeError('not today')\n")
    code, out, err = run("report", "last", "-p", "./clock.py", "-o", "bug.yaml")
    assert code == 0 and "cannot be loaded: RuntimeError: not today\nThe agent is made from the record." in err


# -- what stays, and where it is written ---------------------------------------------------------


def test_what_is_private_is_masked_even_where_masking_is_off(
    here: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTAGENT_MASK", "off")
    monkeypatch.setenv("SHOP_API_KEY", "zq81-planted-77x-aleph")
    clock = plugin(here, CLOCK.replace('"boom" in prompt', "len(prompt) > 60"))
    secret = "zq81-planted-77x-aleph of jane.doe, customer ACME-17, in /home/jane.doe/work and C:\\Users\\mjones\\x"
    talk("One.", prompts=[secret], plugins=[clock])
    assert "zq81" in next((here / ".co" / "evals").iterdir()).read_text()
    code, out, err = run("report", "last", "-p", clock, "--also-mask", r"ACME-\d+", "-o", "bug.yaml")
    assert code == 0, err
    text = (here / "bug.yaml").read_text() + out
    assert not any(word in text for word in ("zq81", "jane", "mjones", "ACME-17", str(here)))
    code, _, err = run("report", "last", "-p", clock, "--also-mask", "(")
    assert code == 2 and "is no regular expression" in err
    code, _, err = run("report", "last", "-p", clock, "--also-mask", "x*")
    assert code == 2 and "would be found everywhere" in err


def test_a_file_that_is_no_report_is_not_written_over(here: Path, run: Run) -> None:
    clock = plugin(here, CLOCK)
    agent = talk("One.", prompts=["boom"], plugins=[clock])
    record = str(agent.record)
    before = Path(record).read_bytes()
    for file, why in ((record, "is there already"), (clock, "is no report"), ("no/bug.yaml", "there is no folder")):
        code, _, err = run("report", record, "-p", clock, "-o", file)
        assert code == 2 and why in err
    assert Path(record).read_bytes() == before
    assert [run("report", record, "-p", clock, "-o", "bug.yaml")[0] for _ in range(2)] == [0, 0]
    code, out, _ = run("report", record, "-p", clock)
    assert code == 0 and "report: 1" in out and sorted(path.name for path in here.glob("*.yaml")) == ["bug.yaml"]


def test_a_report_is_data(here: Path, run: Run) -> None:
    clock = plugin(here, CLOCK)
    agent = talk("One.", prompts=["boom"], plugins=[clock])
    run("report", "last", "-p", clock, "-o", "bug.yaml")
    (here / "shop.py").write_text("raise SystemExit('it runs')\n")
    for arguments, why in (
        (["bug.yaml", "shop.py"], "without SCRIPT"),
        (["bug.yaml", "--live-tools"], "without --live-tools"),
        (["bug.yaml", str(agent.record)], "is a record, and other files are reports"),
        ([str(agent.record), "--bad", "calls x"], "--bad is for reports"),
        (["bug.yaml", "--bad", "calls"], "it is written as"),
    ):
        code, _, err = run("replay", *arguments, "-p", clock)
        assert code == 2 and why in err, err
    away = here / "away"
    away.mkdir()
    os.chdir(away)
    assert run("replay", "../bug.yaml", "-p", f".{clock}")[0] == 1
    assert list(away.iterdir()) == []
    (here / "later.yaml").write_text((here / "bug.yaml").read_text().replace("report: 1", "report: 2"))
    code, _, err = run("replay", "../later.yaml")
    assert code == 2 and "report 2 is not known here" in err


def test_other_commands_read_a_report_as_a_record(here: Path, run: Run) -> None:
    clock = plugin(here, CLOCK)
    talk(call("refund", order=7), "Done.", prompts=["Refund", "boom"], plugins=[clock])
    run("report", "last", "-p", clock, "--bad", "calls refund", "-o", "bug.yaml")
    code, out, err = run("log", "show", "bug.yaml")
    assert code == 0 and "refund" in out, err
    assert run("report", "bug.yaml", "--bad", "calls refund")[0] == 0


def test_a_long_session_becomes_a_small_report_soon(here: Path, run: Run) -> None:
    check = plugin(here, """
from connectagent import after_each_tool

@after_each_tool
def check(result):
    if "NEEDLE in" in result:
        raise ValueError("found it")
""", "check")  # fmt: skip
    count = max(4, int(MEGABYTES * 40))

    def look(page: int) -> str:
        """Look."""
        return f"page {page} " * 1500 + ("a NEEDLE in hay " if page == count else "") + "word " * 1500

    answers = [call("look", page=number + 1) for number in range(count)]
    given = [one for at, answer in enumerate(answers) for one in ([answer, "Done."] if at % 5 == 4 else [answer])]
    talk(*given, prompts=["Look."] * (count // 5), tools=[look], plugins=[check], max_iterations=100)
    began = time.process_time()
    code, out, err = run("report", "last", "-p", check, "-o", "bug.yaml")
    assert code == 0, err
    assert time.process_time() - began < 5
    assert (here / "bug.yaml").stat().st_size < 2000 and '"result": "NEEDLE in"' in out


# -- the parts -----------------------------------------------------------------------------------


def test_ddmin_finds_the_smallest_part() -> None:
    for needed in ([], [3], [0, 99], [17, 18, 60], [99]):
        assert ddmin(range(100), lambda part: set(needed) <= set(part)) == needed  # noqa: B023
    asked: list[int] = []
    assert ddmin(range(1000), lambda part: bool(asked.append(1)) or 999 in part) == [999]
    assert len(asked) < 10


def test_shortest_finds_a_piece_of_a_text() -> None:
    text = "".join(f"line {number}\n" for number in range(1000))
    assert shortest(text, lambda part: "line 700\n" in part) == "line 700\n"
    both = shortest(text, lambda part: "line 20\n" in part and "line 700\n" in part)
    assert "line 20\n" in both and "line 700\n" in both and len(both) < 60
    assert shortest("word " * 500 + "x", lambda part: part.endswith("x")) == "x"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("/home/jane.doe/a.py:3", "~/a.py:3"),
        ("file:///home/jane.doe/a", "file://~/a"),
        ("C:\\Users\\Jane Doe\\x", "~\\x"),
        ('{"path": "C:\\\\Users\\\\Jane\\\\x"}', '{"path": "~\\\\x"}'),
        ("%2Fhome%2Fjane.doe%2Fx", "~%2Fx"),
        ("said\\njane.doe", "said\\n[user]"),
        ("JANE.DOE_1 at deepthought", "[user]_1 at [machine]"),
        ("/srv/acme/shop/a.py", "<project>/a.py"),
        ("/srv/acme/shopping/a.py", "/srv/acme/shopping/a.py"),
        ("/root/.ssh/id", "~/.ssh/id"),
        ("https://example.org/home/page and mjane.doe", "https://example.org/home/page and mjane.doe"),
    ],
)
def test_home_folders_and_names_are_gone(text: str, clean: str) -> None:
    private = Private([], "/home/jane.doe/x", ["deepthought"], ["/srv/acme/shop", "/"])
    assert private.value({"a": [text]}) == {"a": [clean]}
