"""Hooks of Claude Code's settings files run unchanged, each at its moment; a stranger's wait for the person's word."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from connectagent_compact import Compact
from connectagent_shellhooks import ShellHooks
from pytest_connectagent import AgentTester

from connectagent import Agent, ConfigError, Paused, ProviderError, shadow
from connectagent.cli.allow import allow
from connectagent.settings import overrides
from connectagent.testing import ScriptedLLM, call, replayed

EXAMPLES: dict[str, Any] = json.loads((Path(__file__).parent / "examples.json").read_text("utf-8"))
SCRIPTS = {
    "check-style.sh": "#!/bin/sh\necho 'line 3 is too long' >&2\nexit 2\n",
    "validate.py": """
import json, re, sys
given = json.load(sys.stdin)
if given["tool_name"] == "Bash" and re.search(r"^grep\\b(?!.*\\|)", given["tool_input"].get("command", "")):
    print("Use rg in place of grep", file=sys.stderr)
    sys.exit(2)
""",
    "approve.py": """
import json, sys
given = json.load(sys.stdin)
if given["tool_input"].get("file_path", "").endswith((".md", ".mdx", ".txt", ".json")):
    print(json.dumps({"decision": "approve", "reason": "documentation", "suppressOutput": True}))
""",
    "prompt.py": """
import json, re, sys
prompt = json.load(sys.stdin).get("prompt", "")
if re.search(r"(?i)\\b(password|secret|key|token)\\s*[:=]", prompt):
    print(json.dumps({"decision": "block", "reason": "The prompt may have a secret in it. Leave it out."}))
    sys.exit(0)
print("It is noon.")
""",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, co_dir: Path) -> Path:
    """The current folder as a project of the running program, without settings of the user's."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".claude" / "hooks").mkdir(parents=True)
    for name, text in SCRIPTS.items():
        path = tmp_path / ".claude" / "hooks" / name
        path.write_text(text)
        path.chmod(0o755)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setitem(overrides, "program", str(tmp_path / "agent.py"))
    return tmp_path


def settings(project: Path, data: Any, name: str = "settings.json") -> Path:
    path = project / ".claude" / name
    path.write_text(json.dumps(data))
    return path


def hook(event: str, command: str, matcher: str = "", **more: Any) -> dict[str, Any]:
    return {"hooks": {event: [{"matcher": matcher, "hooks": [{"type": "command", "command": command, **more}]}]}}


def said(**what: Any) -> str:
    return f"echo '{json.dumps(what)}'"


