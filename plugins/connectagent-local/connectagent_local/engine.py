"""llama.cpp in this process, by the package xllamacpp: each file is loaded once, whoever asks."""

from __future__ import annotations

import atexit
import importlib
import os
import queue
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_servers: dict[Any, Any] = {}  # for the life of the process: a file takes seconds to load, and unloading may hang
_lock = threading.Lock()
_calls: set[_Call] = set()


class EngineError(Exception):
    """A call failed.

    Args:
        message: why.
        kind: as in `ProviderError`.
        body: what llama.cpp says.
    """

    def __init__(self, message: str, kind: str, body: Any = None) -> None:
        super().__init__(message)
        self.kind, self.body = kind, body


@dataclass(frozen=True)
class Engine:
    """A file, and how it is run.

    Args:
        path: the file.
        context: how many tokens a conversation may have.
        parallel: how many calls are answered at the same time.
        threads: how many threads compute; 0 for one per core.
    """

    path: Path
    context: int
    parallel: int
    threads: int

    def chunks(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The pieces of one answer, in the format of OpenAI's streams.

        Raises:
            EngineError: the file cannot be loaded, or llama.cpp refuses the request.
        """
        call = _Call(self._server(), {**body, "stream": True, "stream_options": {"include_usage": True}})
        try:
            yield from call.pieces()
        finally:
            call.stopped = True

    def _server(self) -> Any:
        key = (os.getpid(), self)  # the threads of a server do not survive a fork
        with _lock:
            if key not in _servers:
                _servers[key] = self._load()
            return _servers[key]

    def _load(self) -> Any:
        xllamacpp: Any = importlib.import_module("xllamacpp")
        params = xllamacpp.CommonParams()
        params.model.path = str(self.path)
        params.n_parallel, params.n_ctx = self.parallel, self.context * self.parallel
        params.cpuparams.n_threads = self.threads or os.cpu_count() or 1
        params.use_jinja, params.warmup, params.verbosity = True, False, -1
        # It also listens on a port of the loopback, where nobody without this key is answered.
        params.api_keys, params.ui = [secrets.token_hex()], False
        try:
            return xllamacpp.Server(params)
        except RuntimeError as error:
            raise EngineError(f"{self.path} cannot be loaded: {error}", "not_found") from None


class _Call:
    """One request, in a thread of its own: the caller's stays free for Ctrl-C."""

    def __init__(self, server: Any, body: dict[str, Any]) -> None:
        self.server, self.body, self.stopped = server, body, False
        self.queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="connectagent-local", daemon=True)

    def pieces(self) -> Iterator[dict[str, Any]]:
        """The pieces as they come.

        Raises:
            EngineError: llama.cpp refuses the request.
        """
        self.thread.start()
        while (piece := self.queue.get()) is not None:
            if isinstance(piece, EngineError):
                raise piece
            yield piece

    def _run(self) -> None:
        _calls.add(self)
        try:
            # With tools it may refuse before it streams, and then returns what is wrong.
            self._take(self.server.handle_chat_completions(self.body, self._take))
        except Exception as error:
            self.queue.put(EngineError(str(error), "bad_request"))
        finally:
            self.queue.put(None)
            _calls.discard(self)

    def _take(self, piece: Any) -> bool:
        """Pass a piece on; whether llama.cpp is to stop."""
        error = piece.get("error") if isinstance(piece, dict) else None
        if error:
            kind = "context_length" if error.get("type") == "exceed_context_size_error" else "bad_request"
            kind = "server" if (error.get("code") or 0) >= 500 else kind
            self.queue.put(EngineError(str(error.get("message")), kind, piece))
        elif isinstance(piece, dict):
            self.queue.put(piece)
        return self.stopped


@atexit.register
def _stop() -> None:
    """Stop what still runs: a thread inside llama.cpp would crash when the interpreter goes away."""
    calls = list(_calls)
    for call in calls:
        call.stopped = True
    for call in calls:
        call.thread.join(10)
