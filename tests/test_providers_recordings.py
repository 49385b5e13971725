"""Every recorded conversation of the two wires, over the real SDKs, plain and streamed."""

from __future__ import annotations

from pathlib import Path

import pytest
from wire_driver import MODES, RETRIED, WIRE, Recording, drive, load, recordings, replay_server

pytestmark = pytest.mark.skipif(not WIRE.is_dir(), reason=f"the recordings are not here: {WIRE}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("path", recordings(), ids=lambda path: path.stem)
def test_a_recorded_conversation_is_driven_as_it_was(path: Path, mode: str) -> None:
    recording = Recording(load(path))
    with replay_server(path) as server:
        driven = drive(recording, server, mode)
        assert server.n == len(recording.data["exchanges"])
        assert server.errors == []
        assert server.warnings == []
    assert [error.kind for error in driven.errors] == recording.error_kinds
    assert driven.calls == recording.calls
    assert (driven.last.content if driven.last else None) == recording.text
    assert [(usage.input_tokens, usage.output_tokens) for usage in driven.usages if usage] == recording.usages
    assert driven.retried == RETRIED.get(path.stem, [])
    if mode == "stream" and driven.last is not None and not driven.errors:
        assert driven.streamed == (driven.last.content or "")


def test_all_recorded_conversations_are_here() -> None:
    assert len(recordings()) == 46
