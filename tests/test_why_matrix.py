"""bisect, compare, report, bill and replay on sessions of every kind: each tells the truth, and runs no tool.

By default each kind of session is asked one of the five questions, all with CONNECTAGENT_MATRIX=all.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import pytest
from why_cases import CASES, END, HEAD

ROOT = Path(__file__).parents[1]
BAD = ("--bad", "calls refund")


class Session:
    """A session that has been taken, in a folder of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        self.environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(folder), "COLUMNS": "200"}
        (folder / "script.py").write_text(HEAD + CASES[name] + END)
        for _ in range(2 if name == "resumed after a kill" else 1):
            done = forked.run("script.py", cwd=folder, env=self.environment)
        assert done.returncode == 0, done.stderr

    def ask(self, *arguments: str) -> tuple[int, str, str]:
        done = forked.run("-m", "connectagent", *arguments, cwd=self.folder, env=self.environment)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    def did(self) -> str:
        """What tools have done so far."""
        path = self.folder / "ran"
        return path.read_text() if path.exists() else ""


def replay(session: Session) -> None:
    code, out, err = session.ask("replay", "last")
    assert (code, out.splitlines()[-1:]) == (0, ["same: the same requests, the same results"]), out + err


def bisect(session: Session) -> None:
    code, out, err = session.ask("bisect", "last", *BAD, "--by", "plugins", "--samples", "4")
    assert code == 0, out + err
    assert re.findall("^needed: +(.*) \\(after_user_input", out, re.M) == ["harm"]
    assert re.findall("^turn off: +(.*?) +with it 8 of 8, without it 0 of 8", out, re.M) == ["harm"]


def compare(session: Session) -> None:
    code, out, err = session.ask("compare", "last", "-p", "no:harm", *BAD, "--json")
    told: dict[str, Any] = json.loads(out)
    assert code == 0 and [(one["before"], one["after"]) for one in told["pairs"]] == [(1.0, 0.0)], out + err


def report(session: Session) -> None:
    code, out, err = session.ask("report", "last", *BAD, "-o", "bug.yaml")
    assert code == 0, out + err
    (session.folder / "script.py").unlink()  # whoever reads the report does not have it
    code, out, err = session.ask("replay", "bug.yaml")
    assert code == 1 and ": reproduced: calls refund" in out, out + err


def bill(session: Session) -> None:
    code, out, _ = session.ask("bill", "last", "--json")
    told = json.loads(out)
    all_of_them = json.loads(session.ask("log", "list", "--json")[1])
    (listed,) = [one for one in all_of_them if one["path"] == str(newest(session))]
    assert (code, told["tokens"]) == (0, listed["tokens"])
    assert sum(part["tokens"] for part in told["parts"]) == pytest.approx(told["tokens"], abs=len(told["parts"]))
    harm = sum(part["tokens"] for part in told["parts"] if part["who"] == "harm")
    code, out, _ = session.ask("bill", "last", "-p", "no:harm", "--json")
    without = json.loads(out)["without"]
    assert code == 0 and without["until"] is None
    # Calls that a handler makes itself, and those that were taken back, are not played.
    assert without["calls"] < told["calls"] or without["then"]["tokens"] == told["tokens"]
    assert harm > 0 and without["now"]["tokens"] < without["then"]["tokens"]


def newest(session: Session) -> Path:
    folder = session.folder / ".co" / "evals"
    return max(folder.glob("*.yaml"), key=lambda path: path.stat().st_mtime_ns)


QUESTIONS: list[Callable[[Session], None]] = [replay, bisect, compare, bill, report]
CELLS = [
    (name, QUESTIONS if os.environ.get("CONNECTAGENT_MATRIX") == "all" else [QUESTIONS[number % 5]])
    for number, name in enumerate(CASES)
]


@pytest.mark.parametrize(("name", "questions"), CELLS, ids=list(CASES))
def test_each_question_is_answered_truly_of_any_kind_of_session(
    name: str, questions: list[Callable[[Session], None]], tmp_path: Path
) -> None:
    session = Session(name, tmp_path)
    did = session.did()
    for ask in questions:
        ask(session)
    assert session.did() == did  # no tool ran
