"""Guards decide on the values of placeholders; models, judges and the record do not get them."""

from __future__ import annotations

import enum
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import connectagent_approve
import pydantic
import pytest
from connectagent_approve import Approve
from connectagent_otel import Otel
from connectagent_redact import Redact
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from test_canonical_arguments import plain, text
from test_guards_see_one_form import Seen

from connectagent import (
    Agent,
    Pause,
    Paused,
    Tool,
    ToolCall,
    after_each_tool,
    around_tool,
    before_each_tool,
    before_tools,
    mask,
)
from connectagent.testing import ScriptedLLM, call

MAIL, CARD, PHONE = "Ada.Lovelace@Example.org", "4111111111111111", "+493012345678"
Mail = Annotated[str, pydantic.StringConstraints(pattern=r"^[^@<> ]+@[^@<> ]+$", to_lower=True)]


@dataclass
class Person:
    mail: Mail
    card: int
    place: str = "somewhere"


class Known(enum.Enum):
    ADA = MAIL


KINDS: dict[str, tuple[Any, Any]] = {
    # the type, and what a model sends that knows placeholders only
    "text": (str, "{mail}"),
    "part of a text": (str, "Dear {mail}, your card is {card}."),
    "JSON in a text": (str, '{{"mail": "{mail}"}}'),
    "number": (int, "{card}"),
    "float": (float, "{card}"),
    "number of a phone": (int, "{phone}"),
    "address": (Mail, "{mail}"),
    "small letters": (Annotated[str, pydantic.StringConstraints(to_lower=True)], "{mail}"),
    "literal": (Literal["Ada.Lovelace@Example.org", "b"], "{mail}"),
    "enum": (Known, "{mail}"),
    "long": (Annotated[str, pydantic.StringConstraints(min_length=24)], "{mail}"),
    "list": (list[Mail], ["{mail}", "{mail}"]),
    "JSON text for a list": (list[Mail], '["{mail}"]'),
    "dict": (dict[Mail, int], {"{mail}": "{card}"}),
    "dataclass": (Person, {"mail": "{mail}", "card": "{card}"}),
    "JSON text for a dataclass": (Person, '{{"mail": "{mail}", "card": "{card}"}}'),
    "optional": (int | None, "{card}"),
    "secret": (pydantic.SecretStr, "{mail}"),
}


def filled(sent: Any, names: dict[str, str]) -> Any:
    """What is sent, with placeholders or values."""
    if isinstance(sent, str):
        return sent.format(**names)
    if isinstance(sent, list):
        return [filled(one, names) for one in sent]
    return {filled(key, names): filled(one, names) for key, one in sent.items()}


VALUES = {"mail": MAIL, "card": CARD, "phone": PHONE}


class World:
    """An agent with redact and all guards, and what each of them saw."""

    def __init__(self, name: str, folder: Path, patch: pytest.MonkeyPatch, first: bool = True, **ways: Any) -> None:
        kind, self.sent = KINDS[name]
        self.got: list[Any] = []
        self.forms: dict[str, set[str]] = {}
        self.tool = Tool.from_function(self.function(kind))
        asked = {"value": filled(self.sent, VALUES)}
        self.expected, self.value = text(self.tool.canonical(asked)), plain(self.tool.bind(asked)["value"])
        self.guards = Seen(folder, patch)
        self._watch_approve(patch)
        plugins = [*self.handlers(), *self.guards.plugins, Approve()]
        plugins.insert(0 if first else len(plugins), Redact(restore=["take"]))
        self.judge = ScriptedLLM(*['{"allowed": true, "reason": "x"}'] * 4)
        judge = Agent("judge", llm=self.judge, quiet=True, log=False)
        self.llm = ScriptedLLM()
        self.agent = Agent("a", [self.tool], llm=self.llm, plugins=plugins, trust=judge, quiet=True, **ways)

    def function(self, kind: Any) -> Callable[..., Any]:
        def take(value: Any) -> str:
            self.got.append(plain(value))
            return "taken"

        take.__annotations__ = {"value": kind, "return": str}
        return take

    def call(self) -> ToolCall:
        """The call of a model that knows placeholders only."""
        return call("take", value=filled(self.sent, {key: Redact().text(value) for key, value in VALUES.items()}))

    def _watch_approve(self, patch: pytest.MonkeyPatch) -> None:
        real = Approve._decide

        def decide(own: Approve, agent: Agent, tool_call: ToolCall, memory: str | None) -> None:
            self.note("approve", tool_call)
            real(own, agent, tool_call, memory)

        patch.setattr(connectagent_approve, "can_ask", lambda: True)
        patch.setattr(connectagent_approve, "_read", lambda question: "y")
        patch.setattr(Approve, "_decide", decide)

    def note(self, where: str, tool_call: ToolCall) -> None:
        assert tool_call.misfit is None, f"{where}: {tool_call.misfit}"
        self.forms.setdefault(where, set()).add(text(tool_call.arguments))

    def handlers(self) -> list[Any]:
        @before_tools
        def round_begins(agent: Agent, tool_calls: list[ToolCall]) -> None:
            for one in tool_calls:
                self.note("before_tools", one)
            for shown in agent.session["pending_tools"] or ():
                self.forms.setdefault("pending_tools", set()).add(text(shown["arguments"]))

        @before_each_tool(tryfirst=True)
        def call_begins(tool_call: ToolCall) -> None:
            self.note("before_each_tool", tool_call)

        @around_tool
        def around(tool_call: ToolCall) -> Iterator[None]:
            self.note("around_tool", tool_call)
            yield

        @after_each_tool
        def call_is_over(tool_call: ToolCall) -> None:
            self.note("after_each_tool", tool_call)

        return [round_begins, call_begins, around, call_is_over]


