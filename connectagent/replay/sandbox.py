"""The sandbox of replay: plugins write into a copy of `.co`, and a script stops where it would run its agent."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from connectagent.agents.agent import Agent
from connectagent.agents.runtime import Runtime, default, for_new_agents
from connectagent.settings import co_folder, override

_OWN = ("evals", "logs", "blobs")  # the records' own folders, which may be large, and which no handler needs


class WouldRun(BaseException):
    """A script came to where it runs its agent.

    Attributes:
        agent: the agent.
    """

    def __init__(self, agent: Agent) -> None:
        super().__init__(f"the script runs agent {agent.name!r}")
        self.agent = agent


@contextlib.contextmanager
def sandboxed() -> Iterator[None]:
    """Meanwhile `.co` is a copy, without its records: plugins find there what they stored, and change nothing."""
    real = co_folder()
    with tempfile.TemporaryDirectory(prefix="connectagent-replay-") as folder:
        copy = Path(folder) / "co"
        if real.is_dir():
            shutil.copytree(real, copy, ignore=_not_copied(real))
        with override("dir", str(copy)):
            yield


@contextlib.contextmanager
def offline(live_tools: bool = False) -> Iterator[None]:
    """Meanwhile there is no network, unless tools run, and plugins write into a copy of `.co`.

    Args:
        live_tools: whether tools run, so that connections are allowed.
    """
    from connectagent.replay.network import no_network

    with sandboxed(), contextlib.nullcontext() if live_tools else no_network():
        yield


def _not_copied(root: Path) -> Any:
    """Records, pipes and links to folders. A link to a file is copied as the file, which would else be changed."""

    def left_out(folder: str, name: str) -> bool:
        path = os.path.join(folder, name)
        is_folder = os.path.isdir(path) and not os.path.islink(path)
        return (Path(folder) == root and name in _OWN) or not (is_folder or os.path.isfile(path))

    return lambda folder, names: [name for name in names if left_out(folder, name)]


@contextlib.contextmanager
def only_made() -> Iterator[None]:
    """Meanwhile agents are made, and none runs.

    Raises:
        WouldRun: a turn was to begin, or a tool to run.
    """

    def stop(agent: Agent, what: str, action: Callable[[], Any]) -> Any:
        raise WouldRun(agent)

    with for_new_agents(Runtime(run=stop, takes=default().takes)):
        yield
