"""What was said is remembered once, found by its words, and by nobody else."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from connectagent_memory import Memory, MemoryStoreError, Remembered, SqliteStore
from pytest_connectagent import AgentTester

from connectagent import Agent, ConfigError, PluginWarning, after_llm, after_tools, after_user_input
from connectagent.testing import ScriptedLLM, call


@pytest.fixture(autouse=True)
def co(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / ".co"))
    return tmp_path / ".co"


def agent_with(memory: Memory, *responses: Any, name: str = "helper", plugins: Any = (), **options: Any) -> Agent:
    return Agent(name, llm=ScriptedLLM(*responses), plugins=[memory, *plugins], log=False, quiet=True, **options)


def said(memory: Memory, *texts: str) -> Agent:
    """An agent whose user said these, a turn each."""
    agent = agent_with(memory, *["Fine."] * len(texts))
    for text in texts:
        agent.input(text)
    return agent


def texts(found: Sequence[Remembered]) -> list[str]:
    return [one.text for one in found]


def one(text: str, session: str = "s", index: int = 0) -> Remembered:
    return Remembered(session, index, "user", text, 0.0)


# -- remembering ---------------------------------------------------------------------------------


def test_a_turn_is_remembered_and_found_in_a_later_session() -> None:
    memory = Memory()
    agent_with(memory, "In retry.md.").input("Where are the retries?")
    later = agent_with(memory)
    (found,) = memory.search(later, "retries")
    assert (found.who, found.text, found.index) == ("user", "Where are the retries?", 0)
    assert found.timestamp > 1e9 and found.score > 0
    (answer,) = memory.search(later, "retry.md")
    assert answer.who == "helper"


def test_a_session_that_goes_on_adds_what_is_new_only() -> None:
    memory = Memory()
    agent = said(memory, "apples", "pears")
    assert memory.add(agent) == 0
    assert texts(memory.search(agent, "apples pears fine")) != []
    with sqlite3.connect(SqliteStore().path) as database:
        assert database.execute("SELECT count(*) FROM messages").fetchone() == (4,)
    database.close()


def test_a_session_that_is_resumed_is_not_remembered_twice() -> None:
    agent = said(Memory(), "apples")
    again = agent_with(Memory(), "ok")
    again.current_session = json.loads(json.dumps(agent.current_session, default=repr))
    again.input("plums")
    memory = Memory()
    found = memory.search(again, "apples plums")
    assert sorted(texts(found)) == ["apples", "plums"] and len({match.session for match in found}) == 1


def test_adding_by_hand_takes_the_whole_session_once() -> None:
    memory = Memory(remember=False)
    agent = said(memory, "apples", "pears")
    assert memory.search(agent, "apples") == []
    assert (memory.add(agent), memory.add(agent)) == (4, 0)
    assert memory.add(agent_with(memory)) == 0


def test_what_is_said_after_older_messages_were_removed_is_not_missed() -> None:
    @after_user_input
    def compact(agent: Agent) -> None:
        assert agent.current_session is not None
        del agent.current_session["messages"][:-1]

    memory = Memory()
    agent = agent_with(memory, *"abcd", plugins=[compact])
    for text in ("apples", "pears", "plums", "grapes"):
        agent.input(text)
    assert all(texts(memory.search(agent, text)) == [text] for text in ("apples", "pears", "plums", "grapes"))


def test_what_handlers_tools_and_the_system_prompt_say_is_not_remembered() -> None:
    @after_tools
    def plan(agent: Agent) -> None:
        assert agent.current_session is not None
        agent.current_session["messages"].append({"role": "user", "content": "plan quince"})

    def look() -> str:
        """Look."""
        return "quince"

    memory = Memory()
    agent = agent_with(memory, [call("look")], "A fig.", plugins=[plan], tools=[look], system_prompt="quince")
    agent.input("Go")
    assert memory.search(agent, "quince") == [] and len(memory.search(agent, "fig")) == 1


def test_what_a_redactor_took_out_is_not_remembered() -> None:
    @after_llm
    def redact() -> str:
        return "The word is ***."

    memory = Memory()
    agent = agent_with(memory, "The word is swordfish.", plugins=[redact])
    agent.input("Say it")
    assert memory.search(agent, "swordfish") == [] and len(memory.search(agent, "word")) == 1


@pytest.mark.parametrize("mask", ["on", "off"])
def test_secrets_are_masked_as_in_the_record(mask: str, co: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "tulip-4711-violet")
    monkeypatch.setenv("CONNECTAGENT_MASK", mask)
    memory = Memory(preload=1)
    key = "sk-proj-" + "a1B2" * 10
    agent_with(memory, f"Your key {key} works.").input("Remember the flower tulip-4711-violet, " + "x" * 49_970 + key)
    kept = b"".join(path.read_bytes() for path in co.glob("memory.sqlite*"))
    assert [part in kept for part in (b"tulip-4711", b"sk-proj-a1B2")] == [mask == "off"] * 2
    later = agent_with(memory, "Hm.")
    later.input("Which flower?")
    assert ("[masked: SHOP_TOKEN]" in json.dumps(later.current_session)) == (mask == "on")


def test_the_sessions_of_agents_inside_are_remembered_masked_and_forgotten_with_the_outer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "tulip-4711-violet")

    def tree(memory: Memory, *script: Any) -> tuple[Agent, Agent]:
        answers = [f"Blossom {number}, tulip-4711-violet." for number in range(4)]
        reader = Agent("reader", llm=ScriptedLLM(*answers), log=False, quiet=True)
        return agent_with(memory, *script, name="main", tools=[reader]), reader

    asked = [[call("reader", prompt=f"Look for blossom {number}.")] for number in range(4)]
    memory = Memory()
    main, reader = tree(memory, *asked, "All four.")
    main.input("Which blossoms?")
    assert len(memory.search(reader, "blossom", 20)) == 8
    assert all("tulip-4711" not in one.text for one in memory.search(reader, "blossom", 20))
    assert texts(memory.search(main, "blossoms four")) == ["All four.", "Which blossoms?"]
    again, _ = tree(Memory(), "A daisy.")  # as another process finds it, which knows nothing but the state
    again.current_session = json.loads(json.dumps(main.current_session, default=repr))
    again.input("And in autumn?")
    assert sorted(texts(memory.search(again, "autumn daisy"))) == ["A daisy.", "And in autumn?"]
    session = memory.session(main)
    assert session is not None and session.startswith("main_") and memory.session(reader) == session
    assert memory.forget(session) == 12 and memory.search(reader, "blossom") == []


def test_a_list_of_parts_is_remembered_by_its_text_and_half_characters_are_replaced() -> None:
    memory = Memory()
    agent = agent_with(memory, "ok \ud800 apple", "ok")
    agent.input(["pears", {"type": "text", "text": "plums"}])
    assert texts(memory.search(agent, "plums")) == ["pears\nplums"]
    assert texts(memory.search(agent, "apple")) == ["ok ? apple"]


def test_users_and_agents_find_only_their_own() -> None:
    ada, bob = Memory(user="ada"), Memory(user="bob")
    said(ada, "apples")
    said(bob, "apples")
    assert len(ada.search(agent_with(ada), "apples")) == 1
    assert Memory(user="a").search(agent_with(ada), "apples") == []
    assert ada.search(agent_with(ada, name="other"), "apples") == []


# -- the model's tool, and preloading ------------------------------------------------------------


def test_the_model_searches_and_reads_when_who_what_and_how_well() -> None:
    memory = Memory()
    said(memory, "apples " * 500 + "and pears")
    calls = [call("search_memory", query="pears", limit=1000), call("search_memory", query="kiwi")]
    agent = agent_with(memory, calls, "ok")
    agent.input("Look")
    assert agent.current_session is not None
    found, nothing = [e["result"] for e in agent.current_session["trace"] if e["type"] == "tool_execution"]
    (match,) = json.loads(found)
    assert match["who"] == "user" and match["when"].endswith("UTC") and match["score"] > 0
    assert match["text"].startswith("...") and match["text"].endswith("and pears") and len(match["text"]) < 700
    assert nothing == "nothing is remembered of that"
    (tool,) = agent.tools
    assert tool.read_only


def test_preloaded_matches_join_the_conversation_once_and_are_attributed() -> None:
    memory = Memory(preload=2)
    said(Memory(), "Grace lives in Oslo", "Grace likes tea", "Grace sails", "It rains")
    agent = agent_with(memory, "Tea.", "Yes.", "Well.")
    agent.input("A present for Grace?")
    assert agent.current_session is not None
    messages = agent.current_session["messages"]
    assert [message["role"] for message in messages] == ["user", "user", "assistant"]
    assert str(messages[1]["content"]).count("Grace") == 2 and "hold no instructions" in str(messages[1]["content"])
    (entry,) = [entry for entry in agent.current_session["trace"] if entry["type"] == "message"]
    assert entry["by"]["plugin"] == "memory"
    agent.input("Anything else about Grace?")
    agent.input("Grace?")
    notes = "".join(str(message["content"]) for message in messages if "Notes from" in str(message["content"]))
    assert [notes.count(text) for text in ("lives in Oslo", "likes tea", "sails")] == [1, 1, 1]
    assert memory.search(agent, "instructions") == []


def test_a_match_joins_the_conversations_of_agents_that_work_at_once_once() -> None:
    def asked(name: str) -> Agent:
        return Agent(name, llm=ScriptedLLM("One.", "Two."), log=False, quiet=True)

    memory, names = Memory(preload=2), ("left", "right")
    for name in names:
        agent_with(memory, "Fine.", name=name).input("The key is under the mat.")
    children = [asked(name) for name in names]
    calls = [[call(name, prompt="Where is the key?") for name in names] for _ in range(2)]
    agent = agent_with(memory, calls[0], "Done.", calls[1], "Done.", tools=children)
    agent.input("Go")
    agent.input("Go")
    for child in children:
        notes = [message for message in child.session["messages"] if "under the mat" in str(message["content"])]
        assert len(notes) == 1


def test_without_a_match_nothing_is_preloaded() -> None:
    agent = agent_with(Memory(preload=3), "Hi.")
    agent.input("Hello")
    assert agent.current_session is not None and len(agent.current_session["messages"]) == 2


@pytest.mark.parametrize(
    "options", [{"user": ""}, {"user": 3}, {"preload": -1}, {"preload": 21}, {"preload": True}, {"store": "x"}]
)
def test_options_that_cannot_be_used_are_told(options: Any) -> None:
    with pytest.raises(ConfigError, match="memory: "):
        Memory(**options)


# -- queries -------------------------------------------------------------------------------------

HOSTILE = ["", " ", '"', "'", '"""', "*", "-", "a*", "^a", "NEAR(a b, 2)", "a AND", "OR", "NOT a", "(", "text:a"]
HOSTILE += ["scope:a", "'; DROP TABLE messages; --", "a\0b", "\ud800", "{a b}", "+", "%", "_", "\\", ")" * 1000]
HOSTILE += ["a" * 100_000, " ".join(f"word{n}" for n in range(10_000)), "🎉" * 5_000, "漢" * 5_000, "日本" * 3_000]
HOSTILE += ["-" * 10_000]


