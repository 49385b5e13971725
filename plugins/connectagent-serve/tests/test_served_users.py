"""What users and clients of a server run into: mistakes, errors, retries, Ctrl-C, images, threads that went wrong."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("ag_ui")
httpx = pytest.importorskip("httpx")
from click import UsageError  # noqa: E402
from click.testing import CliRunner  # noqa: E402
from connectagent_serve import _listen as listen  # noqa: E402
from connectagent_serve import app_of, serve  # noqa: E402
from test_serve import PAID, Client, agent_with, events, free_port, left_after, run, served  # noqa: E402

from connectagent import Agent, ConfigError, LLMResponse, Pause, ProviderError, TokenUsage, before_each_tool  # noqa: E402
from connectagent.testing import ScriptedLLM, call  # noqa: E402

PNG = "iVBORw0KGgo="
URL = f"data:image/png;base64,{PNG}"


def said(*texts: str) -> dict[str, Any]:
    return {"model": "shop", "messages": [{"role": "user", "content": text} for text in texts]}


def error_of(reply: Any) -> dict[str, Any]:
    error: dict[str, Any] = reply.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}  # as OpenAI's
    return error


# -- errors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["error", "pause"])
def test_a_client_of_openai_is_told_to_send_no_turn_again(what: str, co_dir: Path) -> None:
    """It would be a turn of another session, whose tools run again."""

    @before_each_tool
    def ask_first(tool_call: Any) -> None:
        raise Pause("a payment")

    if what == "pause":
        agent = agent_with(call("pay", amount=5), plugins=[ask_first])
    else:
        agent = agent_with(call("pay", amount=5), RuntimeError("no"))
    reply = Client(app_of(agent))("POST", "/v1/chat/completions", said("Pay 5"))
    assert reply.headers["x-should-retry"] == "false" and reply.headers["x-session-id"]
    error = error_of(reply)
    assert (reply.status_code, error["code"]) == ((409, "paused") if what == "pause" else (500, "RuntimeError"))
    if what == "pause":
        decided = f"/sessions/{reply.headers['x-session-id']}/decision"
        assert "/sessions/{id}/decision" in error["message"] and error["waiting"][0]["reason"] == "a payment"
        assert Client(app_of(agent_with("Paid.")))("POST", decided, {"approve": True}).json()["result"] == "Paid."


def test_a_provider_that_has_no_time_is_an_error_that_passes(co_dir: Path) -> None:
    slow = ProviderError("slow down", kind="rate_limit", provider="x", retry_after_s=6.2)
    reply = Client(app_of(agent_with(slow)))("POST", "/sessions/s/turns", {"prompt": "Hi"})
    assert (reply.status_code, reply.headers["retry-after"], error_of(reply)["code"]) == (503, "7", "rate_limit")


def test_who_comes_second_is_told_so_without_a_path(co_dir: Path) -> None:
    ask = Client(app_of(agent_with("One.")))
    with Agent("shop", quiet=True).for_session("t1")._held():
        replies = [ask("POST", "/sessions/t1/turns", {"prompt": "Hi"}), ask("POST", "/agui", run("Hi"))]
    for reply in replies:
        assert "session 't1' is in a turn" in reply.text and "busy" in reply.text and str(co_dir) not in reply.text


def test_an_agent_without_a_record_is_refused_at_the_start(co_dir: Path) -> None:
    with pytest.raises(ConfigError, match="not recorded"):
        app_of(agent_with(log=False))


def test_a_record_that_cannot_be_read_is_an_error_in_json(co_dir: Path) -> None:
    ask = Client(app_of(agent_with("One.")))
    ask("POST", "/sessions/s/turns", {"prompt": "Hi"})
    (record,) = co_dir.rglob("shop@s.yaml")
    record.write_text("{", "utf-8")
    for reply in (ask("GET", "/sessions/s"), ask("POST", "/sessions/s/turns", {"prompt": "Hi"})):
        assert reply.status_code in (400, 500) and error_of(reply)["message"]


def test_what_is_accepted_is_said(co_dir: Path) -> None:
    ask = Client(app_of(agent_with("One."), "hidden"))
    good = {"Authorization": "bearer hidden"}  # the scheme may be in small letters
    for method, path, body, status, words in (
        ("POST", "/sessions/s/turns", {"prompt": "Hi", "numbr": 1}, 400, "prompt and number, not numbr"),
        ("GET", "/sessions/s", None, 404, "its first turn makes it"),
        ("GET", "/nothing", None, 404, "POST /sessions/{id}/turns"),
        ("GET", "/agui", None, 405, "takes POST, not GET"),
        ("POST", "/agui", {"threadId": "t", "runId": "r", "messages": 1}, 400, "messages does not fit"),
        ("POST", "/v1/chat/completions", {**said("Hi"), "tools": [{}], "n": 2}, 400, "leave out tools, n"),
        *([("POST", "/a2a", [], 400, "an object")] if find_spec("a2a") else []),
    ):
        reply = ask(method, path, body, headers=good)
        assert (reply.status_code, words in error_of(reply)["message"]) == (status, True), reply.text
    for wrong in ("Bearer other", "Basic hidden", "hidden", "Bearer hidd\u00e9n", ""):
        reply = ask("GET", "/v1/models", headers={"Authorization": wrong.encode("latin-1")})
        assert reply.status_code == 401 and "Bearer TOKEN" in error_of(reply)["message"]
    assert ask("GET", "/v1/models", headers=good).json()["data"][0]["id"] == "shop"


def test_a_port_that_is_taken_is_named_before_the_server_says_that_it_serves(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text("from connectagent import Agent\nagent = Agent('shop', model='offline')\n", "utf-8")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(serve, [str(script), "--port", port])
    assert done.exit_code == 2 and f"cannot listen at 127.0.0.1, port {port}" in done.output
    assert "is served" not in done.output and "Traceback" not in done.output


def test_an_address_of_a_host_that_this_machine_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ::1 for localhost in many containers."""
    lacks, has = (socket.AF_INET, 1, 6, "", ("203.0.113.9", 0)), (socket.AF_INET, 1, 6, "", ("127.0.0.1", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **more: [lacks, has])
    (one,) = listen("localhost", 0)
    with one:
        assert one.getsockname()[0] == "127.0.0.1"
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **more: [lacks])
    with pytest.raises(UsageError, match="cannot listen at elsewhere"):
        listen("elsewhere", 0)


