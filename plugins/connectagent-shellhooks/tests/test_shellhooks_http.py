"""Hooks that are addresses: what they are sent, what of their answers counts, and how they fail."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from connectagent_shellhooks import ShellHooks
from pytest_connectagent import AgentTester

from connectagent import Agent, ConfigError
from connectagent.settings import overrides
from connectagent.testing import ScriptedLLM, call

EXAMPLES: dict[str, Any] = json.loads((Path(__file__).parent / "examples.json").read_text("utf-8"))
DENY = '{"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny"}}'


class Service:
    """An address on loopback that answers as it is told, and keeps what it was sent."""

    def __init__(self) -> None:
        self.status, self.body, self.headers = 200, b"", {"Content-Type": "application/json"}
        self.wait_s, self.got = 0.0, list[tuple[str, dict[str, str], Any]]()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                read = self.rfile.read(int(self.headers["Content-Length"]))
                service.got.append((self.path, dict(self.headers), json.loads(read)))
                time.sleep(service.wait_s)
                self.send_response(service.status)
                for name, value in service.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(service.body)

            def log_message(self, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://localhost:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, co_dir: Path) -> Path:
    """The current folder as a project of the running program, without settings of the user's."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".claude").mkdir()
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "home"))
    monkeypatch.setitem(overrides, "program", str(tmp_path / "agent.py"))
    return tmp_path


def bash(command: str) -> str:
    """Run a command."""
    return f"ran {command}"


def turn(project: Path, data: Any, **options: Any) -> Agent:
    """A turn with one call of `bash`, with these settings."""
    (project / ".claude" / "settings.json").write_text(json.dumps(data))
    llm = ScriptedLLM(call("bash", command="ls"), "Done.")
    agent = Agent("worker", [bash], llm=llm, plugins=[ShellHooks(**options)], quiet=True, log=False)
    agent.input("Work")
    return agent


def hook(url: str, event: str = "PreToolUse", **more: Any) -> dict[str, Any]:
    return {"hooks": {event: [{"hooks": [{"type": "http", "url": url, **more}]}]}}


def statuses(agent: Agent) -> list[str]:
    return [entry["status"] for entry in agent.session["trace"] if entry["type"] == "tool_execution"]


def test_example_of_a_service(service: Service, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "abc")
    example = json.dumps(EXAMPLES["send what was done to a service"]).replace("http://localhost:8080", service.url)
    turn(project, json.loads(example))
    ((path, headers, payload),) = service.got
    assert path == "/hooks/tool-use" and headers["Authorization"] == "Bearer abc"
    assert (payload["hook_event_name"], payload["tool_name"], payload["tool_input"]) == (
        "PostToolUse", "bash", {"command": "ls"},
    )  # fmt: skip


