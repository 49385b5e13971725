"""Artifacts are kept in versions, apart from each other, whole, and found again."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from connectagent_artifacts import (
    ArtifactError,
    ArtifactNotFound,
    Artifacts,
    ArtifactStore,
    FileStore,
    InMemoryStore,
    Scope,
    artifacts_of,
)
from pytest_connectagent import AgentTester

from connectagent import Agent, ConfigError, after_tools
from connectagent.testing import HookRecorder, ScriptedLLM, call

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)


@pytest.fixture(autouse=True)
def co(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / ".co"))
    return tmp_path / ".co"


@pytest.fixture(params=["files", "memory"])
def store(request: pytest.FixtureRequest) -> ArtifactStore:
    return FileStore() if request.param == "files" else InMemoryStore()


def agent_with(artifacts: Artifacts, *responses: Any, plugins: Any = (), **options: Any) -> Agent:
    llm = ScriptedLLM(*responses)
    return Agent("helper", llm=llm, plugins=[artifacts, *plugins], log=False, quiet=True, **options)


def trace_of(agent: Agent, kind: str) -> list[dict[str, Any]]:
    assert agent.current_session is not None
    return [entry for entry in agent.current_session["trace"] if entry["type"] == kind]


def results(artifacts: Artifacts, *calls: Any) -> list[Any]:
    """What the model reads of each call of a tool."""
    agent = agent_with(artifacts, list(calls), "done")
    agent.input("Go")
    return [entry["result"] for entry in trace_of(agent, "tool_execution")]


# -- save, load, list, delete --------------------------------------------------------------------


def test_versions_begin_at_0_and_the_newest_is_loaded(store: ArtifactStore) -> None:
    artifacts = Artifacts(store)
    agent = agent_with(artifacts)
    assert [artifacts.save(agent, "a.txt", text) for text in ("zero", "one", b"two")] == [0, 1, 2]
    assert artifacts.load(agent, "a.txt").text == "two"
    assert artifacts.load(agent, "a.txt", 0).data == b"zero"
    assert artifacts.versions(agent, "a.txt") == [0, 1, 2]


def test_the_tenth_version_is_newer_than_the_ninth(store: ArtifactStore) -> None:
    artifacts = Artifacts(store)
    agent = agent_with(artifacts)
    assert [artifacts.save(agent, "a", str(number)) for number in range(12)] == list(range(12))
    assert artifacts.load(agent, "a").text == "11"


def test_the_mime_type_is_told_by_the_name_and_kept(store: ArtifactStore) -> None:
    artifacts = Artifacts(store)
    agent = agent_with(artifacts)
    artifacts.save(agent, "a.csv", "1,2")
    artifacts.save(agent, "b", "text")
    artifacts.save(agent, "c", b"bytes")
    artifacts.save(agent, "d.csv", "x", "application/x-own; charset=utf-8")
    types = [artifacts.load(agent, name).mime_type for name in ["a.csv", "b", "c", "d.csv"]]
    assert types == ["text/csv", "text/plain", "application/octet-stream", "application/x-own; charset=utf-8"]


def test_what_is_not_there_is_told_with_what_is(store: ArtifactStore) -> None:
    artifacts = Artifacts(store)
    agent = agent_with(artifacts)
    with pytest.raises(ArtifactNotFound, match=r"no artifact 'a'; artifacts: none"):
        artifacts.load(agent, "a")
    artifacts.save(agent, "a.txt", "x")
    with pytest.raises(ArtifactNotFound, match=r"no artifact 'a'; artifacts: 'a\.txt'"):
        artifacts.load(agent, "a")
    for version in (1, -1, 10**30):
        with pytest.raises(ArtifactNotFound, match=rf"no version {version}; versions: 0"):
            artifacts.load(agent, "a.txt", version)
    assert artifacts.versions(agent, "nope") == []


def test_a_deleted_name_is_gone_and_begins_at_0_again(store: ArtifactStore) -> None:
    artifacts = Artifacts(store)
    agent = agent_with(artifacts)
    artifacts.save(agent, "a.txt", "x")
    artifacts.save(agent, "a.txt", "y")
    assert artifacts.delete(agent, "a.txt") is True
    assert artifacts.delete(agent, "a.txt") is False
    assert artifacts.list(agent) == []
    assert artifacts.save(agent, "a.txt", "z") == 0


def test_empty_and_large_contents_come_back_as_they_were(store: ArtifactStore) -> None:
    artifacts = Artifacts(store)
    agent = agent_with(artifacts)
    large = os.urandom(3_000_000)
    for number, data in enumerate([b"", large, bytearray(b"x"), memoryview(b"y")]):
        assert artifacts.save(agent, "a", data) == number
        assert artifacts.load(agent, "a").data == bytes(data)


@pytest.mark.parametrize("data", [None, 3, ["x"], "half \ud800"])
def test_what_is_no_content_is_refused(data: Any) -> None:
    artifacts = Artifacts(InMemoryStore())
    with pytest.raises(ArtifactError, match=r"artifact 'a\.txt': "):
        artifacts.save(agent_with(artifacts), "a.txt", data)


@pytest.mark.parametrize("mime_type", ["", "text", "text/plain\r\nX: y", 7])
def test_what_is_no_mime_type_is_refused(mime_type: Any) -> None:
    artifacts = Artifacts(InMemoryStore())
    with pytest.raises(ArtifactError, match="no MIME type"):
        artifacts.save(agent_with(artifacts), "a.txt", "x", mime_type)


# -- sessions and users --------------------------------------------------------------------------


def test_names_belong_to_their_session_and_user_names_to_all(store: ArtifactStore) -> None:
    artifacts = Artifacts(store)
    one, two = agent_with(artifacts, "hi"), agent_with(artifacts)
    artifacts.save(one, "a.txt", "one's")
    artifacts.save(one, "user:b.txt", "ours")
    assert artifacts.list(one) == ["a.txt", "user:b.txt"]
    assert artifacts.list(two) == ["user:b.txt"]
    found = artifacts.load(two, "user:b.txt")
    assert (found.name, found.text) == ("user:b.txt", "ours")
    one.input("Hi")
    one.reset_conversation()
    assert artifacts.list(one) == ["user:b.txt"]


def test_users_share_nothing(store: ArtifactStore) -> None:
    ada, bob = Artifacts(store, user="ada"), Artifacts(store, user="Ada")
    ada.save(agent_with(ada), "user:a.txt", "x")
    assert bob.list(agent_with(bob)) == []


def test_a_session_that_is_resumed_finds_its_artifacts_again() -> None:
    artifacts = Artifacts()
    agent = agent_with(artifacts, [call("save_artifact", name="a.md", content="# A")], "done")
    agent.input("Write")
    stored = json.loads(json.dumps(agent.current_session, default=repr))
    later = Artifacts()
    again = agent_with(later, [call("load_artifact", name="a.md")], "done")
    again.current_session = stored
    again.input("Read")
    assert trace_of(again, "tool_execution")[-1]["result"] == "# A"
    assert later.save(again, "a.md", "# B") == 1


def test_what_is_saved_before_the_first_turn_is_in_its_session() -> None:
    artifacts, hooks = Artifacts(), HookRecorder()
    agent = agent_with(artifacts, [call("load_artifact", name="in.csv")], "done", plugins=[hooks])
    artifacts.save(agent, "in.csv", "1,2")
    assert artifacts.list(agent) == ["in.csv"]
    agent.input("Read it")
    assert trace_of(agent, "tool_execution")[0]["result"] == "1,2"
    (entry,) = trace_of(agent, "artifact")
    assert (entry["name"], entry["by"]["plugin"]) == ("in.csv", "artifacts")  # which adds it when there is a trace
    assert len(hooks.of("on_trace:artifact")) == 1


def test_what_is_saved_between_turns_is_traced_as_the_programs() -> None:
    artifacts, hooks = Artifacts(), HookRecorder()
    agent = agent_with(artifacts, "one", "two", plugins=[hooks])
    agent.input("Hi")
    artifacts.save(agent, "a.txt", "x")
    agent.input("And?")
    (entry,) = [found["entry"] for found in hooks.of("on_trace:artifact")]
    assert entry["by"]["plugin"] == "(program)"


def test_a_state_that_is_not_the_plugins_is_told_and_leaves_no_folder(co: Path) -> None:
    artifacts = Artifacts()
    agent = agent_with(artifacts, "hi")
    agent.input("Hi")
    assert agent.current_session is not None
    agent.current_session["state"]["artifacts"] = {"session": "../../../escaped"}
    artifacts.save(agent, "a.txt", "x")
    (path,) = co.parent.rglob("data.txt")
    assert co / "artifacts" in path.parents
    agent.current_session["state"]["artifacts"] = "mine"
    with pytest.raises(ArtifactError, match="this plugin's"):
        artifacts.list(agent)


def test_a_store_is_no_text() -> None:
    with pytest.raises(ConfigError, match="store is an ArtifactStore"):
        Artifacts(store="folder")  # type: ignore[arg-type]


@pytest.mark.parametrize("user", ["", None, 3])
def test_a_user_is_a_name(user: Any) -> None:
    with pytest.raises(ConfigError, match="user"):
        Artifacts(user=user)


# -- tools, handlers and the trace ---------------------------------------------------------------


def test_the_model_saves_loads_and_lists() -> None:
    saved, loaded, listed = results(
        Artifacts(InMemoryStore()),
        call("save_artifact", name="a.md", content="# A"),
        call("load_artifact", name="a.md"),
        call("list_artifacts"),
    )
    assert saved == "saved 'a.md' as version 0"
    assert loaded == "# A"
    assert json.loads(listed) == [{"name": "a.md", "version": 0}]


def test_a_tool_saves_and_its_trace_entry_tells_which_call_it_was() -> None:
    def draw(agent: Agent) -> str:
        """Draw."""
        return f"version {artifacts_of(agent).save(agent, 'chart.png', PNG)}"

    agent = agent_with(Artifacts(InMemoryStore()), [call("draw")], "done", tools=[draw])
    agent.input("Draw")
    (entry,) = trace_of(agent, "artifact")
    (execution,) = trace_of(agent, "tool_execution")
    assert {key: entry[key] for key in ("name", "version", "bytes", "mime_type")} == {
        "name": "chart.png",
        "version": 0,
        "bytes": len(PNG),
        "mime_type": "image/png",
    }
    assert entry["by"]["tool"] == "draw" and entry["call_id"] == execution["call_id"]


def test_a_handler_saves_and_is_named() -> None:
    @after_tools
    def keep(agent: Agent) -> None:
        artifacts_of(agent).save(agent, "log.txt", "x")
        artifacts_of(agent).delete(agent, "log.txt")

    agent = agent_with(Artifacts(InMemoryStore()), [call("list_artifacts")], "done", plugins=[keep])
    agent.input("Go")
    assert [entry["by"]["plugin"] for entry in trace_of(agent, "artifact")] == ["keep"]
    assert [entry["name"] for entry in trace_of(agent, "artifact_deleted")] == ["log.txt"]


def test_reading_is_read_only_and_saving_is_not() -> None:
    agent = agent_with(Artifacts())
    assert {tool.name: tool.read_only for tool in agent.tools} == {
        "save_artifact": False,
        "load_artifact": True,
        "list_artifacts": True,
    }
    assert agent_with(Artifacts(tools=False)).list_tools() == []


def test_a_long_text_is_shown_in_pieces() -> None:
    artifacts = Artifacts(InMemoryStore())
    agent = agent_with(artifacts)
    artifacts.save(agent, "long.txt", "a" * 20_000 + "b" * 20_000 + "c")
    first = artifacts.load_artifact(agent, "long.txt")
    assert first.startswith("aaa") and first.endswith("[characters 0 to 20000 of 40001; go on with start=20000]")
    assert "a" not in artifacts.load_artifact(agent, "long.txt", None, 20_000).partition("[")[0]
    assert artifacts.load_artifact(agent, "long.txt", None, 40_000) == "c"
    assert artifacts.load_artifact(agent, "long.txt", None, 10**9) == ""
    assert artifacts.load_artifact(agent, "long.txt", None, -5) == first


def test_pictures_are_shown_as_pictures_and_other_bytes_are_described() -> None:
    artifacts = Artifacts(InMemoryStore())
    agent = agent_with(artifacts, [call("load_artifact", name=name) for name in ("a.png", "b.png", "c.bin")], "done")
    artifacts.save(agent, "a.png", PNG)
    artifacts.save(agent, "b.png", b"no picture \xff")
    artifacts.save(agent, "c.bin", b"\x00\x01")
    agent.input("Look")
    picture, broken, other = [entry["result"] for entry in trace_of(agent, "tool_execution")]
    assert picture[0]["image_url"]["url"].startswith("data:image/png;base64,")
    assert broken[0]["type"] == "text"
    assert other == "'c.bin' version 0 cannot be shown: application/octet-stream, 2 bytes"


def test_many_names_are_not_all_listed_to_the_model() -> None:
    artifacts = Artifacts(InMemoryStore())
    agent = agent_with(artifacts)
    for number in range(203):
        artifacts.save(agent, f"{number}.txt", "")
    listed = artifacts.list_artifacts(agent)
    assert (len(listed), listed[-1]) == (201, "3 more")


def test_an_agent_without_the_plugin_is_told_how_to_get_it() -> None:
    with pytest.raises(ConfigError, match=r"plugins=\['artifacts'\]"):
        artifacts_of(Agent("bare", llm=ScriptedLLM(), log=False, quiet=True))


# -- names ---------------------------------------------------------------------------------------

REFUSED = ["", " ", "\t", ".", "..", "../x", "a/../b", "a/./b", "a//b", "a/", "/etc/passwd", "C:/x", "c:\\x", "a\\b"]
REFUSED += ["..\\x", "a\0b", "a\nb", "\x7f", "\u0085", "\ud800", "x" * 1001, "user:", "user:../x", "user:/x", None, 7]


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_could_leave_its_folder_is_refused(name: Any, co: Path) -> None:
    artifacts = Artifacts()
    agent = agent_with(artifacts)
    for use in (artifacts.load, artifacts.versions, artifacts.delete):
        with pytest.raises(ArtifactError, match="cannot be an artifact's name"):
            use(agent, name)
    with pytest.raises(ArtifactError, match="cannot be an artifact's name"):
        artifacts.save(agent, name, "x")
    assert not co.exists()


KEPT = ["a", "A", "a.", "a..", "a ", " a", ".a", "...", "~", "~a", "a~", "%61", "%2e%2e", "con", "CON", "nul.txt"]
KEPT += ["aux.tar.gz", "console", "a:b", "a/b", "a%2fb", "a*?\"<>|", "-rf", "$(x)", "0", "0/0", "about.json", ".new"]
KEPT += ["com1"]
KEPT += [unicodedata.normalize("NFC", "é.txt"), unicodedata.normalize("NFD", "é.txt"), "ﬁ", "fi", "İ", "ı", "ß", "ss"]
KEPT += ["日本語.txt", "🎉", "x" * 300, "x" * 301, "X" * 300, "é" * 1000, "x" * 140, "x" * 141, "x" * 59 + "É" * 99]


def test_no_two_names_share_a_file_on_any_file_system(co: Path) -> None:
    artifacts = Artifacts()
    agent = agent_with(artifacts)
    for name in KEPT:
        assert artifacts.save(agent, name, name.encode()) == 0, name
        assert artifacts.save(agent, f"user:{name}", b"user") == 0, name
    assert [artifacts.load(agent, name).text for name in KEPT] == KEPT
    assert sorted(artifacts.list(agent)) == sorted([*KEPT, *(f"user:{name}" for name in KEPT)])
    (session,) = co.glob("artifacts/default/sessions/*")
    folders = [path.name for path in session.iterdir()]
    assert len({name.casefold() for name in folders}) == len(folders) == len(KEPT)
    for name in folders:
        assert name.isascii() and len(name) <= 143 and not name.startswith(".") and not name.endswith((".", " "))
        assert name.partition(".")[0] not in ("con", "nul", "aux", "com1")


def test_files_are_the_owners_only_and_kept_out_of_git(co: Path) -> None:
    artifacts = Artifacts()
    artifacts.save(agent_with(artifacts), "a.pdf", b"%PDF")
    (data,) = co.rglob("data.pdf")
    assert data.stat().st_mode & 0o777 == 0o600
    assert (co / "artifacts").stat().st_mode & 0o777 == 0o700
    assert (co / ".gitignore").read_text("utf-8") == "*\n"


def test_a_folder_of_the_users_own_does_not_vanish_from_git(tmp_path: Path) -> None:
    FileStore(tmp_path / "mine" / "deep").save(Scope("u"), "a", b"x", "text/plain")
    assert not list(tmp_path.rglob(".gitignore"))


# -- many at once, kills, full disks -------------------------------------------------------------

SAVING = """
import sys
from connectagent_artifacts import FileStore, Scope
store, me = FileStore(sys.argv[1]), sys.argv[2]
sys.stdin.readline()
for number in range(50):
    text = f"{me} {number} " * 500
    print(store.save(Scope("u", "s"), "same.txt", text.encode(), "text/plain"), flush=True)
