"""`connectagent map`: prompts from a file, results into a file."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from terminals import terminal

from connectagent.cli.group import invoke
from connectagent.commands.written import lines_into
from connectagent.settings import overrides

SCRIPT = """
import time
from connectagent import Agent
from connectagent.data import LLMResponse, TokenUsage


class Model:
    model = "capitals"

    def complete(self, messages, tools=None):
        with open("calls", "a") as file:
            file.write("x")
        text = messages[-1]["content"]
        if text.startswith("slow"):
            time.sleep(0.1)
        if text.startswith("fail"):
            raise ValueError(text)
        return LLMResponse(text.upper(), usage=TokenUsage(10, 5, cost=0.01))


agent = Agent("caps", llm=Model())
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bot.py").write_text(SCRIPT)
    return tmp_path


def co(*arguments: str) -> int:
    before = dict(overrides)
    try:
        return invoke(["map", "bot.py", *arguments])
    finally:
        overrides.clear()
        overrides.update(before)


def results(path: str = "out.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def calls() -> int:
    return len(Path("calls").read_text()) if Path("calls").exists() else 0


def test_the_same_command_again_takes_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.txt").write_text("one\n\ntwo\nthree\n")
    assert co("p.txt", "-o", "out.jsonl", "-j", "2") == 0
    assert {r["prompt"]: r["result"] for r in results()} == {"one": "ONE", "two": "TWO", "three": "THREE"}
    assert "3/3 done" in capsys.readouterr().err and calls() == 3
    first = sorted(map(str, results()))
    Path("p.txt").write_text("one\nfour\ntwo\nthree\n")
    assert co("p.txt", "-o", "out.jsonl") == 0 and calls() == 4
    assert set(first) < set(map(str, results()))
    assert "4/4 done · 3 of them before" in capsys.readouterr().err
    assert co("p.txt", "--name", "other", "--quiet") == 0 and calls() == 8
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_fields_of_json_lines_and_csv_make_prompts() -> None:
    Path("p.jsonl").write_text('{"id": 7, "prompt": "one"}\n"two"\n')
    assert co("p.jsonl", "-o", "out.jsonl") == 0
    assert ("7", "one") in [(r["id"], r["prompt"]) for r in results()] and len(results()) == 2
    Path("t.csv").write_text('id,who,what\na,Ann,"one, two"\nb,Bob,three\n')
    assert co("t.csv", "--prompt", "{who} says {what}", "-o", "out.jsonl") == 0
    assert {r["id"]: r["result"] for r in results()} == {"a": "ANN SAYS ONE, TWO", "b": "BOB SAYS THREE"}


def test_a_field_has_any_name_and_value_and_a_cell_any_length() -> None:
    Path("t.csv").write_text(f'id,first name,e-mail\n,Ann,{"x" * 200_000}\n,Bob,b\n')
    assert co("t.csv", "--prompt", "{first name}: {e-mail}", "-o", "out.jsonl") == 0
    assert {len(r["result"]) for r in results()} == {200_005, 6} and all(len(r["id"]) == 12 for r in results())
    assert csv.field_size_limit() == 131_072
    Path("t.TSV").write_text('id\tprompt\n1\tone, "two"\n')
    assert co("t.TSV", "-o", "out.jsonl") == 0 and results()[0]["result"] == 'ONE, "TWO"'
    Path("t.jsonl").write_text('{"id": true, "tags": ["a", "ä"], "n": 2}\n')
    assert co("t.jsonl", "--prompt", 'As {"json": 1}: {tags} {n}', "-o", "out.jsonl") == 0
    [result] = results()
    assert (result["id"], result["prompt"]) == ("true", 'As {"json": 1}: ["a", "ä"] 2')


def test_standard_input_in_another_encoding_is_refused(folder: Path) -> None:
    command = [sys.executable, "-m", "connectagent", "map", "bot.py", "-"]
    done = subprocess.run(command, input=b"caf\xe9\n", capture_output=True, env={**os.environ, "PYTHONUTF8": "1"})
    assert done.returncode == 2 and b"standard input is not in UTF-8" in done.stderr and calls() == 0


def test_a_failure_is_listed_and_the_exit_code_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.txt").write_text("fail one\ntwo\n")
    assert co("p.txt", "-o", "out.jsonl") == 1
    err = capsys.readouterr().err
    assert "1 failed" in err and "ValueError: fail one; see connectagent log show" in err
    assert {r["status"] for r in results()} == {"error", "answered"}
    failed = next(r for r in results() if r["error"])
    assert failed["error"] == {"type": "ValueError", "message": "fail one"}


def test_limits_end_it(capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.txt").write_text("".join(f"prompt {n}\n" for n in range(20)))
    assert co("p.txt", "-j", "1", "--max-usd", "0.025", "-o", "out.jsonl") == 1
    assert len(results()) == 3 and "are spent" in capsys.readouterr().err
    assert co("p.txt", "--sample", "5", "--name", "s", "-o", "out.jsonl") == 0
    sample = {r["prompt"] for r in results()}
    assert len(sample) == 5 and co("p.txt", "--sample", "5", "--name", "s", "-o", "out.jsonl") == 0
    assert {r["prompt"] for r in results()} == sample


@pytest.mark.parametrize(
    ("name", "text", "arguments", "words"),
    [
        ("p.txt", "", (), "has no prompts; it takes a prompt a line"),
        ("p.csv", "id,prompt\n", (), "in .csv or .tsv a header and rows"),
        ("p.jsonl", "{", (), "p.jsonl:1 is not JSON"),
        ("p.jsonl", "[1]", (), "p.jsonl:1 is [1]; each line is a text or an object of its own"),
        ("p.json", '[\n{"prompt": "x"}\n]', (), "each line is a text or an object of its own"),
        ("p.jsonl", '{"prompt": ["x"]}', (), "the field 'prompt' is no text, but [\"x\"]"),
        ("p.jsonl", '{"prompt": " "}', (), "p.jsonl:1: the prompt is empty"),
        ("p.jsonl", '{"text": "x"}', ("--prompt", ""), "p.jsonl:1: the prompt is empty"),
        ("p.jsonl", '{"text": null}', ("--prompt", "Sort {text}"), "no field 'text'"),
        ("p.csv", "first name\nAnn\n", ("--prompt", "Hi {last name}"), "no field 'last name'"),
        ("p.csv", "id,prompt\n1,Hello, world\n", (), "p.csv:2 has 3 cells, and the header 2; a text with a separator"),
        ("p.csv", "id,prompt\n1,a\n2\n", (), "p.csv:3 has 1 cell, and the header 2"),
        ("p.csv", 'id,prompt\n1,"a\n2,b\n', (), "p.csv:3 is no row of a table: unexpected end of data"),
        ("p.jsonl", '{"id": 1, "prompt": "a"}\n{"id": "1", "prompt": "b"}', (), "has the id '1', as p.jsonl:1 has"),
        ("caf.txt", b"caf\xe9\n", (), "'caf.txt' is not in UTF-8; save it so"),
        ("p.jsonl", '{"text": "x"}', (), "no field 'prompt', but text"),
        ("p.jsonl", '{"text": "x"}', ("--prompt", "{words}"), "no field 'words'"),
        ("gone", None, (), "cannot be read: No such file"),
        ("bot.yp", None, (), "Did you mean 'bot.py'?"),
        ("p.txt", "one", ("-o", "no/such/out.jsonl"), "-o 'no/such/out.jsonl' cannot be written; name a file in a"),
        ("p.txt", "one", ("-o", "."), "-o '.' cannot be written; name a file"),
        ("p.txt", "one", ("-o", ""), "-o '' cannot be written; name a file"),
        ("p.txt", "one", ("-o", "./p.txt"), "-o './p.txt' would replace a file that this command needs"),
        ("p.txt", "one", ("-o", "bot.py"), "-o 'bot.py' would replace a file that this command needs"),
        ("p.txt", "one", ("--max-usd", "nan"), "'nan' is no number"),
        ("p.txt", "one", ("-j", "0"), "0 is not in the range"),
    ],
)
def test_a_mistake_is_named(
    name: str, text: str | bytes | None, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    assert co(name, *arguments) in (1, 2)
    err = capsys.readouterr().err
    assert words in err and len(err.splitlines()) <= 5 and calls() == 0


def test_ctrl_c_ends_it_with_130_and_the_rest_is_taken_later(folder: Path) -> None:
    Path("p.txt").write_text("".join(f"slow {n}\n" for n in range(200)))
    command = [sys.executable, "-m", "connectagent", "map", "bot.py", "p.txt", "-j", "2", "-o", "out.jsonl"]

    def reset() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=reset)
    while not Path("out.jsonl").exists() or not results():
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=30)[1]
    assert process.returncode == 130 and "interrupted" in err and "/200 done" in err
    before, done = calls(), len(results())
    Path("p.txt").write_text("".join(f"slow {n}\n" for n in range(done + 1)))
    assert co("p.txt", "-o", "out.jsonl", "-j", "4") == 0
    assert len(results()) == done + 1 and calls() - before <= 2


def test_agents_inside_show_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bot.py").write_text(
        "from connectagent import Agent\nfrom connectagent.testing import ScriptedLLM, call\n"
        "inner = Agent('inner', llm=ScriptedLLM('inner done'))\n"
        "agent = Agent('outer', [inner], llm=ScriptedLLM(call('inner', prompt='go'), 'outer done'))\n"
    )
    Path("p.txt").write_text("one\n")
    assert co("p.txt", "-o", "out.jsonl") == 0
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_typed_results_are_data_and_what_does_not_fit_is_told_in_a_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = SCRIPT.replace("import time\n", "import time\nfrom dataclasses import dataclass\n", 1)
    typed = typed.replace("text.upper()", "text.split(chr(10))[0]").replace(
        'agent = Agent("caps", llm=Model())',
        '@dataclass\nclass Price:\n    usd: int\n\nagent = Agent("caps", llm=Model(), output=Price, output_retries=0)',
    )
    (folder / "bot.py").write_text(typed)
    Path("p.txt").write_text('{"usd": 3}\n{"usd": "x"}\n')
    for _ in range(2):  # taken, then read
        assert co("p.txt", "-j", "1", "-o", "out.jsonl") == 1
        assert [one["result"] for one in results()] == [{"usd": 3}, None]
        told = capsys.readouterr().err.rstrip("\n").split("\n")
        assert "OutputError" in told[-1] and "see connectagent log show" in told[-1]