# -- usage ---------------------------------------------------------------------------------------------


def test_the_usage_is_that_of_the_record(co_dir: Path) -> None:
    def answer(text: str, tokens: int, cost: float) -> LLMResponse:
        return LLMResponse(text, usage=TokenUsage(tokens, 10, cost=cost))

    ask = Client(app_of(agent_with(answer("One.", 100, 0.5), answer("Two.", 200, 0.25))))
    one = {"X-Session-Id": "s", "X-Turn-Number": "1"}
    for _ in range(2):  # taken, then read
        usage = ask("POST", "/v1/chat/completions", said("Hi"), headers=one).json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (100, 10, 110)
        assert usage["cost"] == ask("GET", "/sessions/s").json()["cost"] == 0.5
    body = {**said("And?"), "stream": True, "stream_options": {"include_usage": True}}
    last = events(ask("POST", "/v1/chat/completions", body, headers={"X-Session-Id": "s"}))[-1]
    assert last["choices"] == [] and last["usage"]["prompt_tokens"] == 200 and last["usage"]["cost"] == 0.25
    assert ask("GET", "/sessions/s").json()["cost"] == 0.75


# -- images and files ----------------------------------------------------------------------------------


def test_images_and_files_are_given_to_the_model(co_dir: Path) -> None:
    seen = ScriptedLLM(*["Nice."] * 4)
    ask = Client(app_of(Agent("shop", llm=seen, quiet=True)))
    picture = {"type": "image_url", "image_url": {"url": URL}}
    paper = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}}
    parts = [{"type": "text", "text": "Look"}, picture, paper]
    assert ask("POST", "/sessions/s/turns", {"prompt": parts, "number": 1}).status_code == 200
    body = {"model": "shop", "messages": [{"role": "user", "content": parts}]}
    assert ask("POST", "/v1/chat/completions", body).status_code == 200
    source = {"type": "data", "value": PNG, "mimeType": "image/png"}
    pdf = {"type": "data", "value": "JVBERg==", "mimeType": "application/pdf"}
    image, document = {"type": "image", "source": source}, {"type": "document", "source": pdf}
    thread = {**run(), "messages": [{"id": "1", "role": "user", "content": [parts[0], image, document]}]}
    assert events(ask("POST", "/agui", thread))[-1]["type"] == "RUN_FINISHED"
    sent = [request.messages[-1]["content"] for request in seen.requests]
    assert len(sent) == 3 and all(one[:2] == parts[:2] and one[2]["type"] == "file" for one in sent)
    for wrong in ([], [{"type": "text", "text": " "}], [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}],
                  [{"type": "input_audio"}], [1], {"a": 1}):  # fmt: skip
        reply = ask("POST", "/sessions/s2/turns", {"prompt": wrong})
        assert reply.status_code == 400 and "image_url with a data: or https: URL" in error_of(reply)["message"]
    thread["messages"][0]["content"] = [{"type": "audio", "source": source}]
    assert "of the type audio" in error_of(ask("POST", "/agui", thread))["message"]


