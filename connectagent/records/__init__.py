"""Records as they are read: whole, by head and tail, and while they grow.

A record grows by whole lines (`records/write.py` writes them), so each reader takes whole lines only.
Nothing here makes a folder or loads a plugin.
"""

from connectagent.records.find import agent_in_name, all_records, find_record, records_folder
from connectagent.records.follow import Follower, follow
from connectagent.records.locks import held, is_running, lock, lock_to_write
from connectagent.records.read import BETWEEN_TURNS, joined_turns, read_record
from connectagent.records.summary import Summary, Totals, summarise

__all__ = [
    "BETWEEN_TURNS",
    "Follower",
    "Summary",
    "Totals",
    "agent_in_name",
    "all_records",
    "find_record",
    "follow",
    "held",
    "is_running",
    "joined_turns",
    "lock",
    "lock_to_write",
    "read_record",
    "records_folder",
    "summarise",
]
