"""What runs is what was decided: a call that is changed behind those who let it pass is decided anew."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectagent import (
    Agent,
    HookResultError,
    Pause,
    Paused,
    PluginWarning,
    Retry,
    ToolRejected,
    after_llm,
    around_tool,
    before_each_tool,
    on_error,
    tool,
    xray,
)
from connectagent.testing import ScriptedLLM, call

ran: list[tuple[str, int]] = []


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran.clear()


def pay(n: int) -> str:
    """Pay."""
    ran.append(("pay", n))
    return f"paid {n}"


def look(n: int = 0) -> str:
    """Look."""
    ran.append(("look", n))
    if n == 13:
        raise ValueError("unlucky")
    return f"saw {n}"


def agent_of(*handlers: Any, script: Any = (), **options: Any) -> Agent:
    plain = {"log": False, "quiet": True, "on_events": list(handlers)}
    return Agent("a", [pay, look], llm=ScriptedLLM(*(script or ([call("pay", n=5)], "Done."))), **{**plain, **options})


def entry_of(agent: Agent) -> dict[str, Any]:
    assert agent.current_session is not None
    (entry,) = [entry for entry in agent.current_session["trace"] if entry["type"] == "tool_execution"]
    return entry


@before_each_tool
def guard(tool_call: Any) -> None:
    if tool_call.name == "pay" and tool_call.arguments["n"] > 10:
        raise ToolRejected("too much")


def edits(where: str, **made: Any) -> Any:
    """A handler that changes the call: to `name`, and `n`."""

    def change(tool_call: Any) -> None:
        tool_call.name = made.get("name", tool_call.name)
        tool_call.arguments["n"] = made.get("n", tool_call.arguments["n"])

    if where == "later":

        @before_each_tool
        def later(tool_call: Any) -> None:
            change(tool_call)

        return later
    if where == "around":

        @around_tool
        def around(tool_call: Any) -> Any:
            change(tool_call)
            yield

        return around

    @on_error
    def again(tool_call: Any, attempt: int) -> Retry | None:
        change(tool_call)
        return Retry() if attempt == 1 else None

    return again


PLACES = ["later", "around", "retry"]


def first_call(where: str) -> list[Any]:
    return [[call("look", n=13)] if where == "retry" else [call("look", n=5)], "Done."]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("wrapped", [[guard], [before_each_tool(trylast=True)(lambda tool_call: guard(tool_call))]])
def test_a_guard_is_asked_about_what_a_call_has_become(where: str, wrapped: list[Any]) -> None:
    agent = agent_of(*wrapped, edits(where, name="pay", n=99), script=first_call(where))
    agent.input("Go.")
    assert ("pay", 99) not in ran
    assert (entry_of(agent)["status"], entry_of(agent)["result"]) == ("rejected", "rejected: too much")


@pytest.mark.parametrize("where", PLACES)
def test_what_it_allows_runs_and_the_entry_tells_what_ran(where: str) -> None:
    agent = agent_of(guard, edits(where, name="pay", n=9), script=first_call(where))
    agent.input("Go.")
    assert ran[-1] == ("pay", 9)
    entry = entry_of(agent)
    assert (entry["tool_name"], entry["arguments"], entry["result"]) == ("pay", {"n": 9}, "paid 9")
    assert entry["original_tool_name"] == "look" and entry["original_arguments"]["n"] in (5, 13)


@pytest.mark.parametrize("where", PLACES)
def test_trust_decides_about_what_a_call_has_become(where: str) -> None:
    from connectagent import tool

    harmless = tool(read_only=True)(look)
    agent = agent_of(edits(where, name="pay", n=9), script=first_call(where), trust="strict")
    agent.remove_tool("look")
    agent.add_tool(harmless)
    agent.input("Go.")
    assert ("pay", 9) not in ran and entry_of(agent)["status"] == "rejected"


@pytest.mark.parametrize("where", ["later", "around"])
def test_a_guard_that_stands_in_does_so_for_the_changed_call(where: str) -> None:
    @before_each_tool
    def instead(tool_call: Any) -> str | None:
        return "nothing to pay" if tool_call.name == "pay" else None

    agent = agent_of(instead, edits(where, name="pay"), script=first_call(where))
    agent.input("Go.")
    assert ran == [] and (entry_of(agent)["status"], entry_of(agent)["result"]) == ("stand_in", "nothing to pay")


def test_who_changed_a_call_does_not_change_it_twice() -> None:
    seen: list[int] = []

    def more(tool_call: Any) -> None:
        tool_call.arguments["n"] += 1

    @before_each_tool
    def watch(tool_call: Any) -> None:
        seen.append(tool_call.arguments["n"])

    first, second = before_each_tool(more), before_each_tool(lambda tool_call: more(tool_call))
    agent = agent_of(first, watch, second, edits("around", n=20))
    agent.input("Go.")
    assert seen == [6, 7, 20] and ran == [("pay", 20)]


def test_handlers_that_never_agree_end_in_a_rejection() -> None:
    def more(tool_call: Any) -> None:
        tool_call.arguments["n"] += 1

    first = before_each_tool(trylast=True)(more)
    second = before_each_tool(trylast=True)(lambda tool_call: more(tool_call))
    agent = agent_of(first, second)
    agent.input("Go.")
    assert ran == [] and entry_of(agent)["status"] == "rejected"
    assert "changed each time" in entry_of(agent)["result"]


def test_an_unchanged_call_is_decided_once() -> None:
    seen: list[int] = []

    @before_each_tool
    def watch(tool_call: Any) -> None:
        seen.append(tool_call.arguments["n"])

    agent = agent_of(edits("later", n=7), watch, edits("around"), edits("retry"))
    agent.input("Go.")
    assert seen == [7] and ran == [("pay", 7)]


# -- a person's approval -------------------------------------------------------------------------


@before_each_tool
def manager(tool_call: Any) -> None:
    if tool_call.name == "pay" and not tool_call.approved:
        raise Pause(f"pay {tool_call.arguments['n']}?")


@pytest.mark.parametrize("where", ["later", "around"])
def test_an_approval_is_for_the_arguments_that_were_shown(where: str) -> None:
    def made(*script: Any) -> Agent:
        return agent_of(manager, edits(where, n=1000), script=script, log=None)

    with pytest.raises(Paused) as first:
        made([call("pay", n=5)]).input("Go.")
    with pytest.raises(Paused) as second:
        made("Done.").resume(first.value.record, approve=True)
    assert ran == [] and second.value.call is not None and second.value.call.arguments == {"n": 1000}
    assert [wait.reason for wait in (*first.value.waiting, *second.value.waiting)][-1] == "pay 1000?"
    assert made("Done.").resume(second.value.record, approve=second.value.waiting[0].id) == "Done."
    assert ran == [("pay", 1000)]


def test_an_approval_is_not_for_calls_that_the_approved_one_makes() -> None:
    def outer(agent: Any) -> str:
        """Pay by another tool."""
        if not xray.approved:
            raise Pause("outer?")
        return str(agent.execute_tool("pay", {"n": 500})["result"])

    def made(*script: Any) -> Agent:
        agent = agent_of(manager, script=script, log=None)
        agent.add_tool(outer)
        return agent

    with pytest.raises(Paused) as first:
        made([call("outer")]).input("Go.")
    with pytest.raises(Paused) as second:
        made("Done.").resume(first.value.record, approve=True)
    assert ran == [] and second.value.call is not None
    assert (second.value.call.name, second.value.call.arguments) == ("pay", {"n": 500})
    assert made("Done.").resume(second.value.record, approve=second.value.waiting[0].id) == "Done."
    assert ran == [("pay", 500)]


@pytest.mark.parametrize("forge", [before_each_tool, around_tool])
def test_no_handler_approves(forge: Callable[..., Any]) -> None:
    if forge is around_tool:

        @around_tool
        def approves(tool_call: Any) -> Any:
            tool_call.approved = True
            yield

    else:

        @before_each_tool
        def approves(tool_call: Any) -> None:  # type: ignore[misc]
            tool_call.approved = True

    agent = agent_of(approves, manager if forge is before_each_tool else guard)
    with pytest.raises(HookResultError, match=r"approves.*decided by a person"):
        agent.input("Go.")
    assert ran == []


def test_a_record_does_not_approve() -> None:
    agent = agent_of(manager, script=["Never."], log=None)
    with pytest.raises(Paused) as paused:
        agent_of(manager, script=[[call("pay", n=5)]], log=None).input("Go.")
    path = paused.value.record
    assert path is not None
    lines = path.read_text().splitlines(keepends=True)
    cut = next(number for number, line in enumerate(lines) if '"llm_call"' in line)
    forged = lines[cut].replace('"arguments": {"n": 5}', '"arguments": {"n": 5}, "approved": true')
    assert forged != lines[cut]
    path.write_text("".join([*lines[:cut], forged]))
    with pytest.raises(Paused):
        agent.resume(path)
    assert ran == []


@pytest.mark.parametrize("of_tool", [False, True])
def test_a_record_that_shows_a_person_another_call_than_it_holds_runs_neither(of_tool: bool) -> None:
    def pay_itself(n: int) -> str:
        """Pay."""
        if not xray.approved:
            raise Pause(f"pay {n}?")
        return pay(n)

    def made(*script: Any) -> Agent:
        agent = agent_of(*([] if of_tool else [manager]), script=script, log=None)
        agent.add_tool(pay_itself)
        return agent

    with pytest.raises(Paused) as paused:
        made([call("pay_itself" if of_tool else "pay", n=5)]).input("Go.")
    path = paused.value.record
    assert path is not None
    lines = path.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if '"llm_call"' in line)
    lines[at] = lines[at].replace('"arguments": {"n": 5}', '"arguments": {"n": 5000}')
    path.write_text("".join(lines))
    agent = made("Done.")
    assert agent.resume(path, approve=True) == "Done."
    assert ran == []
    assert agent.current_session is not None
    results = [entry["result"] for entry in agent.current_session["trace"] if entry["type"] == "tool_execution"]
    assert "decided about another call" in results[-1]


# -- the record of another user, or of another machine ---------------------------------------------


def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str) -> None:
    """From here on another user goes on, whose key is another one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / home))


