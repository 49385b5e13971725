"""Anthropic's messages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from connectagent.data import LLMResponse, TokenUsage, ToolCall
from connectagent.models.anthropic_cache import EPHEMERAL, mark
from connectagent.models.anthropic_messages import is_thought_through, may_think, to_wire, tool_choice, tools_to_wire
from connectagent.models.anthropic_stream import OWN_KEYS, StreamedBlocks, stream_class, whole_blocks
from connectagent.models.clients import new_client
from connectagent.models.content import CUT_CALL, Said, as_json, not_run, says_nothing, tool_call, without_repeats
from connectagent.models.event_stream import SentEvents, came_as_stream, unheard
from connectagent.models.failures import error_text, kind_of
from connectagent.models.names import NO_KEY
from connectagent.models.notes import THINKING_IS_OFF, note
from connectagent.models.output_forms import OutputForm
from connectagent.models.sdk import Exchange, Messages, OnText, Tools, WireLLM, count
from connectagent.models.strict_schemas import ANTHROPIC
from connectagent.stop_reasons import NOT_GIVEN, PAUSES, is_whole, stop_reason

Block = dict[str, Any]

MAX_TOKENS = 8192
_OLD_MODEL = re.compile(r"claude-3-(opus|sonnet|haiku)-2024")
_OLD_MAX_TOKENS = 4096
# From 5.1 on, a forced tool is refused, with or without an option for thinking: these models always think.
# https://platform.claude.com/docs/en/models/fable-5-1/migration-guide
_UNFORCED = re.compile(r"claude-[a-z]+-(5-\d{1,2}|([6-9]|\d\d)(-\d{1,2})?)(?!\d)|claude-mythos-preview")
# From 4.5 on, and Opus 4.1, an answer can be made to fit a schema.
# https://platform.claude.com/docs/en/build-with-claude/structured-outputs
_ENFORCING = re.compile(r"claude-(opus-4-1|[a-z]+-(4-([5-9]|\d\d)|[5-9]|\d\d))(?!\d)")
# Above this an answer may take longer than ten minutes, which connections do not survive without a stream;
# the SDK's own create() refuses it.
_STREAM_FROM_TOKENS = 21_333
_MAX_PAUSES = 10
_THOUGHTS = ("thinking", "redacted_thinking")


class AnthropicLLM(WireLLM):
    """A model behind Anthropic's messages API.

    Args:
        model: the bare name, for example `claude-sonnet-4-5`.
        provider: the name of the provider, for traces and `provider_data`.
        api_key: the key; without it the SDK finds its own (`ANTHROPIC_API_KEY`, `ANTHROPIC_AUTH_TOKEN`, a profile).
        base_url: another address of the same API.
        options: parameters of the API that are sent with every request, for example `thinking`;
            `betas` is sent as a header, `system` replaces the conversation's system messages. `cache_control` is
            the mark by which requests are cached, `{"type": "ephemeral"}` by default; False caches nothing.
    """

    default_provider = "anthropic"
    path = "/v1/messages"
    default_base_url = "https://api.anthropic.com"
    base_url_variable = "ANTHROPIC_BASE_URL"
    client_variables = ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE", "ANTHROPIC_IDENTITY_TOKEN")

    @property
    def base_url(self) -> str:
        """Where requests go, without the `/v1` that the path brings."""
        return super().base_url.rstrip("/").removesuffix("/v1")

    def _key(self) -> str | None:
        key = super()._key()
        found_elsewhere = key == NO_KEY and any(os.environ.get(name) for name in self.client_variables)
        return None if found_elsewhere else key

    def _sdk_may_sign_in(self) -> bool:
        return True

    def _make_client(self, key: str | None, base_url: str) -> Any:
        import anthropic

        client = new_client(anthropic.Anthropic, anthropic.DefaultHttpxClient, api_key=key, base_url=base_url)
        if not (client.api_key or client.auth_token or getattr(client, "credentials", None)):
            raise self._no_key()
        return client

    def _request_options(self) -> dict[str, Any]:
        found = super()._request_options()
        if self.options.get("betas"):
            found["headers"]["anthropic-beta"] = ",".join(self.options["betas"])
        return found

    def _answered(
        self, body: dict[str, Any], on_text: OnText | None, form: OutputForm | None, exchange: Exchange
    ) -> LLMResponse:
        blocks: list[Block] = []
        retries: list[dict[str, Any]] = []
        for _ in range(_MAX_PAUSES):
            answer, failed = self._one_call(body, on_text, exchange)
            retries += failed
            blocks += _blocks(answer)
            if answer.get("stop_reason") not in PAUSES:
                break
            # the provider's own tools need more time: what it has said goes back, and it goes on
            body["messages"] = [*body["messages"], {"role": "assistant", "content": _blocks(answer)}]
        response = self._response({**answer, "content": blocks}, form)
        response.retries = retries or None
        return response

    def _one_call(
        self, body: dict[str, Any], on_text: OnText | None, exchange: Exchange
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        if on_text is None and body["max_tokens"] <= _STREAM_FROM_TOKENS:
            answer, retries = self._post(exchange.client, body)
            if came_as_stream(answer):
                return self._collected(SentEvents(exchange.client, answer), unheard, exchange), retries
            if not isinstance(answer, dict) or not isinstance(answer.get("content"), list):
                kind = kind_of(200, answer) if isinstance(answer, dict) and answer.get("error") else "bad_response"
                text = f"what came from {self.base_url} is no answer: {error_text(answer) or 'it is empty'}"
                raise self._failure(text, kind, status=200, body=answer)
            exchange.whole(answer.get("usage"))
            return answer, retries
        body = {**body, "stream": True}
        stream, retries = self._post(exchange.client, body, stream=True, stream_cls=stream_class())
        with stream:
            return self._collected(stream, on_text or unheard, exchange), retries

    # ------------------------------------------------------------------------------------- sending

    def _ways(self, form: OutputForm) -> list[str]:
        thinking = self._body_options().get("thinking")
        thinks = isinstance(thinking, dict) and thinking.get("type") == "enabled"  # which forbids to force a tool
        ways = [] if thinks or _UNFORCED.match(self.wire_model) else ["tool"]
        if _ENFORCING.match(self.wire_model) and form.enforced(ANTHROPIC) is not None:
            ways.append("output_config")
        return ways

    def _body(self, messages: Messages, tools: Tools, form: OutputForm | None) -> dict[str, Any]:
        options = self._body_options()
        cache = options.pop("cache_control", EPHEMERAL)
        self._think_where_it_may(options, messages)
        system, sent, used_tools = to_wire(messages, self.origin, _mode(options))
        wire_tools = [*tools_to_wire(tools or []), *(self.options.get("tools") or [])]
        thinking = options.get("thinking")
        thinking = thinking if isinstance(thinking, dict) else {}
        if form is not None:
            _ask_for(form, options, wire_tools)
        if not wire_tools:
            options.pop("tool_choice", None)  # refused without tools
            if used_tools:  # what the history calls must be defined, and is not to be called again
                wire_tools = [{"name": name, "input_schema": {"type": "object"}} for name in used_tools]
                options["tool_choice"] = {"type": "none"}
        body: dict[str, Any] = {"model": self.wire_model, "max_tokens": self._max_tokens(thinking), "messages": sent}
        if system:
            body["system"] = system
        if wire_tools:
            body["tools"] = wire_tools
        body.update(options)
        if "tool_choice" in body:
            body["tool_choice"] = tool_choice(body["tool_choice"])
        if cache:
            mark(body, cache)
        return body

    def _think_where_it_may(self, options: dict[str, Any], messages: Messages) -> None:
        """Switch thinking off in a request where the model would refuse the conversation for it."""
        if "deepseek" in self.wire_model.lower():  # which thinks where it is not told otherwise
            if _mode(options) != "disabled" and not is_thought_through(messages, self.origin):
                options["thinking"] = {"type": "disabled"}
                note("thinking is off in this request: the conversation has calls without this model's thinking")
        elif _mode(options) == "enabled" and not may_think(messages, self.origin):
            del options["thinking"]
            note(THINKING_IS_OFF)

    def _max_tokens(self, thinking: dict[str, Any]) -> int:
        """The limit that the API insists on, where the user set none; a thinking budget is part of it."""
        limit = _OLD_MAX_TOKENS if _OLD_MODEL.match(self.wire_model) else MAX_TOKENS
        budget = thinking.get("budget_tokens")
        return limit + budget if isinstance(budget, int) else limit

    # ----------------------------------------------------------------------------------- receiving

    def _response(self, answer: dict[str, Any], form: OutputForm | None) -> LLMResponse:
        stop = str(answer.get("stop_reason") or NOT_GIVEN)
        blocks: list[Block] = answer["content"]
        content = "".join(block.get("text") or "" for block in blocks if block["type"] == "text") or None
        name = form.name if form is not None and form.way == "tool" else None
        given = None if name is None else _form_given(blocks, name)
        if given is not None:
            return self._settled(LLMResponse(given, None, None, stop, answer.get("model")), answer)
        calls = self._calls(blocks, is_whole(stop))
        calls, blocks = _without(name, calls, blocks)  # given beside calls whose results it has not seen: too early
        kept = self._provider_data(blocks)
        response = LLMResponse(content, calls or None, None, stop, answer.get("model"), kept)
        has_more = any(block["type"] not in ("text", "tool_use", *_THOUGHTS) for block in blocks)
        return self._settled(response, answer, has_more)

    def _settled(self, response: LLMResponse, answer: dict[str, Any], has_more: bool = False) -> LLMResponse:
        """The response, unless it cannot be used. A refusal has no words here: what came before it is no answer."""
        is_refused = stop_reason(response.finish_reason).end == "refused"
        return self._usable(response, answer, words=_words(answer), has_more=has_more, must_be_whole=is_refused)

    def _provider_data(self, blocks: list[Block]) -> dict[str, Any] | None:
        """The mode in which the model thought, and the blocks, where one of them says what the message does not."""
        mode = _mode(self._body_options())
        parts: dict[str, Any] = {} if mode in (None, "disabled") else {"mode": mode}
        if not all(_is_plain(block) for block in blocks):
            parts["content"] = [{key: value for key, value in block.items() if key not in OWN_KEYS} for block in blocks]
        return self.origin.kept(**parts) if parts else None

    def _calls(self, blocks: list[Block], whole: bool) -> list[ToolCall]:
        """The calls of an answer. Of one that was cut, the last block is not complete, however its input looks."""
        taken: set[str] = set()
        calls = []
        for number, block in enumerate(blocks, 1):
            said = _said(block)
            if said is None:
                continue
            is_complete = whole or (number < len(blocks) and not says_nothing(said[2]))
            problem = block.get("problem") or (None if is_complete else CUT_CALL)
            calls.append(not_run(tool_call(*said, taken, "anthropic"), problem))
        return calls

    def _usage(self, usages: list[dict[str, Any]]) -> TokenUsage | None:
        """The usage of one answer, which may have taken several calls; input tokens here exclude cached ones."""
        if not any(usages):
            return None
        total, hour = TokenUsage(), 0
        for usage in usages:
            read, written = count(usage, "cache_read_input_tokens"), count(usage, "cache_creation_input_tokens")
            total.input_tokens += count(usage, "input_tokens") + read + written
            total.output_tokens += count(usage, "output_tokens")
            total.cached_tokens += read
            total.cache_write_tokens += written
            hour += count(usage, "cache_creation", "ephemeral_1h_input_tokens")
        return self._priced(total, **({"cache_write_1h_tokens": hour} if hour else {}))

    def _collected(self, stream: Iterable[Any], on_text: OnText, exchange: Exchange) -> dict[str, Any]:
        """A stream put together as one plain answer; it is whole when `message_stop` came."""
        answer: dict[str, Any] = {}
        blocks = StreamedBlocks()
        for event in self._events(stream):
            blocks.read(event, on_text)
            match event.get("type"):
                case "message_start":
                    answer = dict(event.get("message") or {})
                    answer["usage"] = dict(answer.get("usage") or {})
                    exchange.so_far(answer["usage"])
                case "message":  # the answer itself, from a server that does not stream
                    exchange.whole(event.get("usage"))
                    return {**event, "content": whole_blocks(event.get("content"), on_text)}
                case "message_delta":
                    answer.update(event.get("delta") or {})
                    answer.setdefault("usage", {}).update(_counted(event.get("usage") or {}))  # as `exchange` has it
                case "message_stop":
                    exchange.whole(answer.get("usage"))
                    return {**answer, "content": blocks.finished()}
                case "error":
                    raise self._failure(error_text(event), kind_of(200, event), status=200, body=event)
        raise self._failure("the stream ended before the answer was complete", "stream", status=200)


def _ask_for(form: OutputForm, options: dict[str, Any], wire_tools: list[dict[str, Any]]) -> None:
    """Put the way in which a form is asked for into a request."""
    if form.way == "tool":
        options["tool_choice"] = {"type": "any"} if wire_tools else {"type": "tool", "name": form.name}
        wire_tools.append(form.tool())
    else:
        asked = {"type": "json_schema", "schema": form.enforced(ANTHROPIC)}
        options["output_config"] = {"format": asked, **(options.get("output_config") or {})}


def _form_given(blocks: list[Block], name: str) -> str | None:
    """The typed answer of a model that calls nothing but its tool; a text also where it is cut or broken."""
    calls = [block for block in blocks if block["type"] == "tool_use"]
    if not calls or any(block.get("name") != name for block in calls):
        return None
    first = calls[0]
    return str(first.get("problem") or first.get("broken") or as_json(first.get("input") or {}))


def _mode(options: dict[str, Any]) -> str | None:
    """The type of `thinking` in a request's parameters."""
    thinking = options.get("thinking")
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    return kind if isinstance(kind, str) else None