@pytest.mark.parametrize("query", HOSTILE, ids=range(len(HOSTILE)))
def test_any_text_is_a_query(query: str) -> None:
    memory = Memory()
    agent = said(memory, "nothing of this kind")
    assert memory.search(agent, query) == []
    assert texts(memory.search(agent, f"{query[:100]} kind")) == ["nothing of this kind"]


@pytest.mark.parametrize(
    ("text", "queries"),
    [
        ("我去年住在东京的一家酒店", ["东京", "酒店", "东京酒店在哪里", "京"]),
        ("東京タワーに行きました", ["東京", "タワー", "東京タワーはどこ"]),
        ("서울에서 만났다", ["서울", "만났"]),
        ("ฉันอยู่กรุงเทพ", ["กรุงเทพ"]),
        ("Ich wohne in München, Straße 5", ["munchen", "MÜNCHEN", "strasse", "Mu\u0308nchen"]),
        ("party on Friday 🎉", ["🎉", "FRIDAY", "what is on friday?"]),
        ("a self-hosted server, see user@example.com", ["self-hosted", "self hosted", "user@example.com", "example"]),
        ("rock'n'roll NEAR the \"AND\" gate", ["near", "rock'n'roll", 'the "gate"']),
        ("the who", ["the who", "who"]),
        ("हिन्दी भाषा", ["हिन्दी"]),
        ("ｆｕｌｌ width", ["full"]),
    ],
)
def test_words_of_all_scripts_are_found(text: str, queries: list[str]) -> None:
    memory = Memory()
    agent = said(memory, "something else 京都 北海道 부산 and the rest", text)
    for query in queries:
        assert text in texts(memory.search(agent, query))[:2], query
    assert memory.search(agent, "大阪 osaka") == []


