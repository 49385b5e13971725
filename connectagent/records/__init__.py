"""Records: written line by line, read as data, in short or while they grow, and found.

A record grows by whole lines (`records/write.py` writes them), so each reader takes whole lines only.
Who writes a record loads no reader.
"""

from __future__ import annotations

import os
from typing import Any


def read_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A record as data: see `connectagent.records.read.read_record`."""
    from connectagent.records.read import read_record

    return read_record(path)
