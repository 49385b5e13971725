"""A record with one fault is read on, or refused with the file and the line; no tool runs a second time.

A sample of the mutations; `CONNECTAGENT_MUTATIONS=all` for all of them, through `agent.resume`, and
`CONNECTAGENT_MUTATIONS=commands` for some hundred more through each command.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
from pathlib import Path

import mutated_records
import pytest
from mutated_records import RAN, Made, Mutation, agent, calls, mutations
from record_commands import SCRIPT, arguments, commands

from connectagent import Paused
from connectagent.cli import main
from connectagent.cli.group import cli
from connectagent.errors import ConfigError
from connectagent.settings import overrides

WANTED = os.environ.get("CONNECTAGENT_MUTATIONS", "")
SHARE = 1.0 if WANTED == "all" else 0.02
OF_EACH = 60 if WANTED == "commands" else 3
OWN = (OSError, ValueError)  # what the recorded turns failed with; some are raised again
HANDLERS = ("KeyError", "TypeError")  # of this module's handlers, where the state that they wrote has other values
FORMS = [  # options that change what is read; each command by itself comes from the tree of commands
    *(["log", "show", "RECORD", *more] for more in (["--full"], ["--json"])),
    *(["log", "export", "RECORD", "--to", form] for form in ("md", "jsonl", "html")),
    *(["log", "tail", "RECORD", "-n", "3"], ["log", "request", "RECORD", "--json", "--full"]),
    *([name, "RECORD", *more] for name in ("blame", "bill") for more in ([], ["--json"])),
    *(["replay", "RECORD", "--json"], ["replay", "RECORD", SCRIPT, "--live-tools"], ["report", "RECORD"]),
    *(["resume", "RECORD", "--script", SCRIPT, *more] for more in (["--fork"], ["--from", "1"])),
]
COMMANDS = [*FORMS, *map(list, commands(cli))]
OWN_SCRIPT = "from mutated_records import agent as make\nagent = make()\n"


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("mutated"))
    try:
        return mutated_records.records()
    finally:
        os.chdir(before)


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def sample(made: Made, share: float, seed: int) -> list[Mutation]:
    rng = random.Random(seed)
    return [one for one in mutations(made.text) if rng.random() < share]


def why_not_clear(error: ConfigError) -> str | None:
    """What is wrong with an error about odd values: it names the file and a line."""
    text = str(error)
    if "values that no record has" in text and not re.search(r"odd\.yaml: .*line \d+: ", text):
        return f"no line is named: {text}"
    return None if "odd.yaml" in text else f"no file is named: {text}"


def resumed(made: Made, one: Mutation) -> str | None:
    """Resume a mutated record; what goes wrong, or None."""
    Path("odd.yaml").write_text(one.text)
    RAN.clear()
    mine = agent()
    wrong = None
    try:
        with contextlib.suppress(Paused):
            mine.resume("odd.yaml")
    except ConfigError as error:
        wrong = why_not_clear(error)
    except Exception as error:
        is_own = isinstance(error, OWN) and str(error) in ("no", "gone")
        in_state = type(error).__name__ in HANDLERS and "delta." in one.what
        wrong = None if is_own or in_state else f"{type(error).__name__}: {error}"
    finally:
        mine.close()
    is_lost = one.what.endswith(" gone") and '"type": "began"' in one.line and "," not in one.what
    twice = [n for n in RAN if n in made.done or RAN.count(n) > 1]
    if twice and not is_lost:  # a line that is not there tells nobody that the tool began
        wrong = f"ran twice: {twice}"
    return None if wrong is None else f"{one.what}: {wrong}; {one.line[:200]}"


@pytest.mark.parametrize("shape", mutated_records.SHAPES)
def test_a_mutated_record_is_resumed_or_refused_with_its_line(shape: str, known: dict[str, Made]) -> None:
    made = known[shape]
    tried = sample(made, SHARE, 5)
    assert len(tried) > 10
    assert [wrong for one in tried if (wrong := resumed(made, one))] == []


def told_of(command: list[str], one: Mutation) -> str | None:
    """Run a command on a mutated record; what goes wrong, or None."""
    Path("odd.yaml").write_text(one.text)
    out, err, before = io.StringIO(), io.StringIO(), dict(overrides)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments(tuple(command), "odd.yaml"))
    overrides.clear()
    overrides.update(before)
    told = err.getvalue()
    is_clear = "values that no record has" not in told or re.search(r"odd\.yaml: .*line \d+: ", told)
    error = re.search(r"^error: ([A-Z]\w+(?:Error|Exception)): (.*)", told, re.MULTILINE)
    # A resumed turn raises its own error again, and handlers of the script may fail on a state of another form.
    is_own = error is not None and SCRIPT in command and (error[2] in ("no", "gone") or "delta." in one.what)
    is_raw = "Traceback" in told or (error is not None and not is_own)
    if is_raw or not is_clear or code not in (0, 1, 2, 75):
        return f"{one.what}: {code} {told[-300:]}; {one.line[:200]}"
    return None


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_reads_a_mutated_record_or_names_the_line(command: list[str], known: dict[str, Made]) -> None:
    Path(SCRIPT).write_text(OWN_SCRIPT)
    wrong = []
    for number, made in enumerate(known.values()):
        tried = list(mutations(made.text))
        rng = random.Random(f"{number} {command}")
        wrong += [why for one in rng.sample(tried, OF_EACH) if (why := told_of(command, one))]
    assert wrong == []


def test_every_command_reads_a_mutated_report_or_names_the_line(known: dict[str, Made]) -> None:
    """A report has of each entry only what is needed to show the failure."""
    wrong = []
    for name in ("approved", "failed", "closed"):
        Path("whole.yaml").write_text(known[name].text)
        assert main(["report", "whole.yaml", "--bad", "calls pay", "-o", "bug.yaml"]) == 0
        tried = list(mutations(Path("bug.yaml").read_text()))
        Path("bug.yaml").unlink()
        for one in random.Random(name).sample(tried, OF_EACH * 2):
            for command in (["replay", "RECORD"], ["replay", "RECORD", "--json"], ["report", "RECORD"]):
                wrong += [why] if (why := told_of(command, one)) else []
    assert wrong == []


SAID = [  # a mutation of one line of the open turn, and what is said of it
    ('{"type": "began", "id": "T1/2/c1/tool1"', '{"id": "T1/2/c1/tool1"', "it has no 'type'"),
    ('"type": "began", "id": "T1/2/c1/tool1"', '"type": "x", "id": "T1/2/c1/tool1"', "it is about T1/2/c1/tool1, and"),
    ('"type": "began", "id": "T1/2/c1/tool1"', '"type": "began", "id": 7', "'id' is no place in a turn"),
    ('  - {"type": "began", "id": "T1/2/c1/tool1"', "  - [7]\n" + '  - {"type": "x"', "it is no mapping"),
    ('"delta": {"asked": 2}', '"delta": 7', "'delta' is not a mapping"),
    ('"tool_calls": [{"id": "c13", "name": "pay"', '"tool_calls": [{"id": "c13"', "'tool_calls' is not of the form"),
]


@pytest.mark.parametrize("number", range(len(SAID)))
def test_the_line_is_named_with_what_is_odd_about_it(number: int, known: dict[str, Made]) -> None:
    old, new, says = SAID[number]
    text = known["killed in a tool"].text
    assert text.count(old) == 1
    line = text[: text.index(old)].count("\n") + 1
    Path("odd.yaml").write_text(text.replace(old, new))
    RAN.clear()
    with pytest.raises(ConfigError, match=rf"odd\.yaml: .*: line {line}: {re.escape(says)}"):
        agent().resume("odd.yaml")
    assert RAN == []
    assert Path("odd.yaml").read_text() == text.replace(old, new), "nothing is written into it"


def test_a_turn_without_its_first_line_is_not_begun_anew(known: dict[str, Made]) -> None:
    lines = known["killed in a tool"].text.splitlines(keepends=True)
    kept = [line for line in lines if '"user_input"' not in line]
    Path("odd.yaml").write_text("".join(kept))
    at = next(number for number, line in enumerate(kept, 1) if '"id": "T1/1/' in line)
    RAN.clear()
    from connectagent.testing import ScriptedLLM

    with pytest.raises(ConfigError, match=f"line {at} is about turn 1, whose 'user_input' is missing"):
        agent(llm=ScriptedLLM(calls(6), "Done.")).resume("odd.yaml")
    assert RAN == []


def test_the_whole_records_fit(known: dict[str, Made]) -> None:
    from connectagent.records.misfits import misfit

    for made in known.values():
        lines = [json.loads(line[4:]) for line in made.text.splitlines() if line.startswith("  - ")]
        assert [why for line in lines if (why := misfit(line))] == []


def test_a_line_that_could_not_be_recorded_is_named(known: dict[str, Made], capsys: pytest.CaptureFixture[str]) -> None:
    text = known["closed"].text
    line = next(line for line in text.splitlines() if '"type": "tool_execution"' in line)
    lost = '  - {"type": "tool_execution", "not_recorded": "RuntimeError: no"}'
    Path("odd.yaml").write_text(text.replace(line, lost))
    number = text[: text.index(line)].count("\n") + 1
    assert main(["replay", "odd.yaml"]) == 2
    assert f"line {number}: it could not be recorded: 'RuntimeError: no'" in capsys.readouterr().err


AGAIN = ["resume", "RECORD", "--script", SCRIPT, "--from", "1"]
ELSEWHERE = [  # outside of what a command looks at first: the shape, what is replaced, the command, the key that is odd
    ("closed", '"prompt": "Hello"', '"prompt": null', AGAIN, "prompt"),
    ("closed", '"plugin": "notes"', '"plugin": []', ["log", "diff", "RECORD", "whole.yaml"], "by"),
    ("closed", '"plugin": "notes"', '"plugin": []', ["log", "diff", "whole.yaml", "RECORD"], "by"),
    ("killed in a model", '"agent": "inner", ', "", ["replay", "RECORD"], "agent"),
]


@pytest.mark.parametrize("number", range(len(ELSEWHERE)))
def test_the_line_is_named_wherever_it_is(
    number: int, known: dict[str, Made], capsys: pytest.CaptureFixture[str]
) -> None:
    shape, old, new, command, key = ELSEWHERE[number]
    text = known[shape].text
    Path(SCRIPT).write_text(OWN_SCRIPT)
    Path("whole.yaml").write_text(text)
    Path("odd.yaml").write_text(text.replace(old, new, 1))
    line = text[: text.index(old)].count("\n") + 1
    assert main(arguments(tuple(command), "odd.yaml")) in (1, 2)
    assert re.search(rf"odd\.yaml: .*: line {line}: .*'{key}'", capsys.readouterr().err)
