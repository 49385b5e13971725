"""A guard that cannot start or decide is a refusal, and the person is told: at the terminal and in the trace.

The guards are found in the plugins' source, so a new one must have a row here.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectagent import (
    Agent,
    ConfigError,
    Paused,
    PluginWarning,
    ProviderError,
    after_each_tool,
    before_each_tool,
    before_tools,
)
from connectagent.testing import ScriptedLLM, call

ROOT = Path(__file__).parents[2]
REFUSES = re.compile(r"raise ToolRejected|\.end_turn\(|raise Pause\b")
Make = Callable[[Path, pytest.MonkeyPatch], dict[str, Any]]
ROWS: dict[tuple[str, str], tuple[Make, str]] = {}
"""By guard and by what fails: the arguments of the agent, and what the person reads."""


def guards() -> set[str]:
    found = set()
    for path in (ROOT / "plugins").glob("connectagent-*/connectagent_*/*.py"):
        if REFUSES.search(path.read_text("utf-8")):
            found.add(path.parent.name.removeprefix("connectagent_"))
    return found | {"trust"}


def row(guard: str, what: str, told: str) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        ROWS[guard, what] = make, told
        return make

    return add


def policy(path: Path) -> dict[str, Any]:
    from connectagent_policy import Policy

    return {"plugins": [Policy(str(path))]}


@row("policy", "its file is gone", "cannot be read")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    return policy(folder / "none.yaml")


@row("policy", "its file is a folder", "cannot be read")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    return policy(folder)


@row("policy", "its file is no YAML", "not YAML")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    (folder / "p.yaml").write_text("rules: [")
    return policy(folder / "p.yaml")


@row("policy", "a rule has a key twice", "the key 'deny' is there twice")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    (folder / "p.yaml").write_text("rules:\n  - deny: wipe\n    deny: look\n  - allow: '*'\n")
    return policy(folder / "p.yaml")


@row("policy", "it has two lists of rules", "the key 'rules' is there twice")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    (folder / "p.yaml").write_text("rules: [{deny: wipe}]\nrules: [{allow: '*'}]\n")
    return policy(folder / "p.yaml")


@row("policy", "a key is misspelt", "rule 1 needs one of")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    (folder / "p.yaml").write_text("rules:\n  - alow: '*'\n")
    return policy(folder / "p.yaml")


@row("sandbox", "its program is missing", "runs in a sandbox only, and there is none")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    from connectagent_sandbox import Sandbox, confined

    patch.setenv("PATH", str(folder))
    patch.setattr(confined, "why_not", confined.why_not.__wrapped__)  # which remembers what it found before
    return {"plugins": [Sandbox(["wipe"])]}


@row("approve", "there is no terminal", "there is no terminal to ask at")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    from connectagent_approve import Approve

    patch.setattr("sys.stdin", None)
    return {"plugins": [Approve()]}


@row("trust", "there is no terminal", "there is no terminal to ask at")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr("sys.stdin", None)
    return {"trust": "careful"}


@row("trust", "the file of its policy is gone", "none.md")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"trust": folder / "none.md"}


def judge(*answers: Any) -> dict[str, Any]:
    return {"trust": Agent("judge", llm=ScriptedLLM(*answers), log=False, quiet=True)}


@row("trust", "the judge's model fails", "could not be judged")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    return judge(ProviderError("down", kind="server", provider="x"))


@row("trust", "the judge answers garbage", "could not be judged")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    return judge("Yes, of course.")


@row("trust", "the judge gives a key twice", "could not be judged")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    return judge('{"allowed": false, "allowed": true, "reason": "x"}')


def policy_text(*answers: Any) -> dict[str, Any]:
    """A policy in a text, which the agent's own model judges by."""
    llm = ScriptedLLM(call("wipe"), *answers, "Done.")
    return {"trust": "Allow nothing that cannot be undone.", "llm": llm}


POLICY_TEXTS = {
    "fails": ProviderError("down", kind="server", provider="x"),
    "answers garbage": "Yes, of course.",
    "gives a key twice": '{"allowed": false, "allowed": true, "reason": "x"}',
}
for _what, _answer in POLICY_TEXTS.items():
    ROWS["trust", f"the model of a policy in text {_what}"] = (
        (lambda folder, patch, answer=_answer: policy_text(answer)),
        "could not be judged",
    )


