"""Sessions are found by id, by the beginning of one, and by the agent's name: by code and by every command."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import forked
import pytest

from connectagent import Agent, Pause, Paused, before_each_tool, before_llm, on_complete
from connectagent.errors import ConfigError
from connectagent.records.find import find_record, last_record_of, session_id
from connectagent.records.read import read_record
from connectagent.testing import ScriptedLLM, call, replayed

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


def talker(*script: Any, name: str = "talker", **options: Any) -> Agent:
    return Agent(name, llm=ScriptedLLM(*script or ("Hello.", "Bye.", "More.")), quiet=True, **options)


def with_id(record: Path | None, id: str) -> Path:
    """A record, given another id."""
    assert record is not None
    record.write_text(record.read_text().replace(f'id: "{session_id(record)}"', f'id: "{id}"', 1))
    return record


# -- the id ------------------------------------------------------------------------------------------


def test_handlers_tools_and_inner_agents_see_the_id_of_the_session() -> None:
    seen: dict[str, Any] = {}

    def look(agent: Any) -> str:
        """Look."""
        seen["tool"] = agent.session["id"]
        return "seen"

    @before_llm
    def inside(agent: Any) -> None:
        seen["inner"] = agent.session["id"]

    @on_complete
    def outside(agent: Any) -> None:
        seen["handler"] = agent.session["id"]

    helper = talker(on_events=[inside], name="helper")
    script = ([call("look"), call("look"), call("helper", prompt="Hm?")], "Done.")
    chief = Agent("chief", [look, helper], llm=ScriptedLLM(*script), quiet=True, on_events=[outside], parallel_tools=3)
    chief.input("Go")
    assert chief.record is not None
    assert seen == dict.fromkeys(("tool", "inner", "handler"), read_record(chief.record)["id"])
    own = chief.session["id"]
    helper.input("And by yourself?")  # a session of its own
    assert helper.session["id"] == session_id(helper.record or Path()) != own
    assert not [entry for entry in chief.session["trace"] if entry["type"] == "session_delta"]


def test_a_session_keeps_its_id_over_turns_and_resumes_and_a_new_one_or_a_fork_has_another() -> None:
    first = talker()
    first.input("One")
    id = first.session["id"]
    first.input("Two")
    assert first.session["id"] == id
    again, fork = talker(), talker()
    again.resume(first.record)
    assert again.session["id"] == id
    fork.resume(first.record, fork=True)
    fork.input("Three")
    assert fork.session["id"] == session_id(fork.record or Path()) != id
    first.reset_conversation()
    first.input("Anew")
    assert first.session["id"] not in (id, fork.session["id"])


def test_a_session_without_a_record_has_an_id_too(folder: Path) -> None:
    one = talker(log=False)
    one.input("One")
    id = one.session["id"]
    one.input("Two")
    assert len(id) == 12 and one.session["id"] == id
    one.reset_conversation()
    one.input("Three")
    assert one.session["id"] != id
    recorded = talker()
    recorded.input("One")
    one.resume(recorded.record)
    assert one.session["id"] == recorded.session["id"]


def test_a_handler_that_sends_the_id_is_replayed_as_it_was() -> None:
    @before_llm
    def sign(agent: Any, request: Any) -> None:
        request.messages = [*request.messages, {"role": "user", "content": agent.session["id"]}]

    one = talker(plugins=[sign])
    one.input("One")
    assert one.record is not None
    assert replayed(one.record, talker(plugins=[sign])).same


# -- agent.resume ------------------------------------------------------------------------------------


def test_a_session_is_resumed_by_its_id_the_beginning_of_it_and_its_agents_name() -> None:
    one, two = talker(), talker("Other.", name="other")
    one.input("One")
    two.input("Two")
    one.close()
    id = one.session["id"]
    for text in (id, id[:4], "talker", str(one.record)):
        again = talker("More.")
        assert again.resume(text) == "Hello."
        assert again.session["id"] == id
    assert again.input("And?") == "More."
    assert talker().resume("talker") == "More."  # of the same session, which has one turn more


def test_a_name_is_that_of_an_agent_before_it_is_the_beginning_of_an_id_or_of_a_name() -> None:
    for name in ("face", "face_2", "other"):
        talker(name=name).input("Hello")
    with_id(last_record_of("other"), "face00000000")
    assert find_record("face").name.startswith("face_2")  # the year, or the agent "face_2"
    assert read_record(find_record("face"))["agent"] == "face"
    assert read_record(find_record("face0"))["agent"] == "other"


def test_an_agents_name_with_odd_characters_finds_its_record() -> None:
    talker(name="über/shop 2").input("Hello")
    assert talker(name="über/shop 2").resume("über/shop 2") == "Hello."


def test_several_that_fit_and_none_are_errors_with_the_candidates() -> None:
    records = []
    for name, id in (("one", "ab1200000000"), ("two", "ab1300000000"), ("three", "cd0000000000")):
        agent = talker(name=name)
        agent.input("Hello")
        records.append(with_id(agent.record, id))
    with pytest.raises(ConfigError) as told:
        with_id(records[1], "ab1200000001")
        talker().resume("ab12")
    assert "2 records begin with 'ab12'" in str(told.value)
    for known in ("one_", "two_", "ab1200000000", "ab1200000001"):
        assert known in str(told.value)
    with pytest.raises(ConfigError, match=r"there is no record 'tree' in .*evals; there is: three"):
        talker().resume("tree")
    with pytest.raises(ConfigError, match=r"there is no record 'ffff' in .*\(id cd0000000000\)"):
        talker().resume("ffff")
    with pytest.raises(ConfigError, match=r"there is no record 'cd0'"):  # too short for the beginning of an id
        talker().resume("cd0")


@pytest.mark.posix("tells no owner by a number")
def test_only_the_records_of_this_project_and_user_are_known_by_id(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = talker()
    one.input("One")
    id, record = one.session["id"], one.record
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    with pytest.raises(ConfigError, match="no records yet"):
        talker().resume(id)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    for text in (id, "talker"):
        with pytest.raises(ConfigError, match="belongs to another user"):
            talker().resume(text)
    assert talker().resume(record) == "Hello."


def test_a_link_into_another_folder_is_found_by_no_id(folder: Path) -> None:
    one = talker()
    one.input("One")
    assert one.record is not None
    away = folder / "away.yaml"
    one.record.rename(away)
    one.record.symlink_to(away)
    talker(name="other").input("Hello")
    with pytest.raises(ConfigError, match="there is no record"):
        talker().resume(one.session["id"])


def test_a_paused_session_and_its_inner_one_are_decided_by_id() -> None:
    paid: list[int] = []

    def pay(eur: int) -> str:
        """Pay."""
        paid.append(eur)
        return "paid"

    @before_each_tool
    def ask() -> None:
        raise Pause("sure?")

    def chief(*inner: Any) -> Agent:
        clerk = Agent("clerk", [pay], llm=ScriptedLLM(*inner), quiet=True, on_events=[ask])
        script = (call("clerk", prompt="Pay."), "All done.") if len(inner) == 2 else ("All done.",)
        return Agent("chief", [clerk], llm=ScriptedLLM(*script), quiet=True)

    first = chief(call("pay", eur=3), "Paid.")
    with pytest.raises(Paused):
        first.input("Pay")
    id = first.session["id"]
    with pytest.raises(Paused):
        chief("Paid.").resume(id[:6])
    assert chief("Paid.").resume(id[:6], approve=True) == "All done."
    assert paid == [3]


def test_a_session_that_was_handed_over_goes_on_with_the_agent_that_answers() -> None:
    def desk(*script: Any, answers: tuple[Any, ...]) -> Agent:
        billing = Agent("billing", llm=ScriptedLLM(*answers), description="Knows bills.", quiet=True)
        return Agent("desk", sub_agents=[billing], llm=ScriptedLLM(*script), quiet=True)

    first = desk(call("transfer_to_agent", agent_name="billing"), answers=("It is paid.",))
    first.input("My bill?")
    id = first.session["id"]
    assert first.children[0].session["id"] == id
    again = desk(answers=("Yes.",))
    assert again.resume(id[:5]) == "It is paid."
    assert again.input("Really?") == "Yes."
    assert (again.session["active_agent"], again.session["id"], again.children[0].session["id"]) == ("billing", id, id)


def test_a_session_that_was_cut_off_is_finished_by_the_name_of_its_agent() -> None:
    one = talker()
    one.input("One")
    assert one.record is not None
    text = one.record.read_text()
    one.record.write_text(text[: text.index('  - {"type": "began"')])
    assert talker("Finished.").resume("talker") == "Finished."


def test_a_fork_is_resumed_by_an_id_of_its_own() -> None:
    one = talker()
    one.input("One")
    fork = talker("Forked.")
    fork.resume("talker", fork=True)
    fork.input("Two")
    assert talker().resume(fork.session["id"]) == "Forked."
    assert talker().resume(one.session["id"]) == "Hello."


def test_a_record_without_an_id_that_can_be_read_does_not_hide_the_others(folder: Path) -> None:
    one = talker()
    one.input("One")
    evals = folder / ".co" / "evals"
    (evals / "odd_2026-01-01T00-00-00.yaml").write_bytes(b'agent: odd\nturns:\n- turn: 1\n  input: "x"\nid: "abcd"\n')
    (evals / "empty_2026-01-01T00-00-00.yaml").touch()
    (evals / "bytes_2026-01-01T00-00-00.yaml").write_bytes(b"\xff\xfe" * 9999)
    assert find_record(one.session["id"][:5]) == one.record
    with pytest.raises(ConfigError, match="there is no record 'abcd'"):
        find_record("abcd")


# -- the command line --------------------------------------------------------------------------------

SCRIPT = """
from connectagent import Agent, LLMResponse

