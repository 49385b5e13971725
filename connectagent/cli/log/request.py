"""`connectagent log request`: what one model call was sent."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click

from connectagent.commands.tables import echo_json, json_option, record_argument, terminal
from connectagent.commands.usage import WholeNumber
from connectagent.data import Message
from connectagent.errors import ConfigError
from connectagent.output.rows import Row, many
from connectagent.output.text import actor, visible
from connectagent.records.blobs import blob_folder
from connectagent.records.find import find_record
from connectagent.records.read import read_lazily, refuse_odd
from connectagent.records.requests import CHANGED, NEW, Request, SentMessage
from connectagent.records.watched import request_of
from connectagent.session.messages import text_of

_MARKS = {NEW: ("+", "green"), CHANGED: ("~", "yellow")}
_MOST = 300  # characters of a message, without --full


@click.command("request", short_help="What one model call was sent, and what was new in it.")
@record_argument
@click.argument("number", required=False, type=WholeNumber(min=1), metavar="[CALL]")
@click.option("--full", is_flag=True, help="Show messages whole, and the schemas of tools and answer.")
@json_option
def command(record: str | None, number: int | None, full: bool, as_json: bool) -> None:
    """Print the messages, tools and options of the CALL-th model call of RECORD, those of agents inside included.

    By default it is the last call. `+` marks messages that are new since the agent's call before, `~` changed ones.
    """
    path = find_record(record)
    with refuse_odd(path):
        data = read_lazily(path)
        lines = [line for turn in data["turns"] for line in turn["lines"]]
        for at, line in enumerate(lines):
            line["number"] = at
        calls = [line["number"] for line in lines if line.get("type") == "llm_call"]
        if not calls or (number or 1) > len(calls):
            raise ConfigError(f"{path.name} has {many(len(calls), 'model call')}; there is no call {number or 1}")
        at = calls[(number or len(calls)) - 1]
        request = request_of(data, at, blob_folder(path))
        if request is None:
            raise ConfigError(f"{path.name} does not tell what call {number or len(calls)} was sent")
        if as_json:
            echo_json(request.data())
            return
        place = f"call {calls.index(at) + 1} of {len(calls)}"
        terminal().show(_rows(request, place, full))


def _rows(request: Request, place: str, full: bool) -> Iterator[Row]:
    dot = terminal().glyphs.dot
    messages = request.messages
    count = many(len(messages), "message")
    head = f" {dot} {place} {dot} iteration {request.entry.get('iteration')} {dot} {count}"
    yield Row(0, ((str(request.entry.get("model")), "bold"), (head, "")))
    for sent in messages:
        yield from _message(sent, full)
    for message in request.gone:
        yield Row(0, ((f"- {message.get('role')}: {_text(message, full)}", "red"),), wrap=True)
    names = [tool.get("function", {}).get("name") if isinstance(tool, dict) else tool for tool in request.tools]
    if names and not full:
        yield Row(0, ((f"tools: {', '.join(map(str, names))}", "dim"),), wrap=True)
    for tool in request.tools if full else ():
        yield Row(0, ((f"tool: {json.dumps(tool, ensure_ascii=False, default=str)}", "dim"),), wrap=True)
    if request.output is not None:
        words = ", asked for at the end of the last message" if request.output.get("in_words") else ""
        schema = f": {json.dumps(request.output['schema'], ensure_ascii=False, default=str)}" if full else ""
        yield Row(0, ((f"answer: fits {request.output['name']}{words}{schema}", "dim"),), wrap=True)
    for key, value in request.options.items():
        yield Row(0, ((f"{key}: {json.dumps(value, ensure_ascii=False, default=str)}", "dim"),), wrap=True)


def _message(sent: SentMessage, full: bool) -> Iterator[Row]:
    mark, style = _MARKS.get(sent.state, (" ", "dim"))
    by = f" (by {actor(sent.by)})" if sent.by.get("plugin") or sent.by.get("handler") else ""
    parts = ((f"{mark} {sent.message.get('role')}{by}: {_text(sent.message, full)}", style),)
    yield Row(0, parts, wrap=True)
    if sent.before is not None:
        yield Row(4, ((f"was: {_text(sent.before, full)}", "dim"),), wrap=True)


def _text(message: Message, full: bool) -> str:
    """A message as text: what was said, and the calls that were asked for."""
    content = message.get("content")
    text = content if isinstance(content, str) else text_of(content) if isinstance(content, list) else ""
    calls = [call.get("function", {}) for call in message.get("tool_calls") or () if isinstance(call, dict)]
    asked = ", ".join(f"{call.get('name')}({call.get('arguments')})" for call in calls)
    return visible(f"{text} -> {asked}".strip() if asked else text, 10**9 if full else _MOST)