@row("budget", "its file of the day cannot be written", "cannot be kept")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    from connectagent_budget import Budget

    patch.chdir(folder)
    (folder / ".co").write_text("a file where a folder has to be")
    return {"plugins": [Budget(tool_calls=5, per="day")]}


@row("budget", "its file of the day is damaged", "cannot be kept")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    from connectagent_budget import Budget

    patch.chdir(folder)
    (folder / ".co").mkdir()
    (folder / ".co" / "budget.json").write_text("{")
    return {"plugins": [Budget(tool_calls=5, per="day")]}


@row("budget", "its limit is no number", "is a number from 0 up")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    from connectagent_budget import Budget

    return {"plugins": [lambda: Budget(usd=float("nan"))]}


@row("adk", "a callback raises", "the list is gone")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    from connectagent_adk import adk_callbacks

    def check(tool: Any, args: dict[str, Any], tool_context: Any) -> None:
        raise OSError("the list is gone")

    return {"plugins": [adk_callbacks(before_tool_callback=check)]}


@row("redact", "its library is missing", "presidio is not installed")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    import connectagent_redact

    patch.setattr(connectagent_redact, "find_spec", lambda name: None)
    return {"plugins": [lambda: connectagent_redact.Redact(presidio=True)]}


@row("redact", "its library for secrets is missing", "detect_secrets")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    import connectagent_redact
    from connectagent_redact import finding

    finding._secrets.cache_clear()
    patch.setitem(sys.modules, "detect_secrets", None)
    return {"plugins": [connectagent_redact.Redact()]}


@row("redact", "its library for phone numbers is missing", "phonenumbers")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    from connectagent_redact import Redact

    patch.setitem(sys.modules, "phonenumbers", None)
    return {"plugins": [Redact()], "system_prompt": "Call +49 30 1234567."}


@row("loopguard", "what it has counted is lost in mid-round", "of plugin 'loopguard'")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    from connectagent_loopguard import LoopGuard

    @after_each_tool
    def lose(agent: Agent) -> None:
        agent.state["loopguard"] = "garbage"

    return {"plugins": [LoopGuard()], "on_events": [lose], "runs_once": True}


@row("loopguard", "what it has counted is lost", "of plugin 'loopguard'")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    from connectagent_loopguard import LoopGuard

    return {"plugins": [LoopGuard()], "state": {"loopguard": "garbage"}, "runs_once": True}


def hook(folder: Path, command: str, **more: Any) -> dict[str, Any]:
    from connectagent_shellhooks import ShellHooks
    from connectagent_shellhooks.settings import Hook

    plugin = ShellHooks(user=False, project=False, folder=str(folder))
    run = more.pop("run", command)
    plugin._hooks = [Hook(more.pop("event", "PreToolUse"), "", run, "command", 0.5)]
    return {"plugins": [plugin]}


BOTH = '{"hookSpecificOutput": {"permissionDecision": "deny", "permissionDecision": "allow"}}'


def asking(folder: Path, kind: str, run: str) -> dict[str, Any]:
    from connectagent_shellhooks.settings import Hook

    given = hook(folder, "")
    given["plugins"][0]._hooks = [Hook("PreToolUse", "", run, kind, 5)]
    return given


HOOKS: dict[str, tuple[Any, str]] = {
    "it is missing": ("/no/such/hook", "exit code 127"),
    "its program is missing": (("no-such-program", "x"), "cannot be started"),
    "it is not executable": ("/etc/passwd", "exit code 126"),
    "its program is not executable": (("/etc/passwd", "x"), "cannot be started"),
    "it times out": ("sleep 30", "still ran after 0.5 s"),
    "it crashes": ("exit 1", "exit code 1"),
    "it is killed": ("kill -9 $$", "exit code -9"),
    "it prints garbage": ("echo '{\"decision\": '", "its JSON cannot be read"),
    "it prints a key twice": (f"echo '{BOTH}'", "its JSON has the key 'permissionDecision' twice"),
}
for _what, (_run, _told) in HOOKS.items():
    ROWS["shellhooks", _what] = (lambda folder, patch, run=_run: hook(folder, "", run=run)), _told


@row("shellhooks", "one of UserPromptSubmit is missing", "exit code 127")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    return hook(folder, "/no/such/hook", event="UserPromptSubmit")


@row("shellhooks", "its address cannot be reached", "cannot be reached")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    return asking(folder, "http", "http://127.0.0.1:9/hook")


@row("shellhooks", "the model of its prompt fails", "down")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    llm = ScriptedLLM(call("wipe"), ProviderError("down", kind="server", provider="x"), "Done.")
    return {**asking(folder, "prompt", "May it run?"), "llm": llm}


