"""A record as data, as YAML reads it.

Almost all lines of a record are JSON, which is read 10 to 20 times as fast as YAML; where a line could mean
something else to YAML, YAML decides.
"""

from __future__ import annotations

import datetime
import json
import os
import re
from pathlib import Path
from typing import Any

from connectagent.errors import ConfigError
from connectagent.session.journal import LINES

MAX_DEPTH = 100  # as deep as the writer goes
_LONG_KEY = 1000 // 6  # YAML takes a key of up to 1,024 characters, and each may be an escape of six
# What JSON may hold raw and YAML 1.1 refuses, or takes for the end of a line.
_DOUBTFUL = re.compile("[^\n -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_EXPONENT = re.compile(r"-?\d+\.\d+[eE][-+]\d+", re.ASCII)  # of a float that is one in YAML 1.1 too
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_ELSEWHERE = re.compile("[&*!]")  # anchors, aliases, tags
_PAIR = re.compile(r"([a-z_]\w*):(?: (.+))?", re.ASCII)
_BARE = re.compile(r"[a-z_][\w./-]*", re.IGNORECASE | re.ASCII)
_NOT_TEXT = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


def read_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A record as data, as YAML reads it; a last line that was torn by a kill is left out.

    A turn without `status` was cut off. `messages` of a turn is JSON text. `lines` of a turn are all its lines, `trace`
    is what people are shown of the agent that the record is of: see `shown_lines`.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is not a record.
    """
    data = load_record(path)
    for turn in data["turns"]:
        turn["lines"] = [line for line in turn["trace"] if isinstance(line, dict)]
        if len(turn["lines"]) < len(turn["trace"]):
            turn["unreadable"] = len(turn["trace"]) - len(turn["lines"])
        turn["trace"] = shown_lines(turn["lines"], data.get("agent"))
    return data


def load_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A record as data, exactly as YAML reads it; `trace` of a turn are all its lines.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is not a record.
    """
    whole = Path(path).read_bytes().rpartition(b"\n")[0]
    try:
        data = _by_lines(whole.decode("utf-8"))
    except (ValueError, RecursionError):
        data = _by_yaml(path, whole)
    turns = (data.get("turns") or []) if isinstance(data, dict) else None
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise ConfigError(f"{path}: not a record: it has no list of 'turns'")
    data["turns"] = turns
    for turn in turns:
        turn["trace"] = turn.get("trace") or []
    return data


def require_agent(record: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Refuse a record with which nothing can go on.

    Raises:
        ConfigError: it does not tell whose it is.
    """
    if record.keys() <= {"format", "turns"}:
        raise ConfigError(f"{path}: an empty record: its process was killed before it had written whose it is")
    if not isinstance(record.get("agent"), str):
        raise ConfigError(f"{path}: not a record: it has no 'agent:'")


def own_entries(lines: list[dict[str, Any]], agent: Any, branch: str | None = None) -> list[dict[str, Any]]:
    """The entries of one agent's trace among the lines of a record.

    Args:
        lines: what stands under `trace:`.
        agent: the agent's name.
        branch: where it stands, for an agent inside the one that the record is of.
    """
    mine = (branch,) if branch is not None else (None, agent)
    return [line for line in lines if line.get("type") not in LINES and is_own(line, agent, mine)]


def is_own(line: dict[str, Any], agent: Any, branches: tuple[Any, ...]) -> bool:
    """Whether an entry is of an agent's own trace."""
    if line.get("type") == "agent_turn":  # it tells the branch of the agent that was asked
        return line.get("author") in (None, agent)
    return line.get("branch") in branches


def shown_lines(lines: list[dict[str, Any]], agent: Any) -> list[dict[str, Any]]:
    """What people are shown of the agent that a record is of: its trace, and the tools that it began to run."""
    return [line for line in lines if is_shown(line, agent)]


def is_shown(line: dict[str, Any], agent: Any) -> bool:
    """Whether people are shown a line: see `shown_lines`."""
    if line.get("type") in LINES:
        return line.get("type") == "began" and "call_id" in line and "/turn:" not in str(line.get("id"))
    return is_own(line, agent, (None, agent))


def _by_yaml(path: str | os.PathLike[str], whole: bytes) -> Any:
    import yaml

    try:
        return yaml.load(whole, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not a record: {error}") from error


def _by_lines(text: str) -> dict[str, Any]:
    """A document in which each line is a pair or an entry.

    Raises:
        ValueError: it is not certain that YAML reads the same.
    """
    if _DOUBTFUL.search(text):
        raise ValueError("characters that YAML reads in its own way")
    data: dict[str, Any] = {}
    turns: list[Any] | None = None
    trace: list[Any] | None = None
    for line in text.split("\n") if text else ():
        if line.startswith("  - {") and trace is not None:
            trace.append(entry_of(line))
            continue
        trace = None
        if line.startswith("- ") and turns is not None:
            turns.append(dict([pair_of(line[2:])]))
        elif line == "  trace:" and turns and "trace" not in turns[-1]:
            trace = turns[-1]["trace"] = []
        elif line.startswith("  ") and turns:
            turns[-1].update([pair_of(line[2:])])
        elif line == "turns:" and "turns" not in data:
            turns = data["turns"] = []
        else:
            turns = None
            data.update([pair_of(line)])
    return data


def entry_of(line: str) -> dict[str, Any]:
    """The trace entry of a line `  - {...}`.

    Raises:
        ValueError: the line is not an entry that is whole in itself.
    """
    text = line[4:]
    try:
        value = _json(text)
    except ValueError:
        import yaml

        if _ELSEWHERE.search(_QUOTED.sub("", text)):
            raise ValueError("what it means may stand in another line") from None
        try:
            value = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        except (yaml.YAMLError, RecursionError) as error:
            raise ValueError(str(error)) from error
    if not isinstance(value, dict) or not text.endswith("}"):
        raise ValueError("not an entry of a trace")
    return value


def pair_of(text: str) -> tuple[str, Any]:
    """The key and the value of a line `key: value`.

    Raises:
        ValueError: it is not certain that YAML reads the same.
    """
    found = _PAIR.fullmatch(text)
    if found is None or found[2] is None or found[1] in _NOT_TEXT:
        raise ValueError("not a key and a value in one line")
    value = found[2]
    if value[0] not in '"{[' and value not in ("null", "true", "false"):
        if _BARE.fullmatch(value) and value.lower() not in _NOT_TEXT:
            return found[1], value
        if _TIME.fullmatch(value):
            return found[1], datetime.datetime.fromisoformat(value)
    return found[1], _json(value)


def _json(text: str) -> Any:
    """A JSON value that YAML 1.1 reads as the same.

    Raises:
        ValueError: it is none.
    """
    if "\\u" in text and _SURROGATE.search(text):
        raise ValueError("YAML joins no surrogates")
    value = (_decoder if len(text) < 1000 else _careful).decode(text)
    nested = isinstance(value, (dict, list))  # a turn's messages are one text, with thousands of brackets in it
    if nested and text.count("{") + text.count("[") > MAX_DEPTH and _deep(value):
        raise ValueError("YAML may refuse to go as deep")
    return value


def _float(text: str) -> float:
    if ("e" in text or "E" in text) and not _EXPONENT.fullmatch(text):
        raise ValueError("text to YAML 1.1")
    return float(text)


def _constant(text: str) -> float:
    raise ValueError("text to YAML 1.1")


def _short_keys(value: dict[str, Any]) -> dict[str, Any]:
    if any(len(key) > _LONG_KEY for key in value):
        raise ValueError("a key that YAML may refuse")
    return value


_decoder = json.JSONDecoder(parse_float=_float, parse_constant=_constant)
_careful = json.JSONDecoder(parse_float=_float, parse_constant=_constant, object_hook=_short_keys)


def _deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        items = (item.values() if isinstance(item, dict) else item for item in level)
        level = [inner for group in items for inner in group if isinstance(inner, (dict, list))]
        if not level:
            return False
    return True
