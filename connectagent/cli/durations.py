"""`connectagent run --durations`: time and cost of each handler, as a table on stderr."""

from __future__ import annotations

from typing import Any

from connectagent.hooks.markers import on_agent_ready


class Durations:
    """Collects the agents that are made, and prints time and cost of their handlers at the end."""

    name = "durations"

    def __init__(self) -> None:
        self.agents: list[Any] = []

    @on_agent_ready
    def note(self, agent: Any) -> None:
        """Add an agent."""
        self.agents.append(agent)

    def show(self) -> None:
        """Print one table for each agent, the costliest handler first."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        console = Console(stderr=True)
        for agent in self.agents:
            table = Table("plugin", "hook", title=Text(f"handlers of {agent.name}"), box=None, title_justify="left")
            for column in ("calls", "ms", "tokens", "USD"):
                table.add_column(column, justify="right")
            for row in agent.ledger:
                if row["plugin"] != self.name:
                    tokens = row["input_tokens"] + row["output_tokens"]
                    cells = (row["plugin"], row["hook"], row["calls"], f"{row['duration_ms']:.1f}", tokens or "")
                    table.add_row(*(Text(str(cell)) for cell in (*cells, f"{row['cost']:.4f}" if row["cost"] else "")))
            console.print(table)