def _words(answer: dict[str, Any]) -> str:
    """What the provider says of why it stopped: https://platform.claude.com/docs/en/api/messages (`stop_details`)."""
    details = answer.get("stop_details")
    told = [details.get(key) for key in ("category", "explanation")] if isinstance(details, dict) else []
    return ": ".join(str(one) for one in told if one)


def _counted(usage: dict[str, Any]) -> dict[str, Any]:
    """The counts that a `message_delta` brings: null stands where the first count still holds."""
    return {key: value for key, value in usage.items() if value is not None}


def _without(name: str | None, calls: list[ToolCall], blocks: list[Block]) -> tuple[list[ToolCall], list[Block]]:
    """Calls, and the blocks of an answer, without those of one tool."""
    if name is None:
        return calls, blocks
    kept = [block for block in blocks if block["type"] != "tool_use" or block.get("name") != name]
    return [call for call in calls if call.name != name], kept


def _is_plain(block: Block) -> bool:
    """Whether a block says nothing that the message itself does not, so that it need not be kept."""
    if block["type"] == "text":
        return not block.get("citations")
    caller = (block.get("caller") or {}).get("type", "direct")  # the model itself, or the provider's code execution
    return bool(block["type"] == "tool_use" and caller == "direct")


def _blocks(answer: dict[str, Any]) -> list[Block]:
    """The blocks of an answer, without empty text, which is refused when it is sent back."""
    blocks = [block for block in answer["content"] if isinstance(block, dict) and isinstance(block.get("type"), str)]
    blocks = [block for block in blocks if block["type"] != "text" or block.get("text")]
    return without_repeats(blocks, _said)


def _said(block: Block) -> Said | None:
    """What a block says as a call."""
    if block["type"] != "tool_use":
        return None
    return block.get("id"), block.get("name"), block.get("broken") or block.get("input")
