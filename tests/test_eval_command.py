"""`connectagent eval`: cases from a file, scores on the terminal and in files."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from connectagent.agents.decisions import waiting_in
from connectagent.cli import eval_table
from connectagent.cli.group import invoke
from connectagent.settings import overrides
from connectagent.testing.evals.sums import wilson

SCRIPT = """
import os
import time
from connectagent import Agent, Pause, before_each_tool
from connectagent.data import LLMResponse, TokenUsage, ToolCall

KNOWN = {"France?": "Paris", "Spain?": "Madrid", "Peru?": "Bogota"}


class Model:
    model = "capitals"

    def complete(self, messages, tools=None):
        with open("calls", "a") as file:
            file.write("x")
        text = messages[-1]["content"]
        usage = TokenUsage(10, 5, cost=None if text == "free" else 0.01)
        if messages[-1]["role"] == "tool":
            return LLMResponse("done", usage=usage)
        if text.startswith("slow"):
            time.sleep(0.1)
        if text.startswith("fail") and not os.path.exists("mended"):
            raise ValueError(text)
        if text.startswith("pay"):
            return LLMResponse(None, [ToolCall("1", "pay", {"euros": 1})], usage=usage)
        return LLMResponse(KNOWN.get(text.split()[-1], text), usage=usage)


def pay(euros: int) -> str:
    \"\"\"Pay.\"\"\"
    return "paid"


@before_each_tool
def ask(tool_call):
    if not os.path.exists("approved"):
        raise Pause("may it pay?")


agent = Agent("caps", [pay], llm=Model(), on_events=[ask])
"""
JUDGE = """
import json
from connectagent.data import LLMResponse, TokenUsage
from connectagent.testing.evals import judge


class Judge:
    model = "judge"

    def complete(self, messages, tools=None):
        with open("judged", "a") as file:
            file.write("x")
        asked, _ = json.JSONDecoder().raw_decode(messages[1]["content"])
        said = json.dumps({"reason": "It is " + asked["answer"], "passed": asked["answer"] != "Bogota"})
        if asked["answer"] == "PASSED":
            said = "PASSED: " + said  # not the object alone
        return LLMResponse(said, usage=TokenUsage(10, 5, cost=0.002))


