"""A provider on loopback that answers what a test says, over real HTTP, and keeps what was sent to it.

    with WireServer(chat("Hello"), chat(calls=[("c1", "add", '{"a": 1}')])) as server:
        llm = OpenAILLM("gpt-4o", api_key="k", base_url=server.openai_url)

The n-th request gets the n-th answer; the last one is given again and again.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parents[1] / "wire" / "fixtures"


@dataclass
class Answer:
    """One response: JSON, or the text of an event stream; `cut` drops the connection behind it."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    text: str | None = None
    cut: bool = False
    wait_s: float = 0

    @property
    def content_type(self) -> str:
        return "text/event-stream" if self.text is not None else "application/json"


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client that did not wait
            super().handle_error(request, client_address)


class WireServer:
    """The server; `requests` holds the bodies that it got, `headers` their headers."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length") or 0))
                server.paths.append(self.path)
                server.headers.append({key.lower(): value for key, value in self.headers.items()})
                server.requests.append(json.loads(raw))
                server._reply(self, server.answers[min(len(server.requests), len(server.answers)) - 1])

        self._http = _QuietServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self.openai_url = f"{self.url}/v1"

    def _reply(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        time.sleep(answer.wait_s)
        payload = (answer.text if answer.text is not None else json.dumps(answer.body)).encode("utf-8", "surrogatepass")
        if isinstance(answer.body, str):
            payload = answer.body.encode()
        handler.send_response(answer.status)
        for key, value in {"content-type": answer.content_type, **answer.headers}.items():
            handler.send_header(key, value)
        handler.send_header("content-length", str(len(payload) + (10 if answer.cut else 0)))
        handler.end_headers()
        handler.wfile.write(payload)
        handler.wfile.flush()
        if answer.cut:
            handler.close_connection = True
            handler.connection.shutdown(2)

    def __enter__(self) -> WireServer:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.shutdown()
        self._http.server_close()


# ------------------------------------------------------------------------------- OpenAI's wire, in words


def chat(content: Any = None, *, calls: Iterable[Any] = (), finish: str | None = "stop", **message: Any) -> Answer:
    """A plain chat completion; `calls` are `(id, name, arguments)` or whole dicts."""
    said = {"role": "assistant", "content": content, **message}
    if calls:
        said["tool_calls"] = [_call(call) for call in calls]
    return Answer(completion(said, finish))


def completion(message: Any, finish: str | None = "stop", **more: Any) -> dict[str, Any]:
    """The body of a chat completion with this message."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "model-as-served",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        **more,
    }


def _call(call: Any) -> dict[str, Any]:
    if isinstance(call, dict):
        return call
    id, name, arguments = call
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def chat_stream(*chunks: dict[str, Any] | str, done: bool = True, cut: bool = False) -> Answer:
    """A streamed chat completion: deltas (a dict with `choices` or `error` is a whole chunk), comments as text."""
    lines = []
    for chunk in chunks:
        if isinstance(chunk, str):
            lines.append(f": {chunk}")
            continue
        whole = chunk if chunk.keys() & {"choices", "error"} else {"choices": [{"index": 0, "delta": chunk}]}
        lines.append("data: " + json.dumps({"id": "chatcmpl-1", "model": "model-as-served", **whole}))
    if done:
        lines.append("data: [DONE]")
    return Answer(text="".join(f"{line}\n\n" for line in lines), cut=cut)


def finish(reason: str = "stop") -> dict[str, Any]:
    """The chunk that names the finish reason."""
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def usage_chunk(prompt: int = 10, completion: int = 5) -> dict[str, Any]:
    """The chunk without choices that tells the usage."""
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


# ---------------------------------------------------------------------------- Anthropic's wire, in words


def message(*content: Any, stop: str = "end_turn", usage: dict[str, Any] | None = None) -> Answer:
    """A plain answer of Anthropic's; a text stands for a text block."""
    return Answer(message_body(*content, stop=stop, usage=usage))


