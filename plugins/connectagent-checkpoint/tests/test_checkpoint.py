"""Snapshots hold the folder byte for byte, the user's own git does not notice, and a session takes the folder back."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from connectagent_checkpoint import Checkpoint, CheckpointError, Store
from pytest_connectagent import AgentTester

from connectagent import Agent, Pause, Paused, PluginWarning, ToolRejected, before_each_tool, tool, xray
from connectagent.testing import ScriptedLLM, call, replayed


@pytest.fixture(autouse=True)
def folder(co_dir: Path) -> Path:
    """The current folder, with one file."""
    here = Path.cwd()
    (here / "a.txt").write_text("0")
    return here


def write(name: str, text: str) -> str:
    """Write a file."""
    Path(name).write_text(text)
    return "written"


def remove(name: str) -> str:
    """Remove a file."""
    Path(name).unlink()
    return "removed"


@tool(read_only=True)
def read(name: str) -> str:
    """Read a file."""
    return Path(name).read_text()


def made(*script: Any, plugins: Any = (), **options: Any) -> Agent:
    checkpoint = options.pop("checkpoint", None) or Checkpoint()
    tools = options.pop("tools", [write, remove, read])
    return Agent("main", tools, llm=ScriptedLLM(*script), plugins=[checkpoint, *plugins], quiet=True, **options)


def store(**limits: Any) -> Store:
    return Store(Path.cwd(), Path.cwd() / ".co" / "checkpoints", **limits)


def files() -> dict[str, bytes]:
    """The files of the folder, without those of connectagent and git."""
    paths = [path for path in Path().rglob("*") if path.is_file() and path.parts[0] not in (".co", ".git")]
    return {str(path): path.read_bytes() for path in paths}


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


# -- when snapshots are taken --------------------------------------------------------------------


def test_it_keeps_the_rules_on_every_path(agenttester: AgentTester) -> None:
    agenttester.check(Checkpoint, changes={"trace?", "outside?"}, limit_s=30)


def test_a_snapshot_is_taken_before_each_tool_that_writes() -> None:
    script = [call("read", name="a.txt"), call("write", name="a.txt", text="1"), call("write", name="b", text="2")]
    agent = made(*script, "Done.")
    agent.input("Go.")
    first, second = store().snapshots()
    assert first.label == f"main {agent.session['id']} turn 1: before write"
    noted = [entry["commit"] for entry in agent.session["trace"] if entry["type"] == "checkpoint"]
    assert noted == [first.commit, second.commit]
    store().restore(second.commit)
    assert files() == {"a.txt": b"1"}
    store().restore(first.commit)
    assert files() == {"a.txt": b"0"}


def test_an_unchanged_folder_is_kept_once() -> None:
    made(*[call("remove", name="none")] * 3, "Done.").input("Go.")
    assert len(store().snapshots()) == 1


def test_calls_that_are_not_run_and_replays_take_none() -> None:
    @before_each_tool
    def guard() -> None:
        raise ToolRejected("no")

    made(call("write", name="a", text=""), call("nope"), "Done.", plugins=[guard]).input("Go.")
    assert store().snapshots() == []
    agent = made(call("write", name="b", text="2"), "Done.")
    agent.input("Go.")
    assert agent.record is not None
    kept = store().snapshots()
    Path("c").write_text("3")
    assert replayed(agent.record, agent=made()).same
    assert store().snapshots() == kept


def test_agents_inside_and_parallel_calls_share_the_snapshots() -> None:
    child = Agent("child", [write], llm=ScriptedLLM(call("write", name="c", text="3"), "Done."), quiet=True)
    calls = [call("write", name="b", text="2"), call("child", prompt="Go."), call("write", name="d", text="4")]
    made(calls, "Done.", tools=[write, child], parallel_tools=3).input("Go.")
    assert set(files()) == {"a.txt", "b", "c", "d"}
    first, *more = store().snapshots()
    assert more
    store().restore(first.commit)
    assert files() == {"a.txt": b"0"}


# -- what they hold ------------------------------------------------------------------------------


def test_files_are_kept_byte_for_byte() -> None:
    Path(".gitattributes").write_text("* text eol=crlf ident\n*.u working-tree-encoding=UTF-16\n")
    Path("sub").mkdir()
    contents = {"crlf": b"a\r\nb\n$Id$\r\n", "sub/ü \n.txt": b"\x00\xff", "-x": b"", "t.u": b"plain"}
    for name, data in contents.items():
        Path(name).write_bytes(data)
    Path("link").symlink_to("/etc")
    Path("crlf").chmod(0o755)
    before = files()
    store().take("all")
    for name in contents:
        Path(name).unlink()
    Path("link").unlink()
    Path("sub").rmdir()
    Path("sub").write_text("a file now")
    Path("new").mkdir()
    Path("new/file").write_text("new")
    store().restore("last")
    assert files() == before
    assert os.readlink("link") == "/etc" and os.access("crlf", os.X_OK)
    assert not Path("new").exists()


def test_a_restore_can_be_undone() -> None:
    first = store().take("first")
    Path("a.txt").write_text("mine")
    undo = store().restore(first)
    assert files() == {"a.txt": b"0"}
    store().restore(undo)
    assert files() == {"a.txt": b"mine"}


def test_ignored_and_large_files_are_left_out_and_left_alone() -> None:
    Path(".gitignore").write_text("*.log\n")
    Path("x.log").write_text("log")
    Path("large").write_bytes(b"x" * 2_000)
    small = store(max_file_mb=0.001)
    first = small.take("first")
    assert "x.log" not in small.diff("last")
    Path("x.log").write_text("more")
    Path("large").write_bytes(b"y" * 2_000)
    Path("a.txt").write_text("1")
    small.restore(first)
    assert files() == {".gitignore": b"*.log\n", "x.log": b"more", "large": b"y" * 2_000, "a.txt": b"0"}


def test_a_file_that_no_snapshot_holds_is_not_overwritten() -> None:
    small = store(max_file_mb=0.001)
    first = small.take("first")
    Path("a.txt").write_bytes(b"x" * 2_000)
    with pytest.raises(CheckpointError, match=r"a\.txt would be overwritten"):
        small.restore(first)
    assert files() == {"a.txt": b"x" * 2_000}


@pytest.mark.parametrize("place", ["a.txt/x.log", "sub", "a.txt/sub/x.log"])
def test_neither_is_one_in_place_of_a_folder_or_in_a_folder_in_place_of_a_file(place: str) -> None:
    Path("sub").mkdir()
    Path("sub/file").write_text("in")
    Path(".gitignore").write_text("*.log\n")
    first = store().take("first")
    Path("sub/file").unlink()
    Path("sub").rmdir()
    Path("a.txt").unlink()
    Path(place).parent.mkdir(parents=True, exist_ok=True)
    Path(place).write_bytes(b"x" * 2_000)
    now = files()
    with pytest.raises(CheckpointError, match=f"{place} would be overwritten"):
        store(max_file_mb=0.001).restore(first)
    assert files() == now


def test_nothing_is_written_through_a_link_that_leads_out(folder: Path) -> None:
    Path("sub").mkdir()
    Path("sub/file").write_text("in")
    first = store().take("first")
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "file").write_text("out")
    Path("sub/file").unlink()
    Path("sub").rmdir()
    Path("sub").symlink_to(outside)
    store().restore(first)
    assert (outside / "file").read_text() == "out"
    assert files()["sub/file"] == b"in" and not Path("sub").is_symlink()


def test_a_folder_that_is_too_large_gets_no_snapshot_and_the_turn_goes_on() -> None:
    Path("large").write_bytes(b"x" * 2_000)
    agent = made(call("write", name="b", text="2"), "Done.", checkpoint=Checkpoint(max_mb=0.001))
    with pytest.warns(PluginWarning, match=r"no snapshot was taken: .* over max_mb=0\.001"):
        assert agent.input("Go.") == "Done."
    assert files()["b"] == b"2"


def test_without_git_the_turn_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.warns(PluginWarning, match="git is not installed"):
        assert made(call("write", name="b", text="2"), "Done.").input("Go.") == "Done."


def test_the_oldest_snapshots_are_removed() -> None:
    few = store(keep=3)
    for number in range(8):
        Path("a.txt").write_text(str(number))
        few.take(str(number))
    labels = [one.label for one in few.snapshots()]
    assert labels == ["5", "6", "7"]
    few.restore(few.snapshots()[0].commit)
    assert files() == {"a.txt": b"5"}


# -- the user's own git --------------------------------------------------------------------------


def test_the_users_repository_hooks_index_and_settings_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    git("init", "-q")
    hook = Path(".git/hooks/pre-commit")
    hook.parent.mkdir(exist_ok=True)
    for name in ("pre-commit", "post-checkout", "post-index-change", "reference-transaction"):
        (hook.parent / name).write_text("#!/bin/sh\ntouch ran\n")
        (hook.parent / name).chmod(0o755)
    git("add", "a.txt")
    Path("ran").unlink(missing_ok=True)
    own = {path: path.read_bytes() for path in Path(".git").rglob("*") if path.is_file()}
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.setenv(name, str(Path(".git").resolve() / ("index" if "INDEX" in name else "")))
    first = store().take("first")
    Path("a.txt").write_text("1")
    store().restore(first)
    assert {path: path.read_bytes() for path in Path(".git").rglob("*") if path.is_file()} == own
    assert files() == {"a.txt": b"0"}


def test_a_repository_that_a_folder_brings_along_is_not_taken_for_the_plugins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git runs what its configuration says, such as a `textconv`; a stranger can guess a path, and no key."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "stranger"))
    guessed = store().repository
    own = {}
    for name in ("mine", "other"):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / name))
        own[name] = store().repository
    assert len({guessed, *own.values()}) == 3 and store().repository == own["other"]


@pytest.mark.parametrize("linked", [False, True])
def test_a_configuration_that_was_changed_is_not_used(linked: bool, tmp_path: Path) -> None:
    store().take("first")
    config, elsewhere = store().repository / "config", tmp_path / "elsewhere"
    runs = config.read_text() + f'[diff "x"]\n\ttextconv = touch {tmp_path / "ran"};cat\n'
    elsewhere.write_text(runs)
    config.unlink()
    config.symlink_to(elsewhere) if linked else config.write_text(runs)
    Path(".gitattributes").write_text("*.txt diff=x\n")
    Path("a.txt").write_text("1")
    assert "+1" in store().diff("last")
    assert not (tmp_path / "ran").exists() and elsewhere.read_text() == runs


def test_repositories_inside_are_left_out_and_left_alone() -> None:
    Path("inner").mkdir()
    git("init", "-q", "inner")
    Path("inner/file").write_text("inner")
    first = store().take("first")
    Path("a.txt").write_text("1")
    store().restore(first)
    assert Path("inner/file").read_text() == "inner" and Path("inner/.git").is_dir()


def test_the_lock_of_a_git_that_was_killed_does_no_harm() -> None:
    store().take("first")
    (store().repository / "index.lock").write_text("")
    Path("a.txt").write_text("1")
    store().take("second")
    assert len(store().snapshots()) == 2


# -- going back, pausing -------------------------------------------------------------------------

WRITES = [call("write", name="a.txt", text=text) for text in ("1", "2", "3")]


@pytest.mark.parametrize("fork", [False, True])
def test_the_folder_goes_back_with_the_session(fork: bool) -> None:
    agent = made(*WRITES, "Done.")
    agent.input("Go.")
    again = made("Other.")
    again.resume(agent.record, place="1.3", fork=fork)
    assert files() == {"a.txt": b"2"}
    (entry,) = [entry for entry in again.session["trace"] if entry["type"] == "checkpoint_restored"]
    store().restore(entry["before"])
    assert files() == {"a.txt": b"3"}


def test_it_stays_where_the_session_goes_on_at_its_end_or_restoring_is_switched_off() -> None:
    agent = made(*WRITES, "Done.")
    agent.input("Go.")
    Path("a.txt").write_text("mine")
    made("More.").resume(agent.record)
    made("Other.", checkpoint=Checkpoint(restore=False)).resume(agent.record, place="1.2")
    assert files() == {"a.txt": b"mine"}


def test_a_pause_leaves_the_folder_alone() -> None:
    def spend() -> str:
        """Spend."""
        if not xray.approved:
            raise Pause("much")
        return "spent"

    agent = made(WRITES[0], call("spend"), "Done.", tools=[write, spend])
    with pytest.raises(Paused) as paused:
        agent.input("Go.")
    Path("a.txt").write_text("mine")
    made("Done.", tools=[write, spend]).resume(paused.value.record, approve=True)
    assert files() == {"a.txt": b"mine"}


# -- commands ------------------------------------------------------------------------------------


def run(*arguments: str) -> Any:
    @click.group()
    def cli() -> None:
        pass

    Checkpoint().commands(cli)
    return CliRunner().invoke(cli, ["checkpoint", *arguments])


def test_the_commands_list_compare_and_restore() -> None:
    assert "no snapshots" in run("list").output
    made(*WRITES, "Done.").input("Go.")
    lines = run("list").output.splitlines()
    assert [line.partition(": ")[2] for line in lines] == ["before write"] * 3
    assert "-2\n" in run("diff").output.replace("\\ No newline at end of file\n", "")
    first = lines[0].split()[0]
    assert run("restore", first).exit_code == 1  # nobody said yes
    assert files() == {"a.txt": b"3"}
    done = run("restore", first, "--yes")
    assert (done.exit_code, files()) == (0, {"a.txt": b"0"})
    assert run("restore", done.output.split()[-1], "--yes").exit_code == 0
    assert files() == {"a.txt": b"3"}


def test_a_snapshot_that_does_not_exist_is_wrong_usage() -> None:
    done = run("diff", "abc")
    assert done.exit_code == 2
    assert "there is no snapshot 'abc'; `connectagent checkpoint list` shows them" in done.output
