"""`connectagent log`: what each command prints; nothing hostile reaches the terminal, and no plugin is loaded."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import forked
import pytest
from record_agents import worker

from connectagent import Agent, Pause, Paused, Sequential, ToolRejected, before_each_tool, xray
from connectagent.cli.log.diff import differences
from connectagent.cli.log.export import EXPORTERS
from connectagent.errors import ConfigError
from connectagent.records.find import all_records, records_folder
from connectagent.records.locks import lock
from connectagent.records.summary import summarise
from connectagent.replay.recording import Recording
from connectagent.testing import ScriptedLLM, call

ROOT = Path(__file__).parents[2]
HOSTILE = "\x1b[2J\x9b31m[red]x[/red]\u202egnp.exe\u2066\x07\r\x85"
HARMLESS = set("\n") | {chr(code) for code in range(0x20, 0x7F)}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


def log(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return forked.run(
        "-m",
        "connectagent",
        "log",
        *arguments,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": os.getcwd(), "TZ": "UTC", **variables},
        timeout=60,
    )


def search(query: str) -> str:
    """Search."""
    if query == "bad":
        raise ValueError("nothing is there")
    return f"Two pages about {query}"


def searcher(*script: Any, name: str = "seeker", **more: Any) -> Agent:
    return Agent(name, [search], "Search well.", llm=ScriptedLLM(*script, model="test/scripted"), quiet=True, **more)


def noted(key: str) -> str:
    """Note a key."""
    return f"noted {key}"


def crashed(agent: Agent) -> Path:
    """The agent's record, as a kill inside of a tool leaves it."""
    agent.input("One")
    path = agent.record
    assert path is not None
    with path.open("a") as file:
        file.write('- turn: 2\n  input: Two\n  trace:\n  - {"type": "user_input", "turn": 2}\n')
        file.write('  - {"type": "llm_call", "iteration": 1, "model": "m", "duration_ms": 5}\n')
        file.write(
            '  - {"type": "began", "id": "T2/1/c9/tool1", "call_id": "c9", "tool_name": "pay", "arguments": {"eur": 5}}\n  - {"ty'  # noqa: E501
        )
    return path


# -- list ------------------------------------------------------------------------------------------


def test_an_empty_folder_is_told_by_every_command_and_nothing_is_made(folder: Path) -> None:
    for arguments in (["list"], ["stats"], ["show"], ["tail"], ["grep", "x"], ["export"], ["prune", "--keep", "1"]):
        done = log(*arguments)
        assert "no records" in done.stderr, arguments
        assert "Traceback" not in done.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("width", [40, 60, 66])
def test_what_of_a_table_does_not_fit_a_narrow_terminal_is_in_a_second_line(width: int) -> None:
    searcher("Done.").input("Tell me what has happened")
    heads, names, first, second = log("list", COLUMNS=str(width)).stdout.splitlines()
    assert max(map(len, (heads, names, first, second))) <= width
    assert heads.startswith("started") and names.startswith("  ") and names.split()[-2:][0] in ("cost", "first")
    assert " seeker " in first and second.startswith("  ") and "Tell me" in second


def test_the_list_tells_each_session_in_a_line_of_80_cells_the_newest_first() -> None:
    searcher(call("search", query="retry"), "Done. " * 9, name="an_agent_with_a_long_name").input("Find " * 40)
    crashed(searcher("Fine.", name="broken"))
    lines = log("list").stdout.splitlines()
    head = ["started", "id", "agent", "model", "status", "turns", "tools", "tok", "cost", "first"]
    assert lines[0].split()[:10] == head
    assert [line.split()[3] for line in lines[1:]] in (["broken", "an_agent_wi…"], ["an_agent_wi…", "broken"])
    assert all(len(line) <= 80 for line in lines)
    (line,) = (line for line in lines if "broken" in line)
    assert line.split()[4:9] == ["scripted", "crashed", "2/1", "0", "?"]
    (long,) = log("list", "--status", "answered", COLUMNS="150").stdout.splitlines()[1:]
    assert "an_agent_with_a_long_name" in long
    assert "1/2" in long


