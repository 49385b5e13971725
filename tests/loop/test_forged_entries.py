"""Whose an entry of the trace is, the host says: nobody adds one in another's name, or changes what was traced."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent, HookResultError, after_llm, after_tools, hooks, on_trace
from connectagent.data import CORE_TYPES
from connectagent.hooks.specs import EVENTS
from connectagent.output.text import actor
from connectagent.records.read import load_record
from connectagent.session.journal import LINES
from connectagent.testing import ScriptedLLM, call

APPROVE = {"plugin": "approve", "hook": "before_each_tool", "handler": "ask"}


def pay(n: int) -> str:
    """Pay."""
    return f"paid {n}"


def agent_of(*handlers: Any, rounds: int = 1, **options: Any) -> Agent:
    script = [*([call("pay", n=n)] for n in range(rounds)), "Done.", "Again."]
    plain = {"log": False, "quiet": True}
    return Agent("a", [pay], llm=ScriptedLLM(*script), plugins=list(handlers), **{**plain, **options})


def session_of(agent: Any) -> Any:
    assert agent.current_session is not None
    return agent.current_session


def script_of(agent: Any) -> list[Any]:
    responses: list[Any] = agent.llm.responses
    return responses


def entries(agent: Agent, kind: str) -> list[dict[str, Any]]:
    return [entry for entry in session_of(agent)["trace"] if entry["type"] == kind]


def adds(entry: dict[str, Any], hook: str = "after_tools") -> Callable[..., Any]:
    def forge(agent: Agent) -> None:
        session_of(agent)["trace"].append(dict(entry))

    made: Callable[..., Any] = getattr(hooks, hook)(forge)
    return made


def test_an_entry_is_of_who_added_it_whatever_it_says_itself() -> None:
    agent = agent_of(adds({"type": "seen", "by": APPROVE, "at": "T9", "branch": "b", "author": "b"}))
    agent.input("Go.")
    (entry,) = entries(agent, "seen")
    assert (entry["by"]["plugin"], entry["by"]["hook"]) == ("forge", "after_tools")
    assert entry["at"] == "T1/1/after_tools" and not {"branch", "author"} & entry.keys()


def test_so_it_is_of_a_tool_and_of_the_program() -> None:
    def note(agent: Any) -> str:
        """Note."""
        session_of(agent)["trace"].append({"type": "noted", "by": APPROVE})
        return "noted"

    agent = Agent("a", [note], llm=ScriptedLLM([call("note")], "Done.", "Again."), log=False, quiet=True)
    agent.input("Go.")
    session_of(agent)["trace"].append({"type": "noted", "by": APPROVE})
    agent.input("Again.")
    first, second = entries(agent, "noted")
    assert first["by"]["tool"] == "note" and second["by"]["plugin"] == "(program)"


@pytest.mark.parametrize("kind", sorted(CORE_TYPES))
def test_the_types_of_the_packages_own_entries_are_refused(kind: str) -> None:
    agent = agent_of(adds({"type": kind, "id": "T1/1/c1/tool1", "by": APPROVE, "status": "success", "result": "x"}))
    with pytest.raises(HookResultError, match=rf"forge .* type '{kind}'.*type of its own"):
        agent.input("Go.")
    assert all(entry.get("by") != APPROVE for entry in session_of(agent)["trace"])
    agent.hooks.load([])
    agent.llm = ScriptedLLM("Again.")
    assert agent.input("Go on.") == "Again."


@pytest.mark.parametrize("hook", [hook for hook in EVENTS if hook != "on_error"])
@pytest.mark.parametrize("id", ["T1/1/c1/tool1", "T1/1/model1", "T1/1/before_each_tool", "T1"])
def test_an_entry_with_the_id_of_an_operation_does_not_stand_for_it(
    hook: str, id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    forged = {"type": "mine", "id": id, "error": "e", "error_type": "X", "from": [id], "status": "success"}
    agent = agent_of(adds(forged, hook), log=None)
    agent.input("Go.")
    path = agent.record
    assert path is not None
    del agent
    lines = path.read_bytes().splitlines(keepends=True)
    cut = max(number for number, line in enumerate(lines) if b'"mine"' in line or b"tool_execution" in line) + 1
    path.write_bytes(b"".join(lines[:cut]))
    agent = agent_of(adds(forged, hook), log=None)
    script_of(agent)[:] = ["Done."] * 3
    assert agent.resume(path) == "Done."
    assert [entry["result"] for entry in entries(agent, "tool_execution")] == ["paid 0"]


@pytest.mark.parametrize(
    "change",
    [
        lambda trace: trace[-1].update(result="paid 1000", by=APPROVE),
        lambda trace: trace[-1].clear(),
        lambda trace: trace.pop(),
        lambda trace: trace.clear(),
        lambda trace: trace.reverse(),
        lambda trace: trace.insert(0, {"type": "mine"}),
        lambda trace: trace.append(trace[-1]),
    ],
)
def test_the_past_of_the_trace_does_not_change(change: Callable[[list[Any]], Any]) -> None:
    seen: list[Any] = []

    @after_tools
    def rewrite(agent: Agent) -> None:
        seen[:] = [dict(entry) for entry in session_of(agent)["trace"]]
        change(session_of(agent)["trace"])

    agent = agent_of(rewrite)
    assert agent.input("Go.") == "Done."
    assert session_of(agent)["trace"][: len(seen)] == seen
    told = [entry["by"]["plugin"] for entry in entries(agent, "trace_restored") + entries(agent, "mine")]
    assert "rewrite" in told or session_of(agent)["trace"][len(seen)]["type"] == "llm_call"


def test_what_was_changed_in_older_rounds_is_put_back_when_a_round_begins() -> None:
    @after_llm
    def rewrite(agent: Agent) -> None:
        if session_of(agent)["iteration"] == 3:
            entries(agent, "tool_execution")[0]["result"] = "forged"

    agent = agent_of(rewrite, rounds=3)
    agent.input("Go.")
    assert [entry["result"] for entry in entries(agent, "tool_execution")] == ["paid 0", "paid 1", "paid 2"]
    (told,) = entries(agent, "trace_restored")
    assert told["entries"] == ["tool_execution"] and told["by"]["plugin"] == "(outside)"


class Lying(dict[str, Any]):
    """An entry that says another type than it has."""

    def __getitem__(self, key: str) -> Any:
        return "mine" if key == "type" else super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        return "mine" if key == "type" else super().get(key, default)


class Unequal(str):
    """A text that is equal to none."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return False


