"""Serve an agent over HTTP: sessions by id, an endpoint like OpenAI's, AG-UI and a chat page."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from connectagent import ConfigError, register_commands

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from connectagent import Store

# Clients keep a connection that nobody uses for a shorter time, so that they close it: what closes it here may close it
# under a request. httpx keeps one for 5 s, which is just what uvicorn does.
KEEP_ALIVE_S = 75
GRACE_S, STOP_S = 5.0, 3.0  # for turns to end after Ctrl-C, and then for their answers to be sent
MAX_BYTES = 10_000_000  # of a body: it may have images
NO_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
PORTS = click.IntRange(0, 65535)


class Serve:
    """Brings the command `connectagent serve`."""

    @register_commands
    def commands(self, cli: click.Group) -> None:
        """Add `connectagent serve`."""
        cli.add_command(serve)


def app_of(
    agent: Any,
    token: str | None = None,
    *,
    host: str = "127.0.0.1",
    concurrency: int = 16,
    max_bytes: int = MAX_BYTES,
    shared_state: Iterable[str] = (),
    store: Store | None = None,
) -> Starlette:
    """The application that serves an agent.

    Args:
        agent: whose definition takes the turns; each session has a fresh agent of it.
        token: what clients send as `Authorization: Bearer TOKEN`; None for no check, on loopback only.
        host: the address at which the application is served.
        concurrency: how many turns run at a time; further ones get 429.
        max_bytes: the size of the largest body.
        shared_state: the keys of the state that front ends of AG-UI may read and write.
        store: keeps the sessions too, so that a server with an empty folder goes on with them.

    Raises:
        ConfigError: the address is not loopback and there is no token, the agent is not recorded, a limit is below 1,
            or a key cannot be shared.
    """
    from connectagent_serve.app import Service

    return Service(agent, token, host, concurrency, max_bytes, shared_state, store).app


@click.command()
@click.argument("script")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", default=8000, type=PORTS, show_default=True, help="The port to listen at; 0 for a free one.")
@click.option("--token-env", metavar="NAME", help="The environment variable that has the bearer token.")
@click.option("--concurrency", default=16, show_default=True, help="How many turns run at a time.")
@click.option("--max-bytes", default=MAX_BYTES, show_default=True, help="The size of the largest body.")
@click.option("--share-state", metavar="NAME", multiple=True, help="A key of the state that front ends read and write.")
@click.option("--store", metavar="FILE", help="An SQLite database that keeps the sessions too; made if it is missing.")
def serve(
    script: str,
    host: str,
    port: int,
    token_env: str | None,
    share_state: tuple[str, ...],
    store: str | None,
    **limits: int,
) -> None:
    """Serve the agent of SCRIPT over HTTP."""
    import os

    from connectagent import SqliteStore
    from connectagent.commands import agent_of, load

    agent = agent_of(load(script))
    if agent is None:
        raise click.UsageError(f"{script} makes no agent at its top level")
    token = None if token_env is None else os.environ.get(token_env, "")
    if token == "":
        raise click.UsageError(f"the environment variable {token_env} has no token")
    try:
        kept = None if store is None else SqliteStore(store)
        app = app_of(agent, token, host=host, shared_state=share_state, store=kept, **limits)
    except (ConfigError, OSError) as error:
        raise click.UsageError(str(error)) from None
    sockets = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"{agent.name} is served at http://{shown}:{sockets[0].getsockname()[1]}; Ctrl-C ends it", err=True)
    _run(app, sockets)


def _listen(host: str, port: int) -> list[Any]:
    """Sockets that listen at each address of a host.

    Raises:
        click.UsageError: somebody else does, or the host is none of this machine.
    """
    import socket

    sockets: list[socket.socket] = []
    refused: OSError | None = None
    try:
        for family, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            free = sockets[0].getsockname()[1] if sockets else port
            try:
                sockets.append(socket.create_server((address[0], free, *address[2:]), family=family, backlog=2048))
            except OSError as error:
                refused = error
                if error.errno not in NO_ADDRESS:
                    raise
        if not sockets and refused is not None:  # one address of several may be missing, as ::1 is in many containers
            raise refused
    except OSError as error:
        for one in sockets:
            one.close()
        said = f"cannot listen at {host}, port {port}: {error.strerror}; --host and --port take others"
        raise click.UsageError(said) from None
    return sockets


def _run(app: Starlette, sockets: list[Any]) -> None:
    """Serve until Ctrl-C. Turns that run then have some seconds to end, or until it is pressed again."""
    import asyncio
    import logging

    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            if self.should_exit:
                asyncio.get_running_loop().call_soon_threadsafe(app.state.end)
            self.should_exit = True

        async def shutdown(self, sockets: Any = None) -> None:
            loop = asyncio.get_running_loop()
            later = [loop.call_later(GRACE_S, app.state.end), loop.call_later(GRACE_S + STOP_S, self._leave)]
            await super().shutdown(sockets)
            for one in later:
                one.cancel()

        def _leave(self) -> None:
            """Leave clients that read nothing, or send nothing."""
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            self.force_exit = True

    _let_streams_end()
    options: Any = {"log_level": "warning", "timeout_keep_alive": KEEP_ALIVE_S, "lifespan": "off"}
    Server(uvicorn.Config(app, **options)).run(sockets)


def _let_streams_end() -> None:
    """Let the streams of A2A end with their turns: at Ctrl-C, their library would cut them off."""
    try:
        from sse_starlette.sse import AppStatus  # type: ignore[import-not-found, unused-ignore]
    except ImportError:  # and so there is no A2A
        return
    status: Any = AppStatus
    status.disable_automatic_graceful_drain()
