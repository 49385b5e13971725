"""The connections to MCP servers: one a server and process, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from connectagent import ConnectAgentError
from connectagent_mcp.servers import Server

T = TypeVar("T")
_STEP_S = 0.2
_STOP_S = 10.0  # how long the servers may take to end
# What the library says where a session is lost; servers answer an unknown one, after a restart, with 400 or 404.
_LOST = (
    *("connection closed", "session terminated", "session not found", "without a response"),
    *("returned an error response", "session id"),
)


class McpError(ConnectAgentError):
    """An MCP server could not be reached, died, took too long, or reported an error."""


class Hub:
    """All connections of the process. It is made anew in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._connections: dict[str, Connection] = {}

    def connection(self, server: Server) -> Connection:
        """The connection to a server; the same for the same description."""
        with self._lock:
            if self._pid != os.getpid():
                self._begin()
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="mcp", daemon=True)
                self._thread.start()
            key = json.dumps(server, sort_keys=True)
            if key not in self._connections:
                self._connections[key] = Connection(self._loop, server)
            return self._connections[key]

    def close(self) -> None:
        """End all connections, and with them the processes of their servers."""
        with self._lock:
            loop, thread = self._loop, self._thread
            if loop is None or thread is None or self._pid != os.getpid():
                return
            ending = asyncio.run_coroutine_threadsafe(self._end(), loop)
            with suppress(TimeoutError):
                ending.result(_STOP_S)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_STOP_S)
            if not thread.is_alive():
                loop.close()
            self._begin()

    async def _end(self) -> None:
        await asyncio.gather(*(one.end() for one in self._connections.values()), return_exceptions=True)


