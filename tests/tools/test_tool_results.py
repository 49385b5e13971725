"""What the model reads of results and errors: never empty, always valid, bounded, harmless."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import itertools
import json
import re
import time
import tracemalloc
import types
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectagent.data import Image
from connectagent.errors import ToolArgumentsError, ToolRejected
from connectagent.tools import error_content, result_content

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
HARMFUL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Point:
    x: int
    when: datetime.date


class Model(pydantic.BaseModel):
    name: str
    color: Color


class Pair(NamedTuple):
    a: int
    b: str


class Broken:
    def __str__(self) -> str:
        raise ValueError("no")

    __repr__ = __str__


class Lying:
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class Plain:
    def __str__(self) -> str:
        return "a plain thing"


class Text(str):
    __slots__ = ()


class BrokenMapping(collections.UserDict[str, int]):
    def items(self) -> Any:
        raise OSError("gone")


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("hello", "hello"),
        ("grüße 😀\n\tx", "grüße 😀\n\tx"),
        ("", "(no output)"),
        (" \n\t", "(no output)"),
        ("\x1b[0m", "(no output)"),
        (b"", "(no output)"),
        (None, "None"),
        (True, "true"),
        (0, "0"),
        (1.5, "1.5"),
        (float("nan"), "NaN"),
        ([], "[]"),
        ({}, "{}"),
        ({"a": [1, None, True, "ü"]}, '{"a": [1, null, true, "ü"]}'),
        ((1, 2), "[1, 2]"),
        ({1: "a", None: "b", (1, 2): "c", False: "d"}, '{"1": "a", "null": "b", "[1, 2]": "c", "false": "d"}'),
        ({3, 1, 2}, "[1, 2, 3]"),
        (frozenset({"b", "a"}), '["a", "b"]'),
        ({"x", 1, None}, '[1, null, "x"]'),
        (b"text", "text"),
        (bytearray("grün".encode()), "grün"),
        (b"\xff\xfe\x00" * 1000, "(3,000 bytes that are not text)"),
        (Color.RED, "red"),
        (Level.HIGH, "3"),
        (Point(1, datetime.date(2025, 1, 2)), '{"x": 1, "when": "2025-01-02"}'),
        (Model(name="n", color=Color.RED), '{"name": "n", "color": "red"}'),
        (Pair(1, "x"), '{"a": 1, "b": "x"}'),
        (datetime.datetime(2025, 1, 2, 3, 4), "2025-01-02T03:04:00"),
        (datetime.timedelta(seconds=5), "0:00:05"),
        (Path("a/b"), "a/b"),
        (decimal.Decimal("1.10"), "1.10"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (range(3), "[0, 1, 2]"),
        (collections.deque([1, 2]), "[1, 2]"),
        ({"a": 1}.keys(), '["a"]'),
        (collections.OrderedDict(a=1), '{"a": 1}'),
        (types.MappingProxyType({"a": 1}), '{"a": 1}'),
        (Text("sub"), "sub"),
        (ValueError("bad"), "Error: ValueError: bad"),
        (Plain(), "a plain thing"),
        (1 + 2j, "(1+2j)"),
    ],
)
def test_values_are_read_as_people_expect(value: object, content: str) -> None:
    assert result_content(value) == content


def test_objects_that_cannot_be_shown_say_so() -> None:
    assert result_content(Broken()) == "(Broken: it cannot be shown as text, ValueError)"
    assert result_content([1, Broken()]) == '[1, "(Broken: it cannot be shown as text, ValueError)"]'
    assert "TypeError" in result_content(Lying())
    assert "OSError" in result_content(BrokenMapping(a=1))
    assert "int" in result_content(10**100_000)


def test_cycles_end() -> None:
    ring: dict[str, Any] = {"name": "ring", "items": []}
    ring["items"].append(ring)
    assert result_content(ring) == '{"name": "ring", "items": ["(cycle)"]}'


def test_deep_nesting_ends() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert "nested too deep" in result_content(deep)


def test_a_value_that_doubles_with_each_level_ends_soon() -> None:
    value: list[Any] = ["x"]
    for _ in range(60):
        value = [value, value]
    start = time.perf_counter()
    assert len(result_content(value)) <= 100_000
    assert time.perf_counter() - start < 60  # of years


def test_lone_surrogates_are_replaced_and_pairs_joined() -> None:
    assert result_content("a\ud800b") == "a�b"
    assert result_content("a\ud83d\ude00b") == "a😀b"
    assert result_content({"k\udcff": "\udcff"}) == '{"k�": "�"}'


def test_terminal_escapes_are_harmless() -> None:
    assert result_content("\x1b[31mred\x1b[0m") == "red"
    assert result_content("\x1b]0;title\x07x\x00\x9b2J") == "\\x1b]0;title\\x07x\\x00\\x9b2J"
    assert result_content("one\r\ntwo\rthree") == "one\ntwo\nthree"
    assert result_content({"a": "\x1b[2Jx\x85"}) == '{"a": "x\\\\x85"}'


def test_a_long_text_keeps_head_and_tail_and_tells_what_is_left_out() -> None:
    text = "a" * 5_000 + "b" * 5_000
    content = result_content(text, limit=1_000)
    assert isinstance(content, str) and len(content) <= 1_000
    assert content.startswith("aaa") and content.endswith("bbb")
    assert "[... 9,100 of 10,000 characters left out ...]" in content


def test_a_long_list_keeps_its_end_too() -> None:
    content = result_content(list(range(5_000)), limit=1_000)
    assert isinstance(content, str) and len(content) <= 1_000
    assert content.startswith("[0, 1,") and content.endswith("4999]") and "left out" in content


def test_one_long_text_in_a_dict_leaves_valid_json() -> None:
    content = result_content({"path": "x", "text": "y" * 10_000_000})
    assert isinstance(content, str) and len(content) <= 100_000
    assert "left out" in json.loads(content)["text"]


@pytest.mark.parametrize(
    "value",
    [
        b"x" * 50_000_000,
        {"a": "é" * 50_000_000},
        [{"k": n} for n in range(1_000_000)],
        "\0" * 50_000_000,
    ],
    ids=["bytes", "dict", "list", "text"],
)
def test_fifty_megabytes_are_cut_quickly_and_without_copies(value: object) -> None:
    start = time.perf_counter()
    content = result_content(value)
    assert time.perf_counter() - start < 20  # on a busy machine too
    assert isinstance(content, str) and len(content) <= 100_000 and "left out" in content
    tracemalloc.start()
    result_content(value)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60_000_000  # bytes are decoded: one copy


def test_an_image_becomes_a_part() -> None:
    content = result_content(Image(PNG))
    assert isinstance(content, list)
    assert [part["type"] for part in content] == ["image_url"]
    assert content[0]["image_url"]["url"].startswith("data:image/png;base64,")


def test_a_list_with_images_becomes_parts() -> None:
    content = result_content(["the chart:", Image(PNG), {"n": 1}, ""])
    assert isinstance(content, list)
    assert [part["type"] for part in content] == ["text", "image_url", "text", "text"]
    assert [part.get("text") for part in content] == ["the chart:", None, '{"n": 1}', "(no output)"]


def test_content_parts_are_taken_as_they_are() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    assert result_content([{"type": "text", "text": "a\x00"}, image]) == [{"type": "text", "text": "a\\x00"}, image]


def test_what_only_resembles_parts_is_json() -> None:
    assert result_content([{"type": "text"}]) == '[{"type": "text"}]'
    assert result_content([{"type": "image_url", "image_url": "x"}]).startswith('[{"type"')  # type: ignore[union-attr]


def test_texts_of_parts_are_bounded_together() -> None:
    content = result_content([Image(PNG), *["x" * 90_000] * 5])
    assert isinstance(content, list)
    assert sum(len(part.get("text", "")) for part in content) <= 101_000


@pytest.mark.parametrize("image", [Image("/no/such/file.png"), Image(b"no picture")], ids=["missing", "unknown"])
def test_an_image_that_cannot_be_read_is_told(image: Image) -> None:
    content = result_content(image)
    assert isinstance(content, list)
    assert "cannot be read" in content[0]["text"]


def test_an_image_inside_a_dict_says_how_to_show_it() -> None:
    assert "an image" in result_content({"chart": Image(PNG)})


def test_errors_are_type_and_message() -> None:
    assert error_content(ValueError("no such file")) == "Error: ValueError: no such file"
    assert error_content(TimeoutError()) == "Error: TimeoutError"
    assert error_content(KeyError("x")) == "Error: KeyError: 'x'"
    assert error_content(ValueError("\x1b[31m\udcff")) == "Error: ValueError: �"


def test_errors_that_were_written_for_the_model_name_no_class() -> None:
    assert error_content(ToolRejected("Ask first.")) == "Error: Ask first."
    assert error_content(ToolArgumentsError("query: missing")) == "Error: query: missing"
    assert error_content(ToolRejected()) == "Error: ToolRejected"


def test_an_error_whose_text_fails_is_still_an_error() -> None:
    class Bad(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert error_content(Bad()) == "Error: Bad: (Bad: it cannot be shown as text, RuntimeError)"


def test_errors_are_short() -> None:
    assert len(error_content(ValueError("x" * 10_000_000))) <= 4_000


def test_a_group_of_errors_names_its_members() -> None:
    content = error_content(ExceptionGroup("two", [ValueError("a"), KeyError("b")]))
    assert content == "Error: ExceptionGroup: two (2 sub-exceptions)\n- ValueError: a\n- KeyError: 'b'"


texts = st.text(st.characters(exclude_categories=()))
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.binary() | st.builds(Broken)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(texts | st.integers() | st.none() | st.tuples(st.integers()), inner)
        | st.tuples(inner)
        | st.sets(texts | st.integers())
        | st.builds(Image, st.binary())
    ),
)


@settings(max_examples=300, deadline=None)
@given(value=values, limit=st.sampled_from([200, 1_000, 100_000]))
def test_any_value_gives_content_that_both_wires_take(value: object, limit: int) -> None:
    content = result_content(value, limit=limit)
    parts = [content] if isinstance(content, str) else [part["text"] for part in content if part["type"] == "text"]
    for text in parts:
        assert text.strip() and len(text) <= max(limit, 200)
        assert not HARMFUL.search(text)
        text.encode()
    json.dumps(content, allow_nan=False)


@settings(max_examples=100, deadline=None)
@given(text=texts)
def test_cleaning_twice_changes_nothing(text: str) -> None:
    once = result_content(text)
    assert result_content(once) == once


def test_iterators_are_not_consumed() -> None:
    assert "count" in result_content(itertools.count())