# -- threads of AG-UI ----------------------------------------------------------------------------------


def texts(reply: Any) -> list[str]:
    found = events(reply)
    assert found[-1]["type"] == "RUN_FINISHED", found
    return [one["delta"] for one in found if one["type"] == "TEXT_MESSAGE_CONTENT"]


def test_a_thread_goes_on_after_a_run_that_failed(co_dir: Path) -> None:
    ask = Client(app_of(agent_with(RuntimeError("no"), "Two.", RuntimeError("no"), "Three.", "Four.")))
    assert events(ask("POST", "/agui", run("one")))[-1]["type"] == "RUN_ERROR"
    assert texts(ask("POST", "/agui", run("one", "two"))) == ["Two."]
    assert texts(ask("POST", "/agui", run("one", "two"))) == ["Two."]  # the same run again takes nothing
    assert events(ask("POST", "/agui", run("one", "two", "three")))[-1]["type"] == "RUN_ERROR"
    thread = run("one", "two", "three", "three")  # who says the same again goes on with that turn
    assert texts(ask("POST", "/agui", thread)) == ["Three."]
    thread["messages"] += [
        {"id": "a", "role": "assistant", "content": "Three."},
        {"id": "b", "role": "user", "content": "x"},
    ]
    assert texts(ask("POST", "/agui", thread)) == ["Four."]
    assert ask("GET", "/sessions/t1").json()["turns"] == 4


def test_a_thread_goes_on_after_a_run_that_its_client_left(co_dir: Path) -> None:
    def slow() -> str:
        """Take a while."""
        time.sleep(0.4)
        return "done"

    app = app_of(Agent("shop", tools=[slow], llm=ScriptedLLM(call("slow"), "Two."), quiet=True))
    left_after(app, "/agui", run("one"), 0.2)
    assert texts(Client(app)("POST", "/agui", run("one", "two"))) == ["Two."]


def test_a_run_that_was_killed_goes_on_before_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = (
        "import os\nfrom connectagent import Agent, before_llm\nfrom connectagent.testing import ScriptedLLM\n"
        "@before_llm\ndef die():\n    os.kill(os.getpid(), 9)\n"
        "Agent('shop', llm=ScriptedLLM('x'), quiet=True, on_events=[die]).for_session('t1').turn('one')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", code], env=environment, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    ask = Client(app_of(agent_with("One.", "Two.")))
    assert texts(ask("POST", "/agui", run("one", "two"))) == ["One.", "Two."]
    error = events(ask("POST", "/agui", {**run("x", "y"), "threadId": "new"}))[-1]  # what nobody has begun is not taken
    assert error["type"] == "RUN_ERROR" and "turn 1 is the next" in error["message"]


# -- a server of its own -------------------------------------------------------------------------------

SLOW = (
    "import os, time\nfrom connectagent import Agent\nfrom connectagent.testing import ScriptedLLM, call\n"
    "def note() -> str:\n    'Note it.'\n    open('noted', 'a').write('x')\n    return 'noted'\n"
    "def wait() -> str:\n    'Wait.'\n    open('waits', 'a').write('x')\n    time.sleep(60)\n    return 'waited'\n"
    "steps = ['Done.'] * 9 if os.path.exists('waits') else [call('note'), call('wait'), call('note'), call('wait')]\n"
    "agent = Agent('shop', tools=[note, wait], llm=ScriptedLLM(*steps), quiet=True)\n"
)


