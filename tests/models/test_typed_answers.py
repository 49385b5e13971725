"""Typed results against servers that refuse by the rules that their providers publish, over the real SDKs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, HttpUrl
from schema_rules import as_asked, enforced_problems, resolved, strict_problems, tool_problems, unresolved
from wire_server import Answer, WireServer, chat, message, response, tool_use

from connectagent import Agent, LLMResponse, ProviderError, llm_do
from connectagent.models.anthropic import AnthropicLLM
from connectagent.models.json_text import json_in, objects_in
from connectagent.models.openai import OpenAILLM
from connectagent.models.output_forms import OutputForm
from connectagent.models.responses import ResponsesLLM
from connectagent.models.strict_schemas import ANTHROPIC, OPENAI, OPENAI_FINE_TUNED

LONG = "a_name_that_is_longer_than_" + "x" * 43  # 70 letters


class Node(BaseModel):
    """A tree."""

    name: str
    children: list[Node] = []


class Odd(BaseModel):
    """What strict mode has no keywords for."""

    page: HttpUrl
    file: Path
    raw: bytes
    tags: set[str]
    code: str = Field(min_length=2, max_length=4, pattern="^[a-z]+$")
    price: Decimal
    share: float = Field(gt=0, le=1)
    pair: list[int] = Field(min_length=2, max_length=2)


class Part(BaseModel):
    """A part."""

    size: int = Field(alias="größe")


class Names(BaseModel):
    score: int = Field(alias="score (1-5)", ge=1, le=5)
    long: str = Field(alias="a_name_that_is_longer_than_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx")
    part: Part = Field(alias="ein teil", description="The part that counts.")
    parts: list[Part] = Field(alias="alle teile")
    other: Part | None = Field(None, alias="noch eins")


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


class Pet(BaseModel):
    animal: Annotated[Cat | Dog, Field(discriminator="kind")]


class Counts(BaseModel):
    counts: dict[str, int]


VALUES: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (Node, {"name": "a", "children": [{"name": "b", "children": []}]}),
    (
        Odd,
        {
            "page": "https://example.com/",
            "file": "/tmp/x",
            "raw": "abc",
            "tags": ["a", "b"],
            "code": "abc",
            "price": "12.50",
            "share": 0.5,
            "pair": [1, 2],
        },
    ),
    (
        Names,
        {
            "score (1-5)": 3,
            LONG: "x",
            "ein teil": {"größe": 1},
            "alle teile": [{"größe": 2}, {"größe": 3}],
            "noch eins": {"größe": 4},
        },
    ),
    (Pet, {"animal": {"kind": "dog", "tricks": ["sit"]}}),
    (Counts, {"counts": {"größe": 1, "b": 2}}),
]
# Those that refuse a forced tool come last.
CLAUDES = ["claude-3-7-sonnet-20250219", "claude-sonnet-4-5", "claude-opus-5", "claude-fable-5-1", "claude-sonnet-5-5"]
FORCED = CLAUDES[:3]
ENFORCED = CLAUDES[1:]


class TypedServer(WireServer):
    """A server that refuses by the published rules, and answers with a value in the form that it was asked for.

    Args:
        value: the value, with the names of its model.
        takes: the ways in which it can be asked: `strict`, `schema`, `tool`, `output_config`, `words`.
        refusal: what it says of others.
    """

    def __init__(self, value: dict[str, Any], *takes: str, refusal: str = "Invalid request.") -> None:
        super().__init__(Answer())
        self.value, self.takes, self.refusal = value, takes, refusal
        self.ways: list[str] = []
        self.refused: list[str] = []

    def __enter__(self) -> TypedServer:
        super().__enter__()
        return self

    def _reply(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        body = self.requests[-1]
        wire = "anthropic" if "max_tokens" in body else "responses" if "input" in body else "chat"
        way, schema = self._asked(body)
        self.ways.append(way)
        problem = next(self._problems(way, schema, body), None)
        if problem is not None:
            self.refused.append(problem)
            super()._reply(handler, Answer({"error": {"type": "invalid_request_error", "message": problem}}, 400))
            return
        value = as_asked(self.value, schema, schema) if schema else self.value
        super()._reply(handler, self._answer(wire, way, value, body))

    def _asked(self, body: Any) -> tuple[str, Any]:
        chat_form = (body.get("response_format") or {}).get("json_schema") or (body.get("text") or {}).get("format")
        if chat_form:
            return "strict" if chat_form.get("strict") else "schema", chat_form["schema"]
        if body.get("output_config"):
            return "output_config", body["output_config"]["format"]["schema"]
        if body.get("tool_choice", {}).get("type") in ("any", "tool"):
            return "tool", body["tools"][-1]["input_schema"]
        return "words", None

    def _problems(self, way: str, schema: Any, body: Any) -> Iterator[str]:
        if way not in self.takes:
            yield self.refusal
        if way == "strict":
            yield from (f"Invalid schema for response_format: {one}" for one in strict_problems(schema))
        if way == "output_config":
            yield from (f"output_config.format.schema: {one}" for one in enforced_problems(schema))
        if way == "tool":
            thinks = (body.get("thinking") or {}).get("type") == "enabled"
            if thinks or body["model"] not in FORCED:
                yield "Thinking may not be enabled when tool_choice forces tool use."
            yield from (f"tools.0.custom.input_schema: {one}" for one in tool_problems(schema))
        if schema is not None:
            yield from unresolved(schema, schema)

    def _answer(self, wire: str, way: str, value: Any, body: Any) -> Answer:
        text = json.dumps(value, ensure_ascii=False)
        if wire == "chat":
            return chat(text)
        if wire == "responses":
            content = [{"type": "output_text", "text": text}]
            return response({"type": "message", "role": "assistant", "status": "completed", "content": content})
        if way == "tool":
            return message({**tool_use("t", body["tools"][-1]["name"]), "input": value}, stop="tool_use")
        return message(text)


def llm_at(server: WireServer, wire: str, model: str = "gpt-5-mini", **options: Any) -> Any:
    if wire == "anthropic":
        return AnthropicLLM(model, api_key="k", base_url=server.url, options=options)
    kind = OpenAILLM if wire == "chat" else ResponsesLLM
    return kind(model, api_key="k", base_url=server.openai_url, options=options)


def read(output: type[BaseModel], value: Any) -> Any:
    return output.model_validate_json(json.dumps(value))


# -- by the published rules ------------------------------------------------------------------------


@pytest.mark.parametrize(("output", "value"), VALUES, ids=lambda one: getattr(one, "__name__", ""))
@pytest.mark.parametrize("wire", ["chat", "responses"])
@pytest.mark.parametrize("model", ["gpt-5-mini", "ft:gpt-4o:me::1"])
def test_what_openai_is_asked_for_keeps_its_rules(
    wire: str, model: str, output: type[BaseModel], value: dict[str, Any]
) -> None:
    with TypedServer(value, "strict", "schema") as server:
        assert llm_do("?", output=output, llm=llm_at(server, wire, model)) == read(output, value)
    assert server.ways == ["schema" if output is Counts else "strict"] and not server.refused


@pytest.mark.parametrize(("output", "value"), VALUES, ids=lambda one: getattr(one, "__name__", ""))
@pytest.mark.parametrize("thinks", [False, True], ids=["", "thinking"])
@pytest.mark.parametrize("model", CLAUDES)
def test_what_a_claude_model_is_asked_for_keeps_its_rules(
    model: str, thinks: bool, output: type[BaseModel], value: dict[str, Any]
) -> None:
    options = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if thinks else {}
    takes = [*(["tool"] if model in FORCED else []), *(["output_config"] if model in ENFORCED else []), "words"]
    with TypedServer(value, *takes) as server:
        assert llm_do("?", output=output, llm=llm_at(server, "anthropic", model, **options)) == read(output, value)
    has_form = output not in (Node, Counts)  # nothing that refers to itself, and no free keys
    way = "output_config" if model in ENFORCED and has_form else "words"
    assert server.ways == ["tool" if model in FORCED and not thinks else way] and not server.refused


def test_a_description_stands_beside_no_reference() -> None:
    form = OutputForm.of(Names).enforced(OPENAI)
    assert form is not None
    part = form["properties"]["ein teil"]
    assert part["description"] == "The part that counts." and part["anyOf"] == [{"$ref": "#/$defs/Part"}]


def test_what_is_left_out_is_told_in_the_description() -> None:
    form = OutputForm.of(Odd).enforced(OPENAI)
    assert form is not None
    said = {name: one.get("description") for name, one in form["properties"].items()}
    assert "format: uri" in said["page"] and "uniqueItems: true" in said["tags"]
    assert said["code"] == "(maxLength: 4, minLength: 2)"
    assert form["properties"]["code"]["pattern"] == "^[a-z]+$"
    assert said["share"] is None and form["properties"]["share"]["exclusiveMinimum"] == 0
    plain = OutputForm.of(Odd).enforced(OPENAI_FINE_TUNED)
    assert plain is not None and "exclusiveMinimum" not in plain["properties"]["share"]


def test_what_was_left_out_is_checked_all_the_same() -> None:
    wrong, good = {**VALUES[1][1], "code": "b"}, VALUES[1][1]
    with WireServer(chat(json.dumps(wrong)), chat(json.dumps(good))) as server:
        assert llm_do("?", output=Odd, llm=llm_at(server, "chat")) == read(Odd, good)
    assert "code" in server.requests[1]["messages"][-1]["content"]


def test_a_recursive_model_is_sent_whole() -> None:
    for sent in (OutputForm.of(Node).schema, OutputForm.of(Node).enforced(OPENAI)):
        assert sent is not None and sent["type"] == "object"
        assert list(unresolved(sent, sent)) == [] and resolved(sent, "#/$defs/Node") is not None
    assert OutputForm.of(Node).enforced(ANTHROPIC) is None


def test_a_schema_that_is_too_large_is_not_enforced() -> None:
    class Wide(BaseModel):
        __annotations__ = {f"f{number}": int for number in range(5001)}

    assert OutputForm.of(Wide).enforced(OPENAI) is None


def test_the_tool_for_an_answer_has_a_name_of_its_own() -> None:
    def names() -> str:
        """A tool that is called like the form."""
        return "x"

    value = VALUES[2][1]
    with TypedServer(value, "tool") as server:
        tools = [{"type": "function", "function": {"name": "Names", "parameters": {"type": "object"}}}]
        answer = llm_at(server, "anthropic", FORCED[1]).complete(
            [{"role": "user", "content": "?"}], tools, output=Names
        )
    assert [tool["name"] for tool in server.requests[0]["tools"]] == ["Names", "Names_answer"]
    assert answer.tool_calls is None and json.loads(answer.content) == value


# -- what is refused all the same, and remembered ----------------------------------------------------

REFUSALS = [
    "response_format is not supported",
    "This model does not do that.",
    "Bad request",
    "'tools' and structured output cannot be combined",
    "Thinking mode does not support this tool_choice",
]


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize(
    ("wire", "model"),
    [("chat", "m"), ("responses", "m"), ("anthropic", "claude-sonnet-4-5"), ("anthropic", "claude-fable-5-1")],
)
def test_any_refusal_of_a_form_is_answered_in_words_and_remembered(wire: str, model: str, refusal: str) -> None:
    value = VALUES[3][1]
    with TypedServer(value, "words", refusal=refusal) as server:
        agent = Agent("a", llm=llm_at(server, wire, model), log=False, quiet=True)
        assert agent.input("?", output=Pet) == read(Pet, value)
        refused = len(server.refused)
        assert refused >= 1 and server.ways[-1] == "words"
        (call,) = (entry for entry in agent.session["trace"] if entry["type"] == "llm_call")
        assert call["status"] == "success" and "was refused as" in str(call["request"]["adapted"])
        assert agent.input("?", output=Pet) == read(Pet, value)
        assert llm_do("?", output=Pet, llm=llm_at(server, wire, model)) == read(Pet, value)
        assert Agent("b", llm=llm_at(server, wire, model), output=Pet, log=False, quiet=True).input("?")
        assert len(server.refused) == refused
        assert "JSON Schema" in json.dumps(server.requests[-1])


def test_a_server_that_refuses_strict_is_asked_with_the_schema_alone() -> None:
    value = VALUES[3][1]
    with TypedServer(value, "schema", refusal="Unknown field: strict") as server:
        for _ in range(2):
            assert llm_do("?", output=Pet, llm=llm_at(server, "chat")) == read(Pet, value)
    assert server.ways == ["strict", "schema", "schema"]


def test_a_claude_model_that_refuses_a_forced_tool_is_asked_otherwise() -> None:
    value = VALUES[3][1]
    with TypedServer(value, "output_config") as server:
        for _ in range(2):
            assert llm_do("?", output=Pet, llm=llm_at(server, "anthropic", "claude-sonnet-4-5")) == read(Pet, value)
    assert server.ways == ["tool", "output_config", "output_config"]


def test_another_form_is_asked_for_anew() -> None:
    with TypedServer(VALUES[3][1], "words", "strict") as server:
        server.takes = ("words",)
        llm_do("?", output=Pet, llm=llm_at(server, "chat"))
        server.takes, server.value = ("strict",), VALUES[0][1]
        llm_do("?", output=Node, llm=llm_at(server, "chat"))
    assert server.ways == ["strict", "words", "strict"]


def test_what_is_refused_in_words_too_is_the_first_error() -> None:
    with TypedServer({}, refusal="No.") as server, pytest.raises(ProviderError, match="No") as caught:
        llm_do("?", output=Pet, llm=llm_at(server, "chat"))
    assert caught.value.kind == "bad_request" and server.ways == ["strict", "words"]
    with TypedServer(VALUES[3][1], "strict") as server:  # and nothing was learnt of it
        assert llm_do("?", output=Pet, llm=llm_at(server, "chat"))


@pytest.mark.parametrize(
    "text",
    [
        "Unsupported value: 'temperature' does not support 0.2",
        "max_tokens: 9000 > 8192, which is the maximum",
        "messages.0.content.0.image.source.base64: image exceeds 5 MB maximum",
    ],
)
def test_an_error_that_names_something_else_is_not_about_the_form(text: str) -> None:
    with TypedServer({}, refusal=text) as server, pytest.raises(ProviderError):
        llm_do("?", output=Pet, llm=llm_at(server, "chat"))
    assert server.ways == ["strict"]


def test_a_model_of_ones_own_that_refuses_a_form_is_remembered_too() -> None:
    class Mine:
        model = "mine"

        def __init__(self) -> None:
            self.asked: list[bool] = []

        def complete(self, messages: list[Any], tools: Any = None, *, output: Any = None) -> LLMResponse:
            self.asked.append(output is not None)
            if output is not None:
                raise ProviderError("no", kind="bad_request", provider="mine", status=400)
            return LLMResponse(json.dumps(VALUES[3][1]))

    mine = Mine()
    agent = Agent("a", llm=mine, log=False, quiet=True)
    agent.input("?", output=Pet)
    agent.input("?", output=Pet)
    assert mine.asked == [True, False, False]


# -- the last whole object that fits -----------------------------------------------------------------

PET = '{"animal": {"kind": "cat", "lives": 9}}'
DRAFT = '{"animal": {"kind": "cat", "lives": 1}}'
ANSWERS = {
    "alone": PET,
    "thought": f"<think>{DRAFT}</think>{PET}",
    "thought without its begin": f"perhaps {DRAFT}</think>\n{PET}",
    "thinking": f"<thinking>\n{DRAFT}\n</thinking>\n\n{PET}",
    "two fences": f"First:\n```json\n{DRAFT}\n```\nBetter:\n```json\n{PET}\n```",
    "text behind": f"{PET}\nThat is {{my}} answer; ask for {{more}}.",
    "braces before": f"In {{braces}} you get {{ a set }}: {PET}",
    "another object behind": f'{PET}\nNot to be taken for {{"x": 1}}.',
    "broken first": f'{{"animal": {{"kind" "cat"}}}} no, {PET}',
    "a tag in a string": '{"animal": {"kind": "dog", "tricks": ["</think>"]}}',
    "mark": f"\ufeff{PET}",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_last_whole_object_that_fits_is_taken(name: str) -> None:
    wanted = Dog(kind="dog", tricks=["</think>"]) if "string" in name else Cat(kind="cat", lives=9)
    with WireServer(chat(ANSWERS[name])) as server:
        found = llm_do("?", output=Pet, llm=llm_at(server, "chat"))
    assert found.animal == wanted and len(server.requests) == 1


class Defaults(BaseModel):
    title: str = "untitled"
    items: list[str] = []


@pytest.mark.parametrize(
    "text",
    [
        '{"title": "Rep',
        '{"title": "Report" "items": [{"a": 1}]}',
        '{"title": "Report", "items": [{"title": "x"}',
        '<think>{"title": "draft"}</think>{"title": "Report" "items": []}',
        '<think>{"title": "draft"}',
        '<think>{"title": "draft"}</think>',
        "no JSON",
    ],
)
def test_a_broken_object_has_no_object_of_defaults_in_it(text: str) -> None:
    with WireServer(chat(text), chat('{"title": "x"}')) as server:
        assert llm_do("?", output=Defaults, llm=llm_at(server, "chat")).title == "x"
    assert len(server.requests) == 2


@pytest.mark.parametrize("seed", range(300))
def test_objects_are_found_whatever_stands_around_them(seed: int) -> None:
    random = Random(seed)

    def value(depth: int = 0) -> Any:
        kind = random.choice(("text", "number", "list", "object")) if depth < 3 else "text"
        if kind == "list":
            return [value(depth + 1) for _ in range(random.randint(0, 3))]
        if kind == "object":
            return {value(9): value(depth + 1) for _ in range(random.randint(0, 3))}
        return random.randint(0, 9) if kind == "number" else "".join(random.choices('a"{}[]\\<>/ \n```', k=5))

    prose = ["Here: ", "```json\n", "\n```\n", "{so} it is, ", "f(x) { return }\n", "['a'] ", "", "<b>", "it's "]
    objects = [{value(9): value()} for _ in range(random.randint(1, 4))]
    text = "".join(random.choice(prose) + json.dumps(one, ensure_ascii=random.random() < 0.5) for one in objects)
    assert [json.loads(one) for one in reversed(json_in(text))] == objects


def test_a_broken_object_is_sent_back_with_the_place_where_it_breaks() -> None:
    with WireServer(chat('Sure: {"title": "a" "items": []}'), chat('{"title": "x"}')) as server:
        llm_do("?", output=Defaults, llm=llm_at(server, "chat"))
    assert "line 1 column 15" in server.requests[1]["messages"][-1]["content"]


def test_a_long_text_of_braces_takes_no_time() -> None:
    assert objects_in('{"a":' * 50_000) == []
    assert objects_in('{ "' * 100_000) == []
    assert len(objects_in('{"a" 1}' * 20_000 + "{}")) == 1
