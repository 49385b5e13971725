"""Every path of a turn, each with the model's script and the handlers that bring it about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakSet

from connectagent import (
    Agent,
    Continue,
    Image,
    LLMResponse,
    Message,
    Pause,
    ProviderError,
    Retry,
    TokenUsage,
    ToolCall,
    ToolRejected,
    hooks,
)
from connectagent.agents.agent_tool import core_of
from connectagent.plugins import AROUND, EVENTS, running
from connectagent.testing import ScriptedLLM, call, crash_at


class PathError(Exception):
    """An error that a path brings about; no plugin is to blame for it."""


class ToolFailure(PathError, ConnectionError):
    """What the tools of the paths raise."""


class ModelFailure(PathError, ProviderError):
    """What the models of the paths raise."""


class Path(NamedTuple):
    """One path of a turn.

    Args:
        name: what happens.
        script: the model's responses.
        drivers: makes the handlers that bring it about.
        limit: the number of iterations.
        aside: what the model raises when the plugin itself asks it something; None for nothing.
        options: makes what else `Agent` takes on this path.
        prompt: what the user says; None for what the check was given.
    """

    name: str
    script: Callable[[], list[Any]]
    drivers: Callable[[], list[Any]] = list
    limit: int = 5
    aside: type[BaseException] | None = None
    options: Callable[[], dict[str, Any]] = dict
    prompt: Any = None


class PathModel(ScriptedLLM):
    """The model of one agent on a path: "Done." behind the script's end, since a plugin may ask for more.

    Args:
        path: whose script it follows.
        answers: what it answers where a handler or tool itself asks it, over and over.
    """

    def __init__(self, path: Path, answers: list[Any]) -> None:
        super().__init__(*path.script())
        self.aside = path.aside
        self.answers = answers
        self.asked = 0
        self.interrupted: Any = None  # the handler that asked when it raised Ctrl-C
        self.agent: Any = None

    def complete(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> LLMResponse:
        """The next response; to a handler's or tool's own question, the next answer."""
        asking = None if self.agent is None else self._asking()
        if asking is None:
            if len(self.requests) >= len(self.responses):
                self.responses.append("Done.")
            return super().complete(messages, tools)
        if self.aside is not None:
            self.interrupted = asking if self.aside is KeyboardInterrupt else None
            raise failure() if self.aside is ModelFailure else self.aside
        self.asked += 1
        return ScriptedLLM(self.answers[(self.asked - 1) % len(self.answers)]).complete(messages, tools)

    def _asking(self) -> Any:
        """The handler or tool that asks; None for the loop."""
        here = running()
        if here is None or here.agent is not self.agent or core_of(self.agent).boundary.innermost() is not None:
            return core_of(self.agent).boundary.innermost()
        return here.by if here.by is not None else SHADOWED if here.asks else None


def failure() -> ModelFailure:
    """A provider that has a bad day."""
    return ModelFailure("try again later", kind="overloaded", provider="scripted", status=529)


# The tools of the paths; their names are not those that a plugin would give to a tool that it brings.


def do_work(x: int = 0) -> int:
    """Work."""
    RAN.append(x)
    return 2 * x


def do_fail() -> int:
    """Fail."""
    raise ToolFailure("no answer")


def do_fail_once(agent: Any) -> str:
    """Fail the first time."""
    if agent not in _failed:
        _failed.add(agent)
        raise ToolFailure("no answer")
    return "at last"


def do_end(agent: Any) -> str:
    """End the turn."""
    agent.end_turn("Ended.")
    return "last"


def do_ask(agent: Any) -> str:
    """Have another tool run."""
    return str(agent.execute_tool("do_work", {"x": "13"})["result"])


def do_picture() -> list[Any]:
    """Draw."""
    return ["A dot:", Image(_PNG)]


def do_login(password: str) -> str:
    """Log in."""
    return f"the key is {password}"


_failed: WeakSet[Any] = WeakSet()
TOOLS = (do_work, do_fail, do_fail_once, do_end, do_ask, do_picture, do_login)
RAN: list[int] = []
"""The `x` of each time that the body of `do_work` has run."""
OTHERS: dict[str, Any] = {name: {"kept": 1} for name in ("theirs", "approve", "memory", "reflect", "artifacts")}
"""What other plugins have in `state`, by the plugin's name."""
SHADOWED = {"plugin": "?"}  # a handler in a dry run, which asks a model
SECRET = "sk-proj-Xy7Lq2Mn8Rt4Vb6Zc1Kd9Hf3Jg5Pw0Sa"  # no key, but it looks like one
_PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


def once(hook: str, act: Callable[[Any], Any]) -> Any:
    """A handler that acts on the agent once; what the act returns is its value."""
    left = [act]

    def driver(agent: Any) -> Any:
        return left.pop()(agent) if left else None

    return getattr(hooks, hook)(driver)


