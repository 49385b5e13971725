"""What plugins changed, and what each model call was sent, for the page."""

from __future__ import annotations

from typing import Any

from connectagent.cli.view.editor import editor_link
from connectagent.cli.view.rows import by_of, excerpt
from connectagent.output.words import SAME, Piece, word_diff
from connectagent.records.changes_by_plugins import PluginChange, plugin_changes
from connectagent.records.requests import Request, SentMessage
from connectagent.records.texts import data_text, text_of_value
from connectagent.records.watched import WatchedAgent

MOST_CHANGES = 1_000
_NEAR = 160  # characters that are shown around a change
_MOST_IN_PIECE = 4_000  # characters of one removed or added text


def changes_of(agents: list[WatchedAgent], number: int | None = None, links: bool = True) -> list[dict[str, Any]]:
    """The changes that plugins made, in the order of the record, each with its difference.

    Args:
        agents: of `watched_agents`, with numbered entries.
        number: only the change of this entry.
        links: whether their places are links.
    """
    return [_shown(change, links) for change in plugin_changes(agents, number)]


def _shown(change: PluginChange, links: bool) -> dict[str, Any]:
    shown = {"n": change.number, **by_of(change.by), "did": change.did}
    del shown["who"]
    if change.inside:
        shown["in"] = change.inside
    link = editor_link(change.by) if links else None
    if link is not None:
        shown["edit"] = link
    shown["diff"] = shown_diff(change.before, change.after)
    return shown


def shown_diff(before: str, after: str) -> list[Piece]:
    """The difference of two texts, without the middle of what is the same, and of what is very long."""
    pieces = word_diff(before, after)
    shown = []
    for number, (kind, text) in enumerate(pieces):
        if kind == SAME and len(pieces) > 1:
            text = _middle_out(text, _NEAR * (number > 0), _NEAR * (number < len(pieces) - 1))
        else:
            text = _middle_out(text, _MOST_IN_PIECE, 0)
        shown.append((kind, text))
    return shown


def _middle_out(text: str, head: int, tail: int) -> str:
    if len(text) <= head + tail + _NEAR:
        return text
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[... {left_out:,} characters ...]\n{text[len(text) - tail :] if tail else ''}"


# -- requests ------------------------------------------------------------------------------------


def request_data(request: Request, most: int | None, all_messages: bool) -> dict[str, Any]:
    """A request for the page.

    Args:
        request: of `request_of`.
        most: characters of a text; None for all.
        all_messages: whether messages that are as in the call before are given too; otherwise they are only counted.
    """
    news = list(request.news())
    shown = enumerate(request.messages) if all_messages else news
    messages = [{"place": place, **_message_data(sent, most)} for place, sent in shown]
    before = request.before.get("number") if request.before is not None else None
    gone = [excerpt(text_of_value(message), most) | {"role": str(message.get("role"))} for message in request.gone]
    return {
        "model": data_text(request.entry.get("model")),
        "count": request.count,
        "same": request.count - len(news),
        "before": before,
        "messages": messages,
        "gone": gone,
        "tools": [_tool(tool) for tool in request.tools],
        "output": None if request.output is None else _output(request.output),
        "options": [{"key": str(key), "text": data_text(value, 2)} for key, value in request.options.items()],
    }


def _message_data(sent: SentMessage, most: int | None) -> dict[str, Any]:
    by = {str(key): value for key, value in sent.by.items() if isinstance(value, str | int)}
    data: dict[str, Any] = {"role": str(sent.message.get("role")), "state": sent.state, "by": by}
    data |= excerpt(text_of_value(sent.message), most)
    if sent.before is not None:
        data["diff"] = shown_diff(text_of_value(sent.before), text_of_value(sent.message))
    return data


def _output(asked: dict[str, Any]) -> dict[str, Any]:
    return {"name": asked["name"], "in_words": bool(asked.get("in_words")), "text": data_text(asked["schema"], 2)}


def _tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict):
        return {"name": data_text(tool), "text": ""}
    inside = tool.get("function")
    function = inside if isinstance(inside, dict) else tool
    says = str(function.get("description") or "").strip().partition("\n")[0]
    return {"name": str(function.get("name") or tool.get("type")), "says": says[:200], "text": data_text(tool, 2)}
