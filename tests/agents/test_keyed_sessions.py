"""Sessions with a key: the same turn of one session is never taken twice."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from connectagent import (
    Agent,
    DivergenceError,
    LLMResponse,
    Pause,
    Paused,
    SessionBusy,
    TokenUsage,
    ToolCall,
    ToolRejected,
    before_each_tool,
    on_session,
)
from connectagent.agents import keyed_session
from connectagent.errors import ConfigError, ProviderError
from connectagent.records import retention
from connectagent.records.file import hold
from connectagent.records.read import read_record
from connectagent.records.summary import summarise
from connectagent.records.write import RecordLog
from connectagent.testing import ScriptedLLM, call, conversation_problems

KILLS = int(os.environ.get("SESSION_KILLS", "6"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def note(text: str) -> str:
    """Write a line."""
    with open("notes", "a") as file:
        file.write(text + "\n")
    return "noted"


@dataclass
class Point:
    a: int


KILLED_SCRIPT = """
import os, signal
from connectagent import Agent, before_llm
from connectagent.testing import ScriptedLLM

@before_llm
def die():
    os.kill(os.getpid(), signal.SIGKILL)

Agent("writer", llm=ScriptedLLM("x"), quiet=True, on_events=[die]).for_session("chat").turn("first")
"""


def notes() -> list[str]:
    return Path("notes").read_text().split() if Path("notes").exists() else []


def writer(*responses: Any, **options: Any) -> Agent:
    return Agent("writer", **{"tools": [note], "llm": ScriptedLLM(*responses), "quiet": True, **options})


def test_a_turn_is_taken_once_and_then_read() -> None:
    agent = writer(call("note", text="a"), "one", "two")
    session = agent.for_session("chat")
    assert [session.turn("first", number=1) for _ in range(3)] == ["one"] * 3
    assert session.turn("second") == "two" and session.turns == 2
    assert agent.for_session("chat").turn("first", number=1) == "one"
    assert notes() == ["a"] and len(list(Path(".co/evals").iterdir())) == 1


def test_another_agent_goes_on_with_the_conversation() -> None:
    writer("one").for_session("chat").turn("first")
    other = writer("two").for_session("chat")
    assert other.turn("second", number=2) == "two"
    assert [m["content"] for m in other.agent.session["messages"]] == ["first", "one", "second", "two"]


def test_both_may_take_turns_one_after_the_other() -> None:
    ours, theirs = (writer(*[name] * 4).for_session("chat") for name in ("ours", "theirs"))
    order = [ours, theirs, theirs, ours, theirs]
    results = [session.turn(f"turn {number}", number=number) for number, session in enumerate(order, 1)]
    assert results == ["ours", "theirs", "theirs", "ours", "theirs"]
    assert len(theirs.agent.session["messages"]) == 10


def test_keys_that_differ_have_files_that_differ() -> None:
    keys = ["a", "A", "a/b", "a_b", "../a", "é", "x" * 300, "x" * 301, "a b", ".", ".."]
    for key in keys:
        assert writer(key).for_session(key).turn("which?") == key
    files = list(Path(".co/evals").iterdir())
    assert len({file.name.lower() for file in files}) == len(keys) == len(files)


@pytest.mark.parametrize(
    ("number", "words"), [(3, "1 of its turns have ended"), (0, "cannot be taken"), (True, "cannot be taken")]
)
def test_a_number_that_cannot_be_next_is_refused(number: Any, words: str) -> None:
    session = writer("one", "two").for_session("chat")
    session.turn("first")
    with pytest.raises(ConfigError, match=words):
        session.turn("second", number=number)
    assert session.turn("second", number=2) == "two"


def test_another_prompt_for_the_same_turn_is_refused() -> None:
    session = writer("one").for_session("chat")
    session.turn("first", number=1)
    with pytest.raises(DivergenceError, match="begun with the prompt 'first', not 'other'"):
        session.turn("other", number=1)


def test_a_turn_that_failed_goes_on_and_its_tools_do_not_run_again() -> None:
    down = ProviderError("down", kind="server", provider="x")
    session = writer(call("note", text="a"), down, "done").for_session("chat")
    with pytest.raises(ProviderError):
        session.turn("first", number=1)
    assert session.turn("first", number=1) == "done"
    assert notes() == ["a"] and session.turns == 1


@pytest.mark.parametrize("elsewhere", [False, True])
def test_another_prompt_gives_up_a_turn_that_failed(elsewhere: bool) -> None:
    down = ProviderError("down", kind="server", provider="x")
    session = writer(call("note", text="a"), down, "two", "three").for_session("chat")
    with pytest.raises(ProviderError):
        session.turn("first")
    if elsewhere:
        session = writer("two", "three").for_session("chat")
    assert session.turn("second") == "two" and session.turn("third") == "three"
    contents = [message["content"] for message in session.agent.session["messages"]]
    assert contents == ["first", None, "noted", "second", "two", "third", "three"]
    assert notes() == ["a"] and session.turns == 3
    read = writer().for_session("chat")
    assert read.turn("second", number=2) == "two" and read.turn("third", number=3) == "three"
    with pytest.raises(DivergenceError, match=r"turn 1 .* was given up: its status is 'error'"):
        read.turn("first", number=1)


def test_a_session_tells_the_number_of_the_turn_that_a_prompt_takes(folder: Path) -> None:
    down = ProviderError("down", kind="server", provider="x")
    session = writer("one", down, "two", "three").for_session("chat")
    assert session.number_for("first") == 1 and not session.record.exists()
    session.turn("first")
    with pytest.raises(ProviderError):
        session.turn("second")
    assert writer().for_session("chat").number_for("second") == session.number_for("second") == 2
    assert session.number_for("other") == 3  # the second is given up
    assert session.turn("other") == "two" and session.number_for("other") == 4
    subprocess.run([sys.executable, "-c", KILLED_SCRIPT.replace("chat", "killed")], cwd=folder, timeout=60)
    assert writer().for_session("killed").number_for("other") == 1  # which is refused: one that was killed goes on


def test_a_session_tells_its_state_and_goes_on_with_nothing(folder: Path) -> None:
    def count(agent: Agent) -> str:
        """Count."""
        agent.state["count"] = [*agent.state["count"], 1]
        if len(agent.state["count"]) == 2:
            raise Pause("enough?")
        return "counted"

    def counter(*responses: Any) -> keyed_session.KeyedSession:
        agent = Agent("counter", [count], llm=ScriptedLLM(*responses), quiet=True, state={"count": []})
        return agent.for_session("s")

    session = counter(call("count"), "Done.", call("count"))
    session.state["count"].append("no")  # a copy
    assert session.state == {"count": []} and not session.record.exists()
    session.turn("Go")
    with pytest.raises(Paused):
        session.turn("And on")
    before = session.record.read_bytes()
    for one in (session, counter()):
        assert one.state == {"count": [1, 1]}
    assert session.record.read_bytes() == before


def test_a_session_tells_what_each_turn_took() -> None:
    def paid(text: str | None, cost: float, *calls: ToolCall) -> LLMResponse:
        return LLMResponse(text, list(calls), TokenUsage(100, 10, cost=cost))

    noting = paid(None, 0.25, ToolCall("c1", "note", {"text": "a"}))
    session = writer(noting, ProviderError("down", kind="server", provider="x"), paid("one", 0.5), paid("two", 2.0))
    session = session.for_session("chat")
    with pytest.raises(ProviderError):
        session.turn("first")
    session.turn("first")
    session.turn("second")
    usages = [writer().for_session("chat").usage(number) for number in (1, 2)]
    assert usages == [TokenUsage(200, 20, cost=0.75), TokenUsage(100, 10, cost=2.0)]
    assert session.sums()[1:] == (2.75, 330)
    with pytest.raises(ConfigError, match="has no turn 3; 2 have ended"):
        session.usage(3)


OUTCOMES: dict[str, LLMResponse] = {
    "answered": LLMResponse("Yes."),
    "truncated": LLMResponse("Once upon", finish_reason="length"),
    "refused": LLMResponse("I cannot.", finish_reason="refusal"),
    "max_iterations": LLMResponse(None, [ToolCall("c1", "note", {"text": "a"})]),
}


async def _awaited_items(session: Any, prompt: str, number: int) -> list[Any]:
    return [item async for item in session.astream(prompt, number, max_iterations=1)]


@pytest.mark.parametrize("way", ["turn", "stream", "astream"])
def test_a_session_tells_how_each_turn_has_ended(way: str) -> None:
    def ends(session: Any, number: int) -> str | None:
        prompt = f"prompt {number}"
        if way == "turn":
            session.turn(prompt, number, max_iterations=1)
            return session.outcome(number)
        if way == "stream":
            items = list(session.stream(prompt, number, max_iterations=1))
        else:
            items = asyncio.run(_awaited_items(session, prompt, number))
        assert items[-1]["outcome"] == session.outcome(number)
        return items[-1]["outcome"]

    session = writer(*OUTCOMES.values()).for_session("chat")
    numbers = range(1, len(OUTCOMES) + 1)
    assert [ends(session, number) for number in numbers] == list(OUTCOMES)  # taken
    assert [ends(session, number) for number in numbers] == list(OUTCOMES)  # read, by the agent that took the last one
    other = writer().for_session("chat")
    assert [other.outcome(number) for number in numbers] == list(OUTCOMES)
    assert [ends(other, number) for number in numbers] == list(OUTCOMES)
    with pytest.raises(ConfigError, match="has no turn 5; 4 have ended"):
        other.outcome(5)


def test_a_turn_that_has_not_ended_has_no_outcome() -> None:
    session = writer(ProviderError("down", kind="server", provider="x"), "one", "two").for_session("chat")
    with pytest.raises(ProviderError):
        session.turn("first")
    assert session.outcome(1) is None and writer().for_session("chat").outcome(1) is None
    session.turn("another")  # gives the first one up
    for one in (session, writer().for_session("chat")):
        assert [one.outcome(1), one.outcome(2)] == [None, "answered"]


def test_another_prompt_does_not_give_up_a_turn_of_that_number_or_one_that_waits() -> None:
    down = ProviderError("down", kind="server", provider="x")
    session = writer(down, "one").for_session("failed")
    with pytest.raises(ProviderError):
        session.turn("first", number=1)
    with pytest.raises(DivergenceError, match="begun with the prompt 'first', not 'other'"):
        session.turn("other", number=1)
    assert session.turn("first", number=1) == "one"

    @before_each_tool
    def ask(agent: Any, tool_call: Any) -> None:
        raise Pause("may it?")

    session = writer(call("note", text="a"), "done", on_events=[ask]).for_session("waits")
    with pytest.raises(Paused):
        session.turn("first")
    with pytest.raises(DivergenceError, match=r"not 'other'; decide it with resume\(\)"):
        session.turn("other")
    assert session.resume(approve=True) == "done" and notes() == ["a"]


def test_an_error_about_a_turn_says_what_would_be_accepted() -> None:
    down = ProviderError("down", kind="server", provider="x")
    session = writer(call("note", text="a"), down, "one", "two").for_session("chat")
    with pytest.raises(ProviderError):
        session.turn("first", number=1)
    with pytest.raises(ConfigError, match=r"; turn 1: its own prompt or resume\(\) goes on with it$"):
        session.turn("second", number=2)
    with pytest.raises(DivergenceError, match=r"goes on with it; another prompt without a number gives it up$"):
        session.turn("other", number=1)
    assert session.resume() == "one" and notes() == ["a"]
    with pytest.raises(DivergenceError, match=r"; it has ended; its own prompt reads its result$"):
        session.turn("other", number=1)
    with pytest.raises(ConfigError, match=r"; turn 2 is the next$"):
        session.turn("third", number=3)
    assert session.turn("first", number=1) == "one" and session.turn("second", number=2) == "two"


def test_a_turn_that_was_killed_is_not_given_up_and_the_error_says_how_it_goes_on(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_SCRIPT], cwd=folder, timeout=60)
    assert done.returncode == -signal.SIGKILL
    session = writer("one", "two").for_session("chat")
    with pytest.raises(DivergenceError, match=r"not 'other'; its own prompt or resume\(\) goes on with it$"):
        session.turn("other")
    assert session.resume() == "one" and session.turn("other") == "two"


def test_one_that_failed_knows_what_another_one_did_meanwhile() -> None:
    def failing(*responses: Any) -> Agent:
        return writer(*responses, ProviderError("down", kind="server", provider="x"), *["done"] * 2)

    ours = failing(call("note", text="a")).for_session("chat")
    theirs = failing(call("note", text="b")).for_session("chat")
    for session in (ours, theirs):
        with pytest.raises(ProviderError):
            session.turn("first", number=1)
    assert ours.turn("first", number=1) == "done" and notes() == ["a", "b"]
    assert [m["content"] for m in ours.agent.session["messages"] if m["role"] == "tool"] == ["noted", "noted"]


def test_a_folder_that_cannot_be_written_is_said_before_a_model_is_asked(folder: Path) -> None:
    Path(".co").write_text("no folder")
    with pytest.raises(OSError, match="; CONNECTAGENT_DIR can name another folder: '"):
        writer().for_session("chat").turn("first", number=1)
    (item,) = writer().map(["first"], run="r")
    assert item.status == "error" and "CONNECTAGENT_DIR" in str(item.error)


def test_a_turn_that_has_ended_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    writer("one").for_session("chat").turn("first")
    reads: list[Path] = []
    monkeypatch.setattr(keyed_session, "read_record", lambda path: reads.append(path) or read_record(path))
    session = writer().for_session("chat")
    assert session.turn("first", number=1) == "one" and reads == [session.record]


def test_a_session_that_cannot_be_taken_now_says_when_it_can() -> None:
    session = writer("one").for_session("chat")
    session.record.parent.mkdir(parents=True)
    session.record.touch()
    with closing(hold(session.record)), pytest.raises(SessionBusy, match="is in a turn elsewhere; once that is over"):
        session.turn("first", number=1)
    assert session.turn("first", number=1) == "one"


def test_a_fork_takes_turns_and_the_parent_knows_of_them() -> None:
    session = writer("one", "two", "three").for_session("chat")
    session.turn("first")
    child = os.fork()
    if not child:
        os._exit(session.turn("second", number=2) != "two")
    assert os.waitpid(child, 0)[1] == 0 and session.turn("third", number=3) == "two"
    assert [m["content"] for m in session.agent.session["messages"]][2:4] == ["second", "two"]


@before_each_tool
def ask(agent: Agent) -> None:
    raise Pause("may it?")


def test_a_pause_is_decided_by_another_agent() -> None:
    first = writer(call("note", text="a"), "done", plugins=[ask]).for_session("chat")
    for _ in range(2):
        with pytest.raises(Paused):
            first.turn("write", number=1)
    other = writer("done", plugins=[ask]).for_session("chat")
    (wait,) = other.waiting
    assert wait.call is not None and (wait.call["name"], wait.reason) == ("note", "may it?") and notes() == []
    assert other.resume(approve=True) == "done"
    assert first.turn("write", number=1) == "done" and notes() == ["a"] and not first.waiting
    with pytest.raises(ConfigError, match="nothing waits"):
        first.resume(approve=True)


@pytest.mark.parametrize("awaited", [False, True])
def test_a_decision_goes_on_as_a_stream(awaited: bool) -> None:
    session = writer(call("note", text="a"), "done", plugins=[ask]).for_session("chat")
    with pytest.raises(Paused):
        session.turn("write", number=1)

    async def followed() -> list[Any]:
        return [item async for item in session.aresume_stream(approve=True)]

    items = asyncio.run(followed()) if awaited else list(session.resume_stream(approve=True))
    assert [item["status"] for item in items if item["type"] == "tool_execution"] == ["success"]
    assert items[-1]["result"] == "done" and notes() == ["a"]
    with pytest.raises(ConfigError, match="nothing waits"):
        list(session.resume_stream(approve=True))


def test_only_one_takes_a_turn_at_a_time() -> None:
    entered, leave = threading.Event(), threading.Event()

    def wait() -> str:
        """Wait."""
        entered.set()
        leave.wait(10)
        return "waited"

    agent = Agent("writer", tools=[wait], llm=ScriptedLLM(call("wait"), "one"), quiet=True)
    session, results = agent.for_session("chat"), []
    thread = threading.Thread(target=lambda: results.append(session.turn("first", number=1)))
    thread.start()
    assert entered.wait(10)
    for busy in (session, writer("two").for_session("chat")):
        with pytest.raises(SessionBusy):
            busy.turn("first", number=1)
    leave.set()
    thread.join(10)
    assert results == ["one"] and writer().for_session("chat").turn("first", number=1) == "one"


def test_guards_act_in_every_session() -> None:
    @before_each_tool
    def guard(agent: Agent) -> None:
        raise ToolRejected("never")

    session = writer(call("note", text="a"), "done", plugins=[guard]).for_session("chat")
    assert session.turn("write") == "done" and notes() == []


def test_output_stream_and_async_turns() -> None:
    session = writer('{"a": 1}', "two", "three").for_session("chat")
    assert session.turn("numbers", number=1, output=Point) == Point(1)
    assert session.turn("numbers", number=1, output=Point) == Point(1)
    assert list(session.stream("second", number=2))[-1]["result"] == "two"
    assert [item["type"] for item in session.stream("second", number=2)] == ["result"]
    assert asyncio.run(session.aturn("third", number=3)) == "three"


def test_agents_below_go_on_too() -> None:
    def team() -> Agent:
        child = Agent("child", llm=ScriptedLLM("from the child", "again"), quiet=True)
        return Agent("top", tools=[child], llm=ScriptedLLM(call("child", prompt="x"), "done"), quiet=True)

    assert team().for_session("chat").turn("first", number=1) == "done"
    other = team().for_session("chat")
    other.turn("second", number=2)
    below = other.agent.below[0].session["messages"]
    assert [m["role"] for m in below] == ["user", "assistant", "user", "assistant"]


def test_an_agent_without_a_record_has_no_sessions() -> None:
    with pytest.raises(ConfigError, match="not recorded"):
        writer(log=False).for_session("chat")
    with pytest.raises(ConfigError, match="not empty"):
        writer().for_session("")


@pytest.mark.parametrize("left", [b"", b"format: 1\nagent: wri", b"format: 1\nagent: writer\n"])
def test_a_head_that_a_kill_has_torn_is_begun_again(left: bytes) -> None:
    session = writer("one").for_session("chat")
    session.record.parent.mkdir(parents=True)
    session.record.write_bytes(left)
    assert session.turn("first", number=1) == "one"
    assert writer().for_session("chat").turn("first", number=1) == "one"


def test_a_turn_killed_before_its_first_line_and_again_is_still_taken() -> None:
    session = writer("one").for_session("chat")
    assert session.turn("first", number=1) == "one"
    head, turns, _ = session.record.read_text().partition("turns:\n")
    session.record.write_text(head + turns + "- turn: 1\n  input: first\n  trace:\n" * 2)
    other = writer("again").for_session("chat")
    assert other.turns == 0 and other.turn("first", number=1) == "again" and other.turns == 1


SCRIPT = """
import sys
from connectagent import Agent
from connectagent.data import LLMResponse, ToolCall


