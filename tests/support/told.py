"""Checks that a record tells each request whole."""

from __future__ import annotations

from pathlib import Path

from connectagent.records.blobs import blob_folder
from connectagent.records.read import read_record
from connectagent.records.sent import recorded_digest
from connectagent.records.watched import Request, watched_agents


def requests_of(path: Path) -> list[Request]:
    """The requests of a record that have a digest, rebuilt."""
    found = [made for agent in watched_agents(read_record(path), blob_folder(path)) for made in agent.requests()]
    return [made for made in found if "digest" in made.entry]


def rebuilt_digest(request: Request) -> str:
    messages = [sent.message for sent in request.messages]
    return recorded_digest(request.model, messages, request.tools, request.options, request.output)


def assert_told(path: Path) -> int:
    """Check all requests of a record; how many there are."""
    found = requests_of(path)
    for request in found:
        assert rebuilt_digest(request) == request.entry["digest"], request
    return len(found)
