"""Values of numpy, pandas and Pillow, as a model can read them; a library that is not loaded is not looked for."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from connectagent.data import Image

_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
_JPEG_MODES = ("L", "RGB")


class Items(NamedTuple):
    """A value that is a list; `items` may end behind what there is room for."""

    items: Iterable[Any]
    length: int


class Entries(NamedTuple):
    """A value that is an object; `entries` may end behind what there is room for."""

    entries: Iterable[tuple[Any, Any]]
    length: int


class Scalar(NamedTuple):
    """A value that is one of Python's."""

    value: Any


Opened = Items | Entries | Scalar


def opened(value: object, room: int) -> Opened | None:
    """What a value of numpy or pandas holds; None for any other value.

    A DataFrame is a list of its rows, each an object by column; a Series is an object by its labels, or a list where it
    has none of its own. Missing values are None.

    Args:
        value: the value.
        room: how many characters its JSON may have.
    """
    pandas = sys.modules.get("pandas")
    if pandas is not None:
        if isinstance(value, pandas.DataFrame):
            return _frame(value, room)
        if isinstance(value, pandas.Series):
            return _series(value, room)
        if isinstance(value, pandas.Index):
            return Items(_present(value, room), len(value))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return Items(iter(value), len(value)) if value.ndim else Scalar(value[()])
    if numpy is not None and isinstance(value, numpy.generic):
        return Scalar(_number(value))
    return None


def _number(value: Any) -> Any:
    """A value of numpy's as Python's; times, which may be more exact than Python's, as text."""
    as_text = value.dtype.kind in "mMcV" and value.dtype.names is None
    return str(value) if as_text else value.item()


def _frame(frame: Any, room: int) -> Items:
    """The rows of a DataFrame; labels that are more than the rows' numbers become columns."""
    begin = frame.head(room // (2 + 4 * len(frame.columns)) + 2)
    if type(begin.index).__name__ != "RangeIndex":
        with contextlib.suppress(ValueError):  # a column has the name of the index
            begin = begin.reset_index()
    names = _distinct(begin.columns)
    columns = [_present(begin.iloc[:, at], len(begin)) for at in range(len(names))]
    rows = zip(*columns, strict=True) if columns else ()
    return Items((dict(zip(names, row, strict=True)) for row in rows), len(frame))


def _distinct(names: Iterable[Any]) -> list[Any]:
    """Names of columns, each once: a second `x` is `x.1`, as pandas reads it."""
    found: dict[Any, None] = {}
    for name in names:
        number = 0
        given = name
        while name in found:
            number += 1
            name = f"{given}.{number}"
        found[name] = None
    return list(found)


def _series(series: Any, room: int) -> Opened:
    values = _present(series, room)
    if type(series.index).__name__ == "RangeIndex":
        return Items(values, len(series))
    labels = _present(series.index, room)
    pairs = zip(labels, values, strict=True)
    return Entries(pairs, len(series)) if series.index.is_unique else Items(map(list, pairs), len(series))


def _present(values: Any, most: int) -> Iterator[Any]:
    """The first values of a Series or an Index, None for those that are missing."""
    begin = values[:most] if not hasattr(values, "iloc") else values.iloc[:most]
    missing = begin.isna()
    return (None if gone else value for value, gone in zip(begin, missing, strict=True))


def is_picture(value: object) -> bool:
    """Whether a value is an image of Pillow's."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def picture_image(picture: Any) -> Image:
    """An image of Pillow's as one that a model sees."""
    kind = "JPEG" if picture.format in ("JPEG", "MPO") else "PNG"
    if picture.mode not in (_JPEG_MODES if kind == "JPEG" else _PNG_MODES):
        picture = picture.convert("RGB")
    file = io.BytesIO()
    picture.save(file, kind)
    return Image(file.getvalue(), f"image/{kind.lower()}")
