"""What the trace entry of a tool call says if the tool was not run, or its end was not seen."""

from __future__ import annotations

from typing import Any

from connectagent.data import Retry, TraceEntry
from connectagent.session.messages import NOT_RUN
from connectagent.tools.results import result_content

IN_DOUBT = "in doubt: the process ended while this tool ran, so it may have taken effect; it was not run again"
LOST = "the tool ran, but the process ended before its result was seen; it was not run again"
LACKS = "{names} is masked in the record, with which this turn goes on; the call was not run: give it again, unmasked"
ENDED = NOT_RUN.format(reason="the turn was ended")
OF_ATTEMPT = (
    *("status", "result", "error", "error_type", "raised_at", "result_type", "original", "ended_turn", "timing"),
    "duration_ms",
    *("tool_name", "arguments", "original_tool_name", "original_arguments", "sent_arguments"),
    *("attempt", "attempts", "started", "ended", "handoff", "by"),
)
"""The keys of the entry that a later attempt replaces."""
BEGUN = ("type", "tool_name", "arguments", "call_id", "iteration", "timestamp")
"""The keys that the entry of a call has before anything became of it, besides `timing`."""
HELD = ("timing", "by", "error", "error_type")
"""What the entry of a call whose round waits for another one says of its end, besides its result and `held`."""
FAILED = ("error", "not_found", "recovered")
DATA = (dict, list, int, float, bool, type(None))  # types of values that can be restored from a result, which is text


def as_result(value: Any) -> Any:
    """A value of an `on_error` handler, as a result or a `Retry`."""
    return value if isinstance(value, Retry) else result_content(value)


def attempt_of(entry: TraceEntry) -> dict[str, Any]:
    """One attempt as the call's entry lists it, if there were several."""
    keys = ("started", "timing", "duration_ms", "status", "error", "error_type")
    return {key: entry[key] for key in keys if key in entry}
