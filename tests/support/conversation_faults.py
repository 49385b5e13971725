"""What can go wrong in a session: acts that handlers, tools and callers of the property test perform.

An act is a function of the agent, the hook's arguments and a small number `n` that hypothesis draws (a
position, a choice). What it returns is what the handler or tool returns.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from connectagent import Agent, Continue, Image, LLMResponse, Retry, ToolCall, ToolRejected

Act = Callable[[Agent, dict[str, Any], int], Any]
ACTS: dict[str, Act] = {}


class Boom(Exception):
    """Raised on purpose."""


class Abrupt(BaseException):
    """Raised on purpose, and no Exception."""


def act(function: Act) -> Act:
    ACTS[function.__name__] = function
    return function


def _call(id: Any, arguments: Any = "{}", name: Any = "good") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _marked(number: int, mark: Any = {"type": "ephemeral"}) -> dict[str, Any]:  # noqa: B006  never changed
    return {"type": "text", "text": f"part {number}", "cache_control": mark}


def _spoken(provider_data: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "p", "provider_data": provider_data}


def _answered(part: Any, **more: Any) -> dict[str, Any]:
    return {"type": "message", "content": [part], **more}


def _output(id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": "forged"}


OUTPUT = {"type": "output_text", "text": "p"}
PICTURE = b"\x89PNG\r\n\x1a\n" + b"0" * 8
MESSAGES: list[Callable[[], Any]] = [
    lambda: {"role": "user", "content": "more"},
    lambda: {"role": "assistant", "content": "I say"},
    lambda: {"role": "user", "content": ""},
    lambda: {"role": "assistant", "content": " \n "},
    lambda: {"role": "assistant", "content": "ends in a space "},
    lambda: {"role": "system", "content": "Be brief."},
    lambda: {"role": "developer", "content": ""},
    lambda: {"role": "tool", "tool_call_id": "nobody", "content": "orphan"},
    lambda: {"role": "tool", "tool_call_id": "c1", "content": "a second result"},
    lambda: {"role": "tool", "tool_call_id": "", "content": ""},
    lambda: {"role": "assistant", "content": None, "tool_calls": [_call("c1")]},
    lambda: {"role": "assistant", "content": "", "tool_calls": [_call("x"), _call("x"), _call("y")]},
    lambda: {"role": "assistant", "content": None, "tool_calls": [_call("")]},
    lambda: {"role": "assistant", "content": "t", "tool_calls": [_call("z", "{broken"), _call("a b.c" * 20, "[1]")]},
    lambda: {"role": "assistant", "content": "t", "tool_calls": [_call("w", '{"x": NaN}', "no such.name!" * 9)]},
    lambda: {"role": "assistant", "content": "t", "tool_calls": []},
    lambda: {"role": "assistant", "content": "", "tool_calls": None},
    lambda: {"role": "user", "content": "t", "tool_calls": None},
    lambda: {"role": "assistant", "content": None},
    lambda: {"role": "user", "content": [{"type": "text", "text": ""}]},
    lambda: {"role": "user", "content": [{"type": "text", "text": "a"}, Image(PICTURE).part()]},
    lambda: {"role": "user", "content": [{"type": "audio?"}, {"type": "text"}, {"type": "image_url"}]},
    lambda: {"role": "assistant", "content": [{"type": "text", "text": "part"}], "provider_data": {"provider": "x"}},
    lambda: {"role": "assistant", "content": "p", "provider_data": {"provider": "anthropic", "content": [{"type": 1}]}},
    lambda: {"role": "user", "content": "half \ud83d of a pair", "name": "né"},
    lambda: {"role": "user", "content": "x", "own": object(), "name": 5},
    lambda: {"role": "user"},
    lambda: {"role": "robot", "content": "beep"},
    lambda: {"content": "who?"},
    lambda: {},
    lambda: "just text",
    lambda: None,
    lambda: {"role": "user", "content": 5},
    lambda: {"role": ["user"], "content": "x"},
    lambda: {"role": "tool", "content": "no id"},
    lambda: {"role": "tool", "tool_call_id": ["c1"], "content": "x"},
    lambda: {"role": "assistant", "content": None, "tool_calls": "junk"},
    lambda: {"role": "assistant", "content": None, "tool_calls": [None, {"id": 5}, {"function": {}}]},
    lambda: {"role": "assistant", "content": None, "tool_calls": [_call(5, {"x": 1})]},
    lambda: {"role": "user", "content": []},
    lambda: {"role": "user", "content": [None]},
    lambda: {"role": "user", "content": [Image(PICTURE, "image/bmp").part()]},
    lambda: {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]},
    lambda: {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "", "detail": float("nan")}}]},
    lambda: {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}]},
    lambda: {"role": "user", "content": [{"type": "input_audio"}, {"type": "file", "file": 5}, {"type": "document"}]},
    lambda: {"role": "user", "content": [_marked(number) for number in range(5)]},
    lambda: {"role": "user", "content": [_marked(0, {"type": "for ever"}), _marked(1, None)]},
    lambda: OrderedDict(role="user", content=[OrderedDict(type="text", text="ordered")]),
    lambda: _spoken({"provider": "anthropic", "content": [{"type": "text"}]}),
    lambda: _spoken({"provider": "anthropic", "content": [{"type": "text", "text": "p", "citations": float("nan")}]}),
    lambda: _spoken({"provider": "anthropic", "content": [{"type": "tool_use", "id": 5, "name": None, "input": 1}]}),
    lambda: _spoken({"provider": "anthropic", "content": {"type": "text"}}),
    lambda: _spoken({"provider": "openai", "message": {"role": "robot", "content": 5, "tool_calls": "x"}}),
    lambda: _spoken({"provider": "openai", "message": 5, "extra_content": 5}),
    lambda: _spoken({"provider": "openai", "custom": 5, "content": ["p"]}),
    lambda: _spoken({"provider": "openai-responses", "items": 5}),
    lambda: _spoken({"provider": "openai-responses", "items": [{"type": "message", "content": 5}]}),
    lambda: _spoken({"provider": "openai-responses", "items": [_answered({"type": "output_text", "text": 5})]}),
    lambda: _spoken({"provider": "openai-responses", "items": [_answered(OUTPUT, role="user"), {"type": ["x"]}]}),
    lambda: _spoken({"provider": "openai-responses", "items": [{"type": "function_call"}, _answered(OUTPUT)]}),
    lambda: _spoken({"provider": "openai-responses", "items": [_output("c1"), _answered(OUTPUT)]}),
    lambda: _spoken({"provider": "openai-responses", "items": [_answered(OUTPUT, logprobs=float("nan"))]}),
    lambda: {"role": "user", "content": [{"type": "input_text"}, {"type": "input_image", "image_url": "file:///x"}]},
    lambda: {"role": "user", "content": [{"type": "input_file"}, {"type": "input_image", "detail": 5}]},
    lambda: _spoken([1]),
    lambda: _spoken(5),
]


def _messages(agent: Agent) -> list[Any]:
    assert agent.current_session is not None
    messages = agent.current_session.get("messages")
    return messages if isinstance(messages, list) else []


@act
def append_message(agent: Agent, given: dict[str, Any], n: int) -> None:
    _messages(agent).append(MESSAGES[n % len(MESSAGES)]())


@act
def append_to_last_round(agent: Agent, given: dict[str, Any], n: int) -> None:
    messages = _messages(agent)
    ids = [call["id"] for m in messages if isinstance(m, dict) for call in m.get("tool_calls") or () if "id" in call]
    if ids:
        messages.append({"role": "tool", "tool_call_id": ids[n % len(ids)], "content": "mine"})


@act
def insert_message(agent: Agent, given: dict[str, Any], n: int) -> None:
    messages = _messages(agent)
    messages.insert(-(n % 5) if n % 2 else 0, MESSAGES[n % len(MESSAGES)]())


@act
def insert_same_object_again(agent: Agent, given: dict[str, Any], n: int) -> None:
    messages = _messages(agent)
    if messages:
        messages.append(messages[n % len(messages)])


@act
def delete_message(agent: Agent, given: dict[str, Any], n: int) -> None:
    messages = _messages(agent)
    if messages:
        del messages[-1 - n % len(messages)]


@act
def clear_messages(agent: Agent, given: dict[str, Any], n: int) -> None:
    _messages(agent)[n % 3 :] = []


@act
def reorder_messages(agent: Agent, given: dict[str, Any], n: int) -> None:
    messages = _messages(agent)
    messages.reverse() if n % 2 else messages.sort(key=lambda m: hash(str(m)[:20]) % 7)


@act
def edit_message(agent: Agent, given: dict[str, Any], n: int) -> None:
    messages = _messages(agent)
    message = messages[-1 - n % len(messages)] if messages else None
    if not isinstance(message, dict):
        return
    edits: list[Callable[[], Any]] = [
        lambda: message.update(content="edited"),
        lambda: message.update(content=None),
        lambda: message.update(content=""),
        lambda: message.update(role="user"),
        lambda: message.update(role="tool"),
        lambda: message.update(tool_call_id="other"),
        lambda: message.pop("tool_calls", None),
        lambda: message.update(tool_calls=[]),
        lambda: message.clear(),
        lambda: message["tool_calls"].append(_call("late")),
        lambda: message["tool_calls"].reverse(),
        lambda: message["tool_calls"].pop(0),
        lambda: message["tool_calls"][0].update(id="renamed"),
        lambda: message["tool_calls"][0].update(id=None),
        lambda: message["tool_calls"][-1].clear(),
        lambda: message["tool_calls"][0]["function"].update(arguments={"x": 1}),
        lambda: message["tool_calls"][0]["function"].update(arguments="{nope", name=""),
    ]
    with contextlib.suppress(KeyError, IndexError, TypeError, AttributeError):
        edits[n % len(edits)]()


@act
def replace_list(agent: Agent, given: dict[str, Any], n: int) -> None:
    assert agent.current_session is not None
    old = _messages(agent)
    agent.current_session["messages"] = [old[:], old[1:], old[:-1], [], None, "junk", tuple(old), old + old][n % 8]


@act
def break_session(agent: Agent, given: dict[str, Any], n: int) -> None:
    session: Any = agent.current_session
    edits: list[Callable[[], Any]] = [
        lambda: session.clear(),
        lambda: session.pop("messages"),
        lambda: session.pop("trace"),
        lambda: session.pop("state"),
        lambda: session.update(trace=[]),
        lambda: session["trace"].clear(),
        lambda: session["trace"].pop(),
        lambda: session["trace"].append({"type": "mine"}),
        lambda: session["trace"].append(5),
        lambda: session["trace"].append({"type": "tool_execution", "id": "T1/1/c1/tool1", "call_id": "c1"}),
        lambda: session["trace"].append({"type": "mine", "id": "T1/1/model1", "by": {"plugin": "x"}, "at": "T1"}),
        lambda: session["trace"][0].update(type="mine", prompt=float("nan")),
        lambda: session["trace"].append(session["trace"][0]),
        lambda: session["trace"].insert(0, {"type": "first"}),
        lambda: session["trace"].reverse(),
        lambda: session["trace"][-1].clear(),
        lambda: session.update(turn="x"),
        lambda: session.update(iteration=None),
        lambda: session.update(iteration=-3),
        lambda: session.update(iteration=True),
        lambda: session.pop("iteration"),
        lambda: session.update(pending_tool=5, pending_tools=object()),
        lambda: session.update(result=7, outcome=7, user_prompt=7),
        lambda: session.update({5: 6, "own": [[]]}),
        lambda: setattr(agent, "current_session", None),
        lambda: setattr(agent, "current_session", {}),
        lambda: setattr(agent, "current_session", dict(session)),
    ]
    with contextlib.suppress(KeyError, IndexError, TypeError, AttributeError):
        edits[n % len(edits)]()


class Incomparable:
    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]


@act
def change_state(agent: Agent, given: dict[str, Any], n: int) -> None:
    session: Any = agent.current_session
    state = session.get("state") if session else None
    if not isinstance(state, dict):
        return
    cycle: dict[str, Any] = {}
    cycle["again"] = cycle
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    edits: list[Callable[[], Any]] = [
        lambda: state.update(a=n),
        lambda: state.setdefault("nested", {"list": []})["list"].append(n),
        lambda: state.update({"temp:x": n}),
        lambda: state.clear(),
        lambda: state.update(odd=Incomparable()),
        lambda: state.update(cycle=cycle),
        lambda: state.update(deep=deep),
        lambda: state.update({5: {6, 7}, None: b"x"}),
        lambda: session.update(state=5),
        lambda: session.update(state={"new": 1}),
        lambda: state.update(nan=float("nan")),
    ]
    edits[n % len(edits)]()


def _tool(name: Any = "good", **parts: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **parts}}


NAN = float("nan")
TOOLS: list[Callable[[], Any]] = [
    lambda: _tool(),
    lambda: _tool("other"),
    lambda: _tool("a b"),
    lambda: _tool(None),
    lambda: _tool("x" * 65),
    lambda: _tool("o", parameters={"type": "string"}),
    lambda: _tool("o", parameters={"type": "object", "properties": {"a": {"maximum": NAN}}}),
    lambda: _tool("o", parameters={"type": "object", "properties": 5}),
    lambda: _tool("o", description=5),
    lambda: {"type": "web_search_20250305", "name": "web_search"},
    lambda: {"type": "function"},
    lambda: {},
    lambda: None,
]


@act
def edit_tools(agent: Agent, given: dict[str, Any], n: int) -> None:
    """Edit the tools of a request, and what stands in their schemas."""
    request: Any = given.get("request")
    if request is None or not isinstance(request.tools, list):
        return
    edits: list[Callable[[], Any]] = [
        *[lambda one=one: request.tools.append(one()) for one in TOOLS],  # type: ignore[misc]
        lambda: request.tools.clear(),
        lambda: request.tools.append(request.tools[0]),
        lambda: request.tools[0].clear(),
        lambda: request.tools[0]["function"].update(name="renamed"),
        lambda: request.tools[0]["function"].update(name=5),
        lambda: request.tools[0]["function"]["parameters"]["properties"].update(x=5),
        lambda: request.tools[0]["function"]["parameters"]["properties"]["x"].update(maximum=NAN),
        lambda: request.tools[0]["function"]["parameters"].update(required="x"),
        lambda: request.options.update(temperature=NAN),
        lambda: request.options.update(temperature=0.5),
    ]
    with contextlib.suppress(KeyError, IndexError, TypeError, AttributeError):
        edits[n % len(edits)]()


@act
def edit_given(agent: Agent, given: dict[str, Any], n: int) -> None:
    """Edit what the hook hands over: the request, the response, the call, the entry."""
    messages = _messages(agent)
    cycle: list[Any] = []
    cycle.append(cycle)
    edits: list[Callable[[], Any]] = [
        lambda: setattr(given["request"], "messages", messages[n % 3 :]),
        lambda: setattr(given["request"], "messages", [*messages, MESSAGES[n % len(MESSAGES)]()]),
        lambda: setattr(given["request"], "messages", list(reversed(messages))),
        lambda: setattr(given["request"], "messages", [None, [], 5][n % 3]),
        lambda: setattr(given["request"], "tools", [None, [], 5][n % 3]),
        lambda: setattr(given["request"], "model", None),
        lambda: setattr(given["response"], "content", [None, 5, "", "x", ["y"]][n % 5]),
        lambda: setattr(given["response"], "tool_calls", [[], None, 5, [None], ["x"], (), "junk"][n % 7]),
        lambda: setattr(given["response"], "tool_calls", [ToolCall("c1", "good"), ToolCall("c1", "good")]),
        lambda: setattr(given["response"], "provider_data", [5, {"x": object()}, {"provider": "anthropic"}][n % 3]),
        lambda: setattr(given["response"].tool_calls[0], "id", [5, None, "", "c2"][n % 4]),
        lambda: setattr(given["response"].tool_calls[0], "name", [5, None, "", "a b"][n % 4]),
        lambda: setattr(given["response"].tool_calls[0], "arguments", [None, "{", {1: cycle}, cycle][n % 4]),
        lambda: setattr(given["tool_call"], "arguments", [None, "{", {"x": cycle}, {"x": {5}}, []][n % 5]),
        lambda: setattr(given["tool_call"], "id", [5, None, "", "c2", ["x"]][n % 5]),
        lambda: setattr(given["tool_call"], "name", [5, None, "", "good", ["x"]][n % 5]),
        lambda: given["tool_call"].arguments.update(x=[cycle, object(), "\ud800"][n % 3]),
        lambda: given["tool_calls"].clear(),
        lambda: given["tool_calls"].append(ToolCall("added", "good")),
        lambda: given["tool_calls"].append([None, given["tool_calls"][0]][n % 2]),
        lambda: given["tool_calls"].reverse(),
        lambda: setattr(given["tool_calls"][0], "id", "renamed"),
        lambda: given["entry"].clear(),
        lambda: given["entry"].update(result=[object(), None, 5][n % 3], status=5),
        lambda: given["entries"].clear(),
        lambda: given["entries"].append(None),
    ]
    fitting = [edit for edit in edits if any(name in given for name in edit.__code__.co_consts)]
    if fitting:
        with contextlib.suppress(KeyError, IndexError, TypeError, AttributeError):
            fitting[n % len(fitting)]()


VALUES: list[Callable[[], Any]] = [
    lambda: "",
    lambda: "a value",
    lambda: 0,
    lambda: False,
    lambda: {},
    lambda: {1, 2},
    lambda: b"\xff",
    lambda: object(),
    lambda: "half \udc00 of a pair",
    lambda: "x" * 200_000,
    lambda: Image(PICTURE),
    lambda: Image(b"no picture"),
    lambda: [{"type": "text", "text": ""}],
    lambda: [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}],
    lambda: Incomparable(),
    lambda: Retry(),
    lambda: Retry(model="no such model"),
    lambda: Continue("go on"),
    lambda: Continue(""),
    lambda: Continue(5),  # type: ignore[arg-type]
    lambda: LLMResponse("stand-in"),
    lambda: LLMResponse(None, []),
    lambda: LLMResponse(""),
    lambda: LLMResponse(" "),
    lambda: LLMResponse(5, 5),  # type: ignore[arg-type]
    lambda: LLMResponse("x", [ToolCall("c1", "good", {"x": 1}), ToolCall("c1", "good"), ToolCall("", "bad")]),
    lambda: LLMResponse(None, [ToolCall(None, None, None)]),  # type: ignore[arg-type]
    lambda: (item for item in "lazy"),
]


@act
def return_value(agent: Agent, given: dict[str, Any], n: int) -> Any:
    return VALUES[n % len(VALUES)]()


ERRORS: list[Callable[[], BaseException]] = [
    lambda: Boom("raised"),
    lambda: Boom(),
    lambda: KeyboardInterrupt(),
    lambda: SystemExit(3),
    lambda: Abrupt("raised"),
    lambda: ToolRejected("no"),
    lambda: ToolRejected(),
    lambda: StopIteration("stop"),
    lambda: GeneratorExit(),
    lambda: RecursionError("deep"),
    lambda: MemoryError(),
    lambda: Boom("half \ud83d of a pair"),
]


@act
def raise_error(agent: Agent, given: dict[str, Any], n: int) -> None:
    raise ERRORS[n % len(ERRORS)]()


@act
def use_agent(agent: Agent, given: dict[str, Any], n: int) -> None:
    uses: list[Callable[[], Any]] = [
        lambda: agent.end_turn("ended"),
        lambda: agent.end_turn(),
        lambda: agent.end_turn(""),
        lambda: agent.end_turn(5),  # type: ignore[arg-type]
        lambda: agent.execute_tool("good", {"x": 1}),
        lambda: agent.execute_tool("bad", {}),
        lambda: agent.execute_tool("unknown"),
        lambda: agent.remove_tool("good"),
        lambda: setattr(agent, "ended", None),
    ]
    uses[n % len(uses)]()


@act
def misuse_agent(agent: Agent, given: dict[str, Any], n: int) -> None:
    with contextlib.suppress(RuntimeError):
        agent.input("in a turn") if n % 2 else agent.reset_conversation()
