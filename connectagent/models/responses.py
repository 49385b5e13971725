"""OpenAI's Responses API."""

from __future__ import annotations

import re
from typing import Any

from connectagent.data import LLMResponse, TokenUsage, ToolCall
from connectagent.models.content import tool_call
from connectagent.models.failures import error_text, kind_of
from connectagent.models.openai import openai_client, rules_of, ways_by_schema
from connectagent.models.openai_stream import stream_class
from connectagent.models.output_forms import OutputForm, response_format
from connectagent.models.responses_messages import (
    CALLS,
    Item,
    is_plain,
    refusal_of,
    text_of_items,
    to_wire,
    tool_choice,
    tools_to_wire,
)
from connectagent.models.sdk import Exchange, Messages, OnText, Tools, WireLLM, count

# They have no reasoning to encrypt, and OpenAI refuses to be asked for it.
_NO_REASONING = re.compile(r"gpt-[34]|chatgpt|gpt-5[.\d]*-chat")
_ENCRYPTED = "reasoning.encrypted_content"
_ENDS = ("response.completed", "response.incomplete", "response.failed")
_TEXT_DELTAS = ("response.output_text.delta", "response.refusal.delta")
_EMPTY_KINDS = {
    "max_output_tokens": ("length", "the answer reached the token limit before any text came; allow more tokens "
                                    "(max_output_tokens)"),
    "content_filter": ("content_filter", "the provider's filter held the answer back"),
}  # fmt: skip


