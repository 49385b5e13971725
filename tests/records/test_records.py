"""Reading records: exactly what YAML reads, nothing of a torn line, and little of a long file."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from record_agents import __file__ as helpers
from record_agents import worker

from connectagent import Agent, after_tools
from connectagent.errors import ConfigError
from connectagent.records import file as record_file
from connectagent.records.file import BETWEEN_TURNS
from connectagent.records.find import Listing, all_records, find_record, records_folder
from connectagent.records.follow import Follower, follow
from connectagent.records.history import joined_turns
from connectagent.records.locks import lock, owner
from connectagent.records.read import load_record, read_record
from connectagent.records.summary import summarise
from connectagent.records.yaml_lines import json_line
from connectagent.session.usage import spent_in
from connectagent.testing import ScriptedLLM, call


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


def path_of(agent: Agent) -> Path:
    path = agent.record
    assert path is not None
    return path


def say(text: str) -> str:
    """Say something."""
    if text == "bad":
        raise ValueError("no: # \x85 way")
    return f"{text} é\u2028\U0001f600 \x1b[31m" + "x" * 40


def varied() -> Path:
    """A record of three turns and what came between them, with all that a record may hold."""

    @after_tools
    def notes(agent: Agent) -> None:
        session: Any = agent.current_session
        session["messages"].append({"role": "user", "content": 'Note: "it" \\ 日本\u2029'})
        session["state"]["n"] = {"a b": [1.5, 1e-07, None, True]}

    script = [
        [call("say", text="α: [1]"), call("say", text="bad")],
        "Done: # 'é'",
        [call("gone", x=1)],
        "\x85\n- b",
        "",
    ]
    agent = Agent("väried", [say], 'Be "good".\n', llm=ScriptedLLM(*script), plugins=[notes], quiet=True)
    agent.input("First: é?\n- {")
    agent.execute_tool("say", {"text": "between"})
    agent.input("null")
    agent.input("\U0001f600")
    return path_of(agent)


def by_yaml(data: bytes) -> Any:
    """What a YAML reader makes of a record's whole lines."""
    record = yaml.load(data.rpartition(b"\n")[0], Loader=yaml.CSafeLoader) or {}
    record["turns"] = record.get("turns") or []
    for turn in record["turns"]:
        turn["trace"] = turn.get("trace") or []
    return record


# -- what is read is what was written --------------------------------------------------------------


def test_a_record_that_is_cut_at_any_byte_is_a_prefix_of_what_was_written(folder: Path) -> None:
    data = varied().read_bytes()
    assert 5000 < len(data) < 12_000
    whole = by_yaml(data)
    torn = folder / "torn.yaml"
    for end in range(len(data) + 1):
        torn.write_bytes(data[:end])
        record = load_record(torn)
        turns = record.pop("turns")
        assert list(record.items()) == [(key, value) for key, value in whole.items() if key != "turns"][: len(record)]
        for number, turn in enumerate(turns):
            written = whole["turns"][number]
            if number < len(turns) - 1:
                assert turn == written
            trace, keys = turn.pop("trace"), list(turn)
            assert trace == written["trace"][: len(trace)]
            assert turn == {key: written[key] for key in keys}
            assert keys == [key for key in written if key != "trace"][: len(keys)]
    assert turns[-1]["status"] == "answered"


def test_a_summary_of_a_record_that_is_cut_at_any_byte_never_invents_an_end(folder: Path) -> None:
    data = varied().read_bytes()
    torn = folder / "torn.yaml"
    ends = {index + near for index, byte in enumerate(data) if byte == ord("\n") for near in (0, 1, 2)}
    for end in sorted(ends | set(range(0, len(data), 13))):
        torn.write_bytes(data[:end])
        turns = read_record(torn)["turns"]
        own = [turn for turn in turns if turn.get("status") != BETWEEN_TURNS]
        expected = own[-1].get("status", "crashed") if own else "empty"
        summary = summarise(torn)
        assert summary.status == expected
        assert summary.turns == (own[-1]["turn"] if own else 0)
        ended = [turn["session"] for turn in own if "session" in turn]
        sums = {**ended[-1]} if ended else {"turns": 0, "iterations": 0, "tools": 0, "tokens": None, "cost": 0.0}
        assert summary.totals is not None
        last = max((at for at, turn in enumerate(turns) if "session" in turn), default=-1)
        spent = spent_in(line for turn in turns[last + 1 :] for line in turn["lines"])
        if spent.calls:  # of a turn that was cut off
            sums["tokens"] = sums["tokens"] if spent.tokens is None else (sums["tokens"] or 0) + spent.tokens
            known = sums.pop("known_cost", sums["cost"]) + spent.known_cost
            sums["cost"] = None if None in (sums["cost"], spent.cost) else known
            sums |= {"known_cost": known} if sums["cost"] is None else {}
        assert summary.totals.data() == sums


