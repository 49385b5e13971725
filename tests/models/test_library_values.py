"""What a model reads of values of numpy, pandas and Pillow; tests of a library that is not installed are skipped."""

from __future__ import annotations

import base64
import datetime
import io
import json
import subprocess
import sys
from typing import Any

import pytest
from wire_server import WireServer, chat

from connectagent import Agent
from connectagent.models.openai import OpenAILLM
from connectagent.tools.results import result_content


def shown(value: Any, limit: int = 100_000) -> Any:
    text = result_content(value, limit=limit)
    assert isinstance(text, str)
    return json.loads(text)


def test_no_library_is_loaded_for_it() -> None:
    code = (
        "import sys; from connectagent.tools.results import result_content; result_content(object());"
        "print([name for name in ('numpy', 'pandas', 'PIL') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_arrays_and_numbers_of_numpy_are_json() -> None:
    numpy: Any = pytest.importorskip("numpy")
    assert shown(numpy.array([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    assert shown(numpy.array([1.5, 2])) == [1.5, 2.0]
    assert shown(numpy.array([True, False])) == [True, False]
    assert shown(numpy.array(["a", "ß"])) == ["a", "ß"]
    assert shown(numpy.array([{"a": numpy.int64(1)}, None], dtype=object)) == [{"a": 1}, None]
    assert shown(numpy.array(7)) == shown(numpy.int64(7)) == shown(numpy.uint8(7)) == 7
    assert shown(numpy.float32(0.5)) == shown(numpy.float64(0.5)) == 0.5
    assert shown({"n": numpy.int32(3), "ok": numpy.bool_(True)}) == {"n": 3, "ok": True}
    assert shown(numpy.array([(1, "x")], dtype=[("n", "i4"), ("s", "U1")])) == [[1, "x"]]
    assert shown(numpy.array(["2024-01-02"], dtype="datetime64[ns]"))[0].startswith("2024-01-02")
    assert result_content(numpy.array([])) == "[]"


def test_a_long_array_says_what_is_left_out() -> None:
    numpy: Any = pytest.importorskip("numpy")
    text = result_content(numpy.arange(1_000_000), limit=3_000)
    assert isinstance(text, str) and len(text) <= 3_000 and "left out" in text
    assert text.startswith("[0, 1, 2") and "of 1,000,000 items left out ...]" in text


def test_tables_of_pandas_are_rows() -> None:
    pandas: Any = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"city": ["Rome", "Oslo"], "n": [1, 2], "t": [1.5, None], "s": [None, "x"]})
    rows = [{"city": "Rome", "n": 1, "t": 1.5, "s": None}, {"city": "Oslo", "n": 2, "t": None, "s": "x"}]
    assert shown(frame) == rows
    assert shown({"table": frame}) == {"table": rows}
    assert shown(frame.set_index("city")) == rows
    assert shown(frame.groupby("city").n.sum()) == {"Oslo": 2, "Rome": 1}
    assert shown(frame.describe())[0]["index"] == "count"
    assert shown(frame.n) == [1, 2] and shown(frame.columns) == ["city", "n", "t", "s"]
    assert shown(pandas.Series([1, 2], index=["a", "a"])) == [["a", 1], ["a", 2]]
    day = pandas.Timestamp(2024, 1, 2)
    assert shown(pandas.DataFrame({"d": [day, pandas.NaT], "c": pandas.Categorical(["u", None])})) == [
        {"d": day.isoformat(), "c": "u"},
        {"d": None, "c": None},
    ]
    assert shown(pandas.DataFrame({("a", "b"): [1]})) == [{'["a", "b"]': 1}]
    assert shown(pandas.DataFrame([[1, 2]], columns=["x", "x"])) == [{"x": 1, "x.1": 2}]
    assert shown(pandas.Series([datetime.date(2024, 1, 2), pandas.NA])) == ["2024-01-02", None]
    assert result_content(pandas.DataFrame()) == result_content(pandas.Series([], dtype=float)) == "[]"


def test_a_long_table_says_how_many_rows_are_left_out() -> None:
    pandas: Any = pytest.importorskip("pandas")
    for count, columns in ((100_000, 1), (100_000, 30), (50, 3_000)):
        frame = pandas.DataFrame({f"c{n}": range(count) for n in range(columns)})
        text = result_content(frame, limit=2_000)
        assert isinstance(text, str) and len(text) <= 2_000 and "left out" in text
        assert text.startswith('[{"c0": 0')
    text = result_content(pandas.DataFrame({"c0": range(100_000)}), limit=2_000)
    assert "of 100,000 items left out ...]" in text
    assert "of 100,000 entries left out ...]" in str(
        result_content(pandas.Series(range(100_000), index=[f"k{n}" for n in range(100_000)]), limit=2_000)
    )


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1", "CMYK", "F"])
@pytest.mark.parametrize("kind", [None, "PNG", "JPEG", "GIF"])
def test_an_image_of_pillow_is_an_image(mode: str, kind: str | None) -> None:
    pillow: Any = pytest.importorskip("PIL.Image")
    picture = pillow.new(mode, (3, 2))
    if kind is not None:
        file = io.BytesIO()
        (picture if kind != "JPEG" else picture.convert("RGB")).convert("RGB").save(file, kind)
        picture = pillow.open(file)
    for value in (picture, [picture], ["a dot", picture]):
        parts = result_content(value)
        assert isinstance(parts, list) and parts[-1]["type"] == "image_url"
        begin, _, data = parts[-1]["image_url"]["url"].partition(",")
        with pillow.open(io.BytesIO(base64.b64decode(data))) as read:
            assert (read.size, f"data:image/{read.format.lower()};base64") == ((3, 2), begin)
            assert read.format == ("JPEG" if kind == "JPEG" else "PNG")
    assert "return it by itself" in shown({"picture": picture})["picture"]


def test_an_image_of_pillow_reaches_the_model() -> None:
    pillow: Any = pytest.importorskip("PIL.Image")

    def take() -> Any:
        """Take a picture."""
        return pillow.new("RGB", (3, 2))

    with WireServer(chat(calls=[("c1", "take", "{}")]), chat("A dot.")) as server:
        llm = OpenAILLM("gpt-4o", api_key="k", base_url=server.openai_url)
        assert Agent("a", [take], llm=llm, log=False, quiet=True).input("go") == "A dot."
        last = server.requests[1]["messages"][-1]["content"][-1]
    assert last["image_url"]["url"].startswith("data:image/png;base64,")


def test_an_image_that_cannot_be_saved_is_told() -> None:
    pillow: Any = pytest.importorskip("PIL.Image")
    picture = pillow.new("RGB", (3, 2))
    picture.close()
    picture.save = None
    (part,) = result_content(picture)
    assert "(an image that cannot be read: " in part["text"]
