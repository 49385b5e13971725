"""Providers on loopback that keep what they publish about thinking, signatures and ids, each with several models.

A model thinks as the real one does, and its thinking carries a signature that this server wrote for this model; what
another server, or another model, has written is refused in the words of the provider. A prompt `calls=2` is answered
with two rounds of a call of `look`, then with a text; a text of the user that begins with `Note` is no prompt.
"""

from __future__ import annotations

import json
import re
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

DUMMY = "skip_thought_signature_validator"  # ai.google.dev/gemini-api/docs/thought-signatures, questions
_CHAT_KEYS = {"role", "content", "name", "tool_calls", "tool_call_id"}
_MORE_KEYS = {"deepseek": {"reasoning_content"}, "openrouter": {"reasoning", "reasoning_details"}}
_CALL_KEYS = {"id", "type", "function"}
_THINKING = ("thinking", "redacted_thinking")


class Publisher(WireServer):
    """A provider; `refused` has what it answered 400 to, `own` how many of its signatures each request brought back.

    Args:
        provider: by whose rules it goes: `anthropic`, `openai-responses`, or one on the chat wire.
    """

    def __init__(self, provider: str) -> None:
        super().__init__(Answer())
        self.provider = provider
        self.refused: list[str] = []
        self.own: list[int] = []
        self.failing = 0
        self._written: dict[str, str] = {}  # by signature: the model that wrote it
        self._behind: dict[str, str] = {}  # by signature: what stood before it

    def forget(self) -> None:
        """Take nothing back any more that was written before, as for the key of another account."""
        self._written = dict.fromkeys(self._written, "of another account")

    def _reply(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        body = self.requests[-1]
        if self.failing:
            self.failing -= 1
            super()._reply(handler, self._error("overloaded", 503))
            return
        self.own.append(0)
        problem = next(self._problems(body), None)
        if problem is not None:
            self.refused.append(f"{self.provider}/{body['model']}: {problem}")
            super()._reply(handler, self._error(problem, 400))
            return
        super()._reply(handler, self._said(body))

    def _error(self, text: str, status: int) -> Answer:
        if self.provider == "anthropic":
            return Answer({"type": "error", "error": {"type": "invalid_request_error", "message": text}}, status)
        error: dict[str, Any] = {"message": text, "type": "invalid_request_error", "param": None, "code": None}
        if self.provider == "openrouter":
            error = {"message": "Provider returned error", "code": status, "metadata": {"raw": json.dumps(text)}}
        return Answer({"error": error}, status)

    def _problems(self, body: Any) -> Iterator[str]:
        if self.provider == "anthropic":
            return self._anthropic(body)
        return self._responses(body) if self.provider == "openai-responses" else self._chat(body)

    def _sign(self, model: str) -> str:
        signature = f"{self.url}#{model}#{len(self._written)}"
        self._written[signature] = model
        return signature

    def _wrote(self, signature: Any, model: str) -> bool:
        """Whether this model wrote a signature here, which is counted."""
        found = self._written.get(signature) == model
        self.own[-1] += found
        return found

    # -- Anthropic

    def _anthropic(self, body: Any) -> Iterator[str]:
        mode = _mode(body)
        if mode == "enabled" and body["max_tokens"] <= body.get("thinking", {}).get("budget_tokens", 0):
            yield "`max_tokens` must be greater than `thinking.budget_tokens`"
        if "deepseek" in body["model"]:
            yield from self._deepseeks(body, mode)
            return
        for number, one in enumerate(body["messages"]):
            for at, block in enumerate(one["content"]):
                if block["type"] in _THINKING and not self._wrote(block["signature"], body["model"]):
                    yield f"messages.{number}.content.{at}: Invalid `signature` in `thinking` block"
                if block["type"] == "tool_use" and not re.fullmatch("[a-zA-Z0-9_-]+", block["id"]):
                    yield f"messages.{number}.content.{at}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
        if "fable" in body["model"]:
            yield from self._rebound(body)
            return
        for number, one in _final_turn(body["messages"]):
            kinds = [block["type"] for block in one["content"]]
            if mode == "enabled" and kinds[0] not in _THINKING:
                yield (
                    f"messages.{number}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
                    f"`{kinds[0]}`. When `thinking` is enabled, a final `assistant` message must start with a thinking "
                    "block (preceeding the lastmost set of `tool_use` and `tool_result` blocks)."
                )
            if mode != "enabled" and set(kinds) & set(_THINKING):
                yield (
                    f"messages.{number}.content.0: When thinking is disabled, an `assistant` message in the final "
                    "position cannot contain `thinking`."
                )

    def _rebound(self, body: Any) -> Iterator[str]:
        """Newer models bind thinking to all that stands before it: platform.claude.com, "Preserved thinking"."""
        for number, one in enumerate(body["messages"]):
            for at, block in enumerate(one["content"]):
                if block["type"] == "thinking" and self._behind[block["signature"]] != _prefix(body, number):
                    yield (
                        f"messages.{number}.content.{at}: Invalid `signature` in `thinking` block. The block is bound "
                        "to a different conversation."
                    )

    def _deepseeks(self, body: Any, mode: str | None) -> Iterator[str]:
        for one in body["messages"]:
            kinds = [block["type"] for block in one["content"]]
            own = kinds[0] == "thinking" and self._wrote(one["content"][0]["signature"], body["model"])
            if "thinking" in kinds and not own:
                yield "a thinking block that DeepSeek has not written"
            if mode == "enabled" and "tool_use" in kinds and not own:
                yield "The `content[].thinking` in the thinking mode must be passed back to the API."

    # -- Responses

    def _responses(self, body: Any) -> Iterator[str]:
        items = body["input"]
        for number, item in enumerate(items):
            if item.get("type") != "reasoning":
                continue
            if not self._wrote(item["encrypted_content"], body["model"]):
                yield f"The encrypted content for item {item['id']} could not be verified."
            behind = items[number + 1] if number + 1 < len(items) else {}
            if behind.get("type") not in ("function_call", "message"):
                yield f"Item '{item['id']}' of type 'reasoning' was provided without its required following item."

    # -- the chat wire

    def _chat(self, body: Any) -> Iterator[str]:
        model, behind = body["model"], None
        keys = _CHAT_KEYS | _MORE_KEYS.get(self.provider, set())
        call_keys = _CALL_KEYS | ({"extra_content"} if self.provider == "gemini" else set())
        for number, one in enumerate(body["messages"]):
            if unknown := set(one) - keys:
                yield f"messages[{number}]: Additional properties are not allowed ({sorted(unknown)} was unexpected)"
            for call in one.get("tool_calls") or ():
                if unknown := set(call) - call_keys:
                    yield f"messages[{number}].tool_calls: unknown field {sorted(unknown)}"
            if one["role"] == "assistant":
                yield from self._spoken(body, number, one)
            if "stral" in model:
                yield from _mistrals(one, behind)
            behind = one["role"]
        if "gemini-3" in model:
            yield from self._unsigned(body)
        if "claude" in model and "reasoning" in body:
            yield from self._unthought(body)

    def _spoken(self, body: Any, number: int, one: Any) -> Iterator[str]:
        model = body["model"]
        for detail in one.get("reasoning_details") or ():
            signature = detail.get("signature") or detail.get("data")
            if not self._wrote(signature, model) and not ("gemini-3" in model and signature == DUMMY):
                yield _upstream(model, number)
        for call in one.get("tool_calls") or ():
            signature = _signature(call)
            if signature not in (None, DUMMY) and not self._wrote(signature, model):
                yield "Corrupted thought signature."
        thought = one.get("reasoning_content")
        if thought and not self._wrote(thought, model):
            yield f"messages[{number}]: reasoning_content that DeepSeek has not written"
        if self.provider == "deepseek" and _thinks(body) and one.get("tool_calls") and thought is None:
            yield f"Missing `reasoning_content` field in the assistant message at message index {number}."

    def _unsigned(self, body: Any) -> Iterator[str]:
        """Calls of the turn that goes on whose first one has no signature."""
        messages = body["messages"]
        begin = max(n for n, one in enumerate(messages) if one["role"] == "user" and one["content"][:4] != "Note")
        for number, one in enumerate(messages[begin:], begin):
            calls = one.get("tool_calls")
            details = one.get("reasoning_details") or ()
            bound = [one["id"] for one in details if one["type"] == "reasoning.encrypted"]
            if calls and _signature(calls[0]) is None and calls[0]["id"] not in bound:
                name = calls[0]["function"]["name"]
                yield f"Function call is missing a thought_signature in functionCall parts. `{name}` at {number}."

    def _unthought(self, body: Any) -> Iterator[str]:
        """Anthropic's rule for the turn that goes on, through OpenRouter."""
        messages = body["messages"]
        begin = max(n for n, one in enumerate(messages) if one["role"] == "user" and one["content"][:4] != "Note")
        first = next((one for one in messages[begin:] if one["role"] == "assistant"), None)
        if first is not None and not first.get("reasoning_details"):
            yield f"messages.{begin}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`."

    # -- what it answers

    def _said(self, body: Any) -> Answer:
        said = _results(body) < _asked(body)
        id = f"call{len(self._written):05d}"  # nine alphanumerics, which every model takes
        make = {"anthropic": self._message, "openai-responses": self._response}.get(self.provider, self._completion)
        return make(body, id if said else None)

    def _message(self, body: Any, id: str | None) -> Answer:
        signature = self._sign(body["model"])
        self._behind[signature] = _prefix(body, len(body["messages"]))
        thinks = _mode(body) == "enabled" or "fable" in body["model"]
        thought = [{"type": "thinking", "thinking": "Hm.", "signature": signature}] if thinks else []
        stop = "tool_use" if id else "end_turn"
        if not body.get("stream"):
            return message(*thought, tool_use(id, "look", n=1) if id else "Seen.", stop=stop)
        delta = {"type": "input_json_delta", "partial_json": '{"n": 1}'}
        last = block_events(1, tool_use(id, "look"), delta) if id else text_events(1, "Seen.")
        empty = {"type": "thinking", "thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": "Hm."}, {"type": "signature_delta", "signature": signature}]
        return message_stream(*(block_events(0, empty, *deltas) if thinks else []), *last, stop=stop)

    def _response(self, body: Any, id: str | None) -> Answer:
        encrypted = self._sign(body["model"])
        thought = {"type": "reasoning", "id": f"rs_{id}", "summary": [], "encrypted_content": encrypted}
        output = (thought, (id, "look", '{"n": 1}') if id else "Seen.")
        return response_stream(response_body(*output)) if body.get("stream") else response(*output)

    def _completion(self, body: Any, id: str | None) -> Answer:
        function = {"name": "look", "arguments": '{"n": 1}'}
        call: dict[str, Any] = {"id": id, "type": "function", "function": function}
        signature, more = self._sign(body["model"]), dict[str, Any]()
        if self.provider == "deepseek" and _thinks(body):
            more["reasoning_content"] = signature
        if self.provider == "openrouter" and ("reasoning" in body or not re.search("stral|claude", body["model"])):
            more["reasoning_details"] = [_detail(body["model"], signature, id)]
        if self.provider == "gemini":
            call["extra_content"] = {"google": {"thought_signature": signature}}
        if not body.get("stream"):
            return chat(calls=[call], finish="tool_calls", **more) if id else chat("Seen.", **more)
        said = {"tool_calls": [{"index": 0, **call}]} if id else {"content": "Seen."}
        return chat_stream({**more, **said}, finish("tool_calls" if id else "stop"), usage_chunk())