def test_the_list_takes_filters_a_limit_and_gives_json() -> None:
    for name in ("a", "b", "b"):
        searcher("Fine.", name=name).input(f"Hello {name}")
    assert [item["agent"] for item in json.loads(log("list", "--json", "--agent", "b").stdout)] == ["b", "b"]
    (item,) = json.loads(log("list", "--json", "--limit", "1").stdout)
    assert (item["status"], item["turns"], item["iterations"], item["first_words"]) == ("answered", 1, 1, "Hello b")
    assert json.loads(log("list", "--json", "--status", "error").stdout) == []
    assert "--limit 0" in log("list", "--limit", "1").stderr


# -- show ------------------------------------------------------------------------------------------


def test_show_tells_who_did_what_where() -> None:
    @before_each_tool
    def guard(agent: Agent, tool_call: Any) -> None:
        if tool_call.arguments.get("query") == "secret":
            raise ToolRejected("Not that.")

    calls = [call("search", query="retry"), call("search", query="bad"), call("search", query="secret")]
    searcher(calls, "It is done.", plugins=[guard]).input("Find it")
    shown = log("show").stdout
    line = guard.__code__.co_firstlineno
    bare = "".join(shown.replace("│", " ").split())  # a line is broken inside of a path that is longer than it
    for text in (
        "seeker · test/scripted",
        "turn 1 Find it",
        "iteration 1",
        '✓ search(query="retry")',
        "ValueError: nothing is there",
        "rejected",
        f"{Path(__file__).name}:{line})",
        "by guard (before_each_tool, ",
        "answered",
        "It is done.",
    ):
        assert text.replace(" ", "") in bare, text
    assert log("show", "--turn", "1").stdout.splitlines()[-1] == shown.splitlines()[-1]
    assert "has no turn 7; it has 1" in log("show", "--turn", "7").stderr
    (turn,) = json.loads(log("show", "--json").stdout)["turns"]
    assert turn["status"] == "answered"


def test_a_script_in_place_of_a_record_is_told(folder: Path) -> None:
    (folder / "agent.py").write_text("agent = 1\n")
    said = "agent.py is a script, not a record: connectagent log list shows those that it has left"
    assert said in " ".join(log("show", "agent.py").stderr.split())


def test_show_full_shortens_nothing() -> None:
    searcher(call("search", query="q" * 900), "r" * 900).input("p" * 900)
    full, short = (log("show", *more, COLUMNS="2000").stdout for more in (["--full"], []))
    for letter in "pqr":
        assert letter * 900 in full
        assert letter * 900 not in short


def test_show_names_a_person_only_where_one_decided() -> None:
    first = searcher("Fine.")
    first.input("Hello")
    second = searcher("Fine.")
    second.resume(first.record)
    second.input("Go on")
    shown = log("show").stdout
    assert "goes on from" in shown and "person" not in shown


def test_show_tells_a_tool_that_was_running_when_the_turn_stopped() -> None:
    crashed(searcher("Fine."))
    shown = log("show").stdout
    assert "pay(eur=5) was running when the turn stopped" in shown
    assert shown.splitlines()[-1].endswith("crashed")


