"""A secret that goes through every part of a turn is found in no file under `.co` and nowhere on the terminal."""

from __future__ import annotations

import base64
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from connectagent import Agent, LLMResponse, after_llm, after_tools, before_llm
from connectagent.builtin.console import Console
from connectagent.records.read import read_record
from connectagent.testing import ScriptedLLM, call

ROOT = Path(__file__).parents[2]
CANARY = "cAnArY/7d1\"f'0b\\x+e é=9Q"
PLAIN = "canary7d1f0be9Q8zT4w"
SHAPE = "sk-ant-api03-Zz9canary_shape-0123456789abcdef"


def traces_of(secret: str) -> list[str]:
    """What gives a secret away: itself, and how JSON, Python, URLs and base64 write it."""
    data = secret.encode()
    shown = [secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], quote(secret, safe="")]
    return [*shown, base64.b64encode(data).decode()[:-4], base64.b64encode(b"ab" + data).decode()[4:-4]]


def written() -> str:
    return "".join(path.read_text("utf-8") for path in Path(".co").rglob("*") if path.is_file())


def assert_silent(text: str, *secrets: str) -> None:
    assert text
    # The terminal breaks lines and shows what it cannot show as escapes.
    joined = "".join(text.split())
    assert "cAnArY" not in joined
    assert "canary7d" not in joined
    for secret in secrets:
        for trace in traces_of(secret):
            assert "".join(trace.split()) not in joined, f"{trace!r} is in {text[:3000]}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("DIR", "MASK", "QUIET"):
        monkeypatch.delenv(f"CONNECTAGENT_{name}", raising=False)
    monkeypatch.setenv("CANARY_API_KEY", CANARY)
    monkeypatch.setenv("PLAIN_TOKEN", PLAIN)
    return tmp_path


def look(text: str, password: str = "") -> str:
    """Look."""
    data = (b"ab" + CANARY.encode(), CANARY.encode())
    forms = [text, repr(text), json.dumps({"deep": [json.dumps({"deeper": text})]}), quote(text, safe="")]
    encoded = [base64.b64encode(one).decode() for one in data]
    return "\n".join([*forms, *encoded, SHAPE, json.dumps({"api_key": "hush"})])


def fail(text: str) -> str:
    """Fail."""
    raise FileNotFoundError(f"no such file: {text}, {text.encode()!r} and {SHAPE}")


def run_agent(stream: bool) -> tuple[Agent, str]:
    """A turn with the secrets in prompt, arguments, results, errors, messages, state and the answer."""
    file = io.StringIO()
    both = f"{CANARY} {PLAIN} {SHAPE}"

    @after_tools
    def add(agent: Any) -> None:
        agent.current_session["messages"].append({"role": "user", "content": f"I add {both}"})
        agent.current_session["state"].update({"password": "hush-hush", "key": {PLAIN: [both]}, "list": (both,)})

    calls = [call("look", text=both, password="hush-hush"), call("fail", text=CANARY), call(PLAIN, **{PLAIN: both})]
    responses = [LLMResponse(f"I look at {both}", calls), f"It is {both}"]
    llm = ScriptedLLM(*responses, model=f"m-{PLAIN}")
    tools, plugins = [look, fail], [Console(file, 60), add]
    options: Any = {"system_prompt": f"You know {both}", "quiet": True, "stream": stream}
    agent = Agent("helper", tools, llm=llm, plugins=plugins, **options)
    assert agent.input(f"Use {both}") == f"It is {both}"
    return agent, file.getvalue()


@pytest.mark.parametrize("stream", [False, True])
def test_a_canary_is_nowhere_under_co_and_not_on_the_terminal(stream: bool, capfd: pytest.CaptureFixture[str]) -> None:
    agent, shown = run_agent(stream)
    for text in (written(), shown):
        assert_silent(text, CANARY, PLAIN, SHAPE)
        assert "hush" not in text
    for mark in ("CANARY_API_KEY", "PLAIN_TOKEN", "sk-...", "password", "api_key"):
        assert f"[masked: {mark}]" in written()
    assert "[masked: CANARY_API_KEY]" in "".join(shown.split("\n"))
    assert capfd.readouterr() == ("", "")
    path = agent.record
    assert path is not None
    (turn,) = read_record(path)["turns"]
    assert turn["input"] == "Use [masked: CANARY_API_KEY] [masked: PLAIN_TOKEN] [masked: sk-...]"
    assert json.loads(turn["messages"])[0]["content"] == turn["input"]
    assert PLAIN in str(agent.current_session)  # what the agent works with is left alone