"""


def saving(folder: Path, me: str, code: str = SAVING) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder), me],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def test_processes_that_save_one_name_at_once_get_a_version_each_and_readers_see_whole_ones(tmp_path: Path) -> None:
    processes = [saving(tmp_path, str(number)) for number in range(4)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    store, scope, seen = FileStore(tmp_path), Scope("u", "s"), 0
    while any(process.poll() is None for process in processes):
        found = store.load(scope, "same.txt")
        if found is not None:
            seen += 1
            assert len(set(found.text.split())) <= 2 and len(found.text.split()) == 1000
    numbers = [int(line) for process in processes for line in process.communicate()[0].split()]
    assert sorted(numbers) == list(range(200)) and seen
    kept = [store.load(scope, "same.txt", number) for number in range(200)]
    texts = {" ".join(found.text.split()[:2]) for found in kept if found is not None}
    assert texts == {f"{me} {number}" for me in range(4) for number in range(50)}


def test_threads_that_save_and_delete_one_name_at_once_lose_nothing_that_came_last(store: ArtifactStore) -> None:
    scope, problems = Scope("u", "s"), []

    def work(me: int) -> None:
        try:
            for _ in range(30):
                store.save(scope, "a", b"x" * 100, "text/plain")
                if me == 0:
                    store.delete(scope, "a")
                found = store.load(scope, "a")
                assert found is None or found.data == b"x" * 100
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert store.save(scope, "a", b"last", "text/plain") == store.versions(scope, "a")[-1]


ENDLESS = SAVING.replace("range(50)", "iter(int, 1)").replace("* 500", "* 50000")


def test_a_killed_process_leaves_whole_versions_only(tmp_path: Path) -> None:
    store, scope = FileStore(tmp_path), Scope("u", "s")
    for _ in range(4):
        process = saving(tmp_path, "x", ENDLESS)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        for _ in range(3):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.communicate()
    versions = store.versions(scope, "same.txt")
    assert versions == list(range(len(versions))) and len(versions) >= 12
    for version in versions:
        found = store.load(scope, "same.txt", version)
        assert found is not None and len(found.text.split()) == 100_000
    assert store.save(scope, "same.txt", b"on", "text/plain") == len(versions)


def test_what_a_killed_process_left_is_removed_after_a_day(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "a")
    store.save(Scope("u"), "a", b"x", "text/plain")
    old, new = tmp_path / "a" / ".new" / "old", tmp_path / "a" / ".new" / "new"
    old.mkdir()
    new.mkdir()
    os.utime(old, (0, 0))
    store.save(Scope("u"), "a", b"x", "text/plain")
    assert not old.exists() and new.exists()


def test_a_full_disk_is_told_to_the_model_and_leaves_nothing(co: Path) -> None:
    artifacts = Artifacts()
    agent = agent_with(artifacts, [call("save_artifact", name="a.txt", content="x" * 10_000)], "done")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, limits[1]))
    try:
        assert agent.input("Save") == "done"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (entry,) = trace_of(agent, "tool_execution")
    assert entry["status"] == "error" and "artifact 'a.txt' is not saved: File too large" in entry["result"]
    assert artifacts.list(agent) == [] and trace_of(agent, "artifact") == []
    assert list((co / "artifacts" / ".new").iterdir()) == []
    assert artifacts.save(agent, "a.txt", "y") == 0


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", "utf-8")
    artifacts = Artifacts(FileStore(tmp_path / "file" / "inside"))
    with pytest.raises(ArtifactError, match=r"artifact 'a' is not saved: (Not a directory|File exists): .*file"):
        artifacts.save(agent_with(artifacts), "a", "x")


def test_a_version_that_was_damaged_is_named(co: Path) -> None:
    artifacts = Artifacts()
    agent = agent_with(artifacts)
    artifacts.save(agent, "a.txt", "x")
    (about,) = co.rglob("about.json")
    for damage in (b"{", b"[]", b"{}", b"\xff"):
        about.write_bytes(damage)
        with pytest.raises(ArtifactError, match=r"a\.txt/0 is damaged, restore or remove it"):
            artifacts.load(agent, "a.txt")
    assert artifacts.list(agent) == ["a.txt"]


def test_a_tool_that_changes_the_current_folder_moves_no_artifacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONNECTAGENT_DIR")
    artifacts = Artifacts()
    agent = agent_with(artifacts)
    artifacts.save(agent, "a.txt", "x")
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    assert artifacts.load(agent, "a.txt").text == "x"
    assert list(tmp_path.rglob("data.txt")) == list((tmp_path / ".co").rglob("data.txt"))


def test_the_example_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CONNECTAGENT_MODEL", "offline")
    text = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    exec(text.split("```python\n")[1].split("```")[0], {})
    assert "['report.md', 'user:style.txt'] # All about tea" in capsys.readouterr().out


def test_it_keeps_the_rules_on_every_path(agenttester: AgentTester) -> None:
    saved = [call("save_artifact", name="a.txt", content="x"), "Done."]
    agenttester.check(Artifacts, changes={"tools"}, responses=saved)


def test_no_link_of_a_folder_leads_to_the_artifacts_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clone" / ".co").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "clone")
    monkeypatch.delenv("CONNECTAGENT_DIR")
    Path(".co/artifacts").symlink_to(tmp_path / "other")
    with pytest.raises(ConfigError, match="leads out of the project"):
        FileStore().save(Scope("user:me"), "report.txt", b"text", "text/plain")
    assert not list((tmp_path / "other").iterdir())


# -- at the same time ----------------------------------------------------------------------------


def test_calls_of_a_round_that_run_at_once_save_into_one_session() -> None:
    saves = [call("save_artifact", name=name, content=name) for name in ("a.md", "b.md", "a.md")]
    artifacts = Artifacts()
    agent = agent_with(artifacts, saves, "done", parallel_tools=3)
    agent.input("Go")
    entries = trace_of(agent, "tool_execution")
    assert [entry["status"] for entry in entries] == ["success"] * 3
    assert artifacts.list(agent) == ["a.md", "b.md"] and artifacts.versions(agent, "a.md") == [0, 1]
    saved = trace_of(agent, "artifact")
    assert sorted((entry["name"], entry["call_id"], entry["by"]["tool"]) for entry in saved) == sorted(
        (entry["arguments"]["name"], entry["call_id"], "save_artifact") for entry in entries
    )


def test_agents_that_are_asked_at_once_save_into_one_session() -> None:
    def writer(name: str) -> Agent:
        llm = ScriptedLLM(call("save_artifact", name="notes.md", content=name), "done")
        return Agent(name, llm=llm, quiet=True)

    artifacts = Artifacts()
    asked = [call("one", prompt="Write"), call("two", prompt="Write")]
    agent = agent_with(artifacts, asked, "done", tools=[writer("one"), writer("two")])
    agent.input("Go")
    assert artifacts.versions(agent, "notes.md") == [0, 1]
    assert sorted(artifacts.load(agent, "notes.md", number).text for number in (0, 1)) == ["one", "two"]