def _final_turn(messages: list[Any]) -> Iterator[tuple[int, Any]]:
    """The assistant messages behind the user's last message that is not results only, with their numbers."""
    begin = max(n for n, one in enumerate(messages) if one["role"] == "user" and not _has_results(one))
    return ((n, one) for n, one in enumerate(messages) if n > begin and one["role"] == "assistant")


def _prefix(body: Any, number: int) -> str:
    """All that stands before a message, without the marks for the cache."""
    before = [body.get("system"), body.get("tools"), body["messages"][:number]]
    return re.sub(r', "cache_control": \{[^}]*\}', "", json.dumps(before))


def _has_results(one: Any) -> bool:
    return any(block["type"] == "tool_result" for block in one["content"])


def _mistrals(one: Any, behind: str | None) -> Iterator[str]:
    if behind == "tool" and one["role"] == "user":
        yield "Unexpected role 'user' after role 'tool'"
    for id in [call["id"] for call in one.get("tool_calls") or ()] + [one.get("tool_call_id", "123456789")]:
        if not re.fullmatch("[a-zA-Z0-9]{9}", id):
            yield f"Tool call id was {id} but must be a-z, A-Z, 0-9, with a length of 9."


def _mode(body: Any) -> str | None:
    """The type of thinking; DeepSeek thinks by default."""
    default = "enabled" if "deepseek" in body["model"] else None
    mode: str | None = (body.get("thinking") or {}).get("type", default)
    return mode


