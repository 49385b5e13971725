"""One value of an argument has one form, however it is spelled; and what is read from the form is what was meant."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import pydantic
import pytest
from argument_types import KINDS, Job, Kind, Numbered, many_function, open_function, tool_function
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import core_schema
from tool_types import Point

from connectagent.errors import ToolArgumentsError
from connectagent.tools import Tool
from connectagent.tools.fields import Found
from connectagent.tools.forms import in_order
from connectagent.tools.shapes import kinds_in

DOCS = Path(__file__).parents[2] / "docs" / "tools.md"
EXAMPLES = int(os.environ.get("CONNECTAGENT_ARGUMENT_EXAMPLES", "300"))


TOOLS = {id(kind): Tool.from_function(tool_function(kind.type)) for kind in KINDS.values()}
OPEN = {id(kind): Tool.from_function(open_function(kind.type)) for kind in KINDS.values()}


def fresh(kind: Kind, tools: dict[int, Tool] = TOOLS) -> Tool:
    """A tool that knows nothing of what it read before."""
    check: Any = tools[id(kind)]._check
    for parameter in (*check._own.parameters.values(), *([check._extra] if check._extra else [])):
        parameter.found = Found()
    return tools[id(kind)]


def keeps(kind: Kind, sent: Any) -> bool:
    """Whether the JSON that was sent is kept, as the value is not read back."""
    check: Any = fresh(kind)._check
    try:
        return check._known({"value": sent}) is None and bool(check._settled("take", {"value": sent}).strict)
    except ToolArgumentsError:
        return False


# -- spellings -----------------------------------------------------------------------------------


def escaped(text: str) -> str:
    """JSON text with each letter inside of strings written as an escape."""
    inside, made = False, ""
    for letter in text:
        inside ^= letter == '"'
        made += f"\\u{ord(letter):04x}" if inside and letter.isascii() and letter.isalpha() else letter
    return made


def spellings(value: Any) -> list[Any]:
    """What a model may send for a JSON value; not each fits each type."""
    if isinstance(value, bool):
        words = ("true", "yes", "y", "on", "t", "1", "True", "ON") if value else ("false", "no", "n", "off", "f", "0")
        return [value, int(value), float(value), *words]
    if isinstance(value, int):
        text = str(value)
        whole = [float(value)] if abs(value) < 2**53 else []
        texts = [text, f" {text} ", f"+{text}", f"0{text}", f"{text}.0", f"{value:_}", f"{text}\n"]
        return [value, *whole, *texts, f"{text}.", f"{value:e}", bool(value)]
    if isinstance(value, float):
        return [value, str(value), f" {value} ", f"+{value}", f"{value}0", int(value) if value == value // 1 else value]
    if isinstance(value, str):
        return [value, f" {value}", value.upper(), value.lower(), [value], json.dumps(value)]
    if isinstance(value, list | dict):
        text = json.dumps(value)
        reversed_too = [dict(reversed(value.items()))] if isinstance(value, dict) else []
        one = [value[0]] if isinstance(value, list) and len(value) == 1 else []
        return [value, text, escaped(text), json.dumps(value, indent=2), f" {text}", *reversed_too, *one]
    return [value, "null", "None", ""]


@st.composite
def spelled(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value with spellings at each depth."""
    if isinstance(value, list):
        value = [draw(spelled(item)) for item in value]
    elif isinstance(value, dict):
        value = {key: draw(spelled(item)) for key, item in value.items()}
    return draw(st.sampled_from(spellings(value)))


# -- what is compared ----------------------------------------------------------------------------


def text(form: Any) -> str:
    return json.dumps(form, sort_keys=True)


