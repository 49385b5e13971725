"""Runs a command with JSON on its standard input, and reads what it says."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from connectagent import arguments_text, repeated_key

_MOST = 1_000_000  # bytes of output that are read
_TOO_MUCH = 50_000_000  # bytes after which a command is killed
_CONTEXT = 10_000  # characters for the model
_UNNAMED = "a hook blocked it, without a reason"
_PLACEHOLDER = "${CLAUDE_PROJECT_DIR}"
# Runs the words that it is given and does not wait for them; the background of a shell would have no input otherwise.
_BACKGROUND = '"$0" "$@" <&0 >/dev/null 2>&1 &'


@dataclass
class Outcome:
    """What came of a hook.

    Args:
        code: the exit code; None where it did not end by itself.
        out, err: what it wrote.
        problem: why it does not count, or None.
    """

    code: int | None = None
    out: str = ""
    err: str = ""
    problem: str | None = None

    @property
    def failure(self) -> str | None:
        """Why it says nothing that can be relied on, or None."""
        if self.code == 2:
            return None
        if self.data() is not None:
            repeated = repeated_key(self.out)  # it may say both yes and no
            return None if repeated is None else f"its JSON has the key {repeated!r} twice"
        if self.problem is None and self.out.lstrip("\ufeff \t\r\n").startswith("{"):
            return "its JSON cannot be read"
        return self.problem

    def data(self) -> dict[str, Any] | None:
        """The JSON object that it wrote, whatever its exit code; None for plain text, and where it did not end."""
        if self.code is not None and self.code >= 0 and self.out.lstrip().startswith("{"):
            with contextlib.suppress(ValueError, RecursionError):
                found = json.loads(self.out)
                return found if isinstance(found, dict) else None
        return None


@dataclass
class Decision:
    """What the hooks of one event decided together.

    Attributes:
        block: why it must not happen, or what the model is to read about it.
        permission: `deny` before `ask` before `allow`, and the reason.
        updated: the tool's new input.
        output: the tool's new output, in a tuple.
        context: texts for the model.
        stop: why the agent is to stop.
        interrupt: whether a refused permission ends the turn.
    """

    block: str | None = None
    permission: tuple[str, str] | None = None
    updated: dict[str, Any] | None = None
    output: tuple[Any] | None = None
    context: list[str] = field(default_factory=list)
    stop: str | None = None
    interrupt: bool = False

    def take(self, outcome: Outcome, plain: bool) -> None:
        """Add what one hook said.

        Args:
            outcome: what came of it.
            plain: whether plain text is for the model.
        """
        said = outcome.data()
        if said is not None:
            self._take_json(said)
        if outcome.code == 2:  # whatever its JSON says, which may have the reason
            denied = self.permission[1] if self.permission is not None and self.permission[0] == "deny" else ""
            self.block = self.block or denied or clipped(outcome.err.strip()) or _UNNAMED
        elif said is None and plain and outcome.failure is None and outcome.out.strip():
            self.context.append(clipped(outcome.out.strip()))

    def _take_json(self, said: dict[str, Any]) -> None:
        if said.get("continue") is False:
            self.stop = self.stop or clipped(str(said.get("stopReason") or "a hook stopped the agent"))
        reason = clipped(str(said.get("reason") or ""))
        if said.get("decision") in ("block", "deny"):
            self.block = self.block or reason or _UNNAMED
        elif said.get("decision") in ("approve", "allow"):
            self._permit("allow", reason)
        specific = said.get("hookSpecificOutput")
        self._take_specific(specific if isinstance(specific, dict) else {})

    def _take_specific(self, said: dict[str, Any]) -> None:
        if isinstance(said.get("permissionDecision"), str):
            self._permit(said["permissionDecision"], clipped(str(said.get("permissionDecisionReason") or "")))
        request = said.get("decision")
        if isinstance(request, dict):
            self._permit(str(request.get("behavior")), clipped(str(request.get("message") or "")))
            self.interrupt = self.interrupt or request.get("interrupt") is True
            said = {**request, **said}
        if isinstance(said.get("updatedInput"), dict):
            self.updated = said["updatedInput"]
        for key in ("updatedMCPToolOutput", "updatedToolOutput"):
            if said.get(key) is not None:
                self.output = (said[key],)
        if isinstance(said.get("additionalContext"), str) and said["additionalContext"].strip():
            self.context.append(clipped(said["additionalContext"]))

    def _permit(self, decision: str, reason: str) -> None:
        rank = {"allow": 0, "defer": 1, "ask": 1, "deny": 2}
        if decision in rank and (self.permission is None or rank[decision] > rank[self.permission[0]]):
            self.permission = ("ask" if decision == "defer" else decision, reason)


def clipped(text: str) -> str:
    """A text for the model, which is not too long."""
    return text if len(text) <= _CONTEXT else f"{text[:_CONTEXT]}\n(... of {len(text)} characters)"


def run_command(
    line: str | tuple[str, ...], payload: dict[str, Any], folder: Path, timeout_s: float, in_background: bool = False
) -> Outcome:
    """Run a command in a process group of its own, which is killed if it takes too long.

    Args:
        line: a line for the shell, or words without one.
        payload: what it is given.
        folder: the project's folder.
        timeout_s: after how many seconds it is killed.
        in_background: whether nobody waits for it.
    """
    variables = {"CLAUDE_PROJECT_DIR": str(folder)}
    words = _words(line, str(folder), in_background)
    with tempfile.TemporaryFile() as given:  # not a pipe, which would fill where nobody reads it
        given.write(arguments_text(payload).encode())
        given.seek(0)
        try:
            process = subprocess.Popen(
                words,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **variables},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return Outcome(problem=f"it cannot be started: {error}")
        with process:
            return _read(process, time.monotonic() + timeout_s, timeout_s)


def _words(line: str | tuple[str, ...], folder: str, in_background: bool) -> list[str]:
    """What is started: a shell with a line, or a program with its words, in which only the placeholder is replaced."""
    shell = shutil.which("bash") or "/bin/sh"
    if isinstance(line, str):
        return [shell, "-c", _BACKGROUND, shell, "-c", line] if in_background else [shell, "-c", line]
    words = [word.replace(_PLACEHOLDER, folder) for word in line]
    return [shell, "-c", _BACKGROUND, *words] if in_background else words


def _read(process: subprocess.Popen[bytes], until: float, timeout_s: float) -> Outcome:
    """Wait for a process, and read what it writes meanwhile; what it leaves running is not waited for."""
    texts: dict[Any, bytes] = {process.stdout: b"", process.stderr: b""}
    try:
        too_much = _take_output(process, texts, until)
        while not too_much and process.poll() is None and time.monotonic() < until:  # it has closed its output
            time.sleep(0.01)
        is_late = process.poll() is None
    finally:
        if process.poll() is None:  # after Ctrl-C too
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
            process.wait()
    out, err = (text.decode("utf-8", "replace").replace("\0", "") for text in texts.values())
    if too_much or is_late:
        return Outcome(None, out, err, "it wrote too much" if too_much else f"it still ran after {timeout_s:g} s")
    code = process.returncode
    return Outcome(code, out, err, None if code in (0, 2) else f"exit code {code}")


def _take_output(process: subprocess.Popen[bytes], texts: dict[Any, bytes], until: float) -> bool:
    """Read until a process has ended or closed its output, or it is late; whether it wrote too much."""
    read, ended = 0, False
    with selectors.DefaultSelector() as selector:
        for pipe in texts:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map() and (ended or time.monotonic() < until):
            ready = selector.select(0 if ended else min(0.05, max(0.0, until - time.monotonic())))
            for key, _ in ready:
                piece = os.read(key.fd, 65_536)
                texts[key.fileobj] = (texts[key.fileobj] + piece)[:_MOST]
                read += len(piece)
                if not piece:
                    selector.unregister(key.fileobj)
            if read > _TOO_MUCH or (ended and not ready):
                break
            ended = process.poll() is not None
    return read > _TOO_MUCH
