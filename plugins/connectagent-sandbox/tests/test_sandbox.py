"""Limits, values and attacks, each in a process of its own."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pytest_connectagent import AgentTester

from connectagent import Agent, ConfigError, File, Image, Paused, Tool, tool
from connectagent.testing import ScriptedLLM

pytest.importorskip("cloudpickle")

from connectagent_sandbox import Sandbox, why_not
from connectagent_sandbox import confined as inside
from connectagent_sandbox.container import modules, run_line, why_no_container

pytestmark = pytest.mark.posix("has no sandbox")
needs_bubblewrap = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
# An image with this Python, and the client that runs it: CONNECTAGENT_IMAGE=python:3.11-slim CONNECTAGENT_DOCKER=podman
CONTAINER: dict[str, Any] = {
    "container": os.environ.get("CONNECTAGENT_IMAGE", ""),
    "docker": os.environ.get("CONNECTAGENT_DOCKER", "docker"),
    "unconfined": False,
}
no_container = "CONNECTAGENT_IMAGE names no image"
if CONTAINER["container"]:
    no_container = why_no_container(CONTAINER["docker"], CONTAINER["container"]) or ""
needs_container = pytest.mark.skipif(bool(no_container), reason=no_container)
ATTACKS = Path(__file__).with_name("attacks.txt")


def run_python(code: str) -> Any:
    """Run Python."""
    names: dict[str, Any] = {}
    exec(code, names)
    return names.get("result")


def outcome(code: str, **options: Any) -> Any:
    limits: dict[str, Any] = {"timeout_s": 20, "unconfined": why_not() is not None, **options}
    sandbox = Sandbox(["run_*"], **limits)
    return asyncio.run(inside.Confined(run_python, "run_python", sandbox.limits)(code=code))


def read(code: str, **options: Any) -> str:
    """What the model reads."""
    llm = ScriptedLLM(("run_python", {"code": code}), "done")
    agent = Agent("a", [run_python], llm=llm, plugins=[Sandbox(["run_*"], **options)], quiet=True, log=False)
    assert agent.input("Go") == "done"
    return str(llm.requests[-1].messages[-1]["content"])


@needs_bubblewrap
def test_a_marked_tool_runs_in_another_process() -> None:
    assert read("import os; result = os.getpid()") != str(os.getpid())


def test_values_cross() -> None:
    value = outcome("""
from connectagent import File, Image
result = [1, (2, b"x"), {3: None}, Image(b"\\x89PNG"), File(b"%PDF-1", name="a.pdf"), {"kind": "bytes"}, float("inf")]
print("noise")
""")
    png, pdf = Image(b"\x89PNG"), File(b"%PDF-1", name="a.pdf")
    assert value == [1, (2, b"x"), {3: None}, png, pdf, {"kind": "bytes"}, float("inf")]


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        ("raise KeyError('x')", KeyError, "x"),
        ("class Own(Exception): pass\nraise Own('why')", inside.SandboxError, "Own: why"),
        ("raise SystemExit(3)", inside.SandboxError, "SystemExit: 3"),
        ("import os; os._exit(7)", inside.SandboxError, "ended without a result, with 7"),
        ("import os; os.kill(os.getpid(), 9)", inside.SandboxError, "ended without a result"),
        ("result = 'x' * 2_000_000_000", inside.SandboxError, "more than 1000 MB"),
        ("result = 'x' * 30_000_000", inside.SandboxError, "run_python returned more than 20 MB, its limit"),
        ("while True: pass", inside.SandboxError, "longer than 1 s"),
        ("import os; os.write(1, b'{}')\nos._exit(0)", inside.SandboxError, "ended without a result"),
    ],
)
def test_errors_and_limits_cross(code: str, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        outcome(code, timeout_s=1 if "while" in code else 20)


@needs_bubblewrap
def test_no_attack_reaches_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert attacked(tmp_path, monkeypatch) == []


@needs_container
def test_no_attack_reaches_the_machine_from_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    the_images_own = {"open('/etc/passwd').read() and 'SECRET'"}
    assert set(attacked(tmp_path, monkeypatch, **CONTAINER)) <= the_images_own


def attacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[str]:
    """The attacks that get through."""
    secret = Path(os.path.expanduser("~")) / f".sandbox-test-{os.getpid()}" / "secret"  # an attack removes its folder
    secret.parent.mkdir()
    secret.write_text("SECRET")
    monkeypatch.setenv("API_KEY", "SECRET")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "link").symlink_to(secret)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.01)
        places = {"SECRET": str(secret), "PORT": server.getsockname()[1], "OUT": str(tmp_path / "out")}
        places["PID"] = os.getpid()
        attacks = [line for line in ATTACKS.read_text().splitlines() if line]
        assert len(attacks) >= 100
        code = f"""
