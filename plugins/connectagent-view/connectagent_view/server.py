"""Serves the page to this machine alone: a loopback address, a secret in the path, and nothing but GET."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from connectagent.errors import ConfigError, ConnectAgentError
from connectagent.records.find import Listing, records_folder
from connectagent.records.read import ODD
from connectagent_view.page import library, page, script, style
from connectagent_view.reading import Reading
from connectagent_view.sessions import Sessions

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_PLAIN = "text/plain; charset=utf-8"
_MOST_READINGS = 3  # records that are kept in memory


class _Refused(Exception):
    """A failed answer: a status and a reason."""


class Server:
    """The page on 127.0.0.1.

    Args:
        record: the record to open; its folder is listed. None: the records' folder is listed.
        port: the port; 0 for a free one.
        secret: the secret part of the address; None for a new one.

    Attributes:
        url: the page's address.

    Raises:
        ConfigError: the port cannot be used.
    """

    def __init__(self, record: Path | None = None, port: int = 0, secret: str | None = None) -> None:
        self._record = record
        self._list, self._folder = Sessions(self._paths), Listing()
        self._readings: dict[tuple[str, int, int], Reading] = {}
        self._lock = threading.Lock()
        self._secret = secret or secrets.token_urlsafe(24)
        self._served = False
        try:
            self._http = _Http(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"port {port} cannot be used: {reason}; without --port a free one is taken") from error
        self._http.answer, self.port = self._answer, self._http.server_address[1]
        self._http.hosts = {f"127.0.0.1:{self.port}", f"localhost:{self.port}"}
        place = f"#record={quote(record.name)}" if record else ""
        self.url = f"http://127.0.0.1:{self.port}/{self._secret}/{place}"

    def serve(self) -> None:
        """Answer until `close()` is called from another thread, or Ctrl-C."""
        self._served = True
        self._http.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        """End `serve()` and close the port."""
        if self._served:
            self._http.shutdown()
        self._http.server_close()

    # -- what is answered ------------------------------------------------------------------------

    def _answer(self, target: str) -> tuple[str, bytes]:
        """The type and the body for a path; `_Refused` where there is none."""
        address = urlsplit(target)
        secret, _, name = address.path.lstrip("/").partition("/")
        if not _same(secret, self._secret):
            raise _Refused(404, "there is nothing here; the address that connectagent view printed has a secret part")
        if name in _PAGES:
            kind, make = _PAGES[name]
            return kind, make().encode()
        if name not in _DATA:
            raise _Refused(404, "there is no such page")
        given = {key: values[-1] for key, values in parse_qs(address.query, keep_blank_values=True).items()}
        try:
            value = _DATA[name](self, given)
        except (OSError, ConnectAgentError) as error:
            raise _Refused(404, f"the record cannot be read: {error}") from error
        except ODD as error:
            raise _Refused(404, f"there is no such thing: {type(error).__name__}: {error}") from error
        if isinstance(value, str):
            return _PLAIN, value.encode("utf-8", "backslashreplace")
        return "application/json", json.dumps(value, allow_nan=False).encode()

    def _paths(self) -> list[Path]:
        paths = self._folder.records(self._record.parent if self._record else records_folder())
        known = {path.name for path in paths}
        return [self._record, *paths] if self._record and self._record.name not in known else paths

    def _sessions(self, given: dict[str, str]) -> Any:
        return self._list.page(given)

    def _names(self, given: dict[str, str]) -> Any:
        return self._list.names()

    def _reading(self, given: dict[str, str]) -> tuple[str, Reading]:
        """The reading of a listed record; names are never turned into paths."""
        path = next((path for path in self._paths() if path.name == given["record"]), None)
        if path is None:
            raise LookupError(f"no record {given['record']!r}")
        status = os.stat(path)
        key = path.name, status.st_dev, status.st_ino
        with self._lock:
            reading = self._readings.pop(key, None) or Reading(path)
            self._readings[key] = reading  # the newest is the last
            for old in list(self._readings)[:-_MOST_READINGS]:
                del self._readings[old]
        return f"{status.st_dev}.{status.st_ino}", reading

    def _news(self, given: dict[str, str]) -> Any:
        file, reading = self._reading(given)
        same = given.get("file", file) == file  # else the file was replaced, and all of it is new
        row, item = (int(given.get(key, 0)) if same else 0 for key in ("row", "item"))
        return {"file": file, **reading.news(row, item)}

    def _entry(self, given: dict[str, str]) -> Any:
        return self._read(given).entry(int(given["entry"]))

    def _text(self, given: dict[str, str]) -> Any:
        reading = self._read(given)
        if "entry" in given:
            return reading.field(int(given["entry"]), given["key"])
        if "item" in given:
            return reading.end(int(given["item"]), given["key"])
        if "request" in given:
            return reading.request_text(int(given["request"]), int(given["place"]) if "place" in given else None)
        place = given.get("branch", ""), int(given["message"]), int(given["change"])
        return reading.image(*place, int(given["image"])) if "image" in given else reading.message(*place)

    def _conversation(self, given: dict[str, str]) -> Any:
        return self._read(given).conversation(given.get("branch", ""), int(given.get("known", -1)))

    def _changes(self, given: dict[str, str]) -> Any:
        return self._read(given).changes(int(given["entry"]) if "entry" in given else None)

    def _request(self, given: dict[str, str]) -> Any:
        return self._read(given).request(int(given["entry"]), "all" in given)

    def _find(self, given: dict[str, str]) -> Any:
        return self._read(given).find(given["text"])

    def _read(self, given: dict[str, str]) -> Reading:
        """The reading with all entries so far, though another record was read meanwhile."""
        reading = self._reading(given)[1]
        reading.read()
        return reading


_PAGES: dict[str, tuple[str, Callable[[], str]]] = {
    "": ("text/html; charset=utf-8", page),
    "page.css": ("text/css; charset=utf-8", style),
    "page.js": ("text/javascript; charset=utf-8", script),
    "library.js": ("text/javascript; charset=utf-8", library),
}
_DATA: dict[str, Callable[[Server, dict[str, str]], Any]] = {
    "sessions": Server._sessions,
    "names": Server._names,
    "changes": Server._changes,
    "request": Server._request,
    "news": Server._news,
    "entry": Server._entry,
    "text": Server._text,
    "conversation": Server._conversation,
    "find": Server._find,
}


def _same(given: str, secret: str) -> bool:
    return hmac.compare_digest(unquote(given).encode(), secret.encode())


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    answer: Callable[[str], tuple[str, bytes]]
    hosts: set[str]

    def server_bind(self) -> None:
        """Bind it, without asking for the host's name: that takes half a minute on some machines (macOS)."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that has gone."""


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds that a connection may be silent
    server_version, sys_version = "connectagent", ""

    def do_GET(self) -> None:
        # Another site's name may resolve to 127.0.0.1 (DNS rebinding); Host then has that name.
        if self.headers.get("Host", "") not in self.server.hosts:
            return self._send(403, _PLAIN, b"this address is not served: use the printed one")
        try:
            kind, body = self.server.answer(self.path)
        except _Refused as refused:
            status, reason = refused.args
            return self._send(status, _PLAIN, str(reason).encode("utf-8", "backslashreplace"))
        except Exception as error:
            return self._send(500, _PLAIN, f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace"))
        self._send(200, kind, body)

    def _not_allowed(self) -> None:
        self.close_connection = True  # a body may follow
        self._send(405, _PLAIN, b"only GET is answered")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _not_allowed

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        headers = {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}
        if status == 405:
            headers |= {"Allow": "GET", "Connection": "close"}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal shows the address only."""