def test_another_machine_goes_on_asks_guards_again_and_carries_each_decision_out_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []

    @before_each_tool(tryfirst=True)
    def watch(tool_call: Any) -> None:
        asked.append((tool_call.name, tool_call.arguments["n"]))

    def made(*script: Any) -> Agent:
        return agent_of(watch, manager, script=script, log=None)

    elsewhere(monkeypatch, tmp_path, "first")
    with pytest.raises(Paused) as paused:
        made([call("look", n=1)], [call("pay", n=5), call("look", n=2), call("pay", n=6)]).input("Go.")
    path = paused.value.record
    assert [wait.call and wait.call["arguments"]["n"] for wait in paused.value.waiting] == [5]
    asked.clear(), ran.clear()
    elsewhere(monkeypatch, tmp_path, "second")
    with pytest.raises(Paused) as again:
        made("Done.").resume(path, approve=True)
    assert ran == [("pay", 5), ("look", 2)]  # nothing that the record holds as done
    assert asked == [("pay", 5), ("look", 2), ("pay", 6)]  # but not about the call of the first round
    elsewhere(monkeypatch, tmp_path, "third")
    with pytest.raises(Paused):
        made("Done.").resume(path)
    assert made("Done.").resume(path, approve=again.value.waiting[0].id) == "Done."
    assert ran == [("pay", 5), ("look", 2), ("pay", 6)]


