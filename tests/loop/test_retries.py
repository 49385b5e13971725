"""A call that is made again: its attempts, each with its own start and time, and whom the next one asks."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import forked
import pytest

from connectagent import Agent, LLMResponse, Pause, Paused, Retry, TokenUsage, on_error, tool, xray
from connectagent.cli.view.reading import Reading
from connectagent.errors import ProviderError
from connectagent.testing import ScriptedLLM, call

SLOW_S = 0.15


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def busy() -> ProviderError:
    return ProviderError("busy", kind="overloaded", provider="p")


def entries(agent: Agent, kind: str) -> list[dict[str, Any]]:
    assert agent.current_session is not None
    return [entry for entry in agent.current_session["trace"] if entry["type"] == kind]


def test_on_error_is_given_the_request_and_the_number_of_the_attempt() -> None:
    seen: list[Any] = []

    def fails() -> str:
        """Fail."""
        raise ValueError("no")

    @on_error
    def note(tool_call: Any, request: Any, attempt: int) -> Any:
        seen.append((tool_call is None, request and request.messages[-1]["content"], attempt))
        return Retry() if attempt < 3 else None

    llm = ScriptedLLM(busy(), call("fails"), "Done.")
    agent = Agent("a", [fails], llm=llm, on_events=[note], log=False, quiet=True)
    assert agent.input("Hi") == "Done."
    assert seen == [(True, "Hi", 1), (False, None, 1), (False, None, 2), (False, None, 3)]


def test_what_on_error_changes_in_the_request_holds_for_the_next_attempt() -> None:
    @on_error
    def shorten(request: Any) -> Retry:
        request.messages = [{"role": "user", "content": "Short."}]
        return Retry()

    llm = ScriptedLLM(busy(), "Done.")
    agent = Agent("a", llm=llm, on_events=[shorten], log=False, quiet=True)
    assert agent.input("Something long") == "Done."
    assert [message["content"] for message in llm.requests[1].messages] == ["Short."]
    (change,) = entries(agent, "change")
    assert change["of"] == "request" and change["by"]["handler"].endswith("shorten")


def test_another_model_may_be_given_as_an_object() -> None:
    other = ScriptedLLM(LLMResponse("Other.", usage=TokenUsage(1, 2, cost=0.5)), model="other")

    @on_error
    def instead() -> Retry:
        return Retry(model=other)

    llm = ScriptedLLM(busy(), "Own.")
    agent = Agent("a", llm=llm, on_events=[instead], quiet=True)
    assert [agent.input("Hi"), agent.input("Hi")] == ["Other.", "Own."]
    calls = [(entry["model"], entry["status"], entry.get("attempt")) for entry in entries(agent, "llm_call")]
    assert calls == [("scripted", "error", None), ("other", "success", 2), ("scripted", "success", None)]
    assert agent.total_cost == 0.5 and len(other.requests) == 1


@pytest.mark.parametrize("model", [42, "", object()])
def test_what_is_no_model_is_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="a model's name or an LLM"):
        Retry(model=model)


GIVEN = '''
import os, sys
from connectagent import Agent, Retry, on_error
from connectagent.errors import ProviderError
from connectagent.testing import ScriptedLLM

def dies(messages, tools):
    os._exit(9)

@on_error
def instead(error):
    print("asked", flush=True)
    return Retry(model=ScriptedLLM(dies if len(sys.argv) == 1 else "Other.", model="scripted-other"))

failed = ProviderError("busy", kind="overloaded", provider="p")
agent = Agent("a", llm=ScriptedLLM(failed), on_events=[instead], quiet=True)
print(agent.input("Hi") if len(sys.argv) == 1 else agent.resume(sys.argv[1]))
'''


def test_a_model_that_was_given_as_an_object_is_asked_for_again_where_it_cannot_be_made() -> None:
    Path("script.py").write_text(GIVEN)
    first = forked.run("script.py", check=False)
    assert (first.returncode, first.stdout) == (9, "asked\n")
    (record,) = Path(".co/evals").glob("*.yaml")
    words = [sys.executable, "script.py", str(record)]
    for expected in ("asked\nOther.\n", "Other.\n"):  # the second time all is in the record
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert done.stdout == expected
    assert "scripted-other" in record.read_text()


def pay() -> str:
    """Pay."""
    if not xray.approved:
        raise Pause("may I?")
    return "paid"


def test_a_turn_goes_on_behind_an_answer_of_a_model_that_was_given_as_an_object() -> None:
    asked: list[int] = []

    def made(*script: Any) -> Agent:
        @on_error
        def instead(attempt: int) -> Retry:
            asked.append(attempt)
            return Retry(model=ScriptedLLM(*script, model="test/other"))

        return Agent("a", [pay], llm=ScriptedLLM(busy(), "Done."), on_events=[instead], quiet=True)

    with pytest.raises(Paused) as paused:
        made(call("pay")).input("Hi")
    agent = made("Other.")
    assert agent.resume(paused.value.record, approve=True) == "Other."
    assert asked == [1, 1]  # once for each of the two model calls


def test_a_model_that_was_given_as_an_object_and_failed_is_asked_for_again_where_a_later_attempt_needs_it() -> None:
    asked: list[int] = []
    kept = Path("kept.yaml")

    def dies(messages: Any, tools: Any) -> str:
        shutil.copy(str(agent.record), kept)
        return "never"

    def made(*script: Any) -> Agent:
        other = ScriptedLLM(*script, model="test/other")

        @on_error
        def instead(attempt: int) -> Retry:
            asked.append(attempt)
            return Retry(model=other) if attempt == 1 else Retry()

        return Agent("a", llm=ScriptedLLM(busy()), on_events=[instead], quiet=True)

    agent = made(busy(), dies)
    agent.input("Hi")
    assert made("Other.").resume(kept) == "Other."
    assert asked == [1, 2, 1]


def test_a_tool_that_succeeds_at_its_second_attempt_is_a_success_with_two_attempts() -> None:
    runs: list[float] = []

    def flaky() -> str:
        """Fail once, slowly."""
        runs.append(time.time())
        time.sleep(SLOW_S if len(runs) == 1 else 0)
        if len(runs) == 1:
            raise ConnectionError("lost")
        return "fine"

    @on_error
    def again() -> Retry:
        return Retry(after_s=SLOW_S)

    agent = Agent("a", [flaky], llm=ScriptedLLM(call("flaky"), "Done."), on_events=[again], quiet=True)
    assert agent.input("Hi") == "Done."
    (entry,) = entries(agent, "tool_execution")
    assert (entry["status"], entry["result"], entry["timing"] < SLOW_S * 1000) == ("success", "fine", True)
    first, second = entry["attempts"]
    assert (first["status"], first["error_type"], second["status"]) == ("error", "ConnectionError", "success")
    assert first["timing"] >= SLOW_S * 1000 > second["timing"] == entry["timing"]
    assert first["started"] == pytest.approx(runs[0], abs=0.1) and second["started"] == pytest.approx(runs[1], abs=0.1)
    assert second["started"] - first["started"] >= 2 * SLOW_S

    news = Reading(Path(str(agent.record))).news()
    failed, row = (row for row in news["rows"] if row["kind"] == "tool")
    assert (failed["status"], failed["bad"], "tried again" in failed["badges"]) == ("error", 1, True)
    assert (row["status"], row["bad"], row["attempt"], row["name"]) == ("success", 0, 2, "flaky")
    told = forked.run("-m", "connectagent", "log", "show", check=True).stdout
    assert "2 attempts" in told and "ConnectionError" in told


def test_attempts_at_a_model_have_each_its_own_start_and_time() -> None:
    def slow(messages: Any, tools: Any) -> Any:
        time.sleep(SLOW_S)
        return busy()

    @on_error
    def again() -> Retry:
        return Retry(after_s=SLOW_S)

    agent = Agent("a", llm=ScriptedLLM(slow, "Done."), on_events=[again], quiet=True)
    agent.input("Hi")
    first, second = entries(agent, "llm_call")
    assert first["duration_ms"] >= SLOW_S * 1000 > second["duration_ms"]
    assert second["started"] - first["started"] >= 2 * SLOW_S
    assert second["started"] - first["timestamp"] >= SLOW_S  # the wait is nobody's time


def test_time_that_an_agent_waits_for_one_beside_it_is_not_its_own() -> None:
    def slow(messages: Any, tools: Any) -> str:
        time.sleep(4 * SLOW_S)
        return "Slow."

    children = [Agent("slow", llm=ScriptedLLM(slow), quiet=True), Agent("quick", llm=ScriptedLLM("Quick."), quiet=True)]
    both = [call("slow", prompt="a"), call("quick", prompt="b")]
    agent = Agent("a", children, llm=ScriptedLLM(both, "Done."), quiet=True)
    assert agent.input("Hi") == "Done."
    first, second = entries(agent, "tool_execution")
    turns = {entry["agent"]: entry["duration_ms"] for entry in entries(agent, "agent_turn")}
    assert first["timing"] >= 4000 * SLOW_S > second["timing"]
    assert turns["slow"] >= 4000 * SLOW_S > turns["quick"]


def test_an_attempt_that_a_kill_cut_off_is_made_again_where_the_tool_is_idempotent(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written as if the first attempt had ended then: the retry was lost, and with it later `on_error`s."""
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / ".co"))

    class Killed(BaseException):
        pass

    def made(fates: list[BaseException | None], *responses: Any) -> Agent:
        @tool(idempotent=True)
        def work(x: int) -> str:
            """Work."""
            if (fate := fates.pop(0)) is not None:
                raise fate
            return "worked"

        @on_error
        def again(attempt: int) -> Any:
            return Retry() if attempt < 4 else None

        return Agent("a", [work], llm=ScriptedLLM(*responses), plugins=[again], quiet=True)

    first = made([ValueError("f"), Killed()], [call("work", x=1), call("work", x=2)])
    with pytest.raises(Killed):
        first.input("Go")
    fates: list[BaseException | None] = [None, None]
    second = made(fates, ProviderError("down", kind="server", provider="t"), "Done.")
    assert second.resume(first.record) == "Done."
    assert fates == []
    session: Any = second.current_session
    calls = [entry["status"] for entry in session["trace"] if entry["type"] == "tool_execution"]
    assert calls == ["success", "skipped", "success"]  # what was skipped then stays in the trace