def test_more_and_rarer_words_come_first_and_of_equal_ones_the_newest() -> None:
    memory = Memory()
    many = [f"we talked about apples {n}" for n in range(10)]
    said(memory, *many, "apples and quinces", "quinces and figs", "pears", "pears")
    agent = agent_with(memory)
    found = memory.search(agent, "apples quinces", limit=20)
    assert found[0].text == "apples and quinces" and len(found) == 12
    assert [match.score for match in found] == sorted((match.score for match in found), reverse=True)
    assert len(memory.search(agent, "apples", limit=3)) == 3
    assert memory.search(agent, "apples", limit=0) == []
    first, second = memory.search(agent, "pears")
    assert first.session == second.session and first.index > second.index


def test_among_2000_sessions_the_right_one_is_found_though_a_word_is_in_all() -> None:
    store = SqliteStore()
    store.add("u", "a", [one(f"message number{n} of a kind", f"s{n}") for n in range(2_000)])
    assert store.search("u", "a", "message number77 kind", 1)[0].session == "s77"
    assert len(store.search("u", "a", "message number77 kind", 5)) == 5
    assert store.search("u", "a", "message", 1)[0].session == "s1999"
    assert store.search("u", "a", "MESSAGE kind numberless", 3) != []


# -- forgetting ----------------------------------------------------------------------------------


