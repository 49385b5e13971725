"""Records as they are read: whole, by head and tail, and while they grow.

A record grows by whole lines (`builtin/record.py` writes them), so each reader takes whole lines only.
Nothing here makes a folder or loads a plugin.
"""

from connectagent.records.growing import Follower, follow
from connectagent.records.locks import is_running, lock
from connectagent.records.place import agent_in_name, all_records, find_record, records_folder
from connectagent.records.summary import Summary, Totals, summarise
from connectagent.records.whole import BETWEEN_TURNS, joined_turns, read_record

__all__ = [
    "BETWEEN_TURNS",
    "Follower",
    "Summary",
    "Totals",
    "agent_in_name",
    "all_records",
    "find_record",
    "follow",
    "is_running",
    "joined_turns",
    "lock",
    "read_record",
    "records_folder",
    "summarise",
]
