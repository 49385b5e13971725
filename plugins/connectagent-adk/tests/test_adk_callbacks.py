"""Each of ADK's callbacks: what it is given, what a value of it does, which one of a list decides, who is named."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any

import pytest
from connectagent_adk import LlmResponse, adk_callbacks, types
from pytest_connectagent import AgentTester

from connectagent import (
    Agent,
    Continue,
    HandlerError,
    HookResultError,
    LLMRequest,
    LLMResponse,
    Loop,
    before_llm,
    on_complete,
    on_error,
    register_models,
)
from connectagent.testing import ScriptedLLM, call

LINE = "test_adk_callbacks.py"


def capital(country: str) -> str:
    """The capital of a country."""
    return {"France": "Paris", "Norway": "Oslo"}[country]


def numbers() -> dict[str, int]:
    """Some numbers."""
    return {"one": 1}


def agent_with(*responses: Any, stream: bool = False, plugins: Any = (), **callbacks: Any) -> Agent:
    llm = ScriptedLLM(*responses)
    plugin = adk_callbacks(**callbacks)
    return Agent(
        "guide",
        [capital, numbers],
        "Be kind.",
        llm=llm,
        plugins=[plugin, *plugins],
        log=False,
        quiet=True,
        stream=stream,
    )


def said(text: str) -> types.Content:
    return types.Content(role="model", parts=[types.Part(text=text)])


def answer(text: str) -> LlmResponse:
    return LlmResponse(content=said(text))


def session(agent: Agent) -> Any:
    assert agent.current_session is not None
    return agent.current_session


def entries(agent: Agent, kind: str) -> list[dict[str, Any]]:
    return [entry for entry in session(agent)["trace"] if entry["type"] == kind]


def requests(agent: Agent) -> Any:
    return agent.llm.requests  # type: ignore[attr-defined]


CALL = [call("capital", country="France")]
SLOTS = {
    "before_agent_callback": lambda callback_context: None,
    "after_agent_callback": lambda callback_context: None,
    "before_model_callback": lambda callback_context, llm_request: None,
    "after_model_callback": lambda callback_context, llm_response: None,
    "on_model_error_callback": lambda callback_context, llm_request, error: None,
    "before_tool_callback": lambda tool, args, tool_context: None,
    "after_tool_callback": lambda tool, args, tool_context, tool_response: None,
    "on_tool_error_callback": lambda tool, args, tool_context, error: None,
}


# -- None ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_callbacks_that_return_none_change_nothing(stream: bool) -> None:
    agent = agent_with(CALL, "Paris.", "Hello.", stream=stream, **SLOTS)
    assert [agent.input("Where?"), agent.input("Hi")] == ["Paris.", "Hello."]
    assert not [entry for entry in session(agent)["trace"] if "by" in entry]
    assert len(session(agent)["messages"]) == 7


def test_errors_pass_on_where_the_callbacks_return_none() -> None:
    agent = agent_with([call("capital", country="Atlantis")], ConnectionError("down"), **SLOTS)
    with pytest.raises(ConnectionError, match="down"):
        agent.input("Where?")
    assert entries(agent, "tool_execution")[0]["status"] == "error"


# -- the agent's callbacks -------------------------------------------------------------------------


@pytest.mark.parametrize("value", [said("Closed."), "Closed.", {"parts": [{"text": "Closed."}]}])
def test_before_agent_answers_in_place_of_the_agent_and_after_agent_is_skipped(value: Any) -> None:
    ran = []
    agent = agent_with(
        before_agent_callback=lambda callback_context: value,
        after_agent_callback=lambda callback_context: ran.append(1),
    )
    assert agent.input("Hi") == "Closed."
    assert requests(agent) == [] and ran == []
    assert session(agent)["messages"][-1] == {"role": "assistant", "content": "Closed."}
    assert session(agent)["outcome"] == "ended"


def test_what_is_false_decides_nothing_for_agents_and_models_as_in_adk() -> None:
    agent = agent_with(
        "Hello.",
        before_agent_callback=lambda callback_context: "",
        before_model_callback=lambda callback_context, llm_request: {},
        after_agent_callback=lambda callback_context: "",
    )
    assert agent.input("Hi") == "Hello."


def test_after_agent_content_is_the_result_and_joins_the_conversation() -> None:
    agent = agent_with("Hello.", "Again.", after_agent_callback=lambda callback_context: said("Goodbye."))
    assert [agent.input("Hi"), agent.input("Hi")] == ["Goodbye."] * 2
    assert [message["content"] for message in requests(agent)[1].messages] == [
        "Be kind.", "Hi", "Hello.", "Goodbye.", "Hi"
    ]  # fmt: skip


def test_after_agent_runs_at_the_limit_and_not_when_something_else_ended_the_turn() -> None:
    ran: list[str] = []

    def stop(agent: Agent) -> str:
        """Stop."""
        agent.end_turn("stopped")
        return "ok"

    def note(callback_context: Any) -> None:
        ran.append(callback_context.session.events[-1].author)

    agent = agent_with(CALL, [call("stop")], after_agent_callback=note)
    agent.add_tool(stop)
    agent.input("Where?", max_iterations=1)
    assert ran == ["guide"]
    assert agent.input("Stop") == "stopped"
    assert ran == ["guide"]


def test_a_list_starts_anew_when_another_plugin_sends_the_agent_on() -> None:
    @on_complete
    def once_more(result: str) -> Continue | None:
        return Continue("More.") if result == "first" else None

    ran = []
    notes = [lambda callback_context: ran.append("a"), lambda callback_context: ran.append("b") or "noted"]
    plugin = adk_callbacks(after_agent_callback=notes)
    agent = Agent("a", llm=ScriptedLLM("first", "second"), plugins=[once_more, plugin], log=False, quiet=True)
    assert agent.input("Go") == "noted"
    assert ran == ["a", "b"] * 2


# -- the model's callbacks -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [answer("No."), said("No."), "No.", {"content": {"role": "model", "parts": [{"text": "No."}]}}]
)
def test_a_response_of_before_model_stands_in(value: Any) -> None:
    agent = agent_with(before_model_callback=lambda callback_context, llm_request: value)
    assert agent.input("Hi") == "No."
    entry = entries(agent, "llm_call")[0]
    assert entry["status"] == "stand_in" and entry["by"]["file"].endswith(LINE)


def test_a_stand_in_may_call_tools_without_ids() -> None:
    part = types.Part.from_function_call(name="capital", args={"country": "Norway"})
    values = iter([LlmResponse(content=types.Content(role="model", parts=[part])), None])
    agent = agent_with("Oslo.", before_model_callback=lambda callback_context, llm_request: next(values))
    assert agent.input("Where?") == "Oslo."
    assert entries(agent, "tool_execution")[0]["result"] == "Oslo"


def test_an_error_response_is_told_as_text() -> None:
    value = LlmResponse(error_code="BLOCKED", error_message="Not today.")
    agent = agent_with(before_model_callback=lambda callback_context, llm_request: value)
    assert agent.input("Hi") == "Not today."
    assert entries(agent, "llm_call")[0]["finish_reason"] == "BLOCKED"


REASONS = {
    None: "STOP", "stop": "STOP", "end_turn": "STOP", "STOP": "STOP", "eos": "STOP",
    "length": "MAX_TOKENS", "max_tokens": "MAX_TOKENS", "MAX_TOKENS": "MAX_TOKENS", "model_length": "MAX_TOKENS",
    "max_output_tokens": "MAX_TOKENS", "model_context_window_exceeded": "MAX_TOKENS",
    "refusal": "SAFETY", "one_of_next_year": "OTHER", "other": "OTHER",
}  # fmt: skip


@pytest.mark.parametrize("reason", REASONS)
def test_an_answer_that_is_not_known_to_be_whole_did_not_stop(reason: str | None) -> None:
    seen: list[Any] = []
    response = LLMResponse("Once", finish_reason=reason)
    agent = agent_with(response, after_model_callback=lambda callback_context, llm_response: seen.append(llm_response))
    assert agent.input("Hi") == "Once"
    assert [one.finish_reason for one in seen] == [types.FinishReason[REASONS[reason]]]
    assert entries(agent, "llm_call")[0].get("finish_reason") == reason


ENDS = {"STOP": "answered", "MAX_TOKENS": "truncated", "OTHER": "truncated"}


@pytest.mark.parametrize("reason", ENDS)
def test_the_reason_of_a_stand_in_counts(reason: str) -> None:
    value = LlmResponse(content=said("Half"), finish_reason=types.FinishReason[reason])
    agent = agent_with(before_model_callback=lambda callback_context, llm_request: value)
    assert (agent.input("Hi"), session(agent)["outcome"]) == ("Half", ENDS[reason])


@pytest.mark.parametrize("reason", ENDS)
@pytest.mark.parametrize("given", ["stop", "length", "one_of_next_year", "refusal"])
def test_a_callback_may_change_why_an_answer_stopped(given: str, reason: str) -> None:
    def change(callback_context: Any, llm_response: LlmResponse) -> None:
        llm_response.finish_reason = types.FinishReason[reason]

    agent = agent_with(LLMResponse("Half", finish_reason=given), after_model_callback=change)
    assert (agent.input("Hi"), session(agent)["outcome"]) == ("Half", ENDS[reason])


@pytest.mark.parametrize("given", ["stop", "length", "one_of_next_year", "refusal"])
def test_an_answer_that_a_callback_rewords_keeps_its_reason(given: str) -> None:
    def change(callback_context: Any, llm_response: LlmResponse) -> None:
        llm_response.content = said("Reworded.")

    agent = agent_with(LLMResponse("Half", finish_reason=given), after_model_callback=change)
    expected = {"stop": "answered", "refusal": "refused"}.get(given, "truncated")
    assert (agent.input("Hi"), session(agent)["outcome"]) == ("Reworded.", expected)


def test_the_request_is_given_as_contents() -> None:
    seen = []

    def look(callback_context: Any, llm_request: Any) -> None:
        seen.append([(content.role, content.parts) for content in llm_request.contents])
        assert llm_request.model == "scripted"
        assert llm_request.config.system_instruction == "Be kind."
        declared = [each.name for each in llm_request.config.tools[0].function_declarations]
        assert declared == ["capital", "numbers"] == list(llm_request.tools_dict)

    twice = [call("capital", country="France"), call("numbers")]
    agent_with(twice, "Paris.", before_model_callback=look).input("Where?")
    assert seen[0] == [("user", [types.Part(text="Where?")])]
    ids = [each.id for each in twice]
    assert seen[1][1:] == [
        ("model", [
            types.Part(function_call=types.FunctionCall(ids[0], "capital", {"country": "France"})),
            types.Part(function_call=types.FunctionCall(ids[1], "numbers", {})),
        ]),
        ("user", [
            types.Part(function_response=types.FunctionResponse(ids[0], "capital", {"result": "Paris"})),
            types.Part(function_response=types.FunctionResponse(ids[1], "numbers", {"one": 1})),
        ]),
    ]  # fmt: skip


def test_edits_of_the_request_hold_for_one_call_and_keep_what_was_not_touched() -> None:
    def edit(callback_context: Any, llm_request: Any) -> None:
        llm_request.config.system_instruction += " Be brief."
        llm_request.contents[-1].parts[0].text = "[redacted]"
        llm_request.contents.insert(0, types.Content(role="user", parts=[types.Part(text="(an example)")]))

    agent = agent_with("One.", "Two.", before_model_callback=edit)
    agent.input("secret")
    agent.input("secret too")
    assert [message["content"] for message in requests(agent)[1].messages] == [
        "Be kind. Be brief.", "(an example)", "secret", "One.", "[redacted]"
    ]  # fmt: skip
    assert [message["content"] for message in session(agent)["messages"]] == [
        "Be kind.", "secret", "One.", "secret too", "Two."
    ]  # fmt: skip
    assert [entry["by"]["handler"] for entry in entries(agent, "change")] == [
        "test_edits_of_the_request_hold_for_one_call_and_keep_what_was_not_touched.edit".rpartition(".")[2]
    ] * 2


def test_tools_can_be_taken_from_one_call() -> None:
    def only_capital(callback_context: Any, llm_request: Any) -> None:
        declared = llm_request.config.tools[0].function_declarations
        llm_request.config.tools[0].function_declarations = [each for each in declared if each.name == "capital"]

    agent = agent_with("One.", before_model_callback=only_capital)
    agent.input("Hi")
    assert [tool["function"]["name"] for tool in requests(agent)[0].tools] == ["capital"]


@pytest.mark.parametrize(
    ("field", "value", "instead"),
    [("response_schema", {}, r"Agent\(output"), ("safety_settings", [1], r"options=\{'safety_settings'")],
)
def test_what_holds_for_the_whole_agent_cannot_be_changed_for_one_call(field: str, value: Any, instead: str) -> None:
    def edit(callback_context: Any, llm_request: Any) -> None:
        setattr(llm_request.config, field, value)

    with pytest.raises(HookResultError, match=rf"edit' \(.*{LINE}:\d+\) changed llm_request.*{field}.*{instead}"):
        agent_with("One.", before_model_callback=edit).input("Hi")


def test_another_model_answers_one_call() -> None:
    @register_models
    def others() -> Any:
        return {"other": lambda name: ScriptedLLM("The other's.", model=name)}

    def choose(callback_context: Any, llm_request: Any) -> None:
        if llm_request.contents[-1].parts[0].text == "Other":
            llm_request.model = "other/x"

    agent = agent_with("Own.", "Own again.", before_model_callback=choose, plugins=[others])
    assert [agent.input(text) for text in ("Hi", "Other", "Hi")] == ["Own.", "The other's.", "Own again."]


@pytest.mark.parametrize(
    ("model", "given", "sent"),
    [
        ("openai/gpt-5-mini", {"stop": "x", "seed": 1}, {"stop": ["a"], "max_tokens": 9, "temperature": 0.1}),
        ("anthropic/c", {"stop_sequences": ["x"]}, {"stop_sequences": ["a"], "max_tokens": 9, "temperature": 0.1}),
        ("openai-responses/o", {}, {"stop": ["a"], "max_output_tokens": 9, "temperature": 0.1}),
    ],
)
def test_parameters_hold_for_one_call_under_the_providers_names(model: str, given: Any, sent: Any) -> None:
    seen: list[Any] = []

    def edit(callback_context: Any, llm_request: Any) -> None:
        config = llm_request.config
        seen.append((config.stop_sequences, config.seed))
        config.stop_sequences, config.max_output_tokens, config.temperature, config.seed = ["a"], 9, 0.1, None

    def keep(request: LLMRequest) -> str:
        seen.append(dict(request.options))
        return "Stand-in."

    plugins = [adk_callbacks(before_model_callback=edit), before_llm(keep)]
    agent = Agent("a", model=model, options=given, plugins=plugins, log=False, quiet=True)
    agent.input("Hi")
    assert seen == [(["x"] if given else None, given.get("seed")), sent]
    assert agent._core.call_options() == given


def test_after_model_is_not_for_stand_ins_but_for_recovered_answers() -> None:
    ran: list[str] = []

    def note(callback_context: Any, llm_response: Any) -> None:
        ran.append(llm_response.content.parts[0].text)

    def stand_in(callback_context: Any, llm_request: Any) -> Any:
        return answer("Stand-in.") if len(llm_request.contents) == 1 else None

    def recover(callback_context: Any, llm_request: Any, error: Exception) -> Any:
        return answer("Recovered.")

    agent = agent_with(
        ConnectionError("down"),
        before_model_callback=stand_in,
        after_model_callback=note,
        on_model_error_callback=recover,
    )
    assert [agent.input("Hi"), agent.input("Hi")] == ["Stand-in.", "Recovered."]
    assert ran == ["Recovered."]


def test_a_list_is_the_same_in_every_callback() -> None:
    def listed() -> list[int]:
        """List."""
        return [1, 2]

    def text() -> str:
        """Text."""
        return "[1, 2]"

    seen: list[Any] = []

    def after_tool(tool: Any, args: Any, tool_context: Any, tool_response: Any) -> None:
        seen.append((tool.name, tool_response))

    def before_model(callback_context: Any, llm_request: Any) -> None:
        found = [part.function_response for content in llm_request.contents for part in content.parts]
        seen.extend((each.name, each.response) for each in found if each)
        for event in callback_context.session.events:
            seen.extend((each.name, each.response) for each in event.get_function_responses())

    plugin = adk_callbacks(after_tool_callback=[after_tool, after_tool], before_model_callback=before_model)
    llm = ScriptedLLM([call("listed"), call("text")], "ok")
    Agent("a", [listed, text], llm=llm, plugins=[plugin], log=False, quiet=True).input("Hi")
    assert seen.count(("listed", {"result": [1, 2]})) == seen.count(("text", {"result": "[1, 2]"})) == 4
    assert len(seen) == 8


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_after_model_changes_the_response_and_keeps_its_calls(stream: bool, in_place: bool) -> None:
    def edit(callback_context: Any, llm_response: Any) -> Any:
        part = llm_response.content.parts[0]
        if part.function_call:
            part.function_call.args["country"] = "Norway"
            return llm_response if not in_place else None
        if in_place:
            part.text = part.text.upper()
            return None
        return LlmResponse(content=said(part.text.upper()))

    agent = agent_with(CALL, "done", stream=stream, after_model_callback=edit)
    assert agent.input("Where?") == "DONE"
    assert entries(agent, "tool_execution")[0]["result"] == "Oslo"
    assert [entry["of"] for entry in entries(agent, "change")] == ["response"] * 2


def test_a_failed_model_call_is_recovered_with_its_request_at_hand() -> None:
    def recover(callback_context: Any, llm_request: Any, error: Exception) -> Any:
        return answer(f"{error} after {len(llm_request.contents)}")

    agent = agent_with(
        ConnectionError("down"), on_model_error_callback=[lambda callback_context, **rest: None, recover]
    )
    assert agent.input("Hi") == "down after 1"
    assert entries(agent, "llm_call")[0]["status"] == "recovered"


# -- the tools' callbacks --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"), [({"a": 1}, '{"a": 1}'), ({}, "{}"), ("no", '{"result": "no"}'), (0, '{"result": 0}')]
)
def test_a_value_of_before_tool_stands_in(value: Any, text: str) -> None:
    seen = []
    agent = agent_with(
        CALL,
        "ok",
        before_tool_callback=lambda tool, args, tool_context: value,
        after_tool_callback=lambda tool, args, tool_context, tool_response: seen.append(tool_response),
    )
    agent.input("Where?")
    assert entries(agent, "tool_execution")[0]["status"] == "stand_in"
    assert requests(agent)[1].messages[-1]["content"] == text
    assert len(seen) == 1


def test_before_tool_edits_the_arguments_in_place() -> None:
    def edit(tool: Any, args: dict[str, Any], tool_context: Any) -> None:
        assert (tool.name, tool.description) == ("capital", "The capital of a country.")
        args["country"] = "Norway"

    agent = agent_with(CALL, "ok", before_tool_callback=edit)
    agent.input("Where?")
    entry = entries(agent, "tool_execution")[0]
    assert entry["result"] == "Oslo" and entry["original_arguments"] == {"country": "France"}


def test_after_tool_is_given_a_dict_and_replaces_it_or_edits_it_in_place() -> None:
    seen = []

    def edit(tool: Any, args: dict[str, Any], tool_context: Any, tool_response: dict[str, Any]) -> Any:
        seen.append(dict(tool_response))
        if tool.name == "numbers":
            tool_response["two"] = 2
            return None
        return {**tool_response, "args": args}

    def five() -> int:
        """Five."""
        return 5

    agent = agent_with([*CALL, call("numbers"), call("five")], "ok", after_tool_callback=edit)
    agent.add_tool(five)
    agent.input("Where?")
    assert seen == [{"result": "Paris"}, {"one": 1}, {"result": 5}]
    texts = [message["content"] for message in requests(agent)[1].messages[-3:]]
    assert texts == [
        '{"result": "Paris", "args": {"country": "France"}}', '{"one": 1, "two": 2}', '{"result": 5, "args": {}}'
    ]  # fmt: skip


def test_after_tool_is_not_for_calls_that_failed_or_never_ran() -> None:
    ran = []
    agent = agent_with(
        [call("capital", country="Atlantis"), call("nothing")],
        "ok",
        after_tool_callback=lambda tool, args, tool_context, tool_response: ran.append(tool.name),
    )
    agent.input("Where?")
    assert ran == []
    assert [entry["status"] for entry in entries(agent, "tool_execution")] == ["error", "not_found"]


def test_a_failed_tool_is_recovered_and_an_unknown_one_too() -> None:
    seen = []

    def recover(tool: Any, args: dict[str, Any], tool_context: Any, error: Exception) -> Any:
        seen.append((tool.name, tool.description, type(error).__name__))
        return {"error": "unknown"}

    agent = agent_with([call("capital", country="Atlantis"), call("nothing")], "ok", on_tool_error_callback=recover)
    agent.input("Where?")
    assert [message["content"] for message in requests(agent)[1].messages[-2:]] == ['{"error": "unknown"}'] * 2
    assert seen == [("capital", "The capital of a country.", "KeyError"), ("nothing", "Tool not found", "ToolNotFound")]


@pytest.mark.parametrize("slot", ["before_tool_callback", "after_tool_callback"])
def test_skip_summarization_ends_the_turn_after_the_round_with_the_tools_result(slot: str) -> None:
    ran = []

    def act(tool: Any, args: dict[str, Any], tool_context: Any, tool_response: Any = None) -> None:
        if tool.name == "capital":
            tool_context.actions.skip_summarization = True

    agent = agent_with(
        [*CALL, call("numbers")], "next", after_agent_callback=lambda callback_context: ran.append(1), **{slot: act}
    )
    assert agent.input("Where?") == "Paris"
    assert [entry["status"] for entry in entries(agent, "tool_execution")] == ["success"] * 2
    assert ran == [1]
    assert entries(agent, "message")[0]["by"]["handler"].endswith("act")
    assert agent.input("Next") == "next"


@pytest.mark.parametrize(
    "slot", ["before_agent", "before_model", "after_model", "before_tool", "after_tool", "after_agent"]
)
def test_escalate_leaves_the_loop_at_the_end_of_the_turn_and_is_nothing_elsewhere(slot: str) -> None:
    def leave(**given: Any) -> None:
        given.get("callback_context", given.get("tool_context")).actions.escalate = True

    def worker(*callbacks: Any) -> Agent:
        llm = ScriptedLLM(CALL, "Paris.", CALL, "Paris again.")
        return Agent("worker", [capital], llm=llm, plugins=callbacks, log=False, quiet=True)

    plugin = adk_callbacks(**{f"{slot}_callback": leave})
    after = Agent("after", llm=ScriptedLLM("Next.", "Next."), log=False, quiet=True)
    assert Loop("loop", [worker(plugin), after], max_iterations=2, log=False, quiet=True).input("Go") == "Paris."
    alone = worker(plugin)
    assert [alone.input("Go"), alone.input("Go")] == ["Paris.", "Paris again."]
    assert session(alone)["outcome"] == "answered"


def test_a_hand_over_is_refused_clearly() -> None:
    def hand_over(tool: Any, args: Any, tool_context: Any) -> None:
        tool_context.actions.transfer_to_agent = "billing"

    with pytest.raises(HookResultError, match=rf"{LINE}:\d+\) set actions.transfer_to_agent='billing'"):
        agent_with(CALL, "ok", before_tool_callback=hand_over).input("Where?")


def test_a_callback_of_a_tool_hands_over_and_callbacks_act_in_their_own_agent_only() -> None:
    names = []

    def hand_over(tool: Any, args: Any, tool_context: Any) -> None:
        tool_context.actions.transfer_to_agent = "billing"

    def tell(callback_context: Any, llm_request: Any) -> None:
        names.append((callback_context.agent_name, callback_context.branch))

    theirs = adk_callbacks(before_model_callback=[tell, tell])
    billing = Agent("billing", llm=ScriptedLLM("Billing here."), plugins=[theirs], quiet=True, log=False)
    plugin = adk_callbacks(before_tool_callback=hand_over, before_model_callback=tell)
    llm = ScriptedLLM(CALL, "never")
    desk = Agent("desk", [capital], sub_agents=[billing], llm=llm, plugins=[plugin], quiet=True, log=False)
    assert desk.input("Where?") == "Billing here."
    assert names == [("desk", None), ("billing", "desk.billing"), ("billing", "desk.billing")]


# -- lists, async, errors --------------------------------------------------------------------------

WINS: dict[str, tuple[Any, Any]] = {
    "before_agent_callback": (said("first"), said("second")),
    "after_agent_callback": (said("first"), said("second")),
    "before_model_callback": (answer("first"), answer("second")),
    "after_model_callback": (answer("first"), answer("second")),
    "on_model_error_callback": (answer("first"), answer("second")),
    "before_tool_callback": ({"v": "first"}, {"v": "second"}),
    "after_tool_callback": ({"v": "first"}, {"v": "second"}),
    "on_tool_error_callback": ({"v": "first"}, {"v": "second"}),
}


def run_of(slot: str, callbacks: Any, turns: int = 1) -> str:
    """What a turn gives in which the callbacks of a slot are called once; of the last turn, where it has several."""
    country = "Atlantis" if slot == "on_tool_error_callback" else "France"
    if "_tool_" in slot:
        responses: list[Any] = [[call("capital", country=country)], lambda messages, _: messages[-1]["content"]]
    else:
        responses = [ConnectionError("down") if slot == "on_model_error_callback" else "the model's"]
    agent = agent_with(*responses * turns, **{slot: callbacks})
    return [agent.input("Where?") for _ in range(turns)][-1]


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("slot", WINS)
def test_of_a_list_the_first_value_decides_and_the_rest_is_not_called(slot: str, turns: int) -> None:
    first, second = WINS[slot]
    ran: list[str] = []

    def returning(value: Any, name: str) -> Any:
        return lambda *given: ran.append(name) or value

    callbacks = [returning(None, "none"), returning(first, "first"), returning(second, "second")]
    assert "first" in run_of(slot, callbacks, turns)
    assert ran == ["none", "first"] * turns


@pytest.mark.filterwarnings("ignore:agent.input:RuntimeWarning")  # once in a process: it blocks the loop
@pytest.mark.parametrize("slot", WINS)
def test_callbacks_may_be_async(slot: str) -> None:
    async def callback(*given: Any) -> Any:
        await asyncio.sleep(0)
        return WINS[slot][0]

    assert "first" in run_of(slot, callback)

    async def inside_a_loop() -> str:
        return run_of(slot, callback)

    assert "first" in asyncio.run(inside_a_loop())


@pytest.mark.parametrize("slot", WINS)
def test_an_exception_reaches_the_caller_and_names_the_callback(slot: str) -> None:
    async def callback(*given: Any) -> Any:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine") as caught:
        run_of(slot, callback)
    named = f"callback' ({__file__}:{callback.__code__.co_firstlineno}), of plugin 'adk'"
    assert sum(named in note for note in caught.value.__notes__) == 1  # another one has the error to handle


@pytest.mark.parametrize("slot", ["before_agent_callback", "after_agent_callback", "before_model_callback",
                                  "after_model_callback", "on_model_error_callback"])  # fmt: skip
def test_a_value_of_another_type_is_refused_with_the_callbacks_place(slot: str) -> None:
    with pytest.raises(HookResultError, match=rf"{slot} .*{LINE}:\d+\) returned int 3; it takes None or "):
        run_of(slot, lambda *given: 3)


def test_a_half_done_change_of_state_is_rolled_back() -> None:
    def callback(callback_context: Any) -> None:
        callback_context.state["half"] = 1
        raise RuntimeError("mine")

    agent = agent_with("ok", before_agent_callback=callback)
    with pytest.raises(RuntimeError):
        agent.input("Hi")
    assert session(agent)["state"] == {}


def test_methods_partials_and_objects_are_named_by_their_own_function() -> None:
    class Guard:
        def check(self, callback_context: Any) -> None: ...
        async def __call__(self, callback_context: Any) -> None: ...

    def with_limit(limit: int, callback_context: Any) -> None: ...

    @functools.wraps(with_limit)
    def wrapped(callback_context: Any) -> None: ...

    callbacks = [Guard().check, Guard(), functools.partial(with_limit, 3), wrapped]
    agent = agent_with("ok", before_agent_callback=callbacks)
    agent.input("Hi")
    names = [handler.by["handler"] for handler in agent.hooks.handlers("after_user_input") if handler.plugin == "adk"]
    assert names == ["Guard.check", "Guard.__call__", "with_limit", "with_limit#2"]
    lines = [handler.by["line"] for handler in agent.hooks.handlers("after_user_input") if handler.plugin == "adk"]
    assert lines == [
        function.__code__.co_firstlineno for function in (Guard.check, Guard.__call__, with_limit, with_limit)
    ]
    assert {row["handler"] for row in agent.ledger} >= set(names)


def test_state_changes_are_attributed_to_the_callback_that_made_them() -> None:
    def count(tool: Any, args: Any, tool_context: Any) -> None:
        tool_context.state["calls"] = tool_context.state.get("calls", 0) + 1
        tool_context.actions.state_delta["by_delta"] = True

    agent = agent_with(CALL, "ok", CALL, "ok", before_tool_callback=count)
    agent.input("Where?")
    agent.input("Where?")
    deltas = entries(agent, "state_delta")
    assert [entry["delta"] for entry in deltas] == [{"calls": 1, "by_delta": True}, {"calls": 2}]
    assert {(entry["by"]["handler"], entry["by"]["line"]) for entry in deltas} == {
        ("count", count.__code__.co_firstlineno)
    }


def test_other_plugins_still_see_errors_that_no_callback_takes() -> None:
    @on_error
    def rescue(tool_call: Any) -> str | None:
        return "rescued" if tool_call is None else None

    agent = agent_with(ConnectionError("down"), plugins=[rescue], on_model_error_callback=lambda *given: None)
    assert agent.input("Hi") == "rescued"


def test_agents_in_threads_share_the_plugin_and_nothing_else() -> None:
    seen: dict[str, set[str]] = {"a": set(), "b": set()}

    def note(callback_context: Any, llm_request: Any) -> None:
        seen[callback_context.agent_name].add(callback_context.invocation_id)
        callback_context.state["name"] = callback_context.agent_name

    plugin = adk_callbacks(before_model_callback=[note, note])
    agents = [Agent(name, llm=ScriptedLLM(*["ok"] * 20), plugins=[plugin], log=False, quiet=True) for name in "ab"]
    threads = [threading.Thread(target=lambda agent=agent: [agent.input("x") for _ in range(20)]) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(seen["a"]), len(seen["b"])] == [20, 20]
    assert [session(agent)["state"]["name"] for agent in agents] == ["a", "b"]


# -- mistakes --------------------------------------------------------------------------------------


def wrong(ctx: Any, *, request: Any) -> None: ...


def test_a_callback_that_cannot_be_called_is_told_where_it_is_given() -> None:
    line = wrong.__code__.co_firstlineno
    with pytest.raises(HandlerError, match=rf"'wrong' \(.*{LINE}:{line}\).*callback_context, llm_request"):
        adk_callbacks(before_model_callback=wrong)


def test_other_names_are_given_by_position_as_in_adk() -> None:
    assert run_of("before_model_callback", lambda ctx, request: answer(ctx.agent_name)) == "guide"


@pytest.mark.parametrize("value", [3, "name", [lambda callback_context: None, 3], str])
def test_what_is_no_function_is_refused(value: Any) -> None:
    with pytest.raises(HandlerError, match=r"before_agent_callback=.* is no function"):
        adk_callbacks(before_agent_callback=value)


def test_an_unknown_name_is_told_with_the_one_that_was_meant() -> None:
    with pytest.raises(
        HandlerError, match=rf"'before_modl_callback' .*{LINE}:\d+.*Did you mean 'before_model_callback'"
    ):
        adk_callbacks(before_modl_callback=wrong)
    for nothing in ({}, {"before_agent_callback": []}):
        with pytest.raises(HandlerError, match="was given no callback"):
            adk_callbacks(**nothing)


def test_the_plugin_has_a_name_and_can_be_left_out() -> None:
    plugin = adk_callbacks(before_agent_callback=lambda callback_context: "no")
    agent = Agent("a", llm=ScriptedLLM("yes"), plugins=[plugin, "no:adk"], log=False, quiet=True)
    assert agent.input("Hi") == "yes"
    assert LINE in repr(plugin)


def test_it_keeps_the_rules_on_every_path(agenttester: AgentTester) -> None:
    def counts(tool: Any, args: Any, tool_context: Any) -> None:
        tool_context.state["calls"] = tool_context.state.get("calls", 0) + 1

    def observes(callback_context: Any, llm_response: Any) -> None:
        return None

    plugin = functools.partial(adk_callbacks, before_tool_callback=counts, after_model_callback=observes)
    assert agenttester.check(lambda: plugin(), changes={"state"}).hooks >= {"before_each_tool", "after_llm"}
