"""MCP servers as tools of an agent, and an agent as an MCP server."""

from __future__ import annotations

import base64
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from connectagent import (
    File,
    Image,
    PluginWarning,
    Tool,
    ToolDefinitionError,
    after_tools,
    after_user_input,
    on_agent_ready,
    register_commands,
    resource,
)
from connectagent_mcp.hub import Connection, Hub, McpError
from connectagent_mcp.names import ToolNames, plain_name, tool_name
from connectagent_mcp.servers import read_servers

if TYPE_CHECKING:
    import click

    from connectagent import Agent

__all__ = ["Mcp", "McpError", "tool_name"]

Progress = Callable[[str, str, float, "float | None", "str | None"], None]


@resource(scope="process", name="mcp_hub")
def _connections() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.close()


class Mcp:
    """The plugin: `Agent(plugins=[Mcp({"time": {"command": "mcp-server-time"}})])`.

    Args:
        servers: for each name a table with `command`, `args`, `env` and `cwd`, or with `url` and `headers`.
        file: a `.mcp.json` with more of them.
        timeout_s: how long a call may take without a sign of progress.
        on_progress: is given server, tool, progress, total and message, in the connections' own thread.
    """

    name: ClassVar[str] = "mcp"
    scope: ClassVar[str] = "process"
    connections = staticmethod(_connections)

    def __init__(
        self,
        servers: Mapping[str, Any] | None = None,
        file: str | None = None,
        timeout_s: float = 60,
        on_progress: Progress | None = None,
    ) -> None:
        self.servers = read_servers(servers, file)
        self.names = ToolNames([server["name"] for server in self.servers])
        self.timeout_s, self.on_progress = timeout_s, on_progress
        self._given: WeakKeyDictionary[Any, dict[str, tuple[int, list[str]]]] = WeakKeyDictionary()

    @on_agent_ready
    def bring_tools(self, agent: Agent, mcp_hub: Hub) -> None:
        """Connect, all servers at once, and add their tools. A server that cannot be reached is a warning."""
        for problem in self.names.renamed():
            warnings.warn(f"mcp: {problem}", PluginWarning, stacklevel=2)
        found = [mcp_hub.connection(server) for server in self.servers]
        with ThreadPoolExecutor(max(1, len(found))) as threads:
            list(threads.map(self._reach, found))
        self._update(agent, found)

    @after_user_input
    def at_the_beginning(self, agent: Agent, mcp_hub: Hub) -> None:
        """Take over what servers have changed since the last turn."""
        self._update(agent, [mcp_hub.connection(server) for server in self.servers])

    @after_tools
    def between(self, agent: Agent, mcp_hub: Hub) -> None:
        """Take over what servers have changed during the round."""
        self._update(agent, [mcp_hub.connection(server) for server in self.servers])

    @register_commands
    def commands(self, cli: click.Group) -> None:
        """Add `connectagent mcp serve`."""
        from connectagent_mcp.serve import group

        cli.add_command(group)

    def _reach(self, connection: Connection) -> None:
        if connection.version:  # it was reached before; a lost one comes back with the next call
            return
        try:
            connection.call(_nothing, self.timeout_s)
        except McpError as error:
            warnings.warn(f"mcp: {error}", PluginWarning, stacklevel=2)

    def _update(self, agent: Agent, connections: list[Connection]) -> None:
        given = self._given.setdefault(agent, {})
        for connection in connections:
            version, name = connection.version, connection.server["name"]
            before, names = given.get(name, (0, []))
            if version == before:
                continue
            for one in names:
                if one in agent.tools:
                    agent.tools.remove(one)
            given[name] = (version, self._add(agent, connection))

    def _add(self, agent: Agent, connection: Connection) -> list[str]:
        added = []
        for tool in self._tools(connection):
            try:
                added += [one.name for one in agent.tools.add(tool())]
            except ToolDefinitionError as error:
                warnings.warn(f"mcp: a tool of {connection.server['name']!r} is left out: {error}", PluginWarning, 2)
        return added

    def _tools(self, connection: Connection) -> Iterator[Callable[[], Tool]]:
        """What makes the tools of a server, and those for its resources and prompts."""
        server, can = connection.server, connection.capabilities
        only = server.get("only")
        alike = Counter(plain_name(offered.name) for offered in connection.tools)
        for offered in connection.tools:
            if only is None or offered.name in only:
                name = self.names.of(server["name"], offered.name, alike[plain_name(offered.name)] > 1)
                yield lambda offered=offered, name=name: self._tool(connection, offered, name)  # type: ignore[misc]
        if can is not None and can.resources is not None:
            yield lambda: self._other(connection, "list_resources", _LIST_RESOURCES, {})
            yield lambda: self._other(connection, "read_resource", _READ_RESOURCE, {"uri": _TEXT})
        if can is not None and can.prompts is not None:
            yield lambda: self._other(connection, "list_prompts", _LIST_PROMPTS, {})
            arguments = {"type": "object", "additionalProperties": _TEXT}
            yield lambda: self._other(connection, "get_prompt", _GET_PROMPT, {"name": _TEXT, "arguments": arguments})

    def _tool(self, connection: Connection, offered: Any, name: str) -> Tool:
        hints = offered.annotations if connection.server.get("trusted") else None
        return Tool(
            name,
            offered.description or offered.title or "",
            offered.input_schema,
            _Call(self, connection, offered.name),
            read_only=bool(hints and hints.read_only_hint),
            idempotent=bool(hints and hints.idempotent_hint),
        )

    def _other(self, connection: Connection, kind: str, description: str, properties: dict[str, Any]) -> Tool:
        name = self.names.of(connection.server["name"], kind)
        required = [one for one in properties if one != "arguments"]
        schema = {"type": "object", "properties": properties, "required": required}
        # What is asked with arguments tells the server something, and it may do anything with it.
        believed = not properties or bool(connection.server.get("trusted"))
        return Tool(name, description, schema, _Other(self, connection, kind), read_only=believed, idempotent=believed)