def test_headers_have_only_the_variables_that_are_allowed(service: Service, project: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("MINE", "m")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    headers = {"X-One": "${MINE}-$OPENAI_API_KEY-$NOT_THERE.", "X-Two": "$$MINE"}
    turn(project, hook(service.url, headers=headers, allowedEnvVars=["MINE", "NOT_THERE"]))
    assert (service.got[0][1]["X-One"], service.got[0][1]["X-Two"]) == ("m--.", "$m")


def test_an_answer_refuses_changes_and_tells_the_model(service: Service, project: Path) -> None:
    service.body = DENY.encode()
    assert statuses(turn(project, hook(service.url))) == ["rejected"]
    service.body = b'{"hookSpecificOutput": {"updatedInput": {"command": "pwd"}}}'
    assert "ran pwd" in json.dumps(turn(project, hook(service.url)).session["messages"])
    service.body = b"the model should know"
    assert "the model should know" in json.dumps(turn(project, hook(service.url, "PostToolUse")).session["messages"])


ANSWERS: list[tuple[str, dict[str, Any], bool]] = [  # what the service does, and whether it is a failure
    ("nothing", {}, False),
    ("no body at all", {"status": 204}, False),
    ("words", {"body": b"deny"}, True),
    ("a refusal with status 403", {"status": 403, "body": DENY.encode()}, True),
    ("a refusal with status 500", {"status": 500, "body": DENY.encode()}, True),
    ("a redirect to itself", {"status": 307, "headers": {"Location": "/again"}, "body": DENY.encode()}, True),
    ("a redirect to a file", {"status": 302, "headers": {"Location": "file:///etc/passwd"}}, True),
    ("too late", {"wait_s": 0.6, "body": DENY.encode()}, True),
    ("half of the JSON", {"body": DENY[:-9].encode()}, True),
    ("more than promised", {"headers": {"Content-Length": "5"}, "body": DENY.encode()}, True),
    ("less than promised", {"headers": {"Content-Length": "500"}, "body": DENY.encode()}, True),
    ("no gzip", {"headers": {"Content-Encoding": "gzip"}, "body": DENY.encode()}, True),
    ("over a megabyte", {"body": b'{"a": "' + b"x" * 1_100_000 + b'", ' + DENY[1:].encode()}, True),
    ("a key twice", {"body": b'{"decision": "block", "decision": "approve"}'}, True),
    ("a byte order mark", {"body": b"\xef\xbb\xbf" + DENY.encode()}, True),
]


@pytest.mark.parametrize("fail_closed", [False, True])
@pytest.mark.parametrize(("what", "does", "fails"), ANSWERS, ids=[one[0] for one in ANSWERS])
def test_what_fails_lets_the_call_pass_or_blocks_it_where_that_is_wanted(
    what: str, does: dict[str, Any], fails: bool, fail_closed: bool, service: Service, project: Path
) -> None:
    for name, value in does.items():
        setattr(service, name, value)
    limit = 0.3 if "wait_s" in does else 10  # a busy machine answers late
    agent = turn(project, hook(service.url, timeout=limit), fail_closed=fail_closed)
    assert statuses(agent) == (["rejected"] if fails and fail_closed else ["success"])
    assert len(service.got) == 1


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/x", "http://no-such-host.invalid/", "http://[::1", "http://\n"])
def test_an_address_that_cannot_be_reached_is_a_failure_and_told(url: str, project: Path) -> None:
    agent = turn(project, hook(url, timeout=2), fail_closed=False)
    (entry,) = [entry for entry in agent.session["trace"] if entry["type"] == "shellhook"]
    assert entry["problem"].startswith("it cannot be reached: ") and statuses(agent) == ["success"]
    assert entry["show"].endswith("; what it guards is not refused, as fail_closed is off")
    assert statuses(turn(project, hook(url, timeout=2))) == ["rejected"]


@pytest.mark.parametrize(
    ("one", "told"),
    [
        ({"type": "http", "url": "file:///etc/passwd"}, "begins with http:// or https://"),
        ({"type": "http", "url": "//x"}, "begins with http:// or https://"),
        ({"type": "http", "url": "http://x", "headers": "X: y"}, "cannot be used"),
        ({"type": "http"}, "'url'"),
        ({"type": "agent", "prompt": "Check."}, "'agent' is not supported, only 'command', 'http' and 'prompt'"),
        ({"type": "mcp_tool", "server": "a", "tool": "b"}, "'mcp_tool' is not supported"),
    ],
)
def test_what_cannot_be_used_is_told_when_the_agent_is_made(one: Any, told: str, project: Path) -> None:
    (project / ".claude" / "settings.json").write_text(json.dumps({"hooks": {"Stop": [{"hooks": [one]}]}}))
    with pytest.raises(ConfigError, match=told):
        Agent("worker", llm=ScriptedLLM(), plugins=[ShellHooks()], quiet=True, log=False)


def test_an_awaited_turn_has_its_hooks(service: Service, project: Path) -> None:
    import asyncio

    service.body = DENY.encode()
    (project / ".claude" / "settings.json").write_text(json.dumps(hook(service.url)))
    llm = ScriptedLLM(call("bash", command="ls"), "Done.")
    agent = Agent("worker", [bash], llm=llm, plugins=[ShellHooks()], quiet=True, log=False)
    asyncio.run(agent.ainput("Work"))
    assert statuses(agent) == ["rejected"]


def test_it_keeps_the_rules_on_every_path(agenttester: AgentTester, service: Service, project: Path) -> None:
    (project / ".claude" / "settings.json").write_text(json.dumps(hook(service.url, "PostToolUse")))
    agenttester.check(ShellHooks(user=False))
    assert service.got
