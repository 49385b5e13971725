"""Snapshots of the working folder before tools that write, to compare with and to go back to."""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from connectagent import PluginWarning, around_tool, data_folder, on_session, register_commands
from connectagent_checkpoint.store import CheckpointError, Snapshot, Store

if TYPE_CHECKING:
    import click

    from connectagent import Agent, ToolCall, TraceEntry

__all__ = ["Checkpoint", "CheckpointError", "Snapshot", "Store"]


class Checkpoint:
    """The plugin: `Agent(plugins=["checkpoint"])`, or with options `Agent(plugins=[Checkpoint(keep=20)])`.

    Args:
        keep: how many snapshots are kept; the oldest are removed.
        max_file_mb: larger files are left out.
        max_mb: of a folder whose files are larger together, no snapshot is taken.
        restore: whether the folder goes back too when a session goes back, with `resume --from`.
    """

    changes = ("trace?", "outside?")

    name: ClassVar[str] = "checkpoint"

    def __init__(self, keep: int = 100, max_file_mb: float = 10, max_mb: float = 500, restore: bool = True) -> None:
        self.keep, self.max_file_mb, self.max_mb, self.restore = keep, max_file_mb, max_mb, restore
        self.folder = Path.cwd()
        self._told: set[str] = set()

    @property
    def store(self) -> Store:
        """Where the snapshots of the folder are kept."""
        return Store(self.folder, data_folder("checkpoints"), self.keep, self.max_file_mb, self.max_mb)

    @around_tool
    def before(self, agent: Agent, tool_call: ToolCall) -> Generator[None, Any, None]:
        """Take a snapshot before a tool runs that may write."""
        tool = agent.tools.get(tool_call.name)
        if not agent.replaying and tool is not None and not tool.read_only:
            try:
                session = agent.session
                label = f"{agent.name} {session['id']} turn {session['turn']}: before {tool_call.name}"
                agent.trace("checkpoint", commit=self.store.take(label), call_id=tool_call.id)
            except (CheckpointError, OSError) as error:
                self._warn(f"no snapshot was taken: {error}")
        yield

    @on_session
    def back(self, agent: Agent, reason: str) -> None:
        """Put the folder back where a session goes on from an earlier place."""
        if reason == "begun" or not self.restore or agent.replaying:
            return
        commit = _next_snapshot(agent.session["trace"])
        if commit is None:
            return
        try:
            kept = self.store.restore(commit)
        except (CheckpointError, OSError) as error:
            self._warn(f"the folder stays as it is: {error}")
        else:
            agent.trace("checkpoint_restored", commit=commit, before=kept)

    @register_commands
    def commands(self, cli: click.Group) -> None:
        """Add `connectagent checkpoint list`, `diff` and `restore`."""
        from connectagent_checkpoint.commands import group

        cli.add_command(group(lambda: self.store))

    def _warn(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            warnings.warn(f"checkpoint: {text}", PluginWarning, stacklevel=2)


def _next_snapshot(entries: list[TraceEntry]) -> str | None:
    """The first snapshot that the record has behind the place at which the session goes on; None where it has none."""
    from connectagent.records import read_record

    resumed = next((entry for entry in reversed(entries) if entry["type"] == "resumed"), None)
    if resumed is None or not os.path.isfile(str(resumed.get("record"))):
        return None
    last = max((entry["timestamp"] for entry in entries if entry["timestamp"] < resumed["timestamp"]), default=0.0)
    for turn in read_record(resumed["record"])["turns"]:
        for line in turn["lines"]:
            if line.get("type") == "checkpoint" and last < line["timestamp"] < resumed["timestamp"]:
                commit = str(line["commit"])
                return commit if len(commit) >= 40 else None  # no abbreviation, whoever wrote the record
    return None