def test_show_tells_what_ran_in_agents_inside_when_the_process_ended_and_what_had_its_result() -> None:
    helper = Agent("helper", [noted], llm=ScriptedLLM(call("noted", key="b"), "Helped."), quiet=True)
    calls = [call("noted", key="a"), call("helper", prompt="Help.")]
    boss = Agent("boss", [noted, helper], llm=ScriptedLLM(calls, "Done."), quiet=True, parallel_tools=2)
    boss.input("Go")
    path = boss.record
    assert path is not None
    lines = path.read_text("utf-8").splitlines(keepends=True)
    last = next(at for at, line in enumerate(lines) if '"began"' in line and "/turn:" in line and '/2/model1"' in line)
    own = next(line for line in lines if '"tool_ended"' in line and '"T1/1/c1/tool1"' in line)
    path.write_text("".join([*(line for line in lines[: last + 1] if line != own), own]))
    shown = re.sub(r" +\d+(\.\d+)?(ms|s)\b", "", log("show").stdout)
    told = ["noted(key='a')  held", "helper(prompt='Help.') was running when the turn stopped", "agent helper"]
    told += ["noted(key='b')", "iteration 2", "the model call was running when the turn stopped", "crashed"]
    places = [shown.index(text.replace("'", '"')) for text in told]
    assert places == sorted(places) and shown.count("held") == 1
    said = log("summary").stdout
    assert "helper: the model call, iteration 2" in said and "crashed: it was running when the process ended" in said


def test_show_tells_what_agents_and_handlers_said_and_set_in_words() -> None:
    @before_each_tool
    def note(agent: Agent) -> None:
        agent.state["seen"] = [1]
        agent.session["messages"].append({"role": "user", "content": "Be short."})

    writer = Agent("writer", [noted], llm=ScriptedLLM(call("noted", key="a"), "Text."), output_key="draft", quiet=True)
    Sequential("line", [writer], plugins=[note], quiet=True).input("Go")
    shown = log("show", COLUMNS="300").stdout
    assert "+ note changed the state: seen = [1]\n" in shown and "+ writer changed the state: draft = Text.\n" in shown
    assert "+ note added a message: Be short.\n" in shown and "+ writer added a message: Text.\n" in shown
    assert "by note (before_each_tool, " in shown and "by writer" not in shown and "{" not in shown


# -- tail ------------------------------------------------------------------------------------------


def test_tail_shows_the_last_entries() -> None:
    searcher(call("search", query="retry"), "It is done.").input("Find it")
    lines = log("tail", "-n", "2").stdout.splitlines()
    assert "test/scripted" in lines[0]
    assert [line.strip() for line in lines[1:]][-1] == "It is done."
    assert "Find it" in log("tail", "-n", "0").stdout


def test_tail_f_shows_what_another_process_does_as_it_does_it(folder: Path) -> None:
    searcher("Fine.", name="first").input("Hello first")
    command = [sys.executable, "-m", "connectagent", "log", "tail", "-f"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = []
        try:
            for line in process.stdout:
                seen.append(line.strip())
                if line.strip() == "Fine.":  # all of the first: another process begins the next one
                    agent = "from record_agents import worker; worker('second').input('Hello second')"
                    path = f"{ROOT}:{ROOT / 'tests' / 'support'}"
                    forked.run("-c", agent, env={**environment, "PYTHONPATH": path}, check=True)
                if line.strip() == "All of it is done.":
                    break
        finally:
            process.kill()
    assert any(line.startswith("== second_") for line in seen)
    assert any("Hello second" in line for line in seen)


@pytest.mark.posix("shows that a pipe has lost its reader only where something is written to it")
def test_tail_f_ends_when_nobody_reads_any_more() -> None:
    searcher(call("search", query="retry"), "It is done.").input("Find it")
    command = f"{sys.executable} -m connectagent log tail -f | head -1"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, timeout=30)
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


# -- diff ------------------------------------------------------------------------------------------


