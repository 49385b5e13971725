"""What a model or a tool came to, from its entry in a record."""

from __future__ import annotations

import json
from typing import Any

from connectagent.data import LLMResponse, TraceEntry
from connectagent.errors import ToolRejected
from connectagent.loop.beside import RUNS_ON
from connectagent.loop.stored import stored_response
from connectagent.replay.runs import Run
from connectagent.session.raised import model_error, tool_error

_BY_JSON = {"dict": dict, "list": list, "int": int, "float": float, "bool": bool}


def run_outcome(run: Run) -> Any:
    """What a tool returned, as far as the record has it; of an object, the text that the model read.

    Raises:
        BaseException: what the tool raised.
    """
    entry = run.outcome
    own = entry.get("original") or entry
    status, result = own.get("status"), entry.get("result")
    if status == "rejected":
        raise ToolRejected(str(result).removeprefix("rejected: "))
    if status in ("error", "interrupted") and own.get("error_type"):
        kind = str(own["error_type"])
        error = tool_error(kind, str(own.get("result") or f"Error: {kind}"), status == "interrupted")
        if str(own.get("result")).endswith(RUNS_ON):
            error.left_behind = True  # type: ignore[attr-defined]
        raise error
    return _value(result, entry.get("result_type"))


def _value(result: object, kind: object) -> Any:
    if kind == "NoneType":
        return None
    if kind not in _BY_JSON or not isinstance(result, str):
        return result
    try:
        value = json.loads(result)
    except ValueError:  # it was too long to be recorded whole
        return result
    return value if isinstance(value, _BY_JSON[kind]) else result


def model_answer(entry: TraceEntry) -> LLMResponse:
    """What a model itself answered.

    Raises:
        BaseException: what it raised.
    """
    own = entry.get("original") or entry
    if own.get("error_type"):
        raise model_error(own, entry)
    return stored_response(entry)  # of one that a handler has replaced, the handler's
