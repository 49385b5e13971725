"""A trace entry as rows of text, before they are laid out for a terminal's width."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from connectagent.data import TraceEntry
from connectagent.errors import Paused
from connectagent.output.text import actor, actor_with_place, arguments_text, visible
from connectagent.session.messages import text_of
from connectagent.session.usage import Spent, usage_of
from connectagent.stop_reasons import is_whole, stop_reason

_ASKED = 10_000  # characters of an argument that a person is asked about

FAILED = ("error", "not_found", "interrupted")
"""The statuses of tool calls that came to no result."""

Span = tuple[str, str]
"""Text, and rich's name for its style."""

# What is said of an answer that is not whole, by the `end` of its reason.
_ENDS: dict[str, str] = {
    "truncated": "was cut at the limit of output tokens",
    "refused": "is the model's refusal",
    "filtered": "was cut by the provider's content filter",
    "failed": "was cut by a failure of the provider",
    "unknown": "stopped for a reason that is not known to be good",
}


@dataclass(slots=True)
class Row:
    """One line, or, with `wrap`, as many as its text takes.

    Args:
        indent: cells before it.
        parts: the text on the left.
        right: what stands at the right edge.
        wrap: whether text that does not fit goes on in the next line.
        stack: whether `right` goes below rather than that text on the left is left out.
    """

    indent: int
    parts: tuple[Span, ...]
    right: str = ""
    wrap: bool = False
    stack: bool = False


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The few symbols that are used."""

    ok: str
    bad: str
    other: str
    warn: str
    dot: str
    arrow: str
    more: str


UNICODE = Glyphs("✓", "✗", "•", "!", "·", "→", "…")
ASCII = Glyphs("*", "x", "o", "!", "-", ">", "...")


# -- values --------------------------------------------------------------------------------------


class _Arguments(reprlib.Repr):
    """Short forms of arguments; long ones are cut before they are written out."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 60
        self.maxlevel, self.maxdict, self.maxlist = 3, 6, 6

    def repr_str(self, x: str, level: int) -> str:
        # The beginning tells most. A path or query that keeps its double quotes reads as it was written.
        cut = x if len(x) <= self.maxstring else x[: self.maxstring] + "..."
        return f'"{cut}"' if cut.isprintable() and '"' not in cut and "\\" not in cut else repr(cut)


_arguments = _Arguments()


def call_text(name: object, arguments: object) -> str:
    """A call as code: `search(query="retry", limit=3)`."""
    if not isinstance(arguments, dict):
        return f"{name}({_arguments.repr(arguments)})"
    return f"{name}({', '.join(f'{visible(key, 40)}={_arguments.repr(value)}' for key, value in arguments.items())})"


def first_line(content: object) -> str:
    """The first line with something in it, of a result or a message."""
    text = content if isinstance(content, str) else text_of(content) if isinstance(content, list) else str(content)
    return next((line.strip() for line in text[:2000].splitlines() if line.strip()), "")


def more_lines(content: object, glyphs: Glyphs) -> str:
    """How many lines a result has after the first that has something in it; "" for none."""
    text = content if isinstance(content, str) else text_of(content) if isinstance(content, list) else str(content)
    number = len(text.strip().splitlines()) - 1
    return f"{glyphs.more} {many(number, 'more line')}" if number > 0 else ""


def many(number: int, what: str) -> str:
    """A number of things: `1 call`, `2 calls`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def duration(ms: float) -> str:
    """`12ms`, `1.2s` or `2m05s`."""
    if ms < 1000:
        return f"{ms:.0f}ms"
    return f"{ms / 1000:.1f}s" if ms < 60_000 else f"{ms // 60_000:.0f}m{ms // 1000 % 60:02.0f}s"


def tokens(count: int) -> str:
    """`950`, `1.2k` or `3.4M`."""
    if count < 1000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 999_950 else f"{count / 1_000_000:.1f}M"


def price(cost: float) -> str:
    """US dollars, to a hundredth of a cent."""
    if 0 < cost < 0.0001:
        return "<$0.0001"
    return f"${cost:.4f}" if cost < 1 else f"${cost:.2f}"


def stopped(error: BaseException) -> Span:
    """Why a turn did not come to its end."""
    if isinstance(error, Paused):
        return f"paused: {error.reason or 'no reason was given'}", "yellow"
    return f"{'failed' if isinstance(error, Exception) else 'interrupted'}: {type(error).__name__}", "red"


# -- entries -------------------------------------------------------------------------------------


def rows_of(entry: TraceEntry, glyphs: Glyphs, *, streamed: bool = False) -> list[Row]:
    """The rows of a trace entry; none for a type that is not shown.

    Args:
        streamed: whether the text of this model call was shown already, as it arrived.
    """
    if entry.get("type") == "llm_call":
        return _llm_call(entry, glyphs, streamed)
    make = _ROWS.get(str(entry.get("type")))
    return make(entry, glyphs) if make else _of_plugin(entry, glyphs)


def _of_plugin(entry: TraceEntry, glyphs: Glyphs) -> list[Row]:
    """What an entry of a plugin's own asks to be shown."""
    show = entry.get("show")
    if not isinstance(show, str) or not show.strip():
        return []
    return [Row(4, ((f"{glyphs.warn} {entry.get('type')}: {show}", "yellow"),), wrap=True)]