@pytest.mark.parametrize("timeout_s", [None, 0.02])
def test_a_retry_of_a_tool_that_the_handler_has_removed_finds_no_such_tool(timeout_s: float | None) -> None:
    runs: list[str] = []
    gone_on = threading.Event()

    @tool(timeout_s=timeout_s)
    def flaky() -> str:
        """Fail, or take too long."""
        runs.append("ran")
        if timeout_s is None:
            raise ValueError("no")
        gone_on.wait(10)
        return "late"

    @on_error
    def remove_it(agent: Any, tool_call: Any) -> Any:
        if "flaky" not in agent.tools:
            return None
        agent.remove_tool("flaky")
        return Retry()

    llm = ScriptedLLM(call("flaky"), "Done.")
    agent = Agent("a", [flaky], llm=llm, on_events=[remove_it], log=False, quiet=True)
    try:
        assert agent.input("Hi") == "Done."
    finally:
        gone_on.set()
    (entry,) = entries(agent, "tool_execution")
    assert runs == ["ran"]
    assert (entry["status"], entry["error_type"]) == ("not_found", "ToolNotFound")
    assert [one["error_type"] for one in entry["attempts"]] == [
        "ValueError" if timeout_s is None else "TimeoutError",
        "ToolNotFound",
    ]
    assert "there is no tool 'flaky'" in llm.requests[1].messages[-1]["content"]
