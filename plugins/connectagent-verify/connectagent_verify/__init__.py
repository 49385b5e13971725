"""Runs a check when the agent says that it is done; what fails goes back to the model.

The check is a tool, `verify`, which the model may call by itself too. So guards are asked about it, a resumed turn does
not repeat it, and a dry run or a replay does not run it. The options are on `Verify`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any, ClassVar

from connectagent import ConfigError, Continue, PluginError, on_agent_ready, on_complete, tool

if TYPE_CHECKING:
    from connectagent import Agent

_PASSED, _FAILED = "passed", "failed"


class Verify:
    """The plugin: `Agent(plugins=[("verify", {"check": "pytest -q"})])`.

    Args:
        check: a command, as a line for the shell or as a list without one, which passes with the exit code 0; or a
            function of the agent's answer, which passes unless it returns False, returns a text or raises.
        attempts: how often in a turn a failure goes back to the model.
        timeout_s: seconds after which a command is killed.
        output: how many characters of a command's output the model reads, counted from the end.
        cwd: the folder in which a command runs; None for the current one.
        note: whether a result that did not pass says so in its last line.

    Raises:
        ConfigError: an option cannot be used.
    """

    changes = ("tools", "state", "turn?", "result?")

    name: ClassVar[str] = "verify"

    def __init__(
        self,
        check: str | Sequence[str] | Callable[[str], Any],
        attempts: int = 3,
        timeout_s: float = 300,
        output: int = 4000,
        cwd: str | None = None,
        note: bool = True,
    ) -> None:
        if not callable(check) and (not check or not all(isinstance(word, str) for word in check)):
            raise ConfigError(f"verify: check is a command, a list of words or a function, not {check!r}")
        for option, value in (("attempts", attempts), ("timeout_s", timeout_s), ("output", output)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ConfigError(f"verify: {option} is a number from 0 up, not {value!r}")
        self.check, self.attempts, self.timeout_s, self.output = check, attempts, timeout_s, output
        self.cwd, self.note = cwd, note

    @on_agent_ready
    def add(self, agent: Agent) -> None:
        """Give the agent the tool."""
        if self._is_inherited(agent):
            return

        marked = tool(name=self.name, idempotent=True)  # it runs again where a process was killed in it

        def of_answer(answer: str) -> str:
            """Check an answer, as it is checked when you are done."""
            return self._run_function(answer)

        async def of_work() -> str:
            """Check your work, as it is checked when you are done."""
            return await self._run_command()

        agent.add_tool(marked(of_answer if callable(self.check) else of_work))

    @on_complete
    def judge(self, agent: Agent, result: str, outcome: str) -> Continue | str | None:
        """Check an answer; what failed goes back to the model."""
        if outcome != "answered" or agent.tools.get(self.name) is None or self._is_inherited(agent):
            return None
        entry = agent.execute_tool(self.name, {"answer": result} if callable(self.check) else {})
        found = str(entry.get("result"))
        # Agents below share the state, and what they set at once is merged by key.
        key = self.name if agent.parent is None else f"{self.name}:{agent.name}"
        notes = agent.state.get(key) or {}
        failures = notes.get("failures", 0) if notes.get("turn") == agent.session["turn"] else 0
        passed = entry.get("status") == "success" and found.startswith(_PASSED)
        failed = entry.get("status") == "success" and found.startswith(_FAILED)
        agent.state[key] = {"turn": agent.session["turn"], "failures": failures + failed, "passed": passed}
        if failed and failures < self.attempts:
            return Continue(f"You are not done: the check {found}")
        if passed or not self.note:
            return None
        return f"{result}\n\n(not verified: {found.partition(chr(10))[0]})"

    def _is_inherited(self, agent: Agent) -> bool:
        """Whether the plugin is that of an agent above, whose result is checked in the end."""
        if agent.parent is None:
            return False
        with contextlib.suppress(PluginError):
            return agent.parent.plugin(self.name) is self
        return False

    def _run_function(self, answer: str) -> str:
        assert callable(self.check)
        try:
            found = self.check(answer)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        if found is None or found is True:
            return _PASSED
        return f"{_FAILED}: {'the answer is not accepted' if found is False else found}"

    async def _run_command(self) -> str:
        """Run the command in a process group of its own, which ends with it, and where the turn is cancelled."""
        with tempfile.TemporaryFile() as written:  # not a pipe, which may fill, or be held open by others
            process = subprocess.Popen(
                self.check,  # type: ignore[arg-type]
                shell=isinstance(self.check, str),
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            end, pause_s = time.monotonic() + self.timeout_s, 0.002
            try:
                while (code := process.poll()) is None and time.monotonic() < end:
                    await asyncio.sleep(pause_s)
                    pause_s = min(1.3 * pause_s, 0.05)
            finally:  # after Ctrl-C too
                _kill(process)
            how = _PASSED if code == 0 else f"{_FAILED}: exit code {code}"
            if code is None:
                how = f"{_FAILED}: it still ran after {self.timeout_s:g} s"
            return f"{how}\n{self._end_of(written)}".strip()

    def _end_of(self, written: IO[bytes]) -> str:
        size, most = written.seek(0, os.SEEK_END), int(self.output)
        written.seek(max(0, size - 4 * most))  # a character has at most four bytes
        text = written.read().decode("utf-8", "replace").strip()
        cut = len(text) > most or size > 4 * most
        return f"(the end of {size} bytes)\n{text[-most:] if most else ''}" if cut else text


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, and what it started."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
    process.wait()
