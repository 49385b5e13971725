"""What a guard sees is what happens: a call's arguments have one form, whoever wrote or edited them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from connectagent import (
    Agent,
    HookResultError,
    Pause,
    Paused,
    Retry,
    ToolCall,
    ToolRejected,
    after_each_tool,
    after_tools,
    around_tool,
    before_each_tool,
    before_llm,
    before_tools,
    on_error,
    on_trace,
    shadow,
)
from connectagent.replay.playing import agent_from_record as agent_of_record
from connectagent.replay.recording import Recording
from connectagent.replay.replaying import replay
from connectagent.testing import ScriptedLLM, call

got: list[Any] = []


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    got.clear()


@dataclass
class Person:
    name: str
    age: int = 0


def mail(to: list[str]) -> str:
    """Send mail."""
    got.append(to)
    return "sent"


def pay(amount: int) -> str:
    """Pay."""
    got.append(amount)
    return "paid"


def wipe(really: bool) -> str:
    """Wipe."""
    got.append(really)
    return "wiped"


def meet(day: datetime.date) -> str:
    """Meet."""
    got.append(day)
    return "met"


def greet(who: Person) -> str:
    """Greet."""
    got.append(who)
    return "hello"


def note(fields: dict[str, int]) -> str:
    """Note."""
    got.append(fields)
    return "noted"


TOOLS = [mail, pay, wipe, meet, greet, note]
# tool and parameter; the form that everybody sees; what the function gets; how models spell it
CASES: list[tuple[Any, str, Any, Any, list[Any]]] = [
    (
        mail, "to", ["a@evil.com"], ["a@evil.com"],
        [["a@evil.com"], '["a@evil.com"]', '["\\u0061@evil.com"]', ' [ "a@evil.com" ]'],
    ),
    (pay, "amount", 1000, 1000, [1000, "1000", "1_000", 1000.0, "+1000", " 1000 ", "1000.0"]),
    (wipe, "really", True, True, [True, "yes", "true", "on", "t", "1", 1, 1.0]),
    (
        meet, "day", "2020-01-01", datetime.date(2020, 1, 1),
        ["2020-01-01", 1577836800, "1577836800", "2020-01-01T00:00:00"],
    ),
    (
        greet, "who", {"name": "a", "age": 3}, Person("a", 3),
        [{"name": "a", "age": 3}, '{"name": "\\u0061", "age": "3"}', {"age": 3.0, "name": "a"}],
    ),
    (note, "fields", {"a": 1}, {"a": 1}, [{"a": 1}, '{"a": 1}', {"a": "1"}, '{"\\u0061": 1.0}']),
]  # fmt: skip
SPELLINGS = [(function, name, form, value, sent) for function, name, form, value, all_ in CASES for sent in all_]


class Seen:
    """Handlers that note the arguments wherever a call can be read."""

    def __init__(self) -> None:
        self.forms: dict[str, Any] = {}

    def handlers(self) -> list[Any]:
        """One handler for each hook that has the call."""

        @before_tools
        def round_begins(agent: Agent, tool_calls: list[ToolCall]) -> None:
            self._note("before_tools", tool_calls[-1].arguments)
            listed = agent.session["pending_tools"]
            self._note("pending_tools", listed[-1]["arguments"] if listed and len(tool_calls) == len(listed) else None)

        @before_each_tool
        def call_begins(agent: Agent, tool_call: ToolCall) -> None:
            self._note("before_each_tool", tool_call.arguments)
            pending = agent.session["pending_tool"]
            assert pending is not None
            self._note("pending_tool", pending["arguments"])

        @around_tool
        def around(tool_call: ToolCall) -> Iterator[None]:
            self._note("around_tool", tool_call.arguments)
            yield

        @after_each_tool
        def call_is_over(tool_call: ToolCall, entry: dict[str, Any]) -> None:
            self._note("after_each_tool", tool_call.arguments)
            self._note("entry", entry["arguments"])

        @on_trace
        def traced(entry: dict[str, Any]) -> None:
            if entry["type"] == "tool_execution":
                self._note("on_trace", entry["arguments"])

        return [round_begins, call_begins, around, call_is_over, traced]

    def _note(self, where: str, arguments: Any) -> None:
        if arguments:
            self.forms[where] = json.loads(json.dumps(arguments))


def exact(value: Any) -> str:
    """A value in which True, 1 and 1.0 differ."""
    return json.dumps(value, sort_keys=True)


WAYS: dict[str, dict[str, Any]] = {"in series": {}, "in parallel": {"parallel_tools": 4}}


@pytest.mark.parametrize("how", ["in series", "in parallel", "by execute_tool", "resumed"])
@pytest.mark.parametrize(("function", "name", "form", "value", "sent"), SPELLINGS)
def test_everybody_sees_the_form_that_the_function_gets(
    function: Any, name: str, form: Any, value: Any, sent: Any, how: str
) -> None:
    seen = Seen()

    def agent_of(*handlers: Any, resumed: bool = False) -> Agent:
        model_call = call(function.__name__, **{name: sent})
        script: list[Any] = [[call("look"), model_call] if how == "in parallel" else [model_call], "Done."]
        llm = ScriptedLLM(*script[resumed:])
        all_handlers = [*seen.handlers(), *handlers]
        return Agent("a", [*TOOLS, look], llm=llm, quiet=True, on_events=all_handlers, **WAYS.get(how, {}))

    if how == "by execute_tool":
        agent_of().execute_tool(function.__name__, {name: sent})
    elif how == "resumed":
        first = agent_of(before_each_tool(pauses))
        with pytest.raises(Paused):
            first.input("Go.")
        seen.forms.clear()
        agent_of(before_each_tool(pauses), resumed=True).resume(first.record, approve=True)
    else:
        agent_of().input("Go.")
    assert got == [value]
    assert {exact(one) for one in seen.forms.values()} == {exact({name: form})}, seen.forms
    missing = {"before_tools", "pending_tools", "before_each_tool", "pending_tool", "around_tool", "entry", "on_trace"}
    missing -= {"pending_tools"} if how == "by execute_tool" else set()
    missing -= {"before_tools", "pending_tools"} if how == "resumed" else set()
    missing -= {"before_each_tool", "pending_tool"} if how == "resumed" else set()
    assert missing <= set(seen.forms)


def look() -> str:
    """Look."""
    return "seen"


def pauses(tool_call: ToolCall) -> None:
    if not tool_call.approved:
        raise Pause("May it?")


@pytest.mark.parametrize(("function", "name", "form", "value", "sent"), SPELLINGS)
def test_the_record_has_the_form_and_what_was_sent_beside_it(
    function: Any, name: str, form: Any, value: Any, sent: Any
) -> None:
    agent = Agent("a", TOOLS, llm=ScriptedLLM([call(function.__name__, **{name: sent})], "Done."), quiet=True)
    agent.input("Go.")
    (entry,) = [entry for entry in agent.session["trace"] if entry["type"] == "tool_execution"]
    assert exact(entry["arguments"]) == exact({name: form})
    assert exact(entry.get("sent_arguments", entry["arguments"])) == exact({name: sent})
    (answer, _) = [entry for entry in agent.session["trace"] if entry["type"] == "llm_call"]
    assert exact(answer["tool_calls"][0]["arguments"]) == exact({name: sent})
    message = next(one for one in agent.session["messages"] if one.get("tool_calls"))
    assert exact(json.loads(message["tool_calls"][0]["function"]["arguments"])) == exact({name: sent})


# -- arguments that do not fit -----------------------------------------------------------------------


def agent_of(*handlers: Any, script: Any = None, tools: Any = None, **options: Any) -> Agent:
    llm = ScriptedLLM(*(script or ([call("pay", amount="all")], "Done.")))
    plain: dict[str, Any] = {"log": False, "quiet": True, "on_events": list(handlers)}
    return Agent("a", tools or [*TOOLS, look], llm=llm, **{**plain, **options})


def entries(agent: Agent, kind: str = "tool_execution") -> list[dict[str, Any]]:
    return [entry for entry in agent.session["trace"] if entry["type"] == kind]


@pytest.mark.parametrize("parallel_tools", [1, 4])
def test_a_misfit_is_shown_to_handlers_as_it_was_sent_and_reaches_no_tool(parallel_tools: int) -> None:
    seen: list[Any] = []

    @before_each_tool
    def sees(tool_call: ToolCall) -> None:
        seen.append((tool_call.arguments, tool_call.misfit))

    @around_tool
    def never(tool_call: ToolCall) -> Iterator[None]:
        seen.append("around")
        yield

    script = [[call("pay", amount="all"), call("pay", amount="much")], "Done."]
    agent = agent_of(sees, never, script=script, parallel_tools=parallel_tools)
    agent.input("Go.")
    assert got == []
    assert [arguments for arguments, _ in seen] == [{"amount": "all"}, {"amount": "much"}]
    assert all("valid integer" in misfit for _, misfit in seen)
    assert [entry["status"] for entry in entries(agent)] == ["error", "error"]


def repairs(hook: Callable[..., Any]) -> Any:
    if hook is before_tools:

        @before_tools
        def repair(tool_calls: list[ToolCall]) -> None:
            for one in tool_calls:
                one.arguments = {"amount": "5_0"}

        return repair

    @hook
    def repair_one(tool_call: ToolCall) -> Any:
        if tool_call.misfit:
            tool_call.arguments["amount"] = "5_0"
        return None

    return repair_one


@pytest.mark.parametrize("hook", [before_tools, before_each_tool])
def test_a_handler_that_makes_it_fit_lets_it_run(hook: Any) -> None:
    seen: list[Any] = []

    @before_each_tool(trylast=True)
    def sees(tool_call: ToolCall) -> None:
        seen.append((tool_call.arguments, tool_call.misfit))

    agent_of(repairs(hook), sees).input("Go.")
    assert got == [50]
    assert seen[-1] == ({"amount": 50}, None)


def test_a_misfit_that_on_error_repairs_runs_when_it_is_tried_again() -> None:
    @on_error
    def repair(tool_call: ToolCall | None) -> Retry | None:
        assert tool_call is not None
        tool_call.arguments["amount"] = "50"
        return Retry()

    agent_of(repair).input("Go.")
    assert got == [50]


def test_an_edit_that_does_not_fit_is_the_models_error() -> None:
    @before_each_tool
    def breaks(tool_call: ToolCall) -> None:
        tool_call.arguments["amount"] = "all"

    agent = agent_of(breaks, script=[[call("pay", amount=5)], "Done."])
    agent.input("Go.")
    assert got == []
    assert entries(agent)[0]["status"] == "error"


def spell(amount: str) -> str:
    """Spell."""
    got.append(amount)
    return amount


@pytest.mark.parametrize("paused", [False, True])
def test_a_renamed_call_is_read_from_what_was_sent(paused: bool) -> None:
    @before_tools
    def rename(tool_calls: list[ToolCall]) -> None:
        tool_calls[0].name = "spell"

    handlers = [rename, before_each_tool(pauses)] if paused else [rename]
    options: dict[str, Any] = {"log": None, "tools": [pay, spell]}
    agent = agent_of(*handlers, script=[[call("pay", amount="0_50")], "Done."], **options)
    if paused:
        with pytest.raises(Paused):
            agent.input("Go.")
        agent_of(*handlers, script=["Done."], **options).resume(agent.record, approve=True)
    else:
        agent.input("Go.")
    assert got == ["0_50"]


@pytest.mark.parametrize("where", ["edited", "renamed", "assigned"])
def test_the_next_handler_sees_an_edit_in_its_form(where: str) -> None:
    seen: list[Any] = []

    @before_each_tool
    def edit(tool_call: ToolCall) -> None:
        if where == "edited":
            tool_call.arguments["amount"] = "1_0"
        elif where == "assigned":
            tool_call.arguments = {"amount": 10.0}
        else:
            tool_call.name, tool_call.arguments = "pay", {"amount": "10"}

    @before_each_tool
    def sees(agent: Agent, tool_call: ToolCall) -> None:
        pending = agent.session["pending_tool"]
        assert pending is not None
        seen.append((tool_call.arguments, pending["name"], pending["arguments"]))

    first = call("look") if where == "renamed" else call("pay", amount=5)
    agent_of(edit, sees, script=[[first], "Done."]).input("Go.")
    assert exact(seen) == exact([({"amount": 10}, "pay", {"amount": 10})])
    assert got == [10]


# -- the pending calls are the calls ------------------------------------------------------------------


def by_key(agent: Agent) -> None:
    agent.session["pending_tool"]["arguments"]["amount"] = "7"  # type: ignore[index]


def by_arguments(agent: Agent) -> None:
    agent.session["pending_tool"]["arguments"] = {"amount": 7}  # type: ignore[index]


def by_call(agent: Agent) -> None:
    pending = agent.session["pending_tool"]
    assert pending is not None
    agent.session["pending_tool"] = {**pending, "arguments": {"amount": 7}}


def by_name(agent: Agent) -> None:
    pending = agent.session["pending_tool"]
    assert pending is not None
    pending["name"] = "pay"
    pending["arguments"]["amount"] = 7.0


EDITS = [by_key, by_arguments, by_call, by_name]


@pytest.mark.parametrize("parallel_tools", [1, 4])
@pytest.mark.parametrize("hook", [before_each_tool, around_tool, on_error])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_the_pending_call_is_an_edit_of_the_call(edit: Any, hook: Any, parallel_tools: int) -> None:
    def change(agent: Agent) -> Any:
        edit(agent)
        return Retry() if hook is on_error else None

    def around(agent: Agent) -> Iterator[None]:
        change(agent)
        yield

    handler = hook(around if hook is around_tool else change)
    amount: Any = "all" if hook is on_error else 5
    script = [[call("pay", amount=amount), call("look")], "Done."]
    if hook is not on_error:
        script = [[call("look"), call("pay", amount=amount)], "Done."]

    def only_pay(agent: Agent) -> bool:
        pending = agent.session["pending_tool"]
        return pending is not None and pending["name"] == "pay"

    def guarded(agent: Agent) -> Any:
        return change(agent) if only_pay(agent) else None

    def guarded_around(agent: Agent) -> Iterator[None]:
        if only_pay(agent):
            edit(agent)
        yield

    handler = hook(guarded_around if hook is around_tool else guarded)
    agent = agent_of(handler, script=script, parallel_tools=parallel_tools)
    agent.input("Go.")
    assert got == [7]
    changes = [entry for entry in entries(agent, "change") if entry["of"] == "tool_call"]
    assert len(changes) == 1
    assert changes[0]["value"]["arguments"] == {"amount": 7}
    assert changes[0]["by"]["hook"] == hook.__name__
    assert not any("pending_tool" in entry["delta"] for entry in entries(agent, "session_delta"))


def test_an_edit_of_the_pending_call_is_decided_again() -> None:
    @before_each_tool
    def guard(tool_call: ToolCall) -> None:
        if tool_call.arguments["amount"] > 6:
            raise ToolRejected("too much")

    agent = agent_of(guard, before_each_tool(by_key), script=[[call("pay", amount=5)], "Done."])
    agent.input("Go.")
    assert got == []
    assert entries(agent)[0]["result"] == "rejected: too much"


@pytest.mark.parametrize("parallel_tools", [1, 4])
def test_an_edit_of_the_pending_calls_of_a_round_is_an_edit_of_the_calls(parallel_tools: int) -> None:
    @before_tools
    def clean(agent: Agent) -> None:
        for pending in agent.session["pending_tools"] or ():
            if "amount" in pending["arguments"]:
                pending["arguments"]["amount"] = str(pending["arguments"]["amount"] * 2)

    script = [[call("pay", amount=5), call("look"), call("pay", amount=6)], "Done."]
    agent_of(clean, script=script, parallel_tools=parallel_tools).input("Go.")
    assert sorted(got) == [10, 12]


def changing(hook: Callable[..., Any], key: str) -> Any:
    """A handler of a hook that changes a pending call of the session."""

    def change(agent: Agent) -> None:
        pending: Any = agent.session[key]  # type: ignore[literal-required]
        if isinstance(pending, list) and pending:
            pending[0]["arguments"] = {"amount": 7}
        elif isinstance(pending, dict):
            pending["arguments"] = {"amount": 7}
        elif pending is None:
            agent.session[key] = {"id": "x", "name": "pay", "arguments": {}}  # type: ignore[literal-required]

    def around(agent: Agent) -> Iterator[None]:
        change(agent)
        yield

    return hook(around if hook is around_tool else change)


@pytest.mark.parametrize(
    ("hook", "key"),
    [
        (before_llm, "pending_tool"),
        (before_tools, "pending_tool"),
        (after_each_tool, "pending_tool"),
        (after_tools, "pending_tool"),
        (after_tools, "pending_tools"),
    ],
)
def test_a_change_that_cannot_take_effect_is_an_error_of_who_made_it(hook: Any, key: str) -> None:
    agent = agent_of(changing(hook, key), script=[[call("pay", amount=5)], "Done."])
    with pytest.raises(HookResultError, match=f"{hook.__name__} handler 'change'.*changed current_session.'{key}'"):
        agent.input("Go.")
    assert 7 not in got


def test_a_tool_that_changes_the_pending_call_is_an_error_and_changes_nothing() -> None:
    def meddle(agent: Any) -> str:
        """Meddle."""
        agent.session["pending_tool"]["arguments"] = {"x": 1}
        return "done"

    agent = agent_of(tools=[meddle], script=[[call("meddle")], "Done."])
    agent.input("Go.")
    assert "changed current_session['pending_tool']" in entries(agent)[0]["result"]


@pytest.mark.parametrize("left", [None, 5, {"id": "other", "name": "pay", "arguments": {}}, {"name": "pay"}, "gone"])
def test_a_pending_call_that_is_none_is_an_error_that_says_how_to_refuse(left: Any) -> None:
    @before_each_tool
    def breaks(agent: Agent) -> None:
        if left == "gone":
            del agent.session["pending_tool"]  # type: ignore[misc]
        else:
            agent.session["pending_tool"] = left

    with pytest.raises(HookResultError, match="raise ToolRejected to refuse a call"):
        agent_of(breaks, script=[[call("pay", amount=5)], "Done."]).input("Go.")
    assert got == []


def test_a_call_that_is_edited_in_both_places_differently_is_an_error() -> None:
    @before_each_tool
    def both(agent: Agent, tool_call: ToolCall) -> None:
        tool_call.arguments["amount"] = 8
        by_key(agent)

    with pytest.raises(HookResultError, match="in different ways"):
        agent_of(both, script=[[call("pay", amount=5)], "Done."]).input("Go.")


# -- guards of before_tools ---------------------------------------------------------------------------


@before_tools
def no_big_payments(tool_calls: list[ToolCall]) -> None:
    for one in tool_calls:
        if one.name == "pay" and not one.misfit and one.arguments["amount"] > 10:
            raise ToolRejected("too much")


def become(one: ToolCall) -> None:
    one.name = "pay"
    one.arguments = {"amount": "9_9"}


@before_tools
def later(tool_calls: list[ToolCall]) -> None:
    become(tool_calls[0])


@before_each_tool
def each(tool_call: ToolCall) -> None:
    become(tool_call)


@around_tool
def around_it(tool_call: ToolCall) -> Iterator[None]:
    become(tool_call)
    yield


def fail() -> str:
    """Fail."""
    raise ValueError("no")


@on_error
def tried_again(tool_call: ToolCall, attempt: int) -> Retry | None:
    become(tool_call)
    return Retry() if attempt == 1 else None


@pytest.mark.parametrize("parallel_tools", [1, 4])
@pytest.mark.parametrize("changes", [later, each, around_it, tried_again])
def test_a_guard_of_before_tools_is_asked_again_about_a_call_that_changes(changes: Any, parallel_tools: int) -> None:
    first = call("fail") if changes is tried_again else call("look")
    script = [[first, call("look")], "Done."]
    tools = [*TOOLS, look, fail]
    agent = agent_of(no_big_payments, changes, script=script, tools=tools, parallel_tools=parallel_tools)
    agent.input("Go.")
    assert got == []
    assert entries(agent)[0]["result"] == "rejected: too much"
    if changes is not later and changes is not each and changes is not around_it:
        assert entries(agent)[1]["status"] == "success"  # the rejection is for the changed call alone


@pytest.mark.parametrize("changes", [later, each, around_it])
def test_a_guard_that_lets_the_changed_call_pass_is_asked_once_about_each_form(changes: Any) -> None:
    seen: list[Any] = []

    @before_tools
    def sees(tool_calls: list[ToolCall]) -> None:
        seen.extend((one.name, dict(one.arguments)) for one in tool_calls)

    agent_of(sees, changes, script=[[call("look")], "Done."]).input("Go.")
    assert seen == [("look", {}), ("pay", {"amount": 99})]
    assert got == [99]


def test_a_guard_of_before_tools_decides_about_calls_of_execute_tool() -> None:
    def cleans(agent: Any) -> str:
        """Clean."""
        return str(agent.execute_tool("pay", {"amount": "9_9"})["result"])

    agent = agent_of(no_big_payments, tools=[pay, cleans], script=[[call("cleans")], "Done."])
    agent.input("Go.")
    assert got == []
    assert agent.execute_tool("pay", {"amount": 50})["status"] == "rejected"
    assert agent.execute_tool("pay", {"amount": 5})["status"] == "success"
    assert got == [5]


def test_a_guard_whose_own_code_makes_a_call_is_not_asked_about_it() -> None:
    asked: list[Any] = []

    @before_tools
    def looks_first(agent: Agent, tool_calls: list[ToolCall]) -> None:
        asked.append([one.name for one in tool_calls])
        agent.execute_tool("look", {})

    @before_tools
    def sees(tool_calls: list[ToolCall]) -> None:
        asked.append([one.name for one in tool_calls])

    agent_of(looks_first, sees, script=[[call("pay", amount=5)], "Done."]).input("Go.")
    assert asked == [["pay"], ["look"], ["pay"]]
    assert got == [5]


@pytest.mark.parametrize("changes", [later, each, around_it])
def test_a_guard_of_before_tools_that_pauses_about_a_changed_call_is_asked_once(changes: Any) -> None:
    asked: list[Any] = []

    def handlers() -> list[Any]:
        @before_tools
        def asks(tool_calls: list[ToolCall]) -> None:
            asked.append([one.name for one in tool_calls])
            if any(one.name == "pay" and not one.approved for one in tool_calls):
                raise Pause("May it?")

        return [asks, changes]

    agent = agent_of(*handlers(), script=[[call("look")], "Done."], log=None)
    with pytest.raises(Paused) as paused:
        agent.input("Go.")
    assert got == []
    assert paused.value.waiting[0].call is not None
    assert paused.value.waiting[0].call["arguments"] == {"amount": 99}
    again = agent_of(*handlers(), script=["Done."], log=None)
    assert again.resume(agent.record, approve=True) == "Done."
    assert got == [99]
    assert asked == [["look"], ["pay"]]


def test_a_plugin_of_connectonion_gives_the_tool_the_path_that_it_cleaned() -> None:
    def read(path: str) -> str:
        """Read a file."""
        got.append(path)
        return "text"

    def clean(agent: Any) -> None:
        pending = agent.current_session["pending_tool"]
        pending["arguments"]["path"] = pending["arguments"]["path"].rpartition("/")[2]

    clean._event_type = "before_each_tool"  # type: ignore[attr-defined]
    agent_of(tools=[read], script=[[call("read", path="/etc/passwd")], "Done."], plugins=[[clean]]).input("Go.")
    assert got == ["passwd"]


@pytest.mark.parametrize("edit", EDITS)
def test_a_shadowed_handler_is_shown_the_edit_that_it_would_have_made(edit: Any) -> None:
    agent = agent_of(script=[[call("pay", amount=5)], "Done."], plugins=[shadow(before_each_tool(edit))])
    agent.input("Go.")
    assert got == [5]
    (dry_run,) = entries(agent, "shadow")
    (change,) = dry_run["would"]["changes"]
    assert (change["of"], change["value"]["arguments"]) == ("tool_call", {"amount": 7})


# -- replay ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tools", ["of the agent", "of the record alone", "of an older record"])
def test_handlers_of_a_replay_see_what_handlers_saw_then(tools: str) -> None:
    seen: list[Any] = []

    @before_each_tool
    def sees(tool_call: ToolCall) -> None:
        seen.append((tool_call.arguments, tool_call.misfit))

    agent = agent_of(sees, script=[[call("pay", amount="1_0"), call("pay", amount="all")], "Done."], log=None)
    agent.input("Go.")
    then = list(seen)
    seen.clear()
    path = agent.record
    assert path is not None
    if tools == "of an older record":  # which has the arguments as they were sent
        text = path.read_text().replace('"sent_arguments": {"amount": "1_0"}, ', "")
        path.write_text(text.replace('"arguments": {"amount": 10}', '"arguments": {"amount": "1_0"}'))
    made = agent_of(sees)
    if tools == "of the record alone":
        made = agent_of_record(Recording(path), plugins=[sees])
    played = replay(path, made)
    assert exact(seen) == exact(then)
    assert played.divergence is None
    assert played.not_recorded == []
