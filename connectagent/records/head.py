"""The head of a record: the lines above its turns."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from connectagent.hooks.sources import as_listed, sources_of
from connectagent.records.encode import Encoder
from connectagent.records.file import FORMAT
from connectagent.records.log import LoggedAgent
from connectagent.records.own import is_own, record_mark


def header(agent: LoggedAgent, id: str, started: time.struct_time, encoder: Encoder, key: str | None) -> str:
    """The head of a new record; `key` is the session's, if the program gave it one."""
    handlers = as_listed(agent.hooks.loaded)
    script = _script()
    return (
        f"format: {FORMAT}\n"
        f"agent: {encoder.scalar(agent.name)}\n"
        f"model: {encoder.scalar(agent.llm.model)}\n"
        f"started: {time.strftime('%Y-%m-%dT%H:%M:%SZ', started)}\n"
        f"connectagent: {json.dumps(_version())}\n"
        f"id: {json.dumps(id)}\n"
        + (f"key: {encoder.line(key)}\n" if key is not None else "")
        + (f"script: {encoder.line(script)}\n" if script else "")
        + f"mark: {json.dumps(record_mark(id, script))}\n"
        + f"plugins: {_by_plugin({handler.plugin: handler.version for handler in handlers}, encoder)}\n"
        + (f"plugin_sources: {_by_plugin(sources, encoder)}\n" if (sources := sources_of(handlers)) else "")
        + (f"switched_off: {encoder.line(agent.switched_off)}\n" if agent.switched_off else "")
        + (f"max_iterations: {agent.max_iterations}\n" if agent.max_iterations != 10 else "")
        + f"system_prompt: {encoder.line(agent.prompted.text)}\n"
        + (f"system_prompt_changes: {encoder.line(changes)}\n" if (changes := agent.prompted.changes) else "")
        + f"{_beginning(agent, encoder)}turns:\n"
    )


def _by_plugin(values: dict[str, Any], encoder: Encoder) -> str:
    """Values by plugin as one line. A plugin's name says nothing of its value, which may look like that of a secret."""
    return "{" + ", ".join(f"{encoder.line(name)}: {encoder.line(value)}" for name, value in values.items()) + "}"


def _version() -> str:
    """The package's version; the package is above this room and is not imported."""
    return str(vars(sys.modules["connectagent"]).get("__version__"))


def _script() -> str | None:
    """The script that made the agent, as a file that can be run again; None without one."""
    for name in ("connectagent_script", "__main__"):
        file = str(getattr(sys.modules.get(name), "__file__", None) or "")
        if file.endswith(".py") and os.path.basename(file) != "__main__.py":
            return os.path.abspath(file)
    return None


def _beginning(agent: LoggedAgent, encoder: Encoder) -> str:
    """What the session began with; "" for a session that began empty."""
    session: Any = agent.current_session
    begins = {key: session[key] for key in ("messages", "state")}
    begun = (entry.get("turn") for entry in reversed(session["trace"]) if entry.get("type") == "user_input")
    begins["turn"] = next(begun, 0)
    system = [{"role": "system", "content": agent.prompted.text}] if agent.prompted.text else []
    if begins["messages"] == system:
        del begins["messages"]
    begins = {key: value for key, value in begins.items() if value}
    return f"begins_with: {encoder.line(begins)}\n" if begins else ""


def forked(record: Path, id: str) -> bytes:
    """The beginning of a fork: a copy of the original record, with an id of its own and the original's path.

    It is the user's own if the original is.
    """
    from connectagent.records.lines import pair_of, text_of

    whole = record.read_bytes()
    head, turns, rest = whole[: whole.rfind(b"\n") + 1].partition(b"\nturns:\n")
    head = head.partition(b"\nforked_from: ")[0]  # of a fork of a fork; it is the last line
    known = dict(pair_of(text_of(line)) for line in head.splitlines(keepends=True))
    mark = record_mark(id, known.get("script")) if is_own(known) else ""
    head = re.sub(rb"(?m)^mark: .*$", f"mark: {json.dumps(mark)}".encode(), head)
    head = re.sub(rb"(?m)^id: .*$", f"id: {json.dumps(id)}".encode(), head)
    return head + f"\nforked_from: {json.dumps(str(record))}".encode() + turns + rest
