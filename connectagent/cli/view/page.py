"""The files of the page, and the page as one file with a record in it."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from connectagent.cli.view.changes import changes_of, request_data
from connectagent.cli.view.conversation import conversation_of, images_of
from connectagent.cli.view.listing import listing_of, number_lines
from connectagent.cli.view.rows import fields_of
from connectagent.records.blobs import REFERENCE
from connectagent.records.file import BETWEEN_TURNS
from connectagent.records.texts import data_text
from connectagent.records.watched import WatchedAgent, watched_agents
from connectagent.session.usage import spent_in

# Modules, each behind those that it imports. The page gets them as one script: an exported page is one file, in which
# modules cannot import each other.
SCRIPTS = (
    *("source.js", "text.js", "folded.js", "markdown.js", "state.js", "overview.js", "request.js", "changes.js"),
    *("rows.js", "timeline.js", "conversation.js", "answer.js", "list.js", "beside.js"),
    *("head.js", "filter.js", "moves.js", "keys.js", "page.js"),
)
LIBRARY = "vendor/marked.umd.js"
_WHOLE = ("result", "error", "input")  # the texts of a turn that the page shows whole
_MOST_RAW, _MOST_IMAGES = 8_000_000, 32_000_000  # characters
_SCRIPT = '<script src="{}" defer></script>'
_LINKS = f'<link rel="stylesheet" href="page.css">{_SCRIPT.format("library.js")}{_SCRIPT.format("page.js")}'
_encode = json.JSONEncoder(allow_nan=False).encode
_IMPORT = re.compile(r"^import \{[^}]*\} from \"[^\"]*\";\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


def page() -> str:
    """The page as it is served; it loads style, script and data."""
    return _file("page.html").replace("<!-- head -->", _LINKS)


def style() -> str:
    """The page's style."""
    return _file("page.css")


def script() -> str:
    """The page's modules as one script."""
    return "\n".join(["'use strict';", *(_EXPORT.sub("", _IMPORT.sub("", _file(name))) for name in SCRIPTS)])


def library() -> str:
    """The library that reads Markdown: see `vendor/README.md`."""
    return _file(LIBRARY)


def page_of(record: dict[str, Any], findings: Sequence[dict[str, Any]] = ()) -> str:
    """A record as a page in one file that loads nothing else; see `page_parts`."""
    return "".join(page_parts(record, findings))


def page_parts(record: dict[str, Any], findings: Sequence[dict[str, Any]] = ()) -> Iterator[str]:
    """A record as a page in one file that loads nothing else, in parts.

    Args:
        record: as `read_record` returns it. Its long texts stay head and tail. Of very large ones the raw JSON of later
            requests and some images are left out, and the page says so.
        findings: what `connectagent bisect` found of it.
    """
    allowed = f"style-src {_hash(style())}; script-src {_hash(library())} {_hash(script())}"
    policy = f"default-src 'none'; img-src data:; {allowed}"
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style()}</style>'
    before, end, after = _file("page.html").replace("<!-- head -->", head).partition("</body>")
    yield before
    for name, parts in _blocks(record, findings):
        yield f'<script type="application/json" id="data-{name}">'
        yield from parts
        yield "</script>\n"
    yield f"<script>{library()}</script>\n<script>{script()}</script>\n{end}{after}"


def _blocks(record: dict[str, Any], findings: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Iterable[str]]]:
    """The data of a page by name, as JSON in parts."""
    listing = listing_of(record)
    listing.show_findings(list(findings), links=False)
    number_lines(record)
    agents = watched_agents(record)
    shown = {"rows": listing.rows, "items": listing.items, "agents": listing.agents()}
    yield (
        "shown",
        _object([*((key, _list(rows)) for key, rows in shown.items()), ("summary", [_json(_summary(record))])]),
    )
    yield "details", _list(fields_of(entry, most=None) for entry in listing.entries)
    yield "conversation", _object((one.branch or "", _list(conversation_of(one.history, most=None))) for one in agents)
    yield "changes", _list(changes_of(agents, links=False))
    requests = (request for agent in agents for request in agent.requests())
    data = ((str(one.entry["number"]), [_json(request_data(one, None, all_messages=False))]) for one in requests)
    yield "requests", _object(data)
    for name, texts in (("raw", _raw_requests(agents)), ("images", _images(agents))):
        yield name, _object((key, [_json(text)]) for key, text in texts)
    yield "ends", _list({key: data_text(item[key]) for key in _WHOLE if item.get(key)} for item in listing.ends)


def _raw_requests(agents: list[WatchedAgent]) -> Iterator[tuple[str, str]]:
    """Requests as JSON, by the number of their entry; of each agent the first ones, as later ones repeat them."""
    room = _MOST_RAW
    for agent in agents:
        for request in agent.requests():
            text = data_text(request.data(), 2)
            if len(text) > room:
                break
            room -= len(text)
            yield str(request.entry["number"]), text


def _images(agents: list[WatchedAgent]) -> Iterator[tuple[str, str]]:
    """The images of messages, by the place that the page asks for."""
    room = _MOST_IMAGES
    for agent in agents:
        for line, shown in enumerate([*agent.history.lines, *agent.history.removed]):
            for change, one in enumerate(shown.changes):
                for number, url in enumerate(images_of(one.message)):
                    if REFERENCE.search(url) is None and len(url) <= room:
                        room -= len(url)
                        yield f"{agent.branch or ''}/{line}/{change}/{number}", url


def _summary(record: dict[str, Any]) -> dict[str, Any]:
    """The header of the page for a record."""
    turns = [turn for turn in record["turns"] if turn.get("status") != BETWEEN_TURNS]
    status = str(turns[-1].get("status") or "unfinished") if turns else "empty"
    pairs = {key: data_text(record[key]) for key in ("agent", "model", "script") if record.get(key) is not None}
    started = record.get("started")
    when = started.isoformat().replace("+00:00", "Z") if isinstance(started, datetime.datetime) else None
    spent = spent_in(line for turn in record["turns"] for line in turn["lines"])
    sums = {"tokens": spent.tokens, "cost": spent.cost, "known_cost": spent.known_cost}
    return {"name": pairs.get("agent", "record"), "started": when, "status": status, **sums, **pairs}


def _json(value: Any) -> str:
    """JSON in which no tag can begin or end."""
    return _encode(value).replace("<", "\\u003c")


def _list(values: Iterable[Any]) -> Iterator[str]:
    """The JSON of a list in parts."""
    yield "["
    for number, value in enumerate(values):
        yield f"{', ' if number else ''}{_json(value)}"
    yield "]"


def _object(pairs: Iterable[tuple[str, Iterable[str]]]) -> Iterator[str]:
    """The JSON of a dict in parts, from that of its values."""
    yield "{"
    for number, (key, parts) in enumerate(pairs):
        yield f"{', ' if number else ''}{_json(key)}: "
        yield from parts
    yield "}"


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


@cache
def _file(name: str) -> str:
    return files("connectagent.cli.view").joinpath(name).read_text("utf-8")
