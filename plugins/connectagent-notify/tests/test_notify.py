"""People are told how turns come out, masked, once for a tree of agents, and no turn waits for it."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from connectagent_notify import Notify
from pytest_connectagent import AgentTester

from connectagent import Agent, ConfigError, Pause, Paused, PluginWarning, ProviderError, xray
from connectagent.testing import ScriptedLLM, call, replayed

SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789abcdefgh"
DOWN = ProviderError(f"down, {SECRET}", kind="server", provider="test")


class Service:
    """A webhook on this machine.

    Attributes:
        got: the bodies that came in.
        answer: the status that it answers with.
        slow_s: how long it takes.
    """

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.answer, self.slow_s = 200, 0.0
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                time.sleep(service.slow_s)
                service.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(service.answer)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *given: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"json://127.0.0.1:{self.server.server_port}/"

    def titles(self) -> list[str]:
        return [one["title"] for one in self.got]


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def spend(amount: int, note: str = "", password: str = "") -> str:
    """Spend."""
    if not xray.approved:
        raise Pause("too much")
    return "spent"


def agent_with(plugin: Notify, *script: Any, **options: Any) -> Agent:
    options = {"log": False, "quiet": True, "tools": [spend], **options}
    return Agent("main", llm=ScriptedLLM(*script), plugins=[plugin], **options)


def test_it_keeps_the_rules_on_every_path(agenttester: AgentTester, service: Service) -> None:
    agenttester.check(lambda: Notify(service.url), changes={"outside?"})


def test_the_end_of_a_turn_is_told(service: Service) -> None:
    with agent_with(Notify(service.url), f"Done, with {SECRET}.") as agent:
        agent.input("Go.")
    (message,) = service.got
    assert (message["title"], message["type"]) == ("main: answered", "success")
    assert message["message"].startswith("Done, with ") and SECRET not in message["message"]


def test_a_failure_is_told_and_reaches_the_caller(service: Service) -> None:
    with agent_with(Notify(service.url), DOWN) as agent, pytest.raises(ProviderError):
        agent.input("Go.")
    (message,) = service.got
    assert (message["title"], message["type"]) == ("main failed: ProviderError", "failure")
    assert message["message"].startswith("down, ") and SECRET not in message["message"]


@pytest.mark.parametrize("content", [False, True])
def test_a_wait_is_told_with_the_call_and_how_to_decide(content: bool, service: Service, co_dir: Path) -> None:
    plugin = Notify(service.url, content=content)
    with agent_with(plugin, call("spend", amount=5, note=SECRET, password="geranium"), "Done.", log=True) as agent:
        with pytest.raises(Paused) as paused:
            agent.input("Go.")
        agent.resume(approve=True)
    waits, ended = service.got
    assert (waits["title"], waits["type"]) == ("main waits for you", "warning")
    [wait] = paused.value.waiting
    assert f"connectagent resume {paused.value.record} --approve '{wait.id}'" in waits["message"]
    assert ('too much: spend {"amount": 5' in waits["message"]) is content
    assert SECRET not in str(service.got) and "geranium" not in str(service.got)
    assert ended["message"] == ("Done." if content else "main: answered")


def test_of_several_waits_each_is_told_with_a_command_that_decides_it(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / "two words"))
    calls = [call("spend", amount=amount) for amount in (5, 6)]
    made = agent_with(Notify(service.url), calls, log=True, parallel_tools=2)
    with made as agent, pytest.raises(Paused) as paused:
        agent.input("Go.")
    commands = [line for line in service.got[0]["message"].splitlines() if line.startswith("connectagent ")]
    assert [shlex.split(line)[2:] for line in commands] == [
        [str(paused.value.record), "--approve", wait.id] for wait in paused.value.waiting
    ]


def test_agents_inside_are_not_told(service: Service) -> None:
    children = [Agent(name, llm=ScriptedLLM("Hi."), quiet=True) for name in ("one", "two")]
    calls = [call("one", prompt="Go."), call("two", prompt="Go.")]
    with agent_with(Notify(service.url), calls, "Done.", tools=children, parallel_tools=2) as agent:
        agent.input("Go.")
    assert service.titles() == ["main: answered"]


def test_streamed_and_awaited_turns_are_told_once(service: Service) -> None:
    with agent_with(Notify(service.url), "One.", "Two.") as agent:
        list(agent.stream("Go."))
        asyncio.run(agent.ainput("Go."))
    assert [one["message"] for one in service.got] == ["One.", "Two."]


def test_who_interrupts_or_cancels_knows_it(service: Service) -> None:
    async def cancelled(agent: Agent) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await agent.ainput("Go.")

    def stop() -> None:
        """Stop."""
        raise KeyboardInterrupt

    def slow() -> None:
        """Take long."""
        time.sleep(0.5)

    with agent_with(Notify(service.url), call("stop"), call("slow"), tools=[stop, slow]) as agent:
        with pytest.raises(KeyboardInterrupt):
            agent.input("Go.")
        asyncio.run(cancelled(agent))
    assert service.got == []


def test_only_what_is_wanted_is_told(service: Service) -> None:
    with agent_with(Notify(service.url, on=["failed"]), "Done.", DOWN) as agent:
        agent.input("Go.")
        with pytest.raises(ProviderError):
            agent.input("Go.")
    with agent_with(Notify(service.url, after_s=60), "Done.") as agent:
        agent.input("Go.")
    assert service.titles() == ["main failed: ProviderError"]


def test_a_replay_tells_nobody(service: Service, co_dir: Path) -> None:
    with agent_with(Notify(service.url), "Done.", log=True) as agent:
        agent.input("Go.")
    assert agent.record is not None
    plugin = Notify(service.url)
    with agent_with(plugin) as again:
        assert replayed(agent.record, agent=again).same
    assert len(service.got) == 1


# -- sending -------------------------------------------------------------------------------------


def test_a_slow_service_delays_no_turn_and_closing_only_within_its_limit(service: Service) -> None:
    service.slow_s = 3
    agent = agent_with(Notify(service.url, close_s=0.2), *["Done."] * 5)
    started = time.monotonic()
    for _ in range(5):
        agent.input("Go.")
    assert time.monotonic() - started < 2.5
    with pytest.warns(PluginWarning, match=r"not delivered to json://127\.0\.0\.1"):
        agent.close()
    assert time.monotonic() - started < 2.9


def test_of_too_many_messages_the_oldest_are_dropped(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectagent_notify._MOST", 2)
    service.slow_s = 0.3
    with agent_with(Notify(service.url), *"123456") as agent:
        for _ in range(6):
            agent.input("Go.")
    assert [one["message"] for one in service.got][-2:] == ["5", "6"] and len(service.got) in (2, 3)


def test_what_is_refused_is_said_when_the_agent_is_closed(service: Service) -> None:
    service.answer = 500
    url = service.url.replace("json://", f"json://user:{SECRET}@")
    agent = agent_with(Notify(url), "Done.")
    assert agent.input("Go.") == "Done."
    with pytest.warns(PluginWarning) as warned:
        agent.close()
    assert SECRET not in str(warned[0].message)


def test_messages_arrive_at_several_services_when_the_process_ends(service: Service, tmp_path: Path) -> None:
    service.slow_s = 0.1
    program = f"""