def leaks(written: str) -> list[str]:
    """The values that are in a text, however they are spelled."""
    low = written.lower()
    return [one for one in (MAIL.lower(), CARD, PHONE.lstrip("+")) if one in low]


WAYS: dict[str, dict[str, Any]] = {
    "in series": {},
    "redact listed last": {"first": False},
    "in parallel": {"parallel_tools": 4},
    "by execute_tool": {},
}
PROMPT = f"I am {MAIL}, {CARD}, {PHONE}."


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("name", KINDS)
def test_every_guard_sees_the_value_that_the_function_gets(
    name: str, how: str, tmp_path: Path, co_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(name, tmp_path, monkeypatch, **WAYS[how])
    calls = [world.call() for _ in range(2 if how == "in parallel" else 1)]
    world.llm.responses = ["Done."] if how == "by execute_tool" else [calls, "Done."]
    world.agent.input(PROMPT)
    if how == "by execute_tool":
        world.agent.execute_tool("take", calls[0].arguments)
    assert world.got == [world.value] * len(calls)
    seen = {**world.forms, **{guard: set(shown) for guard, shown in world.guards.by_guard.items()}}
    assert set(seen) >= {"before_tools", "before_each_tool", "around_tool", "approve", "policy", "shell hook", "adk"}
    assert {guard: shown for guard, shown in seen.items() if shown != {world.expected}} == {}
    for llm in (world.llm, world.judge):  # a judge decides by placeholders
        assert llm.requests and leaks(json.dumps([one.messages for one in llm.requests], ensure_ascii=False)) == []
    written = {path: path.read_text("utf-8", "replace") for path in co_dir.rglob("*.*") if path.is_file()}
    assert written and {path: leaks(one) for path, one in written.items() if leaks(one)} == {}
    assert leaks(json.dumps(mask(world.agent.session["trace"][1:]), default=str)) == []  # as exporters send it


@pytest.mark.parametrize("name", KINDS)
def test_exporters_and_the_terminal_show_placeholders(
    name: str, co_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, sent = KINDS[name]
    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))

    def take(value: Any) -> Any:
        return value  # the model reads what the tool got, and must not

    take.__annotations__ = {"value": kind, "return": Any}
    asked = call("take", value=filled(sent, {key: Redact().text(value) for key, value in VALUES.items()}))
    llm = ScriptedLLM(asked, "Done.")
    plugins = [Redact(restore=["take"]), Otel(content=True, tracer_provider=tracers)]
    agent = Agent("a", [take], llm=llm, plugins=plugins)
    agent.input(PROMPT)
    spans = [dict(span.attributes or {}) for span in exporter.get_finished_spans()]
    assert any("gen_ai.tool.call.arguments" in one for one in spans), spans
    assert leaks(json.dumps(spans, ensure_ascii=False)) == []
    assert leaks(json.dumps([one.messages for one in llm.requests], ensure_ascii=False)) == []
    shown = capsys.readouterr().err
    assert "take" in shown and leaks(shown.partition("take")[2]) == []


# -- pauses, renames and what does not fit ---------------------------------------------------------


def pay(card: int, note: str = "") -> str:
    """Pay by card."""
    paid.append((card, note))
    return "paid"


def publish(card: int, note: str = "") -> str:
    """Publish a card."""
    paid.append(("published", card))
    return "published"


paid: list[Any] = []


@before_each_tool
def wait(tool_call: ToolCall) -> None:
    if not tool_call.approved:
        raise Pause("pay?")


def payer(redact: Redact, *responses: Any, plugins: Any = (), **more: Any) -> Agent:
    paid.clear()
    llm = ScriptedLLM(*responses)
    return Agent("a", [pay, publish], llm=llm, plugins=[*plugins, redact], quiet=True, **more)


def asked(**more: Any) -> ToolCall:
    return call("pay", card=Redact().text(CARD), **more)


def test_a_person_approves_the_value_and_the_tool_gets_it(co_dir: Path) -> None:
    agent = payer(Redact(restore=["pay"]), asked(), "Done.", plugins=[wait])
    with pytest.raises(Paused) as stopped:
        agent.input(PROMPT)
    (waiting,) = stopped.value.waiting
    assert waiting.call is not None and waiting.call["arguments"] == {"card": int(CARD)}
    assert agent.resume(approve=waiting.id) == "Done." and paid == [(int(CARD), "")]


