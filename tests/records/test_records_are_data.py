"""A record is data: the script that it names is run only where the record is the project's own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import forked
import pytest

from connectagent.records.own import record_mark

ROOT = Path(__file__).parents[2]
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
id: "1"
mark: "%s"
model: open("ran", "w").close()
script: "%s"
turns: []
"""
NAMING = POLYGLOT.replace('open("ran", "w").close()', '"test/model"')  # a record, and Python that does nothing


def co(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(
        "-m", "connectagent", *arguments,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(folder)},
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


def name_script(record: Path, script: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a record name another script, with the user's mark: only the place of the script is wrong."""
    monkeypatch.setenv("HOME", str(project))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    text = record.read_text()
    id = re.findall(r'^id: "(.*)"$', text, re.MULTILINE)[0]
    text = re.sub(r"^script: .*$", f"script: {json.dumps(str(script))}", text, flags=re.MULTILINE)
    text = re.sub(r"^mark: .*$", f'mark: "{record_mark(id, str(script))}"', text, flags=re.MULTILINE)
    record.write_text(text)


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
    record.write_text(POLYGLOT % ("", str(record)))
    forked.run("bug.yaml", cwd=tmp_path, check=True)
    (tmp_path / "ran").unlink()
    done = co(tmp_path, *command, "bug.yaml")
    assert done.returncode in (1, 2) and "bug.yaml: not a record: line 4 " in done.stderr
    assert not (tmp_path / "ran").exists()
    record.write_text(NAMING % ("", str(record)))
    assert_refused(co(tmp_path, *command, "bug.yaml"), tmp_path, f"{command[0]} bug.yaml")


@pytest.mark.parametrize("command", COMMANDS)
def test_nor_is_it_among_the_own_records(command: list[str], project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = record_of(project)
    record.write_text(NAMING % ("", ""))
    name_script(record, record, project, monkeypatch)
    assert_refused(co(project, *command, str(record)), project, command[0])


@pytest.mark.parametrize("command", COMMANDS)
def test_another_name_of_the_record_is_the_record(
    command: list[str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, other = record_of(project), project / "bug.py"
    record.write_text(NAMING % ("", ""))
    name_script(record, other, project, monkeypatch)
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
def test_a_script_outside_of_the_project_is_not_run(
    command: list[str], by_link: bool, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, outside = record_of(project), project.parent / "outside.py"
    outside.write_text(MARK)
    named = project / "inside.py" if by_link else outside
    if by_link:
        named.symlink_to(outside)
    name_script(record, named, project, monkeypatch)
    assert_refused(co(project, *command, str(record)), project, command[0])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_script_anywhere_in_the_repository_is_run(
    command: list[str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.parent / ".git").mkdir()
    record, other = record_of(project), project.parent / "shop.py"
    other.write_text(SCRIPT)
    name_script(record, other, project, monkeypatch)
    assert co(project, *command, str(record)).returncode == 0
    assert (project / "ran").exists()


@pytest.mark.posix("tells no owner by a number")
@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_record_of_another_user_does_not_run_a_script(command: list[str], project: Path) -> None:
    os.chown(record_of(project), 12345, 12345)
    assert_refused(co(project, *command, str(record_of(project))), project, command[0])


def test_one_stranger_among_many_records_is_an_error_of_its_own(project: Path) -> None:
    record = record_of(project)
    record.with_name("shop_2020-01-01T00-00-00.yaml").write_text(NAMING % ("", str(record)))
    done = co(project, "replay", "--all", "--json")
    own, other = json.loads(done.stdout)
    assert own["same"] and "which is not run by itself" in other["error"]


# -- the user's mark -------------------------------------------------------------------------------


@pytest.fixture
def unpacked(project: Path) -> Path:
    """The project as a stranger would give it away: with its records, without the state folder of who made it."""
    (project / ".local" / "state" / "connectagent" / "key").unlink()
    return project


@pytest.mark.parametrize("command", COMMANDS)
def test_a_strangers_record_and_script_in_one_folder_do_not_run(command: list[str], unpacked: Path) -> None:
    done = co(unpacked, *command, str(record_of(unpacked)))
    assert_refused(done, unpacked, command[0])
    assert "does not have your mark" in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_own_records_beside_it_run_without_a_question(command: list[str], unpacked: Path) -> None:
    strange = record_of(unpacked)
    assert co(unpacked, "run", "shop.py", "Hi").returncode == 0
    (unpacked / "ran").unlink()
    (own,) = [path for path in unpacked.glob(".co/evals/*.yaml") if path != strange]
    assert_refused(co(unpacked, *command, str(strange)), unpacked, command[0])
    assert co(unpacked, *command, str(own)).returncode == 0 and (unpacked / "ran").exists()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("lie", ['mark: ""', 'mark: "MARK"', "mark: null", "mark: true", "mark: [1]", ""])
def test_a_mark_of_another_record_or_none_is_no_mark(command: list[str], lie: str, project: Path) -> None:
    record = record_of(project)
    other = re.findall(r'^mark: "(.+)"$', record.read_text(), re.MULTILINE)[0]
    text = re.sub(r"^mark: .*\n", lie.replace("MARK", other) + "\n" * bool(lie), record.read_text(), flags=re.MULTILINE)
    record.write_text(re.sub(r'^id: ".*"$', 'id: "0"', text, flags=re.MULTILINE))
    assert_refused(co(project, *command, str(record)), project, command[0])


@pytest.mark.posix("has no modes of files")
def test_the_key_is_private_and_one_that_others_could_read_is_not_used(project: Path) -> None:
    key = project / ".local" / "state" / "connectagent" / "key"
    assert len(key.read_bytes()) == 32
    assert os.name != "posix" or key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o644)
    assert_refused(co(project, "resume", str(record_of(project))), project, "resume")


def test_a_fork_is_as_much_the_users_as_the_original(project: Path) -> None:
    evals, first = project / ".co" / "evals", record_of(project)
    assert co(project, "resume", str(first), "Again.", "--fork").returncode == 0
    (fork,) = [path for path in evals.iterdir() if path != first and path.suffix == ".yaml"]
    (project / "ran").unlink()
    assert co(project, "resume", str(fork), "And again.").returncode == 0 and (project / "ran").exists()
    (project / "ran").unlink()
    first.write_text(re.sub(r"^mark: .*$", 'mark: "0"', first.read_text(), flags=re.MULTILINE))
    fork.unlink()
    assert co(project, "resume", str(first), "Again.", "--fork", "--script", "shop.py").returncode == 0
    (fork,) = [path for path in evals.iterdir() if path != first and path.suffix == ".yaml"]
    (project / "ran").unlink()
    assert_refused(co(project, "resume", str(fork)), project, "resume")


def test_without_a_state_folder_records_are_written_and_scripts_are_named(project: Path) -> None:
    home = project / ".local"
    shutil.rmtree(home)
    home.write_text("no folder")
    record_of(project).unlink()
    assert co(project, "run", "shop.py", "Hi").returncode == 0
    (project / "ran").unlink()
    assert_refused(co(project, "resume", str(record_of(project))), project, "resume")
    assert co(project, "resume", str(record_of(project)), "Again.", "--script", "shop.py").returncode == 0
