"""Compare: two versions of an agent over the same recorded sessions."""

from __future__ import annotations

import json
import os
import random
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from connectagent.cli import main
from connectagent.testing import ScriptedLLM
from connectagent.testing.bisection.comparison import Comparing, Comparison, Pair, bootstrap
from connectagent.testing.bisection.trial import Arm, Outcome, Verdict
from connectagent.testing.signs import LEVEL, sign_test

CASES = int(os.environ.get("CONNECTAGENT_BISECT", "2"))  # of A against A
SCRIPT = """
import json, os, random
from connectagent import Agent, LLMResponse, TokenUsage, ToolCall

def refund(order: int) -> str:
    "Refund."
    return "refunded"

class Model:
    model = "planted"
    def complete(self, messages, tools=None):
        usage = TokenUsage(100, 10, cost=0.001)
        if messages[-1]["role"] == "tool":
            return LLMResponse("Done.", usage=usage)
        sent = json.dumps(messages)
        share = float(os.environ["CAREFUL" if "Be careful." in sent else "SHARE"])
        if random.Random(os.environ.get("SEED", "1") + sent).random() < share:
            return LLMResponse(None, [ToolCall("c1", "refund", {"order": 7})], usage=usage)
        return LLMResponse("No.", usage=usage)

agent = Agent("shop", [refund], "You are a shop.", llm=Model(), quiet=True)
"""
CAREFUL = """
from connectagent import after_user_input

@after_user_input
def careful(agent):
    agent.session["messages"].append({"role": "user", "content": os_text})

os_text = "Be careful."
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "careful.py").write_text(CAREFUL)
    (tmp_path / "other.py").write_text(CAREFUL.replace("Be careful", "Be quick"))
    (tmp_path / "silent.py").write_text("from connectagent import after_llm\n\n@after_llm\ndef silent(response): ...\n")
    return tmp_path


def sessions(folder: Path, count: int, monkeypatch: pytest.MonkeyPatch, share: float, careful: float) -> None:
    """Recorded sessions of the script's agent."""
    monkeypatch.setenv("SHARE", str(share))
    monkeypatch.setenv("CAREFUL", str(careful))
    names: dict[str, Any] = {}
    exec(SCRIPT, names)
    for number in range(count):
        names["agent"].again().input(f"Order {number} is late.")


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["compare", "--agent", "shop", "script.py", "--json", *arguments])
    said = capsys.readouterr()
    return code, json.loads(said.out) if said.out else {"error": said.err}


def test_a_better_side_is_seen_and_a_worse_one_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions(folder, 12, monkeypatch, 1.0, 0.0)
    before = sorted((folder / ".co").rglob("*"))
    code, found = compared(capsys, "--bad", "calls refund", "-p", "./careful.py")
    assert code == 0 and found["p"] < 0.001, found
    assert all(pair["before"] == 1 and pair["after"] == 0 for pair in found["pairs"])
    assert found["interval"] == [-1.0, -1.0]
    assert found["pairs"][0]["costs"] == [pytest.approx(0.002), pytest.approx(0.001)]
    code, found = compared(capsys, "--good", "calls refund", "-p", "./careful.py")
    assert code == 1 and found["p"] < 0.001
    assert sorted((folder / ".co").rglob("*")) == before


def test_what_changes_no_request_is_decided_without_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions(folder, 6, monkeypatch, 0.5, 0.5)
    monkeypatch.setenv("SHARE", "nothing: the model must not be asked")
    code, found = compared(capsys, "--bad", "calls refund", "-p", "./silent.py")
    assert code == 0 and all(pair["is_recorded"] for pair in found["pairs"]) and found["p"] == 1
    assert main(["compare", "--agent", "shop", "script.py", "--bad", "calls refund", "-p", "./silent.py"]) == 0
    shown = capsys.readouterr().out
    assert "the same in 6" in shown and "decided from the record alone: 6 of 6" in shown
    assert "no difference was seen" in shown


