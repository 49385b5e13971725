"""Runs the hooks of Claude Code's settings files, unchanged: commands that read JSON and say what is to happen.

`settings.py` reads the files and says which hook is for what, `running.py` runs a command and reads its answer,
`posting.py` asks an address. Here each event has its moment. The options are on `ShellHooks`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from connectagent import (
    ConfigError,
    Continue,
    OutputError,
    Pause,
    ProviderError,
    ToolCall,
    ToolRejected,
    TraceEntry,
    after_each_tool,
    after_tools,
    after_user_input,
    arguments_text,
    around_turn,
    before_each_tool,
    on_agent_closed,
    on_agent_ready,
    on_complete,
    on_session,
    on_trace,
)
from connectagent.settings import project_folder
from connectagent_shellhooks.running import Decision, Outcome, clipped, run_command
from connectagent_shellhooks.settings import GUARDS, Hook, read_hooks

try:
    from connectagent_compact import before_compact
except ImportError:  # it is not installed: nothing is compacted then
    before_compact = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from connectagent import Agent

_PLAIN = ("SessionStart", "UserPromptSubmit", "SubagentStart")  # the events whose plain output is for the model
_RAN = ("success", "stand_in", "recovered")


@dataclass
class Verdict:
    """What a hook of type `prompt` answers."""

    ok: bool
    reason: str = ""


class ShellHooks:
    """The plugin: `Agent(plugins=["shellhooks"])`.

    Args:
        user: whether hooks of the user's settings run, `~/.claude/settings.json`.
        project: whether those of the project's run, `.claude/settings.json` and `.claude/settings.local.json`.
        folder: the project's folder; None: that of the current one.
        names: what hooks call the agent's tools, by name: `{"run_shell": "Bash"}`.
        fail_closed: whether a call or prompt is blocked where its hook cannot be started, fails or hangs; False lets
            it pass, as Claude Code does.

    Raises:
        ConfigError: an option cannot be used.
    """

    name: ClassVar[str] = "shellhooks"

    def __init__(
        self,
        user: bool = True,
        project: bool = True,
        folder: str | None = None,
        names: dict[str, str] | None = None,
        fail_closed: bool = True,
    ) -> None:
        if not isinstance(names or {}, dict):
            raise ConfigError(f"shellhooks: names is a dict from the agent's tools to those of hooks, not {names!r}")
        self.user, self.project, self.names, self.fail_closed = user, project, names or {}, fail_closed
        self.folder = Path(folder).absolute() if folder else None
        self._hooks: list[Hook] | None = None

    @on_agent_ready
    def read(self, agent: Agent) -> None:
        """Read the settings, once: what a file says later does not run."""
        if self._hooks is None:
            self.folder = self.folder or project_folder()
            self._hooks = read_hooks(self.folder, self.user, self.project)

    # -- the session and the turn --------------------------------------------------------------

    @on_session
    def begin_session(self, agent: Agent, reason: str) -> None:
        """SessionStart."""
        if agent.parent is None:
            source = "startup" if reason == "begun" else "resume"
            self._add(agent, self._fire(agent, "SessionStart", source, source=source, model=agent.llm.model))

    @after_user_input
    def take_prompt(self, agent: Agent, prompt: str) -> str | None:
        """UserPromptSubmit, which may block the prompt; SubagentStart for an agent inside another one."""
        if agent.parent is not None:
            self._add(agent, self._fire(agent, "SubagentStart", agent.name))
            return None
        decided = self._fire(agent, "UserPromptSubmit", prompt=prompt)
        blocked = decided.stop or decided.block
        if blocked is None:
            self._add(agent, decided)
            return None
        messages = agent.session["messages"]
        messages.pop(max(n for n, message in enumerate(messages) if message["role"] == "user"))
        return blocked

    @around_turn
    def watch(self, agent: Agent) -> Generator[None, Any, None]:
        """StopFailure: the model could not be asked."""
        try:
            yield
        except ProviderError as error:
            self._fire(agent, "StopFailure", error.kind, error=error.kind, error_details=str(error))
            raise

    @on_complete
    def complete(self, agent: Agent, result: str, outcome: str) -> Continue | None:
        """Stop and SubagentStop, which may let the agent go on."""
        if outcome not in ("answered", "truncated", "refused"):
            return None
        event, key = ("Stop" if agent.parent is None else "SubagentStop"), f"shellhooks:{agent.name}"
        active = agent.state.get(key) == agent.session["turn"]
        kind = "" if event == "Stop" else agent.name
        decided = self._fire(agent, event, kind, stop_hook_active=active, last_assistant_message=str(result))
        if decided.block is None or decided.stop is not None:
            return None
        agent.state[key] = agent.session["turn"]  # not under `temp:`, which is gone where the turn is resumed
        return Continue(f"{event} hook: {decided.block}")

    @on_agent_closed
    def end_session(self, agent: Agent) -> None:
        """SessionEnd."""
        if agent.parent is None and agent.current_session is not None:
            self._fire(agent, "SessionEnd", "other", reason="other")

    # -- tools ---------------------------------------------------------------------------------

    @before_each_tool
    def before_tool(self, agent: Agent, tool_call: ToolCall) -> None:
        """PreToolUse, which may change, refuse and stop; where it asks, PermissionRequest, then a person."""
        decided = self._fire_tool(agent, "PreToolUse", tool_call)
        self._add(agent, decided)
        permission, reason = decided.permission or ("", "")
        if decided.block is not None or permission == "deny":
            raise ToolRejected(decided.block or reason or "a hook refuses it")
        if decided.updated is not None:
            _replace(tool_call, decided.updated)
        if permission == "ask" and not tool_call.approved:
            self._ask(agent, tool_call, reason or f"a hook asks whether {tool_call.name} may run")

    def _ask(self, agent: Agent, tool_call: ToolCall, reason: str) -> None:
        decided = self._fire_tool(agent, "PermissionRequest", tool_call)
        self._add(agent, decided)
        permission, said = decided.permission or ("", "")
        if decided.interrupt:
            agent.end_turn(said or reason, outcome="stopped")
        if decided.block is not None or permission == "deny":
            raise ToolRejected(decided.block or said or "a hook refuses it")
        if decided.updated is not None:
            _replace(tool_call, decided.updated)
        if permission != "allow":
            raise Pause(reason)

    @after_each_tool
    def after_tool(self, agent: Agent, tool_call: ToolCall, result: Any, entry: TraceEntry) -> Any:
        """PostToolUse and PostToolUseFailure."""
        if entry["status"] in _RAN:
            decided = self._fire_tool(agent, "PostToolUse", tool_call, tool_response=result)
        elif entry["status"] in ("error", "not_found"):
            decided = self._fire_tool(agent, "PostToolUseFailure", tool_call, error=str(result), is_interrupt=False)
        else:
            return None
        self._add(agent, decided, f"hook after {tool_call.name}")
        return decided.output[0] if decided.output is not None else None

    @after_tools
    def after_round(self, agent: Agent, entries: list[TraceEntry]) -> None:
        """PostToolBatch, which may stop the agent."""
        keys = {"tool_input": "arguments", "tool_use_id": "call_id", "tool_response": "result"}
        calls = [{key: entry.get(own) for key, own in keys.items()} for entry in entries]
        for call, entry in zip(calls, entries, strict=True):
            call["tool_name"] = self.names.get(entry["tool_name"], entry["tool_name"])
        decided = self._fire(agent, "PostToolBatch", tool_calls=calls)
        decided.stop = decided.stop or decided.block
        decided.block = None
        self._add(agent, decided)

    # -- moments that the trace tells ----------------------------------------------------------

    @on_trace
    def notice(self, agent: Agent, entry: TraceEntry) -> None:
        """Notification: a call waits for a person; PostCompact: the plugin compact has shortened the conversation."""
        if entry["type"] == "paused":
            reason = str(entry.get("reason") or "a call waits for you")
            kind = "permission_prompt"
            self._fire(agent, "Notification", kind, message=reason, title=agent.name, notification_type=kind)
        elif entry["type"] == "compacted":
            self._fire(agent, "PostCompact", "auto", trigger="auto", compact_summary="")

    if before_compact is not None:

        @before_compact
        def compact_soon(self, agent: Agent) -> None:
            """PreCompact: the plugin compact is about to sum up."""
            self._fire(agent, "PreCompact", "auto", trigger="auto", custom_instructions="")

    # -- running -------------------------------------------------------------------------------

    def _fire_tool(self, agent: Agent, event: str, call: ToolCall, **more: Any) -> Decision:
        name = self.names.get(call.name, call.name)
        return self._fire(agent, event, name, tool_name=name, tool_input=call.arguments, tool_use_id=call.id, **more)

    def _fire(self, agent: Agent, event: str, name: str = "", **more: Any) -> Decision:
        """Run the hooks of an event; what they decide together. In a replay nothing runs."""
        decision = Decision()
        fits = [hook for hook in self._hooks or () if hook.event == event and hook.is_for(name, more.get("tool_input"))]
        if not fits or agent.replaying:
            return decision
        payload = {
            "session_id": agent.session["id"],
            "transcript_path": str(agent.record or ""),
            "cwd": os.getcwd(),
            "permission_mode": "default",
            "hook_event_name": event,
            **({"agent_id": agent.branch, "agent_type": agent.name} if agent.parent is not None else {}),
            **more,
        }
        for hook in fits:
            began = time.monotonic()
            outcome = self._outcome(agent, hook, payload)
            decision.take(outcome, plain=event in _PLAIN or hook.kind == "http")
            told = self._refuse_failed(decision, hook, outcome)
            self._note(agent, hook, outcome, (time.monotonic() - began) * 1000, told)
        return decision

    def _refuse_failed(self, decision: Decision, hook: Hook, outcome: Outcome) -> str | None:
        """Refuse where a guard has failed; what the person is told of it."""
        is_guard = hook.event in GUARDS and not hook.in_background  # nobody waits for what one in the background says
        refuses = is_guard and self.fail_closed and outcome.failure is not None
        if refuses:
            decision.block = decision.block or f"a hook failed: {outcome.failure}"
        return _told(hook, outcome, is_guard, refuses)

    def _outcome(self, agent: Agent, hook: Hook, payload: dict[str, Any]) -> Outcome:
        if hook.kind == "command":
            return run_command(hook.run, payload, self.folder or Path.cwd(), hook.timeout_s, hook.in_background)
        if hook.kind == "http":
            from connectagent_shellhooks.posting import post  # its library takes time to load

            return post(hook, payload)
        text, given = str(hook.run), arguments_text(payload)
        prompt = text.replace("$ARGUMENTS", given) if "$ARGUMENTS" in text else f"{text}\n\n{given}"
        try:
            verdict = agent.ask(prompt, output=Verdict, model=hook.model)
        except (ProviderError, OutputError, RuntimeError) as error:
            return Outcome(problem=str(error))
        return Outcome(0) if verdict.ok else Outcome(2, err=verdict.reason)

    def _note(self, agent: Agent, hook: Hook, outcome: Outcome, duration_ms: float, told: str | None) -> None:
        """Trace a hook that ran, with what it says to the user, and tell the person at the terminal why it failed."""
        said = outcome.data() or {}
        entry: dict[str, Any] = {"event": hook.event, "command": hook.run, "duration_ms": round(duration_ms, 1)}
        if outcome.out.strip() and said.get("suppressOutput") is not True:
            entry["output"] = clipped(outcome.out.strip())
        if isinstance(said.get("systemMessage"), str):
            entry["message"] = clipped(said["systemMessage"])
        more = {"code": outcome.code, "problem": outcome.failure, "stderr": clipped(outcome.err.strip()) or None}
        more["show"] = told
        agent.trace("shellhook", **entry, **{key: value for key, value in more.items() if value is not None})

    def _add(self, agent: Agent, decided: Decision, whose: str = "") -> None:
        """Give the model what hooks say, and end the turn where one stops the agent."""
        texts = [f"{whose}: {decided.block}"] if whose and decided.block is not None else []
        for text in [*texts, *decided.context]:
            agent.session["messages"].append({"role": "user", "content": text})
        if decided.stop is not None:
            agent.end_turn(decided.stop, outcome="stopped")


def _told(hook: Hook, outcome: Outcome, is_guard: bool, refuses: bool) -> str | None:
    """What the person reads of a hook that failed; None where it did not."""
    if outcome.failure is None:
        return None
    run = hook.run if isinstance(hook.run, str) else " ".join(hook.run)
    said = clipped(outcome.err.strip()).partition("\n")[0]
    text = f"the {hook.event} hook {run!r:.200} failed: {outcome.failure}" + (f" ({said})" if said else "")
    if refuses:
        return f"{text}; what it guards is refused"
    return f"{text}; what it guards is not refused, as fail_closed is off" if is_guard else text


def _replace(call: ToolCall, updated: dict[str, Any]) -> None:
    call.arguments.clear()
    call.arguments.update(updated)
