"""What the model reads back from a tool: any value or error as text, bounded and harmless, or as content parts."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from connectagent.data import File, Image
from connectagent.errors import ToolArgumentsError, ToolNotFound, ToolRejected, raised_at
from connectagent.tools.library_values import Entries, Items, is_picture, opened, picture_image

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

NOTHING = "(no output)"
"""What stands for an empty result: Anthropic refuses a message whose text is empty or white space."""

_DEPTH = 100
"""Levels of a nested value that are shown. Far below the recursion limit, as the stack may be deep already."""

_LONG_NUMBER = 10_000
"""Bits of an int that `json.dumps` may refuse, as Python does not print it."""

_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_HARMFUL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def result_content(value: object, *, limit: int = 100_000) -> str | list[dict[str, Any]]:
    """What a tool returned, as the content of a message: never empty, valid UTF-8, without terminal escapes.

    Text stays as it is; numbers, lists, dicts, dataclasses and pydantic models become JSON; images and files, alone or
    in a list, and lists of `{"type": "text" | "image_url" | "file"}` become content parts; everything else
    `str(value)`. Values of numpy and pandas become JSON, an image of Pillow's an image.

    Args:
        limit: characters of text. Of a longer one, the first two thirds and the last third are left, with a
            note between them.
    """
    if type(value) is str:
        return readable(value, limit)
    if type(value) is bool or type(value) is float or (type(value) is int and value.bit_length() < _LONG_NUMBER):
        number = json.dumps(value)
        return number if len(number) <= limit else _cut(number, limit)
    if _is_file(value):
        return [_file_part(value)]
    if isinstance(value, list | tuple) and _has_parts(value):
        return _parts(value, limit)
    return _text(value, limit)


def _text(value: object, limit: int) -> str:
    if value is None:
        return "None"
    # JSON of ten times the limit is made, so that its end can be shown; what is beyond is not even looked at.
    plain = _Plain(limit, budget=10 * limit).of(value)
    return readable(plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False), limit)


def error_message(error: BaseException, *, limit: int = 4_000) -> str:
    """An exception's own message, as text that can be stored; "" where it has none."""
    message = _text_of(error).strip()
    return readable(message, limit) if message else ""


