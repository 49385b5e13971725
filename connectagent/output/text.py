"""Text as eyes and files may have it: without secrets, harmless to a terminal, not too long; and who did something."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from connectagent.errors import short_path
from connectagent.output.masking import MAX_DEPTH, current

_OF_NOBODY = {"(outside)": "outside of any handler", "(resume)": "whoever resumed the turn"}
_HALF = re.compile("[\ud800-\udfff]")  # a letter that no encoding has
_JOINERS = "\u200c\u200d"  # not printable, yet part of Persian words and of emoji


def visible(value: object, limit: int = 400) -> str:
    """A value as one line of text without a character that a terminal obeys or that changes the reading order."""
    text = value if isinstance(value, str) else describe(str, value)
    start = text[:limit]
    if not start.isprintable():
        start = "".join(map(_visible, start))
    return start if len(text) <= limit else start + "..."


def _visible(character: str) -> str:
    if character.isprintable() or character in _JOINERS:
        return character
    return " " if character.isspace() else character.encode("unicode_escape").decode("ascii")


def clean(text: str) -> str:
    """Text of several lines, each of them `visible`."""
    lines = text.replace("\r\n", "\n").replace("\t", "    ").split("\n")
    return "\n".join(visible(line, len(line)) for line in lines)


def describe(how: Callable[[Any], str], value: object) -> str:
    """The `str` or `repr` of a value, or that it has none."""
    try:
        return str(how(value))
    except Exception as error:
        return f"<{type(value).__name__}, whose {how.__name__}() raised {type(error).__name__}>"


def arguments_text(value: object) -> str:
    """Arguments of a call as a person, a judge or a shell hook reads them: the JSON that all guards decide on.

    Objects of programs, which are no JSON, are named by their types: their `repr` alone could pass for a text.
    """
    text = json.dumps(_as_json(value, ()), ensure_ascii=False)
    return _HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def as_json(value: object) -> Any:
    """A value as data for JSON, without secrets: of a model, a dataclass and the like, their fields."""
    if value is None or isinstance(value, str):
        return value
    from pydantic_core import to_jsonable_python  # those who have typed results have loaded it

    return current().value(to_jsonable_python(value, fallback=str))


def _as_json(value: object, above: tuple[int, ...]) -> Any:
    """A value with names in place of what is no JSON, such as a dict with other keys than texts, or one in itself."""
    if value is None or isinstance(value, str | int | float):
        return value
    if id(value) not in above and len(above) < MAX_DEPTH:
        inside = (*above, id(value))
        if isinstance(value, list | tuple):
            return [_as_json(item, inside) for item in value]
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {key: _as_json(item, inside) for key, item in value.items()}
    return f"<{type(value).__module__}.{type(value).__qualname__}: {describe(repr, value)}>"


def shortened(value: object, length: int) -> str:
    """A value as text without secrets, of at most `length` characters, and a note of how much is left out."""
    value = current().text(value if isinstance(value, str) else describe(str, value))
    left_out = len(value) - length
    return clean(value[:length]) + (f"... ({left_out} more characters)" if left_out > 0 else "")


def actor(by: object) -> str:
    """Who did something, by the `by` of a trace entry: the user, a model, tool, agent, handler or plugin."""
    by = by if isinstance(by, dict) else {}
    if by.get("user"):
        return "the user"
    if by.get("plugin") in _OF_NOBODY:
        return _OF_NOBODY[by["plugin"]]
    kind = next((kind for kind in ("model", "tool") if by.get(kind)), None)
    name = f"{kind} {by[kind]}" if kind else by.get("handler") or by.get("agent") or by.get("plugin") or "a handler"
    return visible(name, 60)


def actor_with_place(by: object) -> str:
    """Who did something, with the plugin, hook, file and line as far as they are known."""
    by = by if isinstance(by, dict) else {}
    name, plugin = actor(by), by.get("plugin")
    version = f" {by['version']}" if by.get("version") else ""
    plugin = f" of plugin {plugin}{version}" if by.get("handler") and plugin not in (None, name) else version
    file = f"{short_path(by['file'])}:{by.get('line', '?')}" if by.get("file") not in (None, "?") else ""
    place = ", ".join(str(part) for part in (by.get("hook"), file) if part)
    return visible(f"{name}{plugin}{f' ({place})' if place else ''}", 300)
