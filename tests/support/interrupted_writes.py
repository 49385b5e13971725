"""Ctrl-C at a write of the record."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def ctrl_c_after(text: bytes) -> Iterator[None]:
    """Press Ctrl-C right after each write that has this text, as long as the block runs."""
    write = os.write

    def interrupted(fd: int, data: Any) -> int:
        written = write(fd, data)
        if text in bytes(data):
            raise KeyboardInterrupt
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", interrupted)
        yield
