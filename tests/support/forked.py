"""Runs Python programs and commands of connectagent in processes forked from one that has it loaded: some 30 ms each.

`run("-m", "connectagent", "log", "list")` is `subprocess.run([sys.executable, ...], capture_output=True, text=True)`:
each is a process of its own, with its own folder, environment and streams, and ends as Python ends. How Python starts,
and what a program loads, is not seen here: tests of that start a real one.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
# What nearly every program loads; no module of this project's tests.
USED = ("connectagent.cli.run", "connectagent.cli.summary", "connectagent.cli.group", "connectagent.builtin.console")
USED += ("connectagent.builtin.textlog", "connectagent.models.offline", "connectagent.agents.agent", "pydantic")
USED += ("connectagent.commands.recorded_agent", "connectagent.cli.replay", "connectagent.records.history")
USED += ("rich.markdown",)
USED += ("importlib.metadata", "rich.console", "rich.live", "rich.text", "yaml", "docstring_parser", "genai_prices")


class Process:
    """A running program: what `subprocess.Popen` is, as far as the tests use it."""

    def __init__(
        self, arguments: tuple[Any, ...], cwd: Any, env: dict[str, str] | None, input: str, before: Any
    ) -> None:
        self.args = [sys.executable, *map(str, arguments)]
        self.outputs: list[IO[bytes]] = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115  read later
        with tempfile.TemporaryFile() as stdin, socket.socket(socket.AF_UNIX) as at:
            stdin.write(input.encode())
            stdin.seek(0)
            request = {
                "arguments": self.args[1:],
                "folder": os.path.abspath(cwd or os.curdir),
                "environment": dict(os.environ if env is None else env),
                "before": before,
            }
            at.connect(_address())
            data = json.dumps(request).encode()
            streams = [stdin.fileno(), *(file.fileno() for file in self.outputs)]
            socket.send_fds(at, [len(data).to_bytes(8, "big")], streams)
            at.sendall(data)
            self.answer = at.makefile("r")
        self.pid = int(self.answer.readline())
        self.returncode: int | None = None

    def communicate(self, timeout: float = 60) -> tuple[str, str]:
        """Wait for its end; what it wrote on standard output and standard error.

        Raises:
            subprocess.TimeoutExpired: it was killed, since it took longer.
        """
        late = not select.select([self.answer], [], [], timeout)[0]
        if late:
            os.kill(self.pid, signal.SIGKILL)
        self.returncode = int(self.answer.readline())
        self.answer.close()
        texts = []
        for file in self.outputs:
            with file:
                file.seek(0)
                texts.append(file.read().decode().replace("\r\n", "\n"))
        if late:
            raise subprocess.TimeoutExpired(self.args, timeout, *texts)
        return texts[0], texts[1]


def start(
    *arguments: Any, cwd: Any = None, env: dict[str, str] | None = None, input: str = "", before: Any = None
) -> Process:
    """Start a program.

    Args:
        arguments: `-m MODULE`, `-c CODE` or a script, with its arguments; `-P` before, if wanted.
        cwd: its folder; None for the current one.
        env: its environment; None for this one. Of Python's own variables only PYTHONPATH works.
        input: what it reads.
        before: `[function, argument]`, called in the process before the program: "module:name", and something of JSON.
    """
    return Process(arguments, cwd, env, input, before)


def run(*arguments: Any, timeout: float = 60, check: bool = False, **given: Any) -> subprocess.CompletedProcess[str]:
    """Run a program, as `start` takes it, to its end.

    Raises:
        subprocess.TimeoutExpired: it took longer than `timeout` seconds, and was killed.
        subprocess.CalledProcessError: with `check`, it failed.
    """
    process = start(*arguments, **given)
    output, error = process.communicate(timeout)
    done = subprocess.CompletedProcess(process.args, int(process.returncode or 0), output, error)
    if check:
        done.check_returncode()
    return done


@cache
def _address() -> str:
    """Start the process that forks, once; where it listens."""
    folder = tempfile.mkdtemp(prefix="forked-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    address = str(Path(folder) / "s")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    serving = subprocess.Popen([sys.executable, __file__, address], env=environment, stdin=subprocess.PIPE, cwd=ROOT)
    atexit.register(serving.communicate)  # it ends when its input ends
    until = time.monotonic() + 60
    while not os.path.exists(address):
        assert time.monotonic() < until, "the process that forks does not start"
        time.sleep(0.01)
    return address


# -- the process that forks, and its children --------------------------------------------------------------


def _serve(address: str) -> dict[str, Any] | None:
    """Fork a process for each request; returns in such a process, with its request."""
    for name in USED:
        import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address + ".new")
    listening.listen(64)
    os.rename(address + ".new", address)
    _end_with_parent()
    gc.collect()
    gc.freeze()
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            return _fork(connection)
        connection.close()


def _end_with_parent() -> None:
    """End when the tests end, however they do: their end of standard input is closed then."""

    def wait() -> None:
        os.read(0, 1)
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def _fork(connection: socket.socket) -> dict[str, Any] | None:
    """Fork the process of the program, wait for it and tell; returns in that process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, streams, _, _ = socket.recv_fds(connection, 8, 3)
    data = b""
    while len(data) < int.from_bytes(length, "big"):
        data += connection.recv(1 << 20)
    child = os.fork()
    if child == 0:
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        return dict(json.loads(data))
    for stream in streams:
        os.close(stream)
    connection.sendall(f"{child}\n".encode())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    connection.sendall(f"{code}\n".encode())
    os._exit(0)


def _prepare(request: dict[str, Any]) -> types.CodeType:
    """Become a new Python, as far as it can be seen; the code to run."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w", 8192)
    sys.stderr = os.fdopen(2, "w", 1)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    if request["before"]:
        (module, _, name), argument = request["before"][0].partition(":"), request["before"][1]
        getattr(import_module(module), name)(argument)
    arguments = request["arguments"]
    safe = arguments[0] == "-P"
    first, *rest = arguments[safe:]
    own = {str(ROOT), str(Path(__file__).parent)}
    paths = [path for path in request["environment"].get("PYTHONPATH", "").split(os.pathsep) if path]
    paths = [os.path.join(request["folder"], path) for path in paths]
    sys.path[:] = paths + [path for path in sys.path if path not in own]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if first in ("-m", "-c"):
        given, place = rest.pop(0), request["folder"] if first == "-m" else ""
    else:
        given, place = first, os.path.dirname(os.path.join(request["folder"], first))
    if not safe:
        sys.path.insert(0, place)
    if first == "-c":
        sys.argv = ["-c", *rest]
        return compile(given, "<string>", "exec", dont_inherit=True)
    if first == "-m":
        _, spec, code = runpy._get_module_details(given)  # type: ignore[attr-defined]
        main.__spec__, main.__package__, main.__file__ = spec, spec.parent, spec.origin
        sys.argv = [spec.origin, *rest]
        return code  # type: ignore[no-any-return]
    main.__file__ = os.path.join(request["folder"], given)
    sys.argv = [given, *rest]
    return compile(Path(given).read_bytes(), main.__file__, "exec", dont_inherit=True)


def _run(request: dict[str, Any]) -> None:
    """Run the program to its end, which is Python's without clearing its memory away: that takes 0.1 s."""
    code: Any = 0
    try:
        program, main = _prepare(request), sys.modules["__main__"]
        main.__dict__.setdefault("__builtins__", __builtins__)
        exec(program, main.__dict__)
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120  # as Python says of it
    if code and code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit((code or 0) & 255)


if __name__ == "__main__":
    _request = _serve(sys.argv[1])
    if _request is not None:
        _run(_request)