def test_a_diff_tells_what_differs_and_leaves_out_ids_and_times() -> None:
    one = searcher([call("search", query="retry")], "It is done.", name="one")
    two = searcher([call("search", query="retry")], "It is done.", name="one")
    three = searcher([call("search", query="retries"), call("search", query="more")], "It is\nwell done.", name="one")
    for agent in (one, two):
        agent.input("Find it")
    three.input("Find it all")
    paths = [str(agent.record) for agent in (one, two, three)]
    same = log("diff", *paths[:2])
    assert (same.returncode, same.stdout) == (0, "")
    done = log("diff", paths[0], paths[2])
    assert done.returncode == 1
    assert done.stdout.splitlines()[2:] == [
        "turn 1",
        "  prompt",
        "  - Find it",
        "  + Find it all",
        "turn 1, iteration 1, model",
        "  tools called",
        '  - ["search"]',
        '  + ["search", "search"]',
        "turn 1, iteration 1, tool search",
        "  arguments",
        '  - {"query": "retry"}',
        '  + {"query": "retries"}',
        "  result",
        "  - Two pages about retry",
        "  + Two pages about retries",
        "turn 1, iteration 1, tool search: only in the second",
        '  + arguments: {"query": "more"}',
        "  + status: success",
        "  + result: Two pages about more",
        "turn 1, iteration 2, model",
        "  text",
        "  - It is done.",
        "  + It is",
        "  + well done.",
        "turn 1, end",
        "  result",
        "  - It is done.",
        "  + It is",
        "  + well done.",
    ]
    assert log("diff", paths[2], paths[0]).stdout.count("only in the first") == 1


def test_a_diff_of_many_equal_steps_and_lines_takes_no_longer_than_they_are_many() -> None:
    def record(*values: object) -> dict[str, object]:
        trace = [{"type": "note", "value": value} for value in values]
        return {"agent": "a", "turns": [{"turn": 1, "input": "x", "trace": trace, "lines": trace}]}

    lines = [str(number % 100) for number in range(30_000)]
    text, other = "\n".join(lines), "\n".join(lines[50:] + lines[:50])
    started = time.process_time()
    one = differences(record(*[1] * 20_000), record(*[1] * 20_000, 2))
    assert next(one).endswith("only in the second")
    found = list(differences(record(0, *[1, 2] * 10_000), record(3, *[2, 1] * 10_000)))
    assert found[2:4] == ["  - 0", "  + 3"] and len(found) > 20_000
    assert len(list(differences(record(text), record(other)))) > 50
    assert time.process_time() - started < 10


def test_a_diff_reads_records_of_half_the_size() -> None:
    paths = []
    for name in ("a", "b"):
        path = Path(f"{name}.yaml")
        values = "[" + "1, " * 1_500_000 + "1]"
        path.write_text(f'format: 1\nagent: {name}\nturns:\n- turn: 1\n  trace:\n  - {{"v": {values}}}\n')
        paths.append(str(path))
    done = log("diff", *paths)
    assert done.returncode == 1 and "behind 1500000 values" in done.stderr and "Traceback" not in done.stderr


# -- grep, stats, export -----------------------------------------------------------------------------


def test_grep_tells_record_turn_and_type_of_each_line_that_matches() -> None:
    agent = searcher(call("search", query="retry"), "First\nsee Retry.md", "Nothing.", name="a")
    agent.input("Find it")
    agent.input("More")
    path = agent.record
    assert path is not None
    assert log("grep", "retry").stdout.splitlines() == [
        f"{path.name}:turn 1:llm_call: retry",
        f"{path.name}:turn 1:tool_execution: Two pages about retry",
    ]
    assert f"{path.name}:turn 1:llm_call: see Retry.md" in log("grep", "-i", "RETRY").stdout
    assert f"{path.name}:turn 2:input: More" in log("grep", "^Mo").stdout
    assert log("grep", "retry", "--agent", "b").returncode == 1
    assert log("grep", "(").returncode == 2