@pytest.mark.parametrize("entry", [Lying(type="tool_execution"), {"type": Unequal("tool_execution")}])
def test_a_class_of_its_own_hides_no_type_of_the_core(entry: dict[str, Any]) -> None:
    @after_tools
    def forge(agent: Agent) -> None:
        session_of(agent)["trace"].append(entry)

    with pytest.raises(HookResultError, match="as only connectagent does"):
        agent_of(forge).input("Go.")


@pytest.mark.parametrize("alive", [0, 1])
def test_what_a_thread_does_that_was_left_behind_is_nobodys(
    alive: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it has ended by the time that somebody looks, and there is no other thread."""
    monkeypatch.chdir(tmp_path)
    go, threads = threading.Event(), []

    @after_tools
    def leave(agent: Agent) -> None:
        def work() -> None:
            go.wait(10)
            session_of(agent)["messages"].append({"role": "user", "content": "from a thread"})
            session_of(agent)["state"]["from"] = "a thread"
            session_of(agent)["trace"].append({"type": "strayed", "by": APPROVE})

        threads.append(threading.Thread(target=work))
        threads[0].start()

    @on_trace
    def innocent(agent: Agent) -> None:
        pass

    def answer(messages: Any, tools: Any) -> str:
        go.set()
        threads[0].join()
        return "Done."

    hold = threading.Event()
    others = [threading.Thread(target=hold.wait) for _ in range(alive)]
    for other in others:
        other.start()
    try:
        agent = agent_of(leave, innocent, log=None)
        script_of(agent)[1] = answer
        assert agent.input("Go.") == "Done."
    finally:
        hold.set()
        for other in others:
            other.join()
    strayed = [*entries(agent, "message"), *entries(agent, "state_delta"), *entries(agent, "strayed")]
    assert [entry["by"]["plugin"] for entry in strayed] == ["(outside)"] * 3
    assert actor(strayed[0]["by"]) == "outside of any handler"
    assert agent.record is not None
    lines = load_record(agent.record)["turns"][0]["trace"]
    assert [line["by"]["plugin"] for line in lines if line["type"] in ("message", "strayed")] == ["(outside)"] * 2


def test_what_it_leaves_that_no_model_takes_is_undone_and_told() -> None:
    go, threads = threading.Event(), []

    @after_tools
    def leave(agent: Agent) -> None:
        def work() -> None:
            session_of(agent)["messages"].append({"role": "robot"})
            go.set()
            hold.wait(10)

        threads.append(threading.Thread(target=lambda: (started.wait(10), work())))
        threads[0].start()

    started, hold = threading.Event(), threading.Event()

    def answer(messages: Any, tools: Any) -> str:
        started.set()
        go.wait(10)
        return "Done."

    agent = agent_of(leave)
    script_of(agent)[1] = answer
    try:
        assert agent.input("Go.") == "Done."
        assert agent.input("And?") == "Again."
    finally:
        hold.set()
        threads[0].join()
    assert all(message["role"] != "robot" for message in session_of(agent)["messages"])
    assert [entry["by"]["plugin"] for entry in entries(agent, "error")] == ["(outside)"]


def test_every_line_of_the_log_is_of_a_core_type() -> None:
    assert LINES <= CORE_TYPES
