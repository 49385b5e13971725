"""OpenAI's Responses API."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from connectagent.data import LLMResponse, TokenUsage, ToolCall
from connectagent.models.content import CUT_CALL, Said, not_run, says_nothing, tool_call, without_repeats
from connectagent.models.event_stream import SentEvents, came_as_stream, unheard
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
from connectagent.stop_reasons import NOT_GIVEN, is_whole

# They have no reasoning to encrypt, and OpenAI refuses to be asked for it.
_NO_REASONING = re.compile(r"(ft:)?(gpt-[34]|chatgpt|gpt-5[.\d]*-chat)")
_ENCRYPTED = "reasoning.encrypted_content"
_ENDS = ("response.completed", "response.incomplete", "response.failed")
_TEXT_DELTAS = ("response.output_text.delta", "response.refusal.delta")


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
            if came_as_stream(answer):
                answer = self._collected(SentEvents(exchange.client, answer), unheard, exchange)
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
        body: dict[str, Any] = {"model": self.wire_model, "input": to_wire(messages, self.origin, stored)}
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
        refusal = refusal_of(items)
        if refusal:
            stop = "refusal"
        calls = self._calls(items, is_whole(stop))
        content = (text_of_items(items) + refusal) or None
        response = LLMResponse(content, calls or None, None, stop, answer.get("model") or None, self._kept(items))
        has_more = any(item["type"] not in ("message", "reasoning", *CALLS) for item in items)
        return self._usable(response, answer, words=refusal, has_more=has_more)

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
        items = without_repeats(items, _said)
        stop = (answer.get("incomplete_details") or {}).get("reason") or answer.get("status") or NOT_GIVEN
        return items, str(stop)

    def _calls(self, items: list[Item], whole: bool) -> list[ToolCall]:
        """The calls of an answer; an item says itself whether it is complete."""
        taken: set[str] = set()
        calls = []
        for item in items:
            if item["type"] not in CALLS:
                continue
            custom = item["type"] == "custom_tool_call"
            arguments = {"input": item.get("input") or ""} if custom else item.get("arguments")
            call = tool_call(item.get("call_id"), item.get("name"), arguments, taken, self.provider)
            is_complete = item.get("status") not in ("incomplete", "in_progress")
            is_empty = says_nothing(arguments)
            is_cut = is_empty and not is_complete
            if not whole:  # nobody knows where the text of a custom tool ends
                is_cut = is_empty or custom or not is_complete
            calls.append(not_run(call, CUT_CALL if is_cut else None))
        return calls

    def _kept(self, items: list[Item]) -> dict[str, Any] | None:
        """The items themselves, where one of them says what the message does not."""
        if all(map(is_plain, items)):
            return None
        return self.origin.kept(items=items)

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

    def _collected(self, stream: Iterable[Any], on_text: OnText, exchange: Exchange) -> dict[str, Any]:
        """The answer with which a stream ends. Some servers leave its items out there: earlier ones count."""
        items: list[tuple[int, Any]] = []  # several may have one index
        for event in self._events(stream):
            kind = event.get("type")
            if kind in _TEXT_DELTAS:
                if event.get("delta"):
                    on_text(event["delta"])
            elif kind == "response.output_item.done":
                items.append((event.get("output_index", len(items)), event.get("item")))
            elif kind in _ENDS:
                answer = dict(event.get("response") or {})
                answer["output"] = answer.get("output") or [item for _, item in sorted(items, key=lambda one: one[0])]
                answer["status"] = answer.get("status") or kind.rpartition(".")[2]
                return answer
            elif event.get("object") == "response":  # the answer itself, from a server that does not stream
                output = event.get("output") or []
                for text in filter(None, (text_of_items(output), refusal_of(output))):
                    on_text(text)
                return event
            elif kind == "error":
                raise self._failure(error_text(event), kind_of(200, event), status=200, body=event)
            exchange.so_far(None)
        raise self._failure("the stream ended before the answer was complete", "stream", status=200)


def _said(item: Item) -> Said | None:
    """What an item says as a call."""
    if item["type"] not in CALLS:
        return None
    return item.get("call_id"), item.get("name"), item.get("arguments")
