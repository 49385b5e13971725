"""The types of parameters that tools take, each with JSON from which models make values of it."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import inspect
import ipaddress
import itertools
import pathlib
import re
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypeVar, Union

import pydantic
import typing_extensions
from pydantic import BaseModel, ConfigDict, Field
from tool_types import Color, Node, Options, Point

T = TypeVar("T")


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Size(str, enum.Enum):  # noqa: UP042  as many programs have them
    SMALL = "small"
    LARGE = "large"


class Mixed(enum.Enum):
    ONE = 1
    WORD = "1"
    HALF = 0.5
    PAIR = (1, 2)


class Pair(NamedTuple):
    a: int
    b: str = "x"


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    n: int
    when: datetime.date | None = None


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    n: int


class Aliased(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    to_whom: str = Field(alias="to")
    said: list[str] = Field(default=[], validation_alias="in", serialization_alias="out")
    either: int = Field(0, validation_alias=pydantic.AliasChoices("one", "other"))


class Deep(BaseModel):
    first: int = Field(0, validation_alias=pydantic.AliasPath("all", 0))


class Hidden(BaseModel):
    shown: int
    path: str = Field("", exclude=True)
    key: pydantic.SecretStr = pydantic.SecretStr("")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> int:
        return self.shown * 2


class Dumped(BaseModel):
    day: datetime.date

    @pydantic.field_serializer("day")
    def as_text(self, day: datetime.date) -> str:
        return day.strftime("%d %B")


class Checked(BaseModel):
    low: int
    high: int

    @pydantic.model_validator(mode="before")
    @classmethod
    def from_text(cls, given: Any) -> Any:
        if isinstance(given, str) and "-" in given:
            low, high = given.split("-")
            return {"low": low, "high": high}
        return given

    @pydantic.model_validator(mode="after")
    def in_order(self) -> Checked:
        if self.low > self.high:
            raise ValueError("low is more than high")
        return self


class Stamped(BaseModel):
    n: int
    id: uuid.UUID = Field(default_factory=uuid.uuid4)


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str] = []


class Names(pydantic.RootModel[list[str]]):
    pass


class Box(BaseModel, Generic[T]):
    content: T


class Base64(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    data: bytes


class Twice(BaseModel):
    """Each reading doubles it."""

    n: int

    @pydantic.field_validator("n")
    @classmethod
    def double(cls, n: int) -> int:
        return n * 2


@dataclasses.dataclass
class Job:
    name: str
    tags: list[str] = dataclasses.field(default_factory=list)
    tries: int = 3
    place: Point | None = None


_numbers = itertools.count(1)


@dataclasses.dataclass
class Numbered:
    n: int
    id: int = dataclasses.field(default_factory=lambda: -next(_numbers))


@pydantic.dataclasses.dataclass
class Renamed:
    to_whom: str = Field(alias="to")


class Plain(typing_extensions.TypedDict, total=False):
    name: typing_extensions.Required[str]
    score: float


class Keyed(typing_extensions.TypedDict):
    from_whom: Annotated[str, Field(alias="from")]


def split(value: Any) -> Any:
    return value.split(",")


def maybe_split(value: Any) -> Any:
    return value.split(",") if isinstance(value, str) else value


def kind_of(value: Any) -> str:
    return "text" if isinstance(value, str) else "number"


Raised = Annotated[int, pydantic.AfterValidator(lambda n: n + 1)]
Tree = typing_extensions.TypeAliasType("Tree", "dict[str, Tree] | int")
Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
Number = Annotated[int, pydantic.Tag("number")]
Text = Annotated[list[str], pydantic.BeforeValidator(split), pydantic.Tag("text")]
Tagged = Annotated[Number | Text, pydantic.Discriminator(kind_of)]


@dataclasses.dataclass
class Kind:
    """A type of parameters.

    Args:
        type: the annotation.
        sent: JSON values from which it is made; the tests spell each in many ways.
        keeps: whether some values are not read back, so that guards see what was sent: as the docs call it.
    """

    type: Any
    sent: list[Any]
    keeps: str = ""


KINDS: dict[str, Kind] = {
    "str": Kind(str, ["a", "", " a ", "é\n", "[1]", "007", 7, 1.5]),
    "int": Kind(int, [1000, 0, -5, 10**30]),
    "float": Kind(float, [1.5, 3, -0.0, 1e300, float("inf"), float("nan")]),
    "bool": Kind(bool, [True, False]),
    "None": Kind(None, [None]),
    "Any": Kind(Any, [1, "1", True, [1, {"a": None}], 1.0]),
    "object": Kind(object, ["x", {"a": 1}]),
    "JsonValue": Kind(pydantic.JsonValue, [{"a": [1, None]}, "x", 1]),
    "Decimal": Kind(decimal.Decimal, [1000, 1.5, "0.10", "1E+3", "-0", "1e-7"]),
    "bytes": Kind(bytes, ["abc", "é", ""]),
    "date": Kind(datetime.date, ["2024-02-29", 86400, "1970-01-02"]),
    "datetime": Kind(datetime.datetime, ["2024-02-29T10:00:00", "2024-02-29T10:00:00Z", 1709200800, "2024-02-29"]),
    "datetime_zone": Kind(pydantic.AwareDatetime, ["2024-02-29T10:00:00+02:00", "2024-02-29T08:00:00Z"]),
    "time": Kind(datetime.time, ["10:00", "10:00:00.5", 36000, "10:00:00+02:00"]),
    "timedelta": Kind(datetime.timedelta, ["P1D", 86400, "1 day", "PT0.5S", -5]),
    "UUID": Kind(uuid.UUID, ["12345678123456781234567812345678", "{12345678-1234-5678-1234-567812345678}"]),
    "Path": Kind(pathlib.Path, ["a//b", "a/./b", "/etc/passwd", "."]),
    "Pattern": Kind(re.Pattern[str], ["a+"]),
    "Fraction": Kind(fractions.Fraction, ["1/3", "2/6", 0.5, 2]),
    "complex": Kind(complex, ["1+2j", 1.5, 2]),
    "IPv4Address": Kind(ipaddress.IPv4Address, ["127.0.0.1", 2130706433]),
    "Url": Kind(pydantic.AnyUrl, ["HTTP://Example.com", "http://example.com/"]),
    "MultiHostUrl": Kind(pydantic.PostgresDsn, ["postgres://a:b@host:5432,other/db"]),
    "ByteSize": Kind(pydantic.ByteSize, ["1KB", 1000, "1000"]),
    "Base64Bytes": Kind(pydantic.Base64Bytes, ["aGk=", "aGk=\n"]),
    "Base64Str": Kind(pydantic.Base64Str, ["aGk="]),
    "Enum": Kind(Color, ["red", "blue"]),
    "IntEnum": Kind(Level, [1, 2]),
    "str_enum": Kind(Size, ["small"]),
    "mixed_enum": Kind(Mixed, [1, "1", 0.5]),
    "Literal": Kind(Literal["a", 1, True, None], ["a", 1, True, None]),
    "NewType": Kind(NewType("UserId", int), [5]),
    "Optional": Kind(Optional[int], [None, 5]),  # noqa: UP045
    "int_or_str": Kind(int | str, [5, "5", "x"]),
    "left_to_right": Kind(Annotated[int | str, Field(union_mode="left_to_right")], [5, "5", "x"]),
    "bool_or_int": Kind(bool | int, [True, 1, "yes", 5]),
    "float_or_list": Kind(float | list[str] | None, [1, ["a"], None, 1.5]),
    "lists": Kind(list[int] | list[str], [[1], ["a"], ["1"], []]),
    "path_or_str": Kind(pathlib.Path | str, ["a//b", "a/b"]),
    "str_or_bytes": Kind(Union[str, bytes], ["a"]),  # noqa: UP007
    "date_or_str": Kind(datetime.date | str, ["2024-02-29", "x", 86400]),
    "number": Kind(decimal.Decimal | float, [1, "1.50", 1.5]),
    "discriminated": Kind(Pet, [{"kind": "cat", "lives": "7"}, {"kind": "dog", "tricks": ["sit"]}]),
    "tagged": Kind(Tagged, [5, "a,b"], "a validator that reads texts only"),
    "list": Kind(list[str], [["a", "é"], [], ["1", 2]]),
    "bare_list": Kind(list, [[1, "a", None]]),
    "numbers": Kind(list[float], [[1, 2.5], [1.0]]),
    "days": Kind(list[datetime.date], [["2024-02-29", 86400]]),
    "set": Kind(set[str], [["b", "a", "b"], []]),
    "set_of_days": Kind(set[datetime.date], [["2024-02-29", 0, "1970-01-01"]]),
    "frozenset": Kind(frozenset[int], [[3, "1", 20], [1, 3, 20]]),
    "tuple": Kind(tuple[int, str], [[1, "b"]]),
    "tuple_many": Kind(tuple[int, ...], [[1, 2, "3"], []]),
    "NamedTuple": Kind(Pair, [[1, "q"], {"a": 1}, [1, "x"]]),
    "deque": Kind(collections.deque[int], [[1, "2"]]),
    "Sequence": Kind(Sequence[int], [[1, "2"]]),
    "Iterable": Kind(Iterable[int], [[1, 2]], "`Iterable` and `Generator`"),
    "Generator": Kind(Generator[int, None, None], [[1, 2]], "`Iterable` and `Generator`"),
    "dict": Kind(dict[str, int], [{"a": 1, "b": 2}, {}]),
    "bare_dict": Kind(dict, [{"a": [1]}]),
    "dict_any": Kind(dict[str, Any], [{"a": {"b": [1, None, 1.0]}}]),
    "int_keys": Kind(dict[int, str], [{"1": "a", "02": "b"}, {"1": "a", "2": "b"}]),
    "day_keys": Kind(dict[datetime.date, int], [{"2024-02-29": 1}]),
    "bool_keys": Kind(dict[bool, int], [{"yes": 1}, {"true": 1}]),
    "enum_keys": Kind(dict[Color, int], [{"red": 1}]),
    "Decimal_keys": Kind(dict[decimal.Decimal, int], [{"1.0": 1}, {"1": 1}]),
    "Mapping": Kind(Mapping[str, int], [{"a": "1"}]),
    "OrderedDict": Kind(collections.OrderedDict[str, int], [{"b": 1, "a": 2}]),
    "defaultdict": Kind(collections.defaultdict[str, int], [{"b": 1}]),
    "Counter": Kind(collections.Counter[str], [{"b": 1}]),
    "dataclass": Kind(Point, [{"x": 1}, {"x": 1, "y": 0}, {"x": 1, "y": 2}]),
    "nested_dataclass": Kind(Job, [{"name": "a"}, {"name": "a", "tags": [], "place": {"x": 1}}]),
    "numbered_dataclass": Kind(Numbered, [{"n": 1}, {"n": 1, "id": 7}]),
    "pydantic_dataclass": Kind(Renamed, [{"to": "a"}]),
    "TypedDict": Kind(Plain, [{"name": "a"}, {"name": "a", "score": 1}]),
    "TypedDict_stdlib": Kind(Options, [{"deep": True}]),
    "TypedDict_alias": Kind(Keyed, [{"from": "a"}]),
    "model": Kind(Closed, [{"n": 1}, {"n": 1, "when": 86400}, {"n": 1, "when": None}]),
    "model_open": Kind(Open, [{"n": 1, "more": "1"}]),
    "model_aliases": Kind(Aliased, [{"to": "a"}, {"to_whom": "a"}, {"to": "a", "in": ["b"], "other": 5}]),
    "model_path": Kind(Deep, [{"all": [1, 2]}, {}], "fields with an `AliasPath`"),
    "model_hidden": Kind(Hidden, [{"shown": 1, "path": "/x", "key": "s"}, {"shown": 1, "twice": 9}]),
    "model_serializer": Kind(Dumped, [{"day": "2024-02-29"}, {"day": 86400}]),
    "model_validators": Kind(Checked, [{"low": 1, "high": 2}, "1-2"]),
    "model_stamped": Kind(Stamped, [{"n": 1}]),
    "model_base64": Kind(Base64, [{"data": "aGk="}]),
    "model_twice": Kind(Twice, [{"n": 1}, {"n": 0}], "a validator that changes a value at each reading"),
    "model_list": Kind(list[Closed], [[{"n": 1}, {"n": "2", "when": "2024-02-29"}]]),
    "model_root": Kind(Names, [["a", "b"]]),
    "model_recursive": Kind(Node, [{"title": "a", "children": [{"title": "b"}]}]),
    "model_generic": Kind(Box[list[datetime.date]], [{"content": ["2024-02-29", 86400]}]),
    "alias_recursive": Kind(Tree, [{"a": {"b": 1}}, 5]),
    "SecretStr": Kind(pydantic.SecretStr, ["hush", ""]),
    "SecretBytes": Kind(pydantic.SecretBytes, ["hush"]),
    "Secret": Kind(pydantic.Secret[datetime.date], ["2024-02-29", 86400]),
    "Json": Kind(pydantic.Json[list[int]], ["[1, 2]", "[1,2]"], "`Json`"),
    "constrained": Kind(Annotated[int, Field(ge=1, description="d")], [5]),
    "constrained_text": Kind(
        Annotated[str, pydantic.StringConstraints(strip_whitespace=True, to_lower=True)], [" A ", "a"]
    ),
    "strict": Kind(Annotated[int, Field(strict=True)], [5]),
    "Before": Kind(Annotated[list[str], pydantic.BeforeValidator(split)], ["a,b"], "a validator that reads texts only"),
    "Before_any": Kind(Annotated[list[str], pydantic.BeforeValidator(maybe_split)], ["a,b", ["a", "b"]]),
    "After": Kind(Raised, [5], "a validator that changes a value at each reading"),
    "After_once": Kind(Annotated[int, pydantic.AfterValidator(abs)], [-5, 5]),
    "Plain": Kind(Annotated[Any, pydantic.PlainValidator(str)], [5, "5"]),
    "Wrap": Kind(Annotated[int, pydantic.WrapValidator(lambda value, read: read(value))], [5]),
    "ImportString": Kind(pydantic.ImportString, ["math.pi", "math.sqrt"]),
    "Hashable": Kind(collections.abc.Hashable, ["a", 1]),
}


def tool_function(annotation: Any) -> Callable[..., Any]:
    """A function with one parameter of a type."""

    def take(value: Any) -> None: ...

    take.__annotations__ = {"value": annotation}
    return take


def open_function(annotation: Any) -> Callable[..., Any]:
    """A function with any parameters of a type."""

    def take(**values: Any) -> None: ...

    take.__annotations__ = {"values": annotation}
    return take


def many_function(named: dict[str, Any], others: Any) -> Callable[..., Any]:
    """A function with parameters of these types, and with any others of a type."""

    def take(**others: Any) -> None: ...

    make = inspect.Parameter
    parameters = [make(name, make.KEYWORD_ONLY, annotation=kind) for name, kind in named.items()]
    more = make("others", make.VAR_KEYWORD, annotation=others)
    take.__signature__ = inspect.Signature([*parameters, more])  # type: ignore[attr-defined]
    return take
