"""A provider on loopback that refuses content as the real ones do, on each of the three wires, plain and streamed.

It answers by the conversation: a user's text `call NAME` gets a call of that tool, everything else a text. What it
refuses are the published rules, and what carries the mark POISON: that stands for all that no client can know.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

from wire_server import (
    Answer,
    WireServer,
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

WIRES = ("anthropic", "openai", "openai-responses")
MODELS = {"anthropic": "claude-sonnet-4-5", "openai": "gpt-4o", "openai-responses": "gpt-4o"}
POISON = b"POISON"
_MAGIC = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8", "image/gif": b"GIF8", "image/webp": b"RIFF"}
_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_DATA = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)


def png(width: int = 1, height: int = 1, *, poison: bool = False, padding: int = 0) -> bytes:
    """A PNG; `poison`: one that the provider refuses though nothing is wrong with it; `padding`: further bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    note = chunk(b"tEXt", b"note\0" + (POISON if poison else b"") + b" " * padding)
    rows = chunk(b"IDAT", zlib.compress(b"\0" * (width + 1) * height))
    return _MAGIC["image/png"] + chunk(b"IHDR", head) + note + rows + chunk(b"IEND", b"")


def pdf(poison: bool = False) -> bytes:
    """A PDF of one page, as far as anybody looks."""
    return b"%PDF-1.4\n1 0 obj << /Type /Page >> endobj\n" + (POISON if poison else b"") + b"\n%%EOF"


