"""An answer is checked; a failure goes back to the model a few times; nothing runs in a dry run or a replay."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from connectagent_verify import Verify
from pytest_connectagent import AgentTester

from connectagent import Agent, ConfigError, Pause, Paused, ToolCall, ToolRejected, before_each_tool, shadow
from connectagent.testing import ScriptedLLM, call, replayed


class Check:
    """A check that notes what it was given; the first `failures` of them fail."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.given = failures, list[str]()

    def __call__(self, answer: str) -> str | None:
        self.given.append(answer)
        return "it is wrong" if len(self.given) <= self.failures else None


def agent_with(plugin: Any, *responses: Any, **options: Any) -> Agent:
    given = {"log": False, "quiet": True, "plugins": [plugin], **options}
    return Agent("helper", llm=ScriptedLLM(*responses), **given)


def asked(agent: Agent) -> int:
    return len(agent.llm.requests)  # type: ignore[attr-defined]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_it_keeps_the_rules_on_every_path(agenttester: AgentTester) -> None:
    checked = agenttester.check(Verify(lambda answer: None), changes={"tools", "state"})
    assert checked.hooks == {"on_agent_ready", "on_complete"}


def test_it_keeps_the_rules_where_the_check_fails(agenttester: AgentTester) -> None:
    plugin = Verify(lambda answer: False, attempts=1)
    agenttester.check(plugin, changes={"tools", "state", "turn", "result"})


def test_what_passes_is_the_result() -> None:
    check = Check()
    agent = agent_with(Verify(check), "Done.")
    assert agent.input("Work") == "Done."
    assert (check.given, agent.state["verify"]) == (["Done."], {"turn": 1, "failures": 0, "passed": True})


def test_a_failure_goes_back_to_the_model() -> None:
    agent = agent_with(Verify(Check(2)), "One.", "Two.", "Three.")
    assert agent.input("Work") == "Three."
    users = [message["content"] for message in agent.session["messages"] if message["role"] == "user"]
    assert users[1:] == ["You are not done: the check failed: it is wrong"] * 2


def test_after_some_failures_the_result_says_so_and_each_turn_begins_anew() -> None:
    agent = agent_with(Verify(Check(3), attempts=1), "One.", "Two.", "Three.", "Four.")
    assert agent.input("Work") == "Two.\n\n(not verified: failed: it is wrong)"
    assert agent.state["verify"] == {"turn": 1, "failures": 2, "passed": False}
    assert agent.input("Again") == "Four."
    agent = agent_with(Verify(Check(9), attempts=0, note=False), "One.")
    assert agent.input("Work") == "One."


@pytest.mark.parametrize(("found", "passes"), [(None, True), (True, True), (False, False), ("bad", False), ("", False)])
def test_what_a_function_returns(found: Any, passes: bool) -> None:
    agent = agent_with(Verify(lambda answer: found, attempts=0), "Done.")
    agent.input("Work")
    assert agent.state["verify"]["passed"] is passes


def test_a_function_that_raises_fails() -> None:
    def check(answer: str) -> None:
        assert answer == "Good.", "it is not good"

    agent = agent_with(Verify(check), "Bad.", "Good.")
    assert agent.input("Work") == "Good."


def test_a_command_passes_with_the_exit_code_0_and_its_output_is_read(tmp_path: Path) -> None:
    code = "import os, sys; print('found', os.getcwd()); sys.exit(os.path.exists('wrong'))"
    (tmp_path / "wrong").touch()

    def mend(messages: Any, tools: Any) -> str:
        (tmp_path / "wrong").unlink()
        return "Mended."

    agent = agent_with(Verify(python(code), cwd=str(tmp_path)), "Done.", mend)
    assert agent.input("Work") == "Mended."
    assert f"failed: exit code 1\nfound {tmp_path}" in str(agent.session["messages"][2]["content"])


def test_a_command_may_be_a_line_for_the_shell() -> None:
    agent = agent_with(Verify("echo no && exit 3", attempts=0), "Done.")
    assert agent.input("Work") == "Done.\n\n(not verified: failed: exit code 3)"


