"""Arguments that a model sends fit the function, or it is told what is wrong with them."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Annotated, Any

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_types import Color, Node, Options, Point

from connectagent.errors import ToolArgumentsError
from connectagent.tools import Tool


def bind(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    return Tool.from_function(function).bind(arguments)


def refused(made: Callable[..., Any] | Tool, arguments: Any) -> str:
    made = made if isinstance(made, Tool) else Tool.from_function(made)
    with pytest.raises(ToolArgumentsError) as caught:
        made.bind(arguments)
    return str(caught.value)


def configure(
    text: str,
    color: Color = Color.RED,
    node: Node | None = None,
    options: list[Options] | None = None,
    pair: tuple[int, str] | None = None,
    either: float | list[str] | None = None,
    when: datetime.datetime | None = None,
    count: Annotated[int, pydantic.Field(ge=1)] = 1,
    fielded: int = pydantic.Field(3, ge=1),
    agent: object = None,
    **more: int,
) -> None: ...


def find(query: str, limit: int = 3, tags: list[str] | None = None, point: Point | None = None) -> str:
    return query


def test_arguments_are_coerced_and_defaults_left_to_the_function() -> None:
    assert bind(find, query="x", limit="4") == {"query": "x", "limit": 4}
    assert bind(find, query=94110, limit=2.0) == {"query": "94110", "limit": 2}
    assert bind(find, query="x", tags='["a", "b"]', point='{"x": 1}')["point"] == Point(1)
    bound = bind(configure, text="x", options=[{"deep": 1}], color="blue", extra="7", node={"title": "t"})
    assert bound["extra"] == 7 and bound["fielded"] == 3 and bound["color"] is Color.BLUE and bound["agent"] is None


def test_the_agent_goes_to_the_parameter_agent() -> None:
    def who(agent) -> Any:  # type: ignore[no-untyped-def]
        return agent

    made = Tool.from_function(who)
    assert made.takes_agent and made.run(made.bind({}, agent="me")) == "me"
    assert "there is no such parameter" in refused(made, {"agent": "another"})


def test_wrong_arguments_are_each_named_with_what_was_sent_and_what_is_accepted() -> None:
    text = refused(find, {"querry": "x", "limit": "many", "tags": ["a", {"b": 1}], "point": {"x": "q", "z": 1}})
    assert "- query: missing, but required" in text
    assert "- querry: there is no such parameter; did you mean 'query'?" in text
    assert "- limit: Input should be a valid integer" in text and '(you sent "many")' in text
    assert '- tags[1]: Input should be a valid string (you sent {"b": 1})' in text
    assert "- point.x: " in text and "- point.z: there is no such key" in text
    assert "It takes: query (string, required), limit (integer), tags (list of string or null)" in text


def test_a_list_or_text_instead_of_an_object_is_explained() -> None:
    for sent in ([1], "x", None, 5):
        assert "must be a JSON object" in refused(find, sent)


def test_what_was_sent_is_shortened_and_harmless() -> None:
    text = refused(find, {"query": "x", "limit": "y\ud800" * 1_000_000})
    assert len(text) < 1_000
    text.encode()
    assert refused(find, {f"k{i}": i for i in range(100)}).count("\n") < 15


def test_validators_that_raise_anything_are_errors_of_the_arguments() -> None:
    class Odd(pydantic.BaseModel):
        n: int

        @pydantic.field_validator("n")
        @classmethod
        def check(cls, n: int) -> int:
            return {1: 1}[n]

    def take(odd: Odd) -> None: ...

    assert "KeyError" in refused(take, {"odd": {"n": 2}})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
argument_names = st.sampled_from(list(Tool.from_function(configure).parameters["properties"])) | st.text(max_size=5)


@settings(max_examples=300, deadline=None)
@given(arguments=st.dictionaries(argument_names, json_values, max_size=6))
def test_any_arguments_bind_or_are_explained(arguments: dict[str, Any]) -> None:
    made = Tool.from_function(configure)
    try:
        made.bind(arguments)
    except ToolArgumentsError as error:
        assert len(str(error)) < 6_000
        str(error).encode()


def test_given_schemas_check_names_and_types_and_change_nothing() -> None:
    kinds = {"s": "string", "i": "integer", "n": "number", "b": "boolean", "a": "array", "o": "object", "z": "null"}
    made = Tool(
        "given",
        "",
        {
            "properties": {**{key: {"type": kind} for key, kind in kinds.items()}, "e": {"enum": ["x", "y"]}},
            "required": ["s"],
            "additionalProperties": False,
        },
        dict,
    )
    good = {"s": "", "i": 3.0, "n": 1, "b": True, "a": [], "o": {}, "z": None, "e": "x"}
    assert made.bind(good) == good
    text = refused(made, {"i": True, "n": "1", "b": 1, "a": {}, "o": [], "z": 0, "e": "w", "sx": "?"})
    for line in ("s: missing", "i: must be integer (you sent true)", 'n: must be number (you sent "1")'):
        assert f"- {line}" in text
    assert '- e: must be "x" or "y"' in text and "- sx: there is no such parameter" in text
    assert Tool("given", "", {}, dict).bind({"anything": 1}) == {"anything": 1}


def test_a_tool_without_parameters_takes_nothing() -> None:
    def now() -> None: ...

    assert bind(now) == {}
    assert "It takes: no arguments." in refused(now, {"x": 1})


@pytest.mark.parametrize("key", ["i", "s", "l", "d", "u", "p", "more"])
def test_null_for_an_optional_parameter_that_takes_none_leaves_it_out(key: str) -> None:
    def take(
        q: str, i: int = 1, s: str = "x", l: list[int] = [1], d: dict[str, int] = {}, u: int | list[str] = 2,  # noqa: B006, E741
        p: Point = Point(1), n: int | None = 3, z: Any = 4, **more: int,  # noqa: B008
    ) -> None: ...  # fmt: skip

    made = Tool.from_function(take)
    assert made.canonical({"q": "a", key: None, "n": None, "z": None}) == {"q": "a", "n": None, "z": None}
    assert made.bind({"q": "a", key: None, "n": None, "z": None}) == {"q": "a", "n": None, "z": None}
    assert key == "l" or made.canonical({"q": "a", key: None, "l": "[7]"}) == {"q": "a", "l": [7]}
    assert "- q: Input should be a valid string (you sent null)" in refused(take, {"q": None, key: None})


def test_null_for_an_optional_property_of_a_given_schema_leaves_it_out() -> None:
    kinds: dict[str, Any] = {
        "q": {"type": "string"}, "i": {"type": "integer"}, "e": {"enum": ["x"]}, "b": {"type": ["boolean", "string"]},
        "n": {"type": ["integer", "null"]}, "a": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "free": {},
    }  # fmt: skip
    made = Tool("given", "", {"properties": kinds, "required": ["q"]}, dict)
    sent = {"q": "a", **dict.fromkeys(["i", "e", "b", "n", "a", "free", "other"])}
    assert made.canonical(sent) == made.bind(sent) == {"q": "a", **dict.fromkeys(["n", "a", "free", "other"])}
    whole = {"q": "a", "i": 1}
    assert made.canonical(whole) is whole
    assert "- q: must be string (you sent null)" in refused(made, {"q": None})