def test_what_waits_is_listed_with_the_command_that_decides_it(capsys: pytest.CaptureFixture[str]) -> None:
    Path("ask.py").write_text(
        "from connectagent import Pause, before_llm\n\n@before_llm\ndef ask(request):\n"
        "    if 'two' in str(request.messages):\n        raise Pause('is it true?')\n"
    )
    Path("prompts.txt").write_text("one\ntwo\n")
    assert co("prompts.txt", "-o", "out.jsonl", "-p", "./ask.py") == 0
    told = capsys.readouterr().err
    [waits] = [line for line in told.splitlines() if "waits: is it true?; connectagent resume .co/evals/" in line]
    assert "2/2 done · 1 waiting" in told
    assert re.search(r"-p \./ask\.py --approve 'T1/1/before_llm/wait:ask~[0-9a-f]{12}'$", waits)


def test_a_half_of_a_surrogate_pair_stops_no_run_and_is_read_again(capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.jsonl").write_text('{"id": "\\ud800", "prompt": "one \\ud800"}\n{"id": "b", "prompt": "two"}\n')
    for before in ("2/2 done", "2/2 done · 2 of them before"):
        assert co("p.jsonl", "-o", "out.jsonl") == 0 and calls() == 2
        assert before in capsys.readouterr().err
    assert {r["id"]: r["prompt"] for r in results()} == {"\ud800": "one \ud800", "b": "two"}


def test_a_full_disk_is_told_and_what_was_recorded_is_read_later(capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.txt").write_text("one\n")
    assert co("p.txt", "-o", "/dev/full") == 1
    told = capsys.readouterr().err
    assert "error: -o '/dev/full' cannot be written: No space left on device; what was recorded stays" in told
    assert co("p.txt", "-o", "out.jsonl") == 0 and calls() == 1


def test_two_commands_do_not_write_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.txt").write_text("one\n")
    with lines_into("-o", "out.jsonl") as write:
        write("first")
        assert co("p.txt", "-o", "out.jsonl") == 1 and calls() == 0
        write("second")
    assert "-o 'out.jsonl' is written by another command" in capsys.readouterr().err
    assert Path("out.jsonl").read_text() == "first\nsecond\n"
    assert co("p.txt", "-o", "out.jsonl") == 0 and len(results()) == 1


def test_ctrl_c_leaves_a_file_of_results_with_no_fewer_lines_than_it_had(folder: Path) -> None:
    Path("p.txt").write_text("".join(f"{n}\n" for n in range(60)))
    assert co("p.txt", "-o", "out.jsonl", "--quiet") == 0
    before = Path("out.jsonl").read_text()
    Path("more.txt").write_text("".join(f"slow {n}\n" for n in range(200)))
    command = [sys.executable, "-m", "connectagent", "map", "bot.py", "more.txt", "-j", "2", "-o", "out.jsonl"]
    asked = calls()

    def reset() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    for enough in (4, 70):  # together: the second command reads what the first one took
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=reset)
        while process.poll() is None and calls() < asked + enough:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=30)[1]
        assert process.returncode == 130
        if enough == 4:
            assert Path("out.jsonl").read_text() == before
            assert "-o 'out.jsonl' is as it was before; the same command writes all of it" in err
        else:
            assert len(results()) >= 60 and all(one["prompt"].startswith("slow") for one in results())
            assert "as it was" not in err


