"""Runs a function in a process of its own, inside bubblewrap or a container."""

from __future__ import annotations

import asyncio
import base64
import builtins
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import ModuleType
from typing import IO, Any

from connectagent import ConnectAgentError, File, Image
from connectagent_sandbox.container import remove, run_line, why_no_container
from connectagent_sandbox.limits import Limits

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/ssl", "/etc/localtime")
_NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ca-certificates")
_CHILD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child.py")
_BARE = ("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL")


class SandboxError(ConnectAgentError):
    """The sandbox cannot be had, or it ended the call: a limit was reached, or the process died."""


@functools.cache
def why_not() -> str | None:
    """Why bubblewrap cannot be used here; None where it can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap (bwrap) is not installed"
    command = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", *_BARE, "true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not start: {error}"
    return f"bubblewrap does not work here: {done.stderr.strip()}" if done.returncode else None


def missing(limits: Limits) -> str | None:
    """Why there is no sandbox as the limits want it; None where there is one, or none is wanted."""
    if limits.container is not None:
        return why_no_container(limits.docker, limits.container)
    return None if limits.unconfined else why_not()


class Confined:
    """A function that runs in a process of its own, each time that it is called.

    It is awaited, since what is awaited can be cancelled: a thread that waits is left behind, and its process with it.
    """

    def __init__(self, function: Callable[..., Any], name: str, limits: Limits) -> None:
        self.function, self.name, self.limits = function, name, limits

    async def __call__(self, /, **arguments: Any) -> Any:
        if problem := missing(self.limits):
            raise SandboxError(f"{self.name} was not run: {problem}")
        try:
            call = _pickled((self.function, arguments))
        except Exception as error:
            raise SandboxError(f"{self.name} cannot be given to another process: {error}") from error
        mega = 1_000_000
        limits = {
            "RLIMIT_AS": int(self.limits.memory_mb * mega),
            "RLIMIT_FSIZE": int(self.limits.output_mb * mega),
            "RLIMIT_CPU": int(self.limits.timeout_s) + 1,
            "RLIMIT_CORE": 0,
        }
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            first = {"python": sys.version_info[:2], "limits": limits}
            given.write(json.dumps(first).encode() + b"\n" + call)
            given.seek(0)
            code = await self._run(given, out, errors)
            if out.seek(0, os.SEEK_END) >= int(self.limits.output_mb * mega):
                raise SandboxError(f"{self.name} returned more than {self.limits.output_mb:g} MB, its limit")
            out.seek(0)
            return self._outcome(out.read(), code, errors)

    async def _run(self, given: IO[bytes], out: IO[bytes], errors: IO[bytes]) -> int:
        name, limits = f"connectagent-{uuid.uuid4().hex}", self.limits
        command, environment = [sys.executable, "-P", _CHILD], self._environment()
        if limits.container is not None:  # its client runs with the program's own environment
            command, environment = run_line(limits, limits.container, name, _CHILD, self._folder(limits.read)), None
        elif not limits.unconfined:
            command = [*self._bubble(), *command]
        process = subprocess.Popen(
            command, stdin=given, stdout=out, stderr=errors, env=environment, start_new_session=True
        )
        end, pause_s = time.monotonic() + limits.timeout_s, 0.002
        try:
            while (code := process.poll()) is None:
                if time.monotonic() > end:
                    raise SandboxError(f"{self.name} was killed: it took longer than {limits.timeout_s:g} s")
                await asyncio.sleep(pause_s)
                pause_s = min(1.3 * pause_s, 0.05)
            return code
        finally:  # Ctrl-C and cancelling too; and what a finished call has left running
            if limits.container is not None and process.poll() is None:
                await asyncio.to_thread(remove, limits.docker, name)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _outcome(self, text: bytes, code: int, errors: IO[bytes]) -> Any:
        try:
            found = json.loads(text)
            if "error" not in found:
                return decoded(found["value"])
            kind, message = str(found["error"]), str(found["message"])
        except (ValueError, KeyError, TypeError, RecursionError):
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - 500))
            said = errors.read().decode(errors="replace").strip()
            raise SandboxError(f"{self.name} ended without a result, with {code}. {said}".strip()) from None
        known = getattr(builtins, kind, None)
        if kind == "MemoryError":
            raise SandboxError(f"{self.name} needed more than {self.limits.memory_mb:g} MB of memory")
        if isinstance(known, type) and issubclass(known, Exception) and kind not in _SPECIAL:
            raise known(message)
        raise SandboxError(f"{kind}: {message}")

    def _environment(self) -> dict[str, str] | None:
        kept = {name: os.environ[name] for name in self.limits.env if name in os.environ}
        path = os.pathsep.join(os.path.abspath(one) for one in sys.path)
        own = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONPATH": path}
        return own | {"PYTHONDONTWRITEBYTECODE": "1"} | kept

    def _bubble(self) -> list[str]:
        limits = self.limits
        code = [sys.prefix, sys.base_prefix, *(os.path.abspath(one) for one in sys.path), os.path.dirname(_CHILD)]
        seen = [*_SYSTEM, *(_NETWORK if limits.network else ()), *code, *limits.read]
        command = ["bwrap", *_BARE, *(["--share-net"] if limits.network else []), "--tmpfs", "/tmp", "--dev", "/dev"]
        for one in seen:
            command += ["--ro-bind-try", os.path.abspath(one), os.path.abspath(one)]
        for one in limits.write:
            command += ["--bind", os.path.abspath(one), os.path.abspath(one)]
        return [*command, "--chdir", self._folder(seen)]

    def _folder(self, seen: Sequence[str]) -> str:
        """Where it runs: the current folder, if it is seen there."""
        folder = os.getcwd()
        return folder if any(_holds(one, folder) for one in (*seen, *self.limits.write)) else "/tmp"


def _pickled(call: tuple[Callable[..., Any], dict[str, Any]]) -> bytes:
    """A call for another process. Modules that it cannot import go along, such as the script of `connectagent run`."""
    import cloudpickle  # type: ignore[import-untyped, unused-ignore]

    for name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or module.__spec__ is not None or name in ("__main__", "builtins"):
            continue  # the first of these names goes along anyway
        if module.__name__ == name and getattr(module, "__file__", None):
            cloudpickle.register_pickle_by_value(module)
    dumped: bytes = cloudpickle.dumps(call)
    return dumped


_SPECIAL = {"ExceptionGroup", "UnicodeDecodeError", "UnicodeEncodeError", "UnicodeTranslateError"}


def _holds(folder: str, path: str) -> bool:
    folder = os.path.abspath(folder)
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def decoded(value: Any) -> Any:
    """The value that the child encoded."""
    if not isinstance(value, dict):
        return value
    kind = value["kind"]
    if kind in ("list", "tuple"):
        items = [decoded(one) for one in value["items"]]
        return tuple(items) if kind == "tuple" else items
    if kind == "dict":
        return {decoded(key): decoded(one) for key, one in value["items"]}
    data = base64.b64decode(value["data"])
    if kind == "bytes":
        return data
    if kind == "Image":
        return Image(data, value["media_type"])
    return File(data, value["media_type"], value["name"])
