"""One answer of a model as each wire writes it, whole or streamed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from wire_server import (
    Answer,
    block_events,
    chat,
    chat_stream,
    finish,
    message,
    message_stream,
    response,
    response_body,
    response_stream,
    text_events,
    tool_use,
    usage_chunk,
)

Call = tuple[str, str, dict[str, Any]]


def answer_on(wire: str, pieces: Sequence[str] = (), calls: Sequence[Call] = (), *, streamed: bool = False) -> Answer:
    """An answer with a text, calls of tools or both.

    Args:
        wire: "anthropic", "openai" or "openai-responses".
        pieces: of the text, as they are streamed.
        calls: of tools, each with its id, the tool's name and the arguments.
        streamed: whether it comes as a stream.
    """
    made = {"anthropic": _message, "openai": _completion, "openai-responses": _response}[wire]
    return made(pieces, calls, streamed)


def _message(pieces: Sequence[str], calls: Sequence[Call], streamed: bool) -> Answer:
    stop = "tool_use" if calls else "end_turn"
    texts = ["".join(pieces)] if pieces else []
    if not streamed:
        return message(*texts, *(tool_use(id, name, **arguments) for id, name, arguments in calls), stop=stop)
    events = text_events(0, *pieces) if pieces else []
    for index, (id, name, arguments) in enumerate(calls, len(texts)):
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        events += block_events(index, tool_use(id, name), delta)
    return message_stream(*events, stop=stop)


def _completion(pieces: Sequence[str], calls: Sequence[Call], streamed: bool) -> Answer:
    stop = "tool_calls" if calls else "stop"
    written = [(id, name, json.dumps(arguments)) for id, name, arguments in calls]
    if not streamed:
        return chat("".join(pieces) or None, calls=written, finish=stop)
    deltas: list[dict[str, Any]] = [{"content": piece} for piece in pieces]
    for index, (id, name, arguments) in enumerate(written):
        function = {"name": name, "arguments": arguments}
        deltas.append({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
    return chat_stream(*deltas, finish(stop), usage_chunk())


def _response(pieces: Sequence[str], calls: Sequence[Call], streamed: bool) -> Answer:
    texts = ["".join(pieces)] if pieces else []
    output = [*texts, *((id, name, json.dumps(arguments)) for id, name, arguments in calls)]
    return response_stream(response_body(*output)) if streamed else response(*output)
