"""Records: finding, reading, summing up and writing them. Public is what `__all__` lists.

A record grows by whole lines (`records/write.py` writes them), so each reader takes whole lines only.
Writing a record loads no reader.

A record may come from a stranger. It is data: wrap what reads its values in `refuse_odd`, and ask `why_not_own` and
`why_not_run` before anything that it names is believed or run.
"""

from __future__ import annotations

from connectagent.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from connectagent.records.changes_by_plugins import PluginChange, plugin_changes
    from connectagent.records.find import find_record, find_records, last_record_of
    from connectagent.records.findings import findings_of, keep_finding
    from connectagent.records.own import why_not_own, why_not_run
    from connectagent.records.read import count_calls, read_head, read_record, refuse_odd
    from connectagent.records.record import Record
    from connectagent.records.requests import Request, SentMessage
    from connectagent.records.sent import canonical
    from connectagent.records.summary import Summary, summarise
    from connectagent.records.texts import content_text, data_text
    from connectagent.records.watched import WatchedAgent
    from connectagent.records.yaml_lines import record_value
    from connectagent.session.history import History
    from connectagent.session.journal import is_aside
    from connectagent.session.lines import Change, Line
    from connectagent.session.messages import text_of
    from connectagent.session.usage import Spent, spent_in, took_tokens, usage_of

_HOMES = {
    "records.find": "find_record find_records last_record_of",
    "records.findings": "findings_of keep_finding",
    "records.own": "why_not_own why_not_run",
    "records.changes_by_plugins": "PluginChange plugin_changes",
    "records.read": "count_calls read_head read_record refuse_odd",
    "records.record": "Record",
    "records.requests": "Request SentMessage",
    "records.sent": "canonical",
    "records.summary": "Summary summarise",
    "records.texts": "content_text data_text",
    "records.watched": "WatchedAgent",
    "records.yaml_lines": "record_value",
    "session.history": "History",
    "session.journal": "is_aside",
    "session.lines": "Change Line",
    "session.messages": "text_of",
    "session.usage": "Spent spent_in took_tokens usage_of",
}

__all__ = [
    "Change",
    "History",
    "Line",
    "PluginChange",
    "Record",
    "Request",
    "SentMessage",
    "Spent",
    "Summary",
    "WatchedAgent",
    "canonical",
    "content_text",
    "count_calls",
    "data_text",
    "find_record",
    "find_records",
    "findings_of",
    "is_aside",
    "keep_finding",
    "last_record_of",
    "plugin_changes",
    "read_head",
    "read_record",
    "record_value",
    "refuse_odd",
    "spent_in",
    "summarise",
    "text_of",
    "took_tokens",
    "usage_of",
    "why_not_own",
    "why_not_run",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