class Model:
    model = "counting"

    def complete(self, messages, tools=None):
        turn = sum(m["role"] == "user" for m in messages)
        done = sum(m["role"] == "tool" for m in messages)
        if done < 2 * turn:
            return LLMResponse(None, [ToolCall(f"c{done}", "note", {"text": f"t{turn}.{done}"})])
        return LLMResponse(f"turn {turn}")


def note(text: str) -> str:
    "Write a line."
    with open("notes", "a") as file:
        file.write(text + "\\n")
    return "noted"


session = Agent("writer", tools=[note], llm=Model(), quiet=True).for_session("chat")
for number in range(1, 6):
    assert session.turn(f"turn {number}", number=number) == f"turn {number}"
print("done")
"""


def test_however_often_it_is_killed_each_tool_runs_once(folder: Path) -> None:
    (folder / "script.py").write_text(SCRIPT)
    chance, kills = random.Random(7), 0
    while kills < KILLS and not Path("done").exists():
        process = subprocess.Popen([sys.executable, "script.py"], stdout=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.2, 0.5))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        elif process.returncode == 0:
            Path("done").touch()
        process.wait()
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "done", done.stderr
    assert len(notes()) == len(set(notes())) and len(notes()) >= 10 - kills


def test_the_error_of_a_refused_turn_shows_the_program_and_not_the_package() -> None:
    session = writer("one").for_session("chat")
    session.turn("first", number=1)
    with pytest.raises(DivergenceError) as raised:
        session.turn("other", number=1)
    assert {Path(str(entry.path)).name for entry in raised.traceback} == {Path(__file__).name}


@pytest.mark.parametrize("stop", [ValueError, KeyboardInterrupt])
def test_a_session_that_is_stopped_while_a_turn_is_given_up_goes_on(stop: type[BaseException]) -> None:
    down = ProviderError("down", kind="server", provider="x")
    with pytest.raises(ProviderError):
        writer(call("note", text="a"), down).for_session("chat").turn("first")
    stops = [stop("not now")]

    @on_session
    def raises(agent: Any, reason: str) -> None:
        if stops:
            raise stops.pop()

    llm = ScriptedLLM("two")
    session = writer(llm=llm, plugins=[raises]).for_session("chat")
    with pytest.raises(stop, match="not now"):
        session.turn("second")
    assert session.turn("second") == "two" and session.turns == 2 and notes() == ["a"]
    assert conversation_problems(llm.requests[0].messages) == []
    assert writer().for_session("chat").turn("second", number=2) == "two"


def test_sessions_with_a_key_do_not_look_through_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits are not for them, and a look takes as long as there are records."""
    looks: list[Path] = []
    amount = retention._amount

    def noted(folder: Path) -> tuple[int, int, int]:
        looks.append(folder)
        return amount(folder)

    monkeypatch.setattr(retention, "_amount", noted)
    agent = Agent("shop", llm=ScriptedLLM(*["done"] * 45), quiet=True)
    for number in range(5):
        agent.for_session(f"s{number}").turn("Go", number=1)
    assert not looks
    folder = agent.for_session("s0").record.parent
    for number in range(500):
        (folder / f"shop@more-{number}.yaml").write_bytes(b"")
    for _ in range(40):  # and others look as seldom as if those with a key were of them
        agent.again().input("Go")
    assert 0 < len(looks) <= 6


def test_a_turn_counts_once_where_ctrl_c_came_before_its_first_line_was_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write, pressed = RecordLog._write, list[str]()

    def press(log: RecordLog, text: str) -> None:
        if '"user_input"' in text and not pressed:
            pressed.append(text)
            raise KeyboardInterrupt
        write(log, text)

    monkeypatch.setattr(RecordLog, "_write", press)
    session = Agent("a", llm=ScriptedLLM("One."), quiet=True).for_session("k")
    with pytest.raises(KeyboardInterrupt):
        session.turn("Go", 1)
    assert Agent("a", llm=ScriptedLLM("One."), quiet=True).for_session("k").turn("Go", 1) == "One."
    totals = summarise(session.record).totals
    assert pressed and totals is not None and (totals.turns, totals.iterations) == (1, 1)
