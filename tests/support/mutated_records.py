"""Records with one fault each: a field of one line is gone or of another type, a line is gone, doubled or swapped."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from connectagent import (
    Agent,
    LLMResponse,
    Pause,
    Paused,
    Retry,
    ToolCall,
    after_llm,
    after_tools,
    before_each_tool,
    before_llm,
    on_error,
)
from connectagent.testing import ScriptedLLM

DEEP: Any = 7
for _ in range(60):
    DEEP = [DEEP]
GONE = object()
VALUES = {"gone": GONE, "null": None, "number": 7, "list": [], "text": "x", "dict": {"x": 1}, "deep": DEEP}

RAN: list[int] = []
COPY: list[Path | None] = [None]  # where a tool or a model copies the record to, as a kill would leave it


def _kill() -> None:
    if COPY[0] is not None:
        shutil.copy(next(Path(".co/evals").glob("*.yaml")), COPY[0])
        COPY[0] = None


def pay(n: int) -> str:
    """Pay."""
    RAN.append(n)
    if n == 13:
        _kill()
    return f"paid {n}"


class Ends:
    """A model that goes on from any conversation: it answers at once."""

    model = "scripted"

    def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
        return LLMResponse("Ended.")


class Dies:
    """A model that leaves a copy of the record as it stands when it is asked."""

    model = "scripted"

    def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
        _kill()
        return LLMResponse("Over.")


@before_each_tool
def ask(tool_call: Any) -> None:
    if tool_call.arguments.get("n") == 9 and not tool_call.approved:
        raise Pause("pay nine?")


@before_llm
def notes(agent: Agent) -> None:
    agent.session["state"]["asked"] = agent.session["state"].get("asked", 0) + 1


@after_llm
def signs(response: LLMResponse) -> LLMResponse | None:
    return LLMResponse(f"{response.content} (signed)") if response.content == "First." else None


@after_tools
def tells(agent: Agent) -> None:
    if not any(one["role"] == "user" and one["content"] == "Go on." for one in agent.session["messages"]):
        agent.session["messages"].append({"role": "user", "content": "Go on."})


@on_error
def again(error: Exception, attempt: int) -> Retry | None:
    return Retry() if isinstance(error, OSError) and attempt == 1 else None


PLUGINS = [ask, notes, signs, tells, again]


def calls(*numbers: int) -> list[ToolCall]:
    return [ToolCall(f"c{n}", "pay", {"n": n}) for n in numbers]


def agent(*script: Any, llm: Any = None, inner: Any = None) -> Agent:
    """The agent of these records; without a script its models answer at once."""
    below = Agent("inner", [pay], llm=inner or Ends(), plugins=[ask], quiet=True)
    llm = llm or (ScriptedLLM(*script) if script else Ends())
    return Agent("shop", [pay, below], "You are a shop.", llm=llm, plugins=PLUGINS, quiet=True)


class Made(NamedTuple):
    """A record, and what its tools have done.

    Args:
        text: the record.
        done: the payments that it says were begun.
    """

    text: str
    done: list[int]


def _paused() -> Agent:
    made = agent("First.", calls(1, 9), "Paid.")
    made.input("Hello")
    with contextlib.suppress(Paused):
        made.input("Pay.")
    return made


def _approved() -> Agent:
    made = agent("First.", calls(1, 9), ValueError("no"))
    made.input("Hello")
    with contextlib.suppress(Paused):
        made.input("Pay.")
    with contextlib.suppress(ValueError):
        made.resume(approve=True)
    return made


def _inside() -> Agent:
    made = agent([ToolCall("c1", "inner", {"prompt": "Do."})], "Over.", inner=ScriptedLLM(calls(2, 9)))
    with contextlib.suppress(Paused):
        made.input("Go.")
    return made


def _failed() -> Agent:
    made = agent(calls(3, 4), OSError("gone"), calls(5), ValueError("no"))
    with contextlib.suppress(ValueError):
        made.input("Go.")
    return made


def _killed_in_a_tool() -> Agent:
    made = agent(calls(6), calls(13, 7), "Done.")
    COPY[0] = Path("killed.yaml")
    made.input("Go.")
    return made


def _killed_in_a_model() -> Agent:
    made = agent([ToolCall("c1", "inner", {"prompt": "Do."}), *calls(8)], "Done.", inner=Dies())
    COPY[0] = Path("killed.yaml")
    made.input("Go.")
    return made


def _closed() -> Agent:
    made = agent("First.", calls(1), "Paid.")
    made.input("Hello")
    made.input("Pay.")
    return made


SHAPES: dict[str, Callable[[], Agent]] = {
    "paused": _paused, "approved": _approved, "inside": _inside, "failed": _failed,
    "killed in a tool": _killed_in_a_tool, "killed in a model": _killed_in_a_model, "closed": _closed,
}  # fmt: skip


def records() -> dict[str, Made]:
    """A record of each shape."""
    found = {}
    for name, make in SHAPES.items():
        RAN.clear()
        made = make()
        killed = Path("killed.yaml")
        assert made.record is not None
        text = (killed if killed.exists() else made.record).read_text()
        killed.unlink(missing_ok=True)
        made.close()
        shutil.rmtree(".co")
        found[name] = Made(text, [n for n in RAN if f'"tool_name": "pay", "arguments": {{"n": {n}}}' in text])
    return found


class Mutation(NamedTuple):
    """A record with one fault.

    Args:
        what: which: the line's number, and what was done to it.
        text: the record.
        line: the line, before.
    """

    what: str
    text: str
    line: str


def mutations(text: str) -> Iterator[Mutation]:
    """All mutations of a record."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        for how, new in (("gone", []), ("doubled", [line, line]), ("swapped", [*lines[at + 1 : at + 2], line])):
            end = at + 2 if how == "swapped" else at + 1
            yield Mutation(f"line {at + 1} {how}", _text([*lines[:at], *new, *lines[end:]]), line)
        for what, new_line in _fields(line):
            yield Mutation(f"line {at + 1}, {what}", _text([*lines[:at], new_line, *lines[at + 1 :]]), line)


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def _fields(line: str) -> Iterator[tuple[str, str]]:
    if line.startswith("  - "):
        entry = json.loads(line[4:])
        for what, new in _changed(entry):
            yield what, f"  - {json.dumps(new)}"
        for name, value in VALUES.items():
            if value is not GONE:
                yield f"all {name}", f"  - {json.dumps(value)}"
        return
    key, colon, _ = line.partition(": ")
    for name, value in VALUES.items() if colon else ():
        if value is not GONE:
            yield f"{key.strip(' -')} {name}", f"{key}: {json.dumps(value)}"


def _changed(entry: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """A value with one field changed, at up to three levels."""
    keys = list(entry) if isinstance(entry, dict) else list(range(len(entry)))
    for key in keys:
        for name, value in VALUES.items():
            new = entry.copy()
            if value is GONE:
                del new[key]
            else:
                new[key] = value
            yield f"{key} {name}", new
        if isinstance(entry[key], dict | list) and depth < 2:
            for what, below in _changed(entry[key], depth + 1):
                new = entry.copy()
                new[key] = below
                yield f"{key}.{what}", new