def test_the_same_against_the_same_is_no_difference(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alarms = 0
    for seed in range(CASES):
        monkeypatch.setenv("SEED", str(random.Random(seed).random()))
        monkeypatch.setenv("CONNECTAGENT_DIR", str(folder / f"co{seed}"))
        sessions(folder, 12, monkeypatch, 0.5, 0.5)
        _, found = compared(capsys, "--bad", "calls refund", "-p", "./other.py")
        alarms += found["p"] < 0.05
    print(f"A against A: {alarms} alarms of {CASES}")
    assert alarms <= max(1, 0.05 * CASES)


def test_another_prompt_and_another_model_are_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions(folder, 3, monkeypatch, 1.0, 0.0)
    (folder / "prompt.md").write_text("You are a shop. Be careful.")
    _, found = compared(capsys, "--bad", "calls refund", "--prompt", "prompt.md")
    assert [pair["after"] for pair in found["pairs"]] == [0, 0, 0]
    assert not any(pair["is_recorded"] for pair in found["pairs"])
    _, found = compared(capsys, "--bad", "calls refund", "--model", "offline")
    assert not any(pair["is_recorded"] for pair in found["pairs"])


def test_a_judge_reads_the_last_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions(folder, 2, monkeypatch, 1.0, 0.0)
    asked: list[str] = []

    class Judge(ScriptedLLM):
        def complete(self, messages: Any, tools: Any = None) -> Any:
            asked.append(messages[-1]["content"])
            said = {"reason": "It says no.", "passed": "No." in messages[-1]["content"]}
            return ScriptedLLM(json.dumps(said)).complete(messages, tools)

    monkeypatch.setattr("connectagent.cli.compare._judge", Judge)
    code, found = compared(capsys, "--judge", "It refuses.", "-p", "./careful.py")
    assert code == 0 and [pair["before"] for pair in found["pairs"]] == [1, 1]
    assert [pair["after"] for pair in found["pairs"]] == [0, 0]
    assert len(asked) == 4 and "It refuses." in asked[0]


def test_mistakes_get_one_message(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions(folder, 1, monkeypatch, 1.0, 0.0)
    for arguments, said in (
        (["--bad", "calls refund"], "both sides are the same"),
        (["-p", "./careful.py"], "give one of --bad"),
        (["-p", "./careful.py", "--bad", "x", "--good", "y"], "give one of --bad"),
        (["-p", "./careful.py", "--bad", "cals refund"], "Did you mean 'calls'"),
        (["-p", "./carefull.py", "--bad", "calls refund"], "carefull.py"),
    ):
        code, found = compared(capsys, *arguments)
        assert code == 2 and said in found["error"], found
        assert len(found["error"].splitlines()) <= 5


def test_the_signs_and_the_interval() -> None:
    assert sign_test(0, 0) == 1 and sign_test(5, 5) == 1
    assert sign_test(10, 0) == pytest.approx(2 / 1024)
    low, high = bootstrap([1.0] * 5 + [0.0] * 15)
    assert 0.05 <= low < 0.25 < high <= 0.45
    pairs = [Pair("a", 1.0, 0.0), Pair("b", 1.0, 0.0), Pair("c", 1.0, 0.0), *[Pair("d", 0.0, 0.0)] * 7]
    found = Comparison("calls refund", pairs)
    assert found.p == pytest.approx(0.25) and found.needed is not None and 15 <= found.needed <= 60
    assert "it may be chance; about" in str(found) and "30% before, 0% after, over 10 sessions" in str(found)


def test_a_probability_below_a_thousandth_is_not_shown_as_0() -> None:
    found = Comparison("calls refund", [Pair("a", 1.0, 0.0)] * 20)
    assert 0 < found.p < 0.001 and "p < 0.001 (sign test)" in str(found)


class Drawn(Comparing):
    """Sessions whose runs are bad by chance, one of ten: recorded ones on the first side, and others on the second."""

    def __init__(self, rng: random.Random, samples: int) -> None:
        super().__init__(self.case, self.make, self.make, samples=samples)  # type: ignore[arg-type]
        self.rng, self.side = rng, 0

    def case(self, record: Path) -> Any:
        return SimpleNamespace(guard=nullcontext())

    def make(self, record: Path) -> Any:
        return None

    def _outcomes(self, case: Any, arm: Arm) -> list[Outcome]:
        self.side += 1
        runs = 1 if self.side % 2 else self.samples
        return [Outcome(Verdict.BAD if self.rng.random() < 0.1 else Verdict.GOOD, cost=0.0) for _ in range(runs)]


@pytest.mark.parametrize("samples", [1, 3, 10])
def test_more_samples_of_one_side_alone_are_no_difference(samples: int) -> None:
    rng, records = random.Random(1), [Path(str(number)) for number in range(60)]
    runs = [Drawn(rng, samples).run(records, Comparison("bad"), lambda path: None) for _ in range(200)]
    assert sum(one.p < LEVEL for one in runs) <= LEVEL * len(runs)
    means = [sum(one.differences) / len(one.differences) for one in runs]
    assert abs(sum(means) / len(means)) < 0.02  # the shares are of all runs
    assert f"better in {runs[0].better}, worse in {runs[0].worse}, " in str(runs[0])
