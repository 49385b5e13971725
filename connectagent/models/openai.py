"""OpenAI's chat completions, and the many endpoints that speak them too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from connectagent.data import LLMResponse, TokenUsage, ToolCall
from connectagent.models.clients import left_out, new_client
from connectagent.models.content import as_json, text_of, tool_call
from connectagent.models.failures import error_text, kind_of
from connectagent.models.openai_messages import to_wire
from connectagent.models.openai_stream import joined_content, stream_class, thinks
from connectagent.models.output_forms import BY_SCHEMA, STRICT, OutputForm, response_format
from connectagent.models.sdk import Exchange, Messages, OnText, Tools, WireLLM, count
from connectagent.models.strict_schemas import OPENAI, OPENAI_FINE_TUNED, Rules
from connectagent.session.instruction import with_instruction

# Mistral refuses the parameter, and sends the usage without it.
_NO_STREAM_OPTIONS = {"mistral"}
# They take a JSON object, but no schema for it.
_NO_SCHEMA = {"deepseek"}
_REASONING_MODEL = re.compile(r"(gpt-5|o\d)")
# What every answer may carry and none needs back; the rest of an assistant message is its provider's.
_KNOWN_FIELDS = {"role", "content", "tool_calls", "refusal", "annotations", "audio", "function_call"}


def rules_of(model: str) -> Rules:
    """What OpenAI enforces in the answers of a model."""
    return OPENAI_FINE_TUNED if model.startswith("ft:") else OPENAI


def ways_by_schema(form: OutputForm, model: str) -> list[str]:
    """How a form is asked for with its schema."""
    return [STRICT, BY_SCHEMA] if form.enforced(rules_of(model)) is not None else [BY_SCHEMA]


def openai_client(key: str | None, base_url: str) -> Any:
    """A client of the SDK."""
    import openai

    return new_client(openai.OpenAI, openai.DefaultHttpxClient, api_key=key, base_url=base_url)


class OpenAILLM(WireLLM):
    """A model behind OpenAI's chat completions or an endpoint that is compatible with them.

    Args:
        model: the bare name, as the provider knows it.
        provider: a name of `llm.PROVIDERS` that speaks this wire.
        api_key: the key; without it the provider's variable is read at each call.
        base_url: another address of the same API; without a key a placeholder is sent.
        options: parameters of the API that are sent with every request, for example `temperature`.
    """

    default_provider = "openai"
    path = "/chat/completions"
    default_base_url = "https://api.openai.com/v1"
    base_url_variable = "OPENAI_BASE_URL"
    client_variables = ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID")

    def _make_client(self, key: str | None, base_url: str) -> Any:
        client = openai_client(key, base_url)
        if self.provider != "openai":  # the SDK sends what these variables of OpenAI's hold to every address
            client.organization = client.project = None
            client._custom_headers = left_out(type(client))
        return client

    def _answered(
        self, body: dict[str, Any], on_text: OnText | None, form: OutputForm | None, exchange: Exchange
    ) -> LLMResponse:
        if on_text is None:
            answer, retries = self._post(exchange.client, body)
        else:
            body["stream"] = True
            if self.provider not in _NO_STREAM_OPTIONS:
                body.setdefault("stream_options", {"include_usage": True})
            stream, retries = self._post(exchange.client, body, stream=True, stream_cls=stream_class())
            with stream:
                answer = self._collected(stream, on_text, exchange)
        usage = _sent_usage(answer)
        if usage or (isinstance(answer, dict) and answer.get("choices")):
            exchange.whole(usage)
        response = self._response(answer)
        response.retries = retries or None
        return response

    # ------------------------------------------------------------------------------------- sending

    @property
    def _is_openai(self) -> bool:
        """Whether OpenAI itself answers, which refuses what it does not know."""
        return self.provider == "openai" and self.base_url.startswith("https://api.openai.com")

    def _ways(self, form: OutputForm) -> list[str]:
        if self.provider in _NO_SCHEMA:
            return ["json_object"]
        return ways_by_schema(form, self.wire_model)

    def _body(self, messages: Messages, tools: Tools, form: OutputForm | None) -> dict[str, Any]:
        options = self._body_options()
        if self.provider == "openai" and "max_tokens" in options and _REASONING_MODEL.match(self.wire_model):
            options.setdefault("max_completion_tokens", options.pop("max_tokens"))
        sent: list[dict[str, Any]] = to_wire(messages, self.provider)
        if form is not None and "response_format" not in options:
            if form.way == "json_object":
                sent = with_instruction(sent, form.schema)
                options["response_format"] = {"type": "json_object"}
            else:
                options["response_format"] = response_format(form, rules_of(self.wire_model))
        body: dict[str, Any] = {"model": self.wire_model, "messages": sent}
        tools = [*(tools or []), *(self.options.get("tools") or [])]
        if tools:
            body["tools"] = tools
        else:  # refused without tools
            options.pop("tool_choice", None)
            options.pop("parallel_tool_calls", None)
        body.update(options)
        return body

    # ----------------------------------------------------------------------------------- receiving

    def _response(self, answer: Any) -> LLMResponse:
        choice = self._choice(answer)
        message = choice.get("message")
        message = message if isinstance(message, dict) else {}
        finish = choice.get("finish_reason") or None
        calls = self._calls(message)
        content = text_of(message.get("content")) or None
        refusal = message.get("refusal")
        if refusal and not calls:
            content, finish = (content or "") + str(refusal), "refusal"
        if content is None and not calls:
            self._refuse_empty(finish, message, answer)
        return LLMResponse(
            content, calls or None, None, finish, answer.get("model") or None, self._provider_data(message, calls)
        )

    def _choice(self, answer: Any) -> dict[str, Any]:
        """The first choice of an answer: only one is asked for."""
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not choices or not isinstance(choices[0], dict):
            raise self._no_answer(answer)
        choice: dict[str, Any] = choices[0]
        return choice

    def _no_answer(self, answer: Any) -> Exception:
        error = answer.get("error") if isinstance(answer, dict) else None
        if error:
            kind = kind_of(200, answer)
            return self._failure(error_text(error), "server" if kind == "stream" else kind, status=200, body=answer)
        return self._failure(
            f"what came from {self.base_url} is no answer: {error_text(answer) or 'it is empty'}", "bad_response",
            status=200, body=answer,
        )  # fmt: skip

    def _refuse_empty(self, finish: str | None, message: dict[str, Any], answer: Any) -> None:
        """An answer that says nothing must not look like a good one."""
        if finish in ("length", "model_length"):
            text = "the answer reached the token limit before any text came; allow more tokens (max_tokens)"
            raise self._failure(text, "length", status=200, body=answer)
        if finish == "content_filter":
            raise self._failure("the provider's filter held the answer back", "content_filter", status=200, body=answer)
        if not message:
            raise self._failure("the answer has no message", "bad_response", status=200, body=answer)

    def _calls(self, message: dict[str, Any]) -> list[ToolCall]:
        """The calls of a message, whatever `finish_reason` says: it is wrong in both directions."""
        taken: set[str] = set()
        calls = []
        for raw in _raw_calls(message):
            function = raw.get("function") or {}
            arguments = function.get("arguments", function.get("input"))
            if raw.get("custom"):
                function, arguments = raw["custom"], {"input": raw["custom"].get("input") or ""}
            calls.append(tool_call(raw.get("id"), function.get("name"), arguments, taken, self.provider))
        return calls

    def _provider_data(self, message: dict[str, Any], calls: list[ToolCall]) -> dict[str, Any] | None:
        """What this endpoint may need back: reasoning, signatures, whatever the format does not know."""
        raw_calls = _raw_calls(message)
        customs = [call.id for call, raw in zip(calls, raw_calls, strict=True) if raw.get("custom")]
        kept: dict[str, Any] = {"provider": self.provider}
        if customs:
            kept["custom"] = customs
        if self._is_openai:
            return kept if customs else None
        fields = {key: value for key, value in message.items() if key not in _KNOWN_FIELDS and value not in (None, "")}
        extras = {
            call.id: raw["extra_content"]
            for call, raw in zip(calls, raw_calls, strict=True)
            if raw.get("extra_content")
        }
        if thinks(message.get("content")):
            kept["content"] = message["content"]
        if fields:
            kept["message"] = fields
        if extras:
            kept["extra_content"] = extras
        return kept if len(kept) > 1 else None

    def _usage(self, usages: list[dict[str, Any]]) -> TokenUsage | None:
        usage = usages[-1] if usages else None
        if not usage:
            return None
        cost = usage.get("cost") if self.provider == "openrouter" else None
        return self._priced(
            TokenUsage(
                count(usage, "prompt_tokens"),
                count(usage, "completion_tokens"),
                count(usage, "prompt_tokens_details", "cached_tokens") or count(usage, "prompt_cache_hit_tokens"),
                count(usage, "prompt_tokens_details", "cache_write_tokens"),
                float(cost) if isinstance(cost, int | float) else None,
            )
        )

    def _collected(self, stream: Any, on_text: OnText, exchange: Exchange) -> dict[str, Any]:
        """A stream put together as one plain answer, so that there is one way to read both."""
        answer: dict[str, Any] = {}
        message: dict[str, Any] = {}
        calls: list[dict[str, Any]] = []
        old: list[dict[str, Any]] = []
        finish = None
        for chunk in self._events(stream):
            if chunk.get("error"):
                raise self._no_answer(chunk)
            answer.update((key, chunk[key]) for key in ("model", "usage", "x_groq") if chunk.get(key))
            exchange.so_far(_sent_usage(answer))
            choice = _first_choice(chunk)
            delta = choice.get("delta") or choice.get("message") or {}
            finish = choice.get("finish_reason") or finish
            _add_calls(calls, delta.get("tool_calls"))
            _add_calls(old, [{"index": 0, "function": delta["function_call"]}] if delta.get("function_call") else [])
            for text in _add_fields(message, delta):
                on_text(text)
        if finish is None and not getattr(stream, "done", False):
            raise self._failure("the stream ended before the answer was complete", "stream", status=200)
        if calls:
            message["tool_calls"] = calls
        if old:
            message["function_call"] = old[0]["function"]
        answer["choices"] = [{"message": message, "finish_reason": finish}]
        return answer


def _sent_usage(answer: Any) -> Any:
    if not isinstance(answer, dict):
        return None
    return answer.get("usage") or (answer.get("x_groq") or {}).get("usage")


def _raw_calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls of a message as they came. Where there are none, `function_call` counts, which they have replaced."""
    old = message.get("function_call")
    calls = [raw for raw in message.get("tool_calls") or [] if isinstance(raw, dict)]
    return calls or ([{"function": old}] if isinstance(old, dict) and old.get("name") else [])