_TEXT = {"type": "string"}
_LIST_RESOURCES = "List the resources of this server, and the templates of their addresses."
_READ_RESOURCE = "Read a resource of this server by its address."
_LIST_PROMPTS = "List the prompts of this server, with their arguments."
_GET_PROMPT = "Read a prompt of this server, filled with arguments."


class _Call:
    """Calls a tool of a server."""

    def __init__(self, plugin: Mcp, connection: Connection, tool: str) -> None:
        self._plugin, self._connection, self._name = plugin, connection, tool

    async def __call__(self, /, **arguments: Any) -> Any:
        server, alive, report = self._connection.server, threading.Event(), self._plugin.on_progress

        async def progress(done: float, total: float | None, message: str | None) -> None:
            alive.set()
            if report is not None:
                report(server["name"], self._name, done, total, message)

        async def work(client: Any) -> Any:
            return await client.call_tool(self._name, arguments, progress_callback=progress)

        result = await self._connection.answer(work, server.get("timeout_s", self._plugin.timeout_s), alive)
        value = plain(result.content) if result.content else result.structured_content
        if result.is_error:
            raise McpError(value if isinstance(value, str) else str(value))
        return value


class _Other:
    """Lists or reads the resources or prompts of a server."""

    def __init__(self, plugin: Mcp, connection: Connection, kind: str) -> None:
        self._plugin, self._connection, self._kind = plugin, connection, kind

    async def __call__(self, /, **arguments: Any) -> Any:
        async def work(client: Any) -> Any:
            return await getattr(client, self._kind)(**arguments)

        seconds = self._connection.server.get("timeout_s", self._plugin.timeout_s)
        result = await self._connection.answer(work, seconds)
        if self._kind == "read_resource":
            return plain(result.contents)
        if self._kind == "get_prompt":
            return plain([message.content for message in result.messages])
        found = result.model_dump(mode="json", exclude_none=True).get(self._kind.removeprefix("list_"), [])
        if self._kind == "list_resources":
            templates = await self._connection.answer(_templates, seconds)
            found += [one.model_dump(mode="json", exclude_none=True) for one in templates]
        return found


async def _templates(client: Any) -> list[Any]:
    from mcp import MCPError

    try:
        return list((await client.list_resource_templates()).resource_templates)
    except MCPError:  # a server may have resources and no templates
        return []


async def _nothing(client: Any) -> None:
    """Only connect."""


def plain(blocks: list[Any]) -> Any:
    """The content of a result: text, or a list of text, images and files."""
    parts = [_part(block) for block in blocks]
    if all(isinstance(part, str) for part in parts):
        return "\n".join(parts)
    return parts


def _part(block: Any) -> Any:
    block = getattr(block, "resource", block)  # an embedded resource
    if (text := getattr(block, "text", None)) is not None:
        return text
    data, kind = getattr(block, "data", None) or getattr(block, "blob", None), getattr(block, "mime_type", None)
    if data is None:
        return f"({getattr(block, 'name', 'a resource')}: {getattr(block, 'uri', '')})"
    if kind in ("image/png", "image/jpeg", "image/gif", "image/webp"):
        return Image(base64.b64decode(data), kind)
    if kind == "application/pdf":
        return File(base64.b64decode(data), kind)
    return f"({len(data) * 3 // 4} bytes of {kind or 'an unknown kind'}, which a model cannot read)"