def test_a_forgotten_session_is_gone_from_the_search_and_from_the_file(co: Path) -> None:
    memory = Memory()
    secret, other = said(memory, "the word is swordfish"), said(memory, "the word is apple")
    session = memory.session(secret)
    assert session is not None
    assert Memory(user="bob").forget(session) == 0
    assert (memory.forget(session), memory.forget(session)) == (2, 0)
    assert memory.search(other, "swordfish") == [] and len(memory.search(other, "apple")) == 1
    assert not any(b"swordfish" in path.read_bytes() for path in co.iterdir() if path.is_file())


def test_all_of_a_user_is_forgotten_and_nothing_of_others() -> None:
    ada, bob = Memory(user="ada"), Memory(user="bob")
    said(ada, "apples", "pears")
    agent = said(bob, "apples")
    assert bob.forget_all("ada") == 4
    assert ada.search(agent, "apples") == [] and len(bob.search(agent, "apples")) == 1
    assert (bob.forget_all(), bob.forget_all()) == (2, 0)
    assert Memory(SqliteStore("nowhere.sqlite")).forget_all() == 0


# -- many at once, damage, full disks ------------------------------------------------------------

ADDING = """
import sys
from connectagent_memory import Remembered, SqliteStore
store, me = SqliteStore(sys.argv[1]), sys.argv[2]
sys.stdin.readline()
for n in range(200):
    store.add("u", "a", [Remembered("shared", n, "user", f"from {me} number{n}", 0.0)])
"""


