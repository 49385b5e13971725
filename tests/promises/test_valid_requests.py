"""Every request is valid, tools too: what a handler leaves in them is its own, is checked, traced and mended."""

from __future__ import annotations

import base64
import json
import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent, HookResultError, after_tools, around_llm, before_llm, on_trace
from connectagent.models.anthropic_messages import to_wire as to_anthropic
from connectagent.models.openai_messages import to_wire as to_openai
from connectagent.models.origin import Origin
from connectagent.models.responses_messages import to_wire as to_responses
from connectagent.models.responses_messages import tools_to_wire as tools_to_responses
from connectagent.models.sdk import encoded
from connectagent.session.messages import is_valid, mended
from connectagent.testing import ScriptedLLM, conversation_problems
from connectagent.testing.rules import ASKED

AT = {provider: Origin(*asked) for provider, asked in ASKED.items()}


def look(n: int = 0) -> str:
    """Look."""
    return f"saw {n}"


def agent_of(*handlers: Any, script: Any = ("Done.", "Again.")) -> Agent:
    return Agent("a", [look], llm=ScriptedLLM(*script), plugins=list(handlers), log=False, quiet=True)


def requests_of(agent: Any) -> list[Any]:
    requests: list[Any] = agent.llm.requests
    return requests


def trace_of(agent: Agent, kind: str) -> list[dict[str, Any]]:
    assert agent.current_session is not None
    return [entry for entry in agent.current_session["trace"] if entry["type"] == kind]


def rename(request: Any) -> None:
    function = request.tools[0]["function"]
    function["description"] = "Peek."
    function["parameters"]["properties"]["n"]["maximum"] = 3


@pytest.mark.parametrize("around", [False, True])
def test_an_edit_of_a_schema_is_for_one_call_of_one_agent_and_traced(around: bool) -> None:
    @around_llm
    def wraps(request: Any) -> Any:
        rename(request)
        yield

    agent = agent_of(wraps if around else before_llm(rename))
    tool = agent.tools["look"]
    before = json.dumps(tool.schema)
    other = Agent("b", [tool], llm=ScriptedLLM("Done."), log=False, quiet=True)
    agent.input("Go.")
    other.input("Go.")
    assert requests_of(agent)[0].tools[0]["function"]["description"] == "Peek."
    assert requests_of(other)[0].tools[0]["function"]["description"] == "Look." and json.dumps(tool.schema) == before
    (change,) = trace_of(agent, "change")
    assert change["of"] == "request" and change["by"]["plugin"] in ("rename", "wraps")
    assert change["value"]["changed_tools"]["look"]["function"]["parameters"]["properties"]["n"]["maximum"] == 3


def function(name: Any = "x", **parts: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **parts}}


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ([function(), function()], "two tools are named 'x'"),
        ([function("a b")], "the name of a tool"),
        ([function("")], "the name of a tool"),
        ([function("x" * 65)], "the name of a tool"),
        ([function("ｐａｙ")], "the name of a tool"),
        ([function(None)], "a tool is"),
        ([None], "a tool is"),
        (["look"], "a tool is"),
        ([{}], "a tool is"),
        ([{"type": "function"}], "a tool is"),
        ([function(description=5)], "its description is a str"),
        ([function(parameters={"type": "string"})], "JSON Schema"),
        ([function(parameters=[1])], "JSON Schema"),
        ([function(parameters={"type": "object", "properties": [1]})], "its properties"),
        ([function(parameters={"type": "object", "properties": {"a": 5}})], "its properties"),
        ([function(parameters={"type": "object", "required": "a"})], "'required'"),
        ([function(parameters={"type": "object", "properties": {"a": {"maximum": math.nan}}})], "written as JSON"),
        ([function(parameters={"type": "object", "properties": {"a": {"maximum": math.inf}}})], "written as JSON"),
    ],
)
def test_tools_that_no_provider_takes_are_refused_where_they_are_left(tools: list[Any], says: str) -> None:
    @before_llm
    def breaks(agent: Agent, request: Any) -> None:
        if len(requests_of(agent)) == 0 and not done:
            done.append(1)
            request.tools[:] = tools

    done: list[int] = []
    agent = agent_of(breaks)
    with pytest.raises(HookResultError, match=f"breaks.*{says}"):
        agent.input("Go.")
    assert agent.input("Go.") == "Done." and requests_of(agent)[0].tools[0]["function"]["name"] == "look"


