"""The console shows each turn on stderr: whole, plain lines that nothing in them can break."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from connectagent import (
    Agent,
    Continue,
    LLMResponse,
    Loop,
    Parallel,
    ProviderError,
    Retry,
    Sequential,
    TokenUsage,
    ToolRejected,
    after_each_tool,
    after_tools,
    before_each_tool,
    before_llm,
    on_complete,
    on_error,
)
from connectagent.builtin.console import Console
from connectagent.output.masking import masks
from connectagent.output.terminal import Terminal
from connectagent.testing import ScriptedLLM, call

ROOT = Path(__file__).parents[2]
HOSTILE = "[red]x[/red] :smile: \x1b[31m\x1b]0;title\x07 \x9b2J \r \ud800 \u202eabc\u2066 \u2028 [/nope] \x00"
OBEYED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.fixture(autouse=True)
def no_keys_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text waits while its end may begin a secret: a key that another test gave in code, too."""
    monkeypatch.setattr(masks, "_given", {})


def search(query: str) -> str:
    """Search the docs."""
    return f"found {query}\nsecond line"


def fail(path: str) -> str:
    """Fail."""
    raise FileNotFoundError(f"no such file: {path}")


def shown(*responses: Any, width: int = 60, prompt: str = "Find it", **options: Any) -> str:
    """What the console shows of one turn."""
    file = io.StringIO()
    agent = Agent(
        "helper",
        tools=[search, fail, *options.pop("tools", [])],
        llm=ScriptedLLM(*responses),
        plugins=[Console(file, width), *options.pop("plugins", [])],
        log=False,
        quiet=True,
        **options,
    )
    try:
        agent.input(prompt)
    except Exception as error:
        file.write(f"RAISED {type(error).__name__}\n")
    return file.getvalue()


def test_a_turn_is_a_line_for_each_thing_that_happens() -> None:
    usage = TokenUsage(1204, 56, cost=0.0012)
    text = shown(
        LLMResponse("I look it up.", [call("search", query="retry")], usage),
        LLMResponse("It is in retry.md.", usage=usage),
    )
    text = re.sub(r"\d+ms", "Nms", text)
    assert [re.sub(" {2,}", " ... ", line.rstrip()) for line in text.splitlines()] == [
        "helper · Find it",
        " ... 1 scripted ... 1 call ... Nms ... 1.2k→56 tok ... $0.0012",
        " ... I look it up.",
        ' ... ✓ search(query="retry") ... Nms',
        " ... found retry ... … 1 more line",
        " ... 2 scripted ... Nms ... 1.2k→56 tok ... $0.0012",
        " ... answered · 2 iterations · 1 tool ... Nms ... 2.5k tok ... $0.0024",
    ]


def test_the_result_itself_is_left_to_the_program() -> None:
    assert "forty-two" not in shown("forty-two")


def test_a_streamed_answer_is_shown_once_as_it_arrives() -> None:
    text = shown(LLMResponse("forty-two is the answer", usage=TokenUsage(10, 5)), stream=True)
    assert text.count("forty-two is the answer") == 1
    assert text.splitlines()[1:3] == ["  forty-two is the answer", text.splitlines()[2]]
    assert text.splitlines()[2].startswith("  1 scripted")


def test_each_piece_is_on_the_terminal_when_it_has_arrived() -> None:
    file, seen = io.StringIO(), []

    class Slow(ScriptedLLM):
        def stream(self, messages: Any, tools: Any = None, *, on_text: Any) -> LLMResponse:
            for piece in ("Hel", "lo wor", "ld"):
                on_text(piece)
                seen.append(file.getvalue())
            return self.complete(messages, tools)

    Agent("a", llm=Slow("Hello world"), plugins=[Console(file, 60)], stream=True, log=False, quiet=True).input("x")
    assert [text.splitlines()[-1] for text in seen] == ["  Hel", "  Hello wor", "  Hello world"]


def test_a_streamed_text_is_broken_between_words() -> None:
    words = " ".join(f"word{number}" for number in range(40)) + "\n\n- item\n" + "long" * 40
    text = shown(words, stream=True)
    assert all(cell_len(line) <= 60 for line in text.splitlines())
    assert "".join(text.split()).count("".join(words.split())) == 1
    assert all(f"word{number}" in text.split() for number in range(40))
    assert "\n\n  - item\n" in text