def _first_choice(chunk: dict[str, Any]) -> dict[str, Any]:
    """The choice of a chunk; {} in chunks that carry usage or filter results only."""
    choices = chunk.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    return choice if isinstance(choice, dict) and not choice.get("index") else {}


def _add_fields(message: dict[str, Any], delta: dict[str, Any]) -> Iterator[str]:
    """Add a delta to the message: text to text, list to list, else the last value. Yields the new text."""
    for key, value in delta.items():
        if value is None or key in ("tool_calls", "function_call", "role"):
            continue
        before = message.get(key)
        if key == "content":
            message[key] = joined_content(before, value)
            value = text_of(value)
        elif isinstance(value, str) and isinstance(before, str):
            message[key] = before + value
        elif isinstance(value, list) and isinstance(before, list):
            message[key] = _joined_details(before, value)
        else:
            message[key] = value
        if key in ("content", "refusal") and value:
            yield value


def _joined_details(before: list[Any], more: list[Any]) -> list[Any]:
    """`reasoning_details` of OpenRouter come in pieces of one item: same type and index, its text cut up."""
    joined = list(before)
    for item in more:
        last = joined[-1] if joined else None
        if (
            isinstance(item, dict) and isinstance(last, dict) and "index" in item
            and (item.get("type"), item["index"]) == (last.get("type"), last.get("index"))
        ):  # fmt: skip
            new = {key: value for key, value in item.items() if value is not None}
            for key in ("text", "summary", "data"):
                if isinstance(last.get(key), str) and isinstance(new.get(key), str):
                    new[key] = last[key] + new[key]
            joined[-1] = {**last, **new}
        else:
            joined.append(item)
    return joined


