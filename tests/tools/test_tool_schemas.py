"""Schemas that both wires take, and arguments that fit the function or are explained to the model."""

from __future__ import annotations

import dataclasses
import datetime
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, Union

import pydantic
import pytest
from tool_types import Color, Node, Options, Point

from connectagent.errors import ToolDefinitionError
from connectagent.tools import Tool, tool

if TYPE_CHECKING:
    from connectagent.agents.agent import Agent

WIRE = Path(__file__).parents[3] / "shared" / "wire"


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    return Tool.from_function(function).parameters


def property_of(annotation: Any) -> Any:
    def f(x):  # type: ignore[no-untyped-def]
        return x

    f.__annotations__ = {"x": annotation}
    return schema_of(f)["properties"]["x"]


def bind(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    return Tool.from_function(function).bind(arguments)


def everything(
    text: str,
    maybe: Optional[int] = None,  # noqa: UP045
    kind: Literal["a", "b"] = "a",
    color: Color = Color.RED,
    lists: list[str] | None = None,
    bare: list = [],  # type: ignore[type-arg]  # noqa: B006
    mapping: dict[str, int] = {},  # noqa: B006
    pair: tuple[int, str] | None = None,
    many: tuple[int, ...] = (),
    point: Point | None = None,
    node: Node | None = None,
    options: list[Options] | None = None,
    count: Annotated[int, pydantic.Field(ge=1, description="how often")] = 1,
    said: Annotated[str, "what is said"] = "",
    when: datetime.datetime | None = None,
    path: Path = Path("."),
    any_thing: Any = None,
    unique: set[int] | None = None,
    either: Union[int, str, None] = None,  # noqa: UP007
    title: str = "",
    schema: str = "",
    _hidden: float = 0.5,
    not_optional: int = None,  # type: ignore[assignment]  # noqa: RUF013
    fielded: int = pydantic.Field(3, ge=1, description="from a field"),
    agent: Agent | None = None,
    **more: int,
) -> Agent:
    raise AssertionError


def test_every_kind_of_annotation_gives_a_schema_that_both_wires_take() -> None:
    if not WIRE.exists():
        pytest.skip("the wire fixtures are not here")
    sys.path.insert(0, str(WIRE))
    from replay_server import tool_problems  # type: ignore[import-not-found]

    made = Tool.from_function(everything)
    assert "agent" not in made.parameters["properties"]
    for wire in ("openai-chat", "anthropic-messages"):
        assert [problem.as_dict() for problem in tool_problems(made.name, made.parameters, "tools", wire)] == []


def test_schemas_say_what_the_function_takes() -> None:
    schema = schema_of(everything)
    properties = schema["properties"]
    assert schema["type"] == "object" and schema["required"] == ["text"] and "title" not in schema
    assert schema["additionalProperties"] == {"type": "integer"}
    assert properties["text"] == {"type": "string"} and properties["title"] == {"type": "string", "default": ""}
    assert properties["kind"] == {"enum": ["a", "b"], "type": "string", "default": "a"}
    assert properties["color"]["default"] == "red" and properties["path"]["default"] == "."
    assert properties["count"]["description"] == "how often" and properties["said"]["description"] == "what is said"
    assert properties["fielded"] == {"type": "integer", "minimum": 1, "default": 3, "description": "from a field"}
    assert {"type": "null"} in properties["not_optional"]["anyOf"]
    assert schema["$defs"]["Options"]["required"] == ["deep"]
    assert "title" in schema["$defs"]["Node"]["properties"] and "title" not in schema["$defs"]["Node"]


def test_a_tuple_has_items() -> None:
    pair = property_of(tuple[int, int])
    assert pair["items"] == {"type": "integer"} and pair["minItems"] == pair["maxItems"] == 2
    assert property_of(list)["items"] == {}


def test_a_function_without_parameters_takes_an_empty_object() -> None:
    def now() -> str:
        return ""

    assert schema_of(now) == {"type": "object", "properties": {}, "additionalProperties": False}


GOOGLE = """Find it.

Slowly.

Note:
    Costs.

Args:
    query (str): the words
        to find
    limit: how many

Returns:
    hits
"""
NUMPY = """Find it.

Slowly.

Parameters
----------
query : str
    the words
    to find
limit : int
    how many

Notes
-----
Costs.
"""
REST = """Find it.

Slowly.

:param query: the words
    to find
:param limit: how many
:returns: hits
"""


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, REST], ids=["google", "numpy", "rest"])
def test_docstrings_of_three_styles_describe_tool_and_parameters(doc: str) -> None:
    def find(query: str, limit: int = 3) -> str:
        return query

    find.__doc__ = doc
    made = Tool.from_function(find)
    assert made.description.startswith("Find it.\nSlowly.") and "hits" not in made.description
    assert "Costs." in made.description or "Costs." not in doc
    assert made.parameters["properties"]["query"]["description"] == "the words\nto find"
    assert made.parameters["properties"]["limit"]["description"] == "how many"


@pytest.mark.parametrize("doc", ["Only prose: no sections.", "Say :this: and that\n---\nx", ":param", "Args:\n  x"])
def test_prose_stays_prose(doc: str) -> None:
    def find(query: str) -> str:
        return query

    find.__doc__ = doc
    assert Tool.from_function(find).description