from connectagent import Agent
from connectagent_notify import Notify
agent = Agent("main", plugins=[Notify("{service.url}a {service.url}b")], log=False, quiet=True)
agent.input("Hello")
"""
    command = [sys.executable, "-c", program]
    path = {"PYTHONPATH": ":".join([str(Path(__file__).parents[1]), *sys.path])}
    done = subprocess.run(command, cwd=tmp_path, env=path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert service.titles() == ["main: answered"] * 2


def test_slack_gets_its_own_form(monkeypatch: pytest.MonkeyPatch) -> None:
    import requests

    sent: list[tuple[str, Any]] = []

    def post(method: str, url: str, data: Any = None, **options: Any) -> requests.Response:
        sent.append((url, json.loads(data)))
        response = requests.Response()
        response.status_code, response._content = 200, b"ok"
        return response

    monkeypatch.setattr(requests, "request", post)
    url = "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7"
    with agent_with(Notify(url), "Done.") as agent:
        agent.input("Go.")
    ((address, body),) = sent
    assert address == url
    assert "main: answered" in json.dumps(body) and "Done." in json.dumps(body)


def test_a_webhook_of_slacks_form_gets_text(service: Service) -> None:
    with agent_with(Notify(f"{service.url}?:message=text&:title=&:type=&:version=&:attachments="), "Done.") as agent:
        agent.input("Go.")
    assert service.got == [{"text": "Done."}]


@pytest.mark.parametrize("options", [{}, {"urls": f"nothing://{SECRET}"}, {"urls": "json://x", "on": ["end"]}])
def test_what_cannot_be_meant_is_an_error(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APPRISE_URLS", raising=False)
    with pytest.raises(ConfigError) as error:
        Notify(**options)
    assert SECRET not in str(error.value)


def test_addresses_come_from_the_environment(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPRISE_URLS", service.url)
    with agent_with(Notify(), "Done.") as agent:
        agent.input("Go.")
    assert service.titles() == ["main: answered"]