def test_a_canary_in_an_error_that_ends_the_turn_is_masked(capfd: pytest.CaptureFixture[str]) -> None:
    @after_llm
    def broken(agent: Any) -> None:
        raise ValueError(f"no: {CANARY} {PLAIN} {SHAPE}")

    file = io.StringIO()
    agent = Agent("helper", llm=ScriptedLLM("x"), plugins=[Console(file, 60), broken], quiet=True)
    with pytest.raises(ValueError, match="no: cAnArY"):
        agent.input("Go.")
    for text in (written(), file.getvalue()):
        assert_silent(text, CANARY, PLAIN, SHAPE)
        assert "masked: CANARY_API_KEY" in " ".join(text.split())  # the terminal breaks lines


def test_a_secret_that_is_cut_off_is_masked_all_the_same() -> None:
    for before in range(30, 520, 7):
        agent = Agent("helper", [look], llm=ScriptedLLM([call("look", text="x" * before + PLAIN)], "y"), quiet=True)
        agent.input("." * before + PLAIN)
    assert PLAIN[:6] not in written()


def test_the_line_of_a_call_cuts_no_secret_in_two() -> None:
    for before in range(0, 80):
        file = io.StringIO()
        llm = ScriptedLLM([call("look", text="x" * before + PLAIN)], "y")
        Agent("helper", [look], llm=llm, plugins=[Console(file, 60)], quiet=True, log=False).input("." * before + PLAIN)
        assert PLAIN[:6] not in file.getvalue()


class Pieces(ScriptedLLM):
    """Streams its answer in pieces of a length."""

    length = 1

    def stream(self, messages: Any, tools: Any = None, *, on_text: Any) -> LLMResponse:
        response = self.complete(messages, tools)
        text = response.content or ""
        for start in range(0, len(text), self.length):
            on_text(text[start : start + self.length])
        return response


@pytest.mark.parametrize("length", [1, 2, 3, 5, 11, 40])
def test_a_secret_that_arrives_in_pieces_is_masked(length: int) -> None:
    text = f'First {CANARY}, {PLAIN}{PLAIN} then {SHAPE}. {{"password": "hush now"}} password=hushhush1 end task-sk'
    file, llm = io.StringIO(), Pieces(text)
    llm.length = length
    Agent("a", llm=llm, plugins=[Console(file, 200)], stream=True, log=False, quiet=True).input("x")
    assert_silent(file.getvalue(), CANARY, PLAIN, SHAPE)
    assert "hush" not in file.getvalue()
    shown = " ".join(file.getvalue().splitlines()[1:4])
    expected = (
        "First [masked: CANARY_API_KEY], [masked: PLAIN_TOKEN][masked: PLAIN_TOKEN] then [masked: sk-...]. "
        '{"password": "[masked: password]"} password=[masked: password] end task-sk'
    )
    assert "".join(expected.split()) in "".join(shown.split())


def test_a_key_given_in_code_is_masked() -> None:
    Agent("a", model="openai/x", api_key="given-in-code-5512", quiet=True, log=False)
    Agent("b", llm=ScriptedLLM("It is given-in-code-5512."), quiet=True).input("given-in-code-5512?")
    assert "given-in-code" not in written()
    assert "[masked: api_key]" in written()


def test_a_variable_that_is_set_while_the_program_runs_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> str:
        """Load."""
        monkeypatch.setenv("LATE_SECRET", "late-value-4711")
        return "late-value-4711"

    agent = Agent("a", [load], llm=ScriptedLLM([call("load")], "late-value-4711", "late-value-4712"), quiet=True)
    agent.input("Go.")
    monkeypatch.setenv("LATE_SECRET", "late-value-4712")
    agent.input("late-value-4712")
    assert "late-value" not in written()


def test_masking_can_be_switched_off_and_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_MASK", "off")
    Agent("a", llm=ScriptedLLM("x"), quiet=True).input(f"{PLAIN} {SHAPE}")
    assert f"{PLAIN} {SHAPE}" in written()
    monkeypatch.setenv("CONNECTAGENT_MASK", r"badge,/ID-\d{4}/")
    llm = ScriptedLLM([call("look", text="ID-4711 x", badge="blue")], "x")
    Agent("b", [look], llm=llm, quiet=True).input("ID-4712")
    assert "ID-47" not in written()
    assert '"badge": "[masked: badge]"' in written()


