"""OpenAI's chat completions, and the many endpoints that speak them too."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from connectagent.data import LLMResponse, TokenUsage, ToolCall
from connectagent.errors import ProviderError
from connectagent.models.chat_modes import may_reason
from connectagent.models.clients import left_out, new_client
from connectagent.models.content import (
    CUT_CALL,
    Said,
    not_run,
    says_nothing,
    text_of,
    tool_call,
    without_repeats,
)
from connectagent.models.event_stream import SentEvents, came_as_stream, unheard
from connectagent.models.failures import error_text, kind_of
from connectagent.models.notes import THINKING_IS_OFF, note
from connectagent.models.openai_messages import to_wire
from connectagent.models.openai_stream import joined_content, stream_class, thinks
from connectagent.models.output_forms import BY_SCHEMA, STRICT, OutputForm, response_format
from connectagent.models.sdk import Exchange, Messages, OnText, Tools, WireLLM, count
from connectagent.models.stream_calls import CallAssembler
from connectagent.models.strict_schemas import OPENAI, OPENAI_FINE_TUNED, Rules
from connectagent.session.instruction import with_instruction
from connectagent.stop_reasons import is_whole, stop_reason

# Mistral refuses the parameter, and sends the usage without it.
_NO_STREAM_OPTIONS = {"mistral"}
# They take a JSON object, but no schema for it.
_NO_SCHEMA = {"deepseek"}
_REASONING = {"reasoning", "reasoning_effort"}
_REASONING_MODEL = re.compile(r"(ft:)?(gpt-5|o\d|codex-)")  # `ft:` begins the name of a model that was fine-tuned
# What every answer may carry and none needs back; the rest of an assistant message is its provider's.
_KNOWN_FIELDS = {"role", "content", "tool_calls", "refusal", "annotations", "audio", "function_call"}
_OTHER_ANSWERS = ("audio", "images")  # of models that were asked for sound or pictures
_ENDING = ("finish_reason", "native_finish_reason", "error", "content_filter_results", "content_filter_result")
_NO_NEWS = ("whole", "unknown")  # what a native reason says, of which there are many, where the other one is good


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
            if came_as_stream(answer):
                answer = self._collected(
                    SentEvents(exchange.client, answer), unheard, exchange, _names(body.get("tools"))
                )
        else:
            body["stream"] = True
            if self.provider not in _NO_STREAM_OPTIONS:
                body.setdefault("stream_options", {"include_usage": True})
            stream, retries = self._post(exchange.client, body, stream=True, stream_cls=stream_class())
            with stream:
                answer = self._collected(stream, on_text, exchange, _names(body.get("tools")))
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
        if (asked := options.keys() & _REASONING) and not may_reason(messages, self.origin):
            for key in asked:
                del options[key]
            note(THINKING_IS_OFF)
        sent: list[dict[str, Any]] = to_wire(messages, self.origin, options)
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
        given = choice.get("message")
        message: dict[str, Any] = given if isinstance(given, dict) else {}
        finish = _reason(choice, message)
        if given is not message and is_whole(finish):
            raise self._failure("the answer has no message", "bad_response", status=200, body=answer)
        calls = self._calls(message, is_whole(finish))
        content = text_of(message.get("content")) or None
        if message.get("refusal"):
            content = (content or "") + str(message["refusal"])
        response = LLMResponse(
            content, calls or None, None, finish, answer.get("model") or None, self._provider_data(message, calls)
        )
        has_more = any(message.get(key) for key in _OTHER_ANSWERS)
        return self._usable(response, answer, words=_words(choice, message), has_more=has_more)

    def _choice(self, answer: Any) -> dict[str, Any]:
        """The first choice of an answer: only one is asked for."""
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not choices or not isinstance(choices[0], dict) or answer.get("error"):
            raise self._no_answer(answer)
        choice: dict[str, Any] = choices[0]
        if choice.get("error"):  # OpenRouter, beside half an answer
            error = self._no_answer(choice)
            error.finish_reason = choice.get("finish_reason")
            raise error
        return choice

    def _no_answer(self, answer: object) -> ProviderError:
        error = answer.get("error") if isinstance(answer, dict) else None
        if error:
            kind = kind_of(200, answer)
            return self._failure(error_text(error), "server" if kind == "stream" else kind, status=200, body=answer)
        return self._failure(
            f"what came from {self.base_url} is no answer: {error_text(answer) or 'it is empty'}", "bad_response",
            status=200, body=answer,
        )  # fmt: skip

    def _calls(self, message: dict[str, Any], whole: bool) -> list[ToolCall]:
        """The calls of a message, whatever `finish_reason` says: it is wrong in both directions.

        Of an answer that was cut, those are complete whose arguments are: JSON shows its end itself. The last one may
        be cut where its arguments are a text, or were read by the server.
        """
        taken: set[str] = set()
        calls = []
        raw_calls = _raw_calls(message)
        for number, raw in enumerate(raw_calls, 1):
            function = raw.get("function") or {}
            arguments = function.get("arguments", function.get("input"))
            if raw.get("custom"):
                function, arguments = raw["custom"], {"input": raw["custom"].get("input") or ""}
            call = tool_call(raw.get("id"), function.get("name"), arguments, taken, self.provider)
            has_no_end = number == len(raw_calls) and isinstance(arguments, dict)
            is_complete = whole or not (has_no_end or says_nothing(arguments))
            problem = raw.get("problem") or (None if is_complete else CUT_CALL)
            calls.append(not_run(call, problem))
        return calls

    def _provider_data(self, message: dict[str, Any], calls: list[ToolCall]) -> dict[str, Any] | None:
        """What this model may need back: reasoning, signatures, whatever the format does not know."""
        raw_calls = _raw_calls(message)
        customs = [call.id for call, raw in zip(calls, raw_calls, strict=True) if raw.get("custom")]
        parts: dict[str, Any] = {"custom": customs} if customs else {}
        if self._is_openai:
            return self.origin.kept(**parts) if parts else None
        fields = {key: value for key, value in message.items() if key not in _KNOWN_FIELDS and value not in (None, "")}
        extras = {
            call.id: raw["extra_content"]
            for call, raw in zip(calls, raw_calls, strict=True)
            if raw.get("extra_content")
        }
        if thinks(message.get("content")):
            parts["content"] = message["content"]
        if fields:
            parts["message"] = fields
        if extras:
            parts["extra_content"] = extras
        return self.origin.kept(**parts) if parts else None

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

    def _collected(self, stream: Iterable[Any], on_text: OnText, exchange: Exchange, tools: set[str]) -> dict[str, Any]:
        """A stream put together as one plain answer, so that there is one way to read both."""
        answer: dict[str, Any] = {}
        message: dict[str, Any] = {}
        calls = CallAssembler(tools)
        old = CallAssembler(tools)
        ending: dict[str, Any] = {}
        for chunk in self._events(stream):
            if chunk.get("error"):
                raise self._no_answer(chunk)
            answer.update((key, chunk[key]) for key in ("model", "usage", "x_groq") if chunk.get(key))
            exchange.so_far(_sent_usage(answer))
            choice = _first_choice(chunk)
            delta = choice.get("delta") or choice.get("message") or {}
            _add_ending(ending, choice)
            _add_calls(delta, calls, old)
            for text in _add_fields(message, delta):
                on_text(text)
        if not ending.keys() & {"finish_reason", "error"} and not getattr(stream, "done", False):
            raise self._failure("the stream ended before the answer was complete", "stream", status=200)
        if found := calls.calls() or [call for call in old.calls() if call["function"]["name"]]:
            message["tool_calls"] = found
        answer["choices"] = [{"message": message, "finish_reason": None, **ending}]
        return answer


def _reason(choice: dict[str, Any], message: dict[str, Any]) -> str | None:
    """Why an answer stopped. A text in `refusal` stands beside `stop`.

    OpenRouter passes some failures on in `native_finish_reason` alone: github.com/OleksandrChekhovskyi/hax/pull/15
    """
    given = choice.get("finish_reason") or None
    if message.get("refusal"):
        return "refusal"
    native = choice.get("native_finish_reason")
    if isinstance(native, str) and is_whole(given) and stop_reason(native).end not in _NO_NEWS:
        return native
    return None if given is None else str(given)


def _words(choice: dict[str, Any], message: dict[str, Any]) -> str:
    """What a provider says of why it stopped: the model's refusal, or which filters (Azure) have held it back."""
    if message.get("refusal"):
        return str(message["refusal"])
    found = choice.get("content_filter_results") or choice.get("content_filter_result")
    results = found.items() if isinstance(found, dict) else ()
    return ", ".join(
        f"{name} ({one['severity']})" if one.get("severity") else str(name)
        for name, one in results
        if isinstance(one, dict) and (one.get("filtered") or one.get("detected"))
    )


