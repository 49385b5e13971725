"""What was typed or pasted before a question is no answer to it, wherever something is asked."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from connectagent.output.typed import _QUIET_S as QUIET_S
from connectagent.output.typed import _forget_posix

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "plugins" / "connectagent-approve"
HEAD = """
import sys, time
from connectagent import Agent
from connectagent.testing import ScriptedLLM, call
import connectagent.output.terminal, connectagent.output.rows, rich.console
def delete(path: str) -> str:
    "Delete."
    return "deleted"
def agent(**more):
    llm = ScriptedLLM([call("delete", path="a")], "done")
    return Agent("helper", [delete], llm=llm, log=False, quiet=True, **more)
def outcome(helper):
    helper.input("Tidy up")
    return [entry["status"] for entry in helper.current_session["trace"] if entry["type"] == "tool_execution"]
def ready():
    print("READY", file=sys.stderr, flush=True)
    time.sleep(0.4)
"""
ASKING = {
    "trust": ("helper = agent(trust='careful')\nready()\nprint(outcome(helper))", "this session: "),
    "approve": ("helper = agent(plugins=['approve'])\nready()\nprint(outcome(helper))", "[n] no: "),
    "a call in doubt": (
        "helper = agent()\nready()\nprint(['success' if helper.runs_again(call('delete', path='a')) else 'rejected'])",
        "Run it again? [y]es, [N]o: ",
    ),
}


class Dialogue:
    """A program on a terminal."""

    def __init__(self, code: str, folder: Path) -> None:
        self.master, slave = pty.openpty()
        info = folder / "connectagent_approve-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: connectagent-approve\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[connectagent]\napprove = connectagent_approve:Approve\n")
        path = os.pathsep.join(map(str, (ROOT, PLUGIN, folder)))
        env = {**os.environ, "PYTHONPATH": path, "TERM": "xterm", "COLUMNS": "80"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", HEAD + code], stdin=slave, stderr=slave, stdout=subprocess.PIPE, env=env, cwd=folder
        )
        os.close(slave)
        self.seen = ""

    def wait_for(self, text: str) -> None:
        until = time.monotonic() + 30
        while text not in re.sub(r"\x1b\[[0-9;]*m", "", self.seen):
            assert time.monotonic() < until, self.seen
            if select.select([self.master], [], [], 1)[0]:
                self.seen += os.read(self.master, 65536).decode()

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def say(self, who: str, answer: str) -> None:
        self.type(f"{answer}\n")
        if who == "approve" and answer == "n":
            self.wait_for("no reason): ")
            self.type("\n")

    def end(self) -> str:
        reading = threading.Thread(target=self._read, daemon=True)
        reading.start()
        output, _ = self.process.communicate(timeout=20)
        return output.decode().strip()

    def _read(self) -> None:
        try:
            while os.read(self.master, 65536):
                pass
        except OSError:
            return


@pytest.mark.parametrize("answer", ["n", "y"])
@pytest.mark.parametrize("who", ASKING)
def test_lines_that_were_there_before_the_question_answer_nothing(who: str, answer: str, tmp_path: Path) -> None:
    code, question = ASKING[who]
    dialogue = Dialogue(code, tmp_path)
    dialogue.wait_for("READY")
    dialogue.type("y\nyes\na\ny")
    dialogue.wait_for(question)
    time.sleep(0.3)
    assert dialogue.process.poll() is None
    dialogue.say(who, answer)
    assert dialogue.end() == ("['success']" if answer == "y" else "['rejected']")


@pytest.mark.parametrize("who", ASKING)
def test_a_paste_that_is_still_arriving_answers_nothing(who: str, tmp_path: Path) -> None:
    code, question = ASKING[who]
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        dialogue = Dialogue(code, folder)
        dialogue.wait_for("READY")
        gaps: list[float] = []
        pasting = threading.Thread(target=paste, args=(dialogue, gaps))
        pasting.start()
        dialogue.wait_for(question)
        pasting.join()
        if max(gaps) > QUIET_S / 2:  # a busy machine: the paste was no longer one
            dialogue.process.kill()
            dialogue.end()
            continue
        time.sleep(0.2)
        assert dialogue.process.poll() is None
        dialogue.say(who, "n")
        assert dialogue.end() == "['rejected']"
        return
    pytest.skip("the machine is too busy to paste without a gap")


def paste(dialogue: Dialogue, gaps: list[float]) -> None:
    """Type for 0.8 s without a pause: the agent comes to its question after 0.4 s."""
    last = time.monotonic()
    for _ in range(160):
        dialogue.type("y\n")
        time.sleep(0.005)
        now = time.monotonic()
        gaps.append(now - last)
        last = now


def test_a_line_without_its_end_that_comes_while_a_paste_is_waited_for_answers_nothing() -> None:
    """The person ends it with the Enter that was to mean no."""
    for _ in range(20):
        master, terminal = pty.openpty()
        written: list[float] = []

        def late(master: int = master, written: list[float] = written) -> None:
            time.sleep(QUIET_S / 3)
            os.write(master, b"y")
            written.append(time.monotonic())

        typing = threading.Thread(target=late)
        typing.start()
        _forget_posix(terminal)
        over = time.monotonic()
        typing.join()
        os.write(master, b"\n")
        line = os.read(terminal, 10)
        os.close(master)
        os.close(terminal)
        if written[0] < over - 0.005:
            assert line == b"\n"
            return
    pytest.skip("the machine is too busy to type at a moment")


def test_questions_of_two_guards_in_two_threads_come_one_after_the_other(tmp_path: Path) -> None:
    code = """
import threading
agents = [agent(trust="careful"), agent(plugins=["approve"])]
found = {}
threads = [threading.Thread(target=lambda one=one: found.update({one: outcome(one)})) for one in agents]
for thread in threads: thread.start()
for thread in threads: thread.join()
print([found[one] for one in agents])
"""
    dialogue = Dialogue(code, tmp_path)
    ends = {"trust": "[a]lways in this session: ", "approve": "[n] no: "}
    dialogue.wait_for(" in this session: ")  # of either question
    first, then = ("approve", "trust") if "[a] always" in dialogue.seen else ("trust", "approve")
    dialogue.wait_for(ends[first])
    time.sleep(0.5)
    while select.select([dialogue.master], [], [], 0)[0]:
        dialogue.seen += os.read(dialogue.master, 65536).decode()
    assert ends[then] not in dialogue.seen
    dialogue.say(first, "y")
    dialogue.wait_for(ends[then])
    dialogue.say(then, "n")
    assert dialogue.end() == ("[['success'], ['rejected']]" if first == "trust" else "[['rejected'], ['success']]")


def test_without_a_terminal_nothing_is_forgotten(tmp_path: Path) -> None:
    code = "from connectagent.output.typed import forget_typed\nforget_typed()\nprint(input())"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], input="kept\n", capture_output=True, text=True, env=env)
    assert done.stdout == "kept\n", done.stderr
    closed = "import sys\nsys.stdin.close()\nfrom connectagent.output.typed import forget_typed\nforget_typed()"
    for program in (closed, closed.replace("sys.stdin.close()", "sys.stdin = None")):
        assert subprocess.run([sys.executable, "-c", program], env=env).returncode == 0
