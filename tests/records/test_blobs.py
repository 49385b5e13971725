"""Long texts of a record are files of their own, and the limits of how much is kept."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_agents import worker

from connectagent import Agent
from connectagent.cli.group import invoke
from connectagent.records.blobs import LARGEST, blob_folder, is_long, load_blob, place_holder, restored, store_blob
from connectagent.records.locks import lock
from connectagent.records.read import read_record
from connectagent.records.retention import is_paused, remove_oldest
from connectagent.testing import ScriptedLLM, call

LONG = "begin " + "é\u2028\"'\n" * 15_000 + " end"  # a tool's result of 100,000 characters would be cut


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("DIR", "MAX_RECORDS", "MAX_RECORD_BYTES", "MASK"):
        monkeypatch.delenv(f"CONNECTAGENT_{name}", raising=False)
    return tmp_path


def read(text: str) -> str:
    """Read."""
    return f"read {text}"


def reader(text: str, prompt: str = "Read.", **more: Any) -> Path:
    """An agent that has read a text; its record."""
    agent = Agent("reader", [read], llm=ScriptedLLM([call("read", text=text)], text), quiet=True, **more)
    agent.input(prompt)
    path = agent.record
    assert path is not None
    return path


def test_a_long_text_is_kept_once_and_can_be_read_back(folder: Path) -> None:
    path = reader(LONG, prompt=LONG, system_prompt=LONG)
    blobs = blob_folder(path)
    sent = json.dumps({"text": LONG}, ensure_ascii=False)  # the call's arguments, as they stand in the messages
    digests = {hashlib.sha256(text.encode()).hexdigest() for text in (LONG, f"read {LONG}", sent)}
    assert {blob.name for blob in blobs.iterdir()} == digests
    assert {stat.S_IMODE(blob.stat().st_mode) for blob in blobs.iterdir()} == {0o600}
    assert path.stat().st_size < 100_000
    record = read_record(path)
    (turn,) = record["turns"]
    execution = next(entry for entry in turn["trace"] if entry["type"] == "tool_execution")
    assert turn["input"] == execution["arguments"]["text"] == turn["result"] == record["system_prompt"]
    assert turn["input"].startswith("begin é")
    assert turn["input"].endswith(" end")
    assert f"{len(LONG.encode())} bytes, sha256:" in turn["input"]
    assert restored(execution, blobs)["result"] == f"read {LONG}"
    messages = restored(json.loads(turn["messages"]), blobs)
    assert [message["content"] for message in messages] == [LONG, None, f"read {LONG}", LONG]
    assert json.loads(restored(json.loads(turn["messages"]), blobs)[1]["tool_calls"][0]["function"]["arguments"]) == {
        "text": LONG
    }
    assert load_blob(turn["input"], blobs) == LONG


@pytest.mark.parametrize("same", [True, False], ids=["same process", "another"])
def test_a_resumed_agent_has_long_texts_of_earlier_turns(same: bool) -> None:
    llm = ScriptedLLM(LONG, RuntimeError("down"), "Done.")
    first = Agent("reader", [], llm=llm, quiet=True, state={"text": LONG})
    assert first.input("Read it.") == LONG
    with pytest.raises(RuntimeError):
        first.input("And now?")
    agent = first
    if not same:
        first.close()
        agent = Agent("reader", [], llm=ScriptedLLM("Done."), quiet=True)
    assert agent.resume(first.record) == "Done."
    assert [message["content"] for message in agent.session["messages"]] == ["Read it.", LONG, "And now?", "Done."]
    assert agent.state["text"] == LONG


def test_texts_up_to_the_limit_stay_in_the_record() -> None:
    assert not is_long("x" * LARGEST)
    assert is_long("x" * (LARGEST + 1))
    assert is_long("é" * (LARGEST // 2 + 1))
    path = reader("x" * 32_000)
    assert not blob_folder(path).exists()


def test_secrets_are_masked_before_a_text_becomes_a_blob(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "canary-7d1f0be9")
    path = reader(("x" * 995 + "canary-7d1f0be9") * 50)
    texts = [file.read_text() for file in (path, *blob_folder(path).iterdir())]
    assert all("canary-7d" not in text and "[masked: CANARY_TOKEN]" in text for text in texts)


def test_a_blob_that_is_missing_or_was_changed_stays_as_head_and_tail(folder: Path) -> None:
    path = reader(LONG)
    turn, blobs = read_record(path)["turns"][0], blob_folder(path)
    blob = blobs / hashlib.sha256(LONG.encode()).hexdigest()
    blob.write_text("other")
    with pytest.raises(ValueError, match="was changed"):
        load_blob(turn["result"], blobs)
    assert "bytes, not readable, sha256:" in restored(turn, blobs)["result"]
    blob.unlink()
    with pytest.raises(FileNotFoundError):
        load_blob(blob.name, blobs)
    text = restored(turn, blobs)["result"]
    assert text == restored(text, blobs)
    assert text.startswith("begin é")
    assert text.endswith(" end")
    assert "bytes, missing, sha256:" in text


@given(st.text(st.characters(), max_size=50), st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_any_text_is_restored_exactly_one_that_reads_like_a_place_holder_too(tmp: str, times: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        text = tmp + LONG
        for _ in range(times):
            assert is_long(text)
            store_blob(text, Path(name))
            text = place_holder(text)
        for _ in range(times):
            text = restored({"a": [text]}, Path(name))["a"][0]
        assert text == tmp + LONG
        assert not [path for path in Path(name).iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("what", ["a file", "closed"])
def test_blobs_that_cannot_be_written_cost_one_warning(
    what: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / ".co").mkdir()
    if what == "a file":
        (folder / ".co/blobs").write_text("")
    else:
        (folder / ".co/blobs").symlink_to("/dev/full/blobs")
    path = reader(LONG)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("connectagent: the long text cannot be written: ")
    (turn,) = read_record(path)["turns"]
    assert turn["status"] == "answered"
    assert f"{len(LONG.encode())} bytes, not kept" in turn["result"]
    assert restored(turn["result"], blob_folder(path)) == turn["result"]


def test_blobs_stay_beside_their_record_wherever_the_program_goes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def move() -> str:
        """Move."""
        (folder / "else").mkdir()
        monkeypatch.chdir(folder / "else")
        return LONG

    agent = Agent("mover", [move], llm=ScriptedLLM([call("move")], "x"), quiet=True, plugins=["no:textlog"])
    agent.input("Go.")
    path = agent.record
    assert path is not None
    assert len(list(blob_folder(path).iterdir())) == 1
    assert not list((folder / "else").iterdir())


# -- limits ----------------------------------------------------------------------------------------


def session(text: str = "x", age_s: int = 0) -> Path:
    """The record of a session of one turn, written to so many seconds ago."""
    path = reader(text)
    aged(path, age_s)
    return path


DAY = 86_400


def aged(path: Path, age_s: int) -> None:
    then = time.time() - age_s
    os.utime(path, (then, then))


def records() -> set[Path]:
    return set(Path.cwd().glob(".co/evals/*.yaml"))


def test_the_oldest_records_go_when_a_session_begins(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    old = [session(age_s=DAY + 100 - number) for number in range(5)]
    monkeypatch.setenv("CONNECTAGENT_MAX_RECORDS", "3")
    new = session()
    assert records() == {*old[3:], new}
    told = capfd.readouterr().err
    assert told.count("\n") == 1
    assert f"removed 3 old records from {new.parent}, the oldest {old[0].name}; see max_records" in told
    session()
    assert records() > {old[4], new}
    assert not capfd.readouterr().err  # once a process
    monkeypatch.setenv("CONNECTAGENT_MAX_RECORDS", "0")
    session()
    assert len(records()) == 4


def test_what_was_written_in_the_last_day_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    young, old = session(age_s=DAY - 100), session(age_s=DAY + 100)
    monkeypatch.setenv("CONNECTAGENT_MAX_RECORDS", "1")
    monkeypatch.setenv("CONNECTAGENT_MAX_RECORD_BYTES", "1")
    assert records() == {young, old}
    new = session()
    assert records() == {young, new}


def test_sessions_with_a_key_are_kept_and_take_no_room_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("a", "b", "c"):
        held = Agent("reader", llm=ScriptedLLM(LONG), quiet=True).for_session(key)
        held.turn(f"{key} {LONG}")
        os.utime(held.record, (time.time() - 2 * DAY,) * 2)
    keyed = records()
    blobs = {blob: blob.stat().st_size for blob in blob_folder(held.record).iterdir()}
    assert len(keyed) == 3 and len(blobs) == 4
    monkeypatch.setenv("CONNECTAGENT_MAX_RECORDS", "2")
    monkeypatch.setenv("CONNECTAGENT_MAX_RECORD_BYTES", "200_000")  # less than their texts take
    old = [session(age_s=2 * DAY) for _ in range(2)]
    assert records() == {*keyed, *old}
    shared = reader(LONG)  # needs a text that they need too
    new = session(age_s=2 * DAY)
    assert records() == {*keyed, shared, new}
    assert {blob: blob.stat().st_size for blob in blobs} == blobs
    assert invoke(["log", "prune", "--keep", "0", "--older-than", "1d"]) == 0 and records() == {shared}


def test_with_many_records_not_every_session_looks_at_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = session().parent
    for number in range(1000):
        (folder / f"other{number}.yaml").touch()
    session()  # with one record each session looks
    looks = []
    monkeypatch.setattr("connectagent.records.retention.remove_oldest", lambda *given, **more: looks.append(given))
    for _ in range(250):
        session()
    assert not looks
    session()
    assert len(looks) == 1


def scans(monkeypatch: pytest.MonkeyPatch, take_s: float = 0.0) -> list[Any]:
    """The times that the folder of records is listed from now on, each of which takes so long."""
    found, scan = [], os.scandir

    def scandir(path: Any) -> Any:
        if Path(path).name == "evals":
            found.append(path)
            time.sleep(take_s)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    return found


def test_where_there_is_room_for_many_records_few_sessions_look(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = scans(monkeypatch)
    for _ in range(30):
        session()
    assert len(records()) == 30 and len(listed) < 15


def test_where_no_record_may_be_removed_yet_few_sessions_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_MAX_RECORDS", "20")
    for _ in range(20):
        session()
    listed = scans(monkeypatch)
    for _ in range(60):
        session()
    assert len(records()) == 80 and 2 < len(listed) < 20


def test_sessions_that_begin_during_a_look_do_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    session()
    listed = scans(monkeypatch, take_s=0.5)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: (time.sleep(number * 0.01), session()), range(8)))
    assert len(records()) == 9 and len(listed) < 3


def test_many_sessions_of_one_second_try_few_names(monkeypatch: pytest.MonkeyPatch) -> None:
    second = time.gmtime(0)
    monkeypatch.setattr(time, "gmtime", lambda seconds=None: second)
    tried, opened = [], os.open

    def open_(path: Any, flags: int, *mode: Any, **more: Any) -> int:
        if flags & os.O_EXCL and str(path).endswith(".yaml"):
            tried.append(path)
        return opened(path, flags, *mode, **more)

    monkeypatch.setattr(os, "open", open_)
    names = [session().name for _ in range(20)]
    assert names[:3] == [f"reader_1970-01-01T00-00-00{ending}.yaml" for ending in ("", "-2", "-3")]
    assert len(set(names)) == 20 == len(tried)


@pytest.mark.parametrize("state", ["", "x", "9" * 400, "-5\n", "\0"])
def test_a_count_of_sessions_that_was_spoilt_costs_no_session(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old = session(age_s=2 * DAY)
    (old.parent.parent / ".sessions").write_text(state)
    monkeypatch.setenv("CONNECTAGENT_MAX_RECORDS", "1")
    session()
    assert not old.exists()


def test_the_count_of_sessions_goes_on_behind_older_counts_and_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    old = session(age_s=2 * DAY)
    state = old.parent.parent / ".sessions"
    monkeypatch.setenv("CONNECTAGENT_MAX_RECORDS", "1")
    state.write_text("20\n....................\n2\n.")
    session()
    assert state.read_text().endswith("\n2\n..") and old.exists()
    state.write_text("\n20\n" + "." * 5000 + "\n2\n..")
    session()
    assert not old.exists() and state.stat().st_size < 50


def test_only_records_go_and_only_they_count(folder: Path) -> None:
    old = session(age_s=DAY)
    (folder / "elsewhere.yaml").write_bytes(old.read_bytes())
    others = {
        "workflow.yaml": "name: deploy\nagent: mine\n",
        "format.yaml": "format: 1\n",
        "empty.yaml": "",
        "long.yaml": "#" * 100_000,
    }
    for name, text in others.items():
        (old.parent / name).write_text(text)
    (old.parent / "link.yaml").symlink_to(folder / "elsewhere.yaml")
    (old.parent / "loop.yaml").symlink_to("loop.yaml")
    os.mkfifo(old.parent / "pipe.yaml")
    for path in old.parent.iterdir():
        os.utime(path, (0, 0), follow_symlinks=False)
    assert remove_oldest(old.parent, 1, None) == []
    assert remove_oldest(old.parent, 0, 0) == [old]
    assert {path.name for path in old.parent.iterdir()} == {*others, "link.yaml", "loop.yaml", "pipe.yaml"}
    assert (folder / "elsewhere.yaml").exists()


@pytest.mark.parametrize("linked", [".co", ".co/evals", ".co/blobs"])
def test_a_folder_of_records_that_is_a_link_is_left_alone(
    linked: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = session(LONG, age_s=2 * DAY)
    (folder / linked).rename(folder / "elsewhere")
    (folder / linked).symlink_to(folder / "elsewhere")
    monkeypatch.setenv("CONNECTAGENT_MAX_RECORDS", "1")
    session()
    assert old.exists() and len(records()) == 2


def test_a_limit_of_bytes_counts_blobs_and_removes_those_that_nobody_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, own = "shared" * 10_000, "own" * 20_000
    first = session(own, age_s=100)
    second = session(shared, age_s=90)
    third = session(shared, age_s=80)
    blobs = blob_folder(first)
    assert len(list(blobs.iterdir())) == 6
    assert remove_oldest(first.parent, None, 10**9) == []
    size = sum(path.stat().st_size for path in [*records(), *blobs.iterdir()])
    for blob in blobs.iterdir():
        aged(blob, DAY + 200)
    assert remove_oldest(first.parent, None, size - 1, dry_run=True) == [first]
    assert first.exists()
    assert remove_oldest(first.parent, None, size - 1) == [first]
    texts = (shared, f"read {shared}", json.dumps({"text": shared}))
    kept = {hashlib.sha256(text.encode()).hexdigest() for text in texts}
    assert {blob.name for blob in blobs.iterdir()} == kept
    assert remove_oldest(first.parent, 1, None) == [second]
    assert {blob.name for blob in blobs.iterdir()} == kept
    aged(third, DAY + 1)
    monkeypatch.setenv("CONNECTAGENT_MAX_RECORD_BYTES", "1000")
    new = session()
    assert records() == {new}
    assert not third.exists()
    assert not list(blobs.iterdir())


def test_a_text_that_another_record_needs_is_not_counted_as_room_that_was_made() -> None:
    first, second, third = session(LONG, age_s=100), session(LONG, age_s=90), session(age_s=80)

    def all_but(record: Path) -> int:
        kept = {*records(), *blob_folder(record).iterdir()} - {record}
        return sum(path.stat().st_size for path in kept)

    assert remove_oldest(first.parent, None, all_but(first)) == [first]
    first = session(LONG, age_s=110)
    assert remove_oldest(first.parent, None, all_but(first) - 1) == [first, second]
    assert records() == {third}


def test_a_blob_that_another_session_has_just_begun_to_use_stays() -> None:
    path = session(LONG, age_s=100)
    for blob in blob_folder(path).iterdir():
        aged(blob, 200)
    used = blob_folder(path) / hashlib.sha256(LONG.encode()).hexdigest()
    store_blob(LONG, used.parent)
    remove_oldest(path.parent, 0, None)
    assert not path.exists()
    assert list(used.parent.iterdir()) == [used]


def paused(path: Path) -> Path:
    path.write_text(path.read_text().replace("status: answered", "status: paused"))
    return path


def test_paused_and_running_records_are_never_removed() -> None:
    waits, runs, new, old = (session(age_s=100) for _ in range(4))
    aged(paused(waits), 200)
    with waits.open("a") as file:  # tools that ran since do not end the pause
        file.write("- turn: 1\n  status: between_turns\n  trace:\n" + '  - {"type": "x"}\n' * 10_000)
    assert is_paused(waits)
    assert not is_paused(old)
    with runs.open("a") as file:
        assert lock(file.fileno())
        assert remove_oldest(new.parent, 0, 0, new=new) == [old]
    assert records() == {waits, runs, new}
    assert remove_oldest(new.parent, 0, None, new=new) == [runs]


def test_a_session_that_begins_does_not_remove_its_own_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_MAX_RECORD_BYTES", "1")
    agent = worker()
    agent.input("One.")
    agent.input("Two.")
    path = agent.record
    assert path is not None
    assert [turn["input"] for turn in read_record(path)["turns"]] == ["One.", "Two."]


@pytest.mark.parametrize("value", ["many", "-1", "1.5"])
def test_a_limit_that_is_no_number_is_told_when_the_agent_is_made(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_MAX_RECORDS", value)
    with pytest.raises(ValueError, match=f"max_records='{value}' is no limit"):
        worker()


def test_other_files_of_the_folder_are_left_alone() -> None:
    path = session(age_s=100)
    for name in ("notes.md", ".hidden.yaml"):
        (path.parent / name).write_text("mine")
    remove_oldest(path.parent, 0, 0)
    assert {entry.name for entry in path.parent.iterdir()} == {"notes.md", ".hidden.yaml"}