def test_without_a_docstring_the_name_describes() -> None:
    def read_file(path: str) -> str:
        return path

    assert Tool.from_function(read_file).description == "Read file."


# -- what cannot be described to a model ---------------------------------------------------------


def no_annotation(query, limit: int = 3):  # type: ignore[no-untyped-def]
    return query


def varargs(*names: str) -> None: ...


def unresolvable(query: Unknown) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def not_a_type(query: "the words") -> None: ...  # type: ignore  # noqa: F722


def callback(done: Callable[[int], int]) -> None: ...


class Thing:
    def method(self, x: int) -> int:
        return x


def custom(thing: Thing) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (no_annotation, "parameter 'query' has no type annotation"),
        (varargs, "takes '*names'"),
        (unresolvable, "'Unknown' of parameter 'query' cannot be resolved"),
        (not_a_type, "cannot be resolved"),
        (callback, "parameter 'done' is of type"),
        (custom, "parameter 'thing' is of type Thing"),
        (Thing.method, "Pass the method of an instance"),
    ],
)
def test_a_parameter_that_cannot_be_told_is_named_with_its_place(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(ToolDefinitionError) as caught:
        Tool.from_function(function)
    text = str(caught.value)
    assert said in text and function.__name__ in text
    assert f"test_tool_schemas.py:{function.__code__.co_firstlineno}" in text
    assert len(text.splitlines()) <= 5


def test_annotations_of_local_classes_resolve_while_and_after_their_function_runs() -> None:
    @dataclasses.dataclass
    class Local:
        n: int

    def take(local: Local) -> int:
        return local.n

    def make() -> Callable[..., Any]:
        @dataclasses.dataclass
        class Inner:
            n: int

        @tool
        def later(inner: list[Inner]) -> int:
            return inner[0].n

        return later

    assert bind(take, local={"n": 1})["local"].n == 1
    assert bind(make(), inner=[{"n": "2"}])["inner"][0].n == 2


# -- schemas that are given ----------------------------------------------------------------------


def given_tool(parameters: Any, function: Callable[..., Any] = dict) -> Tool:
    return Tool("given", "Given.", parameters, function)


def test_a_given_schema_is_completed_and_not_changed() -> None:
    original: dict[str, Any] = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {
            "xs": {"type": "array"},
            "pair": {"type": ["array", "null"], "items": [{"type": "string"}]},
            "any": True,
        },
        "required": ("xs",),
    }
    before = repr(original)
    made = given_tool(original).parameters
    assert repr(original) == before
    assert made == {
        "type": "object",
        "properties": {
            "xs": {"type": "array", "items": {}},
            "pair": {"type": ["array", "null"], "prefixItems": [{"type": "string"}], "items": {"type": "string"}},
            "any": {},
        },
        "required": ["xs"],
    }
    assert given_tool({}).parameters == {"type": "object", "properties": {}}


def test_combined_schemas_at_the_top_become_one_object() -> None:
    branches = [{"$ref": "#/$defs/A"}, {"properties": {"b": {"type": "string"}}, "required": ["b"]}]
    defs = {"A": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}
    either = given_tool({"anyOf": branches, "$defs": defs}).parameters
    assert "anyOf" not in either and set(either["properties"]) == {"a", "b"} and not either.get("required")
    both = given_tool({"allOf": branches, "$defs": defs}).parameters
    assert both["required"] == ["a", "b"]
    assert given_tool({"$ref": "#/$defs/A", "$defs": defs}).parameters["required"] == ["a"]


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (None, "must be a JSON Schema"),
        ([], "must be a JSON Schema"),
        ({"type": "array"}, "must be 'object'"),
        (
            {"properties": {"q": {"type": "str"}}},
            "parameters.properties.q.type 'str' is not a JSON type: write 'string'",
        ),
        ({"properties": {"q": {"items": {"type": "int"}}}}, "write 'integer'"),
        ({"properties": {"q": {"type": float}}}, "write 'number'"),
        ({"properties": {"q": {"type": "text"}}}, "accepted are string, integer"),
        ({"properties": {"q": {"$ref": "#/$defs/Gone"}}}, "'#/$defs/Gone' leads nowhere"),
        ({"properties": {"q": {"$ref": "http://example.org/x"}}}, "leads nowhere"),
        ({"properties": {"q": "string"}}, "must be a schema"),
        ({"properties": []}, "must be a schema"),
        ({"query": {"type": "string"}}, '"properties"'),
    ],
)
def test_a_given_schema_that_providers_refuse_is_refused_here(parameters: Any, said: str) -> None:
    with pytest.raises(ToolDefinitionError) as caught:
        given_tool(parameters)
    assert said in str(caught.value) and "'given'" in str(caught.value)


def test_the_function_of_a_given_tool_may_take_the_agent() -> None:
    def call(agent: Any, q: str) -> tuple[Any, str]:
        return agent, q

    made = given_tool({"properties": {"q": {"type": "string"}}}, call)
    assert made.run(made.bind({"q": "x"}, agent="me")) == ("me", "x")