def _add_calls(calls: list[dict[str, Any]], deltas: Any) -> None:
    """Collect calls by `index`. A repeated id or name counts once; another id with the same index is a new call."""
    for delta in deltas or []:
        if not isinstance(delta, dict):
            continue
        function = delta.get("function") or delta.get("custom") or {}
        call = _slot(calls, delta.get("index"), delta.get("id"), function.get("name"))
        if delta.get("custom"):
            call.setdefault("custom", {"name": None, "input": ""})
            call["custom"]["name"] = call["custom"]["name"] or function.get("name")
            call["custom"]["input"] += function.get("input") or ""
        call["id"] = call["id"] or delta.get("id")
        call["function"]["name"] = call["function"]["name"] or function.get("name")
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            arguments = as_json(arguments)
        call["function"]["arguments"] += arguments or ""
        if delta.get("extra_content"):
            call["extra_content"] = delta["extra_content"]


def _slot(calls: list[dict[str, Any]], index: Any, id: Any, name: Any) -> dict[str, Any]:
    if index is None:  # old Mistral: whole calls; others leave it out in what continues a call
        if calls and not id and not name:
            return calls[-1]
    else:
        before: dict[str, Any] | None = next((call for call in reversed(calls) if call["index"] == index), None)
        # Gemini gives every parallel call the index 0
        if before is not None and not (id and name and before["id"] and id != before["id"]):
            return before
    new: dict[str, Any] = {"index": index, "id": None, "function": {"name": None, "arguments": ""}}
    calls.append(new)
    return new