def message_body(*content: Any, stop: str = "end_turn", usage: dict[str, Any] | None = None) -> dict[str, Any]:
    """The body of such an answer."""
    blocks = [{"type": "text", "text": item} if isinstance(item, str) else item for item in content]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "model-as-served",
        "content": blocks,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": usage or {"input_tokens": 10, "output_tokens": 5},
    }


def tool_use(id: str, name: str, **input: Any) -> dict[str, Any]:
    """A block that asks for a tool."""
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def message_stream(*events: dict[str, Any], stop: str = "end_turn", whole: bool = True, cut: bool = False) -> Answer:
    """A streamed answer of Anthropic's from its content events; `whole`: `message_stop` comes at the end."""
    start = {"type": "message_start", "message": message_body(stop=""), "usage": {}}
    every: list[dict[str, Any]] = [start, {"type": "ping"}, *events]
    if whole:
        every.append({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 7}})
        every.append({"type": "message_stop"})
    text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in every)
    return Answer(text=text, cut=cut)


def block_events(index: int, block: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of one block."""
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text_events(index: int, *pieces: str) -> list[dict[str, Any]]:
    """The events of a text block."""
    return block_events(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": p} for p in pieces))


# ------------------------------------------------------------------------- OpenAI's Responses, in words


def response_body(*output: Any, status: str = "completed", why: str | None = None, **more: Any) -> dict[str, Any]:
    """The body of an answer; a text stands for a message, `(id, name, arguments)` for a call."""
    items = [_item(number, item) for number, item in enumerate(output)]
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    return {
        "id": "resp_1",
        "object": "response",
        "model": "model-as-served",
        "status": status,
        "error": None,
        "incomplete_details": None if why is None else {"reason": why},
        "output": items,
        "usage": usage,
        **more,
    }


def _item(number: int, item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        part = {"type": "output_text", "text": item, "annotations": []}
        return {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": [part]}
    if isinstance(item, tuple):
        id, name, arguments = item
        told = {"call_id": id, "name": name, "arguments": arguments}
        return {"type": "function_call", "id": f"fc_{number}", "status": "completed", **told}
    return dict(item)


def reasoning(id: str = "rs_1", encrypted: str | None = "gAAAAA-secret") -> dict[str, Any]:
    """A reasoning item."""
    return {"type": "reasoning", "id": id, "summary": [], "encrypted_content": encrypted}


def response(*output: Any, **more: Any) -> Answer:
    """A plain answer of the Responses API."""
    return Answer(response_body(*output, **more))


def response_stream(body: dict[str, Any], whole: bool = True, cut: bool = False) -> Answer:
    """The same answer as a stream; `whole`: its last event comes too."""
    events: list[dict[str, Any]] = [{"type": "response.created", "response": {**body, "output": [], "usage": None}}]
    for index, item in enumerate(body["output"]):
        events.append({"type": "response.output_item.added", "output_index": index, "item": {**item, "content": []}})
        for part in item.get("content") or []:
            kind = {"output_text": "response.output_text.delta", "refusal": "response.refusal.delta"}[part["type"]]
            text = part.get("text") or part.get("refusal") or ""
            pieces = [text[: len(text) // 2], text[len(text) // 2 :]]
            events += [{"type": kind, "output_index": index, "delta": piece} for piece in pieces]
        if item["type"] == "function_call":
            kind = "response.function_call_arguments.delta"
            events.append({"type": kind, "output_index": index, "delta": item["arguments"]})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    if whole:
        events.append({"type": f"response.{body['status']}", "response": body})
    text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return Answer(text=text, cut=cut)


def conversation(name: str) -> dict[str, Any]:
    """A whole conversation of `tests/wire/fixtures`: `provider`, `model`, `tools`, `results`, `answers`, `expect`."""
    found: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text("utf-8"))
    return found


def answers_of(found: dict[str, Any]) -> list[Answer]:
    """The answers of such a conversation."""
    return [Answer(**answer) for answer in found["answers"]]