import base64, ctypes, glob, json, os, pathlib, shutil, signal, socket, subprocess, sys, urllib.request
{'; '.join(f'{name} = {value!r}' for name, value in places.items())}
result = []
for attack in {attacks!r}:
    try:
        result.append(str(eval(attack)))
    except BaseException as error:
        result.append("failed " + type(error).__name__)
"""
        try:
            found = outcome(code, write=[str(tmp_path / "out")], **options)
            assert not {"failed NameError", "failed SyntaxError", "failed AttributeError"} & set(found)
            assert secret.read_text() == "SECRET" and secret.stat().st_size == 6
            with pytest.raises(TimeoutError):
                server.accept()
        finally:
            secret.unlink()
            secret.parent.rmdir()
    assert sorted(os.listdir(tmp_path)) == ["out"]
    return [attack for attack, text in zip(attacks, found, strict=True) if "SECRET" in text]


@needs_bubblewrap
def test_files_and_network_are_there_where_they_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "seen").write_text("yes")
    code = f"result = open({str(tmp_path / 'seen')!r}).read()"
    with pytest.raises(FileNotFoundError):
        outcome(code)
    assert outcome(code, read=[str(tmp_path)]) == "yes"
    outcome(f"open({str(tmp_path / 'new')!r}, 'w').write('x')", write=[str(tmp_path)])
    assert (tmp_path / "new").read_text() == "x"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        outcome(f"import socket; socket.create_connection(('127.0.0.1', {port}))", network=True)


@needs_bubblewrap
def test_ctrl_c_kills_the_call_and_what_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"""
import signal; signal.signal(signal.SIGINT, signal.default_int_handler)
import sys; sys.path[:0] = {sys.path!r}
from test_sandbox import outcome
outcome("import subprocess, time; subprocess.Popen(['sh', '-c', 'while :; do echo x >> {mark}; sleep 0.05; done']);"
        "time.sleep(60)", write=[{str(tmp_path)!r}], timeout_s=60)
