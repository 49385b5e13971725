"""A record is data: the script that it names is run only where the record is the project's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMMANDS = [["replay"], ["replay", "--json"], ["resume"]]
MARK = "open('ran', 'w').close()\n"
SCRIPT = (
    MARK
    + """
from connectagent import Agent
from connectagent.testing import ScriptedLLM

agent = Agent("shop", llm=ScriptedLLM("Hello."), quiet=True)
"""
)
# Both YAML and a program in Python.
POLYGLOT = """agent: "shop"
model: open("ran", "w").close()
script: "%s"
turns: []
"""
NAMING = POLYGLOT.replace('open("ran", "w").close()', '"test/model"')  # a record, and Python that does nothing


def co(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "connectagent", *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a script that has run once, and that leaves a file `ran` when its code runs."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "shop.py").write_text(SCRIPT)
    assert co(folder, "run", "shop.py", "Hi").returncode == 0
    (folder / "ran").unlink()
    return folder


def record_of(project: Path) -> Path:
    (path,) = project.glob(".co/evals/*.yaml")
    return path


def assert_refused(done: subprocess.CompletedProcess[str], folder: Path, command: str) -> None:
    assert not (folder / "ran").exists()
    assert done.returncode in (1, 2), done.stdout
    assert f"If you trust that script: connectagent {command}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_the_own_record_runs_its_script(command: list[str], project: Path) -> None:
    assert co(project, *command, str(record_of(project))).returncode == 0
    assert (project / "ran").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_record_that_is_python_too_is_not_run(command: list[str], tmp_path: Path) -> None:
    record = tmp_path / "bug.yaml"
    record.write_text(POLYGLOT % str(record))
    subprocess.run([sys.executable, "bug.yaml"], cwd=tmp_path, check=True)
    (tmp_path / "ran").unlink()
    done = co(tmp_path, *command, "bug.yaml")
    assert done.returncode in (1, 2) and "bug.yaml: not a record: line 2 " in done.stderr
    assert not (tmp_path / "ran").exists()
    record.write_text(NAMING % str(record))
    assert_refused(co(tmp_path, *command, "bug.yaml"), tmp_path, f"{command[0]} bug.yaml")


@pytest.mark.parametrize("command", COMMANDS)
def test_nor_is_it_among_the_own_records(command: list[str], project: Path) -> None:
    record = record_of(project)
    record.write_text(NAMING % str(record))
    assert_refused(co(project, *command, str(record)), project, command[0])


@pytest.mark.parametrize("command", COMMANDS)
def test_another_name_of_the_record_is_the_record(command: list[str], project: Path) -> None:
    record, other = record_of(project), project / "bug.py"
    record.write_text(NAMING % str(other))
    os.link(record, other)
    assert_refused(co(project, *command, str(record)), project, command[0])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_record_from_elsewhere_does_not_run_a_script(command: list[str], project: Path) -> None:
    brought = project / "brought.yaml"
    record_of(project).rename(brought)
    done = co(project, *command, "brought.yaml")
    assert_refused(done, project, f"{command[0]} brought.yaml {'--script ' if command[0] == 'resume' else ''}shop.py")
    told = done.stderr.partition("If you trust that script: connectagent ")[2].splitlines()[0].split()
    assert co(project, *told).returncode == 0
    assert (project / "ran").exists()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("by_link", [False, True], ids=["there", "by a link"])
def test_a_script_outside_of_the_project_is_not_run(command: list[str], by_link: bool, project: Path) -> None:
    record, outside = record_of(project), project.parent / "outside.py"
    outside.write_text(MARK)
    named = project / "inside.py" if by_link else outside
    if by_link:
        named.symlink_to(outside)
    record.write_text(record.read_text().replace(str(project / "shop.py"), str(named)))
    assert_refused(co(project, *command, str(record)), project, command[0])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_script_anywhere_in_the_repository_is_run(command: list[str], project: Path) -> None:
    (project.parent / ".git").mkdir()
    record, other = record_of(project), project.parent / "shop.py"
    other.write_text(SCRIPT)
    record.write_text(record.read_text().replace(str(project / "shop.py"), str(other)))
    assert co(project, *command, str(record)).returncode == 0
    assert (project / "ran").exists()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_record_of_another_user_does_not_run_a_script(command: list[str], project: Path) -> None:
    os.chown(record_of(project), 12345, 12345)
    assert_refused(co(project, *command, str(record_of(project))), project, command[0])


def test_one_stranger_among_many_records_is_an_error_of_its_own(project: Path) -> None:
    record = record_of(project)
    record.with_name("shop_2020-01-01T00-00-00.yaml").write_text(NAMING % str(record))
    done = co(project, "replay", "--all", "--json")
    own, other = json.loads(done.stdout)
    assert own["same"] and "which is not run by itself" in other["error"]