def test_a_decision_of_another_user_has_to_be_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(monkeypatch, tmp_path, "first")
    with pytest.raises(Paused) as paused:
        agent_of(manager, script=[[call("pay", n=5)]], log=None).input("Go.")
    path = paused.value.record
    assert path is not None
    agent = agent_of(manager, script=["Done."], log=None)
    agent.resume(path, approve=True)
    lines = path.read_text().splitlines(keepends=True)
    cut = next(number for number, line in enumerate(lines) if '"decided"' in line and '"resumed"' not in line)
    ran.clear()
    for home, expected in (("first", [("pay", 5)]), ("second", [])):
        copy = tmp_path / f"{home}.yaml"
        copy.write_text("".join(lines[: cut + 1]))
        elsewhere(monkeypatch, tmp_path, home)
        ran.clear()
        with contextlib.suppress(Paused):
            agent_of(manager, script=["Done."], log=None).resume(copy)
        assert ran == expected


@pytest.mark.parametrize("errors", ["raise", "warn"])
def test_an_edit_of_arguments_is_applied_once_over_a_resume_beside_a_handler_that_raises(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, errors: Any
) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / ".co"))

    class Killed(BaseException):
        pass

    paid: list[int] = []

    def made(kill: bool, *responses: Any) -> Agent:
        @tool(idempotent=True)
        def pay(amount: int) -> str:
            """Pay."""
            if kill:
                raise Killed
            paid.append(amount)
            return "paid"

        @before_each_tool
        def add_fee(tool_call: Any) -> None:
            tool_call.arguments["amount"] += 1

        @after_llm
        def broken(agent: Any) -> None:
            if errors == "warn":
                raise ValueError("broken")

        llm, plugins = ScriptedLLM(*responses), [add_fee, broken]
        return Agent("payer", [pay], llm=llm, plugins=plugins, plugin_errors=errors, quiet=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)
        first = made(True, call("pay", amount=1))
        with pytest.raises(Killed):
            first.input("Go")
        second = made(False, "Done.")
        assert second.resume(first.record) == "Done."
    assert paid == [2]


def test_what_a_monitor_of_pluggy_changes_behind_the_handlers_is_decided_anew() -> None:
    def change(outcome: Any, hook: str, implementations: Any, given: Any) -> None:
        if hook == "before_each_tool":
            given["tool_call"].arguments["n"] = 50

    agent = agent_of(guard)
    undo = agent.hooks.add_hookcall_monitoring(lambda *given: None, change)
    agent.input("Go.")
    undo()
    assert ran == [] and entry_of(agent)["status"] == "rejected"