"""
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL, env=here)
    for _ in range(400):
        if mark.exists():
            break
        time.sleep(0.05)
    process.send_signal(2)
    process.wait(20)
    time.sleep(0.2)
    size = mark.stat().st_size
    time.sleep(0.3)
    assert mark.stat().st_size == size


def tick(path: str) -> None:
    """Write to a file until somebody ends it."""
    while True:
        with open(path, "a") as file:
            file.write("x")
        time.sleep(0.05)


@pytest.mark.parametrize("how", ["cancelled", "timeout"])
def test_a_call_that_nobody_waits_for_any_more_is_killed(how: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    plugin = Sandbox("tick", write=str(tmp_path), unconfined=why_not() is not None, timeout_s=60)
    llm = ScriptedLLM(("tick", {"path": str(mark)}), "done")
    given = tool(tick, timeout_s=1.5) if how == "timeout" else tick
    agent = Agent("a", [given], llm=llm, plugins=[plugin], quiet=True, log=False)

    async def cancelled() -> None:
        async with asyncio.timeout(1.5):
            await agent.ainput("Go")

    if how == "timeout":
        assert agent.input("Go") == "done" and "longer than 1.5 s" in str(llm.requests[-1].messages[-1]["content"])
    else:
        with pytest.raises(TimeoutError):
            asyncio.run(cancelled())
    time.sleep(0.3)
    size = mark.stat().st_size
    time.sleep(0.4)
    assert size > 0 and mark.stat().st_size == size


# -- containers -----------------------------------------------------------------------------------


def test_a_container_is_run_with_every_limit_and_without_the_machines_files(tmp_path: Path) -> None:
    given = {"read": [str(tmp_path / "in")], "write": [str(tmp_path / "out")], "env": ["TOKEN"], "memory_mb": 500}
    limits = Sandbox(["run_*"], container="python:3.11-slim", **given).limits
    line = run_line(limits, "python:3.11-slim", "one", "/x/child.py", "/tmp")
    modes = [f"type=bind,source={path},target={path},readonly" for path in [*modules(), "/x", str(tmp_path / "in")]]
    mounts = [*modes, f"type=bind,source={tmp_path}/out,target={tmp_path}/out"]
    own = ["HOME=/tmp", "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1", f"PYTHONPATH={os.pathsep.join(modules())}"]
    assert line == [
        *("docker", "run", "--rm", "--interactive", "--pull", "never", "--name", "one", "--network", "none"),
        *("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--pids-limit", "256", "--memory", "500m", "--user", f"{os.getuid()}:{os.getgid()}", "--workdir", "/tmp"),
        *(word for mount in mounts for word in ("--mount", mount)),
        *(word for variable in [*own, "TOKEN"] for word in ("--env", variable)),
        *("python:3.11-slim", "python3", "-P", "/x/child.py"),
    ]
    online = Sandbox(["run_*"], container="x", docker="podman", network=True).limits
    assert "--network" not in run_line(online, "x", "one", "/x/child.py", "/tmp")
    assert not any("lib-dynload" in path or path == os.path.dirname(os.__file__) for path in modules())


def test_without_the_containers_program_nothing_runs() -> None:
    said = read("result = 1", container="python:3.11-slim", docker="no-such-program")
    assert "there is none: no-such-program does not work here: " in said
    with pytest.raises(ConfigError, match="not both"):
        Sandbox(["run_*"], container="x", unconfined=True)


@needs_container
def test_in_a_container_a_call_has_its_limits_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TOKEN", "t")
    monkeypatch.setenv("OTHER", "o")
    (tmp_path / "seen").write_text("yes")
    seen, new = str(tmp_path / "seen"), str(tmp_path / "new")
    code = f"import os; open({new!r}, 'w').write('x')\n"
    code += f"result = [open({seen!r}).read(), os.environ.get('TOKEN'), os.environ.get('OTHER')]"
    assert outcome(code, write=[str(tmp_path)], env=["TOKEN"], **CONTAINER) == ["yes", "t", None]
    assert (tmp_path / "new").read_text() == "x"
    with pytest.raises(FileNotFoundError):
        outcome(f"open({seen!r})", **CONTAINER)
    with pytest.raises(KeyError, match="x"):
        outcome("raise KeyError('x')", **CONTAINER)
    with pytest.raises(inside.SandboxError, match=r"more than 1000 MB|ended without"):
        outcome("result = 'x' * 2_000_000_000", **CONTAINER)
    with pytest.raises(inside.SandboxError, match="longer than 5 s"):
        outcome("while True: pass", timeout_s=5, **CONTAINER)
    left = subprocess.run([CONTAINER["docker"], "ps", "--all", "--quiet"], capture_output=True, text=True, check=True)
    assert left.stdout == ""


def test_on_windows_it_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectagent_sandbox.os", SimpleNamespace(name="nt"))
    with pytest.raises(ConfigError, match="it needs Linux"):
        Sandbox(["run_*"])


def test_without_bubblewrap_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectagent_sandbox.confined.why_not", lambda: "bubblewrap (bwrap) is not installed")
    assert "there is none: bubblewrap (bwrap) is not installed" in read("result = 1")
    monkeypatch.undo()
    assert read("result = 1", unconfined=True) == "1"


def test_one_text_is_one_folder_and_not_its_letters(tmp_path: Path) -> None:
    limits = Sandbox("run_*", read=str(tmp_path), write=f"{tmp_path}/out", env="PAGER").limits
    assert (limits.read, limits.write, limits.env) == ((str(tmp_path),), (f"{tmp_path}/out",), ("PAGER",))
    for wrong in ({"read": 3}, {"write": [tmp_path]}, {"env": [""]}, {"tools": ""}, {"tools": []}):
        with pytest.raises(ConfigError, match=f"sandbox: {next(iter(wrong))} is a "):
            Sandbox(**{"tools": ["run_*"], **wrong})


def test_the_script_of_a_command_goes_along(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "from connectagent import Agent, use\n"
        "from connectagent_sandbox import Sandbox\n"
        f"use(Sandbox('go', unconfined={why_not() is not None}))\n"
        "def twice(number: int) -> int:\n    return 2 * number\n"
        "def go(number: int) -> int:\n    'Go.'\n    return twice(number)\n"
        "agent = Agent('a', [go], model='offline')\n"
    )
    command = [sys.executable, "-m", "connectagent", "run", "agent.py", "go 21", "--quiet"]
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=60)
    assert "go(number=21): 42" in done.stdout, done.stdout + done.stderr


def test_a_tool_that_is_added_later_is_refused() -> None:
    llm = ScriptedLLM(("run_python", {"code": ""}), "x")
    agent = Agent("a", llm=llm, plugins=[Sandbox(["run_*"])], quiet=True, log=False)
    agent.tools.add(run_python)
    agent.input("Go")
    assert "would run outside" in agent.session["messages"][-2]["content"]  # type: ignore[operator]


def test_a_tool_that_is_carried_out_elsewhere_is_not_confined(co_dir: Path) -> None:
    elsewhere = Tool("run_it", "", {})
    for given, added in ((elsewhere, None), (None, elsewhere)):
        agent = Agent("a", given, llm=ScriptedLLM(("run_it", {}), "x"), plugins=[Sandbox(["run_*"])], quiet=True)
        agent.add_tool(added)
        with pytest.raises(Paused):
            agent.input("Go")
        assert agent.resume(answer="done") == "x"


def test_a_tool_that_takes_the_agent_is_a_mistake() -> None:
    def run_it(agent: Agent) -> str:
        return agent.name

    with pytest.raises(ConfigError, match="takes the agent"):
        Agent("a", [run_it], llm=ScriptedLLM("x"), plugins=[Sandbox(["run_*"])], quiet=True, log=False)
    with pytest.raises(ConfigError, match="list of names"):
        Sandbox([])


def test_every_path_of_a_turn_holds(agenttester: AgentTester) -> None:
    agenttester.check(lambda: Sandbox(["no_such_tool"]))
