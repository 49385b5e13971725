"""`agent.ask()`, and `llm_do` inside a turn: a model call of a handler or tool, as part of the turn."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from connectagent import (
    Agent,
    LLMResponse,
    Retry,
    TokenUsage,
    after_tools,
    around_llm,
    llm_do,
    on_complete,
    on_error,
    shadow,
)
from connectagent.errors import ProviderError, TurnEndedError
from connectagent.testing import ScriptedLLM, call, replayed

PAID = LLMResponse("Yes.", usage=TokenUsage(10, 5, cost=0.25))


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


def broken() -> ProviderError:
    return ProviderError("busy", kind="overloaded", provider="p")


def asks_of(agent: Agent) -> list[dict[str, Any]]:
    assert agent.current_session is not None
    return [one for one in agent.current_session["trace"] if one["type"] == "llm_call" and "/ask:" in one["id"]]


def agent_with(*handlers: Any, script: tuple[Any, ...], **more: Any) -> Agent:
    return Agent("a", [double], llm=ScriptedLLM(*script), on_events=list(handlers), quiet=True, **more)


@after_tools
def reflect(agent: Any) -> None:
    agent.current_session["state"]["said"] = agent.ask("Is that so?").content


def test_an_answer_is_traced_with_who_asked_counted_and_beside_the_conversation() -> None:
    agent = agent_with(reflect, script=(call("double", x=2), PAID, "Done."))
    assert agent.input("Hi") == "Done."
    assert agent.current_session is not None and agent.current_session["state"]["said"] == "Yes."
    (entry,) = asks_of(agent)
    assert entry["by"]["handler"] == "reflect" and entry["status"] == "success" and entry["duration_ms"] >= 0
    assert agent.total_cost == 0.25 and [row["cost"] for row in agent.ledger if row["handler"] == "reflect"] == [0.25]
    llm: Any = agent.llm
    assert [message["content"] for message in llm.requests[1].messages] == ["Is that so?"]
    assert not any("Is that so?" in str(message["content"]) for message in agent.current_session["messages"])
    assert agent.last_usage is None  # of the conversation's own calls


def test_what_was_asked_before_a_kill_is_not_the_conversations_own_usage_either(tmp_path: Path) -> None:
    own = LLMResponse("Done.", usage=TokenUsage(100, 50, cost=0.5))

    @on_complete
    def check(agent: Agent) -> None:
        for question in ("Is it good?", "Is it short?"):
            agent.ask(question)

    agent = agent_with(check, script=(own, PAID, PAID))
    agent.input("Hi")
    lines = Path(str(agent.record)).read_text().splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if '"llm_call"' in line and "/ask:" in line)
    path = tmp_path / "a_1.yaml"
    path.write_text("".join(lines[: first + 1]))
    again = agent_with(check, script=(PAID,))
    assert again.resume(path) == "Done." and again.total_cost == 1.0
    assert again.last_usage == own.usage


def test_around_llm_sees_what_is_asked_but_not_by_its_own_code() -> None:
    seen: list[str] = []

    @around_llm
    def outer(agent: Any, request: Any) -> Iterator[None]:
        seen.append(f"outer {request.messages[-1]['content']}")
        agent.ask("Outer asks.")
        yield

    @around_llm
    def inner(agent: Any, request: Any) -> Iterator[None]:
        seen.append(f"inner {request.messages[-1]['content']}")
        if "Outer" in request.messages[-1]["content"]:
            agent.ask("Inner asks.")
        yield

    agent = agent_with(outer, inner, script=("1", "2", "Done."))
    assert agent.input("Hi") == "Done."
    assert seen == ["outer Hi", "inner Outer asks.", "inner Hi"]
    assert [entry["by"]["handler"].rpartition(".")[2] for entry in asks_of(agent)] == ["inner", "outer"]


def test_around_llm_may_replace_the_answer_or_end_the_turn_before_it() -> None:
    said: list[Any] = []

    @around_llm
    def budget(agent: Any, request: Any) -> Iterator[Any]:
        if request.messages[-1]["content"] == "Too much?":
            agent.end_turn("No money.")
        yield
        if request.messages[-1]["content"] == "Is that so?":
            return LLMResponse("Replaced.")  # type: ignore[return-value]

    @after_tools
    def check(agent: Any) -> None:
        said.append(agent.ask("Is that so?").content)
        with pytest.raises(TurnEndedError, match="the turn was ended before") as raised:
            agent.ask("Too much?")
        assert isinstance(raised.value, ProviderError) and raised.value.kind == "turn_ended"

    agent = agent_with(budget, check, script=(call("double", x=2), PAID, "never"))
    assert agent.input("Hi") == "No money." and said == ["Replaced."]
    llm: Any = agent.llm
    assert len(llm.requests) == 2
    (entry,) = asks_of(agent)
    assert entry["content"] == "Replaced." and entry["usage"].cost == 0.25


def test_a_turn_that_is_over_may_still_ask_in_on_complete() -> None:
    @after_tools
    def stop(agent: Any) -> None:
        agent.end_turn("Stopped.")

    @on_complete
    def title(agent: Any, result: str) -> str:
        return f"{result} {agent.ask('A title?').content}"

    assert agent_with(stop, title, script=(call("double", x=2), "Yes.")).input("Hi") == "Stopped. Yes."


def test_on_error_may_try_again_or_recover_but_not_what_its_own_code_asks() -> None:
    seen: list[Any] = []

    @on_error
    def mend(agent: Any, error: Exception, tool_call: Any, request: Any, attempt: int) -> Any:
        seen.append((tool_call, request.messages[-1]["content"], attempt))
        if attempt == 1:
            with pytest.raises(ProviderError):  # of whoever asks here, and not handled by the one who asks
                agent.ask("What now?")
            return Retry()
        return "Recovered."

    agent = agent_with(mend, reflect, script=(call("double", x=2), broken(), broken(), broken(), "Done."))
    assert agent.input("Hi") == "Done."
    assert seen == [(None, "Is that so?", 1), (None, "Is that so?", 2)]
    assert agent.current_session is not None and agent.current_session["state"]["said"] == "Recovered."
    asked = [(one["status"], one.get("attempt"), one["id"].count("/ask:")) for one in asks_of(agent)]
    assert asked == [("error", None, 1), ("error", None, 2), ("recovered", 2, 1)]


def test_a_structured_answer_is_asked_for_again_once_and_each_call_is_counted() -> None:
    class Verdict(BaseModel):
        good: bool

    found: list[Any] = []

    @after_tools
    def judge(agent: Any) -> None:
        found.append(agent.ask("Good?", output=Verdict, system_prompt="Be strict."))

    agent = agent_with(judge, script=(call("double", x=2), "no JSON", '{"good": true}', "Done."))
    assert agent.input("Hi") == "Done." and found == [Verdict(good=True)]
    assert len(asks_of(agent)) == 2


def test_tools_and_whole_messages_are_sent_and_the_calls_are_the_callers() -> None:
    answers: list[LLMResponse] = []

    @after_tools
    def plan(agent: Any) -> None:
        messages = [{"role": "user", "content": "Plan."}, {"role": "assistant", "content": "How?"}]
        answers.append(agent.ask([*messages, {"role": "user", "content": "So."}], tools=[double]))

    agent = agent_with(plan, script=(call("double", x=2), call("double", x=9), "Done."))
    assert agent.input("Hi") == "Done."
    assert answers[0].tool_calls is not None and answers[0].tool_calls[0].arguments == {"x": 9}
    llm: Any = agent.llm
    sent = llm.requests[1]
    assert [message["content"] for message in sent.messages] == ["Plan.", "How?", "So."]
    assert [tool["function"]["name"] for tool in sent.tools] == ["double"]


def test_outside_of_a_turn_there_is_nothing_to_ask_as_part_of() -> None:
    with pytest.raises(RuntimeError, match="not in a turn"):
        agent_with(script=("x",)).ask("Hm?")


def test_llm_do_inside_a_turn_is_the_same() -> None:
    seen: list[str] = []

    @around_llm
    def watch(request: Any) -> Iterator[None]:
        seen.append(request.model)
        yield

    @after_tools
    def check() -> None:
        assert llm_do("Hm?", llm=ScriptedLLM(broken(), PAID, model="judge")) == "Yes."

    @on_error
    def again() -> Retry:
        return Retry()

    agent = agent_with(watch, check, again, script=(call("double", x=2), "Done."))
    assert agent.input("Hi") == "Done."
    assert seen == ["scripted", "judge", "judge", "scripted"] and agent.total_cost == 0.25


def test_threads_of_a_tool_ask_at_the_same_time() -> None:
    meeting = threading.Barrier(2, timeout=20)

    def both() -> str:
        """Ask two."""

        def ask(number: int) -> None:
            llm_do(f"{number}?", llm=ScriptedLLM(lambda *given: [meeting.wait(), PAID][1]))

        threads = [threading.Thread(target=copy_context().run, args=(ask, number)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return "asked"

    agent = Agent("a", [both], llm=ScriptedLLM(call("both"), "Done."), quiet=True)
    assert agent.input("Hi") == "Done." and len(asks_of(agent)) == 2


def test_asks_are_no_iterations_of_the_loop() -> None:
    agent = agent_with(reflect, script=(call("double", x=2), PAID, "Done."))
    agent.input("Hi")
    from connectagent.records.summary import summarise

    totals = summarise(str(agent.record)).totals
    assert totals is not None and totals.iterations == 2


def test_a_replay_answers_what_was_asked_from_the_record() -> None:
    agent = agent_with(reflect, script=(call("double", x=2), PAID, "Done."))
    agent.input("Hi")
    today = agent_with(reflect, script=())
    turn = replayed(str(agent.record), today)
    assert turn.result == "Done."
    (entry,) = asks_of(today)
    assert entry["content"] == "Yes."


RESUMED = '''
import os, sys
from connectagent import Agent, LLMResponse, TokenUsage, after_tools
from connectagent.testing import ScriptedLLM, call

def look() -> str:
    """Look."""
    return "seen"

@after_tools
def reflect(agent):
    agent.current_session["state"]["first"] = agent.ask("First?").content
    if len(sys.argv) == 1:
        os._exit(9)
    agent.current_session["state"]["second"] = agent.ask("Second?").content

first = LLMResponse("One.", usage=TokenUsage(1, 2, cost=0.5))
llm = ScriptedLLM(call("look"), first) if len(sys.argv) == 1 else ScriptedLLM("Two.", "Done.")
agent = Agent("a", [look], llm=llm, on_events=[reflect], quiet=True)
if len(sys.argv) == 1:
    agent.input("Hi")
else:
    print(agent.resume(sys.argv[1]), agent.current_session["state"], agent.total_cost)
'''


def test_what_was_asked_is_not_asked_again_after_a_kill() -> None:
    Path("script.py").write_text(RESUMED)
    assert subprocess.run([sys.executable, "script.py"], check=False).returncode == 9
    (record,) = Path(".co/evals").glob("*.yaml")
    words = [sys.executable, "script.py", str(record)]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert told == "Done. {'first': 'One.', 'second': 'Two.'} 0.5\n"




def test_a_shadowed_handler_asks_no_model() -> None:
    agent = agent_with(shadow(reflect), script=(call("double", x=2), "Done."))
    assert agent.input("Hi") == "Done." and asks_of(agent) == []
    assert agent.current_session is not None
    (would,) = [entry["would"] for entry in agent.current_session["trace"] if entry["type"] == "shadow"]
    assert would["calls"] == [{"call": "ask", "arguments": {"prompt": "Is that so?"}}] and "raise" not in would
