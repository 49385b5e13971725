"""Spans and metrics have the published names and the right parents; contents and secrets are absent unless wanted."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from connectagent_otel import Otel
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.trace import SpanKind, StatusCode
from pytest_connectagent import AgentTester

from connectagent import (
    Agent,
    ConfigError,
    LLMResponse,
    Pause,
    Paused,
    ProviderError,
    Retry,
    TokenUsage,
    ToolCall,
    ToolRejected,
    after_tools,
    before_each_tool,
    on_error,
    tool,
    xray,
)
from connectagent.testing import ScriptedLLM, call, replayed

SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789abcdefgh"
DOWN = ProviderError(f"down: {SECRET}", kind="server", provider="test")
USAGE = TokenUsage(100, 20, cached_tokens=60, cost=0.5)


class Collected:
    """What a plugin sent, in memory."""

    def __init__(self, **options: Any) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers, self.meters = TracerProvider(), MeterProvider([self.reader])
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.plugin = Otel(tracer_provider=self.tracers, meter_provider=self.meters, **options)

    @property
    def spans(self) -> list[ReadableSpan]:
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def tree(self) -> set[tuple[str, str | None]]:
        """The name of each span with that of its parent."""
        names = {span.context.span_id: span.name for span in self.spans if span.context}
        return {(span.name, names[span.parent.span_id] if span.parent else None) for span in self.spans}

    def metrics(self) -> dict[str, list[Any]]:
        data: Any = self.reader.get_metrics_data()
        (scope,) = data.resource_metrics[0].scope_metrics
        return {metric.name: list(metric.data.data_points) for metric in scope.metrics}

    def __str__(self) -> str:
        return "".join(span.to_json() for span in self.spans) + str(self.reader.get_metrics_data())


@pytest.fixture(autouse=True)
def no_complaints(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """OpenTelemetry logs what it cannot do, such as to leave a context twice."""
    yield
    assert [record for record in caplog.records if record.name.startswith("opentelemetry")] == []


def look(place: str) -> str:
    """Look at a place."""
    return f"{place} is empty"


def agent_with(collected: Collected, *script: Any, tools: Any = (look,), plugins: Any = (), **options: Any) -> Agent:
    options = {"log": False, "quiet": True, **options}
    return Agent("main", tools, llm=ScriptedLLM(*script), plugins=[collected.plugin, *plugins], **options)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_it_keeps_the_rules_on_every_path(agenttester: AgentTester) -> None:
    agenttester.check(Collected(content=True).plugin, changes={"trace?"})


def test_without_a_provider_nothing_is_changed(agenttester: AgentTester) -> None:
    agenttester.check(Otel())


def looked() -> tuple[Collected, Agent]:
    """A turn with one tool call."""
    collected = Collected()
    answer = LLMResponse("Empty.", usage=USAGE, finish_reason="stop", model="scripted-2")
    agent = agent_with(collected, call("look", place="shelf"), answer)
    agent.input("Look.")
    return collected, agent


def test_a_turn_is_spans_with_what_it_came_to() -> None:
    collected, agent = looked()
    turn, _, ran, last = collected.spans
    assert [span.name for span in collected.spans] == [
        *("invoke_agent main", "chat scripted", "execute_tool look", "chat scripted")
    ]
    assert [span.kind for span in (turn, ran, last)] == [SpanKind.INTERNAL, SpanKind.INTERNAL, SpanKind.CLIENT]
    assert attributes(turn)["gen_ai.agent.name"] == "main"
    assert attributes(turn)["gen_ai.conversation.id"] == agent.session["id"]
    assert attributes(turn)["connectagent.outcome"] == "answered"
    assert attributes(ran)["gen_ai.tool.name"] == "look"
    assert attributes(last)["gen_ai.usage.input_tokens"] == 100
    assert attributes(last)["gen_ai.usage.cache_read.input_tokens"] == 60
    assert attributes(last)["gen_ai.response.finish_reasons"] == ("stop",)
    assert attributes(last)["gen_ai.response.model"] == "scripted-2"


@pytest.mark.skipif(
    not hasattr(gen_ai_attributes, "GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS"),
    reason="the installed opentelemetry-semantic-conventions are older than the names that are sent",
)
def test_spans_have_the_published_names() -> None:
    collected, _ = looked()
    published = {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)}
    keys = {key for span in collected.spans for key in attributes(span)}
    assert {key for key in keys if not key.startswith("connectagent.")} <= published
    operations = {one.value for one in gen_ai_attributes.GenAiOperationNameValues}
    assert {attributes(span)["gen_ai.operation.name"] for span in collected.spans} <= operations


def test_metrics_have_the_published_names() -> None:
    collected = Collected()
    agent_with(collected, LLMResponse("Hi.", usage=USAGE)).input("Hello")
    metrics = collected.metrics()
    published = {value for value in vars(gen_ai_metrics).values() if isinstance(value, str)}
    assert {name for name in metrics if name.startswith("gen_ai.")} <= published
    tokens = {point.attributes["gen_ai.token.type"]: point.sum for point in metrics["gen_ai.client.token.usage"]}
    assert tokens == {"input": 100, "output": 20}
    durations = metrics["gen_ai.client.operation.duration"]
    assert {point.attributes["gen_ai.operation.name"] for point in durations} == {"chat", "invoke_agent"}
    assert all(0 < point.sum < 5 for point in durations)
    assert [point.value for point in metrics["connectagent.client.cost"]] == [0.5]


@pytest.mark.parametrize("way", ["input", "stream", "ainput", "astream"])
def test_parents_are_right_in_parallel_rounds_agents_and_every_way_to_take_a_turn(way: str) -> None:
    collected = Collected()
    tracer = collected.tracers.get_tracer("program")
    together = threading.Barrier(3, timeout=10)

    def worker(tool_name: str) -> Any:
        @tool(name=tool_name)
        def work(name: str) -> str:
            """Work."""
            with tracer.start_as_current_span(f"inside {name}"):
                together.wait()
            return name

        return work

    one, two = (
        Agent(name, [worker(f"work_{name}")], quiet=True, llm=ScriptedLLM(call(f"work_{name}", name=name), "Done."))
        for name in ("one", "two")
    )
    script = [[call("work", name="zero"), call("one", prompt="Go."), call("two", prompt="Go.")], "Done."]
    agent = agent_with(collected, *script, tools=[worker("work"), one, two], parallel_tools=3)

    async def streamed() -> None:
        async with agent.astream("Go.") as events:
            async for _ in events:
                pass

    with tracer.start_as_current_span("request"):
        if way == "input":
            agent.input("Go.")
        elif way == "stream":
            list(agent.stream("Go."))
        else:
            asyncio.run(agent.ainput("Go.") if way == "ainput" else streamed())  # type: ignore[arg-type]
    assert collected.tree() == {
        ("request", None),
        ("invoke_agent main", "request"),
        ("chat scripted", "invoke_agent main"),
        ("execute_tool work", "invoke_agent main"),
        ("inside zero", "execute_tool work"),
        *{
            pair
            for name in ("one", "two")
            for pair in (
                (f"execute_tool {name}", "invoke_agent main"),
                (f"invoke_agent {name}", f"execute_tool {name}"),
                ("chat scripted", f"invoke_agent {name}"),
                (f"execute_tool work_{name}", f"invoke_agent {name}"),
                (f"inside {name}", f"execute_tool work_{name}"),
            )
        },
    }


def test_each_attempt_is_a_span_and_those_of_the_sdk_are_events() -> None:
    collected = Collected()

    @on_error
    def again() -> Retry:
        return Retry()

    answer = LLMResponse("Hi.", retries=[{"status": 429, "duration_ms": 5.0, "retry_after_s": None}])
    agent_with(collected, DOWN, answer, plugins=[again]).input("Hello")
    failed, answered = [span for span in collected.spans if span.name == "chat scripted"]
    assert failed.status.status_code is StatusCode.ERROR
    assert attributes(failed)["error.type"] == "ProviderError"
    assert answered.status.status_code is StatusCode.UNSET
    ((event, more),) = [(event.name, dict(event.attributes or {})) for event in answered.events]
    assert (event, more) == ("connectagent.retry", {"status": 429, "duration_ms": 5.0})
    durations = collected.metrics()["gen_ai.client.operation.duration"]
    assert [point.attributes["error.type"] for point in durations if "error.type" in point.attributes] == [
        "ProviderError"
    ]


def test_an_error_ends_its_span_and_that_of_the_turn() -> None:
    collected = Collected()
    with pytest.raises(ProviderError):
        agent_with(collected, DOWN).input("Hello")
    assert [span.status.status_code for span in collected.spans] == [StatusCode.ERROR, StatusCode.ERROR]


def test_calls_that_no_tool_ran_for_have_a_span_too() -> None:
    collected = Collected()

    @before_each_tool
    def guard(tool_call: ToolCall) -> None:
        if tool_call.name == "look":
            raise ToolRejected("no")

    agent_with(collected, [call("look", place="a"), call("nope")], "Done.", plugins=[guard]).input("Go.")
    rejected, unknown = collected.named("execute_tool look"), collected.named("execute_tool nope")
    assert attributes(rejected)["connectagent.status"] == "rejected"
    assert rejected.status.status_code is StatusCode.UNSET
    assert attributes(unknown)["error.type"] == "ToolNotFound"
    assert unknown.parent == rejected.parent == collected.named("invoke_agent main").context


def test_handlers_that_took_long_are_spans_of_their_turn() -> None:
    collected = Collected(slow_ms=30)

    @after_tools
    def nap() -> None:
        time.sleep(0.05)

    agent_with(collected, call("look", place="a"), "Done.", plugins=[nap]).input("Go.")
    span = collected.named("after_tools nap")
    assert span.parent == collected.named("invoke_agent main").context
    assert (span.end_time or 0) - (span.start_time or 0) > 40_000_000


# -- contents ------------------------------------------------------------------------------------

WORDS = ("petunia", "begonia", "dahlia", "lupin", "orchid", SECRET)


def talk(collected: Collected) -> None:
    """A turn with a word in the prompts, the arguments, the result, an error and the answer."""

    def plant(name: str) -> str:
        """Plant."""
        if name == "lupin":
            raise ValueError(f"no {name}, {SECRET}")
        return "dahlia"

    script = [[call("plant", name="begonia"), call("plant", name="lupin")], "orchid"]
    agent_with(collected, *script, tools=[plant], system_prompt="You know the petunia.").input(f"petunia {SECRET}")


def test_contents_and_secrets_are_absent_by_default() -> None:
    collected = Collected()
    talk(collected)
    assert len(collected.spans) == 5
    assert [word for word in WORDS if word in str(collected)] == []


def test_contents_are_sent_masked_where_they_are_wanted() -> None:
    collected = Collected(content=True)
    talk(collected)
    assert [word for word in WORDS if word not in str(collected)] == [SECRET]
    chat = attributes([span for span in collected.spans if span.name == "chat scripted"][1])
    assert json.loads(chat["gen_ai.system_instructions"]) == [{"type": "text", "content": "You know the petunia."}]
    assert json.loads(chat["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "orchid"}], "finish_reason": ""}
    ]
    _, asked, told, _ = json.loads(chat["gen_ai.input.messages"])
    assert [part["type"] for part in asked["parts"]] == ["tool_call", "tool_call"]
    assert told["parts"][0]["response"] == "dahlia"


# -- pause, resume and replay --------------------------------------------------------------------


def spend(amount: int) -> str:
    """Spend."""
    if not xray.approved:
        raise Pause("much")
    return "spent"


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("anew", [False, True])
def test_a_resumed_turn_is_linked_to_the_span_in_which_it_paused(inner: bool, anew: bool, co_dir: Path) -> None:
    before, after = Collected(), Collected()

    def made(collected: Collected) -> Agent:
        script = [call("spend", amount=5), "Done."]
        if not inner:
            return agent_with(collected, *script, tools=[spend], log=True)
        child = Agent("child", [spend], llm=ScriptedLLM(*script))
        return agent_with(collected, call("child", prompt="Go."), "Done.", tools=[child], log=True)

    agent = made(before)
    with pytest.raises(Paused) as paused:
        agent.input("Go.")
    assert {span.status.status_code for span in before.spans} == {StatusCode.UNSET}
    assert attributes(before.named("execute_tool spend"))["connectagent.outcome"] == "paused"
    if anew:
        again = made(after)
        again.llm = ScriptedLLM("Done.")
        for child in again.tools:
            if child.name == "child":
                child.function.agent.llm = ScriptedLLM("Done.")  # type: ignore[attr-defined]
        again.resume(paused.value.record, approve=True)
    else:
        before.exporter.clear()
        after = before
        agent.resume(approve=True)
    record = (paused.value.record or Path()).read_text()
    for name in ["main", "child"] if inner else ["main"]:
        span = after.named(f"invoke_agent {name}")
        (link,) = span.links
        assert f'"span_id": "{link.context.span_id:016x}"' in record
        assert span.context and link.context.span_id != span.context.span_id
    assert attributes(after.named("execute_tool spend"))["gen_ai.tool.name"] == "spend"


def test_another_turn_has_no_link() -> None:
    collected = Collected()
    agent = agent_with(collected, "One.", "Two.")
    agent.input("a")
    agent.input("b")
    assert [len(span.links) for span in collected.spans if span.name == "invoke_agent main"] == [0, 0]


def test_a_replay_sends_nothing(co_dir: Path) -> None:
    agent = agent_with(Collected(), call("look", place="a"), "Done.", log=True)
    agent.input("Go.")
    assert agent.record is not None
    collected = Collected()
    assert replayed(agent.record, agent=agent_with(collected)).same
    assert collected.spans == []


# -- sending -------------------------------------------------------------------------------------

PROGRAM = """
from connectagent import Agent
from connectagent_otel import Otel
def look(place: str) -> str:
    "Look."
    return "empty"
agent = Agent("main", [look], plugins=[Otel({options})], log=False, quiet=True)
agent.input("Look at the shelf {secret}")
"""


@pytest.mark.parametrize("content", [False, True])
def test_it_sends_to_a_receiver_of_otlp(content: bool, tmp_path: Path) -> None:
    bodies: dict[str, list[bytes]] = {"/v1/traces": [], "/v1/metrics": []}

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            bodies[self.path].append(data)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *given: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        environment = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]),
        }
        options = "export=True, content=True" if content else "export=True"
        command = [sys.executable, "-c", PROGRAM.format(options=options, secret=SECRET)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert (done.returncode, done.stderr) == (0, "")
    spans = [
        span
        for body in bodies["/v1/traces"]
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert {span.name for span in spans} >= {"invoke_agent main", "chat offline", "execute_tool look"}
    assert any(b"shelf" in body for body in bodies["/v1/traces"]) is content
    assert not any(SECRET.encode() in body for sent in bodies.values() for body in sent)
    names = {
        metric.name
        for body in bodies["/v1/metrics"]
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert "gen_ai.client.operation.duration" in names


def test_without_the_exporter_the_error_tells_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"connectagent-otel\[otlp\]"):
        Otel(export=True)
