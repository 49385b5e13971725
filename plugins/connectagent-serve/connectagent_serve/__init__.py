"""Serve an agent over HTTP: sessions by id, an endpoint like OpenAI's, AG-UI and a chat page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from connectagent import ConfigError, register_commands

if TYPE_CHECKING:
    from starlette.applications import Starlette

# Clients keep a connection that nobody uses for a shorter time, so that they close it: what closes it here may close it
# under a request. httpx keeps one for 5 s, which is just what uvicorn does.
KEEP_ALIVE_S = 75


class Serve:
    """Brings the command `connectagent serve`."""

    @register_commands
    def commands(self, cli: click.Group) -> None:
        """Add `connectagent serve`."""
        cli.add_command(serve)


def app_of(
    agent: Any, token: str | None = None, *, host: str = "127.0.0.1", concurrency: int = 16, max_bytes: int = 1_000_000
) -> Starlette:
    """The application that serves an agent.

    Args:
        agent: whose definition takes the turns; each session has a fresh agent of it.
        token: what clients send as `Authorization: Bearer TOKEN`; None for no check, on loopback only.
        host: the address at which the application is served.
        concurrency: how many turns run at a time; further ones get 429.
        max_bytes: the size of the largest body.

    Raises:
        ConfigError: the address is not loopback and there is no token, or a limit is below 1.
    """
    from connectagent_serve.app import Service

    return Service(agent, token, host, concurrency, max_bytes).app


@click.command()
@click.argument("script")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", default=8000, show_default=True, help="The port to listen at.")
@click.option("--token-env", metavar="NAME", help="The environment variable that has the bearer token.")
@click.option("--concurrency", default=16, show_default=True, help="How many turns run at a time.")
def serve(script: str, host: str, port: int, token_env: str | None, concurrency: int) -> None:
    """Serve the agent of SCRIPT over HTTP."""
    import os

    import uvicorn

    from connectagent.cli.script import agent_of, load

    agent = agent_of(load(script))
    if agent is None:
        raise click.UsageError(f"{script} makes no agent at its top level")
    token = None if token_env is None else os.environ.get(token_env, "")
    if token == "":
        raise click.UsageError(f"the environment variable {token_env} has no token")
    try:
        app = app_of(agent, token, host=host, concurrency=concurrency)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"{agent.name} is served at http://{shown}:{port}; Ctrl-C ends it", err=True)
    uvicorn.run(app, host=host, port=port, log_level="warning", timeout_keep_alive=KEEP_ALIVE_S)
