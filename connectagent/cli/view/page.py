"""The files of the page, and the page as one file with a record in it."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any

from connectagent.cli.log.reading import data_text
from connectagent.cli.view.conversation import conversation_of, history_by_number
from connectagent.cli.view.reading import listing_of
from connectagent.cli.view.rows import fields_of
from connectagent.records.file import BETWEEN_TURNS
from connectagent.session.usage import spent_in

_SCRIPTS = (
    *("source.js", "text.js", "overview.js", "timeline.js", "conversation.js"),
    *("list.js", "head.js", "keys.js", "page.js"),
)
_LINKS = '<link rel="stylesheet" href="page.css"><script src="page.js" defer></script>'


def page() -> str:
    """The page as it is served; it loads style, script and data."""
    return _file("page.html").replace("<!-- head -->", _LINKS)


def style() -> str:
    """The page's style."""
    return _file("page.css")


def script() -> str:
    """The page's scripts as one."""
    return "\n".join(["'use strict';", *map(_file, _SCRIPTS)])


def page_of(record: dict[str, Any]) -> str:
    """A record as a page in one file that loads nothing else.

    Args:
        record: as `read_record` returns it. Its long texts stay head and tail.
    """
    listing = listing_of(record)
    shown = {"rows": listing.rows, "items": listing.items, "summary": _summary(record)}
    details = [fields_of(entry, most=None) for entry in listing.entries]
    conversation = conversation_of(history_by_number(record), most=None)
    blocks = {"shown": shown, "details": details, "conversation": conversation}
    form = '<script type="application/json" id="data-{}">{}</script>'
    data = "\n".join(form.format(name, _json(value)) for name, value in blocks.items())
    policy = f"default-src 'none'; img-src data:; style-src {_hash(style())}; script-src {_hash(script())}"
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style()}</style>'
    whole = _file("page.html").replace("<!-- head -->", head)
    return whole.replace("</body>", f"{data}\n<script>{script()}</script>\n</body>")


def _summary(record: dict[str, Any]) -> dict[str, Any]:
    """The header of the page for a record."""
    turns = [turn for turn in record["turns"] if turn.get("status") != BETWEEN_TURNS]
    status = str(turns[-1].get("status") or "unfinished") if turns else "empty"
    pairs = {key: data_text(record[key]) for key in ("agent", "model", "script") if record.get(key) is not None}
    started = record.get("started")
    when = started.isoformat().replace("+00:00", "Z") if isinstance(started, datetime.datetime) else None
    spent = spent_in(line for turn in record["turns"] for line in turn["lines"])
    sums = {"tokens": spent.tokens, "cost": spent.cost}
    return {"name": pairs.get("agent", "record"), "started": when, "status": status, **sums, **pairs}


def _json(value: Any) -> str:
    """JSON in which no tag can begin or end."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


@cache
def _file(name: str) -> str:
    return files("connectagent.cli.view").joinpath(name).read_text("utf-8")