def error_content(error: BaseException, *, limit: int = 4_000) -> str:
    """What a model reads of a tool's exception: its type and message, without a traceback."""
    message = _text_of(error).strip()
    kind = type(error).__name__
    if isinstance(error, ToolArgumentsError | ToolNotFound | ToolRejected):
        text = message or kind  # written for the model; the name of the class would only distract it
    elif isinstance(error, BaseExceptionGroup):
        causes = [error_content(cause, limit=limit // 4).removeprefix("Error: ") for cause in error.exceptions[:3]]
        text = "\n- ".join([f"{kind}: {message}", *causes])
    else:
        text = f"{kind}: {message}" if message else kind
    return readable(f"Error: {text}", limit)


def readable(text: str, limit: int = 100_000) -> str:
    """Text that can be sent, stored and printed: bounded, without lone surrogates and control characters."""
    if len(text) <= 4 * limit:
        text = harmless(text)
    if len(text) > limit:
        text = _cut(text, limit)
    return text if text and not text.isspace() else NOTHING


def _cut(text: str, limit: int) -> str:
    head = max(limit - 100, 0) * 2 // 3
    tail = max(limit - 100, 0) - head
    # Cut before and after: a 50 MB text is never copied as a whole, and an escape takes more room once shown.
    first = harmless(text[:head])[:head]
    last = harmless(text[-tail:])[-tail:] if tail else ""
    return f"{first}\n[... {len(text) - head - tail:,} of {len(text):,} characters left out ...]\n{last}"


def harmless(text: str) -> str:
    """Text without colour codes; other control characters are shown (`\\x1b`), lone surrogates replaced by U+FFFD."""
    if not _HARMFUL.search(text):
        return text
    if _SURROGATE.search(text):  # two halves make one character
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    text = _COLOURS.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _HARMFUL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


# -- values --------------------------------------------------------------------------------------


class _Plain:
    """Makes values that `json.dumps` takes, of bounded size: cycles, depth and size cannot stop it.

    Args:
        longest: characters that are kept of a text inside.
        budget: characters after which the rest is left out.
    """

    def __init__(self, longest: int, budget: int) -> None:
        self.longest, self.budget = longest, budget
        self.open: set[int] = set()

    def of(self, value: Any) -> Any:
        """Text, number, bool, None, or a list or dict of them."""
        self.budget -= 2
        kind = type(value)
        if value is None or kind is bool or kind is float:
            return value
        if kind is int:
            return value if value.bit_length() < _LONG_NUMBER else _text_of(value)
        if kind is str:
            return value
        if id(value) in self.open:
            return "(cycle)"
        if len(self.open) >= _DEPTH:
            return "(nested too deep to show)"
        self.open.add(id(value))
        try:
            return self._made(value)
        except Exception as error:  # properties, iterators and conversions of others' classes
            return _unshowable(value, error)
        finally:
            self.open.discard(id(value))

    def _made(self, value: Any) -> Any:
        if type(value) is dict:
            return self._dict(value.items(), len(value))
        if type(value) is list:
            return self._list(value, len(value))
        for kinds, convert in _CONVERSIONS:
            if isinstance(value, kinds):
                return self.of(convert(value))
        if isinstance(value, Mapping):
            return self._dict(value.items(), len(value))
        if callable(getattr(type(value), "model_dump", None)):  # pydantic, which need not be loaded to be met
            return self.of(value.model_dump())
        if callable(getattr(type(value), "isoformat", None)):  # dates and times
            return self.of(value.isoformat())
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._fields(value)
        if isinstance(value, tuple) and hasattr(value, "_asdict"):
            return self.of(value._asdict())
        if isinstance(value, Set):
            return self._list(_sorted(value), len(value))
        if isinstance(value, Sequence) or type(value).__name__ in _LIKE_LISTS:
            return self._list(value, len(value))
        return self._of_library(value)

    def _of_library(self, value: object) -> Any:
        """A value of a library that is known, or of no known type."""
        if is_picture(value):
            return _NO_IMAGE_INSIDE
        inner = opened(value, max(self.budget, 0))
        if inner is None:
            return self.of(_text_of(value))
        if isinstance(inner, Items):
            return self._list(inner.items, inner.length)
        if isinstance(inner, Entries):
            return self._dict(inner.entries, inner.length)
        return self.of(inner.value)

    def _fields(self, value: DataclassInstance) -> dict[str, Any]:
        fields = dataclasses.fields(value)
        return self._dict(((field.name, getattr(value, field.name)) for field in fields), len(fields))

    def _list(self, items: Iterable[Any], count: int) -> list[Any]:
        made: list[Any] = []
        for item in items:
            if self.budget < 0:
                made.append(f"[... {count - len(made):,} of {count:,} items left out ...]")
                break
            made.append(self._inside(item))
        return made

    def _dict(self, items: Iterable[tuple[Any, Any]], count: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, value in items:
            if self.budget < 0:
                made["..."] = f"[... {count - len(made):,} of {count:,} entries left out ...]"
                break
            plain = self._inside(key)
            name = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
            made[name] = self._inside(value)
        return made

    def _inside(self, value: object) -> Any:
        plain = self.of(value)
        if not isinstance(plain, str):
            return plain
        # Cut to less than the whole, so that the one long text of a result leaves room for the JSON around it.
        plain = harmless(plain) if len(plain) <= self.longest else readable(plain, self.longest * 3 // 4)
        self.budget -= len(plain)
        return plain


_NO_IMAGE_INSIDE = "(an image: return it by itself or in a list to show it)"
_LIKE_LISTS = ("deque", "dict_keys", "dict_values", "dict_items")
"""Types with a length and an order that are no `Sequence`."""

_CONVERSIONS: tuple[tuple[tuple[type, ...], Callable[[Any], Any]], ...] = (
    ((enum.Enum,), lambda value: value.value),
    ((str,), str.__str__),
    ((int,), int),
    ((float,), float.__float__),
    ((bytes, bytearray, memoryview), lambda value: _bytes_text(bytes(value))),
    ((BaseException,), error_content),
    ((Image,), lambda value: _NO_IMAGE_INSIDE),
    ((File,), lambda value: "(a file: return it by itself or in a list to show it)"),
)


def _bytes_text(data: bytes) -> str:
    note = f"({len(data):,} bytes that are not text)"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return note
    return note if "\0" in text else text


def _sorted(values: Iterable[Any]) -> list[Any]:
    """In an order that is the same in every run, which a set of texts does not have by itself."""
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=_text_of)


def _text_of(value: object) -> str:
    try:
        return str.__str__(str(value))
    except Exception as error:
        return _unshowable(value, error)


def _unshowable(value: object, error: Exception) -> str:
    return f"({type(value).__name__}: it cannot be shown as text, {type(error).__name__})"


# -- content parts -------------------------------------------------------------------------------


def _has_parts(items: Sequence[Any]) -> bool:
    """Whether a list is content: it holds an image or a file, or is made of nothing but content parts."""
    return any(map(_is_file, items)) or (len(items) > 0 and all(map(_is_part, items)))


def _is_part(item: object) -> bool:
    if not isinstance(item, dict):
        return False
    if item.get("type") == "text":
        return isinstance(item.get("text"), str)
    return _is_attachment(item)


def _is_attachment(item: dict[str, Any]) -> bool:
    """Whether a dict is a part that holds an image or a file, as `Image.part()` and `File.part()` make them."""
    kind = item.get("type")
    inner = item.get(kind) if kind in ("image_url", "file") else None
    key = "url" if kind == "image_url" else "file_data"
    return isinstance(inner, dict) and isinstance(inner.get(key), str)


def _parts(items: Sequence[Any], limit: int) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for item in items:
        if _is_file(item):
            part = _file_part(item)
        elif _is_part(item) and item["type"] != "text":
            part = item
        else:
            part = {"type": "text", "text": _text(item["text"] if _is_part(item) else item, limit)}
            limit = max(limit - len(part["text"]), 200)  # all of them together are as long as one text may be
        parts.append(part)
    return parts


def _is_file(value: object) -> bool:
    return isinstance(value, Image | File) or is_picture(value)


def _file_part(file: object) -> dict[str, Any]:
    try:
        return (file if isinstance(file, Image | File) else picture_image(file)).part()
    except Exception as error:  # a file that is missing, bytes that are no picture: the model should know, and go on
        kind = "a file" if isinstance(file, File) else "an image"
        return {"type": "text", "text": f"({kind} that cannot be read: {error_content(error)})"}


def failure(error: Exception) -> dict[str, Any]:
    """The keys of a failed call's entry."""
    pairs = {"error": error_message(error), "error_type": type(error).__name__}
    place = raised_at(error)
    return {"status": "error", "result": error_content(error), **pairs, **({"raised_at": place} if place else {})}


def interruption(error: BaseException) -> dict[str, Any]:
    """The keys of an interrupted call's entry."""
    kind = type(error).__name__
    return {"status": "interrupted", "result": f"interrupted before it finished: {kind}", "error_type": kind}