check_tone = judge("It is a capital.", llm=Judge())
"""
CASES = [
    {"id": "fr", "prompt": "Capital of France?", "expected": "Paris"},
    {"id": "es", "prompt": "Capital of Spain?", "expected": "Madrid"},
    {"id": "pe", "prompt": "Capital of Peru?", "expected": "Lima"},
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "bot.py").write_text(SCRIPT)
    (tmp_path / "lima.py").write_text(
        "from connectagent import after_llm\n\n@after_llm\ndef mend(response):\n"
        "    return 'Lima' if response.content == 'Bogota' else None\n"
    )
    write(*CASES)
    return tmp_path


def write(*cases: dict[str, Any]) -> None:
    Path("cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))


def co(*arguments: str, cases: str = "cases.jsonl") -> int:
    before = dict(overrides)
    try:
        return invoke(["eval", "bot.py", cases, *arguments])
    finally:
        overrides.clear()
        overrides.update(before)


def results(path: str = "out.json") -> Any:
    return json.loads(Path(path).read_text())


def count(name: str = "calls") -> int:
    return len(Path(name).read_text()) if Path(name).exists() else 0


def test_it_scores_each_case_and_the_exit_code_says_whether_all_passed(capsys: pytest.CaptureFixture[str]) -> None:
    assert co("--check", "exact", "-o", "out.json") == 1
    out, err = capsys.readouterr()
    assert "exact   67 %     21 to 94 %      3" in out and "2 of 3 answers passed · 45 tokens · $0.0300" in out
    assert "pe: exact: 'Bogota' is not 'Lima'" in out and "3/3 done" in err
    [variant] = results()["variants"]
    assert results()["complete"] is True and variant["passed"] == 2 and variant["cost"] == pytest.approx(0.03)
    assert [case["trials"][0]["scores"]["exact"]["score"] for case in variant["cases"]] == [1, 1, 0]
    assert co("--check", "exact", "--min-score", "0.6") == 0
    assert co("--check", "exact", "--min-score", "0.7") == 1
    write(*CASES[:2])
    assert co("--check", "exact", "--check", "contains") == 0
    assert "all checks  100 %    34 to 100 %      2" in capsys.readouterr().out


def test_the_same_command_scores_again_and_takes_only_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("checks.py").write_text(JUDGE)
    assert co("--check", "checks.py", "-o", "out.json") == 1
    assert (count(), count("judged")) == (3, 3)
    assert "judges $0.0060" in capsys.readouterr().out and results()["variants"][0]["checks_cost"] == 0.006
    assert co("--check", "checks.py", "--repeat", "2", "-o", "out.json", "-j", "1", "--max-usd", "1") == 1
    assert (count(), count("judged")) == (6, 6)
    assert "3 of them before" in capsys.readouterr().err
    first = results()["variants"]
    assert co("--check", "checks.py", "--repeat", "2", "-o", "out.json", "--max-usd", "0") == 1
    assert (count(), count("judged")) == (6, 6)  # nothing was spent, so the limit was 0 and nothing began
    assert results()["complete"] is False
    assert co("--check", "checks.py", "--repeat", "2", "-o", "out.json") == 1 and count("judged") == 6
    for case in [case for variant in [*first, *results()["variants"]] for case in variant["cases"]]:
        [trial.pop("duration_ms") for trial in case["trials"]]
    assert results()["variants"][0]["checks"] == first[0]["checks"]
    assert "6 of 6" not in capsys.readouterr().out


def test_a_changed_agent_is_taken_anew_and_changed_checks_are_not() -> None:
    assert co("--check", "exact") == 1 and count() == 3
    assert co("--check", "contains") == 1 and count() == 3
    Path("bot.py").write_text(SCRIPT.replace('"Bogota"', '"Lima"'))
    assert co("--check", "exact") == 0 and count() == 6
    write(*CASES[:2], {**CASES[2], "prompt": "Tell me the capital of Peru?"})
    assert co("--check", "exact") == 0 and count() == 7
    Path("bot.py").write_text(SCRIPT)
    assert co("--check", "exact", "--name", "mine") == 1 and count() == 10
    Path("bot.py").write_text(SCRIPT.replace('"Bogota"', '"Lima"'))
    assert co("--check", "exact", "--name", "mine") == 1 and count() == 10


def test_a_changed_prompt_file_of_an_agent_inside_makes_a_changed_agent() -> None:
    Path("prompts").mkdir()
    Path("prompts/below.md").write_text("Be brief.")
    Path("bot.py").write_text(SCRIPT.replace("[pay]", "[Agent('below', system_prompt='below', llm=Model())]"))
    for text, taken in (("Be brief.", 3), ("Be brief.", 3), ("Be long.", 6)):
        Path("prompts/below.md").write_text(text)
        assert co("--check", "exact") == 1 and count() == taken


def test_variants_are_taken_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    Path("checks.py").write_text(JUDGE)
    variants = ("--variant", "plain=", "--variant", "-p ./lima.py")
    assert co("--check", "exact", "--check", "checks.py", *variants, "-o", "out.json") == 1
    out = capsys.readouterr().out
    assert "-p ./lima.py against plain: 2 worse" not in out and "0 worse, 2 better, 4 the same" in out
    assert "plain: 2 of 3" in out and "-p ./lima.py: 3 of 3" in out and "plain: pe: exact: 'Bogota'" in out
    assert [one["name"] for one in results()["variants"]] == ["plain", "-p ./lima.py"]
    assert max(map(len, out.splitlines())) <= 80
    assert co("--check", "exact", "-p", "./lima.py", "--variant", "plain=") == 0


def test_a_plugin_of_the_script_is_left_out_by_a_variant() -> None:
    Path("bot.py").write_text(SCRIPT.replace("on_events=[ask]", "plugins=['./lima.py']"))
    assert co("--check", "exact", "--variant", "on=", "--variant", "off=-p no:lima", "-o", "out.json") == 1
    assert [one["passed"] for one in results()["variants"]] == [3, 2]


def test_a_model_of_a_variant_is_not_the_judges() -> None:
    Path("checks.py").write_text(JUDGE)
    assert co("--check", "checks.py", "--variant", "off=--model offline", "-o", "out.json") == 0
    assert count() == 0 and count("judged") == 3
    assert co("--check", "checks.py", "--model", "offline", "-o", "out.json") == 0 and count() == 0
    assert "[offline]" in results()["variants"][0]["cases"][0]["trials"][0]["result"]
    assert "model" not in overrides


def test_it_says_what_got_worse_since_saved_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert co("--check", "exact", "-p", "./lima.py", "-o", "good.json") == 0
    write(*CASES, {"prompt": "new", "expected": "new"})
    capsys.readouterr()
    assert co("--check", "exact", "--check", "contains", "--against", "good.json") == 1
    out = capsys.readouterr().out
    assert "since the saved results: 1 worse, 0 better, 2 the same; 1 case not scored there" in out
    assert "pe: exact: 100 %, now 0 %" in out and "exact        75 %     30 to 95 %      4  100 %" in out
    write(*CASES[:2], {**CASES[2], "prompt": "fail"})
    assert co("--check", "exact", "--against", "good.json") == 1
    assert "pe: exact: 100 %, now did not end" in capsys.readouterr().out
    write(CASES[0], {"prompt": "new", "expected": "new"})
    assert co("--check", "exact", "--against", "good.json") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "1 the same; 1 case not scored there; 2 cases of it not taken now" in out and "34 to 100 % 2 100 %" in out
    assert co("--check", "exact", "--variant", "a=", "--variant", "b=", "-o", "two.json") == 0
    assert co("--check", "exact", "--against", "two.json") == 0
    assert "which have no variant '' but 'a', 'b': 0 worse" in " ".join(capsys.readouterr().out.split())


def test_a_share_is_all_or_nothing_only_where_it_is() -> None:
    for count in range(1, 200):
        assert wilson(0, count)[0] == 0 and wilson(1, count)[1] == 1
        assert wilson(1 / (count + 1), count)[0] > 0 and wilson(count / (count + 1), count)[1] < 1
    assert [eval_table._share(one) for one in (1, 0.99999, 0.5, 0.00001, 0)] == [
        "100 %", "99.9 %", "50 %", "0.1 %", "0 %",
    ]  # fmt: skip


def test_checks_fail_with_their_message_and_place(capsys: pytest.CaptureFixture[str]) -> None:
    Path("checks.py").write_text(
        "import sys\n"
        "from connectagent.testing.evals import Score\n"
        "def check_assert(result):\n    assert result == 'x', 'no x'\n"
        "def check_bare(result):\n    assert result == 'y'\n"
        "def check_key(case):\n    return case.data['gone']\n"
        "def check_exit():\n    sys.exit(3)\n"
        "def check_number(result):\n    return 7\n"
        "def check_half(prompt):\n    return 0.5\n"
        "async def check_later(result):\n    return Score(0.25, 'a quarter')\n"
        "def check_fine(trial, tools_called, cost):\n"
        "    assert trial.steps == 1 and not tools_called and cost == 0.01\n"
        "def helper(x):\n    return x\n"
    )
    write(CASES[0])
    assert co("--check", "checks.py", "-o", "out.json", "--junit", "out.xml") == 1
    scores = results()["variants"][0]["cases"][0]["trials"][0]["scores"]
    assert {name: score["score"] for name, score in scores.items() if score["score"]} == {
        "half": 0.5, "later": 0.25, "fine": 1,
    }  # fmt: skip
    reasons = {name: score["reason"] for name, score in scores.items()}
    assert reasons["assert"] == "no x (checks.py:4)" and reasons["bare"] == "assert result == 'y' (checks.py:6)"
    assert reasons["key"] == "KeyError: 'gone' (checks.py:8)" and reasons["exit"] == "SystemExit: 3 (checks.py:10)"
    assert reasons["number"] == "ValueError: a score is True, False or a number from 0 to 1, not 7 (checks.py:11)"
    assert reasons["later"] == "a quarter"
    assert "fr: half: 50 %" in capsys.readouterr().out
    [failure] = ElementTree.parse("out.xml").getroot().iter("failure")
    assert failure.text and "no x (checks.py:4)" in failure.text


def test_failures_and_waits_are_told_apart_and_gone_on_with(capsys: pytest.CaptureFixture[str]) -> None:
    write({"id": "a", "prompt": "fail \x00"}, {"id": "b", "prompt": "pay"}, {"id": "c", "prompt": "free"})
    Path("checks.py").write_text(
        "from connectagent.testing.evals import calls_tools, max_cost\n"
        "check_cost = max_cost(1)\ncheck_paid = calls_tools('pay', only=True)\n"
    )
    assert co("--check", "checks.py", "-o", "out.json", "--junit", "out.xml") == 1
    out = capsys.readouterr().out
    assert "1 failed · 1 waiting for a decision" in out and "$0.0100+?" in out
    assert "c: cost: the price of a model call is not known" in out and "c: paid: not called: pay" in out
    suite = ElementTree.parse("out.xml").getroot()[0]
    assert [suite.get(name) for name in ("tests", "errors", "failures", "skipped")] == ["3", "1", "1", "1"]
    assert [case["trials"][0]["status"] for case in results()["variants"][0]["cases"]] == [
        "failed", "waiting", "scored",
    ]  # fmt: skip
    Path("mended").touch()
    Path("approved").touch()
    [waiting] = Path(".co/evals").glob("*.b.*.yaml")
    [wait] = waiting_in(waiting)
    assert invoke(["resume", str(waiting), "--script", "bot.py", "--approve", wait.id, "--quiet"]) == 0
    before = count()
    assert co("--check", "checks.py", "-o", "out.json") == 1 and count() == before + 1
    trials = [case["trials"][0] for case in results()["variants"][0]["cases"]]
    assert {trial["status"] for trial in trials} == {"scored"} and trials[1]["scores"]["paid"]["score"] == 1


def test_turns_that_did_not_end_are_listed_before_many_that_did_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    write(*({"id": f"c{n}", "prompt": f"no {n}", "expected": "yes"} for n in range(20)), {"id": "z", "prompt": "fail"})
    assert co("--check", "exact") == 1
    out = capsys.readouterr().out
    assert out.index("z: ValueError: fail; connectagent log show") < out.index("c0: exact:") and "and 11 more" in out


def test_what_waits_in_a_variant_is_decided_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    Path("ask.py").write_text(
        "from connectagent import Pause, before_llm\n\n@before_llm\ndef ask(request):\n"
        "    raise Pause('is it true?')\n"
    )
    write(CASES[0])
    given = ("--check", "exact", "-p", "./lima.py", "--variant", "a=", "--variant", "b=-p ./ask.py --model offline")
    assert co(*given) == 1
    told = capsys.readouterr()
    [waits] = [line for line in told.err.splitlines() if "waits: is it true?; connectagent resume" in line]
    options = f"-p ./lima.py --model offline -p {Path('ask.py').absolute()}"
    assert re.search(rf"{re.escape(options)} --approve 'T1/1/before_llm/wait:ask~[0-9a-f]{{12}}'$", waits)
    assert "b: fr: waits for a decision; connectagent log show .co/" in " ".join(told.out.split())
    assert "agent_options" not in overrides


def test_a_secret_in_a_result_scores_the_same_when_it_is_read_again() -> None:
    key = "sk-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
    write({"prompt": f"is {key}", "expected": f"is {key}"}, {"prompt": "is KEY", "expected": key})
    Path("checks.py").write_text(f"def check_own(result):\n    assert {key!r} not in result\n")
    for _ in range(2):
        assert co("--check", "exact", "--check", "checks.py", "-o", "out.json", "--junit", "out.xml") == 1
        assert key not in Path("out.json").read_text() + Path("out.xml").read_text()
        scores = [case["trials"][0]["scores"] for case in results()["variants"][0]["cases"]]
        assert [(score["exact"]["score"], score["own"]["score"]) for score in scores] == [(1, 1), (0, 1)]
    assert count() == 2


def test_typed_results_are_data(capsys: pytest.CaptureFixture[str]) -> None:
    typed = (
        "from dataclasses import dataclass\n\n@dataclass\nclass City:\n    name: str\n    people: int\n\n"
        "from connectagent import Agent\nfrom connectagent.testing import ScriptedLLM\n"
        "said = '{\"name\": \"Lima\", \"people\": 10}'\n"
        "agent = Agent('typed', llm=ScriptedLLM(lambda messages, tools: said, said), output=City)\n"
    )
    Path("bot.py").write_text(typed)
    Path("checks.py").write_text("def check_name(result):\n    assert result.name == 'Lima'\n")
    write({"prompt": "Which?", "expected": {"name": "Lima", "people": 10}})
    for _ in range(2):
        assert co("--check", "checks.py", "--check", "exact", "-o", "out.json") == 0
        [case] = results()["variants"][0]["cases"]
        assert case["trials"][0]["result"] == {"name": "Lima", "people": 10}
    assert "1 of 1 answer passed" in capsys.readouterr().out


INNER = """
from connectagent import Agent
from connectagent.testing import ScriptedLLM, call

