"""An agent that is served: sessions, formats, refusals, restarts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("ag_ui")
httpx = pytest.importorskip("httpx")
import anyio  # noqa: E402
from ag_ui.core import Event  # noqa: E402
from connectagent_serve import Serve, app_of  # noqa: E402
from pydantic import BaseModel, TypeAdapter  # noqa: E402
from pytest_connectagent import AgentTester  # noqa: E402

from connectagent import Agent, ConfigError, Pause, ToolRejected, before_each_tool, tool  # noqa: E402
from connectagent.testing import ScriptedLLM, call  # noqa: E402

PAID: list[int] = []


@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    PAID.append(amount)
    return f"paid {amount}"


def agent_with(*responses: Any, **options: Any) -> Agent:
    PAID.clear()
    return Agent("shop", tools=[pay], llm=ScriptedLLM(*responses), quiet=True, **options)


class Client:
    """Asks the application in this process."""

    def __init__(self, app: Any, base: str = "http://localhost:8000") -> None:
        self.app, self.base = app, base

    def __call__(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        async def ask() -> Any:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=self.base) as client:
                return await client.request(method, path, **({"json": body} if body is not None else {}), **options)

        return anyio.run(ask)


def run(*texts: str) -> dict[str, Any]:
    messages = [{"id": str(number), "role": "user", "content": text} for number, text in enumerate(texts)]
    return {
        "threadId": "t1",
        "runId": "r1",
        "messages": messages,
        "tools": [],
        "context": [],
        "state": {},
        "forwardedProps": {},
    }


def events(reply: Any) -> list[Any]:
    return [json.loads(line[6:]) for line in reply.text.split("\n\n") if line and line != "data: [DONE]"]


def test_the_same_turn_is_taken_once_also_by_another_application(co_dir: Path) -> None:
    ask = Client(app_of(agent_with(call("pay", amount=5), "Paid.")))
    first = ask("POST", "/sessions/s1/turns", {"prompt": "Pay 5", "number": 1})
    assert (first.status_code, first.json()) == (
        200,
        {"id": "s1", "status": "done", "result": "Paid.", "outcome": "answered"},
    )
    again = Client(app_of(Agent("shop", tools=[pay], llm=ScriptedLLM(), quiet=True)))
    assert again("POST", "/sessions/s1/turns", {"prompt": "Pay 5", "number": 1}).json() == first.json()
    assert again("POST", "/sessions/s1/turns", {"prompt": "Pay 6", "number": 1}).status_code == 409
    assert again("GET", "/sessions/s1").json()["turns"] == 1
    assert PAID == [5]


def test_completions_plain_and_streamed(co_dir: Path) -> None:
    ask = Client(app_of(agent_with("One.", "Two.")))
    body = {"model": "shop", "messages": [{"role": "user", "content": "Hi"}]}
    plain = ask("POST", "/v1/chat/completions", body)
    assert plain.json()["choices"][0]["message"] == {"role": "assistant", "content": "One."}
    streamed = ask("POST", "/v1/chat/completions", {**body, "stream": True}, headers={"X-Session-Id": "other"})
    assert streamed.text.endswith("data: [DONE]\n\n")
    choices = [one["choices"][0] for one in events(streamed)]
    assert [one["delta"].get("content") for one in choices] == ["Two.", None]
    assert choices[-1]["finish_reason"] == "stop"


class Price(BaseModel):
    usd: int


def test_typed_results_are_json_in_each_format(co_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ask = Client(app_of(Agent("shop", llm=ScriptedLLM(*['{"usd": 3}'] * 4), output=Price)))
    for _ in range(2):  # taken, then read
        assert ask("POST", "/sessions/s/turns", {"prompt": "Hi", "number": 1}).json()["result"] == {"usd": 3}
    body = {"model": "shop", "messages": [{"role": "user", "content": "Hi"}]}
    assert ask("POST", "/v1/chat/completions", body).json()["choices"][0]["message"]["content"] == '{"usd": 3}'
    streamed = events(ask("POST", "/v1/chat/completions", {**body, "stream": True}))
    assert streamed[0]["choices"][0]["delta"]["content"] == '{"usd": 3}'
    assert '{"usd": 3}' in [one.get("delta") for one in events(ask("POST", "/agui", run("Hi")))]
    assert capfd.readouterr() == ("", "")  # lines of many sessions would stand between each other


def test_agui_events_are_valid_and_show_the_tools(co_dir: Path) -> None:
    ask = Client(app_of(agent_with(call("pay", amount=5), "Paid.")))
    found = events(ask("POST", "/agui", run("Pay 5")))
    for one in found:
        TypeAdapter(Event).validate_python(one)
    kinds = [one["type"] for one in found]
    assert kinds[0] == "RUN_STARTED" and kinds[-1] == "RUN_FINISHED"
    assert "TOOL_CALL_RESULT" in kinds and "Paid." in [one.get("delta") for one in found]
    repeated = events(ask("POST", "/agui", run("Pay 5")))
    assert "Paid." in [one.get("delta") for one in repeated] and PAID == [5]


def left_after(app: Any, path: str, body: Any, seconds: float) -> list[Any]:
    """Ask and leave after so long, as a browser that is closed; what was sent until then."""
    sent: list[Any] = []

    async def ask() -> None:
        given = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

        async def receive() -> Any:
            if given:
                return given.pop()
            await anyio.sleep(seconds)
            return {"type": "http.disconnect"}

        async def send(event: Any) -> None:
            sent.append(event)

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
                 "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers,
                 "server": ("localhost", 80), "client": ("localhost", 1), "scheme": "http"}  # fmt: skip
        await app(scope, receive, send)

    anyio.run(ask)
    return sent


def test_a_client_that_leaves_cancels_its_turn_which_goes_on_with_the_next_run(co_dir: Path) -> None:
    @tool
    def slow(number: int) -> str:
        """Take a while."""
        PAID.append(number)
        time.sleep(0.4)
        return "done"

    calls = [call("slow", number=number) for number in range(3)]
    agent = Agent("shop", tools=[slow], llm=ScriptedLLM(*calls, "Done."), quiet=True)
    PAID.clear()
    app = app_of(agent, concurrency=1)
    left_after(app, "/agui", run("Go"), 0.6)
    before = list(PAID)
    assert 1 <= len(before) < 3
    time.sleep(0.5)
    assert before == PAID  # nothing goes on
    ask = Client(app)
    assert ask("GET", "/sessions/t1").json()["status"] == "cancelled"
    found = events(ask("POST", "/agui", run("Go")))
    assert found[-1]["type"] == "RUN_FINISHED" and len(set(PAID)) == len(PAID)


def test_a_pause_is_shown_and_decided(co_dir: Path) -> None:
    @before_each_tool
    def ask_first(tool_call: Any) -> None:
        raise Pause("a payment")

    ask = Client(app_of(agent_with(call("pay", amount=5), "Paid.", plugins=[ask_first])))
    paused = ask("POST", "/sessions/s1/turns", {"prompt": "Pay 5"})
    assert paused.status_code == 202 and paused.json()["waiting"][0]["reason"] == "a payment"
    shown = ask("GET", "/sessions/s1").json()
    assert shown["status"] == "paused" and shown["waiting"] == paused.json()["waiting"] and PAID == []
    assert ask("POST", "/sessions/s1/decision", {}).status_code == 400
    done = ask("POST", "/sessions/s1/decision", {"approve": True})
    assert (done.status_code, PAID) == (200, [5])


@pytest.mark.parametrize(
    ("payloads", "paid", "results"),
    [
        ([True, {"approve": True}], [5, 6], ["paid 5", "paid 6"]),
        ([{"reject": "too much"}, True], [6], ["too much", "paid 6"]),
        ([False, "paid by hand"], [], ["rejected", "paid by hand"]),
        ([None, None], [], ["cancelled", "cancelled"]),
    ],
)
def test_agui_ends_a_run_where_a_person_decides_and_goes_on_with_the_answers(
    payloads: list[Any], paid: list[int], results: list[str], co_dir: Path
) -> None:
    @before_each_tool
    def ask_first(tool_call: Any) -> None:
        raise Pause("a payment")

    calls = [call("pay", amount=5), call("pay", amount=6)]
    agent = agent_with(calls, "Done.", plugins=[ask_first], parallel_tools=4)
    ask = Client(app_of(agent))
    *told_first, last = events(ask("POST", "/agui", run("Pay 5")))
    asked = ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"]  # an interrupt is about a call that was told
    assert [one["type"] for one in told_first] == ["RUN_STARTED", *asked * 2]
    assert last["type"] == "RUN_FINISHED" and last["outcome"]["type"] == "interrupt" and PAID == []
    waiting = last["outcome"]["interrupts"]
    assert [one["metadata"]["call"]["arguments"] for one in waiting] == [{"amount": 5}, {"amount": 6}]
    answers = [
        {"interruptId": one["id"], "status": "cancelled" if given is None else "resolved", "payload": given}
        for one, given in zip(waiting, payloads, strict=True)
    ]
    for wrong in ({"pay": 1}, {}, 7, {"approve": True, "reject": "no"}, "", None):
        body = {**run(), "resume": [{**answers[0], "status": "resolved", "payload": wrong}]}
        assert ask("POST", "/agui", body).status_code == 400, wrong
    found = events(ask("POST", "/agui", {**run(), "resume": answers}))
    for one in found:
        TypeAdapter(Event).validate_python(one)
    assert found[-1]["type"] == "RUN_FINISHED" and "outcome" not in found[-1]
    assert not {"TOOL_CALL_START", "TOOL_CALL_ARGS"} & {one["type"] for one in found}  # they were told before
    told = [one["content"] for one in found if one["type"] == "TOOL_CALL_RESULT"]
    assert len(told) == 2 and all(part in text for part, text in zip(results, told, strict=True))
    assert sorted(PAID) == paid and "Done." in [one.get("delta") for one in found]
    again = events(ask("POST", "/agui", {**run(), "resume": answers}))
    assert again[-1]["type"] == "RUN_ERROR" and sorted(PAID) == paid


@pytest.mark.parametrize("path", ["/sessions/t1/turns", "/v1/chat/completions", "/agui"])
def test_guards_act_in_each_served_turn(co_dir: Path, path: str) -> None:
    @before_each_tool
    def refuse(tool_call: Any) -> None:
        raise ToolRejected("no payments")

    ask = Client(app_of(agent_with(call("pay", amount=5), "Not paid.", plugins=[refuse])))
    body = (
        {**run("Pay 5"), "prompt": "Pay 5"}
        if path == "/agui"
        else {"prompt": "Pay 5", "messages": [{"role": "user", "content": "Pay 5"}]}
    )
    body.pop("prompt" if path != "/sessions/t1/turns" else "messages")
    reply = ask("POST", path, body)
    assert reply.status_code == 200 and "Not paid." in reply.text and PAID == []


def test_two_turns_of_a_session_and_too_many_turns(co_dir: Path) -> None:
    app = app_of(agent_with("One.", "Two."), concurrency=1)
    with Agent("shop", quiet=True).for_session("s1")._held():
        assert Client(app)("POST", "/sessions/s1/turns", {"prompt": "Hi"}).status_code == 409
    app = app_of(slow := agent_with("One.", "Two."), concurrency=1)
    replies: list[Any] = []

    async def both() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:

            async def one(key: str) -> None:
                replies.append(await client.post(f"/sessions/{key}/turns", json={"prompt": "Hi"}))

            async with anyio.create_task_group() as group:
                group.start_soon(one, "a")
                group.start_soon(one, "b")

    anyio.run(both)
    assert sorted(one.status_code for one in replies) == [200, 429] and slow is not None
    assert [one.headers["retry-after"] for one in replies if one.status_code == 429] == ["1"]


def test_what_is_refused(co_dir: Path) -> None:
    agent = agent_with("One.")
    ask = Client(app_of(agent, "hidden-token", max_bytes=100))
    good = {"Authorization": "Bearer hidden-token"}
    path = "/sessions/s1/turns"
    assert ask("GET", "/healthz").status_code == 200
    assert ask("POST", path, {"prompt": "Hi"}).status_code == 401
    assert ask("POST", path, {"prompt": "x" * 200}, headers=good).status_code == 413
    assert ask("POST", path, content=b"{", headers={**good, "Content-Type": "application/json"}).status_code == 400
    assert ask("POST", path, content=b"{}", headers={**good, "Content-Type": "text/plain"}).status_code == 415
    assert ask("POST", path, {"prompt": ""}, headers=good).status_code == 400
    assert ask("POST", "/sessions/a b/turns", {"prompt": "Hi"}, headers=good).status_code == 400
    assert Client(app_of(agent), "http://evil.example")("GET", "/healthz").status_code == 403
    assert (
        "access-control-allow-origin" not in ask("GET", "/healthz", headers={"Origin": "http://evil.example"}).headers
    )
    with pytest.raises(ConfigError, match="needs a token"):
        app_of(agent, host="0.0.0.0")


def test_the_page_loads_nothing_else_and_errors_have_no_secrets(co_dir: Path) -> None:
    secret = "sk-ant-api03-" + "a1B2" * 20
    ask = Client(app_of(agent_with(RuntimeError(f"refused {secret}"))))
    page = ask("GET", "/")
    assert "default-src 'none'" in page.headers["content-security-policy"] and "http" not in page.text
    reply = ask("POST", "/sessions/s1/turns", {"prompt": "Hi"})
    assert reply.status_code == 500 and secret not in reply.text and "refused" in reply.text


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def served(folder: Path, port: int, before: str = "pass", more: Any = (), **options: Any) -> subprocess.Popen[bytes]:
    """`connectagent serve agent.py`, once it answers; `before`: what its process does first, `more`: its options."""
    given = ["agent.py", "--port", str(port), *more]
    code = f"import connectagent_serve; {before}; connectagent_serve.serve({given})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=folder, env=environment, **options)
    for _ in range(200):
        try:
            httpx.get(f"http://127.0.0.1:{port}/healthz")
            return process
        except httpx.ConnectError:
            time.sleep(0.05)
    process.kill()
    raise AssertionError("it does not answer")


def test_a_connection_stays_open_for_longer_than_clients_keep_it(tmp_path: Path) -> None:
    code = "from connectagent import Agent\nagent = Agent('shop', model='offline')\n"
    (tmp_path / "agent.py").write_text(code, "utf-8")
    process = served(tmp_path, port := free_port())
    connection = HTTPConnection("127.0.0.1", port, timeout=20)  # raises where the other side has closed it
    try:
        for wait_s in (0.0, 5.5):  # httpx keeps it for 5 s
            time.sleep(wait_s)
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() and connection.sock is not None
    finally:
        connection.close()
        process.kill()
        process.wait()


def test_after_a_kill_the_same_turn_runs_no_tool_twice(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "import os, time, connectagent\nfrom connectagent import Agent\n"
        "from connectagent.testing import ScriptedLLM, call\n"
        "def note() -> str:\n    'Note it.'\n    open('noted', 'a').write('x')\n    return 'noted'\n"
        "def wait() -> str:\n    'Wait.'\n    open('waits', 'w').close()\n    time.sleep(60)\n    return 'waited'\n"
        "again = os.path.exists('waits')\n"
        "steps = ['Done.'] if again else [call('note'), call('wait'), 'Done.']\n"
        "agent = Agent('shop', tools=[note, wait], llm=ScriptedLLM(*steps), quiet=True)\n",
        "utf-8",
    )
    port = free_port()

    def ask(timeout: float) -> Any:
        body = {"prompt": "Note it", "number": 1}
        return httpx.post(f"http://127.0.0.1:{port}/sessions/s1/turns", json=body, timeout=timeout)

    process = served(tmp_path, port)
    try:
        with pytest.raises(httpx.TimeoutException):
            ask(1)
        assert (tmp_path / "waits").exists()
    finally:
        process.kill()
        process.wait()
    process = served(tmp_path, port)
    try:
        assert ask(20).json()["result"] == "Done."
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "noted").read_text() == "x"


def test_named_as_a_plugin_it_changes_nothing(agenttester: AgentTester) -> None:
    agenttester.check(Serve())