def test_options_that_have_no_form_in_json_are_refused() -> None:
    @before_llm
    def breaks(request: Any) -> None:
        request.options["temperature"] = math.nan

    with pytest.raises(HookResultError, match=r"breaks.*its options"):
        agent_of(breaks).input("Go.")


def test_the_responses_api_gets_all_keys_of_a_function_that_it_asks_for() -> None:
    (sent,) = tools_to_responses([function(type="robot")])
    nothing = {"type": "object", "properties": {}}
    assert sent == {"type": "function", "name": "x", "strict": False, "parameters": nothing}


def test_tools_of_a_providers_own_form_pass() -> None:
    @before_llm
    def adds(request: Any) -> None:
        request.tools.append({"type": "web_search_20250305", "name": "web_search"})

    assert agent_of(adds).input("Go.") == "Done."


# -- messages ------------------------------------------------------------------------------------

PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()


def image(url: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}


@pytest.mark.parametrize(
    "url",
    ["data:image/bmp;base64,Qk0=", "file:///etc/passwd", "", "https://", "javascript:x", "data:image/png;base64,???"],
)
def test_an_image_that_no_provider_takes_is_told_in_words(url: str) -> None:
    for sent in (to_openai([image(url)], AT["openai"]), to_anthropic([image(url)], AT["anthropic"])[1]):  # type: ignore[list-item]
        (part,) = sent[0]["content"]
        assert part["type"] == "text"
        assert part["text"].startswith("[an image ") and part["text"].endswith(" is left out]")
    for one in (image(url), {"role": "user", "content": [{"type": "input_image", "image_url": url}]}):
        (part,) = to_responses([one], AT["openai-responses"], False)[0]["content"]  # type: ignore[list-item]
        assert part["type"] == "input_text" and part["text"].endswith(" is left out]")


def test_images_that_they_take_are_sent() -> None:
    for url in (PNG, "https://example.com/a.png"):
        assert to_openai([image(url)], AT["openai"])[0]["content"][0]["image_url"]["url"] == url  # type: ignore[list-item]
        assert to_anthropic([image(url)], AT["anthropic"])[1][0]["content"][0]["type"] == "image"  # type: ignore[list-item]
        sent = to_responses([image(url)], AT["openai-responses"], False)[0]["content"]  # type: ignore[list-item]
        assert sent == [{"type": "input_image", "image_url": url, "detail": "auto"}]


def marked(text: str, mark: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text, "cache_control": mark}]}


def test_of_five_cache_marks_the_last_four_are_sent_and_none_that_is_unknown() -> None:
    messages: Any = [marked(str(n), {"type": "ephemeral"}) for n in range(5)]
    before = json.dumps(messages)
    blocks = to_anthropic(messages, AT["anthropic"])[1][0]["content"]
    assert [block["text"] for block in blocks if "cache_control" in block] == ["1", "2", "3", "4"]
    assert json.dumps(messages) == before
    for mark in (5, "ephemeral", {}, {"type": "ephemeral", "ttl": "1y"}, None):
        (block,) = to_anthropic([marked("x", mark)], AT["anthropic"])[1][0]["content"]  # type: ignore[list-item]
        assert "cache_control" not in block


def given(provider: str, **parts: Any) -> dict[str, Any]:
    """What the model that is asked gave itself."""
    return AT[provider].kept(**parts)


def answered(*items: Any) -> dict[str, Any]:
    return given("openai-responses", items=list(items))


SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
ODD: list[Any] = [
    given("anthropic", content=[{"type": "text"}]),
    given("anthropic", content=[{"type": "text", "text": 5}]),
    given("anthropic", content={"type": "text", "text": "hi"}),
    given("anthropic", content=[{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "hi"}]),
    given("anthropic", content=[5, {"type": "text", "text": "hi"}]),
    given("openai", message={"role": "robot", "content": 5, "tool_calls": "x"}),
    given("openai", message=5),
    given("openai", extra_content=5),
    given("openai", custom=5),
    given("mistral", content=["hi"]),
    given("openai-responses", items=5),
    answered(SAID, 5),
    answered({**SAID, "content": 5}),
    answered({**SAID, "content": [{"type": "output_text", "text": 5}, *SAID["content"]]}),
    answered({**SAID, "content": [{"type": "input_text", "text": "hi"}, *SAID["content"]]}),
    answered({**SAID, "role": "user"}),
    answered({"type": ["x"]}, SAID),
    answered({"type": "function_call"}, SAID),
    answered({"type": "function_call_output", "call_id": "c1", "output": "forged"}, SAID),
    answered({"type": "reasoning", "encrypted_content": "x"}, SAID),
    {"provider": 5},
    {},
]


@pytest.mark.parametrize("data", ODD)
def test_odd_provider_data_makes_no_odd_request(data: Any) -> None:
    message = {"role": "assistant", "content": "hi", "provider_data": data}
    assert conversation_problems([{"role": "user", "content": "x"}, message, {"role": "user", "content": "y"}]) == []
    sent = to_anthropic([{"role": "user", "content": "x"}, message], AT["anthropic"])[1][-1]["content"]  # type: ignore[list-item]
    assert sent == [{"type": "text", "text": "hi"}]
    assert to_responses([message], AT["openai-responses"], False) == [{"role": "assistant", "content": "hi"}]  # type: ignore[list-item]
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    asks = {**message, "tool_calls": [call]}
    answered = {"role": "tool", "tool_call_id": "c1", "content": "saw"}
    assert conversation_problems([{"role": "user", "content": "x"}, asks, answered]) == []


def test_a_kept_call_of_a_name_that_no_provider_takes_is_not_sent_as_it_was() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "a b", "arguments": "{}"}}
    custom = {**call, "function": {"name": "a b", "arguments": '{"input": 5}'}}
    item = {"type": "function_call", "call_id": "c1", "name": "a b", "arguments": "{}"}
    block = {"type": "tool_use", "id": "c1", "name": "a b", "input": {}}
    for one, data in (
        (call, answered(item)),
        (call, given("anthropic", content=[block])),
        (custom, given("openai", custom=["c1"])),
    ):
        messages: Any = [{"role": "assistant", "content": None, "tool_calls": [one], "provider_data": data}]
        sent = (
            to_openai(messages, AT["openai"]),
            to_anthropic(messages, AT["anthropic"]),
            to_responses(messages, AT["openai-responses"], True),
        )
        assert "a b" not in json.dumps(sent)
    assert to_openai(messages, AT["openai"])[0]["tool_calls"][0]["custom"] == {"name": "a_b", "input": "5"}


def test_provider_data_that_is_no_dict_is_refused_where_it_is_left() -> None:
    @before_llm
    def breaks(agent: Any) -> None:
        agent.current_session["messages"].append({"role": "assistant", "content": "x", "provider_data": [1]})

    with pytest.raises(HookResultError, match=r"breaks.*provider_data is a dict"):
        agent_of(breaks).input("Go.")


def test_a_body_never_holds_what_json_has_no_form_for() -> None:
    body = {"messages": [{"x": [math.nan, math.inf, -math.inf, 1.5]}]}
    assert json.loads(encoded(body), parse_constant=pytest.fail) == {"messages": [{"x": [None, None, None, 1.5]}]}


def test_a_message_of_another_kind_of_dict_is_watched_as_all_are() -> None:
    kept: list[Any] = []

    @before_llm
    def adds(agent: Any) -> None:
        if not kept:
            kept.append(OrderedDict(role="user", content=[OrderedDict(type="text", text="fine")]))
            agent.current_session["messages"].append(kept[0])
        elif len(kept) == 1:
            kept.append(None)
            kept[0]["role"] = "robot"

    agent = agent_of(adds)
    assert agent.input("Go.") == "Done."
    with pytest.raises(HookResultError, match=r"adds.*its role must be one of"):
        agent.input("Go on.")
    assert agent.input("Go on.") == "Again."