def waiting(file: Path, count: int) -> None:
    """Return once so many tools wait."""
    end = time.monotonic() + 30
    while not file.exists() or len(file.read_text()) < count:
        assert time.monotonic() < end, "no tool was begun"
        time.sleep(0.02)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, "twice"])
def test_ctrl_c_ends_turns_that_run_and_the_same_requests_go_on_with_them(how: Any, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(SLOW, "utf-8")
    port, replies = free_port(), dict[str, Any]()
    base, body = f"http://127.0.0.1:{port}", {"prompt": "Note it", "number": 1}

    def ask(path: str, body: Any) -> None:
        replies[path] = httpx.post(base + path, json=body, timeout=40)

    grace = "connectagent_serve.GRACE_S = " + ("60" if how == "twice" else "0.3")
    process = served(tmp_path, port, grace, stderr=subprocess.PIPE)
    asked = [
        threading.Thread(target=ask, args=given) for given in (("/sessions/s1/turns", body), ("/agui", run("Note it")))
    ]
    for one in asked:
        one.start()
    try:
        waiting(tmp_path / "waits", 2)
        process.send_signal(signal.SIGINT if how == "twice" else how)
        if how == "twice":
            time.sleep(0.5)
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=20)
    finally:
        process.kill()
    for one in asked:
        one.join()
    assert process.returncode == 0 and b"Traceback" not in shown, shown.decode()
    plain, streamed = replies["/sessions/s1/turns"], events(replies["/agui"])
    assert (plain.status_code, error_of(plain)["code"]) == (503, "ended")
    assert (streamed[0]["type"], streamed[-1]["type"], streamed[-1]["code"]) == ("RUN_STARTED", "RUN_ERROR", "ended")
    process = served(tmp_path, port)
    try:
        assert httpx.get(f"{base}/sessions/s1").json()["status"] == "cancelled"
        assert httpx.post(f"{base}/sessions/s1/turns", json=body).json()["result"] == "Done."
        assert texts(httpx.post(f"{base}/agui", json=run("Note it"))) == ["Done."]
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "noted").read_text() == "xx"


def test_at_ctrl_c_a_stream_of_a2a_says_how_its_task_has_ended(tmp_path: Path) -> None:
    pytest.importorskip("a2a")
    pytest.importorskip("sse_starlette")
    (tmp_path / "agent.py").write_text(SLOW, "utf-8")
    process = served(tmp_path, port := free_port(), "connectagent_serve.GRACE_S = 0.5", stderr=subprocess.PIPE)
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Note it"}], "contextId": "c"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": {"message": message}}
    told = list[str]()

    def ask() -> None:
        with httpx.stream(
            "POST", f"http://127.0.0.1:{port}/a2a", json=body, headers={"A2A-Version": "1.0"}, timeout=40
        ) as stream:
            told.extend(stream.iter_lines())

    asked = threading.Thread(target=ask)
    asked.start()
    try:
        waiting(tmp_path / "waits", 1)
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=20)
    finally:
        process.kill()
    asked.join()
    assert process.returncode == 0 and shown.decode().count("\n") == 1, shown.decode()  # where it is served
    assert "TASK_STATE_FAILED" in "".join(told) and "the server ends" in "".join(told)


@pytest.mark.skipif(os.name != "posix", reason="there are no terminals of this kind")
def test_nobody_is_asked_at_the_terminal_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        SLOW.replace("[note, wait], llm", "[note], trust='careful', llm").replace(
            "call('wait'), call('note'), call('wait')", "'No.'"
        ),
        "utf-8",
    )
    ours, its = os.openpty()
    process = served(tmp_path, port := free_port(), stdin=its, stdout=its, stderr=its)
    try:
        reply = httpx.post(f"http://127.0.0.1:{port}/sessions/s/turns", json={"prompt": "Note it"}, timeout=20)
        assert reply.json()["result"] == "No." and not (tmp_path / "noted").exists()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(its)


class Terminal(io.StringIO):
    """A terminal at which somebody says yes to everything."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [False, True])
def test_nobody_is_asked_at_the_terminal_of_another_server(
    stream: bool, co_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that serves the application itself."""
    monkeypatch.setattr(sys, "stdin", typed := Terminal("y\n" * 9))
    monkeypatch.setattr(sys, "stderr", Terminal())
    app = app_of(agent_with(*[call("pay", amount=5), "No."] * 2, trust="careful"))
    assert "No." in Client(app)("POST", "/v1/chat/completions", {**said("Pay 5"), "stream": stream}).text
    assert "No." in Client(app)("POST", "/agui", run("Pay 5")).text
    assert PAID == [] and typed.tell() == 0


