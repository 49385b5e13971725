"""What a call may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a call may use."""

    timeout_s: float
    memory_mb: float
    output_mb: float
    read: tuple[str, ...]
    write: tuple[str, ...]
    network: bool
    env: tuple[str, ...]
    unconfined: bool
    container: str | None
    docker: str
