"""Reads which MCP servers there are, from options and from a `.mcp.json`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from connectagent import ConfigError

Server = dict[str, Any]
_KEYS = {"command", "args", "env", "cwd", "url", "headers", "type", "start_s", "timeout_s", "trusted", "only", "mode"}
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def read_servers(servers: Mapping[str, Any] | None, file: str | os.PathLike[str] | None) -> list[Server]:
    """The servers that are described, each with its `name`.

    Raises:
        ConfigError: the file cannot be read, or a server is not described well.
    """
    found: dict[str, Any] = {}
    if file is not None:
        try:
            found |= json.loads(Path(file).read_text(encoding="utf-8-sig")).get("mcpServers", {})
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise ConfigError(f"mcp: {os.fspath(file)!r} cannot be read as a .mcp.json: {error}") from error
    found |= servers or {}
    return [_checked(name, server) for name, server in found.items()]


def _checked(name: str, server: Any) -> Server:
    if not isinstance(server, Mapping) or ("command" in server) == ("url" in server):
        raise ConfigError(f"mcp: the server {name!r} is a table with either a command or a url, not {server!r:.100}")
    if unknown := set(server) - _KEYS:
        raise ConfigError(f"mcp: {name!r} has unknown keys: {sorted(unknown)}. Known: {', '.join(sorted(_KEYS))}")
    if server.get("type") == "sse":
        raise ConfigError(f"mcp: {name!r}: SSE servers are not supported; streamable HTTP and stdio are")
    found = {"name": name, **{key: _filled(value, name) for key, value in server.items() if key != "type"}}
    if isinstance(found.get("only"), str):
        found["only"] = [found["only"]]
    if not isinstance(found.get("only", []), list):
        raise ConfigError(f"mcp: {name!r}: only is the name of a tool or a list of names, not {found['only']!r:.100}")
    if not isinstance(found.get("trusted", False), bool):  # the text "false" would be true
        raise ConfigError(f"mcp: {name!r}: trusted is true or false, not {found['trusted']!r:.100}")
    return found


def _filled(value: Any, name: str) -> Any:
    """A value with `${VAR}` and `${VAR:-default}` replaced by environment variables."""
    if isinstance(value, Mapping):
        return {key: _filled(inner, name) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(inner, name) for inner in value]
    return _VARIABLE.sub(lambda found: _variable(found, name), value) if isinstance(value, str) else value


def _variable(found: re.Match[str], name: str) -> str:
    value = os.environ.get(found[1], found[2])
    if value is None:
        raise ConfigError(f"mcp: {name!r} needs the environment variable {found[1]}, which is not set")
    return value