class Connection:
    """One server, connected when it is first needed, and again when it was lost.

    Attributes:
        tools: what the server offered last.
        version: grows with each list of tools.
        capabilities: what the server says that it can do.
        lost: why there is no connection, or None.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, server: Server) -> None:
        self.server, self._loop = server, loop
        self.tools: list[Any] = []
        self.version = 0
        self.capabilities: Any = None
        self.lost: str | None = None
        self._client: Any = None
        self._task: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self._connecting = asyncio.Lock()
        self._last = ""

    def call(self, work: Callable[[Any], Awaitable[T]], timeout_s: float, alive: threading.Event | None = None) -> T:
        """Do something with the client, and wait for it. Ctrl-C gives it up.

        Args:
            work: is given the `mcp.Client`.
            timeout_s: how long it may take.
            alive: set by a sign of life, after which the time begins anew.

        Raises:
            McpError: the server cannot be reached, died or took too long, or reported an error.
        """
        future = asyncio.run_coroutine_threadsafe(self._do(work, timeout_s, alive), self._loop)
        try:
            while not future.done():  # on Windows, before Python 3.14, Ctrl-C is heard between two waits only
                concurrent.futures.wait([future], _STEP_S)
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def answer(
        self, work: Callable[[Any], Awaitable[T]], timeout_s: float, alive: threading.Event | None = None
    ) -> T:
        """Do something with the client as `call()` does; where this is cancelled, the server is told."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._do(work, timeout_s, alive), self._loop))

    async def _do(self, work: Callable[[Any], Awaitable[T]], timeout_s: float, alive: threading.Event | None) -> T:
        from mcp import MCPError

        name, client = self.server["name"], await self._connected()
        task, over = asyncio.ensure_future(work(client)), asyncio.ensure_future(self._over.wait())
        try:
            while True:
                await asyncio.wait({task, over}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return task.result()
                if over.done():
                    raise McpError(f"the MCP server {name!r} ended during the call; nobody knows how far it came")
                if alive is None or not alive.is_set():
                    raise McpError(f"the MCP server {name!r} did not answer within {timeout_s:g} s")
                alive.clear()
        except MCPError as error:
            if any(sign in str(error).lower() for sign in _LOST):
                self._lose(str(error))
            raise McpError(f"the MCP server {name!r} reports: {error}") from error
        except (OSError, RuntimeError) as error:
            self._lose(str(error))
            raise McpError(f"the connection to the MCP server {name!r} failed: {error}") from error
        finally:
            task.cancel()
            over.cancel()
            await asyncio.gather(task, over, return_exceptions=True)

    # -- the connection ------------------------------------------------------------------------

    async def _connected(self) -> Any:
        async with self._connecting:
            if self._client is None:
                await self.end()
                self._over = asyncio.Event()
                made: asyncio.Future[None] = self._loop.create_future()
                self._task = self._loop.create_task(self._live(made, self._over))
                await self._made(made)
            return self._client

    async def _made(self, made: asyncio.Future[None]) -> None:
        name, limit = self.server["name"], self.server.get("start_s", 30)
        try:
            await asyncio.wait_for(asyncio.shield(made), limit)
        except Exception as error:
            await self.end()
            why = f"it was not ready within {limit:g} s" if isinstance(error, TimeoutError) else _reason(error)
            self.lost = f"the MCP server {name!r} cannot be reached: {why}{self._said()}"
            raise McpError(self.lost) from error
        self.lost = None

    async def _live(self, made: asyncio.Future[None], over: asyncio.Event) -> None:
        """Hold the connection open until it is over."""
        from mcp import Client

        async def on_message(message: Any) -> None:
            if getattr(message, "method", None) == "notifications/tools/list_changed":
                task = self._loop.create_task(self._list(client))
                task.add_done_callback(lambda done: done.cancelled() or done.exception())

        try:
            client = Client(self._transport(over), message_handler=on_message, mode=self.server.get("mode", "legacy"))
            async with client:
                self.capabilities = client.server_capabilities
                await self._list(client)
                self._client = client
                if not made.done():
                    made.set_result(None)
                await over.wait()
        except Exception as error:
            if not made.done():
                made.set_exception(error)
        finally:
            self._lose("the connection ended", over)
            made.cancel()

    async def _list(self, client: Any) -> None:
        tools: list[Any] = []
        cursor = None
        if client.server_capabilities.tools is not None:
            for _ in range(100):  # pages
                page = await client.list_tools(cursor=cursor, cache_mode="refresh")
                tools += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    break
        self.tools, self.version = tools, self.version + 1

    @asynccontextmanager
    async def _transport(self, over: asyncio.Event) -> AsyncIterator[Any]:
        async with self._opened() as (read, write):
            yield _Watched(read, over), write

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Any]:
        from mcp.client.stdio import StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client

        server = self.server
        if "url" in server:
            import httpx2

            timeout = httpx2.Timeout(30, read=300)
            async with (
                httpx2.AsyncClient(headers=server.get("headers"), timeout=timeout) as http,
                streamable_http_client(server["url"], http_client=http) as streams,
            ):
                yield streams
            return
        given = {key: server[key] for key in ("command", "args", "env", "cwd") if key in server}
        with tempfile.TemporaryFile() as log, open(os.dup(log.fileno()), "w", encoding="utf-8") as errors:
            try:
                async with stdio_client(StdioServerParameters(**given), errlog=errors) as streams:
                    yield streams
            finally:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 500))
                self._last = log.read().decode(errors="replace").strip()

    def _said(self) -> str:
        """What the server last wrote to its standard error."""
        return f"; it wrote: {self._last}" if self._last else ""

    def _lose(self, why: str, over: asyncio.Event | None = None) -> None:
        if over is None or over is self._over:
            self._client, self.lost = None, why
        (over or self._over).set()

    async def end(self) -> None:
        """End the connection, and wait until the server's process is gone."""
        if self._task is not None:
            task, self._task = self._task, None
            self._over.set()
            done, _ = await asyncio.wait({task}, timeout=_STOP_S)
            if not done:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


class _Watched:
    """A stream that says when it has ended: the server's process is gone."""

    def __init__(self, stream: Any, over: asyncio.Event) -> None:
        self._stream, self._over = stream, over

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> _Watched:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except StopAsyncIteration:
            self._over.set()
            raise


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
