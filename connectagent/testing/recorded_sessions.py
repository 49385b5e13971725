"""Recorded sessions in tests: `replayed` checks that they still give the same, `Recorded` answers from them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, overload

from connectagent.agents.agent import Agent
from connectagent.agents.resume import is_record
from connectagent.errors import ConfigError
from connectagent.hooks.discovery import handlers_of
from connectagent.output.masking import refresh
from connectagent.records.blobs import blob_folder, restored
from connectagent.records.lines import entry_of
from connectagent.records.paths import safe_name
from connectagent.records.write import new_log
from connectagent.records.yaml_lines import json_line
from connectagent.replay.network import no_network
from connectagent.replay.outcome import Replay
from connectagent.replay.playing import agent_from_record
from connectagent.replay.recording import Recording
from connectagent.replay.replaying import Replaying, replay
from connectagent.replay.sandbox import sandboxed
from connectagent.settings import override, setting
from connectagent.settings.allowed import OFF
from connectagent.testing.recorder import HookRecorder


class Replayed(Replay):
    """A `Replay`, with the hooks that fired.

    Attributes:
        hooks: a `HookRecorder` that was listed behind the agent's own plugins.
    """

    hooks: HookRecorder

    def __repr__(self) -> str:
        return f"Replayed({self.record.name!r}, same={self.same}, divergence={str(self.divergence)!r})"


def replayed(
    record: str | os.PathLike[str],
    agent: Agent | None = None,
    *,
    plugins: object = None,
    live_tools: bool = False,
    **agent_options: Any,
) -> Replayed:
    """Play a record with today's handlers, without a network: `assert replayed("refund.yaml", agent=agent).same`.

    Args:
        record: the record's path.
        agent: whose handlers, tools and prompts they are; it is changed for good. Without it an agent is made from the
            record.
        plugins: plugins of that one.
        live_tools: whether tools run; they may use the network.
        agent_options: what else `Agent` takes, for the agent that is made from the record.

    Raises:
        ConfigError: the file is not a record.
        TypeError: both an agent and what one is to be made of were given.
    """
    if agent is not None and (plugins is not None or agent_options):
        given = ", ".join(["plugins"] * (plugins is not None) + sorted(agent_options))
        raise TypeError(f"replayed() takes agent=, or what an agent is made of ({given}), not both")
    recording, hooks = Recording(is_record(record)), HookRecorder()
    with sandboxed(), nullcontext() if live_tools else no_network():
        agent = agent_from_record(recording, plugins, **agent_options) if agent is None else agent
        agent.hooks.add(*handlers_of(hooks))
        played = replay(recording, agent, live_tools=live_tools)
    result = Replayed(**{name: getattr(played, name) for name in Replay.__dataclass_fields__})
    result.hooks = hooks
    return result


class Recorded:
    """The fixture `recorded`: `agent = recorded(make_agent)`.

    The agent's model and tools answer from the record, turn by turn, as the test asks. A request or a call that is
    not as it was then stops the test at once, and in the end everything must have been the same. With
    `pytest --record` model and tools are live, and the record is written, with its secrets masked.

    Args:
        folder: where the records are.
        live: whether to record.
        test: the name of the test, for records that are not given a name.

    Attributes:
        failed: whether the test has failed already: then nothing is written or compared.
    """

    def __init__(self, folder: Path, live: bool, test: str = "test") -> None:
        self.folder, self.live, self.test = folder, live, test
        self.failed = False
        self._open: list[tuple[Path, Agent, Replaying | None]] = []
        self._makers: dict[Path, Callable[[], Agent]] = {}

    @overload
    def __call__(self, name: str, make_agent: Callable[[], Agent]) -> Agent: ...

    @overload
    def __call__(self, name: Callable[[], Agent]) -> Agent: ...

    def __call__(self, name: str | Callable[[], Agent], make_agent: Callable[[], Agent] | None = None) -> Agent:
        """The agent that `make_agent()` makes, for the record of this name, or of the test's name.

        Raises:
            FileNotFoundError: there is no such record, and none is being written.
        """
        make = make_agent if isinstance(name, str) else name
        if make is None:
            raise TypeError("recorded() takes a function that makes the agent, and before it the record's name if any")
        number = f"-{len(self._open) + 1}" if self._open else ""
        path = self.folder / (name if isinstance(name, str) else f"{safe_name(self.test)}{number}.yaml")
        if not self.live and not path.is_file():
            raise FileNotFoundError(f"there is no record {path}; write it with: pytest --record")
        agent, playing = make(), None
        self._makers[path] = make
        if self.live:
            agent.log = new_log(recording=True)
        else:
            playing = Replaying(Recording(path), agent)
            playing.by_turns()
        self._open.append((path, agent, playing))
        return agent

    def blamed(self) -> list[str]:
        """For each record that was played: without which plugins it plays as it was."""
        from connectagent.testing.bisection.replays import blamed

        played = [path for path, _, playing in self._open if playing is not None]
        return [blamed(path, self._makers[path]) for path in played]

    def finish(self) -> None:
        """Write the records, or hold what was played against them.

        Raises:
            AssertionError: something differs; the message says what.
        """
        for path, agent, playing in self._open:
            if playing is None:
                keep_record(agent, path)
                continue
            played, turns = playing.out, len(playing.recording.turns)
            lists = ("rejected", "stand_ins", "errors", "changed", "not_recorded", "hook_errors")
            other = [f"{key}: {value}" for key in lists for value in getattr(played, key)]
            if played.divergence is not None or other:
                first = [str(played.divergence)] if played.divergence else []
                hint = "if it is meant: pytest --record"
                raise AssertionError("\n".join([f"{path.name} is not replayed as it was; {hint}", *first, *other]))
            if len(played.results) < turns:
                raise AssertionError(f"{path.name} has {turns} turns, and the test made {len(played.results)}")


def keep_record(agent: Agent, path: Path) -> None:
    """Copy the record of an agent's session to a file of a repository: what differs with each run is made the same.

    Times are 0, the script and the plugins' options and hashes are left out, files of handlers are relative to the
    record's folder, and long texts are whole. The file is replaced at once, or not at all.

    Raises:
        AssertionError: the agent had no turn.
    """
    record = agent.record
    if record is None:
        raise AssertionError(f"the agent had no turn, so there is nothing to write to {path}")
    lines = [_kept_line(line, blob_folder(record), path.parent) for line in record.read_text("utf-8").splitlines()]
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, made = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(fd, "w", encoding="utf-8", newline="\n") as file:
            file.write("".join(f"{line}\n" for line in lines if line is not None))
        os.replace(made, path)
    except BaseException:
        os.unlink(made)
        raise


def _kept_line(line: str, blobs: Path, folder: Path) -> str | None:
    """A line of a record as a fixture has it; None where it has none."""
    if line.startswith("  - {"):
        entry = restored(entry_of(line), blobs)
        for key in ("timestamp", "started", "duration_ms"):
            if key in entry:
                entry[key] = 0.0
        if entry.get("timing"):
            entry["timing"] = 1.0
        if os.path.isabs(str((entry.get("by") or {}).get("file"))):
            with suppress(ValueError):  # it is on another drive
                entry["by"]["file"] = Path(os.path.relpath(entry["by"]["file"], folder)).as_posix()
        return f"  - {json_line(entry)}"
    key, colon, value = line.partition(": ")
    if key.strip() in ("script", "id", "mark", "owner", "plugin_sources"):
        return None
    if key == "started":
        return "started: 2000-01-01T00:00:00Z"
    if key.strip() == "duration_ms":
        return f"{key}: 0"
    if "sha256:" in value:
        value = json_line(restored(json.loads(value), blobs))
    return f"{key}{colon}{value}"


@contextmanager
def recording(folder: Path, live: bool, test: str) -> Iterator[Recorded]:
    """Hold agents against the records of a folder, without a network, or write them; see `Recorded`."""
    recorded = Recorded(folder, live, test)
    with sandboxed(), masking(), nullcontext() if live else no_network():
        yield recorded
        if not recorded.failed:
            recorded.finish()


@contextmanager
def masking() -> Iterator[None]:
    """Mask secrets, although the settings say otherwise: what is written meanwhile goes to other people."""
    is_off = False
    with suppress(ConfigError):  # the project asks for it, and the person has not allowed it
        is_off = str(setting("mask", overridden=False)).strip().lower() in OFF
    try:
        with override("mask", True) if is_off else nullcontext():
            refresh()
            yield
    finally:
        refresh()