def _user_input(entry: TraceEntry, glyphs: Glyphs) -> list[Row]:
    return [Row(0, ((f"{entry.get('turn')} {glyphs.dot} {entry.get('prompt')}", "bold"),))]


def _llm_call(entry: TraceEntry, glyphs: Glyphs, streamed: bool) -> list[Row]:
    status, usage, calls = entry.get("status"), usage_of(entry), entry.get("tool_calls_count") or 0
    right = [many(calls, "call") if calls else "", duration(entry.get("duration_ms") or 0)]
    if usage is not None:
        right.append(f"{tokens(usage.input_tokens)}{glyphs.arrow}{tokens(usage.output_tokens)} tok")
        right.append(price(usage.cost) if usage.cost is not None else "")
    parts: list[Span] = [(f"{entry.get('iteration', '')} ", "dim"), (str(entry.get("model")), "cyan")]
    if status in ("stand_in", "recovered"):
        parts.append((f" {'stand-in' if status == 'stand_in' else 'recovered'} by {actor(entry.get('by'))}", "yellow"))
    rows = [Row(2, tuple(parts), "  ".join(filter(None, right)))]
    rows += _call_troubles(entry, glyphs)
    if calls and entry.get("content") and not streamed:  # what a model says beside its calls; never the result
        rows.append(Row(4, ((first_line(entry["content"]), "italic"),)))
    return rows


def _call_troubles(entry: TraceEntry, glyphs: Glyphs) -> list[Row]:
    """What a model call met: failed attempts, an error, an answer that is not whole."""
    rows, status = [], entry.get("status")
    if entry.get("retries"):
        reasons = ", ".join(str(failed.get("status") or "no answer") for failed in entry["retries"])
        text = f"{glyphs.warn} {many(len(entry['retries']), 'failed attempt')}: {reasons}"
        rows.append(Row(4, ((text, "yellow"),)))
    if entry.get("error") is not None and status in ("error", "recovered"):
        style = "red" if status == "error" else "yellow"
        rows.append(Row(4, ((f"{glyphs.bad} {_error(entry)}", style),), wrap=True))
    reason = entry.get("finish_reason")
    if status != "error" and not is_whole(reason):
        text = f"{glyphs.warn} the answer {_ending(str(reason))} ({reason})"
        rows.append(Row(4, ((text, "yellow"),), wrap=True))
    return rows


def _ending(reason: str) -> str:
    """How an answer that is not whole ended."""
    found = stop_reason(reason)
    return "was cut at the end of the context window" if found.kind == "context_length" else _ENDS[found.end]


def spent_texts(spent: Spent) -> list[str]:
    """What model calls took, in short: tokens and US dollars, `?` where a price is unknown; [] without tokens."""
    if not spent.tokens:
        return []
    known = price(spent.known_cost) if spent.known_cost else ""
    cost = known if spent.priced else " + ".join(filter(None, (known, "?" if known else "cost ?")))
    return [f"{tokens(spent.tokens)} tok", cost]


def _error(entry: TraceEntry) -> str:
    kind, text = str(entry.get("error_type") or "error"), str(entry.get("error") or "")[:600]
    text = text.removeprefix("Error: ")
    if entry.get("status") == "not_found" or text.startswith(kind):
        return text
    return f"{kind}: {text}" if text else kind


