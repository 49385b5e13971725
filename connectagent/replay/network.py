"""No connection leaves this machine."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

_lock = threading.RLock()
_active: list[no_network] = []
_own: dict[str, Any] = {}  # what stood in the place of each guarded function; MISSING: it was inherited
_MISSING = object()


class NetworkRefused(RuntimeError):
    """Code under `no_network` wanted to leave this machine. No OSError: it must not pass for a failing network."""


class no_network:
    """Refuse every connection and every look-up of a name that is not of this machine, in all threads.

    `with no_network(allow=["api.example.org", "10.0.0.5:8080"]):`; loopback and Unix sockets are always allowed. Blocks
    nest, and the innermost decides. Processes that are started meanwhile are not guarded.

    Args:
        allow: hosts, names or addresses, each with `:port` if only that one is meant.

    Attributes:
        refused: `host:port` of each connection that was refused, also where the error was swallowed.
    """

    def __init__(self, allow: Iterable[str] = ()) -> None:
        if isinstance(allow, str):
            raise TypeError(f"allow={allow!r} is one str; give a list of hosts, allow=[{allow!r}]")
        self.allow = {entry.lower() for entry in allow}
        self.refused: list[str] = []

    def __enter__(self) -> no_network:
        with _lock:
            if not _active:
                _install()
            _active.append(self)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with _lock:
            _active[:] = [guard for guard in _active if guard is not self]
            if not _active:
                _uninstall()

    def check(self, host: str | bytes | None, port: object) -> None:
        """Let a connection pass, or refuse it.

        Raises:
            NetworkRefused: it leaves this machine and is not allowed.
        """
        name = host.decode("ascii", "replace") if isinstance(host, bytes) else str(host)
        place = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        if _is_here(name) or self._allows(name, place):
            return
        self.refused.append(place)
        raise NetworkRefused(
            f"a connection to {place} was refused: this code runs under no_network. "
            f"If it is meant: with no_network(allow=[{place!r}]):"
        )

    def _allows(self, name: str, place: str) -> bool:
        return name.lower() in self.allow or place.lower() in self.allow

    def resolved(self, host: str | bytes | None, port: object, found: Iterable[Any]) -> None:
        """Allow the addresses of a name that is allowed."""
        if not isinstance(host, str) or _is_here(host):
            return
        for *_, address in found:
            ip = str(address[0])
            if host.lower() in self.allow:
                self.allow.add(ip)
            else:
                self.allow.add(f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}")


def _is_here(host: str) -> bool:
    if host in ("", "None", "0.0.0.0", "::") or host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True  # nothing, or any address of this machine
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool(address.is_loopback or (mapped is not None and mapped.is_loopback))


def _innermost() -> no_network | None:
    with _lock:
        return _active[-1] if _active else None


def _guarded_connect(original: Callable[..., Any]) -> Callable[..., Any]:
    def connect(self: socket.socket, address: object) -> Any:
        guard = _innermost()
        if guard is not None and self.family != getattr(socket, "AF_UNIX", None):
            host, port = address[:2] if isinstance(address, tuple) and len(address) > 1 else (address, "?")
            guard.check(host, port)
        return original(self, address)

    return connect


def _guarded_getaddrinfo(original: Callable[..., Any]) -> Callable[..., Any]:
    def getaddrinfo(host: str | bytes | None, port: object, *args: Any, **kwargs: Any) -> Any:
        guard = _innermost()
        if guard is None:
            return original(host, port, *args, **kwargs)
        guard.check("" if host is None else host, port)
        found = original(host, port, *args, **kwargs)
        guard.resolved(host, port, found)
        return found

    return getaddrinfo


def _guarded_sendto(own: Callable[..., Any]) -> Callable[..., Any]:
    def sendto(self: socket.socket, data: object, *more: Any) -> Any:
        guard, address = _innermost(), more[-1] if more else None
        if guard is not None and isinstance(address, tuple) and len(address) > 1:
            guard.check(*address[:2])
        return own(self, data, *more)

    return sendto


def _guarded_look_up(own: Callable[..., Any]) -> Callable[..., Any]:
    def look_up(host: Any) -> Any:
        guard = _innermost()
        if guard is not None:
            guard.check(host, "?")
        return own(host)

    return look_up


# `create_connection` goes through both; asyncio and ssl go through these as well.
_GUARDED: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (socket.socket, "connect", _guarded_connect),
    (socket.socket, "connect_ex", _guarded_connect),
    (socket.socket, "sendto", _guarded_sendto),
    (socket, "getaddrinfo", _guarded_getaddrinfo),
    (socket, "gethostbyname", _guarded_look_up),
    (socket, "gethostbyname_ex", _guarded_look_up),
)


def _install() -> None:
    for place, name, guarded in _GUARDED:
        _own[name] = vars(place).get(name, _MISSING)
        setattr(place, name, guarded(getattr(place, name)))


def _uninstall() -> None:
    for place, name, _ in _GUARDED:
        if _own[name] is _MISSING:
            delattr(place, name)
        else:
            setattr(place, name, _own[name])
