"""The names that models see of the tools of servers: no two are alike, and none looks like another server's.

They depend on the servers that are described and on nothing else: not on which of them start, nor on when.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter

_MOST = 64  # characters that providers take


class ToolNames:
    """The names of the tools of some servers.

    A name is that of the server, `_` and that of the tool. Where a server's name begins with another one's and `_`,
    as `a_b` does with `a`, its tools could be taken for the other server's, by rules such as `a_*` too: it has `-` for
    each `_`. And the other server's tools that seem to be of this one, as `b_c` of `a` would, have a hash before them.

    Args:
        servers: the names of all servers.
    """

    def __init__(self, servers: list[str]) -> None:
        self._plain = {server: plain_name(server) for server in servers}
        self.prefixes: dict[str, str] = {}
        alike = Counter(self._plain.values())
        for server, plain in self._plain.items():
            is_first = alike[plain] == 1 or server == plain
            if is_first and not self._is_inside(plain):
                self.prefixes[server] = plain
        for server in sorted(set(servers) - set(self.prefixes)):
            self.prefixes[server] = self._other_prefix(server)

    def of(self, server: str, tool: str, is_doubtful: bool = False) -> str:
        """The name of a server's tool.

        Args:
            server: the server's name.
            tool: the tool's.
            is_doubtful: whether another tool of the server has the same name in the letters that providers take.
        """
        prefix = self.prefixes[server]
        hashed = _hash(f"{server}_{tool}")
        name = f"{prefix}_{plain_name(tool)}"
        if len(name) > _MOST or (is_doubtful and tool != plain_name(tool)):
            name = f"{name[: _MOST - 9]}_{hashed}"
        if any(name.startswith(f"{other}_") for other in self._others(server)):
            name = f"{prefix[: _MOST - 10]}_{hashed}_{plain_name(tool)}"[:_MOST]
        return name

    def renamed(self) -> list[str]:
        """What the person is told of servers whose tools are named otherwise than the servers."""
        found = []
        for server, prefix in sorted(self.prefixes.items()):
            if prefix != self._plain[server]:
                why = "the names of its tools could be taken for those of another server"
                found.append(f"{why}, so the tools of {server!r} begin with {prefix!r} and `_`; rules name them so")
        return found

    def _others(self, server: str) -> set[str]:
        """What names of other servers' tools begin with, or would if those were alone."""
        others = {one for name in self._plain if name != server for one in (self._plain[name], self.prefixes[name])}
        return others - {self.prefixes[server]}

    def _is_inside(self, plain: str) -> bool:
        """Whether tools that begin with this seem to be those of another server."""
        return any(plain.startswith(f"{other}_") for other in self._plain.values() if other != plain)

    def _other_prefix(self, server: str) -> str:
        """A beginning for the tools of a server whose own name is another's, or begins with it."""
        dashed = self._plain[server].replace("_", "-")
        taken = {*self.prefixes.values(), *self._plain.values()}
        if dashed in taken or any(one.startswith(f"{dashed}_") for one in taken):
            return f"{dashed}-{_hash(server)}"
        return dashed


def tool_name(server: str, tool: str) -> str:
    """The name of a tool whose server is the only one."""
    return ToolNames([server]).of(server, tool)


def plain_name(name: str) -> str:
    """A name in the letters that providers take."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
