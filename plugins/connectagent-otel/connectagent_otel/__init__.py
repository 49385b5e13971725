"""Traces and metrics by OpenTelemetry's conventions for generative AI.

A turn is a span `invoke_agent`, each attempt at a model a span `chat`, and each tool call a span `execute_tool`. They
are current while their operation runs, so what happens inside (another agent, an HTTP client) becomes their child.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from opentelemetry import metrics, trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, TraceFlags

from connectagent import (
    ConfigError,
    Pause,
    Paused,
    ToolRejected,
    Waiting,
    after_each_tool,
    around_llm,
    around_tool,
    around_turn,
    mask,
)

if TYPE_CHECKING:
    from connectagent import Agent, LLMRequest, LLMResponse, Message, TokenUsage, ToolCall, TraceEntry

_SCOPE = "connectagent.otel"
_PROVIDERS = {"openai-responses": "openai", "gemini": "gcp.gemini", "mistral": "mistral_ai", "xai": "x_ai"}
_OPTIONS = ("temperature", "top_p", "top_k", "max_tokens", "frequency_penalty", "presence_penalty", "seed")
_SECONDS = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
_TOKENS = [4**power for power in range(14)]


class Otel:
    """The plugin: `Agent(plugins=["otel"])`, or with options `Agent(plugins=[Otel(content=True)])`.

    Args:
        content: whether prompts, answers, arguments, results and the texts of errors are sent, masked.
        slow_ms: calls of handlers that took longer get a span; 0 for none.
        export: send by OTLP over HTTP, where the program has set no OpenTelemetry providers itself.
        tracer_provider: whose spans they are; None for the program's own.
        meter_provider: the same for metrics.

    Raises:
        ConfigError: `export` without the OTLP exporter.
    """

    changes = ("trace?",)

    name: ClassVar[str] = "otel"

    def __init__(
        self,
        content: bool = False,
        slow_ms: float = 100,
        export: bool = False,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self.content, self.slow_ms = content, slow_ms
        if export:
            _export()
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider)
        self._duration = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", "GenAI operation duration.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )  # fmt: skip
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )  # fmt: skip
        self._cost = meter.create_counter("connectagent.client.cost", "{USD}", "Price of model calls.")

    @around_turn
    def turn(self, agent: Agent, prompt: str) -> Generator[None, str, None]:
        """A turn, of an agent inside another one too."""
        if agent.replaying:
            yield
            return
        turn = agent.session["turn"]
        named = {"connectagent.turn": turn, "gen_ai.request.model": agent.llm.model}
        links = _earlier(agent.session["trace"], turn)
        with self._operation("invoke_agent", agent.name, agent, named, links=links) as span:
            self._add(span, {"gen_ai.input.messages": lambda: [_message({"role": "user", "content": prompt})]})
            if span.is_recording():  # where the span is: for a resumed turn, and for people who read the record
                at = span.get_span_context()
                agent.trace("otel", turn=turn, trace_id=f"{at.trace_id:032x}", span_id=f"{at.span_id:016x}")
            try:
                result = yield
                span.set_attribute("connectagent.outcome", str(agent.session["outcome"]))
                answer: Message = {"role": "assistant", "content": result}
                self._add(span, {"gen_ai.output.messages": lambda: [_message(answer)]})
            finally:
                self._handlers(agent)

    @around_llm
    def attempt(self, agent: Agent, request: LLMRequest) -> Generator[None, LLMResponse, None]:
        """An attempt at a model; those of the provider's SDK are events of it."""
        if agent.replaying:
            yield
            return
        named = {"gen_ai.request.model": request.model}
        named |= {f"gen_ai.request.{key}": value for key, value in request.options.items() if key in _OPTIONS}
        with self._operation("chat", request.model, agent, named, SpanKind.CLIENT) as span:
            self._add(span, {
                "gen_ai.system_instructions": lambda: _instructions(request),
                "gen_ai.input.messages": lambda: [_message(one) for one in request.messages if one["role"] != "system"],
            })  # fmt: skip
            response = yield
            self._answered(span, response)
            if response.usage is not None:
                self._spend(span, response.usage, _labels("chat", agent, named))

    @around_tool
    def tool(self, agent: Agent, tool_call: ToolCall) -> Generator[None, Any, None]:
        """A tool that runs."""
        if agent.replaying:
            yield
            return
        named = {"gen_ai.tool.name": tool_call.name, "gen_ai.tool.call.id": tool_call.id}
        with self._operation("execute_tool", tool_call.name, agent, named) as span:
            self._add(span, {"gen_ai.tool.call.arguments": lambda: tool_call.arguments})
            result = yield
            self._add(span, {"gen_ai.tool.call.result": lambda: result})

    @after_each_tool
    def call(self, agent: Agent, entry: TraceEntry) -> None:
        """A call that no tool ran for: it was rejected, stood in for, not found, or did not fit."""
        if "started" in entry or agent.replaying:
            return
        named = {"gen_ai.tool.name": entry["tool_name"], "gen_ai.tool.call.id": entry["call_id"]}
        named["connectagent.status"] = entry["status"]
        span = self._tracer.start_span(
            f"execute_tool {entry['tool_name']}", attributes=_labels("execute_tool", agent, named)
        )
        if entry["status"] in ("error", "not_found"):
            span.set_attribute("error.type", str(entry.get("error_type", entry["status"])))
            span.set_status(StatusCode.ERROR)
        span.end()

    @contextmanager
    def _operation(
        self,
        operation: str,
        what: str,
        agent: Agent,
        named: dict[str, Any],
        kind: SpanKind = SpanKind.INTERNAL,
        links: list[Link] | None = None,
    ) -> Iterator[Span]:
        """A span that is current meanwhile, with its time and its error."""
        labels, started = _labels(operation, agent, named), time.perf_counter()
        measured = {key: value for key, value in labels.items() if key in _MEASURED}
        options: dict[str, Any] = {"record_exception": False, "set_status_on_exception": False}  # texts are contents
        options["attributes"] = labels | {"gen_ai.conversation.id": agent.session["id"]}
        options |= {"kind": kind, "links": links}
        with self._tracer.start_as_current_span(f"{operation} {what}", **options) as span:
            try:
                yield span
            except BaseException as error:
                if (outcome := _no_error(error)) is not None:
                    span.set_attribute("connectagent.outcome", outcome)
                else:
                    measured["error.type"] = type(error).__name__
                    span.set_attribute("error.type", type(error).__name__)
                    span.set_status(StatusCode.ERROR, str(mask(str(error))) if self.content else None)
                raise
            finally:
                self._duration.record(time.perf_counter() - started, measured)

    def _add(self, span: Span, contents: dict[str, Callable[[], Any]]) -> None:
        """Add contents as JSON, masked, if they are wanted."""
        if self.content and span.is_recording():
            for key, make in contents.items():
                span.set_attribute(key, json.dumps(mask(make()), ensure_ascii=False, default=repr))

    def _answered(self, span: Span, response: LLMResponse) -> None:
        if response.model:
            span.set_attribute("gen_ai.response.model", response.model)
        if response.finish_reason:
            span.set_attribute("gen_ai.response.finish_reasons", [response.finish_reason])
        for retry in response.retries or []:
            span.add_event("connectagent.retry", {key: value for key, value in retry.items() if value is not None})
        self._add(span, {"gen_ai.output.messages": lambda: [_answer(response)]})

    def _spend(self, span: Span, usage: TokenUsage, labels: dict[str, Any]) -> None:
        measured = {key: value for key, value in labels.items() if key in _MEASURED}
        for kind, tokens in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            span.set_attribute(f"gen_ai.usage.{kind}_tokens", tokens)
            self._tokens.record(tokens, measured | {"gen_ai.token.type": kind})
        span.set_attribute("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens)
        span.set_attribute("gen_ai.usage.cache_creation.input_tokens", usage.cache_write_tokens)
        if usage.cost is not None:
            span.set_attribute("connectagent.usage.cost", usage.cost)
            self._cost.add(usage.cost, measured)

    def _handlers(self, agent: Agent) -> None:
        """Spans of the handlers that took long, as children of their turn."""
        for plugin, hook, started, seconds in agent.slow_handlers:
            if self.slow_ms and seconds * 1000 >= self.slow_ms:
                named = {"connectagent.plugin": plugin, "connectagent.hook": hook}
                span = self._tracer.start_span(f"{hook} {plugin}", attributes=named, start_time=int(started * 1e9))
                span.end(int((started + seconds) * 1e9))


_MEASURED = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.tool.name")


def _labels(operation: str, agent: Agent, named: dict[str, Any]) -> dict[str, Any]:
    """The attributes of an operation that are known when it begins."""
    provider = getattr(agent.llm, "provider", None) or "_OTHER"
    common = {"gen_ai.operation.name": operation, "gen_ai.provider.name": _PROVIDERS.get(provider, provider)}
    return {**common, "gen_ai.agent.name": agent.name, **named}


def _no_error(error: BaseException) -> str | None:
    """What an exception means that is no error; None for an error."""
    if isinstance(error, ToolRejected):
        return "rejected"
    return "paused" if isinstance(error, Pause | Paused | Waiting) else None


def _earlier(entries: list[TraceEntry], turn: int) -> list[Link]:
    """A link to the span of the same turn before it was resumed."""
    for entry in reversed(entries):
        if entry["type"] == "otel":
            if entry["turn"] != turn:
                break
            at = SpanContext(int(entry["trace_id"], 16), int(entry["span_id"], 16), True, TraceFlags(1))
            return [Link(at, {"connectagent.link": "resumed"})]
    return []


def _instructions(request: LLMRequest) -> list[dict[str, Any]]:
    """The system prompt in the conventions' form."""
    return [part for one in request.messages if one["role"] == "system" for part in _message(one)["parts"]]


def _answer(response: LLMResponse) -> dict[str, Any]:
    """A model's answer in the conventions' form."""
    parts = [{"type": "text", "content": response.content}] if response.content else []
    for call in response.tool_calls or []:
        parts.append({"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments})  # type: ignore[dict-item]
    return {"role": "assistant", "parts": parts, "finish_reason": response.finish_reason or ""}


def _message(message: Message) -> dict[str, Any]:
    """A message in the conventions' form. Of pictures and files, only the kind is given."""
    content = message.get("content")
    if message["role"] == "tool":
        parts: list[Any] = [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}]
    elif isinstance(content, list):
        parts = [{"type": one["type"], **({"content": one["text"]} if "text" in one else {})} for one in content]
    else:
        parts = [{"type": "text", "content": content}] if content else []
    for call in message.get("tool_calls") or []:
        asked = call["function"]
        parts.append({"type": "tool_call", "id": call["id"], "name": asked["name"], "arguments": asked["arguments"]})
    return {"role": message["role"], "parts": parts}


@functools.cache  # once for all agents of the process
def _export() -> None:
    """Set providers that send by OTLP over HTTP, to where the variables `OTEL_EXPORTER_OTLP_...` say."""
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise ConfigError("otel: export needs the OTLP exporter: pip install 'connectagent-otel[otlp]'") from None
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):  # the program has set none
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
        metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())]))
