"""An agent whose handlers choose models by name, and records of it in which somebody else names one.

`records()` has a record of each place in which a record names a model: a request that `before_llm` changed, a `Retry`
of `on_error`, a wait of `before_llm`, and the same in an agent that is a tool and in a call that a tool makes.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NotRequired, Required, get_args, get_origin, get_type_hints

from connectagent import (
    Agent,
    LLMRequest,
    LLMResponse,
    Pause,
    Paused,
    Retry,
    ToolCall,
    before_llm,
    on_error,
    register_models,
)
from connectagent.session.entries import ENTRIES, LOG_LINES, Stored

COPY = [False]  # whether a model that is asked leaves a copy of the record, as a kill would


class Model:
    """A model: `own/fails` fails, `own/calls` asks for the tools of the script, the others answer."""

    def __init__(self, name: str, *script: LLMResponse) -> None:
        self.model = name
        self.script = list(script)

    def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
        if self.script:
            return self.script.pop(0)
        if self.model == "own/fails":
            raise OSError("gone")
        if COPY[0]:
            shutil.copy(next(Path(".co/evals").glob("*.yaml")), "killed.yaml")
            COPY[0] = False
        return LLMResponse(f"{self.model} is done.")


@register_models
def models() -> dict[str, Callable[[str], Model]]:
    return {"own": Model}


@before_llm
def chooses(agent: Agent, request: LLMRequest) -> None:
    """Ask a model that fails in the second iteration."""
    if agent.session["iteration"] == 2:
        request.model = "own/fails"


@before_llm
def another(agent: Agent, request: LLMRequest) -> None:
    if agent.session["iteration"] == 2:
        request.model = "own/other"


@before_llm
def observes(agent: Agent) -> None: ...


@before_llm
def pauses(agent: Agent, request: LLMRequest) -> None:
    if agent.session["iteration"] == 2:
        raise Pause("ask it?")


@on_error
def again(error: Exception) -> Retry:
    return Retry(model="own/last")


def work(agent: Agent, n: int) -> str:
    """Work, and let a model do it."""
    return agent.ask("Work.", model="own/fails").content if n == 2 else "worked"


def calls(name: str, **arguments: Any) -> LLMResponse:
    return LLMResponse(None, [ToolCall("c1", name, arguments)])


def agent(*script: LLMResponse, inner: LLMResponse | None = None, shape: str = "") -> Agent:
    """The agent of a shape; without a script its model answers at once."""
    plugins = [models, *HANDLERS.get(shape, [chooses]), again]
    below = Agent("inner", [work], llm=Model("own/calls", *[inner] if inner else []), plugins=plugins, quiet=True)
    return Agent("worker", [work, below], llm=Model("own/calls", *script), plugins=plugins, quiet=True)


HANDLERS: dict[str, list[Any]] = {
    "first": [another], "observed": [observes], "nobody": [], "waits": [chooses, pauses],
}  # fmt: skip
SHAPES: dict[str, Callable[[], Agent]] = {
    "retried": lambda: agent(calls("work", n=1)),
    **{name: partial(lambda name: agent(calls("work", n=1), shape=name), name) for name in HANDLERS},
    "inside": lambda: agent(calls("inner", prompt="Go."), inner=calls("work", n=1)),
    "asked": lambda: agent(calls("work", n=2)),
}


def records() -> dict[str, list[str]]:
    """The lines of a record of each shape, whose open turn has a call of a model without an answer."""
    found = {}
    for name, make in SHAPES.items():
        COPY[0] = True
        made = make()
        with contextlib.suppress(Paused):
            made.input("Go.")
        killed = Path("killed.yaml")
        assert made.record is not None
        found[name] = (killed if killed.exists() else made.record).read_text().splitlines()
        killed.unlink(missing_ok=True)
        made.close()
        shutil.rmtree(".co")
    return found


def naming(lines: list[str], name: str) -> Iterator[tuple[str, list[str]]]:
    """The record with a model's name in each place that can have one: what was done, and the lines.

    That is a key `model` in each mapping of each line; each key of the line's type that can hold a decision; and whole
    lines with which handlers would have decided about a call.
    """
    for at, line in enumerate(lines):
        if not line.startswith("  - "):
            continue
        entry = json.loads(line[4:])
        for what, new in (*_with_model(entry, name), *_with_decisions(entry, name)):
            yield f"line {at + 1}: {what}", [*lines[:at], _text(new), *lines[at + 1 :]]
        if entry["type"] == "began":
            for what, more in _decisions(entry["id"], name):
                yield f"before line {at + 1}: {what}", [*lines[:at], *map(_text, more), *lines[at:]]
                yield f"after line {at + 1}: {what}", [*lines[: at + 1], *map(_text, more), *lines[at + 1 :]]


def _with_model(value: Any, name: str, path: str = "") -> Iterator[tuple[str, Any]]:
    """A value with a model's name in one of its mappings, at any depth."""
    if isinstance(value, dict):
        yield f"{path}.model", {**value, "model": name}
    keys = range(len(value)) if isinstance(value, list) else value if isinstance(value, dict) else ()
    for key in keys:
        if key == "by":  # says who did it, and is copied into entries
            continue
        for what, below in _with_model(value[key], name, f"{path}.{key}"):
            new = value.copy()
            new[key] = below
            yield what, new


