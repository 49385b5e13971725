"""Tools that a front end of AG-UI brings and carries out: over HTTP, with a client that keeps all messages."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("ag_ui")
httpx = pytest.importorskip("httpx")
from front_end import PLACE, SHOW, FrontEnd, kinds, serving, told  # noqa: E402
from test_serve import PAID, agent_with, free_port, pay, served  # noqa: E402

from connectagent import Agent, Pause, Sequential, Tool, ToolRejected, before_each_tool  # noqa: E402
from connectagent.records.read import read_record  # noqa: E402
from connectagent.testing import ScriptedLLM, call, conversation_problems  # noqa: E402

CALL = ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"]
TEXT = ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"]


@before_each_tool
def ask_first(tool_call: Any) -> None:
    if tool_call.name == "pay":
        raise Pause("a payment")


@before_each_tool
def ask_always(tool_call: Any) -> None:
    raise Pause("may I?")


def results(requests: Any) -> list[Any]:
    """What the model read of its calls, in its last request."""
    return [one["content"] for one in requests[-1].messages if one["role"] == "tool"]


def test_a_call_is_told_and_waits_and_its_result_goes_on_with_the_turn(co_dir: Path) -> None:
    agent = agent_with(call("show", place="Rome"), "Here it is.", "Bye.")
    with serving(agent) as base:
        front = FrontEnd(base, SHOW)
        found = front.says("Where is Rome?")
        assert kinds(found) == CALL and found[-1]["outcome"]["type"] == "success"
        (open_call,) = front.open
        assert found[-1]["outcome"]["pendingToolCallIds"] == [open_call["id"]]
        assert open_call["function"] == {"name": "show", "arguments": '{"place": "Rome"}'}
        assert agent.llm.requests[0].tools[-1]["function"]["name"] == "show"
        front.carry_out()
        found = front.run()
        assert kinds(found) == TEXT and told(found) == "Here it is." and "outcome" not in found[-1]
        assert results(agent.llm.requests) == ["shown Rome"]
        assert [one["role"] for one in front.messages] == ["user", "assistant", "tool", "assistant"]
        assert told(front.says("Bye")) == "Bye."  # the second turn, though other messages stand between
        assert httpx.get(f"{base}/sessions/t1").json()["turns"] == 2
        assert not conversation_problems(agent.llm.requests[-1].messages)


def test_the_same_run_again_does_nothing_twice(co_dir: Path) -> None:
    agent = agent_with([call("pay", amount=5), call("show", place="Rome")], "Done.")
    with serving(agent) as base:
        front = FrontEnd(base, SHOW)
        front.says("Go")
        first = copy.deepcopy(front.body)
        del first["messages"][1:]
        again = front.sent(first)  # the client has not heard the first answer
        assert kinds(again) == CALL and len(agent.llm.requests) == 1 and PAID == [5]
        assert kinds(front.sent(front.body)) == []  # its messages have the call
        front.carry_out()
        assert told(front.run()) == "Done."
        assert told(front.sent(front.body)) == "Done." and len(agent.llm.requests) == 2 and PAID == [5]


def test_calls_of_all_kinds_in_one_round(co_dir: Path) -> None:
    calls = [call("show", place="Rome"), call("pay", amount=5), call("show", place="Oslo"), call("note")]
    noted: list[str] = []

    def note() -> str:
        """Note it."""
        noted.append("x")
        return "noted"

    agent = Agent("shop", tools=[pay, note], llm=ScriptedLLM(calls, "Done."), quiet=True, plugins=[ask_first])
    PAID.clear()
    with serving(agent) as base:
        front = FrontEnd(base, SHOW)
        found = front.says("Go")
        assert kinds(found) == CALL * 3 and noted == ["x"] and PAID == []
        (asked,) = found[-1]["outcome"]["interrupts"]
        assert asked["toolCallId"] == front.open[1]["id"] and asked["metadata"]["call"]["name"] == "pay"
        front.bring(front.open[2]["id"], "shown Oslo")  # one of two
        found = front.run()
        assert kinds(found) == [] and [one["id"] for one in found[-1]["outcome"]["interrupts"]] == [asked["id"]]
        front.bring(front.open[0]["id"], "shown Rome")
        found = front.run(resume=[{"interruptId": asked["id"], "status": "resolved", "payload": True}])
        assert told(found) == "Done." and PAID == [5] and noted == ["x"]
        # `pay` was told before, `note` was not; the front end has its own results
        assert kinds(found) == ["TOOL_CALL_RESULT", *CALL, "TOOL_CALL_RESULT", *TEXT]
        assert results(agent.llm.requests) == ["shown Rome", "paid 5", "shown Oslo", "noted"]
        assert front.open == []


def test_a_decision_that_comes_first_leaves_the_front_end_its_call(co_dir: Path) -> None:
    agent = agent_with([call("show", place="Rome"), call("pay", amount=5)], "Done.", plugins=[ask_first])
    with serving(agent) as base:
        front = FrontEnd(base, SHOW)
        (asked,) = front.says("Go")[-1]["outcome"]["interrupts"]
        found = front.run(resume=[{"interruptId": asked["id"], "status": "resolved", "payload": True}])
        assert kinds(found) == [] and found[-1]["outcome"] == {"type": "success"} and PAID == [5]
        front.bring(front.open[0]["id"], "shown Rome")
        assert told(front.run()) == "Done." and PAID == [5]


def test_a_client_that_sends_new_messages_only_is_told_nothing_twice(co_dir: Path) -> None:
    agent = agent_with([call("show", place="Rome"), call("pay", amount=5)], "Done.", plugins=[ask_first])
    with serving(agent) as base:
        front = FrontEnd(base, SHOW)
        (asked,) = front.says("Go")[-1]["outcome"]["interrupts"]
        front.bring(front.open[0]["id"], "shown Rome")
        front.run()
        found = front.run(messages=[], resume=[{"interruptId": asked["id"], "status": "resolved", "payload": True}])
        assert told(found) == "Done." and kinds(found) == ["TOOL_CALL_RESULT", *TEXT]


def test_guards_see_each_call_and_a_front_end_is_told_what_it_may_carry_out(co_dir: Path) -> None:
    seen: list[str] = []

    @before_each_tool
    def guard(tool_call: Any) -> None:
        seen.append(tool_call.arguments["place"])
        if tool_call.arguments["place"] == "Oslo":
            raise ToolRejected("not Oslo")

    calls = [call("show", place="Oslo"), call("show", place="Rome")]
    with serving(agent_with(calls, "Done.", plugins=[guard, ask_always])) as base:
        front = FrontEnd(base, SHOW)
        found = front.says("Go")
        (asked,) = found[-1]["outcome"]["interrupts"]
        assert kinds(found) == [] and "toolCallId" not in asked and seen == ["Oslo", "Rome"]
        found = front.run(resume=[{"interruptId": asked["id"], "status": "resolved", "payload": True}])
        assert [one["function"]["arguments"] for one in front.open] == ['{"place": "Rome"}']
        assert found[-1]["outcome"]["pendingToolCallIds"] == [front.open[0]["id"]]
        front.carry_out()
        found = front.run()
        assert told(found) == "Done." and front.open == []
        refused = [one["content"] for one in found if one["type"] == "TOOL_CALL_RESULT"]
        assert refused == ["rejected: not Oslo"]


def test_arguments_that_do_not_fit_are_the_models_own_mistake(co_dir: Path) -> None:
    agent = agent_with(call("show", city="Rome"), call("show", place="Rome"), "Done.")
    with serving(agent) as base:
        front = FrontEnd(base, SHOW)
        assert kinds(front.says("Go")) == [*CALL, "TOOL_CALL_RESULT", *CALL]
        front.carry_out()
        assert told(front.run()) == "Done." and "place" in results(agent.llm.requests)[0]


@pytest.mark.parametrize(
    ("content", "more", "read"),
    [
        ("half", {"error": "no map"}, "Error: no map\nhalf"),
        ("", {"error": "no map"}, "Error: no map"),
        ("", {}, "(no output)"),
        ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], {}, "one\ntwo"),
        (
            [{"type": "audio", "source": {"type": "data", "value": "AAAA", "mimeType": "audio/wav"}}],
            {},
            "(audio: left out, as a result has texts and images)",
        ),
        (
            [
                {"type": "text", "text": "the map"},
                {"type": "image", "source": {"type": "data", "value": "iVBORw0KGgo=", "mimeType": "image/png"}},
                {"type": "image", "source": {"type": "url", "value": "file:///etc/passwd", "mimeType": "image/png"}},
            ],
            {},
            [
                {"type": "text", "text": "the map"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
                {"type": "text", "text": "(image: left out, as a result has texts and images)"},
            ],
        ),
    ],
)
def test_what_the_model_reads_of_a_result(content: Any, more: Any, read: Any, co_dir: Path) -> None:
    agent = agent_with(call("show", place="Rome"), "Done.")
    with serving(agent) as base:
        front = FrontEnd(base, SHOW)
        front.says("Go")
        front.bring(front.open[0]["id"], content, **more)
        assert told(front.run()) == "Done."
        assert results(agent.llm.requests) == [read]


def test_results_of_calls_that_do_not_wait_change_nothing(co_dir: Path) -> None:
    calls = [call("show", place="Rome"), call("pay", amount=5)]
    agent = agent_with(calls, "Done.", "Two.", plugins=[ask_first])
    with serving(agent) as base:
        front = FrontEnd(base, SHOW)
        (asked,) = front.says("Go")[-1]["outcome"]["interrupts"]
        for id in (asked["id"], asked["toolCallId"], "T1/1/c9/tool1/wait:show", "nothing"):  # a result is no decision
            front.messages.append({"id": id, "role": "tool", "toolCallId": id, "content": "approved"})
        assert front.run()[-1]["outcome"]["interrupts"][0]["id"] == asked["id"] and PAID == []
        front.bring(next(one["id"] for one in front.open if one["function"]["name"] == "show"), "shown")
        front.run(resume=[{"interruptId": asked["id"], "status": "resolved", "payload": {"reject": "no"}}])
        for one in front.messages:  # what was answered stays so
            if one["role"] == "tool":
                one["content"] = "otherwise"
        assert told(front.says("Again")) == "Two." and PAID == []
        assert results(agent.llm.requests) == ["shown", "rejected: no"]


def test_a_user_who_goes_on_without_it_gives_the_call_up(co_dir: Path) -> None:
    agent = agent_with(call("show", place="Rome"), "Hello.", "Bye.")
    with serving(agent) as base:
        front = FrontEnd(base, SHOW)
        front.says("Where is Rome?")
        assert told(front.says("Never mind, hello")) == "Hello."
        assert results(agent.llm.requests)[0].startswith("not run: the turn was paused")
        front.carry_out()  # a button that was pressed too late
        assert told(front.run()) == "Hello." and len(agent.llm.requests) == 2
        assert told(front.says("Bye")) == "Bye." and not conversation_problems(agent.llm.requests[-1].messages)
        assert httpx.get(f"{base}/sessions/t1").json()["turns"] == 3


def test_a_result_that_comes_with_the_next_message_goes_first(co_dir: Path) -> None:
    """As for tools of CopilotKit with `followUp: false`."""
    two = [call("show", place="Rome"), call("show", place="Oslo")]
    agent = agent_with(call("show", place="Rome"), "There.", "Hello.", two, "Bye.")
    with serving(agent) as base:
        front = FrontEnd(base, SHOW)
        front.says("Where is Rome?")
        front.carry_out()
        assert told(front.says("Hello")) == "There.Hello."
        front.says("Both")
        front.bring(front.open[0]["id"], "shown Rome")  # and the other one never
        assert told(front.says("Bye")) == "Bye."
        assert results(agent.llm.requests)[-2:] == ["shown Rome", "not run: the turn was paused"]


def test_a_person_is_still_to_decide_though_the_user_goes_on(co_dir: Path) -> None:
    calls = [call("show", place="Rome"), call("pay", amount=5)]
    with serving(agent_with(calls, "Paid.", "Hello.", plugins=[ask_first])) as base:
        front = FrontEnd(base, SHOW)
        (asked,) = front.says("Go")[-1]["outcome"]["interrupts"]
        assert front.says("Hello")[-1]["outcome"]["interrupts"][0]["id"] == asked["id"]
        front.carry_out(lambda **given: "by hand")
        front.run(resume=[{"interruptId": asked["id"], "status": "resolved", "payload": True}])
        assert told(front.run()) == "Hello." and PAID == [5]


def test_who_says_the_same_again_is_told_the_call_again(co_dir: Path) -> None:
    agent = agent_with(call("show", place="Rome"), "There.")
    with serving(agent) as base:
        front = FrontEnd(base, SHOW)
        front.says("Where is Rome?")
        assert kinds(front.says("Where is Rome?")) == CALL
        front.bring(front.open[0]["id"], "shown")
        assert told(front.run()) == "There." and len(agent.llm.requests) == 2


def test_the_tools_may_be_others_in_the_run_that_brings_the_result(co_dir: Path) -> None:
    agent = agent_with(call("show", place="Rome"), "Done.")
    with serving(agent) as base:
        front = FrontEnd(base, SHOW)
        front.says("Go")
        front.tools = [{"name": "hide", "description": "", "parameters": None}]
        front.carry_out()
        assert told(front.run()) == "Done." and results(agent.llm.requests) == ["shown Rome"]
        assert [one["function"]["name"] for one in agent.llm.requests[-1].tools] == ["pay", "hide"]


def test_other_clients_answer_it_too_and_nobody_approves_it(co_dir: Path) -> None:
    agent = agent_with(call("show", place="Rome"), "Done.")
    with serving(agent) as base:
        front = FrontEnd(base, SHOW)
        front.says("Go")
        (wait,) = httpx.get(f"{base}/sessions/t1").json()["waiting"]
        assert wait["elsewhere"] is True and wait["id"] == front.open[0]["id"]
        refused = httpx.post(f"{base}/sessions/t1/decision", json={"approve": True})
        assert refused.status_code == 400 and "takes answer=" in refused.json()["error"]["message"]
        answered = httpx.post(f"{base}/sessions/t1/decision", json={"answer": "by phone"})
        assert answered.json()["result"] == "Done." and results(agent.llm.requests) == ["by phone"]
        assert told(front.run()) == "Done."


def test_a_rejection_is_told_as_the_result_of_the_call(co_dir: Path) -> None:
    llm = ScriptedLLM([call("show", place="Rome"), call("pay", amount=5)], "Done.")
    with serving(Agent("shop", tools=[pay, Tool("show", "", PLACE)], llm=llm, quiet=True, plugins=[ask_first])) as base:
        front = FrontEnd(base)
        (asked,) = front.says("Go")[-1]["outcome"]["interrupts"]
        (wait,) = [one for one in httpx.get(f"{base}/sessions/t1").json()["waiting"] if "elsewhere" in one]
        decided = httpx.post(f"{base}/sessions/t1/decision", json={"reject": "no map", "wait": wait["id"]})
        assert decided.status_code == 202
        found = front.run(resume=[{"interruptId": asked["id"], "status": "resolved", "payload": True}])
        told_results = {one["toolCallId"]: one["content"] for one in found if one["type"] == "TOOL_CALL_RESULT"}
        assert told_results == {wait["id"]: "rejected: no map", asked["toolCallId"]: "paid 5"}
        assert not set(CALL) & set(kinds(found)) and front.open == []


# -- what strangers bring ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ([{**SHOW, "name": "pay"}], "the agent has a tool 'pay' itself"),
        ([{**SHOW, "name": "transfer_to_agent"}], "the agent has a tool 'transfer_to_agent' itself"),
        ([SHOW, SHOW], "two are named 'show'"),
        ([{**SHOW, "name": "show.map"}], "letters, digits, '_' and '-'"),
        ([{**SHOW, "name": ""}], "letters, digits, '_' and '-'"),
        ([{**SHOW, "name": "x" * 65}], "at most 64"),
        ([{**SHOW, "parameters": []}], None),
        ([{**SHOW, "parameters": "object"}], "must be a JSON Schema"),
        ([{**SHOW, "parameters": {"type": "string"}}], "must be 'object'"),
        ([{**SHOW, "parameters": {"properties": 5}}], "must be a schema"),
        ([{**SHOW, "parameters": {"required": 5}}], "no JSON Schema of an object"),
        ([{**SHOW, "parameters": {"properties": {"a": 5}}}], "must be a schema"),
        ([{**SHOW, "parameters": {"properties": {"a": {"$ref": "http://evil.example"}}}}], "leads nowhere"),
        ([{**SHOW, "parameters": {"type": "object", "description": "x" * 40_000}}], "more than 32000"),
        ([{**SHOW, "name": f"show{number}"} for number in range(65)], "has 65, and may have 64"),
        ([{"name": "show"}], "tools.0.description does not fit"),
        ("show", "tools does not fit"),
    ],
)
def test_tools_that_cannot_be_offered_are_refused(tools: Any, words: str | None, co_dir: Path) -> None:
    below = Agent("below", llm=ScriptedLLM())
    agent = Agent("shop", tools=[pay], llm=ScriptedLLM("Hello."), quiet=True, sub_agents=[below])
    with serving(agent) as base:
        front = FrontEnd(base)
        front.messages = [{"id": "1", "role": "user", "content": "Hi"}]
        if words is None:
            assert told(front.run(tools=tools)) == "Hello."
        else:
            assert words in front.refused(tools=tools)
            assert httpx.get(f"{base}/sessions/t1").status_code == 404  # nothing has begun


def test_a_schema_that_is_nested_too_deep_is_refused(co_dir: Path) -> None:
    with serving(agent_with("Hello.")) as base:
        front = FrontEnd(base)
        front.messages = [{"id": "1", "role": "user", "content": "Hi"}]
        for depth, words in ((15, None), (17, "nested too deep"), (400, "nested too deep")):
            schema: dict[str, Any] = {"type": "object"}
            for _ in range(depth):
                schema = {"type": "object", "properties": {"a": schema}}
            if words is None:
                assert told(front.run(tools=[{**SHOW, "parameters": schema}])) == "Hello."
            else:
                assert words in front.refused(tools=[{**SHOW, "parameters": schema}])


def test_a_call_is_told_without_secrets_and_without_halves_of_pairs(co_dir: Path) -> None:
    secret = "sk-ant-api03-" + "a1B2" * 20
    with serving(agent_with(call("show", place=f"{secret} \ud800"), "Done.")) as base:
        front = FrontEnd(base, SHOW)
        found = front.says("Go")
        assert kinds(found) == CALL and secret not in str(found)
        front.carry_out()
        assert told(front.run()) == "Done."


# -- agents, providers and processes -------------------------------------------------------------------


def test_an_agent_may_name_the_tools_that_it_leaves_to_the_front_end(co_dir: Path) -> None:
    own = Tool("show", "The agent's own words.", PLACE)
    agent = Agent("shop", tools=[own], llm=ScriptedLLM(call("show", place="Rome"), "Done."), quiet=True)
    with serving(agent) as base:
        front = FrontEnd(base, SHOW)
        front.says("Go")
        assert agent.llm.requests[0].tools[0]["function"]["description"] == "The agent's own words."
        front.carry_out()
        assert told(front.run()) == "Done."


@pytest.mark.parametrize("named", [False, True])
def test_careful_agents_call_what_they_name_themselves(named: bool, co_dir: Path) -> None:
    own = [Tool("show", "Show a place.", PLACE, read_only=True)] if named else []
    llm = ScriptedLLM(call("show", place="Rome"), "Done.")
    with serving(Agent("shop", tools=own, llm=llm, quiet=True, trust="careful")) as base:
        front = FrontEnd(base, SHOW)
        found = front.says("Go")
        assert kinds(found) == (CALL if named else [*CALL, "TOOL_CALL_RESULT", *TEXT]), found
        assert named or results(llm.requests)[0].startswith("rejected")


def test_agents_below_that_answer_the_user_have_the_tools_and_those_that_are_tools_have_not(co_dir: Path) -> None:
    asked = Agent("asked", llm=(helper := ScriptedLLM("42")))
    steps = [call("asked", prompt="?"), call("show", place="Rome"), "One."]
    first = Agent("first", tools=[asked], llm=ScriptedLLM(*steps))
    last = Agent("last", llm=ScriptedLLM(call("show", place="Oslo"), "Two."))
    with serving(Sequential("both", [first, last])) as base:
        front = FrontEnd(base, SHOW)
        for place in ("Rome", "Oslo"):
            (front.says("Go") if place == "Rome" else front.run())
            assert [one["function"]["arguments"] for one in front.open] == [f'{{"place": "{place}"}}']
            front.carry_out()
        assert told(front.run()) == "Two." and helper.requests[0].tools == []


def test_an_id_that_a_provider_uses_twice_is_no_answer_to_the_second_call(co_dir: Path) -> None:
    def same(place: str) -> Any:
        one = call("show", place=place)
        one.id = "call_0"
        return one

    agent = agent_with(same("Rome"), same("Oslo"), "Done.")
    with serving(agent) as base:
        front = FrontEnd(base, SHOW)
        front.says("Go")
        front.carry_out()
        assert kinds(front.run()) == CALL
        assert [one["function"]["arguments"] for one in front.open] == ['{"place": "Oslo"}']
        front.carry_out()
        assert told(front.run()) == "Done." and results(agent.llm.requests) == ["shown Rome", "shown Oslo"]


def test_an_id_that_a_provider_uses_twice_is_told_twice(co_dir: Path) -> None:
    def paying(amount: int) -> Any:
        one = call("pay", amount=amount)
        one.id = "call_0"
        return one

    with serving(agent_with([paying(1), call("show", place="Rome")], paying(2), "Done.")) as base:
        front = FrontEnd(base, SHOW)
        front.says("Go")
        front.bring(front.open[-1]["id"], "shown Rome")
        told_first = [one["type"] for one in front.run() if one.get("toolCallId") == "call_0"]
        assert told_first == [*CALL, "TOOL_CALL_RESULT"] * 2 and PAID == [1, 2]


SCRIPT = (
    "import os\nfrom connectagent import Agent\nfrom connectagent.testing import ScriptedLLM, call\n"
    "def note() -> str:\n    'Note it.'\n    open('noted', 'a').write('x')\n    return 'noted'\n"
    "def last(messages, tools):\n    return [m['content'] for m in messages if m['role'] == 'tool'].__repr__()\n"
    "calls = [call('note'), call('show', place='Rome'), call('show', place='Oslo')]\n"
    "steps = [last] * 9 if os.path.exists('noted') else [calls, last]\n"
    "agent = Agent('shop', tools=[note], llm=ScriptedLLM(*steps), quiet=True)\n"
)


def test_a_server_that_is_killed_between_the_runs_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(SCRIPT, "utf-8")
    process = served(tmp_path, port := free_port())
    try:
        front = FrontEnd(f"http://127.0.0.1:{port}", SHOW)
        front.says("Go")
        assert len(front.open) == 2
    finally:
        process.kill()
        process.wait()
    for number in (1, 2):  # one result in each process
        process = served(tmp_path, port)
        try:
            front.bring(front.open[0]["id"], f"shown {number}")
            found = front.run()
            assert found[-1]["type"] == "RUN_FINISHED", found
        finally:
            process.kill()
            process.wait()
    assert told(found) == "['noted', 'shown 1', 'shown 2']" and (tmp_path / "noted").read_text() == "x"


def test_the_record_has_the_tools_the_calls_and_their_results(co_dir: Path) -> None:
    agent = agent_with(call("show", place="Rome"), "Done.")
    with serving(agent) as base:
        front = FrontEnd(base, SHOW)
        front.says("Go")
        front.carry_out()
        front.run()
    (file,) = co_dir.rglob("shop@t1.yaml")
    record = str(read_record(file))
    assert "Show a place on the map." in record
    for text in ("'elsewhere': True", "shown Rome", "T1/1/c1/tool1/wait:show"):
        assert text in record, text
