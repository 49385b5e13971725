"""Records: writing, reading, following, summing up and finding them.

A record grows by whole lines (`records/write.py` writes them), so each reader takes whole lines only.
Writing a record loads no reader.
"""

from __future__ import annotations

import os
from typing import Any


def read_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A record as data: see `connectagent.records.read.read_record`."""
    from connectagent.records.read import read_record

    return read_record(path)