def test_a_text_that_breaks_off_is_followed_by_the_error_on_a_line_of_its_own() -> None:
    class Breaks(ScriptedLLM):
        def stream(self, messages: Any, tools: Any = None, *, on_text: Any) -> LLMResponse:
            on_text("It is in")
            raise ProviderError("the stream ended", kind="stream", provider="test")

    file = io.StringIO()
    agent = Agent("a", llm=Breaks(), plugins=[Console(file, 60)], stream=True, log=False, quiet=True)
    with pytest.raises(ProviderError):
        agent.input("x")
    lines = file.getvalue().splitlines()
    assert lines[1] == "  It is in"
    assert lines[2].startswith("  1 ")
    assert sum("the stream ended" in line for line in lines) == 1
    assert "failed: ProviderError" in lines[-1]


def test_failures_name_the_tool_and_the_reason() -> None:
    text = shown([call("fail", path="x.md"), call("serch", query="x")], "done")
    assert re.search(r'✗ fail\(path="x.md"\) +error  \d+ms\n +FileNotFoundError: no such file: x.md\n', text)
    assert re.search(r'✗ serch\(query="x"\) +not found\n +there is no tool', text)


def test_rejections_and_stand_ins_name_who_decided() -> None:
    @before_each_tool
    def gate(agent: Any, tool_call: Any) -> Any:
        if tool_call.arguments["query"] == "password":
            raise ToolRejected("Never search for passwords.")
        return "from the cache"

    @before_llm
    def cached(agent: Any) -> str | None:
        return "cached answer" if agent.current_session["iteration"] == 2 else None

    text = shown([call("search", query="password"), call("search", query="x")], plugins=[gate, cached])
    assert re.search(r"rejected\n +Never search for passwords\. \(by .*gate\)", text)
    assert re.search(r"stand in\n +from the cache \(by .*gate\)", text)
    assert re.search(r"2 scripted stand-in by .*cached", text)


def test_what_handlers_change_is_told_with_their_names() -> None:
    @after_tools
    def reflect(agent: Any) -> None:
        agent.current_session["messages"].append({"role": "user", "content": "Think again."})

    @after_each_tool
    def redact(agent: Any, result: Any) -> str:
        return "***"

    @on_complete
    def once_more(agent: Any, result: str) -> Continue | None:
        return Continue("Are you sure?") if agent.current_session["iteration"] == 2 else None

    text = shown([call("search", query="x")], "yes", "sure", plugins=[reflect, redact, once_more])
    assert "reflect added a message: Think again." in text
    assert re.search(r"\+ .*redact changed the result", text)
    assert "once_more added a message: Are you sure?" in text


def test_a_broken_plugin_is_named_with_its_place() -> None:
    @before_llm
    def broken(agent: Any) -> None:
        raise KeyError("oops")

    text = shown("never", plugins=[broken], width=100)
    assert re.search(r"✗ .*broken \(before_llm, .*test_console.py:\d+\) raised KeyError: 'oops'", text)
    assert "failed: KeyError" in text


def test_retries_and_answers_that_were_cut_are_told() -> None:
    failed: list[dict[str, Any]] = [{"status": 429, "duration_ms": 5.0}, {"status": None, "duration_ms": 5.0}]
    for reason in ("length", "max_tokens", "refusal", "content_filter"):
        text = shown(LLMResponse("It is", finish_reason=reason, retries=failed), width=80)
        assert f"({reason})" in text
        assert "! 2 failed attempts: 429, no answer" in text
    assert "cut" not in shown(LLMResponse("It is", finish_reason="stop"))


def test_a_model_that_fails_and_is_asked_again_shows_both_calls() -> None:
    @on_error
    def again(agent: Any, error: Exception) -> Retry:
        return Retry()

    overloaded = ProviderError("overloaded", kind="overloaded", provider="test", status=529)
    text = shown(overloaded, "done", plugins=[again])
    assert text.count("  1 scripted") == 2
    assert "✗ ProviderError: overloaded" in text
    assert "answered" in text


