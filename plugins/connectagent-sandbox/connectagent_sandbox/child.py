"""Runs in the process of its own: takes a call from stdin, and writes what came of it as JSON.

It returns no pickle: whoever reads one runs its code, and this process is not trusted.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import inspect
import json
import os
import pickle
import resource
import sys
from typing import Any


def encoded(value: Any) -> Any:
    """A value as JSON, with tags for what JSON does not have."""
    kind = type(value).__name__
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"kind": "bytes", "data": base64.b64encode(value).decode()}
    if kind in ("Image", "File") and type(value).__module__ == "connectagent.data":
        return _file(value, kind)
    if isinstance(value, list | tuple | set | frozenset):
        return {"kind": "tuple" if isinstance(value, tuple) else "list", "items": [encoded(one) for one in value]}
    if isinstance(value, dict):
        return {"kind": "dict", "items": [[encoded(key), encoded(one)] for key, one in value.items()]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return encoded(dataclasses.asdict(value))
    if hasattr(value, "model_dump"):
        return encoded(value.model_dump(mode="json"))
    return str(value)


def _file(value: Any, kind: str) -> dict[str, Any]:
    """An Image or File of connectagent, which may name a file that only this process can read."""
    data, name = value.data, getattr(value, "name", None)
    if not isinstance(data, bytes):
        name = name or os.path.basename(data)
        with open(data, "rb") as file:
            data = file.read()
    given = {"kind": kind, "data": base64.b64encode(data).decode(), "media_type": value.media_type}
    return {**given, "name": name} if kind == "File" else given


def main() -> None:
    """Read limits and the call, run it, and write its outcome."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
    os.dup2(2, 1)  # what the tool prints is no answer
    first = json.loads(sys.stdin.buffer.readline())
    for name, limit in first["limits"].items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    try:
        wanted, here = (".".join(map(str, one)) for one in (first["python"], sys.version_info[:2]))
        if wanted != here:
            raise RuntimeError(f"the program runs with Python {wanted}, and the container with {here}")
        function, arguments = pickle.load(sys.stdin.buffer)
        value = function(**arguments)
        if inspect.isawaitable(value):

            async def wait() -> Any:
                return await value

            value = asyncio.run(wait())
        elif inspect.isgenerator(value):
            value = list(value)
        text = json.dumps({"value": encoded(value)})
    except BaseException as error:
        text = json.dumps({"error": type(error).__name__, "message": str(error)[:10_000]})
    answer.write(text)
    answer.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
