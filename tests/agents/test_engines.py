"""The engines of the page on many prompts: each takes every turn once, however often it is called."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "many-prompts.md").read_text("utf-8")
# In place of the page's agent: its model counts its answers in a file, and dies once where it is told to.
MODEL = '''
import os, time
from pathlib import Path
from connectagent import LLMResponse

class Model:
    model = "test/counting"

    def complete(self, messages, tools=None):
        with open("answers", "a") as file:
            file.write(messages[-1]["content"] + "\\n")
        if messages[-1]["content"] == "the kettle":
            try:
                Path("die").unlink()
                os.kill(os.getpid(), 9)
            except FileNotFoundError:
                pass
        return LLMResponse("It is " + messages[-1]["content"] + ".")

'''


def page(library: str) -> str:
    """The program of the page that uses a library, with a model that answers."""
    pytest.importorskip(library, reason=f"{library} is not installed")
    (code,) = [code for code in re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S) if f"from {library} " in code]
    changed = str(code).replace('Agent("shop", quiet=True)', 'Agent("shop", quiet=True, llm=Model())')
    assert changed != code
    return MODEL + changed


def ran(folder: Path, name: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CONNECTAGENT_DIR": str(folder / ".co")}
    done = subprocess.run(
        [sys.executable, name], cwd=folder, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("library", ["joblib", "distributed"])
def test_a_pool_takes_each_turn_once_and_reads_it_the_second_time(library: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(page(library))
    for _ in range(2):
        assert ran(tmp_path, "program.py") == "['It is the cup.', 'It is the kettle.']\n"
    assert sorted((tmp_path / "answers").read_text().split("\n")) == ["", "the cup", "the kettle"]


GUARDED = '''
from connectagent import LLMResponse, ToolCall, ToolRejected, before_each_tool

class Asks:
    model = "test/asks"

    def complete(self, messages, tools=None):
        last = messages[-1]
        if last["role"] == "user":
            return LLMResponse(None, [ToolCall("c1", "note", {"text": last["content"]})])
        return LLMResponse(last["content"])

def note(text: str) -> str:
    "Note a text."
    open("notes", "a").write(text)
    return "noted"

@before_each_tool
def guard():
    raise ToolRejected("never")

'''


@pytest.mark.parametrize("library", ["joblib", "distributed", "celery"])
def test_a_guard_acts_in_every_worker(library: str, tmp_path: Path) -> None:
    code = page(library).removeprefix(MODEL).replace("llm=Model()", "llm=Asks(), tools=[note], plugins=[guard]")
    if library == "celery":
        code = code.replace('backend="redis://"', 'backend="cache+memory://"').replace('"redis://"', '"memory://"')
        code += '\n\nprint([take.apply(("a", "the cup", 1)).get()])\n'
    (tmp_path / "program.py").write_text(GUARDED + code)
    assert ran(tmp_path, "program.py").count("rejected: never") == (1 if library == "celery" else 2)
    assert not (tmp_path / "notes").exists()


def test_dask_goes_on_with_the_turn_of_a_worker_that_died(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(page("distributed"))
    (tmp_path / "die").touch()
    assert ran(tmp_path, "program.py") == "['It is the cup.', 'It is the kettle.']\n"
    assert not (tmp_path / "die").exists()
    assert (tmp_path / "answers").read_text().split("\n").count("the kettle") == 2  # one was never received


def test_celery_takes_a_task_that_is_delivered_twice_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = page("celery")
    from celery.contrib.testing.worker import start_worker

    scope: dict[str, Any] = {"__name__": "tasks"}
    exec(compile(code, "tasks.py", "exec"), scope)
    app, take = scope["app"], scope["take"]
    app.conf.update(broker_url="memory://", result_backend="cache+memory://")
    with start_worker(app, perform_ping_check=False, pool="solo"):
        results = [take.delay("a", "the cup", 1) for _ in range(2)]
        assert [result.get(timeout=30) for result in results] == ["It is the cup."] * 2
    assert (tmp_path / "answers").read_text() == "the cup\n"
