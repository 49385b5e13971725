"""Types that tools of the tests take: an enum, a dataclass, a recursive model, a TypedDict."""

from __future__ import annotations

import dataclasses
import enum
from typing import Required, TypedDict

import pydantic


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Node(pydantic.BaseModel):
    """A node."""

    title: str
    children: list[Node] = []


class Options(TypedDict, total=False):
    deep: Required[bool]
    title: str