class RefusingProvider(WireServer):
    """The provider; `requests` has all requests, `refused` the errors that it answered, `taken` the other requests."""

    def __init__(self, wire: str) -> None:
        super().__init__(Answer())
        self.wire, self.refused, self.taken = wire, list[dict[str, Any]](), list[Any]()

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of an agent that asks it."""
        address = self.url if self.wire == "anthropic" else self.openai_url
        return {"model": f"{self.wire}/{MODELS[self.wire]}", "base_url": address, "api_key": "k"}

    def _reply(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        body = self.requests[-1]
        problem = next(iter(problems(self.wire, body)), None)
        if problem is not None:
            self.refused.append(problem.body)
            super()._reply(handler, problem)
            return
        self.taken.append(body)
        super()._reply(handler, said(self.wire, body, bool(body.get("stream"))))


# -- what it refuses -----------------------------------------------------------------------------


def error(wire: str, text: str, status: int = 400, param: str | None = None, code: str | None = None) -> Answer:
    """An error as a provider of this wire sends it."""
    if wire == "anthropic":
        kind = "request_too_large" if status == 413 else "invalid_request_error"
        return Answer({"type": "error", "error": {"type": kind, "message": text}, "request_id": "req_1"}, status)
    inner = {"message": text, "type": "invalid_request_error", "param": param, "code": code}
    return Answer({"error": inner}, status)


def problems(wire: str, body: Any) -> Iterator[Answer]:
    """What is wrong with a request, in the words of the provider."""
    if body.get("temperature") == 9:
        text = "temperature: range: 0..1" if wire == "anthropic" else "Invalid value for 'temperature': too large"
        yield error(wire, text, param="temperature")
    for number, tool in enumerate(body.get("tools") or ()):
        yield from _tool_problems(wire, number, tool)
    for where, kind, declared, data in _attachments(wire, body):
        yield from _attachment_problems(wire, where, kind, declared, data)
    for where, text in _texts(body.get("messages") or body.get("input")):
        if POISON.decode() in text:
            where = where if wire == "anthropic" else f"{'input' if wire != 'openai' else 'messages'}[{where}]"
            yield error(wire, f"{where}: content has a character that is not allowed", param=where)


def _tool_problems(wire: str, number: int, tool: Any) -> Iterator[Answer]:
    function = tool.get("function") or tool
    schema = function.get("input_schema") or function.get("parameters") or {}
    invalid = list(_invalid(schema))
    if wire == "anthropic":
        if not all(map(_KEY.fullmatch, schema.get("properties") or ())):
            text = "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"
            yield error(wire, f"tools.{number}.custom.input_schema.properties: {text}")
        if invalid:
            text = "JSON schema is invalid. It must match JSON Schema draft 2020-12"
            yield error(wire, f"tools.{number}.custom.input_schema: {text}")
    elif invalid:
        text = f"Invalid schema for function '{function['name']}': {invalid[0]}"
        param = f"tools[{number}].function.parameters"
        yield error(wire, text, param=param, code="invalid_function_parameters")


def _invalid(schema: Any) -> Iterator[str]:
    """What no draft 2020-12 schema has."""
    if isinstance(schema, list):
        for one in schema:
            yield from _invalid(one)
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
            yield f"{value} is not of type 'number'"
        if key == "format" and value == "poison":
            yield "'poison' is not a valid format"
        if key not in ("default", "enum", "const", "examples"):
            yield from _invalid(value)


def _attachments(wire: str, body: Any) -> Iterator[tuple[str, str, str, bytes]]:
    """Where each image or document stands, `image` or `pdf`, its declared type, and its bytes."""
    for number, one in enumerate(body.get("messages") or body.get("input") or ()):
        for path, value in _walk(one, f"messages.{number}"):
            if not isinstance(value, dict):
                continue
            source = value.get("source")
            if value.get("type") in ("image", "document") and isinstance(source, dict) and "data" in source:
                kind = "image" if value["type"] == "image" else "pdf"
                if source["type"] == "base64":
                    yield f"{path}.{kind}.source.base64", kind, source["media_type"], base64.b64decode(source["data"])
            url = value.get("image_url") or value.get("file_data")
            url = url.get("url") if isinstance(url, dict) else url
            if isinstance(url, str) and (found := _DATA.match(url)):
                kind = "image" if "image_url" in value else "pdf"
                yield path, kind, found[1], base64.b64decode(found[2])


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield from _walk(one, f"{path}.{key}")


def _attachment_problems(wire: str, where: str, kind: str, declared: str, data: bytes) -> Iterator[Answer]:
    poisoned = POISON in data
    if kind == "pdf":
        if poisoned or not data.startswith(b"%PDF-"):
            text = f"{where}.data: The PDF specified was not valid." if wire == "anthropic" else "Invalid file data"
            yield error(wire, text, param="file_data")
        return
    whole = data.startswith(_MAGIC["image/png"]) and data.endswith(struct.pack(">I", zlib.crc32(b"IEND")))
    if wire != "anthropic":
        if poisoned or not whole:
            formats = "Please make sure your image has of one the following formats: ['png', 'jpeg', 'gif', 'webp']."
            yield error(wire, f"You uploaded an unsupported image. {formats}", code="invalid_image_format")
        return
    if not data.startswith(_MAGIC.get(declared, b"?")):
        yield error(wire, f"{where}.data: Image does not match the provided media type {declared}")
    size = len(base64.b64encode(data))
    if size > 5242880:
        yield error(wire, f"{where}: image exceeds 5 MB maximum: {size} bytes > 5242880 bytes")
    if poisoned or not whole:
        yield error(wire, f"{where}.data: Could not process image")


def _texts(messages: Any) -> Iterator[tuple[str, str]]:
    for number, one in enumerate(messages or ()):
        for path, value in _walk(one, f"messages.{number}"):
            if isinstance(value, str) and not path.endswith((".data", ".url", ".image_url", ".file_data")):
                yield path, value


# -- what it answers -----------------------------------------------------------------------------


def said(wire: str, body: Any, streamed: bool) -> Answer:
    """The answer to a request: a call, if the last message asks for one, else a text."""
    last = (body.get("messages") or body.get("input"))[-1]
    found = re.search(r"call (\w+)(?: (\{.*\}))?", _asked(last))
    if found is None:
        return _text(wire, "Seen.", streamed)
    return _call(wire, found[1], json.loads(found[2] or "{}"), streamed)


def _asked(last: Any) -> str:
    """The text of a user's last message; "" if it has results."""
    content = last.get("content")
    if last.get("role") != "user" or (isinstance(content, list) and any("tool_use_id" in one for one in content)):
        return ""
    if isinstance(content, str):
        return content
    return " ".join(one.get("text", "") for one in content or () if not one.get("text", "").startswith("["))


def _text(wire: str, text: str, streamed: bool) -> Answer:
    if wire == "anthropic":
        return message_stream(*text_events(0, text)) if streamed else message(text)
    if wire == "openai":
        return chat_stream({"content": text}, finish(), usage_chunk()) if streamed else chat(text)
    return response_stream(response_body(text)) if streamed else response(text)


_ids = iter(range(10**9))


def _call(wire: str, name: str, arguments: dict[str, Any], streamed: bool) -> Answer:
    id, written = f"call_{next(_ids)}", json.dumps(arguments)
    if wire == "anthropic":
        if not streamed:
            return message(tool_use(id, name, **arguments), stop="tool_use")
        delta = {"type": "input_json_delta", "partial_json": written}
        return message_stream(*block_events(0, tool_use(id, name), delta), stop="tool_use")
    if wire == "openai":
        if not streamed:
            return chat(calls=[(id, name, written)], finish="tool_calls")
        call = {"index": 0, "id": id, "type": "function", "function": {"name": name, "arguments": written}}
        return chat_stream({"tool_calls": [call]}, finish("tool_calls"), usage_chunk())
    return response_stream(response_body((id, name, written))) if streamed else response((id, name, written))