def plain(value: Any) -> Any:
    """A value as something that is equal for equal values of one type only."""
    kind = type(value).__name__
    if isinstance(value, pydantic.BaseModel):
        fields = [(name, plain(getattr(value, name))) for name in sorted(value.model_fields_set)]
        return kind, fields, plain(value.model_extra)
    if isinstance(value, dict):
        return kind, sorted((plain(key), plain(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return kind, [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return kind, sorted(map(plain, value))
    if hasattr(value, "get_secret_value"):
        return kind, plain(value.get_secret_value())
    if hasattr(value, "__next__"):
        try:
            return kind, [plain(item) for item in value]
        except pydantic.ValidationError:
            return kind, "refused when it is read"
    if isinstance(value, Numbered) and value.id < 0:
        return kind, value.n  # it was left out
    if hasattr(value, "__dataclass_fields__"):
        return kind, [(name, plain(getattr(value, name))) for name in value.__dataclass_fields__]
    if kind == "Decimal" and value.is_finite():
        return kind, str(value.normalize() + 0)
    return kind, str(value)


def is_json(form: Any) -> bool:
    if type(form) is list:
        return all(map(is_json, form))
    if type(form) is dict:
        return all(type(key) is str and is_json(item) for key, item in form.items())
    return type(form) in (str, int, float, bool, type(None))


def settled(kind: Kind, sent: Any) -> tuple[Any, Any] | None:
    """The form of an argument and what the function gets; None if it does not fit. Checks what holds for each."""
    try:
        form = fresh(kind).canonical({"value": sent})
    except ToolArgumentsError:
        with pytest.raises(ToolArgumentsError):
            fresh(kind).bind({"value": sent})
        return None
    assert is_json(form) and form.keys() == {"value"}
    assert text(fresh(kind).canonical(form)) == text(form), "the form of a form is another one"
    assert fresh(kind).canonical(form) is form
    read = plain(fresh(kind).bind(form)["value"])
    tool = fresh(kind)
    tool.canonical({"value": sent})
    for value in (tool.bind(form), tool.bind({"value": sent}), fresh(kind).bind({"value": sent})):
        assert plain(value["value"]) == read, "the function gets another value than its form is read as"
    other = fresh(kind, OPEN)
    assert text(other.canonical({"value": sent})) == text(form), "it has another form among **kwargs"
    assert plain(other.bind(form)["value"]) == plain(other.bind({"value": sent})["value"]) == read
    return form["value"], read


# -- the table -----------------------------------------------------------------------------------

NO_JSON = {  # what a model cannot send, and what has no schema
    *("callable", "is-instance", "is-subclass", "custom-error", "arguments", "arguments-v3", "arguments-v3-parameter"),
    *("call", "missing-sentinel", "invalid", "ellipsis", "frozendict"),
}
PARTS = {"definitions", "definition-ref", "model-field", "dataclass-field", "typed-dict-field", "computed-field"}


def test_the_table_has_each_kind_of_type_that_pydantic_knows() -> None:
    checks: list[Any] = [tool._check for tool in TOOLS.values()]
    seen = set[str]().union(*(kinds_in(check._own.core_schema) for check in checks))
    assert set(get_args(core_schema.CoreSchemaType)) - seen - NO_JSON - PARTS == set()


@pytest.mark.parametrize("name", KINDS)
def test_each_value_has_one_form(name: str) -> None:
    kind = KINDS[name]
    forms: dict[str, str] = {}
    for seed in kind.sent:
        assert settled(kind, seed) is not None or name == "date_or_str", seed
        for sent in spellings(seed):
            found = settled(kind, sent)
            if found is not None and not kind.keeps:
                form, value = found
                assert forms.setdefault(str(value), text(form)) == text(form), sent


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_two_spellings_of_one_value_have_one_form(data: st.DataObject) -> None:
    kind = KINDS[data.draw(st.sampled_from([name for name, kind in KINDS.items() if not kind.keeps]))]
    seed = data.draw(st.sampled_from(kind.sent))
    one = settled(kind, data.draw(spelled(seed)))
    other = settled(kind, data.draw(spelled(seed)))
    if one is not None and other is not None and one[1] == other[1]:
        assert text(one[0]) == text(other[0])


@settings(max_examples=EXAMPLES // 4, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_parameters_do_not_change_each_other(data: st.DataObject) -> None:
    drawn = [KINDS[name] for name in data.draw(st.lists(st.sampled_from(list(KINDS)), min_size=2, max_size=4))]
    named = {f"p{number}": kind for number, kind in enumerate(drawn[:-1])}
    tool = Tool.from_function(many_function({name: kind.type for name, kind in named.items()}, drawn[-1].type))
    sent: dict[str, Any] = {}
    forms: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, kind in [*named.items(), ("more", drawn[-1]), ("most", drawn[-1])]:
        sent[name] = data.draw(spelled(data.draw(st.sampled_from(kind.sent))))
        found = settled(kind, sent[name])
        if found is None:
            with pytest.raises(ToolArgumentsError):
                tool.canonical({**dict.fromkeys(named), **sent})
            return
        forms[name], values[name] = found
    made = tool.canonical(sent)
    assert text(made) == text(forms)
    assert {name: plain(value) for name, value in tool.bind(sent).items()} == values
    assert {name: plain(value) for name, value in tool.bind(made).items()} == values


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_values_stay_those_that_they_are(data: st.DataObject) -> None:
    """What the function gets is what pydantic's lax mode makes of what was sent; else it is refused."""
    kind = KINDS[data.draw(st.sampled_from([name for name, kind in KINDS.items() if not kind.keeps]))]
    sent = data.draw(spelled(data.draw(st.sampled_from(kind.sent))))
    found = settled(kind, sent)
    check: Any = fresh(kind)._check
    try:
        _, values = check._validated("take", {"value": sent})
    except ToolArgumentsError:
        assert found is None
        return
    if found is not None:
        assert plain(values["value"]) == found[1]
    else:
        assert kind is KINDS["date_or_str"], "a value that fits is refused"


@pytest.mark.parametrize("name", KINDS)
def test_the_docs_list_the_types_that_keep_what_was_sent(name: str) -> None:
    kind = KINDS[name]
    spelled_ones = [sent for seed in kind.sent for sent in spellings(seed)]
    assert any(keeps(kind, sent) for sent in spelled_ones) == bool(kind.keeps)
    if kind.keeps:
        section = DOCS.read_text("utf-8").partition("\n## What guards see")[2].partition("\n## ")[0]
        assert f"\n| {kind.keeps} |" in section


# -- what models tried ---------------------------------------------------------------------------


def mail(to: list[str], job: Job | None = None, more: dict[str, int] | None = None) -> None: ...


def pay(
    amount: int = 1,
    day: datetime.date | None = None,
    sure: bool = False,
    price: decimal.Decimal | None = None,
) -> None: ...


JOB = {"name": "a", "tags": [], "tries": 3, "place": None}
HIDDEN: list[tuple[Any, str, Any, list[Any]]] = [
    (mail, "to", ["a@evil.com"], ['["\\u0061@evil.com"]', ' [ "a@evil\\u002ecom" ]']),
    (mail, "more", {"a": 1}, ['{"\\u0061": "1"}', {"a": 1.0}, '{"a": 2, "a": 1}']),
    (mail, "job", JOB, ['{"n\\u0061me": "a"}', {"name": "a"}, {"name": "a", "tries": "3"}]),
    (pay, "amount", 1000, ["1_000", 1000.0, "+1000", " 1000 ", "1000.0", "01000"]),
    (pay, "day", "1970-01-02", [86400, "86400", "1970-01-02T00:00:00Z"]),
    (pay, "sure", True, ["yes", 1, "t", "on", 1.0, "TRUE"]),
    (pay, "price", "1000", ["1_000", 1e3, "1E+3", "1000.00", 1000]),
]


@pytest.mark.parametrize(("function", "key", "form", "spelt"), HIDDEN, ids=[key for _, key, _, _ in HIDDEN])
def test_what_hides_a_value_from_a_guard_is_gone(function: Any, key: str, form: Any, spelt: list[Any]) -> None:
    tool = Tool.from_function(function)
    needed: dict[str, Any] = {"to": []} if function is mail else {}
    for sent in spelt:
        found = tool.canonical({**needed, key: sent})
        assert text(found) == text({**needed, key: form}), sent
        assert tool.bind({**needed, key: sent}) == tool.bind(found)


# -- what stays as it is -------------------------------------------------------------------------


def test_canonical_arguments_are_the_same_object() -> None:
    tool = Tool.from_function(mail)
    for arguments in ({"to": ["a"]}, {"to": [], "job": {**JOB, "place": {"x": 1, "y": 2}}}):
        assert tool.canonical(arguments) is arguments
    sent = {"to": ["a"], "job": {"name": "a"}}
    before = json.dumps(sent)
    form = tool.canonical(sent)
    assert form is not sent and json.dumps(sent) == before and tool.canonical(form) is form


def test_a_function_that_changes_its_arguments_changes_no_form() -> None:
    form = {"to": ["a"], "more": {"a": 1}}
    values = Tool.from_function(mail).bind(form)
    values["to"].append("b")
    values["more"]["b"] = 2
    assert form == {"to": ["a"], "more": {"a": 1}}


def test_parameters_that_are_left_out_stay_out_of_the_form() -> None:
    def wait(
        name: str = "x",
        count: int = pydantic.Field(3, ge=1),
        tags: list[str] = pydantic.Field(default_factory=list),  # noqa: B008
        renamed: int = pydantic.Field(1, alias="times"),
    ) -> None: ...

    tool = Tool.from_function(wait)
    assert tool.canonical({}) == {} and tool.bind({}) == {"count": 3, "tags": [], "renamed": 1}
    assert tool.canonical({"times": "5"}) == {"times": 5} and tool.bind({"times": "5"})["renamed"] == 5


def test_two_parameters_may_be_read_from_one_list() -> None:
    def place(
        x: int = pydantic.Field(validation_alias=pydantic.AliasPath("at", 0)),
        y: int = pydantic.Field(0, validation_alias=pydantic.AliasPath("at", 1)),
        title: str = "",
    ) -> None: ...

    tool = Tool.from_function(place)
    arguments = {"at": [1, 2], "title": 7}
    assert tool.canonical(arguments) == {"at": [1, 2], "title": "7"}
    assert tool.bind(arguments) == {"x": 1, "y": 2, "title": "7"}
    with pytest.raises(ToolArgumentsError, match=r"at\[0\]: Input should be a valid integer"):
        tool.canonical({"at": ["1", 2]})


def test_objects_of_programs_pass_as_they_are() -> None:
    def take(point: Point, day: datetime.date, points: list[Point]) -> None: ...

    tool = Tool.from_function(take)
    point = Point(1)
    given = {"point": point, "day": datetime.date(2024, 2, 29), "points": [point, {"x": "2"}]}
    assert tool.canonical(given) is given
    assert tool.bind(given)["point"] is point and tool.bind(given)["points"] == [point, Point(2)]
    mixed = tool.canonical({**given, "day": 0})
    assert mixed["day"] == "1970-01-01" and mixed["point"] is point


def test_a_given_schema_changes_nothing() -> None:
    tool = Tool("given", "", {"properties": {"n": {"type": "integer"}}, "required": ["n"]}, dict)
    sent = {"n": 3.0, "more": '["\\u0061"]'}
    assert tool.canonical(sent) is sent and tool.bind(sent) == sent and tool.bind(sent) is not sent
    with pytest.raises(ToolArgumentsError, match="n: missing"):
        tool.canonical({})


def test_what_the_model_must_not_fill_in_is_refused_among_other_parameters() -> None:
    def take(agent: Any = None, **more: str) -> None: ...

    tool = Tool.from_function(take)
    assert tool.bind({"x": 1}, agent="me") == {"x": "1", "agent": "me"}
    with pytest.raises(ToolArgumentsError, match="agent: there is no such parameter"):
        tool.canonical({"agent": "another"})


# -- what cannot be told ---------------------------------------------------------------------------


def test_a_value_that_is_not_read_back_is_refused_unless_it_is_sent_as_its_type() -> None:
    tool = fresh(KINDS["After"])
    assert tool.canonical({"value": 5}) == {"value": 5} and tool.bind({"value": 5}) == {"value": 6}
    with pytest.raises(ToolArgumentsError, match=r"- value: Input should be a valid integer \(you sent \"5\"\)"):
        tool.canonical({"value": "5"})


def test_what_is_nested_too_deeply_does_not_pass_as_an_object() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    tool = fresh(KINDS["model_open"])
    with pytest.raises(ToolArgumentsError, match="recursion"):
        tool.canonical({"value": {"n": "1_000", "deep": deep}})


FORMS = """
import json
from argument_types import KINDS, tool_function
from connectagent.tools import Tool
from connectagent.errors import ToolArgumentsError
found = {}
for name, kind in KINDS.items():
    tool = Tool.from_function(tool_function(kind.type))
    for number, sent in enumerate(kind.sent):
        try:
            found[f"{name} {number}"] = tool.canonical({"value": sent})["value"]
        except ToolArgumentsError:
            pass
print(json.dumps(found))
"""


def test_each_process_makes_the_same_forms() -> None:
    made = []
    for seed in ("1", "2"):
        path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        ended = subprocess.run([sys.executable, "-c", FORMS], capture_output=True, text=True, env=environment)
        made.append(ended.stdout)
        assert ended.returncode == 0, ended.stderr
    assert made[0] == made[1] and len(json.loads(made[0])) > len(KINDS)


def test_sets_have_one_order() -> None:
    words = [f"word {number}" for number in range(50)]
    assert fresh(KINDS["set"]).canonical({"value": words}) == {"value": sorted(words)}
    assert in_order([3, math.nan, 1.5]) == in_order([math.nan, 1.5, 3]) == in_order([1.5, 3, math.nan])
    assert in_order([True, 2, "a", None]) == in_order([None, "a", 2, True])


def test_secrets_are_compared_as_they_are() -> None:
    tool = fresh(KINDS["model_hidden"])
    sent = {"value": '{"shown": "1", "key": "hush", "path": "/x"}'}
    assert tool.canonical(sent) == {"value": {"shown": 1, "path": "/x", "key": "hush"}}


def test_threads_share_a_tool() -> None:
    tool = fresh(KINDS["nested_dataclass"])

    def read(number: int) -> bool:
        sent = {"value": {"name": f"job {number % 97}", "tries": str(number)}}
        form = tool.canonical(sent)
        return bool(form["value"]["tries"] == number and tool.bind(form)["value"].tries == number)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(2_000)))


def test_long_arguments_are_found_again_without_their_text() -> None:
    found = Found()
    for number in range(200):
        found.add(f"{number}" * 500, is_strict=number % 2 == 0)
    assert found.get("199" * 500) is False and found.get("198" * 500) is True and found.get("1" * 500) is None
    assert len(found._strict) <= 65 and not any("199" in str(key) for key in found._strict)