def test_the_stats_count_turns_calls_and_failures() -> None:
    searcher([call("search", query="retry"), call("search", query="bad")], "Done.", "More.", name="a").input("Go")
    agent = worker("b", calls=2)
    agent.input("Go")
    agent.input("Go")
    stats = json.loads(log("stats", "--json").stdout)
    assert {name: sums["turns"] for name, sums in stats["agents"].items()} == {"a": 1, "b": 2}
    assert stats["agents"]["b"]["tokens"] == 480
    assert stats["agents"]["a"]["cost"] is None
    tool = stats["tools"]["search"]
    assert (tool["sessions"], tool["calls"], tool["failed"]) == (1, 2, 1)
    assert tool["statuses"] == {"success": 1, "error": 1}
    assert stats["models"]["test/rounds"]["calls"] == 4
    assert 0 <= stats["models"]["test/rounds"]["median_ms"] <= stats["models"]["test/rounds"]["p95_ms"]
    shown = log("stats").stdout
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert [line.split()[0] for line in shown.split("\n\n")[2].splitlines()[1:]] in (
        ["work", "search"],
        ["search", "work"],
    )


def test_the_stats_count_the_calls_of_agents_inside_once_where_they_waited_too() -> None:
    def pay(eur: int) -> str:
        """Pay."""
        if not xray.approved:
            raise Pause("sure?")
        return "paid"

    script = [[call("noted", key="a"), call("pay", eur=5)], call("noted", key="b"), "Paid."]
    payer = Agent("payer", [noted, pay], llm=ScriptedLLM(*script), quiet=True, parallel_tools=2)
    boss = Agent("boss", [payer], llm=ScriptedLLM(call("payer", prompt="Pay."), "Done."), quiet=True)
    with pytest.raises(Paused):
        boss.input("Go")
    assert boss.resume(approve=True) == "Done."
    tools = json.loads(log("stats", "--json").stdout)["tools"]
    assert {name: (one["calls"], one["statuses"]) for name, one in tools.items()} == {
        "payer": (1, {"success": 1}), "noted": (2, {"success": 2}), "pay": (1, {"success": 1})
    }  # fmt: skip


def asking(key: str, name: str = "boss") -> Path:
    """The record of an agent that asks another one, which notes a key."""
    helper = Agent("helper", [noted], llm=ScriptedLLM(call("noted", key=key), "Helped."), quiet=True)
    boss = Agent(name, [helper], llm=ScriptedLLM(call("helper", prompt="Help."), "Done."), quiet=True)
    boss.input("Go")
    assert boss.record is not None
    return boss.record


def test_agents_inside_are_searched_compared_exported_and_followed() -> None:
    one, two = asking("first"), asking("second", "chief")
    assert log("grep", "noted second").stdout == f"{two.name}:turn 1:helper:tool_execution: noted second\n"
    shown = log("diff", one.name, two.name).stdout
    assert "turn 1, iteration 1, agent helper, iteration 1, tool noted\n" in shown
    assert '- {"key": "first"}\n' in shown and '+ {"key": "second"}\n' in shown
    assert log("diff", one.name, asking("first").name).returncode == 0
    document = log("export", two.name).stdout
    assert document.index("### helper › noted: success") < document.index("### helper: success")
    lines = [line.split("  ")[0] for line in map(str.strip, log("tail", "-n", "9", two.name).stdout.splitlines())]
    assert lines[2:6] == ["helper 1 · Help.", "helper 1 scripted", 'helper ✓ noted(key="second")', "noted second"]
    assert log("tail", "-n", "2", two.name).stdout.splitlines()[0].strip().startswith("2 scripted")


