"""`connectagent run`: its options, its end, and tracebacks that show the user's own lines."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked
import pytest
import yaml

ROOT = Path(__file__).parents[2]
AGENT = '''
import time
from connectagent import Agent, LLMResponse, TokenUsage, tool
from connectagent.testing import ScriptedLLM, call

def build(n: int) -> str:
    """Build."""
    time.sleep(n / 100)
    return "built\\nwith\\ncare"

def fetch(url: str) -> str:
    """Fetch."""
    raise ConnectionError("no route")

@tool(read_only=True)
def look() -> str:
    """Look."""
    return "seen"

usage = TokenUsage(1000, 200, cost=0.01)
child = Agent(
    "billing",
    [build],
    llm=ScriptedLLM(LLMResponse(None, [call("build", n=3)], usage), LLMResponse("Paid.", usage=usage)),
    description="Pays.",
)
calls = [call("build", n=1), call("fetch", url="http://x"), call("look"), call("billing", prompt="pay")]
agent = Agent(
    "helper",
    [build, fetch, look, child],
    llm=ScriptedLLM(LLMResponse(None, calls, usage), LLMResponse("All is done now.", usage=usage)),
)
'''


def run(folder: Path, *arguments: str, script: str = AGENT, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "agent.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", **variables}
    return forked.run("-m", "connectagent", "run", *arguments, cwd=folder, env=environment)


def test_the_end_says_what_failed_and_where_what_it_cost_and_where_to_look(tmp_path: Path) -> None:
    done = run(tmp_path, "agent.py", "Go")
    assert (done.returncode, done.stdout) == (0, "All is done now.\n")
    text = done.stderr[done.stderr.index("\nfailures") :]
    end = [re.sub(" {2,}", " ... ", line.strip()) for line in text.splitlines()]
    name = next((tmp_path / ".co" / "evals").iterdir()).stem
    assert end[1:] == [
        "failures",
        '✗ helper: fetch(url="http://x")',
        "ConnectionError: no route",
        "agent.py:13 in fetch",
        "cost",
        "helper ... 2.4k tok ... $0.0200",
        "billing ... 2.4k tok ... $0.0200",
        f"look closer: connectagent view {name}",
    ]
    assert "answered · 2 iterations · 4 tools, 1 failed" in done.stderr


@pytest.mark.parametrize("given", [["--durations=2", "agent.py", "Go"], ["agent.py", "Go", "--durations", "2"]])
def test_durations_lists_so_many_of_the_slowest_calls(tmp_path: Path, given: list[str]) -> None:
    done = run(tmp_path, *given, "--quiet")
    assert (done.returncode, done.stdout) == (0, "All is done now.\n")
    lines = done.stderr.splitlines()
    at = lines.index("slowest calls")
    assert [line.split("  ")[1] for line in lines[at + 1 : at + 3]] == [
        'helper: billing(prompt="pay")',
        "billing: build(n=3)",
    ]
    assert lines[at + 3] == "cost" and "handlers of helper" in lines


def test_durations_without_a_number_takes_no_prompt_for_one(tmp_path: Path) -> None:
    done = run(tmp_path, "agent.py", "--durations", "Go")
    assert (done.returncode, done.stdout) == (0, "All is done now.\n")
    assert len(done.stderr.split("slowest calls\n")[1].split("cost\n")[0].splitlines()) == 9


def test_json_is_the_outcome_for_programs(tmp_path: Path) -> None:
    done = run(tmp_path, "agent.py", "Go", "--json", "--quiet")
    record = next((tmp_path / ".co" / "evals").iterdir())
    assert json.loads(done.stdout) == {
        "result": "All is done now.",
        "agent": "helper",
        "outcome": "answered",
        "turn": 1,
        "iteration": 2,
        "tokens": 4800,
        "cost": 0.04,
        "known_cost": 0.04,
        "record": str(record),
    }
    assert done.stderr == ""


def test_json_of_a_failure_names_the_error(tmp_path: Path) -> None:
    script = AGENT + "agent.llm = ScriptedLLM(ValueError('broken'))\n"
    done = run(tmp_path, "agent.py", "Go", "--json", "--quiet", script=script)
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"] == {"type": "ValueError", "message": "broken"}
    assert "error: ValueError: broken" in done.stderr


def test_trust_and_max_iterations_of_the_command_line_hold_for_the_scripts_agents(tmp_path: Path) -> None:
    done = run(tmp_path, "agent.py", "Go", "--trust", "strict", "--max-iterations", "1")
    assert done.stdout == "Task incomplete: Maximum iterations (1) reached.\n"
    assert done.stderr.count("rejected\n") == 3 and "✓ look()" in done.stderr


def test_a_trust_that_code_names_stays(tmp_path: Path) -> None:
    script = AGENT.replace('look, child],\n', 'look, child],\n    trust="strict",\n')
    done = run(tmp_path, "agent.py", "Go", "--trust", "open", script=script)
    assert done.stderr.count("rejected\n") == 3


def at_a_terminal(folder: Path, *arguments: str) -> str:
    """What somebody sees of a run."""
    (folder / "agent.py").write_text(AGENT)
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "connectagent", "run", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "NO_COLOR": "1"}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    seen = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(master)
    assert process.wait(60) == 0
    return seen.decode()


@pytest.mark.parametrize("options", [[], ["--stream"]])
def test_the_answer_is_on_the_terminal_once(tmp_path: Path, options: list[str]) -> None:
    assert at_a_terminal(tmp_path, "agent.py", "Go", *options).count("All is done now.") == 1


BROKEN = """
from connectagent import Agent, before_llm
from connectagent.testing import ScriptedLLM

