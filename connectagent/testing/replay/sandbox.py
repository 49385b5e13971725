"""The sandbox of replay: plugins write into a copy of `.co`, and a script stops where it would run its agent."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from connectagent.agents.agent import Agent
from connectagent.agents.runtime import Runtime, for_new_agents
from connectagent.settings import co_folder, overrides

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
    real, before = co_folder(), overrides.get("dir")
    with tempfile.TemporaryDirectory(prefix="connectagent-replay-") as folder:
        copy = Path(folder) / "co"
        if real.is_dir():
            shutil.copytree(real, copy, ignore=_top_level(real), symlinks=True)
        overrides["dir"] = str(copy)
        try:
            yield
        finally:
            overrides.pop("dir") if before is None else overrides.update(dir=before)


def _top_level(root: Path) -> Any:
    return lambda folder, names: [name for name in names if name in _OWN] if Path(folder) == root else []


@contextlib.contextmanager
def only_made() -> Iterator[None]:
    """Meanwhile agents are made, and none runs.

    Raises:
        WouldRun: a turn was to begin, or a tool to run.
    """

    def stop(agent: Agent, what: str, action: Callable[[], Any]) -> Any:
        raise WouldRun(agent)

    with for_new_agents(Runtime(run=stop)):
        yield