def test_an_odd_record_leaves_the_file_of_an_export_as_it_is(folder: Path) -> None:
    stopped = searcher(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        stopped.input("Find it")
    assert stopped.record is not None
    searcher("Done.").resume(stopped.record)
    stopped.record.write_text(stopped.record.read_text().replace("  cost: ", "  cost: [1]\n  was: "))
    Path("out.md").write_text("from before")
    for arguments in ([], ["-o", "out.md"]):
        done = log("export", "--to", "md", *arguments)
        assert (done.returncode, done.stdout) == (1, "") and "values that no record has" in done.stderr
    assert Path("out.md").read_text() == "from before"


def test_an_export_is_whole(folder: Path) -> None:
    searcher(call("search", query="a ```` b"), "It is done.").input("Find it")
    lines = [json.loads(line) for line in log("export", "--to", "jsonl").stdout.splitlines()]
    kinds = ["session", "user_input", "llm_call", "began", "tool_execution", "llm_call", "turn_ended"]
    assert [line["type"] for line in lines] == kinds
    assert {line["type"] for line in lines[-1]["lines"]} == {"began"}  # those that have no line of their own
    assert log("export", "--to", "md", "-o", "out.md").stdout == ""
    text = (folder / "out.md").read_text()
    assert "# seeker" in text
    assert '`````json\n{\n  "query": "a ```` b"\n}\n`````' in text
    assert "It is done." in text
    assert log("export", "--to", "docx").returncode == 2
    assert list(EXPORTERS)[:2] == ["md", "jsonl"]


# -- prune -----------------------------------------------------------------------------------------


def test_prune_removes_the_oldest_and_their_blobs_but_never_what_is_running_or_paused(folder: Path) -> None:
    evals, blobs = records_folder(), folder / ".co/blobs"
    evals.mkdir(parents=True)
    blobs.mkdir()
    hashes = [letter * 64 for letter in "abc"]
    for name in hashes:
        (blobs / name).write_text(name)
        os.utime(blobs / name, (time.time() - 20 * 86_400,) * 2)  # one that was just used would stay

    def write(day: int, status: str, *used: str) -> Path:
        path = evals / f"a_2026-01-0{day}T00-00-00.yaml"
        entries = "".join(f'  - {{"type": "user_input", "blob": "sha256:{name}"}}\n' for name in used)
        head = "format: 1\nagent: a\nmodel: m\nturns:\n"
        path.write_text(f"{head}- turn: 1\n  input: x\n  trace:\n{entries}  status: {status}\n")
        os.utime(path, (time.time() - (10 - day) * 86_400,) * 2)
        return path

    old = write(1, "answered", *hashes[:2])
    paused = write(2, "paused")
    middle = write(3, "error")
    newest = write(4, "answered", hashes[1])
    running = write(5, "answered")
    (evals / "broken.yaml").write_text("- 1\n")
    with running.open("a") as file:
        file.write('- turn: 2\n  input: y\n  trace:\n  - {"type": "user_input"}\n')
        file.flush()
        assert lock(file.fileno())
        assert log("prune").returncode == 2
        told = log("prune", "--keep", "0", "--dry-run").stdout
        assert "would remove 3 records" in told
        assert len(all_records()) == 6
        log("prune", "--keep", "0", "--older-than", "8d")
        assert not old.exists()
        assert middle.exists()
        assert sorted(path.name[0] for path in blobs.iterdir()) == ["b", "c"]  # nobody ever referred to c
        log("prune", "--keep", "0")
    assert {path.name for path in evals.iterdir()} == {paused.name, running.name, "broken.yaml"}
    assert not middle.exists()
    assert not newest.exists()
    assert summarise(running).status == "crashed"
    assert not (blobs / hashes[1]).exists()


# -- what all of them hold --------------------------------------------------------------------------

COMMANDS = [
    ["list"],
    ["list", "--json"],
    ["show"],
    ["show", "--full"],
    ["show", "--json"],
    ["tail", "-n", "0"],
    ["grep", "."],
    ["grep", "E", "-i"],
    ["stats"],
    ["stats", "--json"],
    ["prune", "--keep", "0", "--dry-run"],
    ["export", "--to", "md"],
    ["export", "--to", "jsonl"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_hostile_contents_are_shown_harmless(arguments: list[str]) -> None:
    @before_each_tool
    def guard(agent: Agent, tool_call: Any) -> None:
        if len(tool_call.arguments) > 1:
            raise ToolRejected(HOSTILE)

    calls = [call(HOSTILE, **{HOSTILE: HOSTILE}), call("search", query=HOSTILE), call("search", query="x", a=HOSTILE)]
    model = ScriptedLLM(calls, HOSTILE, model=HOSTILE)
    Agent(HOSTILE, [search], HOSTILE, llm=model, quiet=True, plugins=[guard]).input(HOSTILE)
    for variables in ({}, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, {"PYTHONIOENCODING": "ascii"}):
        done = log(*arguments, **variables)
        assert done.returncode == 0, done.stderr
        unwanted = {
            letter for letter in done.stdout + done.stderr if not (letter in HARMLESS or letter in "─│├└✓✗•·→…!")
        }
        assert unwanted == set()
        if arguments[0] in ("show", "tail", "export"):
            assert "[red]x" in done.stdout


def test_a_file_that_is_no_record_is_named_and_stops_nothing() -> None:
    searcher("Fine.").input("Hello")
    for name, data in (("b.yaml", b"\xff\xfe\0\n"), ("c.yaml", b"- [\n"), ("d.yaml", b"turns: 5\n")):
        (records_folder() / name).write_bytes(data)
    (records_folder() / "e.yaml").mkdir()
    for arguments in (["list"], ["stats"], ["grep", "Hello"], ["prune", "--keep", "0", "--dry-run"]):
        done = log(*arguments)
        assert done.returncode == 0, done.stderr
        assert "seeker" in done.stdout
        assert [name for name in ("b.yaml", "c.yaml", "d.yaml") if f"skipped {name}: " not in done.stderr] == []
    entries = (
        '- turn: 1\n  input: 5\n  trace:\n  - {"type": "llm_call", "usage": {"x": 1}, "duration_ms": "y"}\n  - 7\n'
    )
    odd = records_folder() / "odd.yaml"
    odd.write_text(f"agent: 5\nmodel: [1]\nstarted: no\nplugins: 3\nturns:\n{entries}")
    for arguments in (["list"], ["show", "odd"], ["tail", "odd"], ["stats"], ["grep", "x"], ["diff", "odd", "seeker"]):
        assert "error" not in log(*arguments).stderr, arguments


def test_no_command_loads_a_plugin(folder: Path) -> None:
    searcher("Fine.").input("Hello")
    for name, code in (("broken", "raise RuntimeError('loaded')"), ("leaver", "import sys; sys.exit(7)")):
        (folder / f"{name}.py").write_text(f"open('loaded', 'w').close()\n{code}\n")
        info = folder / f"connectagent_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: connectagent-{name}\nVersion: 1.0\n")
        groups = ("connectagent", "connectagent.commands", "connectagent.models")
        (info / "entry_points.txt").write_text("".join(f"[{group}]\n{name} = {name}\n" for group in groups))
    (folder / "pyproject.toml").write_text("[tool.connectagent]\nplugins = ['broken']\n")
    variables = {"CONNECTAGENT_PLUGINS": "broken,leaver,./broken.py", "PYTHONPATH": f"{ROOT}:{folder}"}
    for arguments in (*COMMANDS, ["diff", "last", "last"], ["--help"], ["list", "--help"]):
        done = log(*arguments, **variables)
        assert (done.returncode, done.stderr) == (0, ""), arguments
    assert not (folder / "loaded").exists()


# -- a record of which a kill has left nothing --------------------------------------------------------


@pytest.mark.parametrize("left", ["", "form", "format: 1", "format: 1\nag"])
def test_an_empty_record_is_shown_as_one(folder: Path, left: str) -> None:
    path = folder / ".co" / "evals" / "cut_2026-01-01T10-00-00.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(left)
    (item,) = json.loads(log("list", "--json").stdout)
    assert (item["agent"], item["status"], item["turns"]) == ("cut", "empty", 0)
    shown = log("show", "cut")
    assert shown.stdout.split() == [path.name, "\xb7", "empty"] and not shown.stderr
    for done in (log("list"), log("stats"), log("export", "cut")):
        assert "None" not in done.stdout and "not a record" not in done.stderr
    with pytest.raises(ConfigError, match="an empty record"):
        searcher().resume(path)
    with pytest.raises(ConfigError, match="an empty record"):
        Recording(path)


# -- a long record ---------------------------------------------------------------------------------


def test_a_long_record_is_shown_by_its_ends(folder: Path) -> None:
    path = folder / "long.yaml"
    with path.open("w") as file:
        file.write("format: 1\nagent: a\nmodel: m\nturns:\n")
        for turn in range(1, 4):
            file.write(f"- turn: {turn}\n  input: prompt_{turn}\n  trace:\n")
            for number in range(1, 2001):
                text = f"text {turn}.{number} " + "x" * 1500
                file.write(f'  - {{"type": "note", "text": "{text}"}}\n')
            file.write('  result: "Done."\n  messages: "' + "y" * 20_000_000 + '"\n  status: answered\n')
    code = (
        "import re, sys; from connectagent.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "status = open('/proc/self/status').read() if sys.platform == 'linux' else 'VmHWM: 0'\n"
        "print(int(re.search(r'VmHWM:\\s*(\\d+)', status)[1]) >> 10, file=sys.stderr); sys.exit(code)"
    )

    def show(*more: str) -> str:
        arguments = [sys.executable, "-c", code, "log", "show", str(path), *more]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "200"}
        done = subprocess.run(arguments, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        assert sys.platform != "linux" or int(done.stderr) < 200
        return done.stdout

    def texts(told: str) -> list[str]:
        return re.findall(r"text (\d\.\d+)", told)

    told = show()
    ends = [f"1.{number}" for number in range(1, 501)] + [f"3.{number}" for number in range(1501, 2001)]
    assert texts(told) == ends
    shown = ("1500 lines are left out: --full, or --turn N", "2000 lines are left out", "prompt_2")
    assert [part for part in shown if part not in told] == []
    assert told.count("answered") == 3
    second = show("--turn", "2")
    assert texts(second) == [f"2.{number}" for number in (*range(1, 501), *range(1501, 2001))]
    assert "1000 lines are left out" in second


@pytest.mark.parametrize("command", ["log show --full", "log show --json", "log show", "replay --json", "blame"])
def test_a_giant_value_takes_seconds(command: str, folder: Path) -> None:
    count = 400_000
    giant = ", ".join(f'"{number}": {number}' for number in range(count))
    head = 'format: 1\nagent: a\nmodel: m\nturns:\n- turn: 1\n  input: "x"\n  trace:\n'
    text = f'{head}  - {{"type": "big", "v": {{{giant}}}}}\n'
    (folder / "giant.yaml").write_text(text)
    code = (
        "import resource, sys; from connectagent.cli import main; code = main(sys.argv[1:])\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(int(used.ru_utime + used.ru_stime), file=sys.stderr); sys.exit(code)"
    )
    line = [sys.executable, "-c", code, *command.split(), str(folder / "giant.yaml")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(line, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and int(done.stderr) < 5
    assert (f'"{count - 1}": {count - 1}' in done.stdout) == (command in ("log show --full", "log show --json"))


def test_a_tree_keeps_the_lines_of_long_texts_beside_its_own(folder: Path) -> None:
    text = "\\n".join(["one line \u2029", *(["x" * 60] * 500)])
    line = f'  - {{"type": "note", "text": "{text}", "more": {{"a": 1}}}}\n'
    head = 'format: 1\nagent: a\nmodel: m\nturns:\n- turn: 1\n  input: "x"\n  trace:\n'
    (folder / "lines.yaml").write_text(f"{head}{line}{line}".replace("\u2029", "\\u2029"))
    lines = log("show", str(folder / "lines.yaml"), "--full").stdout.splitlines()
    assert lines.count("    \u2502   \u2502   " + "x" * 60) == 2 * 500
    first = "    \u2502   \u251c\u2500\u2500 text: one line  "
    assert [line for line in lines if "text: one line" in line] == [first, first]
    assert lines.count("    \u2502" + " " * 9 + '"a": 1') == 2