class ResponsesLLM(WireLLM):
    """A model behind OpenAI's Responses API, or an endpoint that is compatible with it.

    The whole conversation is sent each time, and nothing is stored at the provider: reasoning comes encrypted,
    and goes back as it came.

    Args:
        model: the bare name, for example `gpt-5`.
        provider: the name of the provider, for traces and `provider_data`.
        api_key: the key; without it the provider's variable is read at each call.
        base_url: another address of the same API; without a key a placeholder is sent.
        options: parameters of the API that are sent with every request, for example `reasoning`.
    """

    path = "/responses"
    default_base_url = "https://api.openai.com/v1"
    base_url_variable = "OPENAI_BASE_URL"
    client_variables = ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID")

    def __init__(
        self,
        model: str,
        *,
        provider: str = "openai-responses",
        api_key: str | None = None,
        base_url: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(model, provider=provider, api_key=api_key, base_url=base_url, options=options)

    def _make_client(self, key: str | None, base_url: str) -> Any:
        return openai_client(key, base_url)

    def _answered(
        self, body: dict[str, Any], on_text: OnText | None, form: OutputForm | None, exchange: Exchange
    ) -> LLMResponse:
        if on_text is None:
            answer, retries = self._post(exchange.client, body)
        else:
            body["stream"] = True
            stream, retries = self._post(exchange.client, body, stream=True, stream_cls=stream_class())
            with stream:
                answer = self._collected(stream, on_text, exchange)
        if isinstance(answer, dict) and (answer.get("usage") or answer.get("output")):
            exchange.whole(answer.get("usage"))
        response = self._response(answer)
        response.retries = retries or None
        return response

    # ------------------------------------------------------------------------------------- sending

    def _ways(self, form: OutputForm) -> list[str]:
        return ways_by_schema(form, self.wire_model)

    def _body(self, messages: Messages, tools: Tools, form: OutputForm | None) -> dict[str, Any]:
        options = self._body_options()
        if "max_tokens" in options:
            options.setdefault("max_output_tokens", options.pop("max_tokens"))
        stored = bool(options.setdefault("store", False))
        if not stored and not _NO_REASONING.match(self.wire_model):
            options["include"] = list(dict.fromkeys([*(options.get("include") or []), _ENCRYPTED]))
        body: dict[str, Any] = {"model": self.wire_model, "input": to_wire(messages, self.provider, stored)}
        wire_tools = [*tools_to_wire(tools or []), *(self.options.get("tools") or [])]
        if wire_tools:
            body["tools"] = wire_tools
        else:  # refused without tools
            options.pop("tool_choice", None)
            options.pop("parallel_tool_calls", None)
        if "tool_choice" in options:
            options["tool_choice"] = tool_choice(options["tool_choice"])
        if form is not None:
            asked = response_format(form, rules_of(self.wire_model))["json_schema"]
            options["text"] = {"format": {"type": "json_schema", **asked}, **(options.get("text") or {})}
        body.update(options)
        return body

    # ----------------------------------------------------------------------------------- receiving

    def _response(self, answer: Any) -> LLMResponse:
        items, stop = self._items(answer)
        calls = self._calls(items, stop)
        content = text_of_items(items) or None
        if not calls and (refusal := refusal_of(items)):
            content, stop = (content or "") + refusal, "refusal"
        if content is None and not calls:
            if stop in _EMPTY_KINDS:
                kind, text = _EMPTY_KINDS[stop]
                raise self._failure(text, kind, status=200, body=answer)
            if all(item["type"] == "reasoning" for item in items):
                raise self._failure("the answer has no message", "bad_response", status=200, body=answer)
        return LLMResponse(content, calls or None, None, stop, answer.get("model") or None, self._kept(items))

    def _items(self, answer: Any) -> tuple[list[Item], str]:
        """What the answer is made of, and the provider's word for why it stopped."""
        output = answer.get("output") if isinstance(answer, dict) else None
        if not isinstance(output, list) or answer.get("error") or answer.get("status") == "failed":
            error = answer.get("error") if isinstance(answer, dict) else None
            if error:
                kind = kind_of(200, {"error": error})
                kind = "server" if kind == "stream" else kind
                raise self._failure(error_text(error), kind, status=200, body=answer)
            text = f"what came from {self.base_url} is no answer: {error_text(answer) or 'it is empty'}"
            raise self._failure(text, "bad_response", status=200, body=answer)
        items = [item for item in output if isinstance(item, dict) and isinstance(item.get("type"), str)]
        stop = (answer.get("incomplete_details") or {}).get("reason") or answer.get("status") or "completed"
        return items, str(stop)

    def _calls(self, items: list[Item], stop: str) -> list[ToolCall]:
        taken: set[str] = set()
        calls = []
        for item in items:
            if item["type"] not in CALLS:
                continue
            custom = item["type"] == "custom_tool_call"
            arguments = {"input": item.get("input") or ""} if custom else item.get("arguments")
            call = tool_call(item.get("call_id"), item.get("name"), arguments, taken, self.provider)
            if item.get("status") == "incomplete" and stop == "max_output_tokens" and call.error is None:
                call.arguments = {}
                call.error = "the answer reached the token limit inside this call: its arguments are not complete"
            calls.append(call)
        return calls

    def _kept(self, items: list[Item]) -> dict[str, Any] | None:
        """The items themselves, where one of them says what the message does not."""
        if all(map(is_plain, items)):
            return None
        return {"provider": self.provider, "items": items}

    def _usage(self, usages: list[dict[str, Any]]) -> TokenUsage | None:
        usage = usages[-1] if usages else None
        if not usage:
            return None
        return self._priced(
            TokenUsage(
                count(usage, "input_tokens"),
                count(usage, "output_tokens"),
                count(usage, "input_tokens_details", "cached_tokens"),
                count(usage, "input_tokens_details", "cache_write_tokens"),
            )
        )

    def _collected(self, stream: Any, on_text: OnText, exchange: Exchange) -> dict[str, Any]:
        """The answer with which a stream ends. Some servers leave its items out there: earlier ones count."""
        items: dict[Any, Any] = {}
        for event in self._events(stream):
            kind = event.get("type")
            if kind in _TEXT_DELTAS:
                if event.get("delta"):
                    on_text(event["delta"])
            elif kind == "response.output_item.done":
                items[event.get("output_index", len(items))] = event.get("item")
            elif kind in _ENDS:
                answer = dict(event.get("response") or {})
                answer["output"] = answer.get("output") or [items[index] for index in sorted(items)]
                return answer
            elif kind == "error":
                raise self._failure(error_text(event), kind_of(200, event), status=200, body=event)
            exchange.so_far(None)
        raise self._failure("the stream ended before the answer was complete", "stream", status=200)