def look(x: str) -> str:
    return "seen"

inner = Agent("inner", [look], llm=ScriptedLLM(call("look", x="a"), "inner done"))
agent = Agent("outer", [inner], llm=ScriptedLLM(call("inner", prompt="go"), "outer done"))
"""


def test_agents_inside_count_and_show_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bot.py").write_text(INNER)
    Path("checks.py").write_text(
        "from connectagent.testing.evals import calls_tools, max_steps\n"
        "check_tools = calls_tools('look', 'inner', only=True)\ncheck_four = max_steps(4)\ncheck_three = max_steps(3)\n"
    )
    write({"id": "a", "prompt": "Look"})
    assert co("--check", "checks.py") == 1
    out, err = capsys.readouterr()
    assert "a: three: 4 model calls" in out and "a: four" not in out and "a: tools" not in out
    assert len(err.splitlines()) == 1


def test_a_judge_that_does_not_answer_in_the_form_has_no_verdict() -> None:
    Path("checks.py").write_text(JUDGE)
    write({"prompt": "PASSED"})
    assert co("--check", "checks.py", "-o", "out.json") == 1
    score = results()["variants"][0]["cases"][0]["trials"][0]["scores"]["tone"]
    assert score["score"] == 0 and "OutputError" in score["reason"] and score["cost"] == pytest.approx(0.004)


def test_limits_end_it_and_the_rest_is_taken_later(capsys: pytest.CaptureFixture[str]) -> None:
    Path("checks.py").write_text(JUDGE)
    assert co("--check", "checks.py", "-j", "1", "--max-usd", "0.011", "-o", "out.json") == 1
    assert count() == 1 and results()["complete"] is False  # the judge's 0.002 reach the limit
    assert "are spent" in capsys.readouterr().err
    assert co("--check", "checks.py", "--name", "n", "--variant", "a=", "--variant", "b=", "--max-usd", "0.02") == 1
    assert "b:" not in capsys.readouterr().out


def test_cases_of_csv_and_templates_have_all_fields() -> None:
    Path("t.csv").write_text("id,what,expected,most\na,France?,Paris,5\nb,Spain?,,3\n")
    Path("checks.py").write_text("def check_most(result, case):\n    return len(result) <= int(case.data['most'])\n")
    assert co("--check", "checks.py", "--prompt", "Capital of {what}", "-o", "out.json", cases="t.csv") == 1
    cases = results()["variants"][0]["cases"]
    assert [(case["id"], case["expected"]) for case in cases] == [("a", "Paris"), ("b", None)]
    assert [case["trials"][0]["scores"]["most"]["score"] for case in cases] == [1, 0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--check", "odd.py"), "check_x() has the parameter 'resul', which no check gets. Did you mean 'result'?"),
        (("--check", "seven.py"), "seven.py: check_y is no function but 7"),
        (("--check", "exact", "--check", "exact"), "another check called 'exact'"),
        (("--check", "exact", "--variant", "a=-x"), "it takes -p, --model"),
        (("--check", "exact", "--variant", "a='"), "No closing quotation"),
        (("--check", "exact", "--variant", ""), "write, for example, '-p PLUGIN' or 'NAME=-p PLUGIN'"),
        (("--check", "exact", "--variant", "a=", "--variant", "a=-p x"), "two variants are called 'a'"),
        (("--check", "exact", "--variant", "a=", "--variant", "b=-p gone"), "no plugin 'gone'"),
        (("--check", "exact", "-o", "no/out.json"), "-o 'no/out.json' cannot be written; name a file in a folder"),
        (("--check", "exact", "--junit", "."), "--junit '.' cannot be written"),
        (("--check", "exact", "-o", "cases.jsonl"), "-o 'cases.jsonl' would replace a file that this command needs"),
        (("--check", "odd.py", "--junit", "odd.py"), "--junit 'odd.py' would replace a file"),
        (("--check", "exact", "-o", "x", "--junit", "x"), "-o 'x' would replace a file"),
        (("--check", "exact", "--min-score", "2"), "2.0 is not in the range"),
        (("--check", "exact", "--min-score", "nan"), "'nan' is no number"),
    ],
)
def test_a_mistake_is_named_before_anything_is_spent(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("odd.py").write_text("def check_x(resul):\n    return True\n")
    Path("seven.py").write_text("check_y = 7\n")
    assert co(*arguments) in (1, 2)
    err = capsys.readouterr().err
    assert words in " ".join(err.split()) and len(err.splitlines()) <= 5 and count() == 0


def test_two_cases_with_one_id_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    write(CASES[0], CASES[0])
    assert co("--check", "exact") == 2
    assert "cases.jsonl:2 has the id 'fr', as cases.jsonl:1 has" in capsys.readouterr().err
    write(*[{"prompt": "Paris", "expected": "Paris"}] * 2)
    assert co("--check", "exact", "-o", "out.json") == 0
    assert [case["id"] for case in results()["variants"][0]["cases"]] == ["Paris", "Paris (2)"]


def test_ctrl_c_ends_it_with_130_and_the_rest_is_taken_later() -> None:
    write(*({"prompt": f"slow {n}", "expected": f"slow {n}"} for n in range(100)))
    command = [sys.executable, "-m", "connectagent", "eval", "bot.py", "cases.jsonl", "--check", "exact", "-j", "2"]

    def reset() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    process = subprocess.Popen(
        [*command, "-o", "out.json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=reset
    )
    while process.poll() is None and count() < 4:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "interrupted" in err and "/100 done" in err and not out
    assert not Path("out.json").exists()
    before = count()
    write(*({"prompt": f"slow {n}", "expected": f"slow {n}"} for n in range(before)))
    assert co("--check", "exact", "-o", "out.json") == 0
    assert results()["variants"][0]["passed"] == before and count() - before <= 2