def _with_decisions(entry: dict[str, Any], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A line with a model's name in a key that its type has and the line has not, or has otherwise."""
    hints = get_type_hints({**ENTRIES, **LOG_LINES}[entry["type"]])
    for key, hint in hints.items():
        if get_origin(hint) in (Required, NotRequired):
            hint = get_args(hint)[0]
        retry = {"retry": {"after_s": 0, "model": name}, "given": False}
        value: Any = None
        if hint is Stored:
            value = retry
        elif hint is str and key not in ("type", "id", "at"):
            value = name
        elif get_origin(hint) is dict or (isinstance(hint, type) and hasattr(hint, "__total__")):
            value = {"model": name}
        if value is not None:
            yield f".{key}", {**entry, key: value}


def _decisions(id: str, name: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Lines by which handlers would have decided about the call of a model whose attempt, or hook, this is."""
    place = id.rpartition("/")[0]
    request = {"model": name, "options": {"model": name}}
    retry = {"retry": {"after_s": 0, "model": name}, "given": False}
    failed = {"type": "llm_call", "id": f"{place}/model1", "model": name, "status": "error", "error": "gone",
              "error_type": "OSError", "duration_ms": 0, "tool_calls_count": 0, "iteration": 1, "usage": None,
              "content": None, "tool_calls": []}  # fmt: skip
    answered = {**failed, "status": "success", "content": "Yes.", "id": f"{place}/model3"}
    for hook, decided in (("before_llm", {"request": request}), ("on_error1", {"value": retry})):
        begun = {"type": "began", "id": f"{place}/{hook}"}
        closed = {"type": "closed", "id": f"{place}/{hook}", **decided}
        wait = {"type": "wait", "id": f"{place}/{hook}/wait:x~1", "hook": f"{place}/{hook}", "of": "before_llm",
                "agent": "worker", "call": None, "reason": "ask?", "over": [["x", "x"]], **decided}  # fmt: skip
        yield f"{hook} closed", [begun, closed]
        yield f"{hook} closed without a beginning", [closed]
        yield f"{hook} closed after an error", [begun, closed, failed]
        yield f"{hook} closed, and a later attempt has an answer", [begun, closed, failed, answered]
        yield f"{hook} in part", [begun, {**closed, "type": "handlers", "over": [["chooses", "chooses"]]}]
        yield f"{hook} approved", [begun, wait, {"type": "decided", "id": wait["id"], "approve": True}]
    refused = {"element": "text", "of": {"plugin": "x"}, "index": 0, "error": "no"}
    yield "without what was refused", [
        {"type": "closed", "id": f"{place}/before_llm", "request": request},
        {**failed, "error_kind": "bad_request", "error_status": 400, "error_provider": "openai"},
        {"type": "began", "id": f"{place}/model2", "refused": [refused]},
    ]


def _text(entry: dict[str, Any]) -> str:
    return f"  - {json.dumps(entry)}"
