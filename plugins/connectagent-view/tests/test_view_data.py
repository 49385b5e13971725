"""What the page's server answers about sessions, inner agents, requests, changes and addresses."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from connectagent_view.address import kept_secret
from connectagent_view.editor import check_editor, editor_link
from connectagent_view.listing import listing_of
from connectagent_view.page import page_of
from served_page import PYTHONPATH, Page
from view_agents import busy, company, failing, killed

from connectagent import Agent, Image, Paused, Tool, before_each_tool
from connectagent.agents.decisions import waiting_in
from connectagent.errors import ConfigError
from connectagent.records.read import read_record
from connectagent.testing import ScriptedLLM, call


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def page() -> Iterator[Page]:
    with Page() as page:
        yield page


def name_of(agent: Agent) -> str:
    assert agent.record is not None
    return agent.record.name


# -- sessions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "agents"),
    [
        ({"text": "REPORT"}, ["editor"]),
        ({"text": "find retries"}, ["busy"]),
        ({"agent": "busy"}, ["busy"]),
        ({"status": "paused"}, ["editor"]),
        ({"status": "error", "agent": "busy"}, []),
        ({"plugin": "guard"}, ["editor"]),
        ({"tool": "pay"}, ["editor"]),
        ({"tool": "search"}, ["failing", "busy", "editor"]),
        ({"since": "2001-01-01", "until": "2999-01-01"}, ["failing", "busy", "editor"]),
        ({"since": "2999-01-01"}, []),
        ({"until": "2001-01-01"}, []),
        ({"cost": "0.01"}, ["priced"]),
        ({"cost": "x"}, []),
    ],
)
def test_sessions_are_filtered(page: Page, given: dict[str, str], agents: list[str]) -> None:
    from connectagent import LLMResponse, TokenUsage

    if "cost" in given:
        usage = TokenUsage(100, 20, cost=0.02)
        Agent("priced", llm=ScriptedLLM(LLMResponse("Fine.", usage=usage)), quiet=True).input("Hi")
    company()
    busy()
    failing()
    found = page.json("sessions", **given)
    assert sorted(one["agent"] for one in found["sessions"]) == sorted(agents)
    assert (found["count"], found["all"]) == (len(agents), 3 + ("cost" in given))


def test_a_tool_that_the_process_died_in_is_found_too(page: Page) -> None:
    killed()
    assert [one["agent"] for one in page.json("sessions", tool="boom")["sessions"]] == ["doomed"]


def test_the_filters_offer_what_there_is(page: Page) -> None:
    company()
    names = page.json("names")
    assert names["agent"] == ["editor"] and names["status"] == ["paused"]
    assert {"guard", "date"} <= set(names["plugin"]) and {"pay", "search", "finder"} <= set(names["tool"])


def test_a_session_that_goes_on_is_read_again(page: Page) -> None:
    agent = Agent("a", llm=ScriptedLLM("One.", "Two."), quiet=True)
    agent.input("Hi")
    assert page.json("sessions")["sessions"][0]["turns"] == 1
    agent.input("Again")
    assert page.json("sessions")["sessions"][0]["turns"] == 2


# -- rows ----------------------------------------------------------------------------------------


def test_rows_of_inner_agents_name_the_turn_that_they_are_in_and_their_sums_come_from_the_core(page: Page) -> None:
    agent = company()
    news = page.json("news", record=name_of(agent))
    ended = {row["name"]: row for row in news["rows"] if row["kind"] == "agent"}
    assert ended["checker"]["in"] == ended["finder"]["id"] and "in" not in ended["finder"]
    inside = [row["kind"] for row in news["rows"] if row.get("in") == ended["checker"]["id"]]
    assert inside == ["input", "started", "model", "started", "tool", "started", "model"]
    assert [one["name"] for one in news["agents"]] == ["finder", "checker"]
    assert [one["tokens"] for one in news["agents"]] == [275, 55]
    assert [one["calls"] for one in news["agents"]] == [4, 2]


def test_numbers_of_entries_are_the_same_while_a_record_grows_and_when_it_is_read_whole(page: Page) -> None:
    agent = company()
    news = page.json("news", record=name_of(agent))
    assert [row["n"] for row in news["rows"]] == list(range(len(news["rows"])))
    whole = listing_of(read_record(agent.record or ""))
    assert [(row["n"], row["type"]) for row in whole.rows] == [(row["n"], row["type"]) for row in news["rows"]]
    for change in page.json("changes", record=name_of(agent))["changes"]:
        assert news["rows"][change["n"]]["plugin"] == change["plugin"]


def test_a_call_shows_its_result_while_others_of_its_round_run(page: Page) -> None:
    seen: list[Any] = []

    def quick() -> str:
        """Quick."""
        return "quick result"

    def slow(agent: Any) -> str:
        """Slow."""
        seen.append(page.json("news", record=name_of(agent)))
        for _ in range(500):
            if "'held'" in str(page.json("news", record=name_of(agent))):
                break
            time.sleep(0.01)
        seen.append(page.json("news", record=name_of(agent), row=len(seen[0]["rows"])))
        return "slow result"

    agent = Agent("a", [quick, slow], llm=ScriptedLLM([call("slow"), call("quick")], "Done."), parallel_tools=2)
    agent.input("Go")
    told = [*seen[1]["rows"], *seen[1].get("changed", ())]
    (held,) = [row for row in told if row.get("status") == "held"]
    assert (held["kind"], held["name"], held["text"], held["bad"]) == ("started", "quick", "quick result", 0)
    rows = page.json("news", record=name_of(agent))["rows"]
    (ended,) = [row for row in rows if row["kind"] == "tool" and row["name"] == "quick"]
    assert ended["started"] == held["n"] and ended["status"] == "success"


def test_a_row_that_changes_later_is_told_again(page: Page) -> None:
    runs: list[int] = []

    def flaky() -> str:
        """Flaky."""
        runs.append(1)
        seen.append(page.json("news", record=next(Path(".co/evals").iterdir()).name))
        if len(runs) == 1:
            raise OSError("lost")
        return "fine"

    from connectagent import Retry, on_error

    @on_error
    def again() -> Any:
        return Retry()

    seen: list[Any] = []
    agent = Agent("a", [flaky], llm=ScriptedLLM([call("flaky")], "Done."), on_events=[again], quiet=True)
    agent.input("Go")
    first = seen[1]  # while the second attempt runs
    failed = next(row for row in first["rows"] if row["kind"] == "tool")
    assert failed["bad"] == 2
    news = page.json("news", record=name_of(agent), row=len(first["rows"]), file=first["file"])
    assert [(row["n"], row["bad"], row["badges"]) for row in news["changed"]] == [(failed["n"], 1, ["tried again"])]


def test_what_waits_is_told_with_the_commands_until_it_is_decided(page: Page) -> None:
    agent = company()
    (wait,) = page.json("news", record=name_of(agent))["waits"]
    assert wait["reason"] == "a person must agree" and wait["call"] == "pay(amount=7)"
    assert agent.record is not None
    [waiting] = waiting_in(agent.record)
    assert wait["commands"][0] == f"connectagent resume .co/evals/{name_of(agent)} --approve '{waiting.id}'"
    agent.llm.responses.append("Paid.")  # type: ignore[attr-defined]
    agent.resume(agent.record, approve=True)
    assert "waits" not in page.json("news", record=name_of(agent))


def test_what_is_carried_out_elsewhere_is_answered(page: Page) -> None:
    agent = Agent("guide", [Tool("show", "", {})], llm=ScriptedLLM(call("show")), quiet=True)
    with pytest.raises(Paused):
        agent.input("Go")
    (wait,) = page.json("news", record=name_of(agent))["waits"]
    assert re.search(r"--answer '[^']+/wait:show~[0-9a-f]{12}' TEXT$", wait["commands"][0])


def test_answers_have_badges() -> None:
    from connectagent import LLMResponse, TokenUsage

    key = "sk-" + "a1B2" * 12
    cut = LLMResponse(f"The key is {key}", usage=TokenUsage(100, 20, cached_tokens=25), finish_reason="length")
    agent = Agent("a", llm=ScriptedLLM(cut), quiet=True)
    agent.input("Hi")
    (row,) = [row for row in listing_of(read_record(agent.record or "")).rows if row["kind"] == "model"]
    assert row["badges"] == ["cut", "cached 25%", "masked"]


# -- requests and changes ------------------------------------------------------------------------


def test_a_request_tells_what_is_new_and_the_whole_of_it_on_demand(page: Page) -> None:
    agent = company()
    name = name_of(agent)
    calls = [row["n"] for row in page.json("news", record=name)["rows"] if row["kind"] == "model" and "in" not in row]
    request = page.json("request", record=name, entry=calls[2])
    assert [(one["place"], one["role"], one["state"]) for one in request["messages"]] == [
        (2, "assistant", "new"), (3, "tool", "new"),
    ]  # fmt: skip
    assert (request["count"], request["same"], request["before"]) == (4, 2, calls[1])
    assert len(page.json("request", record=name, entry=calls[2], all=1)["messages"]) == 4
    assert page.ask("text", record=name, request=calls[2], place=1)[2] == b"Write a report"
    assert page.json("text", record=name, request=calls[2])["messages"][1]["content"] == "Write a report"
    assert page.ask("text", record=name, request=calls[2], place=99)[0] == 404
    assert page.ask("text", record=name, request=0)[0] == 404


def test_the_exported_page_has_requests_changes_and_whole_results() -> None:
    text = page_of(read_record(company().record or ""))
    assert '"state": "new"' in text and '["-", "some day"]' in text and "vscode:" not in text
    assert '"id=\\"data-ends' not in text and "a trap](javascript:" in text


def test_the_exported_page_has_the_first_raw_requests_and_images_of_a_large_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = [Image(data=bytes(size), media_type="image/png") for size in (3_000, 300, 200, 90_000)]
    agent = Agent("seer", llm=ScriptedLLM("A dot.", "Two."), quiet=True)
    agent.input(["What is it?", *images])
    agent.input("And now?")

    def blocks() -> list[Any]:
        text = page_of(read_record(agent.record or ""))
        found = re.findall(r'id="data-(?:raw|images)">(.*?)</script>', text)
        return [json.loads(one) for one in found]

    raw, shown = blocks()
    first = min(raw, key=int)
    assert len(raw) == 2 and json.loads(raw[first])["messages"][0]["content"][0]["text"] == "What is it?"
    assert list(shown) == ["/0/0/0", "/0/0/1", "/0/0/2"] and shown["/0/0/1"].startswith("data:image/png;base64,AAAA")
    monkeypatch.setattr("connectagent_view.page._MOST_RAW", len(raw[first]))
    monkeypatch.setattr("connectagent_view.page._MOST_IMAGES", 800)
    raw, shown = blocks()
    assert list(raw) == [first] and list(shown) == ["/0/0/1", "/0/0/2"]


# -- the editor ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("editor", "link"),
    [
        (None, "vscode://file{path}:7"),
        ("vscode", "vscode://file{path}:7"),
        ("editor", "editor://open/?file={path}&line=7"),
        ("off", None),
    ],
)
def test_code_is_opened_in_the_editor_of_the_setting(
    folder: Path, monkeypatch: pytest.MonkeyPatch, editor: str | None, link: str | None
) -> None:
    monkeypatch.setenv("CONNECTAGENT_EDITOR", editor or "")
    path = folder / "my plugin.py"
    path.write_text("")
    made = editor_link({"file": str(path), "line": 7})
    assert made == (link and link.format(path=str(path).replace(" ", "%20")))


@pytest.mark.parametrize(
    "by",
    [None, [], {}, {"file": "/etc/passwd", "line": 1}, {"file": "x.py", "line": 1}, {"file": "/no/x.py", "line": 1}],
)
def test_only_code_that_is_there_is_linked(by: Any) -> None:
    assert editor_link(by) is None


def test_a_line_that_is_no_number_is_not_linked(folder: Path) -> None:
    (folder / "x.py").write_text("")
    assert editor_link({"file": str(folder / "x.py"), "line": "1&x=y"}) is None


def test_an_unknown_editor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_EDITOR", "vi")
    with pytest.raises(ConfigError, match=r"'vi'.* one of vscode, .*, or off"):
        check_editor()


# -- the address ---------------------------------------------------------------------------------


def address_of(*arguments: str) -> str:
    process = subprocess.Popen(
        [sys.executable, "-m", "connectagent", "view", "--no-open", *arguments],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        return urlsplit(process.stdout.readline()).path
    finally:
        process.kill()
        process.communicate()


def test_with_a_port_the_address_is_the_same_after_a_restart(page: Page) -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    busy()
    first, second, other = address_of("--port", port), address_of("--port", port), address_of()
    assert first == second != other and len(first) > 30


@pytest.mark.posix("has no modes: a user's folder is the user's alone")
def test_the_secret_of_an_address_is_read_by_nobody_else_and_taken_from_nobody_else(folder: Path) -> None:
    secret = kept_secret(folder)
    assert kept_secret(folder) == secret != kept_secret(folder / "other")
    (path,) = [one for one in (folder / "state" / "connectagent" / "view").iterdir() if one.read_text() == secret]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    assert kept_secret(folder) != secret
    path.write_text("short")
    assert len(kept_secret(folder)) == 32


def test_what_a_handler_did_to_a_call_is_told(page: Page) -> None:
    @before_each_tool
    def fix(agent: Any, tool_call: Any) -> None:
        tool_call.arguments["query"] = "good"

    from view_agents import search

    llm = ScriptedLLM([call("search", query="bad")], "Done.")
    agent = Agent("a", [search], llm=llm, on_events=[fix], quiet=True)
    agent.input("Go")
    (change,) = page.json("changes", record=name_of(agent))["changes"]
    assert [piece for piece in change["diff"] if piece[0] != "="] == [["-", "bad"], ["+", "good"]]
    assert change["did"] == "changed the tool call" and change["edit"].startswith("vscode://file/")