def test_records_of_the_writer_are_read_without_yaml() -> None:
    code = f"from connectagent.records.read import read_record; import sys; read_record({str(varied())!r})"
    code += "; print('yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def _plain_agent() -> Agent:
    agent = worker(calls=3, system_prompt="a: b")
    agent.input("Go: # on")
    return agent


LINES = [
    "- turn: 1",
    "  trace:",
    "  - {}",
    "  key: v",
    "turns:",
    "other: 5",
    "  status: no",
    '  - {"a":[1,-0,true,null,1.5e+3,-2.5E-7,0.0]}',
    '  - {"a": 1e5}',
    '  - {"a": 1.0e5, "b": NaN, "c": -Infinity}',
    '  - {"\\ud83d\\ude00": "\\u00e9\\/\\b\\f"}',
    '  - {"<<": {"a": 1}, "a": 2, "a": 3, "=": 1}',
    '  - {"k": .inf, ? "x" : 1}',
    '  - {"k": [-.inf, .nan, "a, .nan", NaN], ? "x" : {"? \\"": .nan}}',
    *('  - {"k":? "v"}', '  - {"k": ? "v"}', '  - [? "v"]', '  - {"k": [? "v", 1]}', '  - ? "v"', '  - {? "v"}'),
    *('  - {"k": 1,? "v": 2}', '  - {"k": [1, ? "v": 2]}', '  - {"k":? "v", "x": 1}', '  - {? "k": ? "v"}'),
    '  - {"k":.inf, "l": [.nan,.inf,- .inf], "m": -.nan}',
    "  - .nan",
    "  input: .inf",
    '  - {"a": "\\\\ud83d", "b": "\\\\\\ud83d"}',
    "  - 7",
    "  messages: on",
    "  - {a: b, c: &x 1}",
    '  - {"x": *x}',
    '  - {"' + "k" * 1100 + '": 1}',
    '  - {"a": ' + "[" * 150 + "]" * 150 + "}",
    '  - {"a": 2026-11-21, "b": 0x1f, "c": 1_0, "d": 012, "e": 1:30, "f": yes, "g": ~}',
    "  - [1]",
    "  - text",
    "  - ",
    '  input: "a\\tb" # c',
    "  input: |",
    "  input: 'it''s'",
    "  input: 2026-11-21",
    "  input: 2026-11-21T10:00:00Z",
    "  input: 2026-13-21T10:00:00Z",
    "  yes: 1",
    "  input: Yes",
    "  input: ~",
    "  input:  x ",
    '  input: "\x85"',
    '  input: "\t"',
    "\tinput: 5",
    "# comment",
    "---",
    "...",
    "",
    "{",
    "&a b: 1",
]


