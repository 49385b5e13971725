"""The description of a tool and of its parameters, from a docstring."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

from connectagent.errors import libraries


def docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description of a function, and of its parameters by name."""
    root = function.func if isinstance(function, functools.partial) else function
    if hasattr(root, "__name__"):
        doc = inspect.getdoc(root)
    else:
        doc = inspect.getdoc(call_method(root)) or inspect.cleandoc(vars(type(root)).get("__doc__") or "")
    if not doc:
        return "", {}
    with libraries():
        import docstring_parser  # noqa: F401
    try:
        parsed = _parsed(doc)
    except Exception:  # it is prose, of which the parser may think anything; the text itself is always right
        return doc, {}
    parts = [parsed.short_description, parsed.long_description]
    for meta in parsed.meta:
        if type(meta).__name__ in ("DocstringMeta", "DocstringExample") and meta.description:
            parts.append(f"{' '.join(meta.args).capitalize()}: {meta.description}")
    text = "\n".join(part for part in parts if part)
    return text or doc, {p.arg_name.lstrip("*"): p.description or "" for p in parsed.params}


def _parsed(doc: str) -> Any:
    import docstring_parser
    from docstring_parser import google

    parsed = docstring_parser.parse(doc)
    if parsed.style != docstring_parser.DocstringStyle.GOOGLE:
        return parsed
    # A section that the parser does not know ("Note:") vanishes when it stands behind one that it does.
    known = {section.title for section in google.DEFAULT_SECTIONS}
    more = dict.fromkeys(title for title in re.findall(r"^(\w[\w ]*):[ \t]*$", doc, re.M) if title not in known)
    single = google.SectionType.SINGULAR
    sections = [google.Section(title, title.lower(), single) for title in more]
    return google.GoogleParser(sections=[*google.DEFAULT_SECTIONS, *sections]).parse(doc)


def call_method(thing: object) -> Any:
    """The method that runs when an object is called, as its class defines it."""
    return getattr(type(thing), "__call__", None)  # noqa: B004  not a test: the method itself is wanted
