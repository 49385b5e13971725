"""What users write passes mypy --strict and pyright's default settings: pages, examples, and all hooks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_tutorial import steps

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT, *sorted(folder.parent for folder in ROOT.glob("plugins/*/examples"))]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

TYPED = '''
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_type

from connectagent import (
    Agent, Continue, LLMRequest, LLMResponse, Message, Retry, Session, ToolCall, TraceEntry, after_each_tool, after_llm,
    after_tools, after_user_input, around_llm, around_tool, around_turn, before_each_tool, before_llm, before_tools,
    on_complete, on_error, on_trace, tool,
)

@dataclass
class City:
    name: str
    people: int

@tool(read_only=True, timeout_s=3)
def look(place: str, agent: Agent) -> str:
    """Look at a place."""
    assert_type(agent.state["seen"], Any)
    agent.state["seen"] = [*agent.state.get("seen", []), place]
    return f"{place} is empty"

@after_user_input
def greet(agent: Agent, prompt: str) -> str | None:
    return "Hello." if prompt == "Hi" else None

@before_llm
def shorten(agent: Agent, request: LLMRequest) -> None:
    request.messages = request.messages[-20:]
    request.options["temperature"] = 0

@after_llm
def trim(response: LLMResponse) -> str | None:
    return response.content.strip() if response.content else None

@before_tools
def at_most(tool_calls: list[ToolCall]) -> None:
    print([call.name for call in tool_calls])

@before_each_tool
def guard(agent: Agent, tool_call: ToolCall) -> str | None:
    assert_type(agent.session["turn"], int)
    return None

@after_each_tool
def sign(result: str, entry: TraceEntry) -> str:
    return f"{result} ({entry['status']})"

@after_tools
def count(agent: Agent, entries: list[TraceEntry]) -> None:
    agent.state["calls"] = agent.state.get("calls", 0) + len(entries)

@on_error
def again(error: Exception, tool_call: ToolCall | None, request: LLMRequest | None, attempt: int) -> Retry | None:
    return Retry(after_s=1) if attempt < 3 else None

@on_complete
def more(agent: Agent, result: str, outcome: str) -> Continue | None:
    return Continue("Go on.") if outcome == "truncated" else None

@on_trace
def show(entry: TraceEntry) -> None:
    print(entry["type"])

@around_llm
def timed(request: LLMRequest) -> Generator[None, LLMResponse, None]:
    response = yield
    print(request.model, response.usage)

@around_tool
def noted(tool_call: ToolCall) -> Generator[None, Any, None]:
    yield

@around_turn
def spanned(agent: Agent) -> Generator[None, str, None]:
    yield

agent = Agent("typed", tools=[look], on_events=[greet, shorten, trim, at_most, guard, sign, count, again, more, show])
assert_type(agent.input("Hi"), str)
assert_type(agent.input("Which?", output=City), City)
assert_type(agent.session, Session)
assert_type(agent.session["id"], str)
assert_type(agent.session["messages"], list[Message])
assert_type(agent.session["messages"][0]["role"], str)
assert_type(agent.session["state"], dict[str, Any])
assert_type(agent.session["outcome"], str | None)
assert_type(agent.session["trace"][0]["type"], Any)
assert_type(agent.state, dict[str, Any])
assert_type(agent.record, Path | None)
if agent.session["outcome"] == "a_word_of_my_own":
    agent.resume(agent.session["id"])
stored: dict[str, Any] = {"messages": []}
agent.current_session = stored
'''

WRONG = {
    "Agent('a').input('Hi') + 1": "str",
    "Agent('a').session['rounds']": "rounds",
    "Agent('a').session['turn'].upper()": "upper",
    "Agent('a').session['messages'][0]['text']": "text",
    "Agent('a', tool=[])": "tool",
    "Agent('a').sate": "sate",
}


def mypy(folder: Path) -> subprocess.CompletedProcess[str]:
    if find_spec("mypy") is None:
        pytest.skip("mypy is not installed: pip install -e '.[test]'")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", "../cache", "."]
    return run(folder, command)


def pyright(folder: Path) -> subprocess.CompletedProcess[str]:
    """basedpyright with pyright's default rules; unlike pyright, it needs no download of its own."""
    if find_spec("basedpyright") is None:
        pytest.skip("basedpyright is not installed: pip install -e '.[types]'")
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(path) for path in SOURCES]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    return run(folder, [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "."])


def run(folder: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MYPYPATH": os.pathsep.join(map(str, SOURCES))}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python code of all pages, a file for each block."""
    folder = tmp_path_factory.mktemp("types") / "pages"
    folder.mkdir()
    for page in PAGES:
        for number, block in enumerate(BLOCK.findall(page.read_text("utf-8"))):
            if "import FastAPI" in block and find_spec("fastapi") is None:
                continue
            if re.search("^from (joblib|distributed|celery) import", block, re.M):  # they bring no types
                continue
            (folder / f"{page.stem.replace('-', '_')}_{number}.py").write_text(block)
    for number, example in enumerate([*ROOT.glob("examples/*.py"), *ROOT.glob("plugins/*/examples/*.py")]):
        (folder / f"example_{number}_{example.name}").write_text(example.read_text("utf-8"))
    for step in steps():
        if step.path.endswith(".py"):
            path = Path(step.path)
            place = folder / path.parent.name if path.name == "__init__.py" else folder
            place.mkdir(exist_ok=True)
            (place / path.name).write_text(step.text)
    (folder / "typed.py").write_text(TYPED)
    assert len(list(folder.iterdir())) > 60
    return folder


@pytest.mark.parametrize("check", [mypy, pyright])
def test_the_code_of_the_pages_and_a_program_with_annotations_pass(check: object, pages: Path) -> None:
    done = check(pages)  # type: ignore[operator]
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("check", [mypy, pyright])
def test_what_is_wrong_is_found(check: object, pages: Path) -> None:
    folder = pages.parent / "wrong"  # mypy has the package in its cache there
    folder.mkdir(exist_ok=True)
    for number, line in enumerate(WRONG):
        (folder / f"wrong_{number}.py").write_text(f"from connectagent import Agent\n\nprint({line})\n")
    done = check(folder)  # type: ignore[operator]
    assert done.returncode == 1, done.stdout + done.stderr
    for number, word in enumerate(WRONG.values()):
        assert f"wrong_{number}.py:3" in done.stdout and word in done.stdout, f"wrong_{number}.py: {done.stdout}"
