"""What `connectagent eval` says of scores that fell: whether that may be chance."""

from __future__ import annotations

import json
import random
from itertools import permutations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from connectagent.cli.group import invoke
from connectagent.settings import overrides
from connectagent.testing.evals.changes import Change, Compared, comparisons
from connectagent.testing.evals.sums import Scores, Taken, scores
from connectagent.testing.signs import LEVEL, corrected

SCRIPT = """
from connectagent import Agent
from connectagent.data import LLMResponse


class Model:
    model = "echo"

    def complete(self, messages, tools=None):
        return LLMResponse(messages[-1]["content"])


agent = Agent("echo", llm=Model())
"""
# Answers "no" where the number of the prompt is below one.
WORSE = """
from connectagent import after_llm

@after_llm
def spoil(response):
    number = int(response.content.split()[1])
    if number == 99:
        raise ValueError("broken")
    return "no" if number < {} else None
"""
CHECKS = """
from connectagent.testing.evals import contains

check_answer = contains("yes")
check_long_answers_are_what_we_want = lambda result: len(result) / 10
check_fine = lambda result: True
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("bot.py").write_text(SCRIPT)
    Path("checks.py").write_text(CHECKS)
    for count in (1, 9):
        Path(f"worse{count}.py").write_text(WORSE.format(count))
    write(12)
    return tmp_path


def write(count: int, *more: int) -> None:
    lines = [{"id": f"c{number}", "prompt": f"yes {number}"} for number in (*range(count), *more)]
    Path("cases.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def co(*arguments: str) -> int:
    before = dict(overrides)
    try:
        return invoke(["eval", "bot.py", "cases.jsonl", "--quiet", "--min-score", "0", *arguments])
    finally:
        overrides.clear()
        overrides.update(before)


def compared(number: int = 0, path: str = "out.json") -> Any:
    return json.loads(Path(path).read_text())["variants"][number]["compared"]


def test_it_says_of_each_check_whether_the_difference_may_be_chance(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert co("--check", "checks.py", "-o", "good.json") == 0
    assert compared(path="good.json") == [] and "chance" not in capsys.readouterr().out
    for plugin, said, p in (("worse1", "1 worse, 0 better: may be chance", 1.0),
                            ("worse9", "9 worse, 0 better: hardly chance", 2 / 2**9 * 2)):  # fmt: skip
        given = ("--check", "checks.py", "-p", f"./{plugin}.py", "--against", "good.json")
        assert co(*given, "-o", "out.json", "--junit", "out.xml") == 0  # what changed does not decide it
        out = capsys.readouterr().out
        assert f"  answer: {said} (p = {p:.3f})\n" in out and "  fine:" not in out
        assert out.endswith("\np: the sign test over cases, corrected for 2 comparisons (Holm)\n")
        [found] = compared()
        assert found["saved"] is True and found["variant"] == ""
        assert found["checks"]["answer"]["p_corrected"] == pytest.approx(p)
        assert found["checks"]["fine"] == {"worse": 0, "better": 0, "same": 12, "p": 1, "p_corrected": 1}
        [suite] = ElementTree.parse("out.xml").getroot()
        properties = {one.get("name"): one.get("value") for one in suite[0]}
        assert suite[0].tag == "properties" and suite.get("failures") == "0"
        assert properties["answer since the saved results"] == f"{said} (p = {p:.3f})"
    assert co("--check", "checks.py", "--against", "good.json") == 0
    assert "chance" not in capsys.readouterr().out  # all are the same


@pytest.mark.parametrize("columns", [80, 40])
def test_the_lines_fit_the_terminal(
    folder: Path, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    variants = ("--variant", "as it is=", "--variant", "-p ./worse9.py", "--variant", "-p ./worse1.py")
    assert co("--check", "checks.py", *variants, "-o", "out.json") == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    said = " ".join(out.split())
    assert "long_answers_are_what_we_want: 9 worse, 0 better: hardly chance (p = 0.016)" in said
    assert "corrected for 4 comparisons (Holm)" in said
    assert [one["variant"] for number in (1, 2) for one in compared(number)] == ["as it is"] * 2


def test_repeats_of_a_case_do_not_count_as_cases(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(3)
    variants = ("--variant", "a=", "--variant", "b=-p ./worse9.py")
    assert co("--check", "checks.py", "--repeat", "6", *variants, "-o", "out.json") == 0
    assert "answer: 3 worse, 0 better: may be chance (p = 0.500)" in capsys.readouterr().out
    assert compared(1)[0]["checks"]["answer"]["p"] == pytest.approx(0.25)


def test_a_turn_that_did_not_end_is_no_sign(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(2, 99)
    variants = ("--variant", "a=", "--variant", "b=-p ./worse1.py")
    assert co("--check", "contains", "--check", "checks.py", *variants, "-o", "out.json") == 1  # a turn failed
    out = capsys.readouterr().out
    assert "c99: answer: 100 %, now did not end" in out and "answer: 1 worse, 0 better" in out
    assert compared(1)[0]["checks"]["answer"] == {"worse": 1, "better": 0, "same": 1, "p": 1, "p_corrected": 1}


def side(name: str, found: Scores) -> Taken:
    """A variant that has these scores."""

    class Fixed(Taken):
        scores = found  # type: ignore[assignment]

        def by_case(self) -> Any:
            ids = dict.fromkeys(id for cases in found.values() for id in cases)
            return [(type("Case", (), {"id": id}), []) for id in ids]

    return Fixed(name)


def found_by_chance(rng: random.Random, checks: int, before: int, after: int) -> Compared:
    """A comparison of the same with itself: 60 cases that pass each check nine times of ten."""

    def drawn(repeats: int) -> Scores:
        names = [f"check {number}" for number in range(checks)]
        return {
            name: {str(id): [float(rng.random() < 0.9) for _ in range(repeats)] for id in range(60)} for name in names
        }

    first, second = drawn(before), drawn(after)
    return comparisons([side("a", first), side("b", second)], list(first), None)[0]


@pytest.mark.parametrize(("checks", "before", "after"), [(1, 3, 3), (1, 3, 1), (1, 1, 5), (10, 1, 1)])
def test_the_same_agent_is_hardly_ever_found_different(checks: int, before: int, after: int) -> None:
    rng = random.Random(1)
    runs = [found_by_chance(rng, checks, before, after) for _ in range(300)]
    wrong = sum(any(not signs.may_be_chance for signs in one.signs.values()) for one in runs)
    assert wrong <= LEVEL * len(runs)


def test_the_same_scores_in_another_order_are_the_same() -> None:
    sums = {sum(numbers) for numbers in permutations((0.1, 0.2, 0.3, 0.7))}
    assert len(sums) > 1, "they differ in the last digit"
    for numbers in permutations((0.1, 0.2, 0.3, 0.7)):
        before = scores(("c", {"x": number}) for number in (0.1, 0.2, 0.3, 0.7))
        after = scores(("c", {"x": number}) for number in numbers)
        [found] = comparisons([side("a", before), side("b", after)], ["x"], None)
        assert not found.changes[0].is_worse and not found.changes[0].is_better and found.signs["x"].same == 1
    assert Change("x", "c", 0.5, 0.4999).is_worse and Change("x", "c", 0.5, 0.5001).is_better


def test_probabilities_of_many_looks_are_corrected() -> None:
    """The example of Holm's method that is known from textbooks, and the order of what is given."""
    assert corrected([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert corrected([0.9, 0.8]) == [1, 1] and corrected([]) == [] and corrected([LEVEL]) == [LEVEL]
