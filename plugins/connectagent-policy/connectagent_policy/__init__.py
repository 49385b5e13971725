"""Allows, denies or asks about tool calls, by rules in YAML. What no rule allows is denied."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from connectagent import Agent, Pause, ToolCall, ToolRejected, before_each_tool, register_commands
from connectagent_policy.rules import Rule, Verdict, judge, load, read_rules

if TYPE_CHECKING:
    import click

__all__ = ["Policy", "Rule", "Verdict", "judge", "load", "read_rules"]


class Policy:
    """The plugin: `Agent(plugins=[Policy("policy.yaml")])`.

    Args:
        file: the policy.
        text: the policy itself, in place of a file.
    """

    name: ClassVar[str] = "policy"

    def __init__(self, file: str = "policy.yaml", text: str | None = None) -> None:
        self.file, self.text = file, text
        self._rules: list[Rule] | None = None

    @property
    def rules(self) -> list[Rule]:
        """The rules, read when they are first asked for."""
        if self._rules is None:
            self._rules = load(self.file) if self.text is None else read_rules(self.text)
        return self._rules

    @before_each_tool(trylast=True)  # so that it judges the arguments that other handlers leave
    def guard(self, agent: Agent, tool_call: ToolCall) -> None:
        """Let the call run, refuse it, or pause until a person has decided.

        Raises:
            ToolRejected: the policy denies it, or cannot be read or applied.
            Pause: the policy wants a person to be asked.
        """
        try:
            verdict = judge(self.rules, agent.name, tool_call.name, tool_call.arguments)
        except Exception as error:  # whatever is wrong with the policy, nothing runs
            raise ToolRejected(f"the policy cannot be applied, so nothing may run: {error}") from error
        if verdict.effect == "deny":
            raise ToolRejected(f"denied: {verdict.reason}. Go on without it, or tell the user what it was for.")
        if verdict.effect == "ask" and not tool_call.approved:
            raise Pause(f"the policy asks about {tool_call.name}: {verdict.reason}")

    @register_commands
    def commands(self, cli: click.Group) -> None:
        """Add `connectagent policy test`."""
        from connectagent_policy.command import group

        cli.add_command(group)
