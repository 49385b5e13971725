"""Promise 2 as a table: every hook, on every path, exactly once and in this order: plain, streamed and awaited."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from awaiting import take

from connectagent import Agent, Continue, Image, LLMResponse, ProviderError, Retry, ToolCall, ToolRejected, hooks
from connectagent.hooks.specs import AROUND, EVENTS
from connectagent.testing import HookRecorder, ScriptedLLM

Boom = type("Boom", (Exception,), {})

# The parts that paths are made of. A `+` is a trace entry, `>` and `<` are the two halves of an around hook.
BEGIN = ">turn on_session +user_input after_user_input"
GO_ON = ">turn +user_input after_user_input"
ASK = "before_llm >llm <llm +llm_call after_llm"
STAND_IN_MODEL = "before_llm +llm_call after_llm"
FAILED_MODEL = ">llm <llm +llm_call on_error"
RUN = "before_each_tool >tool <tool +tool_execution after_each_tool"
NOT_RUN = "before_each_tool +tool_execution after_each_tool"
FAILED = "before_each_tool >tool <tool +tool_execution on_error after_each_tool"
NOT_CALLED = "before_each_tool +tool_execution on_error after_each_tool"
SKIPPED = "+tool_execution after_each_tool"
LEFT = "+tool_execution"
ANSWER = f"{ASK} on_complete <turn"
END = "on_complete <turn"
ABORT = "+error <turn"


class Path(NamedTuple):
    """One path through a turn.

    Args:
        name: what happens.
        script: the model's responses.
        handlers: the handlers that make it happen, listed behind the recorder.
        hooks: the hooks that fire, in order.
        outcome: what `input()` returns, or the type of what it raises.
        limit: the number of iterations.
    """

    name: str
    script: list[Any]
    handlers: list[Any]
    hooks: str
    outcome: Any = "Done."
    limit: int = 10


def at(
    hook: str, value: Any = None, do: Callable[[Agent], Any] | None = None, error: Any = None, times: int = 1
) -> Any:
    """A handler that, the first `times` times, does something with the agent, raises, or answers."""
    left = [times]

    def handler(agent: Agent) -> Any:
        left[0] -= 1
        if left[0] < 0:
            return None
        if do is not None:
            do(agent)
        if error is not None:
            raise error
        return value

    return getattr(hooks, hook)(handler)


def around(hook: str, where: str) -> Any:
    """An around handler that raises before or after the operation."""

    def handler(agent: Agent) -> Iterator[None]:
        if where == "before":
            raise Boom
        yield
        raise Boom

    return getattr(hooks, hook)(handler)


def end(agent: Agent) -> None:
    agent.end_turn("Ended.")


def good(x: int = 0) -> int:
    """Work."""
    return 2 * x


def bad() -> int:
    """Fail."""
    raise Boom("no")


def once_bad(agent: Any) -> str:
    """Fail the first time."""
    agent.fails = getattr(agent, "fails", 0) + 1
    if agent.fails == 1:
        raise Boom("no")
    return "yes"


def picture() -> Image:
    """Take a picture."""
    return Image(b"\x89PNG")


def ending(agent: Any) -> str:
    """End the turn."""
    agent.end_turn("Ended.")
    return "last"


def edit_round(agent: Agent) -> None:
    for pending in agent.session["pending_tools"] or ():
        pending["arguments"] = {"x": "2"}


def edit_call(agent: Agent) -> None:
    pending = agent.session["pending_tool"]
    assert pending is not None
    pending["arguments"] = {"x": 2.0}


def misspell_call(agent: Agent) -> None:
    pending = agent.session["pending_tool"]
    assert pending is not None
    pending["arguments"] = {"x": "two"}


def asking(agent: Any) -> str:
    """Ask for another tool."""
    return str(agent.execute_tool("good", {"x": 1})["result"])


def pressed() -> str:
    """Be interrupted."""
    raise KeyboardInterrupt


GOOD: Any = ("good", {"x": 1})
BROKEN = ToolCall("broken", "good", {}, error="not JSON")
UNREADABLE = ToolCall("unreadable", "good", [1])  # type: ignore[arg-type]
NO = ToolRejected("no")
PICTURE: Any = ("picture", {})
REFUSED = ProviderError("Could not process image", kind="bad_request", provider="x", status=400)
ROUND_END = f"after_tools {ANSWER}"

PATHS = [
    Path("an answer", ["Done."], [], f"{BEGIN} {ANSWER}"),
    Path("an empty answer", [""], [], f"{BEGIN} {ANSWER}", ""),
    Path("no content at all", [LLMResponse()], [], f"{BEGIN} {ANSWER}", ""),
    Path("a tool call", [GOOD, "Done."], [], f"{BEGIN} {ASK} before_tools {RUN} {ROUND_END}"),
    Path("text and a call", [LLMResponse("Hm.", [ToolCall("a", "good")]), "Done."], [],
         f"{BEGIN} {ASK} before_tools {RUN} {ROUND_END}"),
    Path("two calls in a round", [[GOOD, GOOD], "Done."], [], f"{BEGIN} {ASK} before_tools {RUN} {RUN} {ROUND_END}"),
    Path("two rounds", [GOOD, GOOD, "Done."], [],
         f"{BEGIN} {ASK} before_tools {RUN} after_tools {ASK} before_tools {RUN} {ROUND_END}"),
    Path("a tool's error", [[("bad", {}), GOOD], "Done."], [],
         f"{BEGIN} {ASK} before_tools {FAILED} {RUN} {ROUND_END}"),
    Path("an unknown tool", [("nope", {}), "Done."], [], f"{BEGIN} {ASK} before_tools {NOT_CALLED} {ROUND_END}"),
    Path("arguments that do not fit", [("good", {"x": "two"}), "Done."], [],
         f"{BEGIN} {ASK} before_tools {NOT_CALLED} {ROUND_END}"),
    # Arguments are checked before `before_tools`, and after each edit.
    Path("arguments that do not fit, repaired", [("good", {"x": "two"}), "Done."], [at("before_tools", do=edit_round)],
         f"{BEGIN} {ASK} before_tools +change before_tools {RUN} {ROUND_END}"),
    Path("a round that is edited", [[GOOD, GOOD], "Done."], [at("before_tools", do=edit_round)],
         f"{BEGIN} {ASK} before_tools +change before_tools {RUN} {RUN} {ROUND_END}"),
    Path("a call that is edited", [[GOOD, GOOD], "Done."], [at("before_each_tool", do=edit_call)],
         f"{BEGIN} {ASK} before_tools before_each_tool +change before_each_tool before_tools >tool <tool "
         f"+tool_execution after_each_tool {RUN} {ROUND_END}"),
    Path("a call that is edited so that it does not fit", [GOOD, "Done."], [at("before_each_tool", do=misspell_call)],
         f"{BEGIN} {ASK} before_tools before_each_tool +change before_each_tool before_tools "
         f"+tool_execution on_error after_each_tool {ROUND_END}"),
    Path("a call by execute_tool", [("asking", {}), "Done."], [],
         f"{BEGIN} {ASK} before_tools before_each_tool >tool before_tools {RUN} <tool +tool_execution after_each_tool "
         f"{ROUND_END}"),
    Path("arguments that are not JSON", [[BROKEN], "Done."], [],
         f"{BEGIN} {ASK} before_tools {NOT_CALLED} {ROUND_END}"),
    Path("arguments that are no object", [[UNREADABLE], "Done."], [],
         f"{BEGIN} {ASK} before_tools {NOT_CALLED} {ROUND_END}"),
    Path("a rejected call", [[GOOD, GOOD], "Done."], [at("before_each_tool", error=NO)],
         f"{BEGIN} {ASK} before_tools {NOT_RUN} {RUN} {ROUND_END}"),
    Path("a rejected round", [[GOOD, GOOD], "Done."], [at("before_tools", error=NO)],
         f"{BEGIN} {ASK} before_tools {SKIPPED} {SKIPPED} {ROUND_END}"),
    Path("a stand-in for a tool", [GOOD, "Done."], [at("before_each_tool", 0)],
         f"{BEGIN} {ASK} before_tools {NOT_RUN} {ROUND_END}"),
    Path("a stand-in for the model", [], [at("before_llm", "Done.")], f"{BEGIN} {STAND_IN_MODEL} {END}"),
    Path("a stand-in that calls a tool", ["Done."], [at("before_llm", LLMResponse(None, [ToolCall("a", "good")]))],
         f"{BEGIN} {STAND_IN_MODEL} before_tools {RUN} {ROUND_END}"),
    Path("an answer to the user's input", [], [at("after_user_input", "Done.")], f"{BEGIN} +message {END}"),
    Path("an empty answer to the user's input", [], [at("after_user_input", "")], f"{BEGIN} +message {END}", ""),
    Path("a model's error", [Boom("down")], [], f"{BEGIN} before_llm {FAILED_MODEL} {ABORT}", Boom),
    Path("a model's error, recovered", [Boom("down")], [at("on_error", "Done.")],
         f"{BEGIN} before_llm {FAILED_MODEL} +change after_llm {END}"),
    Path("content that was refused, and its replacement", [PICTURE, REFUSED, "Done."], [],
         f"{BEGIN} {ASK} before_tools {RUN} after_tools before_llm >llm <llm +llm_call >llm <llm +llm_call "
         f"+message_edited after_llm +assistant {END}"),
    Path("content that was refused, twice", [PICTURE, REFUSED, REFUSED], [],
         f"{BEGIN} {ASK} before_tools {RUN} after_tools before_llm >llm <llm +llm_call {FAILED_MODEL} {ABORT}",
         ProviderError),
    Path("a model's error, tried again", [Boom("down"), "Done."], [at("on_error", Retry())],
         f"{BEGIN} before_llm {FAILED_MODEL} >llm <llm +llm_call after_llm {END}"),
    Path("a model's error, tried again in vain", [Boom("1"), Boom("2")], [at("on_error", Retry())],
         f"{BEGIN} before_llm {FAILED_MODEL} {FAILED_MODEL} {ABORT}", Boom),
    Path("a tool's error, recovered", [("bad", {}), "Done."], [at("on_error", "other")],
         f"{BEGIN} {ASK} before_tools before_each_tool >tool <tool +tool_execution on_error +change "
         f"after_each_tool {ROUND_END}"),
    Path("a tool's error, tried again", [("once_bad", {}), "Done."], [at("on_error", Retry())],
         f"{BEGIN} {ASK} before_tools before_each_tool >tool <tool +tool_execution on_error >tool <tool +change "
         f"after_each_tool {ROUND_END}"),
    Path("a tool's error, tried again in vain", [("bad", {}), "Done."], [at("on_error", Retry())],
         f"{BEGIN} {ASK} before_tools before_each_tool >tool <tool +tool_execution on_error >tool <tool +change "
         f"on_error after_each_tool {ROUND_END}"),
    Path("the end in before_llm", [], [at("before_llm", do=end)], f"{BEGIN} before_llm +message {END}", "Ended."),
    Path("the end in after_llm", [[GOOD, GOOD]], [at("after_llm", do=end)],
         f"{BEGIN} {ASK} {LEFT} {LEFT} +message {END}", "Ended."),
    Path("the end in after_llm of an answer", ["Done."], [at("after_llm", do=end)], f"{BEGIN} {ASK} {END}", "Ended."),
    Path("the end in before_tools", [[GOOD, GOOD]], [at("before_tools", do=end)],
         f"{BEGIN} {ASK} before_tools {SKIPPED} {SKIPPED} after_tools +message {END}", "Ended."),
    Path("the end in before_each_tool", [[GOOD, GOOD]], [at("before_each_tool", do=end)],
         f"{BEGIN} {ASK} before_tools {NOT_RUN} {SKIPPED} after_tools +message {END}", "Ended."),
    Path("the end in a tool", [[("ending", {}), GOOD]], [],
         f"{BEGIN} {ASK} before_tools {RUN} {SKIPPED} after_tools +message {END}", "Ended."),
    Path("the end in on_error of a tool", [[("bad", {}), GOOD]], [at("on_error", do=end)],
         f"{BEGIN} {ASK} before_tools {FAILED} {SKIPPED} after_tools +message {END}", "Ended."),
    Path("the end in on_error of a model", [Boom("down")], [at("on_error", do=end)],
         f"{BEGIN} before_llm {FAILED_MODEL} +message {END}", "Ended."),
    Path("the end in on_error of a model, and a value", [Boom("down")], [at("on_error", "Done.", do=end)],
         f"{BEGIN} before_llm {FAILED_MODEL} +change after_llm {END}", "Ended."),
    Path("the end in on_error of a model, and Retry", [Boom("down")], [at("on_error", Retry(), do=end)],
         f"{BEGIN} before_llm {FAILED_MODEL} +message {END}", "Ended."),
    Path("the end in after_each_tool", [[GOOD, GOOD]], [at("after_each_tool", do=end)],
         f"{BEGIN} {ASK} before_tools {RUN} {SKIPPED} after_tools +message {END}", "Ended."),
    Path("the end in after_tools", [GOOD], [at("after_tools", do=end)],
         f"{BEGIN} {ASK} before_tools {RUN} after_tools +message {END}", "Ended."),
    Path("the limit", [GOOD, GOOD], [], f"{BEGIN} {ASK} before_tools {RUN} after_tools {ASK} before_tools {RUN} "
         f"after_tools {END}", "Task incomplete: Maximum iterations (2) reached.", 2),
    Path("Continue", ["More?", "Done."], [at("on_complete", Continue("Yes."))],
         f"{BEGIN} {ASK} on_complete +message {ANSWER}"),
    Path("Continue at the limit", ["Done."], [at("on_complete", Continue("Yes."))], f"{BEGIN} {ANSWER}", "Done.", 1),
    Path("Ctrl-C in the model", [KeyboardInterrupt()], [],
         f"{BEGIN} before_llm >llm <llm +llm_call {ABORT}", KeyboardInterrupt),
    Path("Ctrl-C in a tool", [[("pressed", {}), GOOD]], [],
         f"{BEGIN} {ASK} before_tools before_each_tool >tool <tool {LEFT} {LEFT} {ABORT}", KeyboardInterrupt),
    Path("Ctrl-C in a handler", [[GOOD, GOOD]], [at("after_each_tool", error=KeyboardInterrupt())],
         f"{BEGIN} {ASK} before_tools {RUN} {LEFT} {ABORT}", KeyboardInterrupt),
    Path("after_user_input raises", [], [at("after_user_input", error=Boom())], f"{BEGIN} {ABORT}", Boom),
    Path("before_llm raises", [], [at("before_llm", error=Boom())], f"{BEGIN} before_llm {ABORT}", Boom),
    Path("after_llm raises", ["Done."], [at("after_llm", error=Boom())], f"{BEGIN} {ASK} {ABORT}", Boom),
    Path("before_tools raises", [[GOOD, GOOD]], [at("before_tools", error=Boom())],
         f"{BEGIN} {ASK} before_tools {LEFT} {LEFT} {ABORT}", Boom),
    Path("before_each_tool raises", [[GOOD, GOOD]], [at("before_each_tool", error=Boom())],
         f"{BEGIN} {ASK} before_tools before_each_tool {LEFT} {LEFT} {ABORT}", Boom),
    Path("after_each_tool raises", [[GOOD, GOOD]], [at("after_each_tool", error=Boom())],
         f"{BEGIN} {ASK} before_tools {RUN} {LEFT} {ABORT}", Boom),
    Path("after_tools raises", [GOOD], [at("after_tools", error=Boom())],
         f"{BEGIN} {ASK} before_tools {RUN} after_tools {ABORT}", Boom),
    Path("on_error raises for a tool", [[("bad", {}), GOOD]], [at("on_error", error=Boom())],
         f"{BEGIN} {ASK} before_tools before_each_tool >tool <tool +tool_execution on_error {LEFT} {ABORT}", Boom),
    Path("on_error raises for a model", [OSError()], [at("on_error", error=Boom())],
         f"{BEGIN} before_llm {FAILED_MODEL} {ABORT}", Boom),
    Path("on_complete raises", ["Done."], [at("on_complete", error=Boom())],
         f"{BEGIN} {ASK} on_complete {ABORT}", Boom),
    Path("around_turn raises before", [], [around("around_turn", "before")], ">turn <turn", Boom),
    Path("around_turn raises after", ["Done."], [around("around_turn", "after")], f"{BEGIN} {ANSWER}", Boom),
    Path("around_llm raises before", [], [around("around_llm", "before")],
         f"{BEGIN} before_llm >llm <llm {ABORT}", Boom),
    Path("around_llm raises after", ["Done."], [around("around_llm", "after")],
         f"{BEGIN} before_llm >llm <llm +llm_call {ABORT}", Boom),
    Path("around_tool raises before", [[GOOD, GOOD]], [around("around_tool", "before")],
         f"{BEGIN} {ASK} before_tools before_each_tool >tool <tool {LEFT} {LEFT} {ABORT}", Boom),
    Path("around_tool raises after", [GOOD], [around("around_tool", "after")],
         f"{BEGIN} {ASK} before_tools before_each_tool >tool <tool {LEFT} {ABORT}", Boom),
]  # fmt: skip

_SIGNS = {">": "around_{}:enter", "<": "around_{}:exit", "+": "on_trace:{}"}


def spelled_out(path: str) -> list[str]:
    return [_SIGNS.get(word[0], "{}").format(word.lstrip("><+")) for word in path.split()]


def seen(recorder: HookRecorder) -> list[str]:
    return [name for name in recorder.names if name not in ("on_text", "on_agent_ready")]


def _refreshed(handlers: list[Any]) -> None:
    """Handlers count their calls; each run begins anew."""
    for handler in handlers:
        for cell in handler.__closure__ or ():
            if isinstance(cell.cell_contents, list):
                cell.cell_contents[0] = 1


def _agent(path: Path, stream: bool) -> tuple[Agent, HookRecorder]:
    _refreshed(path.handlers)
    recorder = HookRecorder()
    agent = Agent(
        "table",
        [good, bad, once_bad, ending, asking, pressed, picture],
        llm=ScriptedLLM(*path.script),
        plugins=[recorder, path.handlers],
        max_iterations=path.limit,
        stream=stream,
        log=False,
        quiet=True,
    )
    return agent, recorder


def _run(agent: Agent, path: Path, awaited: bool = False) -> None:
    if isinstance(path.outcome, str):
        assert take(agent, "Go.", awaited) == path.outcome
    else:
        with pytest.raises(path.outcome):
            take(agent, "Go.", awaited)


@pytest.mark.parametrize("how", ["plain", "streamed", "awaited"])
@pytest.mark.parametrize("path", PATHS, ids=[path.name.replace(" ", "_") for path in PATHS])
def test_each_path_fires_exactly_these_hooks_in_this_order(path: Path, how: str) -> None:
    agent, recorder = _agent(path, how == "streamed")
    _run(agent, path, how == "awaited")
    assert seen(recorder) == spelled_out(path.hooks)


@pytest.mark.parametrize("path", PATHS, ids=[path.name.replace(" ", "_") for path in PATHS])
def test_the_turn_after_any_path_is_a_whole_one(path: Path) -> None:
    agent, recorder = _agent(path, stream=False)
    _run(agent, path)
    recorder.clear()
    agent.llm = ScriptedLLM(GOOD, "Done.")
    agent.max_iterations = 10
    if any("around" in str(handler.connectagent_marks) for handler in path.handlers):
        return  # it raises each time
    assert agent.input("Go on.") == "Done."
    assert seen(recorder) == spelled_out(f"{GO_ON} {ASK} before_tools {RUN} {ROUND_END}")


def test_the_table_reaches_every_event_and_around_hook() -> None:
    words = {word for path in PATHS for word in spelled_out(path.hooks)}
    assert words >= {*EVENTS, *(f"{hook}:{half}" for hook in AROUND for half in ("enter", "exit"))}


def test_streamed_text_is_told_inside_the_model_call() -> None:
    recorder = HookRecorder()
    agent = Agent("table", llm=ScriptedLLM("one two"), plugins=[recorder], stream=True, log=False, quiet=True)
    agent.input("Go.")
    start = recorder.names.index("around_llm:enter")
    assert recorder.names[start : start + 4] == ["around_llm:enter", "on_text", "on_text", "around_llm:exit"]
    assert [given["text"] for given in recorder.of("on_text")] == ["one ", "two"]
