"""What plugins changed, and what each model call was sent, for the page."""

from __future__ import annotations

from typing import Any

from connectagent.cli.view.conversation import content_text
from connectagent.cli.view.editor import editor_link
from connectagent.cli.view.rows import excerpt, row_of
from connectagent.commands.tables import data_text
from connectagent.output.words import SAME, Piece, word_diff
from connectagent.records.requests import Request, SentMessage
from connectagent.records.watched import WatchedAgent

MOST_CHANGES = 1_000
_NEAR = 160  # characters that are shown around a change
_MOST_IN_PIECE = 4_000  # characters of one removed or added text
_DID = {"paused": "paused the turn", "error": "raised"}
_OWN = ("connectagent", "(resume)", "(program)")  # plugins, in `by`, that nobody wrote


def changes_of(agents: list[WatchedAgent], number: int | None = None, links: bool = True) -> list[dict[str, Any]]:
    """The changes that plugins made, in the order of the record, each with its difference.

    Args:
        agents: of `watched_agents`, with numbered entries.
        number: only the change of this entry.
        links: whether their places are links.
    """
    found = []
    for agent in agents:
        for entry in agent.entries:
            if number in (None, entry.get("number")) and (change := _change(agent, entry, links)) is not None:
                found.append(change)
    return sorted(found, key=lambda change: int(change["n"] or 0))


def _change(agent: WatchedAgent, entry: dict[str, Any], links: bool) -> dict[str, Any] | None:
    by = entry.get("by")
    if not isinstance(by, dict) or by.get("plugin") in (None, *_OWN):
        return None
    row = row_of(entry, int(entry.get("number") or 0))
    before, after = _replaced(agent, entry, row)
    change = {"n": entry.get("number"), "plugin": row.get("plugin", "?"), "by": row.get("by", "?"), "did": _did(row)}
    change |= {key: row[key] for key in ("hook", "where", "in") if key in row}
    if links and (link := editor_link(by)):
        change["edit"] = link
    return change | {"diff": shown_diff(text_of_value(before), text_of_value(after))}


def _replaced(agent: WatchedAgent, entry: dict[str, Any], row: dict[str, Any]) -> tuple[Any, Any]:
    """The value before a change and after it; what the row says where nothing was replaced."""
    if id(entry) in agent.history.replaced:
        before, after = agent.history.replaced[id(entry)]
        return (before, after) if before is not None or after is not None else (None, row["text"])
    if entry.get("type") == "tool_execution":
        return None, entry.get("result")
    if entry.get("type") == "llm_call" and entry.get("status") == "stand_in":
        return None, {"content": entry.get("content"), "tool_calls": entry.get("tool_calls") or []}
    return None, row["text"]


def _did(row: dict[str, Any]) -> str:
    if row["type"] == "llm_call":
        tried = "had the model asked again" if row.get("attempt") else "answered"
        return "asked a model" if row.get("aside") else tried
    return str(row.get("did") or _DID.get(row["type"]) or row.get("status") or row["type"])


def text_of_value(value: Any) -> str:
    """A value that a change replaced as text: a message or an answer as its content with its calls."""
    if value is None:
        return ""
    if isinstance(value, dict) and ("role" in value or set(value) == {"content", "tool_calls"}):
        calls = [call.get("function") or call for call in value.get("tool_calls") or () if isinstance(call, dict)]
        lines = [f"-> {call.get('name')}({data_text(call.get('arguments'))})" for call in calls]
        return "\n".join([text for text in (content_text(value), *lines) if text])
    return data_text(value, 2)


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