def _end(agent: Any) -> None:
    agent.end_turn("Ended.")


def _end_and_say(agent: Any) -> str:
    agent.end_turn("Ended.")
    return "Done."


def _reject(agent: Any) -> None:
    raise ToolRejected("not now")


def _pause(agent: Any) -> None:
    raise Pause("may it?")


def _edit_round(agent: Any) -> None:
    for pending in agent.session["pending_tools"]:
        pending["arguments"] = {"x": "14"}


def _edit_call(agent: Any) -> None:
    agent.session["pending_tool"]["arguments"] = {"x": 15.0}


def _misspell_call(agent: Any) -> None:
    agent.session["pending_tool"]["arguments"] = {"x": "many"}


def _work() -> ToolCall:
    return call("do_work", x=1)


def _thoughts() -> LLMResponse:
    thoughts = [{"signature": "c2ln"}]
    return LLMResponse("Hm.", [_work()], provider_data={"provider": "scripted", "thoughts": thoughts})


def _misspelt() -> ToolCall:
    return call("do_work", x="many")


def _refusal() -> ModelFailure:
    """A provider that does not take an image."""
    return ModelFailure("Could not process image", kind="bad_request", provider="scripted", status=400)


def _two() -> dict[str, Any]:
    """Two agents as tools; their models call a tool, and they inherit the plugin."""
    inner = Path("an agent inside", _script([_work, _work], "Done."))
    return {"tools": [_child(name, inner) for name in ("first", "second")]}


def _one() -> dict[str, Any]:
    """An agent to hand over to."""
    return {"sub_agents": [_child("first", Path("an agent inside", _script(ROUND, "Done.")))]}


def _child(name: str, path: Path) -> Agent:
    llm = PathModel(path, ["Noted."])
    llm.agent = Agent(name, tools=list(TOOLS), llm=llm, log=False, quiet=True)
    return llm.agent  # type: ignore[no-any-return]


def _script(*responses: Any) -> Callable[[], list[Any]]:
    """A script that makes new responses each time, since handlers may edit them; functions among them are called."""

    def made(value: Any) -> Any:
        if isinstance(value, list):
            return [made(item) for item in value]
        return value() if callable(value) else value

    return lambda: [made(response) for response in responses]


def _broken() -> ToolCall:
    return ToolCall(call("do_work").id, "do_work", {}, error="not JSON")


def _no_object() -> ToolCall:
    return ToolCall(call("do_work").id, "do_work", [1])  # type: ignore[arg-type]


def _does(hook: str, act: Callable[[Any], Any]) -> Callable[[], list[Any]]:
    return lambda: [once(hook, act)]


def _gives(hook: str, value: Any) -> Callable[[], list[Any]]:
    return lambda: [once(hook, lambda agent: value() if callable(value) else value)]


FAIL: Any = ("do_fail", {})
FAIL_ONCE: Any = ("do_fail_once", {})
UNKNOWN: Any = ("unknown", {})
WORK: list[Any] = [("do_work", {"x": 11}), ("do_work", {"x": 12})]
ASKED: list[Any] = [("first", {"prompt": "a"}), ("second", {"prompt": "b"})]
ROUND: list[Any] = [_work, FAIL, UNKNOWN, _work]