def test_a_handler_that_empties_the_conversation_again_and_again_stops_nothing() -> None:
    @on_trace
    def empties(agent: Any) -> None:
        agent.current_session["messages"].clear()

    agent = agent_of(empties)
    for expected in ("Done.", "Again."):
        assert agent.input("Go.") == expected
    assert all(conversation_problems(request.messages) == [] for request in requests_of(agent))


def test_a_mended_conversation_has_each_result_behind_its_round_and_no_other() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    asks = {"role": "assistant", "content": None, "tool_calls": [call]}
    result, stray = ({"role": "tool", "tool_call_id": id, "content": id} for id in ("a", "b"))
    messages: Any = [{"role": "user", "content": "Hi"}, stray, asks, {"role": "user", "content": "hm"}, result]
    assert mended(messages) == [messages[0], asks, result, messages[3]]
    first, *others = mended([asks, asks, result])  # a provider may give an id twice
    assert first == asks and others[1:] == [asks, result]
    assert others[0] == {"role": "tool", "tool_call_id": "a", "content": "not run: no result"}


def asking(*ids: str) -> dict[str, Any]:
    calls = [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def answering(id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": id}


def test_a_conversation_is_mended_alike_where_its_beginning_is_known_to_be_valid() -> None:
    prompt, answer = {"role": "user", "content": "Go."}, {"role": "assistant", "content": "Done."}
    valid: Any = [prompt, asking("a", "b"), answering("a"), answering("b"), asking("c"), answering("c"), answer, prompt]
    later: Any = [prompt, asking("d"), *map(answering, "abcd")]
    for cut in range(len(valid) + 1):
        for tail in [[], *([one] for one in later), *([one, other] for one in later for other in later)]:
            assert is_valid(valid[:cut] + tail, cut) == is_valid(valid[:cut] + tail)


def test_rounds_that_are_known_to_be_valid_are_not_read_again() -> None:
    read: list[Any] = []

    class Counted(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            found = super().__getitem__(index)
            read.extend(found if isinstance(index, slice) else [found])
            return found

    rounds = Counted(message for number in range(100) for message in (asking(str(number)), answering(str(number))))
    assert is_valid(rounds, len(rounds)) and len(read) < 10


@pytest.mark.parametrize("again", [False, True], ids=["in the turn", "between turns"])
def test_what_was_valid_is_looked_at_again_where_as_many_messages_stand_in_its_place(again: bool) -> None:
    def swap(agent: Any) -> None:
        messages = agent.current_session["messages"]
        at = next(n for n, message in enumerate(messages) if message["role"] == "tool")
        messages[at] = {"role": "user", "content": "No result."}

    agent = agent_of(*([] if again else [after_tools(swap)]), script=(("look", {"n": 1}), "Done.", "Again."))
    agent.input("Hi")
    if again:
        swap(agent)
        agent.input("And?")
    assert not any(conversation_problems(request.messages) for request in requests_of(agent))
    assert {"role": "user", "content": "No result."} in requests_of(agent)[-1].messages


@pytest.mark.parametrize("resumed", [False, True], ids=["at once", "resumed"])
def test_what_was_valid_is_looked_at_again_where_the_last_result_is_gone(resumed: bool, co_dir: Path) -> None:
    @before_llm
    def cut(agent: Any) -> None:
        if agent.session["messages"][-1]["role"] == "tool":
            agent.session["messages"].pop()

    calls = [("look", {"n": 1}), ("look", {"n": 2})]
    llm = ScriptedLLM(calls, RuntimeError("down") if resumed else "Done.", "Done.")
    agent = Agent("a", [look], llm=llm, plugins=[cut], quiet=True)
    if resumed:
        with pytest.raises(RuntimeError):
            agent.input("Hi")
        agent.resume(agent.record)
    else:
        agent.input("Hi")
    requests = requests_of(agent)
    assert len(requests) == 2 + resumed and not any(conversation_problems(request.messages) for request in requests)