@row("shellhooks", "one of PermissionRequest is missing", "exit code 127")
def _(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    from connectagent_shellhooks.settings import Hook

    given = hook(folder, "/no/such/hook", event="PermissionRequest")
    ask = '{"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "ask"}}'
    given["plugins"][0]._hooks.append(Hook("PreToolUse", "", f"echo '{ask}'", "command", 5))
    return given


def test_each_guard_has_a_row() -> None:
    assert guards() == {guard for guard, _ in ROWS}


@pytest.mark.parametrize(("guard", "what"), ROWS, ids=[" ".join(one) for one in ROWS])
def test_it_refuses_and_the_person_is_told(
    guard: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make, told = ROWS[guard, what]
    ran: list[str] = []

    def wipe() -> str:
        """Wipe everything."""
        ran.append("wipe")
        return "wiped"

    error, agent = "", None
    try:
        given = make(tmp_path, monkeypatch)
        runs_once = given.pop("runs_once", False)
        given["plugins"] = [one() if callable(one) else one for one in given.get("plugins", ())]
        llm = given.pop("llm", None) or ScriptedLLM(call("wipe"), call("wipe"), "Done.")
        agent = Agent("guarded", [wipe], llm=llm, log=False, **given)
        agent.input("Go")
    except Paused:
        raise
    except Exception as raised:  # it stops the program, or the turn
        error = "\n".join([str(raised), *getattr(raised, "__notes__", ())])
        assert agent is not None or isinstance(raised, ConfigError)
    assert ran == (["wipe"] if agent is not None and runs_once else [])
    if error:
        assert told in error
        return
    assert agent is not None
    assert told in " ".join(capsys.readouterr().err.split())
    entries = [entry for entry in agent.session["trace"] if entry["type"] == "tool_execution"]
    assert all(entry["status"] == "rejected" and told in entry["result"] for entry in entries)


def test_a_policy_that_is_gone_in_mid_session_goes_on_as_it_was_read(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("rules:\n  - allow: look\n")
    llm = ScriptedLLM(call("look"), call("wipe"), "Done.")
    ran: list[str] = []

    def look() -> str:
        """Look."""
        ran.append("look")
        file.unlink()
        return "looked"

    def wipe() -> str:
        """Wipe."""
        ran.append("wipe")
        return "wiped"

    Agent("guarded", [look, wipe], llm=llm, log=False, quiet=True, **policy(file)).input("Go")
    assert ran == ["look"]


# -- the server of a guarded tool --------------------------------------------------------------------

SERVER = """
import os, pathlib, sys
from mcp.server import MCPServer

server = MCPServer("files")
pathlib.Path(sys.argv[1], "pid").write_text(str(os.getpid()))

@server.tool()
def wipe() -> str:
    pathlib.Path(sys.argv[1], "wiped").touch()
    return "wiped"

server.run()
"""


@pytest.mark.parametrize("when", ["at first", "before the guard", "after the guard", "never"])
def test_a_guarded_tool_whose_server_is_gone_does_not_run(
    when: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mcp_types", reason="the library mcp, 2.3 or newer, is not installed")
    from connectagent_mcp import Mcp
    from connectagent_policy import Policy

    script = tmp_path / "server.py"
    script.write_text(SERVER)

    def end() -> None:
        script.unlink()
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    @before_tools(tryfirst=True)
    def early() -> None:
        if when == "before the guard":
            end()

    @before_each_tool(trylast=True)
    def late() -> None:
        if when == "after the guard":
            end()

    if when == "at first":
        script.unlink()
    servers = {"files": {"command": sys.executable, "args": [str(script), str(tmp_path)]}}
    plugins = [Mcp(servers), Policy(text="rules: [{allow: files_wipe}]"), early, late]
    llm = ScriptedLLM(call("files_wipe"), "Done.")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", PluginWarning)
        with Agent("guarded", llm=llm, plugins=plugins, log=False) as agent:
            agent.input("Go")
    (entry,) = [entry for entry in agent.session["trace"] if entry["type"] == "tool_execution"]
    assert (tmp_path / "wiped").exists() == (when == "never") == (entry["status"] == "success")
    told = " ".join([capsys.readouterr().err, *(str(one.message) for one in warned)])
    if when != "never":
        assert entry["status"] in ("not_found", "error") and "the MCP server 'files'" in told, told