@pytest.mark.parametrize(
    ("failures", "told"),
    [
        (2, ["tried again: OSError: down", "tried again: two pages"]),
        (3, ["tried again: OSError: down", "tried again: OSError: down", "handled the error: one page"]),
    ],
)
def test_a_tool_that_is_tried_again_shows_what_came_of_it(failures: int, told: list[str]) -> None:
    runs: list[int] = []

    def flaky() -> str:
        """Fail at first."""
        runs.append(1)
        if len(runs) <= failures:
            raise OSError("down")
        return "two pages"

    @on_error
    def again() -> Any:
        return Retry() if len(runs) < 3 else "one page"

    text = shown(call("flaky"), "done", tools=[flaky], plugins=[again])
    assert re.findall(r"\+ again (.*)", text) == told


def test_an_answer_in_place_of_a_failed_model_is_shown() -> None:
    @on_error
    def sorry() -> str:
        return "Ask again later."

    assert "+ sorry handled the error: Ask again later." in shown(OSError("down"), plugins=[sorry])


def test_the_iteration_limit_is_told() -> None:
    assert "max_iterations · 1 iteration · 1 tool" in shown([call("search", query="x")], max_iterations=1)


def test_an_unknown_price_is_not_guessed() -> None:
    calls = LLMResponse(None, [call("search", query="x")], TokenUsage(10, 5, cost=0.5))
    only = shown(LLMResponse("x", usage=TokenUsage(10, 5)))
    assert "$" not in only and "15 tok  cost ?" in only
    assert "$0.5000 + ?" in shown(calls, LLMResponse("x", usage=TokenUsage(10, 5)), width=80)


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_that_is_shown_is_markup_or_is_obeyed_by_a_terminal(stream: bool) -> None:
    def echo(value: str) -> str:
        """Echo."""
        return value

    def hurt(value: str) -> str:
        """Hurt."""
        raise ValueError(value)

    @after_tools
    def add(agent: Any) -> None:
        agent.current_session["messages"].append({"role": "user", "content": HOSTILE})

    file = io.StringIO()
    responses = [
        LLMResponse(HOSTILE, [call("echo", value=HOSTILE), call("hurt", value=HOSTILE), call(HOSTILE, **{HOSTILE: 1})]),
        LLMResponse(HOSTILE, model=HOSTILE, finish_reason=HOSTILE),
    ]
    agent = Agent(HOSTILE, [echo, hurt], llm=ScriptedLLM(*responses, model=HOSTILE), log=False, quiet=True)
    agent = Agent(
        HOSTILE,
        tools=[echo, hurt],
        llm=ScriptedLLM(*responses, model=HOSTILE),
        plugins=[Console(file, 60), add],
        log=False,
        quiet=True,
        stream=stream,
    )
    agent.input(HOSTILE)
    text = file.getvalue()
    assert not OBEYED.search(text)
    assert "[red]x[/red] :smile:" in text
    assert all(cell_len(line) <= 60 for line in text.splitlines())