def test_a_setting_that_is_wrong_is_told_when_the_agent_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, told in (("/(/", "no regular expression"), ("/x*/", "matches the empty text")):
        monkeypatch.setenv("CONNECTAGENT_MASK", value)
        with pytest.raises(ValueError, match=told):
            Agent("a", llm=ScriptedLLM("x"))


def test_signatures_and_counts_of_tokens_stay_as_they_are() -> None:
    signature = base64.b64encode(bytes(range(256)) * 8).decode() + "AKIAABCDEFGHIJKLMNOPQRSTUVWX"
    data = {"provider": "anthropic", "thinking": [{"signature": signature}], "data": f"ab_{signature[:50]}-sk-abc123"}

    @before_llm
    def answer(agent: Any) -> LLMResponse:
        return LLMResponse("max_tokens=4096, sort_key=abc12345, the key: a word", provider_data=data)

    agent = Agent("a", llm=ScriptedLLM("x"), plugins=[answer], quiet=True)
    agent.input('{"max_tokens": 1, "next_page_token": "abcdefgh", "primary_key": "id_12345", "keys": ["monkey"]}')
    path = agent.record
    assert path is not None
    assert "[masked" not in path.read_text()
    assert json.loads(read_record(path)["turns"][0]["messages"])[1]["provider_data"] == data


# -- the command line ------------------------------------------------------------------------------

SCRIPT = f"""
import os, sys
from connectagent import Agent, before_llm
from connectagent.testing import ScriptedLLM, call
secret = os.environ["CANARY_API_KEY"]
def look(text: str) -> str:
    "Look."
    raise ValueError(text)
@before_llm
def broken(agent, request):
    if agent.current_session["iteration"] == 2 and sys.argv[0].endswith("bad.py"):
        raise ValueError(f"no {{secret}}")  # {SHAPE}
agent = Agent("helper", [look], llm=ScriptedLLM([call("look", text=secret)], f"It is {{secret}}."), on_events=[broken])
"""


def cli(*arguments: str, terminal: bool = False, text: str = "") -> tuple[str, str]:
    """Run `connectagent`; what went to standard output and to standard error."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "COLUMNS": "200"}
    command = [sys.executable, "-m", "connectagent", *arguments]
    if not terminal:
        done = subprocess.run(command, env=env, capture_output=True, text=True, input=text, timeout=60)
        return done.stdout, done.stderr
    master, slave = pty.openpty()
    try:
        process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=slave, stderr=slave)
        os.close(slave)
        assert process.stdin is not None
        process.stdin.write(text.encode())
        process.stdin.close()
        shown = b""
        try:
            while piece := os.read(master, 65536):
                shown += piece
        except OSError:  # Linux tells the end so
            pass
        process.wait(60)
        return shown.decode(), shown.decode()
    finally:
        os.close(master)


@pytest.mark.parametrize("options", [(), ("--traceback",)])
def test_what_the_command_line_says_of_an_error_is_masked(options: tuple[str, ...], folder: Path) -> None:
    (folder / "bad.py").write_text(SCRIPT)
    out, error = cli("run", "bad.py", f"Use {CANARY}", *options)
    assert_silent(error, CANARY, SHAPE)
    assert "ValueError: no [masked: CANARY_API_KEY]" in error
    assert out == ""
    assert ("Traceback" in error) == bool(options)
    assert_silent(written(), CANARY)


def test_a_result_is_masked_on_a_terminal_and_whole_in_a_pipe(folder: Path) -> None:
    (folder / "good.py").write_text(SCRIPT)
    out, error = cli("run", "good.py", "Go.")
    assert out == f"It is {CANARY}.\n"
    assert_silent(error, CANARY)
    shown, _ = cli("run", "good.py", "Go.", terminal=True)
    assert "It is [masked: CANARY_API_KEY]." in shown
    assert_silent(shown, CANARY)
    shown, _ = cli("chat", "good.py", terminal=True, text="Go.\n")
    assert "It is [masked: CANARY_API_KEY]." in shown
    assert_silent(shown, CANARY)
