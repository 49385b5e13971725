"""`connectagent demo`: the first thing that a stranger runs, in whatever folder that is."""

import os
import re
import shlex
import time
from pathlib import Path

import forked
import pytest
import yaml

from connectagent.commands.demo_agent import MOST_FILES, count_lines, list_files
from connectagent.hooks.specs import EVENTS

ROOT = Path(__file__).parents[2]


def demo(folder, **variables):
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(folder), **variables}
    return forked.run("-m", "connectagent", "demo", cwd=folder, env=environment, timeout=60)


def files_in(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and ".co" not in path.parts}


def test_every_event_is_shown_as_it_fires(tmp_path):
    (tmp_path / "story.txt").write_text("one\ntwo\nthree\n")
    done = demo(tmp_path)
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"^(\w+): ", done.stdout, re.MULTILINE)
    assert set(EVENTS) <= set(shown)
    assert shown.index("after_user_input") < shown.index("before_llm") < shown.index("before_tools")
    assert [name for name in shown if name in EVENTS][-1] == "on_complete"
    assert "story.txt has 3 lines" in done.stdout
    assert done.stderr == ""


def test_it_ends_with_the_path_of_a_record_that_can_be_read(tmp_path):
    done = demo(tmp_path)
    path = re.search(r"^What happened, every step of it: (.*)$", done.stdout, re.MULTILINE).group(1)
    record = yaml.safe_load((tmp_path / path).read_text())
    assert record["agent"] == "demo"
    assert record["turns"][0]["status"] == "answered"
    assert {"list_files", "write_note"} <= set(record["turns"][0]["tools_called"])
    assert "hooks on_error" in done.stdout.split("Try next:")[1]


def test_it_needs_no_key_and_asks_no_model_even_where_one_is_set(tmp_path):
    done = demo(tmp_path, OPENAI_API_KEY="sk-never-used", CONNECTAGENT_MODEL="gpt-5")
    assert done.returncode == 0
    assert "go to offline" in done.stdout
    assert "gpt-5" not in done.stdout


def test_no_file_of_the_folder_is_touched(tmp_path):
    for name in ("a.txt", "note.md", "with space.md", 'quo"te.txt', "line\nbreak.txt", "\x1b[31mred.txt"):
        (tmp_path / name).write_text("x\n")
    before = files_in(tmp_path)
    done = demo(tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path: text for path, text in files_in(tmp_path).items() if ".local" not in path.parts} == before
    assert "\x1b" not in done.stdout


def test_two_demos_in_one_second_write_two_notes(tmp_path):
    demo(tmp_path)
    demo(tmp_path)
    assert len(list(tmp_path.glob(".co/notes/*.md"))) == 2
    assert len(list(tmp_path.glob(".co/evals/*.yaml"))) == 2


def test_an_empty_folder_is_enough(tmp_path):
    done = demo(tmp_path)
    assert done.returncode == 0
    assert "write_note" in done.stdout


def test_where_nothing_can_be_written_it_says_so_and_goes_on(tmp_path):
    blocked = tmp_path / "file"
    blocked.touch()
    done = demo(tmp_path, CONNECTAGENT_DIR=str(blocked / "co"))
    assert done.returncode == 0, done.stderr
    assert "could not be written here" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_huge_folder_and_a_huge_file_take_no_longer(tmp_path):
    for number in range(3_000):
        (tmp_path / f"file{number}.txt").touch()
    with (tmp_path / "image.iso").open("wb") as file:
        file.truncate(50_000_000_000)  # sparse: it takes no room
    started = time.perf_counter()
    done = demo(tmp_path)
    assert done.returncode == 0, done.stderr
    assert time.perf_counter() - started < 20
    listed = list_files(str(tmp_path))
    assert len(listed) == MOST_FILES + 1
    assert listed[-1] == f"(and more than these {MOST_FILES})"
    assert "at least" in count_lines(str(tmp_path / "image.iso"))


def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="is not a file"):
        count_lines(str(tmp_path / "pipe"))
    assert list_files(str(tmp_path)) == []


@pytest.mark.parametrize(("text", "lines"), [("", 0), ("a", 1), ("a\n", 1), ("a\nb", 2), ("a\nb\n", 2)])
def test_lines_are_counted_as_people_count_them(text, lines, tmp_path):
    path = tmp_path / "f.txt"
    path.write_text(text)
    assert count_lines(str(path)) == f"{path} has {lines} lines"


def test_a_demo_is_replayed_with_its_plugins(tmp_path):
    assert demo(tmp_path).returncode == 0
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    before = files_in(tmp_path)
    done = forked.run("-m", "connectagent", "replay", "last", cwd=tmp_path, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\nsame: the same requests, the same results\n")
    assert files_in(tmp_path) == before


def test_two_commands_of_the_readme_find_the_plugin_that_made_it_write_a_note(tmp_path):
    assert demo(tmp_path).returncode == 0
    readme = (ROOT / "README.md").read_text()
    (line,) = re.findall(r"^\.venv/bin/connectagent (bisect demo .*?) *#", readme, re.MULTILINE)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    before = files_in(tmp_path)
    done = forked.run("-m", "connectagent", *shlex.split(line), cwd=tmp_path, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "needed:    reminder (after_user_input, " in done.stdout and "turn off:  reminder " in done.stdout
    assert '"Write a note.", message 0, added by Reminder.remind' in done.stdout
    assert files_in(tmp_path) == before
