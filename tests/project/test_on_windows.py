"""What users do works under Windows' semantics (see `windows/stand_in.py`), which child processes here have.

CONNECTAGENT_PAIRS says how many pairs of processes resume the same record (2). `nox -s windows` runs the whole suite.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from connectagent.agents.decisions import waiting_in

TESTS = Path(__file__).parents[1]
PAIRS = int(os.environ.get("CONNECTAGENT_PAIRS", "2"))
SLICE = """
records/test_records.py::test_a_turn_that_never_ended_is_running_while_its_writer_holds_the_lock_and_crashed_afterwards
records/test_records.py::test_a_follower_sees_what_other_processes_write_and_goes_on_with_the_next_record
agents/test_resume.py::test_a_record_that_another_one_writes_is_refused_and_forked
agents/test_resume.py::test_readers_that_hold_the_lock_for_a_moment_do_not_break_a_writer
records/test_blobs.py::test_paused_and_running_records_are_never_removed
commands/test_log_commands.py::test_prune_removes_the_oldest_and_their_blobs_but_never_what_is_running_or_paused
project/test_platforms.py::test_prune_fails_where_a_record_may_not_be_removed
test_view.py::test_the_list_tells_of_each_session_the_newest_first
test_view.py::test_what_comes_later_is_asked_for_by_the_number_of_rows
test_view.py::test_the_command_prints_the_address_serves_and_ends_cleanly_with_ctrl_c
output/test_typed_ahead.py::test_lines_that_were_there_before_the_question_answer_nothing[approve-n]
../plugins/connectagent-approve/tests/test_approve.py
../plugins/connectagent-artifacts/tests/test_artifacts.py
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is made of what Linux has")

Run = subprocess.CompletedProcess[str]


def environment(windows: bool) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CONNECTAGENT_")}
    paths = [str(TESTS / "windows")] * windows + [str(TESTS.parent)]
    return {**kept, "PYTHONPATH": ":".join(paths), "PYTHONDONTWRITEBYTECODE": "1"}


def python(*arguments: str, folder: Path, windows: bool = True, **more: Any) -> Run:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment(windows) | more, capture_output=True, text=True, timeout=300
    )


# -- the stand-in ------------------------------------------------------------------------------------

REFUSED = """
import builtins, os, shutil, subprocess, sys
from pathlib import Path
from connectagent.agents.decisions import waiting_in
from connectagent.records import disk, locks, paths

assert (disk.os.name, disk.os.path, hasattr(disk.os, "pread"), os.name) == ("nt", os.path, False, "posix")
for statement in ("import fcntl", "import termios", "from signal import SIGKILL", "import os; os.O_NOFOLLOW"):
    try:
        exec(statement, {"__file__": disk.__file__, "__builtins__": builtins})
    except (ImportError, AttributeError):
        continue
    raise SystemExit(statement + " works")

def refused(what, *given):
    try:
        what(*given)
    except OSError as error:
        return type(error)

Path("folder").mkdir()
Path("folder/a").write_text("1")
Path("b").write_text("2")
child = "import sys; file = open(sys.argv[1]); print(flush=True); sys.stdin.read()"
with subprocess.Popen([sys.executable, "-c", child, "folder/a"], stdin=-1, stdout=-1, text=True) as other:
    other.stdout.readline()
    for what, *given in (
        (os.unlink, "folder/a"), (Path.unlink, Path("folder/a")), (shutil.rmtree, "folder"),
        (os.rename, "folder/a", "c"),
        (os.replace, "b", "folder/a"), (os.rename, "folder", "d"), (disk.os.open, "folder", os.O_RDONLY),
    ):
        assert refused(what, *given) is PermissionError, (what, given)
    other.stdin.close()
assert refused(os.rename, "b", "folder/a") is FileExistsError
os.replace("b", "folder/a")

for name in ("nul", "Aux.yaml", "a:b", "a ", "a."):
    assert refused(paths.create_empty, Path(name)) is OSError, name
fd = disk.os.open("text", os.O_CREAT | os.O_WRONLY)
assert disk.os.write(fd, b"1\\n2\\n") == 4
os.close(fd)
assert Path("text").read_bytes() == b"1\\r\\n2\\r\\n"

child = "import sys; from connectagent.records.locks import *; file = open('text', 'a'); print(lock(file.fileno()))"
with open("text", "a") as one, open("text", "a") as two:
    assert locks.lock(one.fileno()) and locks.lock(two.fileno()) is False
    own = {"PYTHONPATH": str(Path(disk.__file__).parents[2])}  # which leaves the stand-in out
    told = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, env=own)
    assert told.stdout == "False\\n", told
    assert Path("text").read_text() == "1\\n2\\n"  # a reader is not in the way
    assert locks.is_running("text")
assert not locks.is_running("text")
"""


