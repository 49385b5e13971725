"""One decision is carried out by one process: who resumes a record holds its lock from before it is read."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import forked
import pytest

from connectagent import Agent, ConfigError, Pause, Paused, xray
from connectagent.agents.decisions import waiting_in
from connectagent.records.locks import is_running
from connectagent.testing import ScriptedLLM, call

ROOT = Path(__file__).parents[2]
PAIRS = int(os.environ.get("CONNECTAGENT_RESUME_PAIRS", "12"))
SCRIPT = """
import os, time
from connectagent import Agent, Pause, xray
from connectagent.testing import ScriptedLLM, call

def pay() -> str:
    '''Pay.'''
    if not xray.approved:
        raise Pause("needs a manager")
    with open("paid", "a") as file:
        file.write("paid\\n")
    time.sleep(0.05)
    return "paid"

agent = Agent("payer", [pay], llm=ScriptedLLM("Done.") if os.path.exists("paused") else ScriptedLLM([call("pay")]),
              quiet=True)
"""
# Both wait at a gate, so that they resume at the same moment.
RACE = """
import os, sys, time
import pay
from connectagent.records import read_record
open(f"ready-{os.getpid()}", "w").close()
while not os.path.exists("go"):
    time.sleep(0.0005)
try:
    print(pay.agent.resume(sys.argv[1], approve=True))
except Exception as error:
    print(type(error).__name__, error)
    sys.exit(1)
"""
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}


def started(folder: Path, *line: str) -> forked.Process:
    return forked.start(*line, cwd=folder, env={**ENVIRONMENT, "HOME": str(folder)})


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a script and the record of its turn, which waits for a decision."""
    folder = tmp_path_factory.mktemp("waiting")
    (folder / "pay.py").write_text(SCRIPT)
    process = started(folder, "-m", "connectagent", "run", "pay.py", "Pay.")
    process.communicate(timeout=60)
    assert process.returncode == 75
    (folder / "paused").touch()
    return folder


@pytest.fixture
def record(waiting: Path, tmp_path: Path) -> Path:
    """A copy of that record, in a copy of the folder."""
    shutil.copytree(waiting, tmp_path / "here")
    (path,) = (tmp_path / "here").glob(".co/evals/*.yaml")
    path.write_text(path.read_text().replace(str(waiting), str(tmp_path / "here")))
    return path


def raced(folder: Path, *line: str) -> list[tuple[int, str]]:
    """Exit code and output of two processes that are started at the same moment."""
    processes = [started(folder, *line) for _ in range(2)]
    deadline = time.monotonic() + 60
    while line[0] == "-c" and len(list(folder.glob("ready-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    (folder / "go").touch()
    told = [process.communicate(timeout=60) for process in processes]
    return [(int(process.returncode or 0), "".join(text)) for process, text in zip(processes, told, strict=True)]


def assert_one(ended: list[tuple[int, str]], folder: Path) -> None:
    assert (folder / "paid").read_text() == "paid\n"
    assert sorted(code for code, _ in ended) == [0, 1], ended
    (refused,) = [text for code, text in ended if code == 1]
    assert "is being written by a running agent" in refused or "nothing waits for a decision" in refused
    assert "Traceback" not in refused


@pytest.mark.parametrize("number", range(PAIRS))
def test_two_processes_that_approve_one_pause_carry_it_out_once(number: int, record: Path, tmp_path: Path) -> None:
    assert_one(raced(tmp_path / "here", "-c", RACE, str(record)), tmp_path / "here")


@pytest.mark.parametrize("number", range(3))
def test_so_do_two_commands(number: int, record: Path, tmp_path: Path) -> None:
    command = ["-m", "connectagent", "resume", str(record), "--approve", waiting_in(record)[0].id]
    ended = raced(tmp_path / "here", *command, "--script", "pay.py")
    assert_one(ended, tmp_path / "here")


def pay() -> str:
    """Pay."""
    if not xray.approved:
        raise Pause("needs a manager")
    return "paid"


@pytest.mark.parametrize("log", [None, False])
def test_the_record_is_locked_while_the_turn_goes_on_and_free_afterwards(
    log: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Paused) as paused:
        Agent("payer", [pay], llm=ScriptedLLM([call("pay")]), quiet=True).input("Pay.")
    path, seen = paused.value.record, []
    assert path is not None

    def look() -> str:
        """Look whether others may resume."""
        seen.append(is_running(path))
        other = Agent("payer", [pay], llm=ScriptedLLM("Done."), quiet=True)
        with pytest.raises(ConfigError, match="is being written by a running agent"):
            other.resume(path, approve=True)
        return "seen"

    agent = Agent("payer", [pay, look], llm=ScriptedLLM([call("look")], "Done.", "Again."), quiet=True, log=log)
    assert agent.resume(path, approve=True) == "Done."
    assert seen == [True] and not is_running(path)
    if log is None:
        assert agent.input("Again.") == "Again."