@given(st.lists(st.sampled_from(LINES) | st.text(max_size=12), max_size=8), st.data())
@settings(
    max_examples=int(os.environ.get("PROPERTY_CASES", "300")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_text_is_read_as_yaml_reads_it_or_refused(folder: Path, lines: list[str], data: Any) -> None:
    start = data.draw(st.sampled_from(["", "agent: a\nturns:\n- turn: 1\n", "turns:\n- turn: 1\n  trace:\n"]))
    _assert_same((start + "\n".join(lines)).encode("utf-8", "replace").decode())


@pytest.mark.parametrize("line", LINES)
def test_each_line_is_read_as_yaml_reads_it_or_refused(folder: Path, line: str) -> None:
    _assert_same("turns:\n- turn: 1\n  trace:\n" + line)


def _assert_same(text: str) -> None:
    """What is read is what YAML reads; YAML may refuse a key that is long."""
    path = Path("any.yaml")
    path.write_bytes(text.encode() + b"\n")
    try:
        fast = load_record(path)
    except ConfigError:
        return
    try:
        slow = by_yaml(path.read_bytes())
    except yaml.YAMLError:
        assert "k" * 1100 in text
        return
    assert repr(fast) == repr(slow), text


@given(st.data())
@settings(
    max_examples=int(os.environ.get("PROPERTY_CASES", "160")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_record_with_characters_changed_is_read_as_yaml_reads_it(folder: Path, data: Any) -> None:
    plain = folder / "plain.yaml"  # one agent for all examples
    text = plain.read_text() if plain.exists() else path_of(_plain_agent()).rename(plain).read_text()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        new = data.draw(st.sampled_from([*"\"'\\{}[]:,#-&*!|>%@`?~ \n\t\r01eE.uyn", "\u2028", "é", ": ", " #", "- "]))
        text = text[:at] + new + text[at + data.draw(st.integers(0, 1)) :]
    _assert_same(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.lists(st.dictionaries(st.text(), VALUES), max_size=4), st.text())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_writer_writes_is_read_as_yaml_reads_it(folder: Path, entries: list[Any], prompt: str) -> None:
    lines = [f"agent: {json_line(prompt)}", "turns:", "- turn: 1", f"  input: {json_line(prompt)}", "  trace:"]
    lines += [f"  - {json_line(entry)}" for entry in entries]
    path = folder / "written.yaml"
    path.write_bytes(("\n".join([*lines, "  status: answered"]) + "\n").encode())
    assert repr(load_record(path)) == repr(by_yaml(path.read_bytes()))


# -- a long list from heads and tails ----------------------------------------------------------------


def bytes_read() -> int:
    """What this process has read from files so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count what is read")
def test_five_thousand_records_are_listed_from_their_heads_and_tails(folder: Path) -> None:
    agent = worker(rounds=3, calls=3, system_prompt="Work.")
    for number in range(30):
        agent.input(f"Turn {number}")
    path = path_of(agent)
    data = path.read_bytes()
    for number in range(5000):
        stamp = f"2026-01-{1 + number % 28:02}T{number // 280:02}-{number // 5 % 60:02}-00"
        os.link(path, path.parent / f"copy{number}_{stamp}.yaml")
    paths = all_records()
    assert len(paths) == 5001
    size = len(data) * len(paths)
    before, started = bytes_read(), time.perf_counter()
    summaries = [summarise(path) for path in paths]
    took, read = time.perf_counter() - started, bytes_read() - before
    assert {summary.status for summary in summaries} == {"answered"}
    assert {summary.totals.tools for summary in summaries if summary.totals} == {270}
    assert read <= len(paths) * 2 * 4096 + 10_000
    assert read < size / 10
    started = time.perf_counter()
    for each in paths[:50]:
        read_record(each)
    assert took / len(paths) < (time.perf_counter() - started) / 50 / 5


def test_a_long_prompt_and_a_long_answer_do_not_hide_the_head_and_the_sums() -> None:
    agent = Agent("long", [say], "s" * 20_000, llm=ScriptedLLM(call("say", text="t" * 9000), "é" * 9000), quiet=True)
    agent.input("  \n\n First \x1b words\n" + "p" * 30_000)
    summary = summarise(path_of(agent))
    assert (summary.first_words, summary.status, summary.turns) == ("First \x1b words", "answered", 1)
    assert summary.totals is not None
    assert (summary.totals.iterations, summary.totals.tools) == (2, 1)
    assert summary.started is not None


def test_the_sums_are_those_of_all_turns_and_a_reset_begins_anew() -> None:
    agent = worker(rounds=2, calls=2)
    for _ in range(3):
        agent.input("Go.")
    sums = summarise(path_of(agent)).totals
    assert sums is not None
    assert sums.data() == {"turns": 3, "iterations": 9, "tools": 12, "tokens": 1080, "cost": pytest.approx(9e-05)}
    agent.reset_conversation()
    agent.input("Go.")
    assert summarise(path_of(agent)).turns == 1


# -- the status ------------------------------------------------------------------------------------


def test_a_turn_that_never_ended_is_running_while_its_writer_holds_the_lock_and_crashed_afterwards() -> None:
    agent = worker()
    agent.input("One.")
    path = path_of(agent)
    with path.open("a") as file:
        file.write('- turn: 2\n  input: Two.\n  trace:\n  - {"type": "user_input", "turn": 2, "prompt": "Two."}\n')
    code = (
        "import sys; from connectagent.records.locks import lock\n"
        f"file = open({str(path)!r}, 'a'); lock(file.fileno())\n"
        "print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        running = summarise(path)
        writer.kill()
        writer.wait()
    assert (running.status, running.turns, running.totals and running.totals.turns) == ("running", 2, 1)
    assert summarise(path).status == "crashed"
    with path.open("a") as file:  # reading has left no lock behind
        assert lock(file.fileno())


@pytest.mark.parametrize("items", ["", '- turn: 2\n  status: between_turns\n  trace:\n  - {"type": "began"}\n'])
@pytest.mark.parametrize("status", ["paused", "max_iterations", "error"])
def test_the_status_is_the_last_turns_whatever_comes_behind_it(status: str, items: str, folder: Path) -> None:
    path = folder / "a_2026-01-01T00-00-00.yaml"
    first = "- turn: 1\n  input: One\n  trace:\n  status: answered\n"
    second = f'- turn: 2\n  input: Two\n  trace:\n  error: "x"\n  status: {status}\n'
    path.write_text(f"agent: a\nmodel: m\nturns:\n{first}{second}{items}")
    summary = summarise(path)
    assert (summary.status, summary.turns, summary.totals) == (status, 2, None)


def test_a_turn_that_was_resumed_is_one_turn_with_the_status_of_its_last_item(folder: Path) -> None:
    path = folder / "a.yaml"
    head = "agent: a\nmodel: m\nturns:\n"
    one = '- turn: 1\n  input: One\n  trace:\n  - {"type": "user_input"}\n  tokens: 5\n  cost: null\n  status: paused\n'
    two = (
        '- turn: 1\n  resumed: true\n  trace:\n  - {"type": "llm_call"}\n  tokens: 7\n  cost: 0.5\n  status: answered\n'
    )
    path.write_text(head + one + two)
    assert summarise(path).status == "answered"
    (turn,) = joined_turns(read_record(path))
    assert (turn["input"], turn["tokens"], turn["cost"], turn["status"]) == ("One", 12, None, "answered")
    assert [entry["type"] for entry in turn["trace"]] == ["user_input", "llm_call"]
    path.write_text(head + one + two.replace("  status: answered\n", ""))
    assert summarise(path).status == "crashed"
    assert "status" not in joined_turns(read_record(path))[0]


def test_a_turn_that_another_host_began_has_not_crashed_as_far_as_anybody_here_knows(folder: Path) -> None:
    path = varied()
    data = path.read_bytes()
    open_turn = data[: data.rindex(b"  session: ")]
    path.write_bytes(open_turn)
    assert load_record(path)["turns"][-1]["owner"] == owner()
    assert summarise(path).status == "crashed"
    before, _, after = open_turn.rpartition(f'"host": {json.dumps(platform.node())}'.encode())
    path.write_bytes(before + b'"host": "another"' + after)
    assert summarise(path).status == "unfinished"
    path.write_bytes(path.read_bytes().replace(b"  owner: {", b"  owner: ["))  # nonsense is no owner
    assert summarise(path).status == "crashed"
    path.write_bytes(data)
    assert summarise(path).status == "answered"


def test_a_folder_is_listed_again_when_it_has_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[Path | None] = []

    def listing_of(path: Path | None = None) -> list[Path]:
        listed.append(path)
        return all_records(path)

    monkeypatch.setattr("connectagent.records.find.all_records", listing_of)
    listing, records = Listing(), varied().parent
    first = listing.records(records)
    assert first == listing.records(records) == all_records(records) and len(listed) == 2  # it was changed just now
    os.utime(records, (1, 1))
    assert first == listing.records(records) == listing.records(records) and len(listed) == 3
    second = varied()
    assert second in listing.records(records) and len(listed) == 4
    os.utime(records, (2, 2))
    second.unlink()
    assert listing.records(records) == first
    assert listing.records(folder / "gone") == []


def test_what_is_no_record_is_told(folder: Path) -> None:
    for text in ("\0\1", "- 1\n", "key: 5\n", "x" * 9000):
        (folder / "x.yaml").write_text(text)
        with pytest.raises(ConfigError, match=r"x\.yaml: not a record"):
            summarise(folder / "x.yaml")


TURN = '- turn: 1\n  input: "x"\n  trace:\n  - {"type": "user_input", "turn": 1}\n'


@pytest.mark.parametrize(
    "more", ['  trace:\n  - {"type": "b"}\n', "turns:\n- turn: 2\n", 'other: 1\n- turn: 2\n  input: "y"\n']
)
def test_a_second_list_of_lines_or_turns_is_refused_and_takes_no_firsts_place(more: str, folder: Path) -> None:
    (folder / "x.yaml").write_text(f"format: 1\nagent: a\nturns:\n{TURN}{more}")
    with pytest.raises(ConfigError, match=r"x\.yaml: not a record: line \d is not a key with a value"):
        read_record(folder / "x.yaml")


# -- which one ---------------------------------------------------------------------------------------


def test_a_record_is_found_by_path_name_beginning_agent_or_as_the_last(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no records yet"):
        find_record()
    assert not (folder / ".co").exists()
    evals = records_folder()
    evals.mkdir(parents=True)
    names = [
        "bot_2026-01-01T00-00-00",
        "bot_2026-01-02T00-00-00-2",
        "bot_2026-01-02T00-00-00",
        "clerk_2025-01-01T00-00-00",
    ]
    for name in names:
        (evals / f"{name}.yaml").write_text("agent: bot\nturns:\n")
    newest = evals / f"{names[1]}.yaml"
    for text in (None, "", "last", "bot", names[1], f"{names[1]}.yaml", str(newest), os.path.relpath(newest)):
        assert find_record(text).resolve() == newest.resolve()
    assert find_record("cl").stem == names[3]
    assert find_record(names[2]).stem == names[2]
    with pytest.raises(ConfigError, match=r"3 records begin with 'bot_2026', the newest bot_2026-01-02T00-00-00-2"):
        find_record("bot_2026")
    with pytest.raises(ConfigError, match=r"no record 'clork' in .*; there is: clerk"):
        find_record("clork")


# -- while it grows ------------------------------------------------------------------------------------


def test_a_tool_that_begins_in_an_agent_inside_is_not_shown_in_the_trace_of_the_root() -> None:
    child = Agent("child", [say], llm=ScriptedLLM(call("say", text="x"), "Said."), quiet=True)
    root = Agent("root", [child], llm=ScriptedLLM(call("child", prompt="Say x."), "Done."), quiet=True)
    root.input("Go")
    (turn,) = read_record(path_of(root))["turns"]
    for shown in (turn["trace"], [*Follower(path_of(root)).entries()]):
        assert [entry["tool_name"] for entry in shown if entry["type"] == "began"] == ["child"]
    began = [line["tool_name"] for line in turn["lines"] if line["type"] == "began" and "call_id" in line]
    assert began == ["child", "say"]


def test_a_follower_gives_whole_lines_once_and_takes_a_line_that_is_taken_back(folder: Path) -> None:
    path = folder / "a.yaml"
    path.write_text('agent: a\nturns:\n- turn: 1\n  input: x\n  trace:\n  - {"type": "a"}\n  - {"type"')
    follower = Follower(path)
    assert [entry["type"] for entry in follower.entries()] == ["a"]
    assert list(follower.entries()) == []
    os.truncate(path, path.stat().st_size - 9)
    with path.open("a") as file:
        file.write('- {"type": "b"}\n  result: "r"\n  status: answered\n')
    *_, last = entries = list(follower.entries())
    assert [entry["type"] for entry in entries] == ["b", "turn_ended"]
    assert (follower.turn, last["result"], last["status"]) == (1, "r", "answered")


def test_a_follower_goes_on_where_whole_lines_were_taken_back(folder: Path) -> None:
    path = folder / "a.yaml"
    path.write_text('agent: a\nturns:\n- turn: 1\n  input: x\n  trace:\n  - {"type": "a"}\n')
    size, follower = path.stat().st_size, Follower(path)
    with path.open("a") as file:
        file.write('  - {"type": "b"}\n')
    assert [entry["type"] for entry in follower.entries()] == ["a", "b"]
    os.truncate(path, size)
    assert list(follower.entries()) == []
    with path.open("a") as file:
        file.write('  - {"type": "c"}\n  - {"type": "d"}\n')
    assert [entry["type"] for entry in follower.entries()] == ["c", "d"]


def test_a_follower_sees_what_other_processes_write_and_goes_on_with_the_next_record(folder: Path) -> None:
    seen: list[tuple[str, str]] = []
    enough = threading.Event()

    def watch() -> None:
        for path, entry in follow(lambda: next(iter(all_records()), None), every_s=0.02):
            seen.append((path.name, entry["type"]))
            if [kind for _, kind in seen].count("turn_ended") == 2:
                return enough.set()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    environment = {**os.environ, "PYTHONPATH": str(Path(helpers).parents[2])}
    for _ in range(2):
        subprocess.run([sys.executable, helpers, "runs", "1"], cwd=folder, env=environment, check=True)
    assert enough.wait(30)
    thread.join()
    kinds = ["user_input", "llm_call", "began", "tool_execution", "llm_call", "turn_ended"]
    assert [kind for _, kind in seen] == kinds * 2
    assert len({name for name, _ in seen}) == 2


def test_reading_gives_json_that_others_can_take() -> None:
    assert json.loads(json.dumps(summarise(varied()).data()))["status"] == "answered"


def test_ctrl_c_just_after_a_record_was_opened_is_raised_and_closes_nothing_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*given: Any, **options: Any) -> Any:
        with open(*given, **options):  # which is closed as nobody has it then
            raise KeyboardInterrupt

    path = varied()
    monkeypatch.setattr(record_file, "open", pressed, raising=False)
    with pytest.raises(KeyboardInterrupt):
        load_record(path)
