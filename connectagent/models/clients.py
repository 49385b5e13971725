"""The SDK clients of the process: each request takes one that serves no other.

The connection pool inside a client looks at each of its connections before and after each request, under one lock: with
1,000 requests at once that took as long as the rest of their turns.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from connectagent.models.attempts import attempt_hooks

_MAX_KEYS = 64
# What the SDKs tell each provider about the machine. It is a third of the headers, and each is checked several times.
_ABOUT_THE_MACHINE = ("Lang", "Package-Version", "OS", "Arch", "Runtime", "Runtime-Version", "Async")
_KEEP_S = 5.0  # as long as httpx keeps a connection that nobody uses
_Idle = deque[tuple[float, Any]]  # since when; the one that was used last is at the end
_idle: dict[tuple[Any, ...], _Idle] = {}
_lock = threading.Lock()


@contextmanager
def idle_client(key: tuple[Any, ...], make: Callable[[], Any], shared: bool = False) -> Iterator[Any]:
    """A client for `key`, which no other request has meanwhile; made where none is idle, which takes 0.2 ms.

    A forked child makes its own, since two processes must not talk over one connection.

    Args:
        key: whose it is: the same key, the same client.
        make: makes one.
        shared: all requests have the same one.
    """
    idle = _idle_of((os.getpid(), *key))
    if shared:
        with _lock:
            if not idle:
                idle.append((time.monotonic(), make()))
            client = idle[0][1]
        yield client
        return
    try:
        client = idle.pop()[1]
    except IndexError:
        client = make()
    try:
        yield client
    finally:
        now = time.monotonic()
        idle.append((now, client))
        with suppress(IndexError):  # others take them meanwhile
            while idle[0][0] < now - _KEEP_S:
                idle.popleft()  # and with it goes its connection


def _idle_of(key: tuple[Any, ...]) -> _Idle:
    idle = _idle.get(key)
    if idle is None:
        with _lock:
            while len(_idle) >= _MAX_KEYS:  # many keys pass through one process: forget the oldest
                del _idle[next(iter(_idle))]
            idle = _idle.setdefault(key, deque())
    return idle


def new_client(make: Callable[..., Any], http: Callable[..., Any], **options: Any) -> Any:
    """A client of an SDK. Its connections are closed when nobody holds it any more, and at exit.

    Args:
        make: the SDK's class.
        http: the SDK's `DefaultHttpxClient`.
        options: of the client: key and address.
    """
    connections = _connections(http)(verify=_tls(http), event_hooks=attempt_hooks())
    client = make(http_client=connections, default_headers=left_out(make), **options)
    weakref.finalize(client, connections.close)
    return client


def left_out(make: Callable[..., Any]) -> dict[str, Any]:
    """The headers that an SDK is to leave out, as it takes them: those that describe the machine.

    Args:
        make: the SDK's class.
    """
    omitted = sys.modules[make.__module__.partition(".")[0]].Omit()
    return {f"X-Stainless-{name}": omitted for name in _ABOUT_THE_MACHINE}


@functools.cache
def _connections(http: type) -> Any:
    """The class of an SDK's connections; each address is parsed once, not for each request."""
    parsed = functools.lru_cache(maxsize=_MAX_KEYS)(_library(http).URL)

    class Connections(http):  # type: ignore[misc]
        def build_request(self, method: str, url: object, **more: Any) -> Any:
            return super().build_request(method, parsed(url), **more)

    return Connections


@functools.cache
def _tls(http: type) -> Any:
    """The TLS context of all clients of an SDK, which takes 20 ms; True where its library makes it by itself."""
    return getattr(_library(http), "create_ssl_context", lambda: True)()


def _library(http: type) -> Any:
    """The HTTP library of an SDK."""
    return sys.modules[http.__base__.__module__.partition(".")[0]]