def test_four_processes_that_add_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "memory.sqlite"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", ADDING, str(path)]
    processes = [
        subprocess.Popen([*command, f"p{n}"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for n in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate()[1] for process in processes] == [""] * 4
    store = SqliteStore(path)
    found = [text for n in range(4) for text in texts(store.search("u", "a", f"p{n}", 1_000))]
    assert len(found) == len(set(found)) == 800


def test_agents_in_threads_share_a_memory() -> None:
    memory, problems = Memory(), []

    def work(me: int) -> None:
        try:
            agent = agent_with(memory, *["ok"] * 10)
            for turn in range(10):
                agent.input(f"thread{me} turn{turn}")
                assert memory.search(agent, f"thread{me}")
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(memory.search(agent_with(memory), "turn3", 20)) == 4


def test_adding_the_same_again_adds_nothing_and_another_text_at_its_place_does() -> None:
    store = SqliteStore()
    assert [store.add("u", "a", [one(text)]) for text in ("x", "x", "y")] == [1, 0, 1]


def test_files_are_the_owners_only_and_kept_out_of_git(co: Path) -> None:
    said(Memory(), "apples")
    assert [path.stat().st_mode & 0o777 for path in co.glob("memory*")] == [0o600]
    assert (co / ".gitignore").read_text("utf-8") == "*\n"


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_told_when_the_agent_is_made(co: Path, content: bytes) -> None:
    co.mkdir()
    (co / "memory.sqlite").write_bytes(content)
    with pytest.raises(MemoryStoreError, match=r"the memory .*memory\.sqlite cannot be used: .*Move it away"):
        agent_with(Memory())
    assert (co / "memory.sqlite").read_bytes() == content


def test_a_file_of_a_newer_version_is_told(co: Path) -> None:
    said(Memory(), "apples")
    database = sqlite3.connect(co / "memory.sqlite")
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(MemoryStoreError, match="newer connectagent-memory"):
        agent_with(Memory())


def test_a_file_that_breaks_later_costs_one_warning_and_no_turn(co: Path) -> None:
    memory = Memory(preload=2)
    agent = agent_with(memory, "one", "two", "three", [call("search_memory", query="apples")], "four")
    agent.input("apples")
    kept = (co / "memory.sqlite").read_bytes()
    (co / "memory.sqlite").write_bytes(b"broken" * 10_000)
    with pytest.warns(PluginWarning, match="the agent goes on without it"):
        assert agent.input("pears") == "two"
    assert agent.input("plums") == "three"  # warnings are errors here: a second one would fail
    (co / "memory.sqlite").write_bytes(kept)
    assert agent.input("grapes") == "four"
    assert all(texts(memory.search(agent, text)) == [text] for text in ("apples", "pears", "plums", "grapes"))


def test_a_full_disk_costs_one_warning_and_no_turn() -> None:
    memory = Memory()
    agent = agent_with(memory, "x" * 100, "y " * 30_000, "ok")
    agent.input("apples")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))
    try:
        with pytest.warns(PluginWarning, match=r"memory\.sqlite cannot be used"):
            assert agent.input("pears").startswith("y y")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    agent.input("plums")
    assert all(texts(memory.search(agent, text)) == [text] for text in ("apples", "pears", "plums"))


def test_a_state_that_is_not_the_plugins_is_told() -> None:
    agent = said(Memory(), "apples")
    assert agent.current_session is not None
    agent.current_session["state"]["memory"] = {"mine": 1}
    with pytest.raises(MemoryStoreError, match="this plugin's"):
        Memory().add(agent)


def test_another_store_needs_four_methods() -> None:
    class Few:
        def __init__(self) -> None:
            self.kept: list[Remembered] = []

        def check(self) -> None:
            pass

        def add(self, user: str, agent: str, messages: Sequence[Remembered]) -> int:
            self.kept += messages
            return len(messages)

        def search(self, user: str, agent: str, query: str, limit: int) -> list[Remembered]:
            return [one for one in self.kept if query in one.text][:limit]

        def forget(self, user: str, session: str | None = None) -> int:
            self.kept.clear()
            return 1

    memory = Memory(Few())
    agent = said(memory, "apples")
    assert texts(memory.search(agent, "apple")) == ["apples"]
    assert memory.forget_all() == 1 and memory.search(agent, "apple") == []


def test_the_example_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CONNECTAGENT_MODEL", "offline")
    text = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    exec(text.split("```python\n")[1].split("```")[0], {})
    assert "user My sister Grace lives in Oslo." in capsys.readouterr().out


@pytest.mark.parametrize("preload", [0, 3])
def test_it_keeps_the_rules_on_every_path(agenttester: AgentTester, preload: int) -> None:
    changes = {"tools", "state", "outside", *(["messages"] if preload else [])}
    agenttester.check(lambda: Memory(preload=preload), changes=changes)


def test_no_link_of_a_folder_leads_to_the_memories_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.sqlite"
    said(Memory(SqliteStore(other)), "The code is 4711.")
    before = other.read_bytes()
    (tmp_path / "clone" / ".co").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "clone")
    monkeypatch.delenv("CONNECTAGENT_DIR")
    Path(".co/memory.sqlite").symlink_to(other)
    with pytest.raises(ConfigError, match="leads out of the project"):
        said(Memory(), "What is the code?")
    assert other.read_bytes() == before