def test_an_error_of_something_else_is_no_error_of_the_file() -> None:
    Path("out.jsonl").write_text("one\n")
    with pytest.raises(ConnectionError), lines_into("-o", "out.jsonl") as write:
        raise ConnectionError("down")
    with lines_into("-o", "out.jsonl") as write:
        write("two")
        assert Path("out.jsonl").read_text() == "two\n"
    with lines_into("-o", "out.jsonl"):
        pass
    assert Path("out.jsonl").read_text() == ""  # the command has come to its end


def test_a_full_disk_is_told_before_anything_is_spent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(".")._replace(free=4096)
    monkeypatch.setattr("connectagent.commands.written.shutil.disk_usage", lambda path: usage)
    Path("p.txt").write_text("one\n")
    assert co("p.txt", "-o", "out.jsonl") == 1 and calls() == 0
    assert "-o 'out.jsonl' cannot be written: the disk is full; free some, or name another file" in (
        " ".join(capsys.readouterr().err.split())
    )


def test_results_that_are_there_are_written_where_a_limit_is_reached_before(capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.txt").write_text("fail one\ntwo\nthree\n")
    assert co("p.txt", "-o", "out.jsonl", "-j", "1") == 1 and len(results()) == 3
    Path("p.txt").write_text("fail one\ntwo\nfour\nthree\n")
    before = calls()
    assert co("p.txt", "-o", "out.jsonl", "-j", "1", "--max-failures", "0") == 1
    assert [r["prompt"] for r in results()] == ["fail one", "two", "three"] and calls() == before + 1
    assert co("p.txt", "-o", "out.jsonl", "--max-usd", "0") == 1
    assert sorted(r["prompt"] for r in results()) == ["three", "two"] and calls() == before + 1
    assert "stopped: $0.0000 of $0 are spent" in capsys.readouterr().err


@pytest.mark.parametrize("width", [80, 40])
def test_the_line_tells_what_runs_and_the_time_that_is_left_below_the_results(folder: Path, width: int) -> None:
    Path("p.txt").write_text("".join(f"slow {n}\n" for n in range(30)))
    with terminal("pty", folder, "map", "bot.py", "p.txt", "-j", "2", width=width) as shown:
        shown.until("2 running", timeout_s=20)
        line = next(one for one in shown.until(" left", timeout_s=20).split("\n") if one.endswith(" left"))
        assert shown.ended() == 0
        text = "".join(shown.lines())
    assert re.fullmatch(r". \d+/30 done · [12] running.* \S+ left", line) and len(line) == width, line
    assert [json.loads(one)["prompt"] for one in re.findall(r"\{.*?yaml\"\}", text)] and "done{" not in text
    assert len(re.findall(r"\{\"id\"", text)) == 30 and text.count("30/30 done") == 1


def test_a_changed_prompt_says_how_it_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    for prompt, code in (("one", 0), ("two", 1)):
        Path("p.jsonl").write_text(json.dumps({"id": "a", "prompt": prompt}))
        assert co("p.jsonl", "-o", "out.jsonl") == code
    assert "not 'two'; it has ended; its own prompt reads its result; with another id" in capsys.readouterr().err


def test_ctrl_c_while_a_person_is_asked_says_how_to_end_at_once(folder: Path) -> None:
    Path("ask.py").write_text(
        "from connectagent import before_llm\n\n@before_llm\ndef ask(request):\n    input('is it true? ')\n"
    )
    Path("p.txt").write_text("one\n")
    with terminal("pty", folder, "map", "bot.py", "p.txt", "-p", "./ask.py", "-o", "out.jsonl") as shown:
        shown.until("is it true?", timeout_s=20)
        shown.press("C-c")
        shown.until("stopping: waits for the steps of 1 turn; Ctrl-C again ends at once", timeout_s=20)
        shown.press("C-c")
        assert shown.ended() == 130
    assert calls() == 0


def test_the_line_says_that_the_provider_asks_to_wait() -> None:
    from connectagent import Agent
    from connectagent.agents.batch import Batch, BatchLimits
    from connectagent.commands.progress import Progress

    batch = Batch(Agent("a", model="offline"), ["x"], 1, None, BatchLimits(), {})
    progress, batch.running = Progress(2, batch), 1
    assert progress.text() == "0/2 done · 1 running"
    batch.gate.note({"type": "retrying", "status": 429, "retry_after_s": 90})
    assert re.fullmatch(r"0/2 done · 1 running · waits 1m(30|29)s for the provider", progress.text())