@pytest.mark.posix("has no shell that reads this")
def test_a_command_is_killed_where_its_turn_is_cancelled(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    agent = agent_with(Verify(f"while :; do echo x >> '{mark}'; sleep 0.05; done", timeout_s=60), "Done.")

    async def cancelled() -> None:
        async with asyncio.timeout(1):
            await agent.ainput("Work")

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    time.sleep(0.2)
    size = mark.stat().st_size
    time.sleep(0.3)
    assert size > 0 and mark.stat().st_size == size


@pytest.mark.posix("has no groups of processes: what a killed command has started goes on")
def test_a_command_that_takes_too_long_is_killed_with_what_it_started(tmp_path: Path) -> None:
    line = f"(sleep 1; touch {tmp_path}/late) & sleep 30"
    agent = agent_with(Verify(line, attempts=0, timeout_s=0.2), "Done.")
    began = time.monotonic()
    assert "it still ran after 0.2 s" in agent.input("Work")
    assert time.monotonic() - began < 10
    time.sleep(1.2)
    assert not (tmp_path / "late").exists()


def test_long_output_is_cut_at_its_beginning() -> None:
    code = "print('é' * 100_000 + 'the end'); raise SystemExit(1)"
    agent = agent_with(Verify(python(code), output=50, attempts=1), "Done.", "Done.")
    agent.input("Work")
    text = str(agent.session["messages"][2]["content"])
    assert text.endswith("éthe end") and "(the end of 200008 bytes)" in text
    assert len(text) < 200


def test_a_command_that_cannot_start_ends_the_turn_unverified() -> None:
    agent = agent_with(Verify(["no-such-program-here"]), "Done.")
    assert "not verified: Error: FileNotFoundError" in agent.input("Work")
    assert asked(agent) == 1


def test_a_guard_is_asked_and_may_refuse_or_pause(co_dir: Path) -> None:
    @before_each_tool
    def refuse(tool_call: ToolCall) -> None:
        raise ToolRejected("no programs today")

    check = Check()
    assert "not verified" in agent_with([Verify(check), refuse], "Done.").input("Work")
    assert check.given == []

    @before_each_tool
    def ask(tool_call: ToolCall) -> None:
        raise Pause("run it?")

    with pytest.raises(Paused) as paused:
        agent_with([Verify(check), ask], "Done.", log=None).input("Work")
    assert agent_with([Verify(check), ask], log=None).resume(paused.value.record, approve=True) == "Done."
    assert check.given == ["Done."]


def test_what_ended_otherwise_is_not_checked() -> None:
    check = Check()
    agent = agent_with(Verify(check), [call("verify", answer="x")] * 2, max_iterations=1)
    assert "Maximum iterations" in agent.input("Work")
    assert check.given == ["x", "x"]  # of the model itself


def test_an_inherited_plugin_checks_the_result_of_the_agent_above_only() -> None:
    check, own = Check(), Check()
    child = Agent("child", llm=ScriptedLLM("From below."), quiet=True, log=False)
    other = Agent("other", llm=ScriptedLLM("Other."), plugins=[Verify(own)], quiet=True, log=False)
    calls = [call("child", prompt="a"), call("other", prompt="b")]
    agent = agent_with(Verify(check), calls, "Done.", tools=[child, other])
    assert agent.input("Work") == "Done."
    assert (check.given, own.given) == (["Done."], ["Other."])
    assert child.list_tools() == []


def test_an_agent_below_with_a_check_of_its_own_counts_its_own_failures() -> None:
    own = Agent("own", llm=ScriptedLLM("a", "b"), plugins=[Verify(Check(), attempts=0)], quiet=True, log=False)
    asks = call("own", prompt="x")
    agent = agent_with(Verify(Check(9), attempts=1), asks, "One.", asks, "Two.", "Never.", tools=[own])
    assert agent.input("Work").startswith("Two.\n\n(not verified")
    assert agent.state["verify"] == {"turn": 1, "failures": 2, "passed": False}
    assert agent.state["verify:own"] == {"turn": 2, "failures": 0, "passed": True}


def test_a_finished_check_is_not_repeated_by_a_resume_nor_run_in_a_replay(co_dir: Path) -> None:
    check = Check(1)
    first = agent_with(Verify(check), "One.", KeyboardInterrupt(), log=None)
    with pytest.raises(KeyboardInterrupt):
        first.input("Work")
    again = agent_with(Verify(check), "Two.", log=None)
    assert again.resume(first.record) == "Two."
    assert check.given == ["One.", "Two."]

    check = Check(1)
    whole = agent_with(Verify(check), "One.", "Two.", log=None)
    assert whole.input("Work") == "Two."
    assert whole.record is not None
    played = replayed(whole.record, agent=agent_with(Verify(check), log=None))
    assert (played.same, played.result, len(check.given)) == (True, "Two.", 2)


def test_nothing_runs_in_a_dry_run() -> None:
    check = Check()
    agent = agent_with(shadow(Verify(check)), "Done.")
    assert agent.input("Work") == "Done."
    assert check.given == []


def test_a_streamed_turn_is_checked_too() -> None:
    agent = agent_with(Verify(Check(1)), "One.", "Two.")
    list(agent.stream("Work"))
    assert agent.session["result"] == "Two."


@pytest.mark.parametrize("wrong", [{"check": ""}, {"check": [1]}, {"attempts": -1}, {"timeout_s": "1"}])
def test_wrong_options_are_told(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Verify(**{"check": "true", **wrong})


def test_the_example_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    exec(text.split("```python\n")[1].split("```")[0], {})
    assert capsys.readouterr().out.endswith("It is short.\n")
