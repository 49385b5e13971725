"""The offline model: deterministic, by rule, never at a loss."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from connectagent.data import LLMResponse
from connectagent.loop.ask import llm_do
from connectagent.models.offline import OfflineLLM

TEXT = {"type": "string"}
NUMBER = {"type": "number"}


def tool(name: str, description: str, /, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


FILES = [
    tool("list_files", "List the files of a folder, one per line, with their sizes.", folder=TEXT),
    tool("count_lines", "Count the lines of a text file.", path=TEXT),
    tool("write_note", "Write a text to a file.", path=TEXT, text=TEXT),
]
LISTED = "LICENSE 1,071 bytes\nREADME.md 1.2 kB\nsrc/main.py 5400 bytes\nsetup.cfg 88 bytes\ndocs/"


def run(prompt: str, tools: list[dict[str, Any]], **results: str) -> tuple[list[tuple[str, dict[str, Any]]], str]:
    """All calls of a turn and the final answer."""
    messages: list[Any] = [{"role": "user", "content": prompt}]
    calls = []
    for _ in range(20):
        response = OfflineLLM().complete(messages, tools)
        if not response.tool_calls:
            return calls, response.content or ""
        (call,) = response.tool_calls
        calls.append((call.name, call.arguments))
        function = {"name": call.name, "arguments": json.dumps(call.arguments)}
        messages.append({"role": "assistant", "tool_calls": [{"id": call.id, "function": function}]})
        messages.append({"role": "tool", "tool_call_id": call.id, "content": results.get(call.name, "ok")})
    raise AssertionError("the offline model does not come to an end")


def test_the_demo_prompt_calls_three_tools_in_order_and_feeds_results_on() -> None:
    prompt = "List the files here, count the lines of the largest one and write a summary to NOTE.md"
    calls, answer = run(prompt, FILES, list_files=LISTED, count_lines="142")
    assert [name for name, _ in calls] == ["list_files", "count_lines", "write_note"]
    assert calls[0][1] == {"folder": "."}
    assert calls[1][1] == {"path": "src/main.py"}
    assert calls[2][1]["path"] == "NOTE.md" and "142" in calls[2][1]["text"]
    assert answer.startswith("[offline]") and "142" in answer


@pytest.mark.parametrize(
    ("listed", "largest"),
    [
        (LISTED, "src/main.py"),
        ('["a.py", "b.py"]', "a.py"),
        ('[{"name": "a.py", "bytes": 3}, {"name": "b.py", "bytes": 30}]', "b.py"),
        ('{"a.py": 3, "b.py": 30}', "b.py"),
        ("12 a.py\n7 b.py", "a.py"),
        ("LICENSE 2000\nb.py 3", "LICENSE"),
        ("nothing here", "."),
    ],
)
def test_the_largest_file_is_found_in_what_a_tool_listed(listed: str, largest: str) -> None:
    calls, _ = run("List the files here and count the lines of the largest", FILES, list_files=listed)
    assert calls[1] == ("count_lines", {"path": largest})


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("How many lines has README.md?", ("count_lines", {"path": "README.md"})),
        ("What files are in the folder 'src'?", ("list_files", {"folder": "src"})),
        ('Write a note "a, b and c" to docs/a.txt.', ("write_note", {"path": "docs/a.txt", "text": "a, b and c"})),
        ("Add 3 and 4.5", ("add", {"a": 3, "b": 4.5})),
        ("What is the weather in Berlin?", ("get_weather", {"city": "Berlin", "unit": "celsius"})),
        ("The weather in Rome in Fahrenheit", ("get_weather", {"city": "Rome in Fahrenheit", "unit": "fahrenheit"})),
        ("Find the retry settings", ("search", {"query": "retry settings"})),
    ],
)
def test_arguments_come_from_the_prompt(prompt: str, expected: tuple[str, dict[str, Any]]) -> None:
    unit = {"type": "string", "enum": ["celsius", "fahrenheit"]}
    tools = [
        *FILES,
        tool("add", "Add two numbers.", a=NUMBER, b=NUMBER),
        tool("get_weather", "The weather of a city.", city=TEXT, unit=unit),
        tool("search", "Search the documentation.", query=TEXT),
    ]
    calls, _ = run(prompt, tools)
    assert calls == [expected]


def test_optional_arguments_are_left_out_and_defaults_kept() -> None:
    parameters = {
        "type": "object",
        "properties": {
            "query": TEXT,
            "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "deep": {"type": "boolean"},
            "tags": {"type": "array", "items": TEXT},
            "mode": {"$ref": "#/$defs/Mode"},
        },
        "required": ["query", "deep", "tags", "mode"],
        "$defs": {"Mode": {"enum": ["fast", "slow"]}},
    }
    search = {"type": "function", "function": {"name": "search", "parameters": parameters}}
    calls, _ = run("Search for cats", [search])
    assert calls == [("search", {"query": "cats", "deep": True, "tags": [], "mode": "fast"})]


def test_a_prompt_that_names_no_tool_gets_a_plain_answer() -> None:
    calls, answer = run("Tell me a joke", FILES)
    assert calls == [] and answer.startswith("[offline]") and "list_files" in answer


def test_a_second_turn_begins_anew() -> None:
    messages: list[Any] = [
        {"role": "user", "content": "List the files here"},
        {"role": "assistant", "tool_calls": [{"id": "offline_1", "function": {"name": "list_files"}}]},
        {"role": "tool", "tool_call_id": "offline_1", "content": LISTED},
        {"role": "user", "content": "a handler's reflection"},
    ]
    response = OfflineLLM().complete(messages, FILES)
    assert response.tool_calls is None
    messages += [{"role": "assistant", "content": response.content}, {"role": "user", "content": "Count lines of a.py"}]
    response = OfflineLLM().complete(messages, FILES)
    assert response.tool_calls is not None
    assert (response.tool_calls[0].id, response.tool_calls[0].arguments) == ("offline_2", {"path": "a.py"})


def test_the_stream_is_the_text_word_by_word() -> None:
    pieces: list[str] = []
    response = OfflineLLM().stream([{"role": "user", "content": "hi"}], on_text=pieces.append)
    assert "".join(pieces) == response.content and len(pieces) > 5


def test_structured_answers_are_filled_by_rule() -> None:
    class Trip(BaseModel):
        city: str
        days: int

    assert llm_do("3 days in Rome", output=Trip, model="offline") == Trip(city="Rome", days=3)


KEYS = "type text function id name arguments properties required enum items anyOf $ref"
odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS.split(" ")), inner, max_size=4),
    max_leaves=8,
)
odd_message = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"])},
    optional={
        "content": odd | st.just("list files in a.txt and write 3 notes"),
        "tool_calls": odd,
        "tool_call_id": odd,
    },
)
odd_tool = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": st.sampled_from(["list_files", "write", "x"]), "parameters": odd})}
)


@settings(max_examples=300, deadline=None)
@given(st.lists(odd_message, max_size=5), st.lists(odd_tool | st.just({}), max_size=3))
def test_no_conversation_makes_it_raise(messages: list[Any], tools: list[Any]) -> None:
    response = OfflineLLM().complete(messages, tools)
    assert isinstance(response, LLMResponse)
    assert response == OfflineLLM().complete(messages, tools)
    json.dumps([call.arguments for call in response.tool_calls or []])
