"""`connectagent view`: who may ask, what is answered, and what one command line does."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import forked
import pytest
from connectagent_view.listing import listing_of
from connectagent_view.page import library, page_of
from connectagent_view.reading import Reading
from connectagent_view.rows import row_of
from connectagent_view.server import Server
from record_agents import worker
from served_page import PYTHONPATH, Page
from view_agents import HOSTILE, busy, failing

from connectagent import Agent, Pause, Paused, before_each_tool
from connectagent.errors import ConfigError
from connectagent.records.read import read_record
from connectagent.testing import ScriptedLLM, call


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


@pytest.fixture
def page() -> Iterator[Page]:
    with Page() as page:
        yield page


def name_of(agent: Agent) -> str:
    path = agent.record
    assert path is not None
    return path.name


# -- who may ask ---------------------------------------------------------------------------------


def test_the_page_is_on_the_loopback_address_alone(page: Page) -> None:
    assert page.server._http.server_address[0] == "127.0.0.1"
    with socket.socket() as other, pytest.raises(OSError):
        other.connect(("127.0.0.2", page.port))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1.evil.example:{port}", ""])
def test_a_name_that_was_made_to_lead_here_is_refused(page: Page, host: str) -> None:
    status, _, body = page.ask("sessions", host=host.format(port=page.port))
    assert (status, b"first_words" in body) == (403, False)


def test_localhost_is_as_good_as_the_address(page: Page) -> None:
    assert page.ask("", host=f"localhost:{page.port}")[0] == 200


@pytest.mark.parametrize("path", ["/", "/page.js", "/sessions", "/x/sessions", "//sessions", "/a.ico", "/%00/", "/é"])
def test_without_the_secret_there_is_nothing(page: Page, path: str) -> None:
    worker().input("Go")
    status, _, body = page.ask_raw(quote(path, safe="/%"))
    assert status == 404
    assert b"worker" not in body and b"<script" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_nothing_but_get_is_answered(page: Page, method: str) -> None:
    status, headers, _ = page.ask("sessions", method=method)
    assert (status, headers["Allow"]) == (405, "GET")


def test_every_answer_forbids_foreign_scripts_frames_and_copies(page: Page) -> None:
    for name in ("", "page.js", "page.css", "sessions", "nothing"):
        _, headers, _ = page.ask(name)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    "name", ["../../../etc/passwd", "/etc/passwd", "..%2fsecret.yaml", "secret.yaml", "..", "", "a\0", "../secret.yaml"]
)
def test_only_records_of_the_list_are_read(page: Page, folder: Path, name: str) -> None:
    worker().input("Go")
    (folder / ".co" / "secret.yaml").write_text("agent: a\nturns:\n- turn: 1\n  input: the secret\n")
    status, _, body = page.ask("news", record=name)
    assert status == 404
    assert b"the secret" not in body and b"root:" not in body


@pytest.mark.parametrize("path", ["../page.py", "..%2fpage.py", "server.py", "%2e%2e/x", "page.html", "source.js"])
def test_only_the_files_of_the_page_are_served(page: Page, path: str) -> None:
    assert page.ask_raw(f"/{page.secret}/{path}")[0] == 404


def test_a_port_that_is_taken_is_told(page: Page) -> None:
    with pytest.raises(ConfigError, match=f"port {page.port} cannot be used"):
        Server(port=page.port)


# -- what is answered ----------------------------------------------------------------------------


def test_the_list_tells_of_each_session_the_newest_first(page: Page) -> None:
    worker("one").input("First words")
    failing("two")
    sessions = page.json("sessions")["sessions"]
    assert [(one["agent"], one["status"]) for one in sessions] == [("two", "error"), ("one", "answered")]
    assert sessions[1]["first_words"] == "First words"


def test_a_file_that_is_no_record_is_told_and_costs_no_other_session(page: Page, folder: Path) -> None:
    worker().input("Go")
    (folder / ".co" / "evals" / "bad_2020-01-01T00-00-00.yaml").write_text("no record\n")
    sessions = page.json("sessions")["sessions"]
    assert [one["status"] for one in sessions] == ["answered", "unreadable"]
    status, _, body = page.ask("news", record=sessions[1]["name"])
    assert (status, b"not a record" in body) == (404, True)


def test_what_comes_later_is_asked_for_by_the_number_of_rows(page: Page) -> None:
    agent = worker()
    agent.input("One")
    first = page.json("news", record=name_of(agent))
    assert [item["status"] for item in first["items"]] == ["answered"]
    agent.input("Two")
    more = page.json("news", record=name_of(agent), row=len(first["rows"]), item=1, file=first["file"])
    assert more["rows"][0]["n"] == len(first["rows"])
    assert [item["input"] for item in more["items"]] == ["Two"]
    whole = page.json("news", record=name_of(agent))
    assert whole["rows"] == first["rows"] + more["rows"]


def test_a_record_that_was_made_anew_is_told_from_the_beginning(page: Page) -> None:
    agent = worker()
    agent.input("One")
    path = agent.record
    assert path is not None
    first = page.json("news", record=path.name)
    data = path.read_bytes()
    other = path.with_suffix(".new")
    other.write_bytes(data.replace(b"One", b"Two"))
    os.replace(other, path)
    news = page.json("news", record=path.name, row=len(first["rows"]), item=1, file=first["file"])
    assert news["file"] != first["file"]
    assert [item["input"] for item in news["items"]] == ["Two"]


def test_rows_tell_when_each_thing_began_and_how_long_it_took() -> None:
    agent = busy()
    rows = listing_of(read_record(agent.record or "")).rows
    model = next(row for row in rows if row["kind"] == "model")
    tool = next(row for row in rows if row["kind"] == "tool" and row["name"] == "search")
    asked = next(row for row in rows if row["kind"] == "input")
    assert asked["start"] <= model["start"] and model["start"] + model["ms"] / 1000 <= tool["start"] + 0.001
    assert rows[tool["started"]]["kind"] == "started"
    assert tool["waited_ms"] >= 0


def test_rows_name_the_handler_its_plugin_hook_and_line() -> None:
    rows = listing_of(read_record(busy().record or "")).rows
    (added,) = [row for row in rows if row["type"] == "message"]
    assert (added["kind"], added["name"], added["hook"], added["did"]) == (
        "handler", "remind", "after_tools", "added a user message",
    )  # fmt: skip
    assert re.search(r"view_agents\.py:\d+$", added["where"])


def test_failures_are_marked_and_a_turns_error_has_no_handler() -> None:
    listing = listing_of(read_record(failing("f").record or ""))
    assert [row["name"] for row in listing.rows if row.get("bad") == 2 and row["kind"] == "tool"] == ["search"]
    assert listing.items[-1]["status"] == "error"
    assert "the model is gone" in listing.items[-1]["error"]
    assert not [row for row in listing.rows if row["kind"] == "handler" and row.get("bad") == 2]


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"type": 3, "by": [1], "timestamp": "x"},
        {"type": "llm_call", "tool_calls": 5, "usage": [], "duration_ms": float("nan"), "timestamp": float("inf")},
        {"type": "tool_execution", "arguments": [1], "result": {"a": object()}, "timing": "slow", "status": {}},
        {"type": "message", "message": "text", "by": {"plugin": 5, "version": [], "line": {}}},
        {"type": "state_delta", "delta": [1], "removed": 7},
        {"type": "mine", "value": {(1, 2): 3}},
    ],
)
def test_an_entry_that_a_handler_made_up_is_a_row_all_the_same(entry: dict[str, Any]) -> None:
    row = row_of(entry, 4)
    assert row["n"] == 4
    json.dumps(row, allow_nan=False)


def test_long_texts_are_shortened_and_whole_on_demand(page: Page) -> None:
    text = "\u00e9 line\n" * 1_500_000  # 10.5 million characters
    agent = Agent("long", llm=ScriptedLLM(text), quiet=True)
    agent.input("Go")
    name = name_of(agent)
    news = page.ask("news", record=name)[2]
    assert len(news) < 10_000
    (row,) = [row for row in json.loads(news)["rows"] if row["kind"] == "model"]
    (value,) = [one for one in page.json("entry", record=name, entry=row["n"])["fields"] if one["key"] == "content"]
    assert len(value["text"]) < 5_000 and value["length"] == len(text.encode())
    assert page.ask("text", record=name, entry=row["n"], key="content")[2].decode() == text
    conversation = page.json("conversation", record=name)
    assert [conversation["lines"][key]["role"] for key in conversation["keys"]] == ["user", "assistant"]
    assert page.ask("text", record=name, message=1, change=0)[2].decode() == text


def test_the_conversation_tells_who_made_and_changed_each_message(page: Page) -> None:
    agent = busy()
    lines = list(page.json("conversation", record=name_of(agent))["lines"].values())
    assert [line["role"] for line in lines] == [one["role"] for one in (agent.current_session or {})["messages"]]
    tool = next(line for line in lines if line["role"] == "tool")
    assert [(change["did"], change["by"].get("tool") or change["by"]["plugin"]) for change in tool["changes"]] == [
        ("added", "search"), ("edited", "shorten"),
    ]  # fmt: skip
    edit = tool["changes"][1]
    rows = page.json("news", record=name_of(agent))["rows"]
    assert rows[edit["entry"]]["type"] == "change"


def test_a_turn_that_was_paused_and_resumed_is_two_items(page: Page) -> None:
    @before_each_tool
    def ask(agent: Agent, tool_call: Any) -> None:
        if not tool_call.approved:
            raise Pause("a person must agree")

    def one() -> str:
        """One."""
        return "1"

    agent = Agent("payer", [one], llm=ScriptedLLM([call("one")]), on_events=[ask], quiet=True)
    with pytest.raises(Paused) as paused:
        agent.input("Go")
    assert page.json("sessions")["sessions"][0]["status"] == "paused"
    other = Agent("payer", [one], llm=ScriptedLLM("Done"), on_events=[ask], quiet=True)
    other.resume(paused.value.record, approve=True)
    items = page.json("news", record=name_of(agent))["items"]
    assert [(item["status"], item.get("resumed")) for item in items] == [("paused", None), ("answered", "true")]


def test_find_looks_into_whole_texts(page: Page) -> None:
    agent = busy()
    rows = page.json("news", record=name_of(agent))["rows"]
    (number,) = page.json("find", record=name_of(agent), text="DEEP in the")
    assert rows[number]["name"] == "search"


@pytest.mark.parametrize("given", [{"entry": "-1"}, {"entry": "999"}, {"entry": "x"}, {}, {"entry": "0", "key": "no"}])
def test_what_is_not_there_is_404(page: Page, given: dict[str, str]) -> None:
    assert page.ask("text", record=name_of(busy()), **given)[0] == 404


def test_a_reading_is_safe_in_threads() -> None:
    agent = worker(rounds=3)
    agent.input("Go")
    path = agent.record
    assert path is not None
    reading, seen = Reading(path), []
    threads = [threading.Thread(target=lambda: seen.append(len(reading.news()["rows"]))) for _ in range(8)]
    for thread in threads:
        thread.start()
    agent.input("On")
    for thread in threads:
        thread.join()
    numbers = [row["n"] for row in reading.news()["rows"]]
    assert numbers == list(range(len(numbers))) and max(seen) <= len(numbers)


# -- the page as one file ------------------------------------------------------------------------


def test_the_exported_page_asks_for_nothing_and_no_text_ends_its_data() -> None:
    agent = busy()
    text = page_of(read_record(agent.record or ""))
    scripts, text = text.count("</script>"), text.replace(library(), "")
    assert "http://" not in text.replace("http://www.w3.org/", "") and "https://" not in text
    assert not re.search(r"(src|href)=\"(?!data:|#)", text)
    assert scripts == len(blocks_of(text)) + 2 and "<img" not in text
    blocks = blocks_of(text)
    assert list(blocks) == ["shown", "details", "conversation", "changes", "requests", "raw", "images", "ends"]
    assert any(HOSTILE in field["text"] for entry in json.loads(blocks["details"]) for field in entry)


def blocks_of(text: str) -> dict[str, str]:
    return dict(re.findall(r'<script type="application/json" id="data-(\w+)">(.*?)</script>', text, re.DOTALL))


def test_the_command_exports_the_page_and_with_whole_also_texts_kept_apart(folder: Path) -> None:
    def one() -> str:
        """One."""
        return "a" * 30_000 + "THE MIDDLE" + "b" * 30_000

    Agent("long", [one], llm=ScriptedLLM([call("one")], "Done"), quiet=True).input("Go")
    for more, there in ([], False), (["--whole"], True):
        done = command("log", "export", "--to", "html", "-o", "page.html", *more)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert ("THE MIDDLE" in (folder / "page.html").read_text("utf-8")) is there


# -- the command ---------------------------------------------------------------------------------


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(
        "-m", "connectagent", *arguments,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, "HOME": os.getcwd()},
        timeout=60,
    )


@pytest.mark.usefixtures("ctrl_c")
def test_the_command_prints_the_address_serves_and_ends_cleanly_with_ctrl_c() -> None:
    agent = worker()
    agent.input("Go")
    process = subprocess.Popen(
        [sys.executable, "-m", "connectagent", "view", "worker"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, "HOME": os.getcwd()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.endswith(f"#record={name_of(agent)}")
        parts = urlsplit(address)
        connection = http.client.HTTPConnection("127.0.0.1", parts.port or 0, timeout=10)
        connection.request("GET", parts.path)
        answer = connection.getresponse()
        assert answer.status == 200 and b"<main" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        connection.close()
        assert process.stderr is not None
        assert process.stderr.read().strip() == ""
    finally:
        process.kill()
        process.communicate()


@pytest.mark.usefixtures("ctrl_c")
def test_the_browsers_command_line_does_not_tell_the_address(folder: Path) -> None:
    browser = folder / "browser"
    browser.write_text('#!/bin/sh\necho "$@" > opened.new\nmv opened.new opened\n')
    browser.chmod(0o700)
    process = subprocess.Popen(
        [sys.executable, "-m", "connectagent", "view", "--open"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, "HOME": str(folder), "BROWSER": str(browser)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        while not (folder / "opened").exists():
            time.sleep(0.02)
        opened = (folder / "opened").read_text().strip()
        assert opened.startswith("file:///")
        file = Path(urlsplit(opened).path)
        assert f'content="0; url={address}"' in file.read_text()
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert urlsplit(address).path.strip("/") not in opened
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert not file.parent.exists()
    finally:
        process.kill()
        process.communicate()


def test_the_command_tells_of_a_record_that_is_not_there() -> None:
    worker().input("Go")
    done = command("view", "nobody", "--no-open")
    assert done.returncode == 1 and "no record 'nobody'" in done.stderr


def test_the_page_loads_no_plugin_and_no_sdk() -> None:
    code = (
        "import sys, connectagent_view; "
        "print([name for name in ('openai', 'anthropic', 'pydantic', 'yaml', 'rich') if name in sys.modules])"
    )
    variables = {**os.environ, "PYTHONPATH": PYTHONPATH}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_script_never_makes_html_of_text() -> None:
    from connectagent_view.page import page, script

    assert not re.search(r"(inner|outer|Adjacent)HTML|document\.write|eval\(|new Function|DOMParser", script())
    assert not re.search(r"\son\w+=|style=", page())
    assert "</script" not in script()
