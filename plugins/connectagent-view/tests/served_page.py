"""A client of the page for its tests."""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from connectagent_view.server import Server

PYTHONPATH = os.pathsep.join(filter(None, sys.path))
"""What a process of a test imports from: as this one."""


class Page:
    """The page, served in this process; what it answers."""

    def __init__(self, record: Path | None = None) -> None:
        self.server = Server(record)
        self.port = self.server.port
        self.secret = urlsplit(self.server.url).path.strip("/")
        self._thread = threading.Thread(target=self.server.serve)

    def __enter__(self) -> Page:
        self._thread.start()
        self.json("sessions")  # it answers: so it can be closed
        return self

    def __exit__(self, *error: Any) -> None:
        self.server.close()
        self._thread.join()

    def ask_raw(self, target: str, method: str = "GET", host: str | None = None) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.putrequest(method, target, skip_host=True)
            connection.putheader("Host", f"127.0.0.1:{self.port}" if host is None else host)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def ask(self, name: str, *, method: str = "GET", host: str | None = None, **given: Any) -> tuple[int, Any, bytes]:
        return self.ask_raw(f"/{self.secret}/{name}?{urlencode(given)}", method, host)

    def json(self, name: str, **given: Any) -> Any:
        status, _, body = self.ask(name, **given)
        assert status == 200, body
        return json.loads(body)