def _thinks(body: Any) -> bool:
    kind = (body.get("thinking") or {}).get("type")
    return kind != "disabled" and (kind == "enabled" or body["model"] != "deepseek-chat")


def _signature(call: Any) -> Any:
    return call.get("extra_content", {}).get("google", {}).get("thought_signature")


def _upstream(model: str, number: int) -> str:
    """What the provider behind OpenRouter says about a signature that the model did not write."""
    if "claude" in model:
        return f"messages.{number}.content.0: Invalid `signature` in `thinking` block"
    if "gemini" in model:
        return "Unable to submit request because Thought signature is not valid"
    return "The encrypted content gAAA...c90= could not be verified."


def _detail(model: str, signature: str, id: str | None) -> dict[str, Any]:
    if "claude" in model:
        return {"type": "reasoning.text", "text": "Hm.", "signature": signature, "index": 0}
    return {"type": "reasoning.encrypted", "data": signature, "id": id or "rs_1", "index": 0}


def _steps(body: Any) -> Iterator[tuple[str, str]]:
    """What a conversation is made of: `("user", text)` and `("result", "")`."""
    for one in body.get("messages") or body.get("input"):
        if one.get("role") == "tool" or one.get("type") == "function_call_output":
            yield "result", ""
        elif one.get("role") == "user":
            content = one["content"]
            for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
                if part["type"] == "tool_result":
                    yield "result", ""
                elif not part.get("text", "").startswith("Note"):
                    yield "user", part.get("text", "")


def _asked(body: Any) -> int:
    found = [re.search(r"calls=(\d)", text) for kind, text in _steps(body) if kind == "user"]
    return int(found[-1][1]) if found and found[-1] else 0


def _results(body: Any) -> int:
    """How many results came behind the last prompt."""
    kinds = [kind for kind, _ in _steps(body)]
    return kinds[::-1].index("user") if "user" in kinds else 0
