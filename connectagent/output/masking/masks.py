"""Masks secrets before anything is written or shown: exact values, keys by their form, values by their names.

The process has one mask, since all agents share records, logs and terminals.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from connectagent.errors import ConfigError
from connectagent.output.masking.encodings import core, forms
from connectagent.output.masking.names import environment, is_telling, names_secret, values_of
from connectagent.output.masking.patterns import FIELD_STEMS, FIELD_WORDS, STEMS, by_parts, mask_fields, mask_shapes
from connectagent.settings import setting

MAX_DEPTH = 100
MOST_GIVEN = 1000  # secrets given in code: keys that are renewed for ever must not make each line dearer
_SHORT = 40  # characters
_OFF = ("0", "off", "false", "no")


class Mask:
    """What is masked. A changed variable or setting makes a new one.

    Args:
        secrets: names and values, the values longer than a few characters.
        own: further names whose values are secret, in small letters.
        patterns: regular expressions of the user.
        active: whether anything is masked.
    """

    def __init__(
        self,
        secrets: tuple[tuple[str, str], ...] = (),
        own: tuple[str, ...] = (),
        patterns: tuple[str, ...] = (),
        active: bool = True,
    ) -> None:
        self.active = active
        self.own = own
        self._names: dict[str, str] = {}
        for name, value in secrets:
            for form in forms(value):
                self._names.setdefault(form, name)
        self.forms = sorted(self._names, key=len, reverse=True)  # of two that begin alike the longer one first
        self.exact = re.compile("|".join(map(re.escape, self.forms)) or r"(?!)")
        self.patterns = [re.compile(pattern) for pattern in patterns]
        cores = {core(form) for form in self.forms}
        # No quick test can rule out a user's pattern, or a secret that escaping changes in every letter.
        self._always = bool(patterns) or "" in cores
        self._cores = tuple(cores)
        self._stems = by_parts((*STEMS, *FIELD_STEMS, *own))
        self._remembered = lru_cache(maxsize=1024)(self._suspects)  # of names and other short texts, which come again
        self.begins = {form[0] for form in self.forms}
        self.longest = max(map(len, self.forms), default=0)

    def suspects(self, text: str) -> bool:
        """Whether a text may hold a secret, however it is escaped there.

        Each line that is written takes this test, 4 us for 400 characters. Most lines need no more.
        """
        if not self.active:
            return False
        return self._remembered(text) if len(text) <= _SHORT else self._suspects(text)

    def _suspects(self, text: str) -> bool:
        if self._always:
            return True
        for part in self._cores:  # loops: a generator would take twice as long
            if part in text:
                return True
        low = text.lower()
        for part, stems in self._stems:
            if part in low:
                for stem in stems:
                    if stem in low:
                        return True
        return any(word.search(low) for word in FIELD_WORDS)

    def text(self, text: str) -> str:
        """A text without secrets."""
        return self._text(text, (), json=True) if self.suspects(text) else text

    def piece(self, text: str) -> str:
        """A text without secrets, of which more may follow: it is not read as JSON."""
        return self._text(text, (), json=False) if self.suspects(text) else text

    def value_mark(self, match: re.Match[str]) -> str:
        """What takes the place of an exact value."""
        return f"[masked: {self._names[match[0]]}]"

    def value(self, value: object) -> Any:
        """A value without secrets: the same object, if there are none in it; what it is made of is never changed.

        Where something is masked, what is not data becomes text, and a mark stands for what contains itself.
        """
        return self._value(value, ()) if self.active else value

    def _text(self, text: str, above: tuple[int, ...], json: bool = True) -> str:
        if json and text.lstrip()[:1] in ("{", "["):
            text = self._json(text, above)
        text = self.exact.sub(self.value_mark, text)
        text = mask_fields(mask_shapes(text), self.own)
        for pattern in self.patterns:
            text = pattern.sub("[masked]", text)
        return text

    def _json(self, text: str, above: tuple[int, ...]) -> str:
        """JSON text, masked inside; unchanged where there is nothing to mask."""
        import json

        try:
            value = json.loads(text)
            masked = self._value(value, above)
        except (ValueError, RecursionError):
            return text
        return text if masked is value else json.dumps(masked, ensure_ascii=False)

    def _value(self, value: Any, above: tuple[int, ...]) -> Any:
        kind = type(value)
        if kind is str:
            return self._text(value, above) if self.suspects(value) else value
        if value is None or kind is bool:
            return value
        if kind is int or kind is float:
            return self._number(value) if 1 << 30 < value < 1 << 200 else value
        if id(value) in above or len(above) > MAX_DEPTH:
            return f"<{kind.__name__}: {'it contains itself' if id(value) in above else 'too many levels'}>"
        return self._container(value, (*above, id(value)))

    def _number(self, value: float) -> object:
        """A number, masked if its digits are a secret, as those of a card are."""
        masked = "" if value % 1 else self.text(str(int(value)))
        return masked if masked.startswith("[masked") else value

    def _container(self, value: object, above: tuple[int, ...]) -> Any:
        fields = getattr(value, "__dataclass_fields__", None)
        if fields is not None and not isinstance(value, type):
            items: Any = {name: getattr(value, name, None) for name in fields}
        elif isinstance(value, Mapping):
            items = dict(value.items())
        elif isinstance(value, (list, tuple, set, frozenset)):
            listed = list(value)
            masked = [self._value(item, above) for item in listed]
            return value if all(one is other for one, other in zip(masked, listed, strict=True)) else masked
        else:
            plain = _as_text(value)
            text = self._text(plain, above)
            return value if text == plain else text
        pairs = [(self._key(key), self._field(key, item, above)) for key, item in items.items()]
        same = all(k is key and v is item for (k, v), (key, item) in zip(pairs, items.items(), strict=True))
        return value if same else dict(pairs)

    def _key(self, key: object) -> Any:
        if type(key) is str or key is None or isinstance(key, (bool, int, float)):
            return self.text(key) if type(key) is str else key
        plain = _as_text(key)
        text = self.text(plain)
        return key if text == plain else text

    def _field(self, key: object, item: object, above: tuple[int, ...]) -> Any:
        empty = isinstance(item, str) and not item  # not `== ""`: an array compares item by item
        nothing = item is None or empty or item is True or _is_schema(item)
        if type(key) is str and names_secret(key, self.own) and not nothing:
            stays = isinstance(item, bool) or (isinstance(item, str) and item.startswith("[masked: "))
            return item if stays else f"[masked: {self.text(key)}]"
        return self._value(item, above)


_TYPES = ("string", "integer", "number", "boolean", "object", "array")


def _is_schema(value: object) -> bool:
    """Whether a value describes a parameter of a tool, and is none: `{"type": "string", "description": "..."}`."""
    return type(value) is dict and value.get("type") in _TYPES and value.keys() <= {"type", "title", "description"}


def _as_text(value: object) -> str:
    """An object as the record has it."""
    try:
        return str(value) if isinstance(value, (str, os.PathLike)) else repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


# -- what is masked now --------------------------------------------------------------------------

_given: dict[str, str] = {}  # values that were given in code, with their names
_state: dict[str, Any] = {"mask": Mask(), "source": None, "variables": -1, "given": 0}


def current() -> Mask:
    """What is masked now. An added or removed variable makes a new mask."""
    if _state["variables"] != len(os.environ) or _state["given"] != len(_given):
        refresh()
    mask: Mask = _state["mask"]
    return mask


def mask(value: object) -> Any:
    """A value without secrets, as connectagent masks what it writes and shows; for exporters.

    Args:
        value: text, data or any object. It is not changed.

    Returns:
        The value itself, where there is no secret in it; else a copy of it as data, with marks in place of secrets.
    """
    return current().value(value)


def refresh() -> None:
    """Read variables and setting again, as each turn does first. A setting that cannot be read stays as it was."""
    try:
        check()
    except (ConfigError, OSError):
        own = _state["source"][1:4] if _state["source"] else ((), (), True)
        _take(*own)


def check() -> None:
    """Read variables and setting again.

    Raises:
        ConfigError: the setting `mask` cannot be used.
    """
    _take(*_setting())


def add_secret(value: str | None, name: str, *, at_least: int | None = None) -> None:
    """Mask a value from now on wherever connectagent writes or shows it: `[masked: name]` takes its place.

    A process has up to 1000 of these values; the oldest are given up.

    Args:
        value: the value.
        name: the name in the mask.
        at_least: how many characters it must have; None: short values and words, which would be found everywhere, are
            left alone.
    """
    if not isinstance(value, str) or value in _given:
        return
    if is_telling(value) if at_least is None else len(value) >= max(at_least, 1):
        while len(_given) >= MOST_GIVEN:
            _given.pop(next(iter(_given)), None)
        _given[value] = name
        _state["given"] = -1


def _take(own: tuple[str, ...], patterns: tuple[str, ...], active: bool) -> None:
    count, given = len(os.environ), tuple(_given.items())
    source = (environment(own), own, patterns, active, given)
    if source != _state["source"]:
        found = [(name, part) for name, value in source[0] for part in values_of(name, value, own)]
        found += [(name, value) for value, name in given]
        _state.update(mask=Mask(tuple(found), own, patterns, active), source=source)
    _state.update(variables=count, given=len(given))


def _setting() -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Own names in small letters, own patterns, and whether anything is masked."""
    value = setting("mask")
    if value is False or (isinstance(value, str) and value.strip().lower() in _OFF):
        return (), (), False
    if value is None or value is True or str(value).strip().lower() in ("1", "on", "true", "yes"):
        return (), (), True
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ConfigError(f"mask={value!r:.80} cannot be used: it is 'off', or a list of names and /patterns/")
    parts = [part.strip() for part in parts if part.strip()]
    return tuple(part.lower() for part in parts if not part.startswith("/")), _patterns_in(parts), True


def _patterns_in(parts: list[str]) -> tuple[str, ...]:
    """The patterns among the parts of the setting, without their slashes.

    Raises:
        ConfigError: one is no regular expression, or would be found everywhere.
    """
    patterns = tuple(part[1:-1] for part in parts if len(part) > 2 and part[0] == part[-1] == "/")
    for pattern in patterns:
        try:
            matches_nothing = re.compile(pattern).search("") is not None
        except re.error as error:
            raise ConfigError(f"mask: /{pattern}/ is no regular expression: {error}") from error
        if matches_nothing:
            raise ConfigError(f"mask: /{pattern}/ matches the empty text: it would be found everywhere")
    return patterns
