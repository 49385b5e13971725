"""The state that a front end of AG-UI shares with a session, over HTTP."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("ag_ui")
httpx = pytest.importorskip("httpx")
from connectagent_serve import app_of  # noqa: E402
from front_end import SHOW, FrontEnd, kinds, serving, told  # noqa: E402
from test_front_end_tools import CALL, TEXT, ask_first  # noqa: E402
from test_serve import free_port, pay, served  # noqa: E402

from connectagent import Agent, ConfigError, Pause, before_each_tool  # noqa: E402
from connectagent.records.read import read_record  # noqa: E402
from connectagent.testing import ScriptedLLM, call  # noqa: E402

FRONT = {"plugin": "front_end"}


def write(text: str, agent: Agent) -> str:
    """Write the draft."""
    before = agent.state.get("draft")
    agent.state["draft"] = text
    agent.state["private"] = "never seen"
    agent.state["temp:note"] = "for one turn"
    return f"was {before!r}"


def forget(agent: Agent) -> str:
    """Forget the draft."""
    return f"was {agent.state.pop('draft', None)!r}"


def writer(*responses: Any, tools: Any = (), **options: Any) -> Agent:
    return Agent("writer", tools=[write, forget, *tools], llm=ScriptedLLM(*responses), quiet=True, **options)


def written(folder: Path) -> list[tuple[str, Any]]:
    """Who has changed the state, and how, by the record."""
    (file,) = folder.rglob("writer@t1.yaml")
    lines = [line for turn in read_record(file)["turns"] for line in turn["lines"]]
    changes = [line for line in lines if line.get("type") == "state_delta"]
    return [(line["by"].get("plugin") or line["by"]["tool"], line["delta"]) for line in changes]


def test_both_sides_read_and_write_it(co_dir: Path) -> None:
    agent = writer(call("write", text="one"), "Done.", call("write", text="three"), "Again.", call("forget"), "Gone.")
    with serving(agent, shared_state=["draft"]) as base:
        front = FrontEnd(base)
        front.state = {"draft": "zero", "own": 1}
        found = front.says("Write")
        assert kinds(found) == ["STATE_SNAPSHOT", "STATE_DELTA", *CALL, "TOOL_CALL_RESULT", *TEXT]
        assert found[1]["snapshot"] == {"draft": "zero", "own": 1}
        assert found[2]["delta"] == [{"op": "add", "path": "/draft", "value": "one"}]
        assert front.state == {"draft": "one", "own": 1}
        front.state["draft"] = "two"
        found = front.says("Write again")
        results = [one["content"] for one in found if one["type"] == "TOOL_CALL_RESULT"]
        assert results == ["was 'two'"] and front.state["draft"] == "three"
        found = front.says("Forget it")  # what has not changed is not written
        assert [one["delta"] for one in found if one["type"] == "STATE_DELTA"] == [[{"op": "remove", "path": "/draft"}]]
        assert front.state == {"own": 1}
    changes = [(by, delta["draft"]) for by, delta in written(co_dir) if "draft" in delta]
    assert changes[:2] == [("front_end", "zero"), ("write", "one")]
    assert changes[2:] == [("front_end", "two"), ("write", "three"), ("forget", None)]


def test_nothing_else_is_read_or_written(co_dir: Path) -> None:
    secret = "sk-ant-api03-" + "a1B2" * 20
    agent = writer(call("write", text=secret), "Done.", state={"approved": False})
    for shared in ((), ["draft", "missing"]):
        with serving(agent, shared_state=shared) as base:
            front = FrontEnd(base, thread="t1" if shared else "other")
            front.state = {"approved": True, "private": "mine", "temp:note": "mine"}
            found = front.says("Write")
            assert "never seen" not in str(found) and "for one turn" not in str(found) and secret not in str(found)
            assert ("STATE_SNAPSHOT" in kinds(found) or "STATE_DELTA" in kinds(found)) is bool(shared)
            if shared:
                front.state = {**front.state, "draft": "[masked: sk-a...B2] and more"}  # not whole, so not written back
                front.says("And?")
                assert front.state["draft"].startswith("[masked") and "more" not in front.state["draft"]
        agent.llm.requests.clear()
        agent.llm.responses = [call("write", text=secret), "Done.", "Well."]
    assert not [by for by, _ in written(co_dir) if by == "front_end"]


@pytest.mark.parametrize("state", [None, [], "text", 5, {}, {"draft": None}, {"draft": {"a": [1, {"b": 2.5}]}}])
def test_a_state_of_any_form(state: Any, co_dir: Path) -> None:
    with serving(writer("Done."), shared_state=["draft"]) as base:
        front = FrontEnd(base)
        front.state = state
        found = front.says("Hi")
        assert told(found) == "Done."
        kept = isinstance(state, dict) and "draft" in state
        assert kinds(found) == (["STATE_SNAPSHOT", *TEXT] if kept else TEXT) and front.state == state


def test_values_that_go_no_further(co_dir: Path) -> None:
    deep: Any = "x"
    for _ in range(40):
        deep = [deep]
    with serving(writer("Done."), shared_state=["draft"]) as base:
        front = FrontEnd(base)
        front.messages = [{"id": "1", "role": "user", "content": "Hi"}]
        assert "nested too deep" in front.refused(state={"draft": deep})
        assert told(front.run(state={"own": "half \ud800", "draft": "half \ud800"})) == "Done."
        assert front.state == {"own": "half \ufffd", "draft": "half \ufffd"}
    for wrong in ("draft", ["temp:draft"], [""], [5]):
        with pytest.raises(ConfigError, match="shared_state"):
            app_of(writer(), shared_state=wrong)  # type: ignore[arg-type]


def test_the_same_run_again_writes_nothing_twice(co_dir: Path) -> None:
    agent = writer(call("write", text="agent's"), call("show", place="Rome"), "Done.")
    with serving(agent, shared_state=["draft"]) as base:
        front = FrontEnd(base, SHOW)
        front.state = {"draft": "user's"}
        front.says("Write")
        assert front.state["draft"] == "agent's" and len(front.open) == 1
        again = front.sent(front.body)
        assert [one["snapshot"] for one in again if one["type"] == "STATE_SNAPSHOT"] == [{"draft": "agent's"}]
        front.carry_out()
        found = front.run()
        assert told(found) == "Done." and kinds(found) == ["STATE_SNAPSHOT", *TEXT]
        assert found[1]["snapshot"] == {"draft": "agent's"}
        stale = {**front.body, "state": {"draft": "user's"}}
        found = front.sent(stale)  # the turn has ended, and is read
        assert told(found) == "Done." and found[1]["snapshot"] == {"draft": "agent's"}
        assert [by for by, _ in written(co_dir)] == ["front_end", "write"]


def test_what_changes_while_a_call_waits_is_there_when_the_turn_goes_on(co_dir: Path) -> None:
    calls = [call("show", place="Rome"), call("pay", amount=5)]
    steps = [call("write", text="one"), calls, call("write", text="three"), "Done."]
    with serving(writer(*steps, tools=[pay], plugins=[ask_first]), shared_state=["draft"]) as base:
        front = FrontEnd(base, SHOW)
        (asked,) = front.says("Write")[-1]["outcome"]["interrupts"]
        front.bring(next(one["id"] for one in front.open if one["function"]["name"] == "show"), "shown")
        front.state["draft"] = "two"  # a tool of the front end has changed it
        found = front.run()
        assert found[1]["snapshot"] == {"draft": "two"}, found
        front.state["draft"] = "two and a half"
        found = front.run(resume=[{"interruptId": asked["id"], "status": "resolved", "payload": True}])
        assert told(found) == "Done." and "was 'two and a half'" in str(found) and front.state["draft"] == "three"
    changes = [(by, delta["draft"]) for by, delta in written(co_dir)]
    assert changes == [("write", "one"), ("front_end", "two"), ("front_end", "two and a half"), ("write", "three")]


def test_a_run_with_several_answers_writes_once_and_sent_again_it_writes_nothing(co_dir: Path) -> None:
    first, second = call("pay", amount=1), call("pay", amount=2)
    steps = [first, call("write", text="one"), second, call("write", text="two"), RuntimeError("no"), "Done."]
    with serving(writer(*steps, tools=[pay], plugins=[ask_first]), shared_state=["draft"]) as base:
        front = FrontEnd(base)
        front.state = {"draft": "zero"}
        (asked,) = front.says("Pay")[-1]["outcome"]["interrupts"]
        (wait,) = front.run(resume=[answer(asked["id"])])[-1]["outcome"]["interrupts"]
        front.state = {"draft": "edited"}
        found = front.run(resume=[answer(wait["id"])])
        assert found[-1]["type"] == "RUN_ERROR" and "was 'edited'" in str(found) and front.state == {"draft": "two"}
        assert told(front.sent(front.body)) == "Done."
    changes = [delta["draft"] for _, delta in written(co_dir)]
    assert changes == ["zero", "one", "edited", "two"]


def test_results_that_let_a_turn_go_on_twice_in_a_run_bring_the_state_once(co_dir: Path) -> None:
    calls = [call("show", place="Rome"), call("show", place="Oslo")]
    with serving(writer(calls, call("write", text="one"), "Done."), shared_state=["draft"]) as base:
        front = FrontEnd(base, SHOW)
        front.says("Go")
        front.carry_out()
        front.state = {"draft": "edited"}
        assert told(front.run()) == "Done." and front.state == {"draft": "one"}
    assert [delta["draft"] for _, delta in written(co_dir)] == ["edited", "one"]


def test_what_the_agent_writes_between_two_answers_of_a_run_stays(co_dir: Path) -> None:
    @before_each_tool
    def ask(tool_call: Any) -> None:
        raise Pause("may I?")

    calls = [call("write", text="one"), call("write", text="two")]
    with serving(writer(calls, "Done.", plugins=[ask], parallel_tools=2), shared_state=["draft"]) as base:
        front = FrontEnd(base)
        waits = front.says("Go")[-1]["outcome"]["interrupts"]
        front.state = {"draft": "edited"}
        found = front.run(resume=[answer(wait["id"]) for wait in waits])
        assert told(found) == "Done." and front.state == {"draft": "two"}
    assert [delta["draft"] for by, delta in written(co_dir) if by == "front_end"] == ["edited"]


def answer(id: str) -> dict[str, Any]:
    return {"interruptId": id, "status": "resolved", "payload": True}


def test_a_value_may_be_taken_back_to_what_it_was_before_the_turn(co_dir: Path) -> None:
    agent = writer("Hello.", call("write", text="one"), call("show", place="Rome"), call("write", text="two"), "Done.")
    with serving(agent, shared_state=["draft"]) as base:
        front = FrontEnd(base, SHOW)
        front.state = {"draft": "zero"}
        front.says("Hi")
        front.says("Write")
        assert front.state == {"draft": "one"}
        front.carry_out()
        front.state = {"draft": "zero"}
        found = front.run()
        assert (
            found[1]["snapshot"] == {"draft": "zero"} and "was 'zero'" in str(found) and "was 'one'" not in str(found)
        )
        assert front.state == {"draft": "two"}


def test_agents_below_have_it_and_what_they_write_is_told(co_dir: Path) -> None:
    below = Agent("below", tools=[write], llm=ScriptedLLM(call("write", text="one"), "Written."))
    agent = writer(call("below", prompt="Write"), "Done.", tools=[below])
    with serving(agent, shared_state=["draft"]) as base:
        front = FrontEnd(base)
        front.state = {"draft": "zero"}
        assert told(front.says("Write")) == "Done." and front.state == {"draft": "one"}
    assert [delta for by, delta in written(co_dir) if by == "front_end"] == [{"draft": "zero"}]


def test_system_prompts_have_it(co_dir: Path) -> None:
    agent = writer("One.", "Two.", "Three.", system_prompt="Draft: {draft?}.", state={"draft": "none"})
    with serving(agent, shared_state=["draft"]) as base:
        front = FrontEnd(base)
        front.state["draft"] = "first"
        assert kinds(front.says("Hi")) == ["STATE_SNAPSHOT", *TEXT]
        front.state["draft"] = "new"
        front.says("And now?")
        assert [one.messages[0]["content"] for one in agent.llm.requests] == ["Draft: first.", "Draft: new."]
        other = FrontEnd(base, thread="other")
        assert other.says("Hi")[1]["snapshot"] == {"draft": "none"}


def test_a_turn_that_has_failed_goes_on_with_what_it_had_written(co_dir: Path) -> None:
    steps = [call("write", text="agent's"), RuntimeError("no"), "Done.", RuntimeError("no"), "Two."]
    with serving(writer(*steps, state={"draft": "none"}), shared_state=["draft"]) as base:
        front = FrontEnd(base)
        front.state = {"draft": "user's"}
        assert front.says("Write")[-1]["type"] == "RUN_ERROR" and front.state == {"draft": "agent's"}
        again = front.sent({**front.body, "state": {"draft": "user's later"}})  # nothing begins, nothing was decided
        assert told(again) == "Done." and kinds(again) == ["STATE_SNAPSHOT", *TEXT]
        assert again[1]["snapshot"] == {"draft": "agent's"}
        assert [by for by, _ in written(co_dir) if by != "(program)"] == ["front_end", "write"]
        front.messages.append({"id": "a", "role": "assistant", "content": "Done."})
        front.state = {"draft": "user's again"}
        front.says("Two")
        assert told(front.says("Three")) == "Two." and front.state == {"draft": "user's again"}


@dataclasses.dataclass
class Draft:
    title: str
    pages: int


def test_objects_are_shown_as_json_and_stay_as_they_are(co_dir: Path) -> None:
    seen: list[Any] = []

    def look(agent: Agent) -> str:
        """Look at the draft."""
        seen.append(agent.state["draft"])
        agent.state["draft"] = Draft("new", 1)
        return "seen"

    agent = writer(call("look"), "One.", call("look"), "Two.", tools=[look], state={"draft": Draft("old", 3)})
    with serving(agent, shared_state=["draft"]) as base:
        front = FrontEnd(base)
        front.state = {"draft": {"title": "old", "pages": 3}}
        front.says("Look")
        assert front.state == {"draft": {"title": "new", "pages": 1}} and seen == [Draft("old", 3)]


SCRIPT = (
    "import os\nfrom connectagent import Agent\nfrom connectagent.testing import ScriptedLLM, call\n"
    "def write(text: str, agent: Agent) -> str:\n    'Write.'\n    before = agent.state.get('a/b')\n"
    "    agent.state['a/b'] = text\n    return f'was {before}'\n"
    "def last(messages, tools):\n    return [m['content'] for m in messages if m['role'] == 'tool'].__repr__()\n"
    "steps = [call('write', text='one'), call('show', place='Rome'), call('write', text='two'), last]\n"
    "agent = Agent('writer', tools=[write], llm=ScriptedLLM(*steps), quiet=True)\n"
)


def test_another_process_goes_on_with_it(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(SCRIPT, "utf-8")
    process = served(tmp_path, port := free_port(), more=["--share-state", "a/b", "--share-state", "other"])
    front = FrontEnd(f"http://127.0.0.1:{port}", SHOW)
    try:
        front.state = {"a/b": "zero"}
        found = front.says("Write")
        assert [one["delta"][0]["path"] for one in found if one["type"] == "STATE_DELTA"] == ["/a~1b"]
        assert front.state == {"a/b": "one"}
    finally:
        process.kill()
        process.wait()
    (tmp_path / "agent.py").write_text(SCRIPT.replace("call('write', text='one'), call('show', place='Rome'), ", ""))
    process = served(tmp_path, port, more=["--share-state", "a/b"])
    try:
        front.carry_out()
        front.state = {"a/b": "edited"}
        body = copy.deepcopy({**front.body, "messages": front.messages, "state": front.state})
        found = front.run()
        assert told(found) == "['was zero', 'shown Rome', 'was edited']" and front.state == {"a/b": "two"}
        assert front.sent(body)[1]["snapshot"] == {"a/b": "two"}
    finally:
        process.kill()
        process.wait()