class Tools:
    """Tools that are named as Claude Code's."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def Bash(self, command: str, description: str = "") -> str:
        self.ran.append(command)
        if command == "false":
            raise ValueError("exit code 1")
        return f"ran {command}"

    def Write(self, file_path: str, content: str = "") -> str:
        self.ran.append(file_path)
        return "written"

    def Read(self, file_path: str) -> str:
        self.ran.append(file_path)
        return "text"

    def mcp__memory__write_it(self, text: str) -> str:
        self.ran.append(text)
        return "kept"


def agent_with(offered: Any, *responses: Any, plugins: Any = None, **more: Any) -> Agent:
    given = {"quiet": True, "log": False, "plugins": [ShellHooks()] if plugins is None else plugins, **more}
    return Agent("worker", [offered] if offered else [], llm=ScriptedLLM(*responses), **given)


def turn(project: Path, data: Any, *responses: Any, **more: Any) -> tuple[Agent, Tools]:
    """One turn with these settings."""
    settings(project, data)
    tools = Tools()
    agent = agent_with(tools, *responses, **more)
    agent.input("Work")
    return agent, tools


def read_by_model(agent: Agent) -> str:
    return json.dumps(agent.session["messages"], ensure_ascii=False)


# -- the published examples ------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_example_of_a_log_of_commands(project: Path) -> None:
    turn(project, EXAMPLES["log the shell's commands"], call("Bash", command="ls -l", description="List"), "Done.")
    assert (project / "commands.txt").read_text() == "ls -l - List\n"


def test_settings_that_an_editor_on_windows_wrote(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", lambda path, text: path.write_bytes(text.encode("utf-8-sig")))
        turn(project, EXAMPLES["log the shell's commands"], call("Bash", command="ls -l", description="List"), "Done.")
    assert (project / "commands.txt").read_text() == "ls -l - List\n"


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_example_of_a_formatter(project: Path) -> None:
    data = EXAMPLES["format what was written"]
    turn(project, data, [call("Write", file_path="a.ts"), call("Write", file_path="b.md")], "Done.")
    assert (project / "formatted.txt").read_text() == "formatted a.ts\n"


def test_example_of_protected_files(project: Path) -> None:
    calls = [call("Write", file_path=path) for path in ("src/.env", "a.txt", ".git/config")]
    agent, tools = turn(project, EXAMPLES["protect files"], calls, "Done.")
    assert tools.ran == ["a.txt"]
    statuses = [entry["status"] for entry in agent.session["trace"] if entry["type"] == "tool_execution"]
    assert statuses == ["rejected", "success", "rejected"]


def test_example_of_a_script_that_tells_the_model(project: Path) -> None:
    agent, tools = turn(project, EXAMPLES["a script of the project"], call("Write", file_path="a.py"), "Done.")
    assert tools.ran == ["a.py"] and "hook after Write: line 3 is too long" in read_by_model(agent)


def test_example_of_checked_commands(project: Path) -> None:
    calls = [call("Bash", command=line) for line in ("grep x", "rg x", "grep x | sort")]
    agent, tools = turn(project, EXAMPLES["check a command"], calls, "Done.")
    assert tools.ran == ["rg x", "grep x | sort"]
    assert "rejected: Use rg in place of grep" in read_by_model(agent)


def test_example_of_an_approval(project: Path) -> None:
    data = EXAMPLES["approve the reading of documentation"]
    agent, tools = turn(project, data, [call("Read", file_path="a.md"), call("Read", file_path="a.py")], "Done.")
    assert tools.ran == ["a.md", "a.py"]
    entries = [entry for entry in agent.session["trace"] if entry["type"] == "shellhook"]
    assert len(entries) == 2 and "output" not in entries[0]


def test_example_of_context_and_refused_prompts(project: Path) -> None:
    agent, _ = turn(project, EXAMPLES["add the time to a prompt, and refuse secrets"], "Done.", "Again.")
    assert [message["content"] for message in agent.session["messages"]] == ["Work", "It is noon.", "Done."]
    assert agent.input("My password: tulip") == "The prompt may have a secret in it. Leave it out."
    assert "tulip" not in read_by_model(agent)
    assert agent.input("Go on") == "Again."
    assert "tulip" not in str(agent.llm.requests)  # type: ignore[attr-defined]


def test_example_of_a_servers_tools(project: Path) -> None:
    turn(project, EXAMPLES["tools of a server"], call("mcp__memory__write_it", text="a"), "Done.")
    assert (project / "operations.log").read_text() == "memory\nwrite\n"


def test_example_of_notifications(project: Path) -> None:
    ask = hook("PreToolUse", said(hookSpecificOutput={"permissionDecision": "ask"}))
    settings(project, {"hooks": {**EXAMPLES["notifications by kind"]["hooks"], **ask["hooks"]}})
    with pytest.raises(Paused):
        agent_with(Tools(), call("Bash", command="ls"), log=None).input("Work")
    told = json.loads((project / "alerts.json").read_text())
    assert told["message"] == "a hook asks whether Bash may run"
    assert told["notification_type"] == "permission_prompt" and not (project / "idle").exists()


def test_example_of_a_model_that_decides(project: Path) -> None:
    judged = iter(['{"ok": false, "reason": "Task 2 is open."}', '{"ok": true, "reason": ""}'])

    def answer(messages: Any, tools: Any) -> str:
        text = str(messages[-1]["content"])
        if text.startswith("Decide whether"):
            assert '"hook_event_name": "Stop"' in text
            return next(judged)
        return "One." if text == "Work" else "Two."

    agent, _ = turn(project, EXAMPLES["a model decides whether it is done"], *[answer] * 4)
    assert agent.session["result"] == "Two." and "Stop hook: Task 2 is open." in read_by_model(agent)


def test_example_of_context_at_the_beginning(project: Path) -> None:
    agent, _ = turn(project, EXAMPLES["context at the beginning"], "Done.", "More.")
    agent.input("More")
    assert read_by_model(agent).count("Use bun, not npm.") == 1


def test_example_of_an_answered_permission_request(project: Path) -> None:
    agent, tools = turn(project, EXAMPLES["answer a permission request"], call("Bash", command="rm x"), "Done.")
    assert tools.ran == ["npm run lint"]
    (entry,) = [entry for entry in agent.session["trace"] if entry["type"] == "tool_execution"]
    assert entry["original_arguments"] == {"command": "rm x"}


def test_example_of_a_rule(project: Path) -> None:
    calls = [call("Bash", command="rm -rf build"), call("Bash", command="ls")]
    _, tools = turn(project, EXAMPLES["only for some commands"], calls, "Done.")
    assert tools.ran == ["ls"]


def test_example_of_the_background(project: Path) -> None:
    turn(project, EXAMPLES["in the background"], call("Write", file_path="a"), "Done.")
    until = time.monotonic() + 10
    while not (project / "later.json").exists() or not (project / "later.json").read_text().endswith("}"):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert json.loads((project / "later.json").read_text())["tool_response"] == "written"


def test_example_without_a_shell(project: Path) -> None:
    agent, tools = turn(project, EXAMPLES["without a shell"], call("Bash", command="ls"), "Done.")
    assert tools.ran == [] and "rejected: no $HOME here" in read_by_model(agent)


def test_words_of_a_command_reach_it_as_they_are_written(project: Path) -> None:
    script = project / ".claude" / "hooks" / "deny.py"
    script.write_text("import json, sys\nprint(json.dumps(sys.argv[1:]), file=sys.stderr)\nsys.exit(2)\n")
    words = ["{", "}", "{x}", "{{x}}", "{0}", "{x!r:>10}", "$HOME", "`id`", "it's", "", "a b", "%s",
             "$CLAUDE_PROJECT_DIR", "{CLAUDE_PROJECT_DIR}", "${OTHER}"]  # fmt: skip
    replaced = ["${CLAUDE_PROJECT_DIR}/x", "--folder=${CLAUDE_PROJECT_DIR}:${CLAUDE_PROJECT_DIR}"]
    one = hook("PreToolUse", "python3", args=["${CLAUDE_PROJECT_DIR}/.claude/hooks/deny.py", *words, *replaced])
    agent, tools = turn(project, one, call("Bash", command="ls"), "Done.")
    reason = agent.session["messages"][-2]["content"].removeprefix("rejected: ")
    assert tools.ran == [] and json.loads(reason) == [*words, f"{project}/x", f"--folder={project}:{project}"]


def test_the_program_of_a_command_with_words_is_found_in_the_project(project: Path) -> None:
    script = project / ".claude" / "hooks" / "deny.sh"
    script.write_text("#!/bin/sh\nexit 2\n")
    script.chmod(0o755)
    one = hook("PreToolUse", "${CLAUDE_PROJECT_DIR}/.claude/hooks/deny.sh", args=[])
    agent, tools = turn(project, one, call("Bash", command="ls"), "Done.")
    assert tools.ran == [] and "a hook blocked it" in read_by_model(agent)


def test_a_command_with_words_runs_in_the_background_too(project: Path) -> None:
    one = hook("PostToolUse", "sh", args=["-c", 'sleep 0.2; cat > "$1"/later', "sh", "${CLAUDE_PROJECT_DIR}"])
    one["hooks"]["PostToolUse"][0]["hooks"][0]["async"] = True
    turn(project, one, call("Bash", command="ls"), "Done.")
    until = time.monotonic() + 10
    while not (project / "later").exists() or not (project / "later").read_text():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_guard_that_fails_is_told_at_the_terminal(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = hook("PreToolUse", "no-such-program", args=["${CLAUDE_PROJECT_DIR}"])
    agent, tools = turn(project, one, call("Bash", command="ls"), "Done.", quiet=False)
    shown = " ".join(capsys.readouterr().err.split())
    assert tools.ran == [] and "the PreToolUse hook 'no-such-program ${CLAUDE_PROJECT_DIR}' failed: it cannot" in shown
    assert "what it guards is refused" in shown and agent.session["result"] == "Done."


def test_example_of_a_stop_hook(project: Path) -> None:
    agent, _ = turn(project, EXAMPLES["go on until the tests pass"], "One.", "Two.")
    assert agent.session["result"] == "Two." and "Tests fail: fix them" in read_by_model(agent)


# -- events ----------------------------------------------------------------------------------------


def test_each_event_has_its_moment(project: Path) -> None:
    events = ["SessionStart", "SessionEnd", "UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolUseFailure"]
    events += ["PostToolBatch", "Stop", "TeammateIdle"]
    tell = "grep -o '\"hook_event_name\": \"[A-Za-z]*\"' >> \"$CLAUDE_PROJECT_DIR\"/events"
    settings(project, {"hooks": {event: [{"hooks": [{"type": "command", "command": tell}]}] for event in events}})
    agent = agent_with(Tools(), [call("Bash", command="ls"), call("Bash", command="false")], "Done.")
    agent.input("Work")
    agent.close()
    seen = [line.split('"')[3] for line in (project / "events").read_text().splitlines()]
    assert seen == ["SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "PreToolUse",
                    "PostToolUseFailure", "PostToolBatch", "Stop", "SessionEnd"]  # fmt: skip


def test_children_have_their_own_events(project: Path) -> None:
    events = ["SubagentStart", "SubagentStop", "Stop", "SessionStart", "UserPromptSubmit"]
    tell = 'cat >> "$CLAUDE_PROJECT_DIR"/events; echo >> "$CLAUDE_PROJECT_DIR"/events'
    settings(project, {"hooks": {event: [{"hooks": [{"type": "command", "command": tell}]}] for event in events}})
    child = Agent("child", llm=ScriptedLLM("Below."), quiet=True, log=False)
    agent = agent_with(child, call("child", prompt="x"), "Done.")
    agent.input("Work")
    told = [json.loads(line) for line in (project / "events").read_text().splitlines()]
    names = [one["hook_event_name"] for one in told]
    assert names == ["SessionStart", "UserPromptSubmit", "SubagentStart", "SubagentStop", "Stop"]
    assert (told[2]["agent_type"], told[2]["agent_id"]) == ("child", "worker.child")
    assert told[3]["last_assistant_message"] == "Below." and "agent_id" not in told[4]


def test_a_failed_model_and_a_compaction_are_told(project: Path) -> None:
    tell = 'cat >> "$CLAUDE_PROJECT_DIR"/events; echo >> "$CLAUDE_PROJECT_DIR"/events'
    names = ("StopFailure", "PreCompact", "PostCompact")
    settings(project, {"hooks": {event: [{"hooks": [{"type": "command", "command": tell}]}] for event in names}})
    llm = ["word " * 1500, "More.", "Summary.", "Third.", ProviderError("no", kind="auth", provider="test")]
    agent = agent_with(None, *llm, plugins=[Compact(window=2000, share=0.5, to=0.2), ShellHooks()])
    agent.input("One")
    agent.input("Two")
    agent.input("Three")
    with pytest.raises(ProviderError):
        agent.input("Four")
    told = [json.loads(line) for line in (project / "events").read_text().splitlines()]
    assert {one["hook_event_name"] for one in told} == set(names)
    assert told[-1]["error"] == "auth"


# -- decisions -------------------------------------------------------------------------------------


def test_new_input_is_what_runs(project: Path) -> None:
    output = {"permissionDecision": "allow", "updatedInput": {"command": "ls -a"}, "additionalContext": "In staging."}
    data = hook("PreToolUse", said(hookSpecificOutput=output), "Bash")
    agent, tools = turn(project, data, call("Bash", command="ls", description="x"), "Done.")
    assert tools.ran == ["ls -a"] and "In staging." in read_by_model(agent)


def test_a_person_decides_where_a_hook_asks(project: Path) -> None:
    output = {"permissionDecision": "ask", "permissionDecisionReason": "Really?", "updatedInput": {"command": "ls -a"}}
    settings(project, hook("PreToolUse", said(hookSpecificOutput=output)))
    for decision, ran in (({"approve": True}, ["ls -a"]), ({"reject": "no"}, [])):
        tools = Tools()
        agent = agent_with(tools, call("Bash", command="ls"), "Done.", log=None)
        with pytest.raises(Paused, match="Really") as paused:
            agent.input("Work")
        again = agent_with(tools, "Done.", log=None)
        assert again.resume(paused.value.record, **decision) == "Done."
        assert tools.ran == ran


def test_deny_comes_before_ask_and_ask_before_allow(project: Path) -> None:
    many = [said(hookSpecificOutput={"permissionDecision": word}) for word in ("allow", "deny", "ask")]
    data = {"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": line} for line in many]}]}}
    _, tools = turn(project, data, call("Bash", command="ls"), "Done.")
    assert tools.ran == []


def test_a_hook_stops_the_agent(project: Path) -> None:
    line = said(**{"continue": False, "stopReason": "Enough for today."})
    for event in ("PreToolUse", "PostToolUse", "PostToolBatch", "UserPromptSubmit"):
        agent, tools = turn(project, hook(event, line), call("Bash", command="ls"), "Done.")
        assert agent.session["result"] == "Enough for today.", event
        assert tools.ran == (["ls"] if event.startswith("Post") else []), event


def test_new_output_is_what_the_model_reads(project: Path) -> None:
    data = hook("PostToolUse", said(hookSpecificOutput={"updatedToolOutput": "(hidden)"}))
    agent, _ = turn(project, data, call("Bash", command="ls"), "Done.")
    assert "(hidden)" in read_by_model(agent) and "ran ls" not in read_by_model(agent)


def test_names_map_the_agents_tools_to_those_of_hooks(project: Path) -> None:
    def run_shell(command: str) -> str:
        """Run."""
        return "ran"

    settings(project, hook("PreToolUse", "exit 2", "Bash"))
    agent = agent_with(run_shell, call("run_shell", command="ls"), "Done.",
                       plugins=[ShellHooks(names={"run_shell": "Bash"})])  # fmt: skip
    agent.input("Work")
    assert "rejected" in read_by_model(agent)


# -- the files -------------------------------------------------------------------------------------


def test_a_strangers_hooks_run_only_once_the_person_has_allowed_them(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(overrides, "program", "/usr/bin/tool")
    file = settings(project, hook("SessionStart", 'touch "$CLAUDE_PROJECT_DIR"/ran'))
    with pytest.raises(ConfigError, match=r"connectagent allow .*settings\.json"):
        agent_with(None, "Done.")
    agent_with(None, "Done.", plugins=[ShellHooks(project=False)]).input("Work")
    assert not (project / "ran").exists()
    assert CliRunner().invoke(allow, [str(file)]).exit_code == 0
    agent_with(None, "Done.").input("Work")
    assert (project / "ran").exists()
    settings(project, hook("SessionStart", "echo other"))
    with pytest.raises(ConfigError, match="has changed"):
        agent_with(None, "Done.")


def test_files_without_hooks_need_no_word(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(overrides, "program", "/usr/bin/tool")
    settings(project, {"permissions": {"allow": ["Read"]}})
    agent_with(None, "Done.").input("Work")


def test_the_users_the_projects_and_the_local_files_are_merged(project: Path) -> None:
    (project / "home").mkdir()
    tell = 'echo {} >> "$CLAUDE_PROJECT_DIR"/seen'
    (project / "home" / "settings.json").write_text(json.dumps(hook("SessionStart", tell.format("user"))))
    settings(project, hook("SessionStart", tell.format("project")))
    settings(project, hook("SessionStart", tell.format("local")), "settings.local.json")
    agent_with(None, "Done.").input("Work")
    assert (project / "seen").read_text() == "user\nproject\nlocal\n"
    settings(project, {"disableAllHooks": True}, "settings.local.json")
    agent_with(None, "Done.").input("Work")  # a project does not switch off what the user has
    assert (project / "seen").read_text() == "user\nproject\nlocal\nuser\n"
    (project / "home" / "settings.json").write_text(json.dumps({"disableAllHooks": True}))
    agent_with(None, "Done.").input("Work")
    assert (project / "seen").read_text() == "user\nproject\nlocal\nuser\n"


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"hooks": ["x"]}', '{"hooks": {"Stop": {"a": []}}}', '{"hooks": {"Stop": [{"matcher": "x"}]}}',
     '{"hooks": {"Stop": [{"hooks": [{"type": "agent", "prompt": "Check."}]}]}}',
     '{"hooks": {"Stop": [{"hooks": [{"type": "command"}]}]}}',
     '{"hooks": {"Stop": [{"hooks": [{"command": "x", "timeout": "soon"}]}]}}',
     '{"hooks": {"preToolUse": [{"hooks": [{"command": "x"}]}]}}',
     '{"hooks": {"PreToolUse": [{"hooks": [{"command": "x", "args": [7]}]}]}}',
     '{"hooks": {"PreToolUse": [{"hooks": [{"command": "x", "shell": "powershell"}]}]}}',
     '{"hooks": {"PreToolUse": [{"matcher": "(", "hooks": [{"command": "x"}]}]}}', "[" * 100_000],
)  # fmt: skip
def test_settings_that_cannot_be_used_are_an_error_and_no_missing_guard(text: str, project: Path) -> None:
    (project / ".claude" / "settings.json").write_text(text)
    with pytest.raises(ConfigError, match=r"settings\.json"):
        agent_with(None, "Done.")


def test_settings_that_do_not_end_are_an_error(project: Path) -> None:
    (project / ".claude" / "settings.json").symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=r"settings\.json is no regular file"):
        agent_with(None, "Done.")


# -- combinations ----------------------------------------------------------------------------------


def test_it_keeps_the_rules_on_every_path(agenttester: AgentTester, project: Path) -> None:
    plugin = ShellHooks(project=False)
    checked = agenttester.check(plugin)
    assert {"before_each_tool", "after_each_tool", "on_complete"} <= checked.hooks


def test_what_has_finished_does_not_run_again_after_an_interrupt(project: Path) -> None:
    tell = "grep -q PreToolUse && echo x >> \"$CLAUDE_PROJECT_DIR\"/seen; exit 0"
    settings(project, hook("PreToolUse", tell))
    agent = agent_with(Tools(), call("Bash", command="ls"), KeyboardInterrupt(), log=None)
    with pytest.raises(KeyboardInterrupt):
        agent.input("Work")
    assert agent_with(Tools(), "Done.", log=None).resume(agent.record) == "Done."
    assert (project / "seen").read_text() == "x\n"


def test_nothing_runs_in_a_replay(project: Path) -> None:
    settings(project, hook("PostToolUse", 'echo x >> "$CLAUDE_PROJECT_DIR"/seen'))
    agent, _ = turn(project, hook("PostToolUse", 'echo x >> "$CLAUDE_PROJECT_DIR"/seen'), call("Bash", command="ls"),
                    "Done.", log=None)  # fmt: skip
    assert agent.record is not None
    assert replayed(agent.record, agent=agent_with(Tools(), "")).same
    assert (project / "seen").read_text() == "x\n"


def test_in_a_dry_run_nothing_that_hooks_decide_takes_effect(project: Path) -> None:
    settings(project, hook("PreToolUse", "exit 2"))
    tools = Tools()
    agent = agent_with(tools, call("Bash", command="ls"), "Done.", plugins=[shadow(ShellHooks())])
    agent.input("Work")
    assert tools.ran == ["ls"] and any(entry["type"] == "shadow" for entry in agent.session["trace"])


def test_calls_of_a_round_at_once_and_streamed_turns_have_their_hooks(project: Path) -> None:
    settings(project, hook("PreToolUse", "grep -q '\"command\": \"rm\"' && exit 2; exit 0"))
    tools = Tools()
    calls = [call("Bash", command=line) for line in ("ls", "rm", "pwd")]
    agent = agent_with(tools, calls, "Done.", parallel_tools=3)
    list(agent.stream("Work"))
    assert sorted(tools.ran) == ["ls", "pwd"]


@pytest.mark.parametrize("wrong", [{"names": ["Bash"]}])
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="shellhooks: "):
        ShellHooks(**wrong)


def test_the_example_of_the_readme_runs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    settings(project, json.loads(text.split("```json\n")[1].split("```")[0]))
    exec(text.split("```python\n")[1].split("```")[0], {})
    assert "rejected: rm is not for agents" in capsys.readouterr().out
