"""Answers that come in another form than they were asked for: whole in place of a stream, or as a stream unasked.

Servers and gateways that ignore `stream`, or always stream, are known for all three wires.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

_MARK = b"\xef\xbb\xbf"  # a byte order mark: the SDKs do not know the line behind it
_BREAKS = bytes.maketrans(b"\r\n", b"  ")
_EVENTS = re.compile(r"\s*(data|event|id|retry)?:")


class BytesDecoder(Protocol):
    """What makes an SDK's events of the bytes of a stream."""

    def iter_bytes(self, pieces: Iterator[bytes]) -> Iterator[Any]: ...


class EventClient(Protocol):
    """The client of an SDK, which makes such decoders."""

    def _make_sse_decoder(self) -> BytesDecoder: ...


def read_whole_answers(stream: Any) -> None:
    """Make an SDK's stream read an answer that is no stream as one event, and drop a byte order mark.

    Should an SDK rename `_decoder`, such answers count as streams that were cut.
    """
    decoder = getattr(stream, "_decoder", None)
    if decoder is not None and hasattr(decoder, "iter_bytes"):
        stream._decoder = _Decoder(decoder)


class _Decoder:
    """An SDK's decoder of events, for bytes that may be a JSON object instead."""

    def __init__(self, decoder: BytesDecoder) -> None:
        self._decoder = decoder

    def iter_bytes(self, pieces: Iterator[bytes]) -> Iterator[Any]:
        return self._decoder.iter_bytes(_as_events(pieces))


def _as_events(pieces: Iterator[bytes]) -> Iterator[bytes]:
    begin = b""
    for piece in pieces:
        begin += piece
        if len(begin.lstrip()) >= len(_MARK):
            break
    begin = begin.removeprefix(_MARK)
    if not begin.lstrip().startswith(b"{"):
        yield begin
        yield from pieces
        return
    # line breaks are only between the values of a JSON text
    yield b"event: message\ndata: " + b"".join([begin, *pieces]).translate(_BREAKS) + b"\n\n"


def came_as_stream(answer: object) -> bool:
    """Whether what came for a plain request is the text of a stream."""
    return isinstance(answer, str) and _EVENTS.match(answer) is not None


class SentEvents:
    """The events of such an answer.

    Args:
        client: the SDK's, which decodes them.
        text: the answer.

    Attributes:
        done: whether `[DONE]` came.
    """

    def __init__(self, client: EventClient, text: str) -> None:
        self.done = False
        self._events: Iterable[Any] = client._make_sse_decoder().iter_bytes(iter([text.encode() + b"\n\n"]))

    def __iter__(self) -> Iterator[Any]:
        for event in self._events:
            if event.data.startswith("[DONE]"):
                self.done = True
                return
            if event.data.strip():
                yield json.loads(event.data)


def unheard(text: str) -> None:
    """What takes the text of a stream that nobody asked for."""
