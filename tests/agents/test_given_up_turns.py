"""A turn that failed is given up for another prompt: with agents below, and where a kill comes at any line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent, ConfigError, Parallel, Pause, Paused, Sequential, before_each_tool, on_trace, tool
from connectagent.errors import DivergenceError, ProviderError
from connectagent.records.history import history_of
from connectagent.testing import ScriptedLLM, call, conversation_problems

SESSION = "chat"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


@tool(idempotent=True)
def note(text: str, agent: Any) -> str:
    """Write a line, and remember it."""
    with open("notes", "a", encoding="utf-8") as file:
        file.write(text + "\n")
    agent.state["noted"] = [*agent.state.get("noted", []), text]
    return "noted"


def noted() -> list[str]:
    file = Path("notes")
    return sorted(file.read_text("utf-8").split()) if file.exists() else []


def down() -> ProviderError:
    return ProviderError("down", kind="server", provider="x")


class Model:
    """Writes one line in each turn, named after the agent and the prompt, and fails behind it in a turn that is to."""

    model = "noting"

    def __init__(self, name: str, calls: Callable[[str], Any] | None = None) -> None:
        self.name, self.calls, self.asked = name, calls, list[Any]()

    def complete(self, messages: list[Any], tools: Any = None) -> Any:
        self.asked.append(conversation_problems(messages))
        last = max(at for at, message in enumerate(messages) if message["role"] == "user")
        prompt = "failing" if "failing" in str(messages[last]["content"]) else "working"
        if not any(message["role"] == "tool" for message in messages[last:]):
            calls = self.calls(prompt) if self.calls else call("note", text=f"{self.name}:{prompt}")
            return ScriptedLLM(calls).complete(messages, tools)
        return ScriptedLLM(down() if prompt == "failing" else f"{self.name} is done").complete(messages, tools)


def worker(name: str, **more: Any) -> Agent:
    return Agent(name, [note], llm=Model(name), quiet=True, **more)


def lone() -> Agent:
    return worker("lone")


def with_tool() -> Agent:
    model = Model("top", lambda prompt: [call("below", prompt=prompt), call("note", text=f"top:{prompt}")])
    return Agent("top", [worker("below"), note], llm=model, quiet=True)


def with_two_at_once() -> Agent:
    model = Model("top", lambda prompt: [call("one", prompt=prompt), call("two", prompt=prompt)])
    return Agent("top", [worker("one"), worker("two")], llm=model, quiet=True, parallel_tools=2)


def handed_over() -> Agent:
    model = Model("top", lambda prompt: call("transfer_to_agent", agent_name="below"))
    return Agent("top", llm=model, quiet=True, sub_agents=[worker("below", transfer_to=())])


TREES: dict[str, Callable[[], Any]] = {
    "lone": lone,
    "agent as tool": with_tool,
    "two at once": with_two_at_once,
    "hand-over": handed_over,
    "Sequential": lambda: Sequential("team", [worker("one"), worker("two")], quiet=True),
    "Parallel": lambda: Parallel("team", [worker("one"), worker("two")], quiet=True),
}


def models_of(agent: Any) -> list[Any]:
    return [one.llm for one in (agent, *agent.below) if isinstance(one.llm, Model)]


@pytest.mark.parametrize("tree", TREES)
def test_a_turn_behind_one_that_was_given_up_goes_on_wherever_it_is_killed(tree: str) -> None:
    made = TREES[tree]
    with pytest.raises(ProviderError):
        made().for_session(SESSION).turn("failing")
    failed = noted()
    assert failed and all(line.endswith(":failing") for line in failed)
    session = made().for_session(SESSION)
    before = len(session.record.read_text("utf-8").splitlines())
    result, state = session.turn("working"), session.agent.current_session["state"]
    everything = noted()
    lines = session.record.read_text("utf-8").splitlines(keepends=True)
    ends = [at for at, line in enumerate(lines) if '"tool_execution"' in line and ":working" in line]
    assert ends and before < len(lines)
    for cut in range(before, len(lines)):
        session.record.write_text("".join(lines[:cut]), "utf-8")
        Path("notes").unlink(missing_ok=True)
        other = made().for_session(SESSION)
        assert other.turn("working") == result, cut
        assert other.turns == 2, cut
        assert other.turn("working", number=2) == result, cut
        again = noted()
        assert not set(again) & set(failed), cut
        assert set(again) <= set(everything) and len(again) == len(set(again)), cut
        assert other.agent.current_session["state"] == state, cut
        taken = other.taken_by
        assert [problem for llm in models_of(taken) for asked in llm.asked for problem in asked] == [], cut


# -- given up while calls of a parallel round wait ----------------------------------------------------------------


class Shop:
    """An agent whose parallel round has two calls that wait and one that runs.

    Args:
        fails: the call whose change of the state makes a handler raise.
    """

    def __init__(self, fails: str = "") -> None:
        self.fails, self.ran = fails, list[str]()

    def agent(self) -> Agent:
        @tool(idempotent=True)
        def pay(what: str, agent: Any) -> str:
            """Pay."""
            self.ran.append(what)
            agent.state["paid"] = [*agent.state.get("paid", []), what]
            return f"paid {what}"

        @before_each_tool
        def guard(tool_call: Any) -> None:
            if tool_call.arguments["what"].startswith(("a", "b")):
                raise Pause(f"pay {tool_call.arguments['what']}?")

        @on_trace
        def fail(entry: Any) -> None:
            if self.fails and self.fails in str(entry.get("delta")):
                raise OSError("the till is broken")

        llm = Model("shop", lambda prompt: [call("pay", what=f"{one}:{prompt}") for one in "abc"])
        return Agent("shop", [pay], llm=llm, quiet=True, parallel_tools=3, on_events=[guard, fail])


def decided(session: Any) -> str:
    """The result of a turn in which whatever waits is approved."""
    for _ in range(9):
        try:
            return str(session.resume(approve=session.waiting[0].id))
        except Paused:
            pass
    raise AssertionError("it does not end")


@pytest.mark.parametrize("approved", [0, 1, 2])
def test_a_turn_with_parallel_waits_is_given_up_only_where_it_failed(approved: int) -> None:
    shop = Shop()
    with pytest.raises(Paused) as paused:
        shop.agent().for_session(SESSION).turn("failing")
    assert len(paused.value.waiting) == 2 and shop.ran == ["c:failing"]
    session = shop.agent().for_session(SESSION)
    with pytest.raises(DivergenceError, match="decide it with resume"):
        session.turn("working")
    first, second = (wait.id for wait in session.waiting)
    if approved:
        with pytest.raises(Paused):
            shop.agent().for_session(SESSION).resume(approve=first)
    if approved == 2:  # the model fails, and with it the turn
        with pytest.raises(ProviderError):
            shop.agent().for_session(SESSION).resume(approve=second)
        assert sorted(shop.ran) == ["a:failing", "b:failing", "c:failing"]
    else:
        with pytest.raises(DivergenceError, match="decide it with resume"):
            shop.agent().for_session(SESSION).turn("working")
        return
    session = shop.agent().for_session(SESSION)
    assert session.waiting == []
    with pytest.raises(Paused):
        session.turn("working")
    assert [wait.id.split("/")[0] for wait in session.waiting] == ["T2", "T2"]
    with pytest.raises(ConfigError, match="nothing waits with the id"):
        shop.agent().for_session(SESSION).resume(approve=first)
    assert decided(shop.agent().for_session(SESSION)) == "shop is done"
    assert Counter(shop.ran) == Counter(f"{one}:{prompt}" for one in "abc" for prompt in ("failing", "working"))


def test_a_turn_that_failed_while_others_of_its_calls_wait_is_given_up_with_them() -> None:
    shop = Shop(fails="c:failing")
    with pytest.raises(OSError, match="till"):
        shop.agent().for_session(SESSION).turn("failing")
    shop.fails = ""
    session = shop.agent().for_session(SESSION)
    assert session.waiting == [] and shop.ran == ["c:failing"]
    with pytest.raises(ConfigError, match="nothing waits"):
        session.resume(approve=True)
    with pytest.raises(Paused):
        session.turn("working")
    before = session.record.read_text("utf-8").splitlines(keepends=True)
    assert [wait.id.split("/")[0] for wait in session.waiting] == ["T2", "T2"]
    assert decided(shop.agent().for_session(SESSION)) == "shop is done"
    assert not [one for one in shop.ran if one in ("a:failing", "b:failing")]
    start = next(at for at, line in enumerate(before) if line.startswith("- turn: 2"))
    for cut in range(start, len(before)):
        session.record.write_text("".join(before[:cut]), "utf-8")
        other = shop.agent().for_session(SESSION)
        shop.ran.clear()
        try:
            result = other.turn("working")
        except Paused:
            result = decided(shop.agent().for_session(SESSION))
        assert result == "shop is done" and set(shop.ran) <= {"a:working", "b:working", "c:working"}, cut
        assert len(shop.ran) == len(set(shop.ran)), cut


def test_a_model_reads_the_result_of_what_ran_beside_a_call_that_waited_though_its_turn_is_given_up() -> None:
    ran: list[int] = []

    def pay(n: int) -> str:
        """Pay."""
        ran.append(n)
        return f"paid {n}"

    @before_each_tool
    def ask(tool_call: Any) -> None:
        if tool_call.arguments["n"] > 1:
            raise Pause("may it?")

    def payer(*script: Any) -> Agent:
        return Agent("payer", [pay], llm=ScriptedLLM(*script), plugins=[ask], parallel_tools=3, quiet=True)

    def results(agent: Agent) -> list[Any]:
        return [message["content"] for message in agent.session["messages"] if message["role"] == "tool"]

    agent = payer([call("pay", n=n) for n in (1, 2, 3)], "Well.")
    with pytest.raises(Paused) as paused:
        agent.input("Go")
    with pytest.raises(Paused) as again:
        payer("Well.").resume(paused.value.record, approve=paused.value.waiting[0].id)
    waits = "not run: the turn was paused"
    recorded = [message["content"] for message in history_of(Path(str(again.value.record))).messages[-3:]]
    assert recorded == ["paid 1", "paid 2", waits] and ran == [1, 2]
    other = payer([call("pay", n=n) for n in (1, 2, 3)], "Well.")
    with pytest.raises(Paused):
        other.input("Go")
    assert other.input("Never mind.") == "Well."
    assert results(other) == ["paid 1", waits, waits] and ran == [1, 2, 1]