def _sent_usage(answer: object) -> Any:
    if not isinstance(answer, dict):
        return None
    return answer.get("usage") or (answer.get("x_groq") or {}).get("usage")


def _raw_calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls of a message as they came. Where there are none, `function_call` counts, which they have replaced."""
    old = message.get("function_call")
    calls = [raw for raw in message.get("tool_calls") or [] if isinstance(raw, dict)]
    calls = without_repeats(calls, _said)
    return calls or ([{"function": old}] if isinstance(old, dict) and old.get("name") else [])


def _said(call: dict[str, Any]) -> Said:
    function = call.get("custom") or call.get("function") or {}
    return call.get("id"), function.get("name"), function.get("arguments", function.get("input"))


def _first_choice(chunk: dict[str, Any]) -> dict[str, Any]:
    """The choice of a chunk; {} in chunks that carry usage or filter results only."""
    choices = chunk.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    return choice if isinstance(choice, dict) and not choice.get("index") else {}


def _add_ending(ending: dict[str, Any], choice: dict[str, Any]) -> None:
    """Add what a chunk tells of why the answer stops. A good reason behind one that is not does not make it good."""
    for key in _ENDING:
        is_told = key == "finish_reason" and not is_whole(ending.get(key))
        if choice.get(key) and not is_told:
            ending[key] = choice[key]


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


def _add_calls(delta: dict[str, Any], calls: CallAssembler, old: CallAssembler) -> None:
    for item in delta.get("tool_calls") or []:
        if isinstance(item, dict):
            calls.add(item)
    if delta.get("function_call"):
        old.add({"index": 0, "function": delta["function_call"]})


def _names(tools: Iterable[Any] | None) -> set[str]:
    """The names of the functions among the tools of a request."""
    functions = [tool.get("function") for tool in tools or () if isinstance(tool, dict)]
    return {str(function.get("name")) for function in functions if isinstance(function, dict)}