@before_llm
def forgetful(agent):
    raise {error}

Agent("a", llm=ScriptedLLM("x"), plugins=[forgetful], quiet=True, log=False).input("hi")
"""


@pytest.mark.parametrize("error", ["KeyError('x')", "KeyboardInterrupt"])
def test_a_traceback_of_a_script_shows_the_users_own_lines(tmp_path: Path, error: str) -> None:
    (tmp_path / "script.py").write_text(BROKEN.format(error=error))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def said(**more: Any) -> str:
        command = [sys.executable, "script.py"]
        return subprocess.run(command, cwd=tmp_path, env={**environment, **more}, capture_output=True, text=True).stderr

    short, full = said(), said(CONNECTAGENT_TRACEBACK="full")
    assert "script.py\", line 7, in forgetful" in short
    assert len(short.splitlines()) <= 9 and "connectagent/loop" not in short
    assert "connectagent/loop/run.py" in full and len(full.splitlines()) > 40


def test_the_shell_completes_commands_and_options() -> None:
    def completed(words: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "_CONNECTAGENT_COMPLETE": "bash_complete"}
        environment |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
        command = [sys.executable, "-m", "connectagent"]
        return subprocess.run(command, env=environment, capture_output=True, text=True).stdout

    assert completed("connectagent re") == "plain,resume\nplain,replay\nplain,report\n"
    assert "plain,--max-iterations\n" in completed("connectagent run --m")


@pytest.mark.parametrize(
    ("code", "last"),
    [
        ("Agent('a', model='gtp-5')", "Agent('a', model='gtp-5')"),
        ("@before_llm\ndef f(agnt): ...", "@before_llm"),
        ("@before_llm(tryfirst=True)\nasync def f(agent): ...", "@before_llm(tryfirst=True)"),
    ],
)
def test_a_mistake_in_a_script_is_shown_at_its_own_line(tmp_path: Path, code: str, last: str) -> None:
    (tmp_path / "script.py").write_text(f"from connectagent import Agent, before_llm\n{code}\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "script.py"]
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stderr
    assert said.startswith("Traceback") and last in said and str(ROOT) not in said


NAMES = """
from connectagent import Agent, ToolCall, ToolRejected, before_each_tool
from connectagent.testing import ScriptedLLM, call

def search(query: str) -> str:
    return "found"

@before_each_tool
def no_secrets(tool_call: ToolCall) -> None:
    if "password" in str(tool_call.arguments):
        raise ToolRejected("No.")

agent = Agent("helper", [search], llm=ScriptedLLM(call("search", query="x"), "Done."), on_events=[no_secrets])
"""


def test_a_record_has_the_plugins_of_the_script_and_a_replay_finds_them_the_same(tmp_path: Path) -> None:
    done = run(tmp_path, "agent.py", "Go", script=NAMES)
    assert done.stdout == "Done.\n" and "look closer" in done.stderr, done
    (record,) = (tmp_path / ".co" / "evals").iterdir()
    head = yaml.safe_load(record.read_text())
    assert head["plugins"] == {"no_secrets": None}
    assert re.fullmatch("[0-9a-f]{16}", head["plugin_sources"]["no_secrets"]["sha256"])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    chat = [sys.executable, "-m", "connectagent", "chat", "agent.py"]
    subprocess.run(chat, input="Go\n", text=True, cwd=tmp_path, env=environment, check=True, capture_output=True)
    (talked,) = set((tmp_path / ".co" / "evals").iterdir()) - {record}
    assert yaml.safe_load(talked.read_text())["plugins"] == {"no_secrets": None}
    again = forked.run("-m", "connectagent", "replay", "last", cwd=tmp_path, env=environment)
    assert again.returncode == 0 and again.stderr == "" and "the same requests" in again.stdout, again
