"""Agents whose body is a function, and the three that let others work: in order, side by side, again and again."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from connectagent import (
    Agent,
    ConfigError,
    Continue,
    Image,
    LLMResponse,
    Loop,
    Parallel,
    Pause,
    Paused,
    Sequential,
    ToolCall,
    after_user_input,
    before_each_tool,
    on_complete,
)
from connectagent.data import TokenUsage
from connectagent.testing import HookRecorder, ScriptedLLM, call
from connectagent.testing import conversation_problems as problems

DOT = bytes.fromhex("89504e470d0a1a0a")


def made(name: str, *script: Any, **options: Any) -> Agent:
    return Agent(name, llm=ScriptedLLM(*script), log=False, quiet=True, **options)


def body(run: Any, **options: Any) -> Agent:
    return Agent("body", run=run, log=False, quiet=True, **options)


def session(agent: Agent) -> dict[str, Any]:
    assert agent.current_session is not None
    return agent.current_session  # type: ignore[return-value]


def requests(agent: Agent) -> list[Any]:
    assert isinstance(agent.llm, ScriptedLLM)
    return [request.messages for request in agent.llm.requests]


def said(agent: Agent, request: int = 0) -> list[Any]:
    return [message["content"] for message in requests(agent)[request]]


def check(*agents: Agent) -> None:
    for agent in agents:
        for messages in requests(agent) if isinstance(agent.llm, ScriptedLLM) else [session(agent)["messages"]]:
            assert problems(messages) == []


# -- a function as the body ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "result"),
    [
        (lambda agent, prompt: f"{agent.name}: {prompt}", "body: Hi"),
        (lambda prompt: prompt.upper(), "HI"),
        (lambda: "nothing", "nothing"),
        (lambda agent: None, ""),
        (lambda prompt, more="!": prompt + more, "Hi!"),
    ],
)
def test_a_body_takes_any_of_agent_and_prompt_and_needs_no_model(run: Any, result: str) -> None:
    agent = body(run)
    assert agent.input("Hi") == result and session(agent)["outcome"] == "answered"
    assert agent.llm.model == "function" and "function" in repr(agent)
    assert agent.input("Hi") == result and session(agent)["turn"] == 2


def test_an_async_body_is_run_to_its_end() -> None:
    async def run(prompt: str) -> str:
        return prompt * 2

    assert body(run).input("a") == "aa"


def test_a_body_has_the_hooks_of_a_turn_and_none_of_a_model() -> None:
    recorder = HookRecorder()
    agent = body(lambda prompt: "Done.", plugins=[recorder])
    agent.input("Hi")
    assert recorder.names == [
        "on_agent_ready", "around_turn:enter", "on_session", "on_trace:user_input", "after_user_input",
        "on_trace:message", "on_complete", "around_turn:exit",
    ]  # fmt: skip
    assert session(agent)["messages"][-1] == {"role": "assistant", "content": "Done."}


def test_handlers_steer_a_body_as_they_steer_a_model() -> None:
    @after_user_input
    def refuse(prompt: str) -> str | None:
        return "Refused." if prompt == "bad" else None

    @on_complete
    def more(result: str) -> Any:
        return Continue("again") if result == "Hi" else None

    agent = body(lambda prompt: prompt, plugins=[refuse, more])
    assert agent.input("bad") == "Refused." and agent.input("Hi") == "again"
    assert session(agent)["iteration"] == 2


def test_a_body_may_run_tools_end_its_turn_and_change_the_state() -> None:
    def double(x: int) -> int:
        """Double."""
        return 2 * x

    def run(agent: Any, prompt: str) -> str:
        entry = agent.execute_tool("double", {"x": 4})
        agent.current_session["state"]["twice"] = entry["result"]
        agent.end_turn(f"Ended at {entry['result']}.")
        return "lost"

    agent = body(run, tools=[double])
    assert agent.input("Hi") == "Ended at 8." and session(agent)["outcome"] == "ended"
    (delta,) = [entry for entry in session(agent)["trace"] if entry["type"] == "state_delta"]
    assert delta["delta"] == {"twice": "8"} and delta["by"]["file"] == __file__


def test_what_is_wrong_with_a_body_is_told() -> None:
    with pytest.raises(ConfigError, match=r"'who'.*agent and prompt"):
        body(lambda who: "x")
    with pytest.raises(ConfigError, match="takes a function"):
        body("text")
    with pytest.raises(TypeError, match=r"'body' runs .*test_workflows.py:\d+.* returned int 3"):
        body(lambda: 3).input("Hi")
    with pytest.raises(ConfigError, match="has no model"):
        body(lambda: "x").llm.complete([])

    def broken() -> str:
        raise OSError("no disk")

    agent = body(broken)
    with pytest.raises(OSError, match="no disk"):
        agent.input("Hi")
    assert session(agent)["trace"][-1]["error"] == "no disk"


def test_a_body_asks_its_children_and_what_they_do_is_linked() -> None:
    child = made("child", "fine")
    agent = body(lambda agent, prompt: agent.find("child").input(prompt) + "!", sub_agents=[child])
    assert agent.input("Hi") == "fine!"
    assert [entry["agent"] for entry in session(agent)["trace"] if entry["type"] == "agent_turn"] == ["child"]
    assert "transfer_to_agent" not in agent.tools and "transfer_to_agent" not in child.tools


def test_a_result_is_stored_under_the_output_key() -> None:
    @on_complete
    def shout(result: str) -> str:
        return result.upper()

    agent = made("a", "draft", output_key="draft", plugins=[shout])
    agent.input("Hi")
    assert session(agent)["state"] == {"draft": "DRAFT"}
    (entry,) = [entry for entry in session(agent)["trace"] if entry["type"] == "state_delta"]
    assert entry["delta"] == {"draft": "DRAFT"} and entry["by"]["agent"] == "a"


# -- in order --------------------------------------------------------------------------------------------


def test_a_sequence_gives_each_the_prompt_what_was_said_and_the_state() -> None:
    def look(agent: Any) -> str:
        """Look."""
        return str(agent.current_session["state"]["draft"])

    writer = made("writer", "A poem.", output_key="draft")
    critic = made("critic", ("look", {}), "Too short.", tools=[look])
    pipeline = Sequential("pipeline", [writer, critic], log=False, quiet=True)
    assert pipeline.input("Write!") == "Too short."
    assert said(writer) == ["Write!"]
    assert said(critic) == ["What was said in this conversation:\nwriter: A poem.", "Write!"]
    assert said(critic, 1)[-1] == "A poem."
    assert session(pipeline)["state"] == {"draft": "A poem."}
    assert [message["content"] for message in session(pipeline)["messages"]] == ["Write!", "A poem.", "Too short."]
    check(pipeline, writer, critic)


def test_a_sequence_begins_anew_in_each_turn() -> None:
    first, second = made("first", "1", "3"), made("second", "2", "4")
    pipeline = Sequential("pipeline", [first, second], log=False, quiet=True)
    assert [pipeline.input("A"), pipeline.input("B")] == ["2", "4"]
    assert said(first, 1) == ["A", "1", "What was said in this conversation:\nsecond: 2", "B"]
    check(pipeline, first, second)


def test_the_end_of_the_turn_ends_a_sequence_and_the_end_of_a_part_does_not() -> None:
    def stop(agent: Any, scope: str) -> str:
        """Stop."""
        agent.end_turn("Stopped.", scope=scope)
        return "ok"

    for scope, result in (("agent", "Second."), ("turn", "Stopped.")):
        first, second = made("first", ("stop", {"scope": scope}), tools=[stop]), made("second", "Second.")
        pipeline = Sequential("pipeline", [first, second], log=False, quiet=True)
        assert pipeline.input("Hi") == result
        assert (second.current_session is None) == (scope == "turn")
        assert [message["content"] for message in session(pipeline)["messages"]][-1] == result


def test_the_model_of_a_root_hands_over_to_a_sequence_and_has_the_next_turn_itself() -> None:
    pipeline = Sequential("pipeline", [made("first", "1"), made("second", "2")], description="Two steps.")
    root = made("root", call("transfer_to_agent", agent_name="pipeline"), "Me again.", sub_agents=[pipeline])
    assert root.input("Go") == "2" and root.input("And?") == "Me again."
    check(root)


def test_a_step_may_hand_over_to_its_own_children() -> None:
    expert = made("expert", "Expert.")
    first = made("first", call("transfer_to_agent", agent_name="expert"), sub_agents=[expert])
    second = made("second", "Second.")
    pipeline = Sequential("pipeline", [first, second], log=False, quiet=True)
    assert pipeline.input("Hi") == "Second."
    assert "expert: Expert." in said(second)[0]
    check(first, second, expert)


def test_images_reach_each_agent() -> None:
    first, second = made("first", "1"), made("second", "2")
    Sequential("pipeline", [first, second], log=False, quiet=True).input(["Look", Image(DOT, "image/png")])
    beside = made("beside", "3")
    Parallel("both", [beside], log=False, quiet=True).input(["Look", Image(DOT, "image/png")])
    for agent in (first, second, beside):
        assert said(agent)[-1][1]["type"] == "image_url"


# -- side by side ------------------------------------------------------------------------------------------


def test_agents_work_side_by_side_and_their_state_comes_home_in_order() -> None:
    together = threading.Barrier(3, timeout=10)

    def meet(agent: Any) -> str:
        """Meet."""
        together.wait()
        agent.current_session["state"]["last"] = agent.name
        agent.current_session["state"][agent.name] = True
        return "met"

    agents = [made(name, ("meet", {}), name.upper(), tools=[meet]) for name in "abc"]
    both = Parallel("all", agents, log=False, quiet=True)
    assert both.input("Hi") == "a: A\n\nb: B\n\nc: C"
    assert session(both)["state"] == {"last": "c", "a": True, "b": True, "c": True}
    assert [said(agent)[0] for agent in agents] == ["Hi"] * 3
    links = [entry["agent"] for entry in session(both)["trace"] if entry["type"] == "agent_turn"]
    assert links == ["a", "b", "c"]
    deltas = [entry["delta"] for entry in session(both)["trace"] if entry["type"] == "agent_turn"]
    assert deltas == [{"last": name, name: True} for name in "abc"]


class Slow(int):
    """A number of tokens that lets other threads run while it is added."""

    def __radd__(self, other: int) -> int:
        time.sleep(0.001)
        return int(other) + int(self)


def test_agents_side_by_side_lose_none_of_their_tokens() -> None:
    answers = [LLMResponse("A", usage=TokenUsage(Slow(10), Slow(5), cost=1 / 64)) for _ in range(8)]
    agents = [made(f"a{number}", answer) for number, answer in enumerate(answers)]
    both = Parallel("all", agents, log=False, quiet=True)
    both.input("Hi")
    assert (both.spent.tokens, both.spent.cost) == (8 * 15, 8 / 64)


def test_an_error_beside_others_comes_when_they_are_back() -> None:
    agents = [made("a", OSError("down")), made("b", "B")]
    both = Parallel("both", agents, log=False, quiet=True)
    with pytest.raises(OSError, match="down"):
        both.input("Hi")
    assert session(agents[1])["result"] == "B"


def test_groups_stand_in_groups() -> None:
    inner = Parallel("both", [made("a", "A"), made("b", "B")])
    last = made("last", "Done.")
    pipeline = Sequential("pipeline", [inner, last], log=False, quiet=True)
    assert pipeline.input("Hi") == "Done."
    assert said(last)[0] == "What was said in this conversation:\nboth: a: A\n\nb: B"
    assert [agent.branch for agent in inner.sub_agents] == ["pipeline.both.a", "pipeline.both.b"]


# -- again and again -----------------------------------------------------------------------------------------


def approve(agent: Any) -> str:
    """Approve."""
    agent.end_turn(scope="loop")
    return "ok"


def test_a_loop_ends_when_one_of_its_agents_says_so() -> None:
    writer = made("writer", "One.", "Two.", output_key="draft")
    critic = made("critic", "Better!", call("approve"), tools=[approve])
    loop = Loop("refine", [writer, critic])
    after = made("after", "After.")
    pipeline = Sequential("pipeline", [loop, after], log=False, quiet=True)
    assert pipeline.input("Write!") == "After."
    assert session(loop)["outcome"] == "ended" and session(loop)["state"]["draft"] == "Two."
    assert said(writer, 1) == ["Write!", "One.", "What was said in this conversation:\ncritic: Better!"]
    assert said(critic, 1)[-1] == "What was said in this conversation:\nwriter: Two."
    check(writer, critic, after, pipeline, loop)


def test_the_end_of_a_loop_is_found_through_what_is_between() -> None:
    critic = made("critic", call("approve"), tools=[approve])
    loop = Loop("refine", [Sequential("steps", [made("writer", "One."), critic]), made("never")], log=False, quiet=True)
    loop.input("Write!")
    assert session(loop)["outcome"] == "ended" and session(loop.sub_agents[0])["outcome"] == "ended"
    assert loop.sub_agents[1].current_session is None


def test_a_loop_has_a_limit() -> None:
    writer = made("writer", "One.", "Two.", "Three.")
    loop = Loop("refine", [writer], max_rounds=3, log=False, quiet=True)
    assert loop.input("Write!") == "Three." and session(loop)["outcome"] == "answered"
    for wrong in (0, 2.0, True):
        with pytest.raises(ConfigError, match="max_rounds"):
            Loop("refine", [made("x")], max_rounds=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no agents"):
        Sequential("empty", [])


def test_where_there_is_no_loop_its_end_is_an_error() -> None:
    agent = made("alone", call("approve"), "Pity.", tools=[approve])
    assert agent.input("Hi") == "Pity."
    assert "not in a Loop" in session(agent)["messages"][2]["content"]


def test_a_workflow_has_a_record_and_hooks_as_every_agent(tmp_path: Any, monkeypatch: Any) -> None:
    from connectagent.records.read import read_record

    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path))
    recorder = HookRecorder()
    step = Agent("step", llm=ScriptedLLM("Done."), quiet=True)
    pipeline = Sequential("pipeline", [step], plugins=[recorder], quiet=True)
    pipeline.input("Hi")
    assert [given["outcome"] for given in recorder.of("on_complete")] == ["answered"] * 2
    (path,) = tmp_path.glob("evals/pipeline_*.yaml")
    record = read_record(path)
    assert record["model"] == "function" and record["turns"][0]["status"] == "answered"
    assert [e["agent"] for e in record["turns"][0]["trace"] if e["type"] == "agent_turn"] == ["step"]


def test_a_record_has_the_state_of_agents_at_once_in_the_order_in_which_they_were_asked(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    @before_each_tool
    def ask(agent: Any, tool_call: ToolCall) -> None:
        if agent.name == "a" and not tool_call.approved:
            raise Pause("may a?")

    def note(agent: Any) -> str:
        agent.current_session["state"].setdefault("log", []).append(agent.name)
        return "noted"

    def tree() -> Agent:
        agents = [Agent(name, [note], llm=ScriptedLLM(call("note"), "Done."), quiet=True) for name in "ab"]
        return Parallel("both", agents, quiet=True, plugins=[ask])

    agent = tree()
    with pytest.raises(Paused):  # b is done before a
        agent.input("Go.")
    agent.resume(agent.record, approve=True)
    assert session(agent)["state"]["log"] == ["a", "b"]
    other = tree()
    other.resume(agent.record)
    assert session(other)["state"] == session(agent)["state"]