class Counts:
    model = "counts"

    def complete(self, messages, tools=None):
        asked = [message["content"] for message in messages if message["role"] == "user"]
        return LLMResponse(f"{len(asked)}: {asked[-1]}")

agent = Agent("shop", llm=Counts())
"""


def co(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return forked.run(
        "-m", "connectagent", *arguments,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(Path.cwd())},
        input=stdin,
        timeout=60,
    )


@pytest.fixture
def id(folder: Path) -> str:
    """Of a session that `agent.py` began."""
    (folder / "agent.py").write_text(SCRIPT)
    assert co("run", "agent.py", "Hello", "--quiet").stdout == "1: Hello\n"
    found = session_id(last_record_of("shop"))
    assert found is not None
    return found


@pytest.mark.parametrize(
    "command",
    [
        ["log", "show", "ID"],
        ["log", "tail", "ID"],
        ["log", "diff", "ID", "ID"],
        ["log", "export", "ID"],
        ["blame", "ID", "0"],
        ["replay", "ID"],
        ["resume", "ID"],
    ],
)
def test_every_command_takes_the_beginning_of_an_id(command: list[str], id: str) -> None:
    done = co(*(id[:6] if word == "ID" else word for word in command))
    assert done.returncode == 0 and "error" not in done.stderr, done.stderr
    none = co(*("ffffff" if word == "ID" else word for word in command))
    assert none.returncode in (1, 2) and "there is no record 'ffffff'" in none.stderr and id in none.stderr


def test_the_list_shows_the_ids(id: str) -> None:
    assert co("log", "list").stdout.splitlines()[1].split()[2] == id[:6]
    assert f'"id": "{id}"' in co("log", "list", "--json").stdout


@pytest.mark.parametrize(
    "options",
    [["agent.py", "--continue"], ["--continue"], ["agent.py", "--resume", "ID"], ["--resume", "ID"],
     ["--resume", "shop"]],
)  # fmt: skip
def test_a_chat_goes_on_with_a_session(options: list[str], id: str) -> None:
    done = co("chat", *(id[:4] if word == "ID" else word for word in options), stdin="And now?\n")
    assert (done.returncode, done.stdout) == (0, "1: Hello\n2: And now?\n"), done.stderr
    (record,) = Path(".co/evals").glob("*.yaml")
    assert [turn["result"] for turn in read_record(record)["turns"]] == ["1: Hello", "2: And now?"]


def test_a_chat_without_a_script_goes_on_too(folder: Path) -> None:
    co("chat", "--model", "offline", stdin="one\n")
    done = co("chat", "--model", "offline", "--continue", stdin="two\n")
    assert done.returncode == 0, done.stderr
    (record,) = Path(".co/evals").glob("chat_*.yaml")
    assert [turn["input"] for turn in read_record(record)["turns"]] == ["one", "two"]


def test_a_chat_finishes_a_turn_that_was_cut_off(id: str) -> None:
    record = last_record_of("shop")
    text = record.read_text()
    record.write_text(text[: text.index('  - {"type": "llm_call"')])
    done = co("chat", "agent.py", "--continue", stdin="And now?\n")
    assert (done.returncode, done.stdout) == (0, "1: Hello\n2: And now?\n"), done.stderr


def test_a_chat_does_not_go_past_what_waits_for_a_person(folder: Path) -> None:
    (folder / "waits.py").write_text(
        "from connectagent import Agent, Pause, before_llm\nfrom connectagent.testing import ScriptedLLM\n\n"
        "@before_llm\ndef ask():\n    raise Pause('sure?')\n\n"
        "agent = Agent('waits', llm=ScriptedLLM('Done.'), on_events=[ask])\n"
    )
    assert co("run", "waits.py", "Go", "--quiet").returncode == 75
    done = co("chat", "waits.py", "--continue", stdin="And now?\n")
    assert done.returncode == 75 and "sure?" in done.stderr and "connectagent resume" in done.stderr
    assert [turn["input"] for turn in read_record(last_record_of("waits"))["turns"]] == ["Go"]


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--continue", "--resume", "ID"], 2, "one of --continue and --resume"),
        (["--resume", "ID", "--system", "Be brief."], 2, "--system is for a new session"),
        (["--resume", "ffff"], 1, "there is no record 'ffff'"),
        (["other.py", "--resume", "ID"], 1, "a session of agent 'shop', and 'other.py' makes agent 'other'"),
        (["other.py", "--continue"], 1, "agent 'other' has no record in"),
    ],
)
def test_a_chat_that_cannot_go_on_says_why(options: list[str], code: int, says: str, id: str, folder: Path) -> None:
    (folder / "other.py").write_text(SCRIPT.replace("shop", "other"))
    done = co("chat", *(id if word == "ID" else word for word in options), stdin="And now?\n")
    assert (done.returncode, done.stdout) == (code, "") and says in done.stderr, done.stderr
    assert len(list(Path(".co/evals").glob("*.yaml"))) == 1


def test_a_chat_runs_no_script_that_a_record_from_elsewhere_names(id: str, folder: Path) -> None:
    away = folder / "away.yaml"
    last_record_of("shop").rename(away)
    done = co("chat", "--resume", str(away), stdin="And now?\n")
    assert done.returncode == 1 and "connectagent chat agent.py --resume away.yaml" in done.stderr, done.stderr