def _tool(entry: TraceEntry, glyphs: Glyphs) -> list[Row]:
    if held := entry.get("held"):  # it has its result, and its round waits for another call
        first, *rest = _tool({**entry, "status": held, "held": None}, glyphs)
        return [replace(first, right=f"held  {first.right}"), *rest]
    status = str(entry.get("status"))
    call = call_text(entry.get("tool_name"), entry.get("arguments"))
    took = duration(entry.get("timing") or 0)
    if status == "success":
        return [
            Row(4, ((f"{glyphs.ok} ", "green"), (call, "")), took),
            *_attempts(entry, glyphs),
            Row(6, ((first_line(entry.get("result")), "dim"),), more_lines(entry.get("result"), glyphs)),
        ]
    failed = status in FAILED
    style = "red" if failed else "yellow"
    mark = glyphs.bad if failed or status == "rejected" else glyphs.other
    # A call that was not made has taken no time.
    right = f"{status.replace('_', ' ')}  {took}" if status in ("error", "interrupted") else status.replace("_", " ")
    text = _error(entry) if entry.get("error") is not None and failed else first_line(entry.get("result"))
    if entry.get("by"):
        text = f"{text.removeprefix('rejected: ')} (by {actor(entry['by'])})"
    whole = failed or status == "rejected"
    return [Row(4, ((f"{mark} ", style), (call, "")), right), Row(6, ((text, style),), wrap=whole)]


def _attempts(entry: TraceEntry, glyphs: Glyphs) -> list[Row]:
    """What came of the attempts before the last one, where there were several."""
    tried = entry.get("attempts") or ()
    if len(tried) < 2:
        return []
    text = f"{glyphs.warn} {len(tried)} attempts, before: {'; '.join(_error(one) for one in tried[:-1])}"
    return [Row(6, ((text, "yellow"),), wrap=True)]


def _message(entry: TraceEntry, glyphs: Glyphs) -> list[Row]:
    by = entry.get("by")
    if isinstance(by, dict) and by.get("agent"):  # what another agent said was shown when it said so
        return []
    did = {"message": "added", "message_edited": "edited", "message_removed": "removed"}[entry["type"]]
    message = entry.get("message")
    text = first_line(message.get("content") or "") if isinstance(message, dict) else ""
    return [Row(4, ((f"+ {actor(entry.get('by'))} {did} a message", ""), (f": {text}" if text else "", "dim")))]


def _change(entry: TraceEntry, glyphs: Glyphs) -> list[Row]:
    did, text = change_text(entry)
    return [Row(4, ((f"+ {actor(entry.get('by'))} {did}", ""), (f": {text}" if text else "", "dim")))]


def change_text(entry: TraceEntry) -> tuple[str, str | None]:
    """What a handler did, and what came of a call: the handler's answer or the next attempt's end; else None."""
    value, of = entry.get("value"), str(entry.get("of"))
    if of not in ("tool_execution", "llm_call") or not isinstance(value, dict):
        return f"changed the {of.replace('_', ' ')}", None
    text = first_line(value.get("result", value.get("content")) or "")
    if value.get("status") == "recovered":
        return "handled the error", text
    return "tried again", _error(value) if value.get("status") in FAILED else text


_WOULD = {
    "message": "add a message",
    "message_edited": "edit a message",
    "message_removed": "remove a message",
    "state_delta": "change the state",
    "session_delta": "change the session",
    "change": "change the {of}",
}


def _shadow(entry: TraceEntry, glyphs: Glyphs) -> list[Row]:
    would = entry.get("would")
    would = would if isinstance(would, dict) else {}
    did = [f"{call.get('call') or 'set'} {call.get('set', '')}".strip() for call in would.get("calls") or ()]
    for change in would.get("changes") or ():
        kind = _WOULD.get(str(change.get("type")), "add to the trace")
        did.append(kind.format(of=str(change.get("of")).replace("_", " ")))
    if "raise" in would:
        did.append(f"raise {would['raise'].get('error_type')}: {first_line(would['raise'].get('error') or '')}")
    if "return" in would:
        did.append(f"return {_arguments.repr(would['return'])}")
    text = f"({actor(entry.get('by'))} would {', '.join(did)})"
    return [Row(4, ((text, "dim"),))]


def _failure(entry: TraceEntry, glyphs: Glyphs) -> list[Row]:
    by = entry.get("by")
    text = f"{glyphs.bad} {actor_with_place(by) + ' raised ' if isinstance(by, dict) else ''}{_error(entry)}"
    if isinstance(original := entry.get("handling"), dict):
        text += f" (while handling {_error(original)})"
    return [Row(4, ((text, "red"),), wrap=True)]