def test_elsewhere_the_value_is_not_known_and_the_call_does_not_run(co_dir: Path) -> None:
    agent = payer(Redact(restore=["pay"]), asked(), plugins=[wait])
    with pytest.raises(Paused) as stopped:
        agent.input(PROMPT)
    record, elsewhere = str(stopped.value.record), "connectagent resume {} --approve {} --script pays.py"
    Path("pays.py").write_text(SCRIPT)
    command = [sys.executable, "-m", *elsewhere.format(record, stopped.value.waiting[0].id).split()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert "ran" not in ended.stdout and "masked in the record" in ended.stdout
    assert leaks(ended.stdout + ended.stderr + Path(record).read_text("utf-8")) == []


SCRIPT = """
from connectagent import Agent, ToolCall
from connectagent.testing import ScriptedLLM
from connectagent_redact import Redact
from test_placeholders_and_guards import wait

def pay(card: int, note: str = "") -> str:
    print("ran")
    return "paid"

llm = ScriptedLLM(lambda messages, tools: str(messages[-1]["content"]))
agent = Agent("a", [pay], llm=llm, plugins=[wait, Redact(restore=["pay"])])
"""


def renaming(hook: Any) -> Any:
    def rename(tool_calls: list[ToolCall]) -> None:
        tool_calls[0].name = "publish"

    def rename_one(tool_call: ToolCall) -> None:
        tool_call.name = "publish"

    return hook(rename if hook is before_tools else rename_one)


@pytest.mark.parametrize("hook", [before_tools, before_each_tool], ids=["before_tools", "before_each_tool"])
def test_a_tool_that_is_to_have_no_values_gets_none_by_another_name(hook: Any, co_dir: Path) -> None:
    agent = payer(Redact(restore=["pay"]), asked(note="x"), "Done.", plugins=[renaming(hook)])
    agent.input(PROMPT)
    assert paid == []
    (entry,) = [entry for entry in agent.session["trace"] if entry["type"] == "tool_execution"]
    assert entry["tool_name"] == "publish" and entry["status"] == "error" and CARD not in str(entry["result"])


def test_a_value_that_is_not_known_is_asked_for(co_dir: Path) -> None:
    agent = payer(Redact(restore=["pay"]), asked(), "Done.", plugins=[wait])
    agent.input("Pay with my card")  # nobody has told this session its number
    (entry,) = [entry for entry in agent.session["trace"] if entry["type"] == "tool_execution"]
    assert paid == [] and entry["status"] == "rejected" and "is not known any more" in str(entry["result"])


def test_arguments_that_do_not_fit_keep_their_placeholders(co_dir: Path) -> None:
    agent = payer(Redact(restore=["pay"]), call("pay", card=Redact().text(MAIL)), "Done.")
    agent.input(PROMPT)
    (entry,) = [entry for entry in agent.session["trace"] if entry["type"] == "tool_execution"]
    assert paid == [] and 'you sent "<EMAIL_' in str(entry["result"])


def test_a_value_with_quotes_stays_one_value_in_json(co_dir: Path) -> None:
    mail = '"ada, l"@example.org'
    sent = f'["{Redact().text(mail)}"]'
    got: list[list[str]] = []

    def send(to: list[str]) -> str:
        """Send."""
        got.append(to)
        return "sent"

    llm = ScriptedLLM(call("send", to=sent), "Done.")
    Agent("a", [send], llm=llm, plugins=[Redact(restore=True)], quiet=True).input(f"Write to {mail}")
    assert got == [[mail]]


def test_a_guard_that_comes_before_redact_decides_again(co_dir: Path) -> None:
    seen: list[Any] = []

    @before_tools(tryfirst=True)
    def early(tool_calls: list[ToolCall]) -> None:
        seen.append(tool_calls[0].arguments["card"])

    agent = payer(Redact(restore=["pay"]), asked(), "Done.", plugins=[early])
    agent.input(PROMPT)
    assert seen == [Redact().text(CARD), int(CARD)] and paid == [(int(CARD), "")]


@pytest.mark.parametrize("parallel", [1, 4])
def test_a_value_that_is_not_known_stops_its_own_call_only(parallel: int, co_dir: Path) -> None:
    calls = [call("pay", card="<CARD_00000000>"), asked(), call("pay", card=5)]
    agent = payer(Redact(restore=["pay"]), calls, "Done.", parallel_tools=parallel)
    agent.input(PROMPT)
    entries = [entry for entry in agent.session["trace"] if entry["type"] == "tool_execution"]
    assert [entry["status"] for entry in entries] == ["rejected", "success", "success"]
    assert sorted(paid) == [(5, ""), (int(CARD), "")]


def test_two_calls_with_one_id_are_both_taken_back(co_dir: Path) -> None:
    def rename(tool_call: ToolCall) -> None:
        tool_call.name = "publish"

    first, second = asked(), call("pay", card=Redact().text("5500005555555559"))
    second.id = first.id
    agent = payer(Redact(restore=["pay"]), first, second, "Done.", plugins=[before_each_tool(rename)])
    agent.input(f"{PROMPT} Or 5500005555555559.")
    assert paid == []
