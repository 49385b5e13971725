"""`connectagent mcp serve SCRIPT`: an agent as an MCP server."""

from __future__ import annotations

import asyncio
from typing import Any

import click


@click.group("mcp")
def group() -> None:
    """Agents as MCP servers."""


@group.command()
@click.argument("script")
@click.option("--http", is_flag=True, help="Serve streamable HTTP, at /mcp, in place of stdin and stdout.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at, with --http.")
@click.option("--port", default=8000, show_default=True, help="The port to listen at, with --http.")
def serve(script: str, http: bool, host: str, port: int) -> None:
    """Make the agent of SCRIPT an MCP server with one tool, which asks the agent."""
    import contextlib
    import io
    import sys

    from connectagent.commands import agent_of, load

    with contextlib.redirect_stdout(sys.stderr):  # stdout is the protocol's
        module = load(script)
        agent = agent_of(module)
    if agent is None:
        raise click.UsageError(f"{script} makes no agent at its top level")
    server = server_of(agent)
    with agent:
        if http:
            server.run("streamable-http", host=host, port=port)
        else:
            if isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(line_buffering=True)  # the library diverts what tools print, once it is flushed
            server.run("stdio")


def server_of(agent: Any) -> Any:
    """An MCP server that asks an agent. Questions are answered one after the other."""
    import re

    from mcp.server import MCPServer

    server = MCPServer(agent.name)
    turn = asyncio.Lock()

    async def ask(prompt: str, new_conversation: bool = False) -> str:
        async with turn:
            if new_conversation:
                agent.reset_conversation()
            return str(await agent.ainput(prompt))

    about = f"Ask the agent {agent.name}. It remembers the conversation unless new_conversation is true."
    given = getattr(agent, "description", None)
    name = re.sub(r"[^A-Za-z0-9_-]", "_", agent.name)
    server.add_tool(ask, name=name, description=f"{given}\n{about}" if given else about)
    return server