@pytest.mark.parametrize("width", [20, 33, 60, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    usage = TokenUsage(1_234_567, 99_999, cost=12.5)
    many = [call("search", query="語" * 200), call("fail", path="e\u0301" * 300), call("nope" * 30)]
    text = shown(
        LLMResponse("語" * 300, many, usage, finish_reason="length", model="anthropic/" + "m" * 80),
        LLMResponse("👩‍👩‍👧‍👦 " * 80, usage=usage),
        prompt="p" * 500,
        width=width,
        stream=True,
    )
    assert max(map(cell_len, text.splitlines())) <= width


def test_entries_of_handlers_with_anything_in_them_break_nothing() -> None:
    entries: list[dict[str, Any]] = [{"type": "my own"}, {"type": "mine", "by": 3, "value": object()}]

    @before_llm
    def forge(agent: Any) -> None:
        agent.current_session["trace"].extend(entries)

    assert "answered" in shown("done", plugins=[forge])


class Gone(io.StringIO):
    """A terminal that goes away after some writes."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        if "\n" in self.getvalue():
            raise self.error
        return super().write(text)


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(5, "EIO"), ValueError("I/O operation on closed file")])
def test_a_terminal_that_goes_away_ends_no_turn(error: Exception) -> None:
    agent = Agent("a", llm=ScriptedLLM("done"), plugins=[Console(Gone(error), 60)], log=False, quiet=True, stream=True)
    assert agent.input("x") == "done"


def test_a_process_without_stderr_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert (
        Agent("a", llm=ScriptedLLM("done"), plugins=[Console()], log=False, quiet=True, stream=True).input("x")
        == "done"
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_an_encoding_that_lacks_a_character_shows_an_escape(encoding: str) -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    llm = ScriptedLLM(LLMResponse("日本 ✓", [call("search", query="日本語 é")]), "fertig …")
    Agent("ägent", [search], llm=llm, plugins=[Console(file, 60)], log=False, quiet=True, stream=True).input("→ 日本")
    text = raw.getvalue().decode(encoding)
    assert max(map(cell_len, text.splitlines())) <= 60
    assert ("日本語 é" in text) == (encoding == "utf-8")
    assert ("✓ search" in text) == (encoding == "utf-8")
    assert ("* search" in text) == (encoding != "utf-8")


def test_lines_of_threads_stay_whole_and_name_their_agents() -> None:
    file, together = io.StringIO(), threading.Barrier(4)

    def meet(number: int) -> str:
        """Wait for the others."""
        together.wait(10)
        return f"result {number}"

    def run(number: int) -> None:
        llm = ScriptedLLM([call("meet", number=number)], "word " * 30)
        plugins = [Console(file, 60)]
        Agent(f"agent{number}", [meet], llm=llm, plugins=plugins, log=False, quiet=True, stream=True).input("go")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = file.getvalue().splitlines()
    tools = [line for line in lines if "✓ meet" in line]
    assert sorted(re.match(r"\s*agent(\d) ✓ meet\(number=\1\) +\d+ms$", line)[1] for line in tools) == list("0123")  # type: ignore[index]
    assert all(cell_len(line) <= 60 for line in lines)
    assert Terminal._arriving is None


def test_an_agent_that_is_called_by_a_tool_is_shown_below_it() -> None:
    file = io.StringIO()
    inner = Agent("inner", llm=ScriptedLLM("hi"), plugins=[Console(file, 60)], log=False, quiet=True)
    llm = ScriptedLLM([call("inner", prompt="say hi")], "done")
    Agent("outer", tools=[inner], llm=llm, plugins=[Console(file, 60)], log=False, quiet=True).input("go")
    lines = file.getvalue().splitlines()
    starts = [line[: len(line) - len(line.lstrip())] + line.split()[0] for line in lines]
    assert starts == [
        "outer",
        "  1",
        "    inner",
        "      1",
        "      answered",
        "    ✓",
        "      hi",
        "  2",
        "  answered",
    ]


def test_an_agent_that_a_tool_asks_from_a_pool_is_shown_below_it_too() -> None:
    file = io.StringIO()
    inner = Agent("inner", llm=ScriptedLLM("hi"), plugins=[Console(file, 60)], log=False, quiet=True)

    def ask() -> str:
        """Ask from a thread that has no context of its caller."""
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(inner.input, "say hi").result()

    llm, plugins = ScriptedLLM([call("ask")], "done"), [Console(file, 60)]
    Agent("outer", [ask], llm=llm, sub_agents=[inner], plugins=plugins, log=False, quiet=True).input("go")
    assert "    inner" in [line[:9] for line in file.getvalue().splitlines()]


def _outer(kind: str, quiet: bool) -> Agent:
    leaf = Agent("leaf", llm=ScriptedLLM("hi", "hi"), log=False, stream=True, quiet=False)
    inner = Agent("inner", [leaf], llm=ScriptedLLM([call("leaf", prompt="x")], "hi"), log=False)
    if kind == "tool":
        llm = ScriptedLLM([call("inner", prompt="x")], "done")
        return Agent("outer", [inner], llm=llm, log=False, quiet=quiet)
    if kind == "handoff":
        llm = ScriptedLLM(call("transfer_to_agent", agent_name="inner"))
        return Agent("outer", llm=llm, sub_agents=[inner], log=False, quiet=quiet)
    if kind == "body":
        return Agent("outer", run=lambda prompt: inner.input(prompt), log=False, quiet=quiet)
    if kind == "loop":
        return Loop("outer", [inner], max_rounds=1, log=False, quiet=quiet)
    return (Sequential if kind == "sequential" else Parallel)("outer", [inner], log=False, quiet=quiet)


@pytest.mark.parametrize("kind", ["tool", "handoff", "body", "loop", "sequential", "parallel"])
def test_quiet_holds_for_the_agents_inside(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    _outer(kind, quiet=True).input("go")
    assert capsys.readouterr().err == ""
    _outer(kind, quiet=False).input("go")
    shown = capsys.readouterr().err
    assert "inner" in shown and "leaf" in shown


def test_an_agent_that_a_quiet_one_has_asked_is_shown_when_it_is_asked_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    leaf = Agent("leaf", llm=ScriptedLLM("hi", "ho"), log=False)
    Sequential("outer", [leaf], log=False, quiet=True).input("go")
    assert capsys.readouterr().err == ""
    leaf.input("go")
    assert "leaf" in (shown := capsys.readouterr().err) and "answered" in shown


SCRIPT = """
import sys
from connectagent import Agent, LLMResponse
from connectagent.testing import ScriptedLLM, call
def search(query: str) -> str:
    "Search."
    return "found"
llm = ScriptedLLM([call("search", query="x")], "the answer")
print(Agent("helper", [search], llm=llm, log=False).input("Find it"))
"""


def run_script(stderr: Any, **environment: str) -> subprocess.CompletedProcess[bytes]:
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "CONNECTAGENT_QUIET")}
    env = {**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environment}
    return subprocess.run([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=stderr, env=env, check=True)


def on_a_terminal(**environment: str) -> str:
    master, slave = pty.openpty()
    try:
        done = run_script(slave, **environment)
        os.close(slave)
        assert done.stdout == b"the answer\n"
        text = b""
        try:
            while piece := os.read(master, 65536):
                text += piece
        except OSError:  # Linux tells the end so
            pass
        return text.decode()
    finally:
        os.close(master)


def test_on_a_terminal_there_are_colours() -> None:
    text = on_a_terminal()
    assert "\x1b[1mhelper\x1b[0m" in text
    assert "\x1b[32m✓" in text


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_there_are_no_codes_where_none_are_wanted(environment: dict[str, str]) -> None:
    assert "\x1b" not in on_a_terminal(**environment)


def test_force_color_colours_what_is_piped() -> None:
    assert b"\x1b[1mhelper" in run_script(subprocess.PIPE, FORCE_COLOR="1").stderr


@pytest.mark.parametrize(
    "environment", [{}, {"FORCE_COLOR": "0"}, {"COLUMNS": "60"}, {"FORCE_COLOR": "1", "NO_COLOR": "1"}]
)
def test_piped_there_are_no_codes_and_stdout_is_the_programs(environment: dict[str, str]) -> None:
    done = run_script(subprocess.PIPE, **environment)
    assert done.stdout == b"the answer\n"
    assert b"\x1b" not in done.stderr
    assert b"helper" in done.stderr
    assert max(len(line) for line in done.stderr.decode().splitlines()) <= int(environment.get("COLUMNS", 80))


def test_a_closed_stderr_does_not_change_the_exit_code() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert run_script(writer).stdout == b"the answer\n"
    finally:
        os.close(writer)


def test_rich_is_loaded_with_the_first_line_only() -> None:
    code = "import connectagent.builtin.console as c, sys; c.Console(); sys.exit('rich' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


def test_an_entry_of_a_plugin_is_shown_where_it_asks_for_it() -> None:
    @before_llm
    def warner(agent: Any) -> None:
        agent.trace("quota", show=f"nearly used up {HOSTILE}", left=1)
        agent.trace("span", name="unseen")
        agent.trace("odd", show=3)

    text = shown("Done.", on_events=[warner])
    assert "quota: nearly used up" in text and not OBEYED.search(text)
    assert "unseen" not in text and "odd" not in text
