"""Runs tools in a process of their own, with limits of time, memory, files and network."""

from __future__ import annotations

import copy
import fnmatch
import os
from collections.abc import Iterable, Sequence
from typing import ClassVar

from connectagent import Agent, ConfigError, Tool, ToolCall, ToolRejected, before_each_tool, on_agent_ready
from connectagent_sandbox.confined import Confined, SandboxError, missing, why_not
from connectagent_sandbox.limits import Limits

__all__ = ["Sandbox", "SandboxError", "why_not"]


class Sandbox:
    """The plugin: `Agent(plugins=[Sandbox(["run_*"])])`.

    Args:
        tools: names of tools, or patterns such as `run_*`; one, or several.
        timeout_s: how long a call may take.
        memory_mb: how much memory each of its processes may take.
        output_mb: how large a file that it writes, and its result, may be.
        read: files and folders that it may read, beside Python, the system's programs and the folders of `sys.path`.
        write: files and folders that it may read and write.
        network: whether it may use the network.
        env: names of environment variables that it is given.
        unconfined: whether to do without bubblewrap: then only time, memory and sizes are limited.
        container: the image of a container to use in place of bubblewrap, with the same Python and `python3`.
        docker: the program that runs containers, `docker` or `podman`.
    """

    name: ClassVar[str] = "sandbox"

    def __init__(
        self,
        tools: str | Sequence[str],
        timeout_s: float = 60,
        memory_mb: float = 1000,
        output_mb: float = 20,
        read: str | Sequence[str] = (),
        write: str | Sequence[str] = (),
        network: bool = False,
        env: str | Sequence[str] = (),
        unconfined: bool = False,
        container: str | None = None,
        docker: str = "docker",
    ) -> None:
        self.tools = _texts("tools", tools)
        if not self.tools:
            raise ConfigError("sandbox: tools is a list of names or patterns, such as ['run_*']")
        if unconfined and container is not None:
            raise ConfigError("sandbox: it is unconfined or in a container, not both")
        if os.name != "posix":
            raise ConfigError("sandbox: it needs Linux: bubblewrap or docker, and the system's limits for a process")
        self.limits = Limits(
            timeout_s, memory_mb, output_mb, _texts("read", read), _texts("write", write), network,
            _texts("env", env), unconfined, container, docker,
        )  # fmt: skip

    @on_agent_ready
    def confine(self, agent: Agent) -> None:
        """Put the functions of the tools behind a process of their own.

        Raises:
            ConfigError: a tool of that name takes the agent or a resource, which cannot be given to another process.
        """
        found = list(agent.tools)
        if not any(self._is_meant(tool.name) for tool in found):
            return
        for tool in found:
            agent.tools.remove(tool.name)
        agent.tools.add([self._confined(tool) if self._is_meant(tool.name) else tool for tool in found])

    @before_each_tool
    def check(self, agent: Agent, tool_call: ToolCall) -> None:
        """Refuse what is to be confined and is not: there is no sandbox, or the tool was added later.

        Raises:
            ToolRejected: the tool would run unconfined.
        """
        tool = agent.tools.get(tool_call.name)
        if tool is None or tool.function is None or not self._is_meant(tool.name):
            return
        if not isinstance(tool.function, Confined):
            raise ToolRejected(f"{tool.name} was added after the sandbox was set up, so it would run outside of it")
        if problem := missing(self.limits):
            raise ToolRejected(f"{tool.name} runs in a sandbox only, and there is none: {problem}")

    def _is_meant(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.tools)

    def _confined(self, tool: Tool) -> Tool:
        if tool.function is None or isinstance(tool.function, Confined):
            return tool
        if tool.takes_agent or tool.resources:
            raise ConfigError(f"sandbox: {tool.name!r} takes the agent or a resource, which stay in this process")
        confined = copy.copy(tool)
        confined.function = Confined(tool.function, tool.name, self.limits)
        return confined


def _texts(option: str, value: str | Sequence[str]) -> tuple[str, ...]:
    """An option's texts; one text is one of them, and not its letters, of which `/` would be the whole machine.

    Raises:
        ConfigError: it is something else, or a text is empty.
    """
    found = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (None,)
    if not all(isinstance(one, str) and one for one in found):
        raise ConfigError(f"sandbox: {option} is a text or a list of texts, none empty, not {value!r}")
    return found