def test_the_stand_in_refuses_what_windows_refuses(tmp_path: Path) -> None:
    (tmp_path / "refused.py").write_text(REFUSED)
    done = python("refused.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr


# -- what users do -----------------------------------------------------------------------------------

DAILY = """
from connectagent import Agent
from connectagent.cli import main
from connectagent.testing import ScriptedLLM, call
from connectagent.records.blobs import LARGEST

def add(a: int, b: int) -> str:
    "Add."
    return "3" + "." * (LARGEST + 1)

for number in range(4):
    agent = Agent("con.aux", [add], llm=ScriptedLLM(call("add", a=1, b=2), "Done."), quiet=True)
    assert agent.input("Add 1 and 2.") == "Done."
for _ in range(2):
    agent = Agent("con.aux", [add], llm=ScriptedLLM("Hello."), quiet=True)
    assert agent.for_session("NUL ").turn("Hello.")
for expected, *command in (
    [0, "log", "list"], [0, "log", "show"], [0, "log", "grep", "Add"], [0, "log", "summary"],
    [0, "log", "export", "last", "-o", "page.html"], [0, "log", "prune", "--keep", "2"], [0, "replay"],
    [2, "log", "list", "--nothing"], [1, "log", "show", "nobody"],
):
    try:
        code = main(command)
    except SystemExit as error:
        code = error.code
    assert (code or 0) == expected, (command, code)
"""


def test_sessions_are_recorded_listed_shown_limited_and_removed(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(DAILY)
    done = python("agent.py", folder=tmp_path, HOME=str(tmp_path), CONNECTAGENT_FSYNC="1", CONNECTAGENT_MAX_RECORDS="9")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "removed 3 records" in done.stdout and len(list(tmp_path.glob(".co/evals/*.yaml"))) == 2
    assert "cannot be written" not in done.stderr


TALK = """
import sys
from connectagent import Agent
from connectagent.testing import ScriptedLLM

agent = Agent("talk", llm=ScriptedLLM("Hello.", "Hello."), quiet=True)
agent.input("Hi.")
sys.stdin.read()
agent.input("Hi again.")
"""


def test_following_without_a_reader_ends_with_the_next_entry(tmp_path: Path) -> None:
    given: dict[str, Any] = {"cwd": tmp_path, "env": environment(windows=True), "stdin": subprocess.PIPE, "text": True}
    talk = [sys.executable, "-c", TALK]
    tail = [sys.executable, "-m", "connectagent", "log", "tail", "-f"]
    with subprocess.Popen(talk, **given) as talking, subprocess.Popen(tail, stdout=-1, stderr=-1, **given) as following:
        try:
            assert following.stdout and following.stderr
            assert any("Hi." in line for line in following.stdout)
            following.stdout.close()
            talking.communicate("", timeout=60)
            assert following.wait(timeout=60) == 0 and following.stderr.read() == ""
        finally:
            following.kill()


def test_a_slice_of_the_suite_passes(tmp_path: Path) -> None:
    left = ["-k", "not keeps_the_rules and not changes_nothing"]  # paths of plugins: nothing of them is Windows'
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", *left, *SLICE.split(), folder=TESTS)
    assert done.returncode == 0, done.stdout[-4000:]


# -- two at once -------------------------------------------------------------------------------------

PAIR = """
import time
from pathlib import Path
from connectagent import Agent, LLMResponse, Pause, Paused, before_each_tool
from connectagent.testing import call

def pay(amount: int) -> str:
    "Pay."
    with open("paid.txt", "a") as file:
        file.write("paid\\n")
    until = time.monotonic() + 60
    while not Path("go").exists() and time.monotonic() < until:
        time.sleep(0.01)
    return "paid"

@before_each_tool
def ask(tool_call):
    raise Pause("pay?")

class Payer:
    model = "test/payer"

    def complete(self, messages, tools=None):
        paid = messages[-1]["role"] == "tool"
        return LLMResponse("Done.") if paid else LLMResponse(None, [call("pay", amount=1)])

agent = Agent("payer", [pay], llm=Payer(), plugins=[ask], quiet=True)
if __name__ == "__main__":
    try:
        agent.input("Pay.")
    except Paused:
        pass
"""


def resumed_twice(folder: Path, windows: bool) -> tuple[list[int], str, str]:
    """Two processes that resume a record at the same moment: their exit codes, what ran, and what was refused."""
    [record] = (folder / ".co" / "evals").glob("*.yaml")
    wait = waiting_in(record)[0].id
    command = [sys.executable, "-m", "connectagent", "resume", "last", "--approve", wait, "--quiet"]
    given: dict[str, Any] = {"cwd": folder, "env": environment(windows), "text": True}
    pair = [subprocess.Popen(command, stdout=-1, stderr=-1, stdin=subprocess.DEVNULL, **given) for _ in range(2)]
    until = time.monotonic() + 60
    while all(process.poll() is None for process in pair) and time.monotonic() < until:
        time.sleep(0.01)
    (folder / "go").touch()
    told = [process.communicate(timeout=60)[1] for process in pair]
    codes = [process.returncode for process in pair]
    return sorted(codes), (folder / "paid.txt").read_text(), "".join(told)


@pytest.mark.parametrize("windows", [False, True], ids=["here", "windows"])
def test_of_two_that_resume_a_record_at_once_one_runs_the_tool_and_the_other_is_refused(
    tmp_path: Path, windows: bool
) -> None:
    for number in range(PAIRS):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "agent.py").write_text(PAIR)
        python("agent.py", folder=folder, windows=windows).check_returncode()
        codes, paid, told = resumed_twice(folder, windows)
        assert (codes, paid) == ([0, 1], "paid\n"), told
        assert "is being written by a running agent" in told
