"""The recorded conversations of `shared/wire`: what a test needs to drive one, and what to expect of it.

The recordings are not part of this repository. Where they are missing, the tests that need them are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wire_server import response_stream

WIRE = Path(__file__).resolve().parents[3] / "shared" / "wire"
MODES = ("plain", "stream")

# What each recorded failure is.
ERROR_KINDS = {
    "anthropic-400-missing-tool-result": ["bad_request"],
    "anthropic-400-prompt-too-long": ["context_length"],
    "anthropic-401-invalid-key": ["auth"],
    "anthropic-404-model": ["not_found"],
    "anthropic-stream-overloaded-midway": ["overloaded"],
    "azure-chat-content-filter": ["content_filter"],
    "groq-chat-400-tool-use-failed": ["tool_use_failed"],
    "openai-chat-400-missing-tool-message": ["bad_request"],
    "openai-chat-400-unsupported-parameter": ["bad_request"],
    "openai-chat-401-invalid-key": ["auth"],
    "openai-chat-404-model": ["not_found"],
    "openrouter-chat-429-three-times": ["rate_limit"],
    "openrouter-chat-stream-error-in-200": ["bad_request"],
}
# The attempts that the SDK made again, in conversations that went well.
RETRIED = {
    "anthropic-429-retry-after-then-ok": [429],
    "anthropic-529-then-ok": [529],
    "openai-chat-429-tpm-then-ok": [429],
    "openai-chat-500-then-ok": [500],
}


def recordings() -> list[Path]:
    """The recorded conversations; [] where there are none here."""
    return sorted(WIRE.glob("*.json"))


def replay_server(path: Path, mode: str = "plain") -> Any:
    """A `ReplayServer` for one recording, to be entered. It cannot make a stream of a plain answer of Responses."""
    name = "connectagent_replay_server"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, WIRE / "replay_server.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    data = load(path)
    if mode == "stream" and data["wire"] == "openai-responses":
        for exchange in data["exchanges"]:
            response = exchange["response"]
            if "body" in response:
                response["body_text"] = response_stream(response.pop("body")).text
                response["headers"]["content-type"] = "text/event-stream"
    return sys.modules[name].ReplayServer(data)


def load(path: Path) -> dict[str, Any]:
    """One recording."""
    data: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return data


@dataclass
class Recording:
    """One recorded conversation: what a harness needs to drive it, and what must come of it."""

    data: dict[str, Any]

    @property
    def is_anthropic(self) -> bool:
        return bool(self.data["wire"] == "anthropic-messages")

    @property
    def is_responses(self) -> bool:
        return bool(self.data["wire"] == "openai-responses")

    @property
    def provider(self) -> str:
        if self.is_responses:
            return "openai-responses"
        name = str(self.data["id"]).split("-")[0]
        return "openai" if name == "azure" else name

    @property
    def model(self) -> str:
        return str(self.data["exchanges"][0]["request"]["body"].get("model") or "gpt-4o")

    @property
    def system(self) -> str | None:
        system: str | None = self.data["drive"].get("system")
        return system

    @property
    def tools(self) -> list[dict[str, Any]]:
        return [
            {"type": "function", "function": {key: tool.get(key) for key in ("name", "description", "parameters")}}
            for tool in self.data["drive"].get("tools") or []
        ]

    @property
    def options(self) -> dict[str, Any]:
        """The parameters that the recording client set, its provider's own tools among them."""
        body = self.data["exchanges"][0]["request"]["body"]
        unset = ("model", "messages", "input", "system", "tools", "stream", "stream_options")
        options = {key: value for key, value in body.items() if key not in unset}
        known = {"function", "input_schema", "parameters"}
        native = [tool for tool in body.get("tools") or [] if not known & tool.keys()]
        return {**options, "tools": native} if native else options

    def prompt(self, turn: dict[str, Any]) -> Any:
        """The user's message of a turn, with the image that the recorded one has."""
        body = self.data["exchanges"][turn["exchanges"][0]]["request"]["body"]
        for message in reversed(body.get("messages") or body["input"]):
            parts = message.get("content")
            if message["role"] == "user" and isinstance(parts, list):
                images = [part for part in parts if part.get("type") == "image_url"]
                if images:
                    return [{"type": "text", "text": turn["user"]}, *images]
        return turn["user"]

    def result(self, call_id: str) -> Any:
        """What the recording client's tool returned, as content of a `tool` message."""
        content = self.data["drive"]["tool_results"].get(call_id, {}).get("content", "no result was recorded")
        if isinstance(content, str):
            return content
        return [
            part
            if part["type"] == "text"
            else {
                "type": "image_url",
                "image_url": {"url": f"data:{part['source']['media_type']};base64,{part['source']['data']}"},
            }
            for part in content
        ]

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """Name and arguments of the calls that the recording says, in order."""
        return [
            (call["name"], json.loads(call["arguments"] or "{}") if isinstance(call["arguments"], str)
             else call["arguments"])
            for call in self.data["expect"]["tool_calls"]
        ]  # fmt: skip

    @property
    def text(self) -> str | None:
        """The final text; a refusal's words are the text of a refusal."""
        last = self.data["expect"]["last"]
        if self.data["id"] == "openai-chat-refusal":
            return str(self.data["exchanges"][0]["response"]["body"]["choices"][0]["message"]["refusal"])
        return (last or {}).get("text") or None

    @property
    def usages(self) -> list[tuple[int, int]]:
        """Input and output tokens of each answer; the recorded input of Anthropic leaves the cached ones out."""
        usages = [tuple(usage) for usage in self.data["expect"]["usage_per_exchange"]]
        if self.data["id"] == "azure-chat-content-filter":
            return []  # the usage of an answer that was held back
        if self.data["id"] == "anthropic-cached-usage-with-tools":
            bodies = [exchange["response"]["body"]["usage"] for exchange in self.data["exchanges"]]
            cached = [body["cache_read_input_tokens"] + body["cache_creation_input_tokens"] for body in bodies]
            return [(usage[0] + more, usage[1]) for usage, more in zip(usages, cached, strict=True)]
        return [(usage[0], usage[1]) for usage in usages]

    @property
    def error_kinds(self) -> list[str]:
        return ERROR_KINDS.get(self.data["id"], [])