_PLAIN = [
    Path("an answer", _script("Done.")),
    Path("an empty answer", _script("")),
    Path("no content at all", _script(LLMResponse)),
    Path("a tool call", _script(_work, "Done.")),
    Path(
        "text and a call",
        _script(lambda: LLMResponse("Let me see.", [_work()], TokenUsage(120_000, 1_000, cost=0.4)), "Done."),
    ),
    Path("several calls in a round", _script(ROUND, "Done.")),
    Path("two rounds", _script(_work, [_work, _work], "Done.")),
    Path("a tool's error", _script([FAIL, _work], "Done.")),
    Path("an unknown tool", _script(UNKNOWN, "Done.")),
    Path("arguments that do not fit", _script(("do_work", {"x": "two"}), "Done.")),
    Path("arguments that are not JSON", _script(_broken, "Done.")),
    Path("arguments that are no object", _script(_no_object, "Done.")),
    Path("a model's error", _script(failure)),
    Path("the end in a tool", _script([("do_end", {}), _work])),
    Path("the limit", _script(_work, _work, _work), limit=2),
    Path("an image in the prompt", _script(_work, "Done."), prompt=["What is it?", Image(_PNG)]),
    Path("a call that a tool makes", _script([("do_ask", {})], "Done.")),
    Path("an image that is refused", _script([("do_picture", {})], _refusal, "Done.")),
    Path("an image that is refused twice", _script([("do_picture", {})], _refusal, _refusal)),
    Path("an image as a result", _script([("do_picture", {}), _work], "Done.")),
    Path("an answer with thoughts", _script(_thoughts, "Done.")),
    Path("a secret", _script(("do_login", {"password": SECRET}), f"It is {SECRET}."), prompt=f"My key is {SECRET}."),
]
_TREES = [
    Path("calls at once", _script(ROUND, "Done."), options=lambda: {"parallel_tools": 4}),
    Path("two agents in a round", _script(ASKED, "Done."), options=_two),
    Path("a handoff", _script(("transfer_to_agent", {"agent_name": "first"})), options=_one),
]
_PAUSES = [
    Path(f"a pause in {hook}", _script(WORK, "Done."), _does(hook, _pause))
    for hook in ("before_llm", "before_tools", "before_each_tool")
]
_DECIDED = [
    Path("a rejected call", _script(WORK, "Done."), _does("before_each_tool", _reject)),
    Path("a rejected round", _script(WORK, "Done."), _does("before_tools", _reject)),
    Path("a round that is edited", _script(WORK, "Done."), _does("before_tools", _edit_round)),
    Path("arguments that are repaired", _script(_misspelt, "Done."), _does("before_tools", _edit_round)),
    Path("a call that is edited", _script(WORK, "Done."), _does("before_each_tool", _edit_call)),
    Path("a call that does not fit any more", _script(_work, "Done."), _does("before_each_tool", _misspell_call)),
    Path("a stand-in for a tool", _script(_work, "Done."), _gives("before_each_tool", 0)),
    Path("a stand-in for the model", _script("Done."), _gives("before_llm", "Done.")),
    Path(
        "a stand-in for the model that calls a tool",
        _script("Done."),
        _gives("before_llm", lambda: LLMResponse(None, [_work()])),
    ),
    Path("an answer to the user's input", _script("Done."), _gives("after_user_input", "Done.")),
    Path("an empty answer to the user's input", _script("Done."), _gives("after_user_input", "")),
    Path("a model's error, recovered", _script(failure, "Done."), _gives("on_error", "Done.")),
    Path("a model's error, tried again", _script(failure, "Done."), _gives("on_error", Retry)),
    Path("a model's error, tried again in vain", _script(failure, failure), _gives("on_error", Retry)),
    Path("a tool's error, recovered", _script(FAIL, "Done."), _gives("on_error", "another result")),
    Path("a tool's error, tried again", _script(FAIL_ONCE, "Done."), _gives("on_error", Retry)),
    Path("a tool's error, tried again in vain", _script(FAIL, "Done."), _gives("on_error", Retry)),
    Path("Continue", _script("More?", "Done."), _gives("on_complete", lambda: Continue("Yes."))),
    Path("Continue at the limit", _script("Done."), _gives("on_complete", lambda: Continue("Yes.")), limit=1),
    Path("the end in after_llm of an answer", _script("Done."), _does("after_llm", _end)),
    Path("the end in on_error of a tool", _script([FAIL, _work]), _does("on_error", _end)),
    Path("the end in on_error of a model", _script(failure), _does("on_error", _end)),
    Path("the end in on_error of a model, and a value", _script(failure), _does("on_error", _end_and_say)),
]
_ASIDE = [
    Path("an error of the model that the plugin itself asks", _script(ROUND, "Done."), aside=ModelFailure),
    Path("Ctrl-C in the model that the plugin itself asks", _script(ROUND, "Done."), aside=KeyboardInterrupt),
]


def _crash(point: str, error: type[BaseException], nth: int = 1) -> Path:
    what = "Ctrl-C" if error is KeyboardInterrupt else "an error"
    calls: list[Any] = [FAIL, _work] if point == "on_error" else [_work, _work]
    script = _script("Done.") if point == "on_complete" else _script(calls, "Done.")
    return Path(f"{what} in {point}", script, lambda: [crash_at(point, nth, error)])


_HALVES = [f"{hook}:{half}" for hook in AROUND for half in ("enter", "exit")]
_ENDS = [Path(f"the end in {hook}", _script(ROUND, "Done."), _does(hook, _end)) for hook in EVENTS[:-2]]
_CRASHES = [_crash(point, PathError) for point in (*EVENTS, *_HALVES, "on_trace")]
_PRESSED = [_crash(point, KeyboardInterrupt) for point in (*EVENTS, *_HALVES, "model", "tool", "on_trace", "on_text")]
_DOWN = [
    Path("an error in on_error for a model", _script(failure), lambda: [crash_at("on_error", 1, PathError)]),
    Path("Ctrl-C in on_error for a model", _script(failure), lambda: [crash_at("on_error")]),
    Path("Ctrl-C in the model's second call", _script(_work, "Done."), lambda: [crash_at("model", 2)]),
]

PLAIN: tuple[Path, ...] = tuple(_PLAIN)  # what happens without anybody's doing
PATHS: tuple[Path, ...] = (*_PLAIN, *_TREES, *_PAUSES, *_DECIDED, *_ENDS, *_CRASHES, *_PRESSED, *_DOWN, *_ASIDE)
