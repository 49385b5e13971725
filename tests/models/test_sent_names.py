"""Names, keywords and descriptions that a provider does not take: adapted on the wire, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field
from schema_rules import tool_problems
from wire_server import WireServer, chat, message, tool_use

from connectagent import Agent, Tool, ToolCall, ToolRejected, before_each_tool, llm_do
from connectagent.models.anthropic import AnthropicLLM
from connectagent.models.limits import LIMITS, limits_of
from connectagent.models.openai import OpenAILLM
from connectagent.models.property_names import PropertyNames
from connectagent.models.tool_schemas import sendable_schema, sendable_tools

PATTERN = LIMITS["anthropic"].property_names
assert PATTERN is not None
LONG = "n" * 70
ORDER = {
    "type": "object",
    "properties": {
        "größe": {"type": "integer"},
        LONG: {"type": "array", "items": {"$ref": "#/$defs/Item"}},
        "nested": {"anyOf": [{"$ref": "#/$defs/Item"}, {"type": "null"}]},
        "free": {"type": "object", "additionalProperties": {"$ref": "#/$defs/Item"}},
        "like": {"$ref": "#/properties/größe"},
    },
    "required": ["größe", LONG],
    "dependentRequired": {"größe": [LONG]},
    "$defs": {
        "Item": {
            "type": "object",
            "properties": {"score (1-5)": {"type": "integer"}, "next": {"$ref": "#/$defs/Item"}},
            "required": ["score (1-5)"],
        }
    },
}
OWN = {
    "größe": 1,
    LONG: [{"score (1-5)": 2, "next": {"score (1-5)": 3}}],
    "nested": {"score (1-5)": 4},
    "free": {"größe": {"score (1-5)": 5}, "gr__e": {"score (1-5)": 6}},
    "like": 7,
}


def test_names_are_mapped_at_every_level_and_keys_that_are_data_stay() -> None:
    assert PATTERN is not None
    names = PropertyNames(ORDER, PATTERN)
    assert names.sent == {"größe": "gr__e", LONG: "n" * 64, "score (1-5)": "score__1-5_"}
    sent = names.sent_value(OWN)
    assert sent == {
        "gr__e": 1,
        "n" * 64: [{"score__1-5_": 2, "next": {"score__1-5_": 3}}],
        "nested": {"score__1-5_": 4},
        "free": {"größe": {"score__1-5_": 5}, "gr__e": {"score__1-5_": 6}},
        "like": 7,
    }
    assert names.own_value(sent) == OWN
    assert names.schema["required"] == ["gr__e", "n" * 64]
    assert names.schema["dependentRequired"] == {"gr__e": ["n" * 64]}
    assert names.schema["properties"]["like"] == {"$ref": "#/properties/gr__e"}
    assert names.schema["properties"]["gr__e"]["title"] == "größe"
    assert list(tool_problems(names.schema)) == []


def test_a_schema_whose_names_are_accepted_stays_itself() -> None:
    assert PATTERN is not None
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    names = PropertyNames(schema, PATTERN)
    value = {"a": 1}
    assert names.schema is schema and names.own_value(value) is value


def random_schema(random: Random, depth: int = 0) -> tuple[dict[str, Any], Any]:
    """A schema with odd names, and a value of it."""
    kind = random.choice(("leaf", "list", "object", "either", "map", "ref")) if depth < 4 else "leaf"
    if kind == "list":
        items, value = random_schema(random, depth + 1)
        return {"type": "array", "items": items}, [value] * random.randint(0, 2)
    if kind == "either":
        inner, value = random_schema(random, depth + 1)
        return {"anyOf": [inner, {"type": "null"}]}, random.choice((value, None))
    if kind == "map":
        inner, value = random_schema(random, depth + 1)
        return {"type": "object", "additionalProperties": inner}, {random.choice(NAMES): value}
    if kind == "object":
        return random_object(random, depth)
    if kind == "ref":
        return {"$ref": "#/$defs/Shared"}, {"ü ü": 1}
    return {"type": "integer"}, random.randint(0, 9)


NAMES = ("größe", "gr__e", "score (1-5)", "score__1-5_", "a", "$filter", "_filter", LONG, "n" * 64, "ü ü", "é", "e b")


def random_object(random: Random, depth: int = 0) -> tuple[dict[str, Any], Any]:
    names = random.sample(NAMES, random.randint(1, 5))
    parts = {name: random_schema(random, depth + 1) for name in names}
    schema = {"type": "object", "properties": {name: one[0] for name, one in parts.items()}, "required": names}
    return {**schema, "additionalProperties": False}, {name: one[1] for name, one in parts.items()}


@pytest.mark.parametrize("seed", range(150))
def test_any_value_comes_back_as_it_was_and_fits_on_both_sides(seed: int) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="it judges the schemas")
    assert PATTERN is not None
    schema, value = random_object(Random(seed))
    schema["$defs"] = {"Shared": {"type": "object", "properties": {"ü ü": {"type": "integer"}}}}
    names = PropertyNames(schema, PATTERN)
    sent = names.sent_value(value)
    assert names.own_value(sent) == value
    assert all(map(PATTERN.fullmatch, names.schema["properties"]))
    jsonschema.validate(value, schema)
    jsonschema.validate(sent, names.schema)


def test_guards_functions_and_the_record_see_the_original_names(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path))
    assert PATTERN is not None
    seen: list[Any] = []
    sent = PropertyNames(ORDER, PATTERN).sent_value(OWN)

    @before_each_tool
    def guard(tool_call: ToolCall) -> None:
        seen.append(json.loads(json.dumps(tool_call.arguments)))
        if tool_call.arguments["größe"] > 1:
            raise ToolRejected("Too large.")

    def order(**arguments: Any) -> str:
        seen.append(arguments)
        return "ordered"

    tool = Tool("order", "Order.", ORDER, order)
    calls = [
        {**tool_use("t1", "order"), "input": sent},
        {**tool_use("t2", "order"), "input": {**sent, "gr__e": 9}},
    ]
    with WireServer(message(*calls, stop="tool_use"), message("Done.")) as server:
        llm = AnthropicLLM("claude-sonnet-4-5", api_key="k", base_url=server.url)
        agent = Agent("a", [tool], llm=llm, on_events=[guard], quiet=True)
        assert agent.input("Order.") == "Done."
    assert seen == [OWN, OWN, {**OWN, "größe": 9}] or seen == [OWN, {**OWN, "größe": 9}, OWN]
    entries = [entry for entry in agent.session["trace"] if entry["type"] == "tool_execution"]
    assert [entry["arguments"]["größe"] for entry in entries] == [1, 9]
    assert [entry["status"] for entry in entries] == ["success", "rejected"]
    assert list(tool_problems(server.requests[0]["tools"][0]["input_schema"])) == []
    history = [block["input"] for block in server.requests[1]["messages"][1]["content"] if block["type"] == "tool_use"]
    assert history == [sent, {**sent, "gr__e": 9}]
    assert agent.record is not None and 'gr__e\\": 1' not in agent.record.read_text()


def test_thoughts_go_back_with_a_call_whose_names_were_mapped() -> None:
    assert PATTERN is not None
    sent = PropertyNames(ORDER, PATTERN).sent_value(OWN)
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    tool = Tool("order", "Order.", ORDER, lambda **arguments: "ordered")
    with WireServer(
        message(thought, {**tool_use("t1", "order"), "input": sent}, stop="tool_use"), message("Done.")
    ) as server:
        llm = AnthropicLLM("claude-sonnet-4-5", api_key="k", base_url=server.url)
        assert Agent("a", [tool], llm=llm, quiet=True, log=False).input("Order.") == "Done."
    back = server.requests[1]["messages"][1]["content"]
    assert back[0] == thought and back[1]["input"] == sent


# -- keywords ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"divisibleBy": 5}, {"multipleOf": 5}),
        ({"dependencies": {"a": ["b"]}}, {"dependentRequired": {"a": ["b"]}}),
        ({"dependencies": {"a": {"required": ["b"]}}}, {"dependentSchemas": {"a": {"required": ["b"]}}}),
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "nullable": False}, {"type": "string"}),
        ({"type": "string", "nullable": True, "enum": ["a"]}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"type": "number", "minimum": 0, "exclusiveMinimum": True}, {"type": "number", "exclusiveMinimum": 0}),
    ],
)
def test_keywords_of_older_drafts_are_translated(old: dict[str, Any], new: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="it judges the schemas")
    made, dropped = sendable_schema({"type": "object", "properties": {"x": old}})
    assert made["properties"]["x"] == new and dropped == []
    jsonschema.Draft202012Validator.check_schema(made)


class Priced(BaseModel):
    """A form whose schema is of draft 4, by hand."""

    model_config = ConfigDict(json_schema_extra={"definitions": {}, "id": "http://example.com/priced"})

    price: float = Field(json_schema_extra={"minimum": 0, "exclusiveMinimum": True, "maxLength": -1})


def test_a_typed_result_goes_through_the_checks_of_tools() -> None:
    with WireServer(chat('{"price": 1}')) as server:
        agent = Agent("a", llm=OpenAILLM("m", api_key="k", base_url=server.openai_url), log=False, quiet=True)
        assert agent.input("?", output=Priced) == Priced(price=1)
    sent = server.requests[0]["response_format"]["json_schema"]["schema"]
    assert sent["properties"]["price"] == {"type": "number", "title": "Price", "exclusiveMinimum": 0}
    (call,) = (entry for entry in agent.session["trace"] if entry["type"] == "llm_call")
    assert any("maxLength" in text for text in call["request"]["adapted"])


def test_a_typed_result_of_odd_names_is_read_by_ones_own() -> None:
    class Rated(BaseModel):
        score: int = Field(alias="score (1-5)")

    answer = {**tool_use("t", "Rated"), "input": {"score__1-5_": 3}}
    with WireServer(message(answer, stop="tool_use")) as server:
        llm = AnthropicLLM("claude-sonnet-4-5", api_key="k", base_url=server.url)
        assert llm_do("?", output=Rated, llm=llm).score == 3
    assert list(tool_problems(server.requests[0]["tools"][0]["input_schema"])) == []


# -- descriptions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "own_address", "length"),
    [("openai", False, 1024), ("openai", True, 3000), ("openai-responses", False, 3000), ("anthropic", False, 3000)],
)
def test_a_description_is_cut_only_for_who_demands_it_and_said(provider: str, own_address: bool, length: int) -> None:
    function = {"name": "long", "description": "word " * 600, "parameters": {"type": "object", "properties": {}}}
    sent = sendable_tools([{"type": "function", "function": function}], limits_of(provider, own_address))
    assert len(sent.tools[0]["function"]["description"]) == length
    notes = ["tool 'long': its description is cut to 1,024 of 3,000 characters"]
    assert sent.notes == (notes if length == 1024 else [])