def _lost_update(entry: TraceEntry, glyphs: Glyphs) -> list[Row]:
    lost = [one for one in entry.get("lost") or () if isinstance(one, dict) and isinstance(one.get("key"), list)]
    what = ", ".join(f"{'.'.join(map(str, one['key']))} of {actor(one.get('by'))}" for one in lost)
    text = f"{glyphs.warn} {actor(entry.get('by'))} overwrote in the state: {what}"
    return [Row(4, ((text, "yellow"),), wrap=True)]


def _log(entry: TraceEntry, glyphs: Glyphs) -> list[Row]:
    return [Row(4, ((str(entry.get("text")), "dim"),), wrap=True)]


def _retrying(entry: TraceEntry, glyphs: Glyphs) -> list[Row]:
    """What the model call above waits for, at the time."""
    status, wait = entry.get("status"), entry.get("retry_after_s")
    reason = "the rate limit is reached" if status == 429 else "the request failed"
    waits = f"waits {duration(wait * 1000)} and tries again" if wait else "tries again"
    return [Row(4, ((f"{glyphs.warn} {entry.get('model')}: {reason} (HTTP {status}): {waits}", "yellow"),), wrap=True)]


def _mended(entry: TraceEntry, glyphs: Glyphs) -> list[Row]:
    text = "the conversation had calls without results, or results without calls: it was mended"
    return [Row(4, ((f"{glyphs.warn} {text}", "yellow"),), wrap=True)]


def _paused(entry: TraceEntry, glyphs: Glyphs) -> list[Row]:
    call, reason = entry.get("call"), entry.get("reason") or "no reason was given"
    who = actor(entry.get("by") or entry.get("inner"))
    head = Row(4, ((f"{glyphs.warn} {who} paused the turn: {reason}", "yellow"),), wrap=True)
    waits = call_text(call.get("name"), call.get("arguments")) if isinstance(call, dict) else str(entry.get("hook"))
    more = len(entry.get("waits") or ()) - 1
    others = f", and {more} other{'s' if more > 1 else ''}" if more > 0 else ""
    return [head, Row(6, ((f"{waits} waits{others}", "dim"),))]


def _resumed(entry: TraceEntry, glyphs: Glyphs) -> list[Row]:
    name = os.path.basename(str(entry.get("record")))
    if "undone" in entry:
        return [Row(4, ((f"{glyphs.other} turn {entry['undone']} was taken back", "cyan"),))]
    did = f", {decision(entry['decided'])}" if entry.get("decided") else ""
    rows = [Row(4, ((f"{glyphs.other} goes on from {name}, turn {entry.get('turn')}{did}", "cyan"),), wrap=True)]
    changed = entry.get("plugins") or {}
    if changed:
        differences = "; ".join(f"{kind} {', '.join(map(str, names))}" for kind, names in changed.items())
        rows.append(Row(6, ((f"{glyphs.warn} the plugins are not the same: {differences}", "yellow"),), wrap=True))
    return rows


def argument_rows(arguments: dict[str, Any]) -> list[Row]:
    """The arguments of a call that a person is asked about: whole, or with a note of how much is missing."""
    rows = []
    for name, value in arguments.items():
        text = value if isinstance(value, str) else arguments_text(value)
        first, *rest = text[:_ASKED].splitlines() or [""]
        if len(text) > _ASKED:
            rest.append(f"({len(text) - _ASKED} more characters are not shown)")
        rows.append(Row(2, ((f"{name}: {first}", ""),), wrap=True))
        rows += [Row(2, ((f"| {line}", ""),), wrap=True) for line in rest]
    return rows


def decision(decided: object) -> str:
    """What was decided about a turn that was paused, as the entry `resumed` has it."""
    decided = decided if isinstance(decided, dict) else {}
    if "reject" in decided:
        return f"rejected: {first_line(decided['reject'])}"
    return f"answered: {first_line(decided['answer'])}" if "answer" in decided else "approved"


_ROWS: dict[str, Callable[[TraceEntry, Glyphs], list[Row]]] = {
    "user_input": _user_input,
    "tool_execution": _tool,
    "message": _message,
    "message_edited": _message,
    "message_removed": _message,
    "change": _change,
    "error": _failure,
    "log": _log,
    "lost_update": _lost_update,
    "mended": _mended,
    "retrying": _retrying,
    "shadow": _shadow,
    "paused": _paused,
    "resumed": _resumed,
}