def test_the_client_of_openai_talks_to_it(tmp_path: Path) -> None:
    openai = pytest.importorskip("openai")
    (tmp_path / "agent.py").write_text(
        "from connectagent import Agent, LLMResponse, TokenUsage, ToolCall\n"
        "def note(text: str) -> str:\n    'Note it.'\n    open('noted', 'a').write(text)\n    return 'noted'\n"
        "class Model:\n    model = 'm'\n"
        "    def complete(self, messages, tools=None):\n"
        "        if messages[-1]['role'] == 'tool':\n            raise RuntimeError('down')\n"
        "        if messages[-1]['content'] == 'note':\n"
        "            return LLMResponse(None, [ToolCall('c', 'note', {'text': 'x'})])\n"
        "        return LLMResponse('Hello.', usage=TokenUsage(7, 3, cost=0.5))\n"
        "agent = Agent('shop', tools=[note], llm=Model(), quiet=True)\n",
        "utf-8",
    )
    process = served(tmp_path, port := free_port())
    try:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
        given: dict[str, Any] = said("Hi")
        assert [model.id for model in client.models.list()] == ["shop"]
        whole = client.chat.completions.create(**given)
        assert (whole.choices[0].message.content, whole.usage.total_tokens) == ("Hello.", 10)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        pieces = list(client.chat.completions.create(**given, **options))
        assert pieces[0].choices[0].delta.content == "Hello." and pieces[-1].usage.total_tokens == 10
        with pytest.raises(openai.InternalServerError) as raised:
            client.chat.completions.create(**said("note"))
        assert raised.value.code == "RuntimeError" and "down" in raised.value.message
        with pytest.raises(openai.BadRequestError, match="X-Session-Id"):
            client.chat.completions.create(**said("one", "two"))
        client.close()
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "noted").read_text() == "x"  # the client has not sent the turn again


def test_a_body_of_any_bytes_is_refused(co_dir: Path) -> None:
    ask = Client(app_of(agent_with("One.")))
    for body in (b"\xff\xfe", b"[" * 100_000, b"nul", b'"a"'):
        reply = ask("POST", "/sessions/s/turns", content=body, headers={"Content-Type": "application/json"})
        assert reply.status_code == 400, reply.text


def test_half_a_surrogate_pair_that_a_model_writes_is_replaced_as_in_records(co_dir: Path) -> None:
    ask = Client(app_of(agent_with(*["\ud800 x"] * 4)))
    assert ask("POST", "/sessions/s/turns", {"prompt": "Hi"}).json()["result"] == "\ufffd x"
    told = ask("POST", "/v1/chat/completions", said("Hi"))
    assert told.json()["choices"][0]["message"]["content"] == "\ufffd x"
    assert "\\ufffd x" in ask("POST", "/v1/chat/completions", {**said("Hi"), "stream": True}).text
    assert texts(ask("POST", "/agui", run("Hi"))) == ["\ufffd x"]


def test_only_a_decision_decides(co_dir: Path) -> None:
    @before_each_tool
    def ask_first(tool_call: Any) -> None:
        raise Pause("a payment")

    ask = Client(app_of(agent_with(call("pay", amount=5), "Done.", plugins=[ask_first])))
    (wait,) = ask("POST", "/sessions/s/turns", {"prompt": "Pay 5"}).json()["waiting"]
    for wrong in (
        {"approve": 5}, {"approve": None}, {"approve": []}, {"answer": None}, {"approve": True, "reject": "no"}, {},
        {"reject": 5}, {"approve": True, "wait": "x"}, {"approve": True, "wait": 5}, {"aprove": True},
    ):  # fmt: skip
        assert ask("POST", "/sessions/s/decision", wrong).status_code == 400, wrong
    assert ask("GET", "/sessions/s").json()["status"] == "paused"
    decided = ask("POST", "/sessions/s/decision", {"approve": False, "wait": wait["id"]})
    assert decided.json()["result"] == "Done." and PAID == []
