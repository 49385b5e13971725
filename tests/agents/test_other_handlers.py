"""A turn that goes on with other handlers than those that it began with: what is over stays, and what is new begins."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent, LLMResponse, Pause, Paused, ToolRejected, before_each_tool, hooks
from connectagent.hooks.specs import EVENTS, PARAMETERS
from connectagent.records.history import history_of
from connectagent.testing import call


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


class Model:
    """Two calls, one after the other, the second of which fails; then an answer: by what it reads."""

    model = "rounds"

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        rounds = sum(bool(message.get("tool_calls")) for message in messages)
        calls = [[call("work", n=1)], [call("work", n=2)], []][rounds]
        return LLMResponse(None if calls else "Done.", calls)


def noting(name: str, fired: list[tuple[str, str]]) -> list[Any]:
    """A handler of each event, which changes messages and state where it fires."""

    def note(hook: str, agent: Agent) -> None:
        fired.append((name, hook))
        agent.state[name] = [*agent.state.get(name, []), hook]
        agent.session["messages"].append({"role": "user", "content": f"{name} {hook}"})

    made = []
    for hook in EVENTS:
        scope: dict[str, Any] = {"note": note, "hook": hook}
        names = ", ".join(PARAMETERS[hook])
        exec(f"def {name}_{hook}({names}):\n    note(hook, agent)", scope)
        made.append(getattr(hooks, hook)(scope[f"{name}_{hook}"]))
    return made


class Case:
    """An agent with the handlers of these names, in this order; `worked`: the calls that ran."""

    def __init__(self, *names: str) -> None:
        self.fired: list[tuple[str, str]] = []
        self.worked: list[int] = []
        plugins = [noting(one, self.fired) for one in names]
        self.agent = Agent("a", [self.work], llm=Model(), quiet=True, plugins=plugins)

    def work(self, n: int) -> str:
        """Work."""
        self.worked.append(n)
        if n == 2:
            raise ValueError("no")
        return "worked"


def lines_of(agent: Agent) -> tuple[list[str], range]:
    """The lines of an agent's record, and the numbers of those of its turn."""
    lines = Path(str(agent.record)).read_text(encoding="utf-8").splitlines()
    entries = [number for number, line in enumerate(lines) if line.startswith("  - ")]
    return lines, range(entries[0], entries[-1] + 1)


@pytest.mark.parametrize("names", [[], ["old"], ["new"], ["old", "new"], ["new", "old"]], ids=" ".join)
def test_wherever_it_was_killed_a_turn_goes_on_with_other_handlers(names: list[str], folder: Path) -> None:
    first = Case("old")
    first.agent.input("Go")
    first.agent.close()
    whole = Counter(hook for _, hook in first.fired)
    lines, numbers = lines_of(first.agent)
    for number in numbers:
        record = folder / f"cut{number}.yaml"
        record.write_text("\n".join(lines[: number + 1]) + "\n", encoding="utf-8")
        case = Case(*names)
        case.agent.resume(record)
        history, state = history_of(record), case.agent.state
        assert history.messages == case.agent.session["messages"] and history.state == state
        began = sum('"began"' in line and "/tool1" in line for line in lines[: number + 1])
        assert Counter(case.worked) == Counter([1, 2][began:])  # nothing twice
        failed = "ValueError" in str(history.messages)  # else it is in doubt
        for name in names:
            told = Counter(state.get(name, ()))
            wanted = whole - Counter(["on_error"] * (not failed))
            assert told == wanted if name == "old" else told <= wanted
        assert "old" in names or set(state.get("old", ())) <= set(whole)
        entry = next(one for one in case.agent.session["trace"] if one["type"] == "resumed")
        added = entry.get("plugins", {}).get("added", [])
        assert added == sorted(f"new_{hook}" for hook in EVENTS if "new" in names)
        case.agent.close()


class Shop:
    """An agent that is asked to pay twice in one round, guarded or not; `paid`: what it paid."""

    def __init__(self, guarded: bool, parallel: int = 1) -> None:
        self.paid: list[int] = []

        @before_each_tool
        def guard(tool_call: Any) -> None:
            raise Pause(f"pay {tool_call.arguments['n']}?")

        options: dict[str, Any] = {"plugins": [guard] * guarded, "parallel_tools": parallel, "quiet": True}
        self.agent = Agent("shop", [self.pay], llm=self, **options)

    model = "shop"

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        asked = any(message.get("tool_calls") for message in messages)
        return LLMResponse("Done." if asked else None, [] if asked else [call("pay", n=1), call("pay", n=2)])

    def pay(self, n: int) -> str:
        """Pay."""
        self.paid.append(n)
        return "paid"

    @property
    def results(self) -> list[str]:
        return [message["content"] for message in self.agent.session["messages"] if message["role"] == "tool"]


@pytest.mark.parametrize(
    ("decision", "paid", "result"),
    [({"approve": True}, [1, 2], "paid"), ({"reject": "no"}, [2], "rejected: no"), ({"answer": "owed"}, [2], "owed")],
    ids=["approve", "reject", "answer"],
)
def test_a_decision_counts_where_the_handler_that_waited_is_no_longer_there(
    decision: dict[str, Any], paid: list[int], result: str
) -> None:
    with pytest.raises(Paused) as paused:
        Shop(guarded=True).agent.input("Go")
    other = Shop(guarded=False)
    assert other.agent.resume(paused.value.record, **decision) == "Done."
    assert other.paid == paid and other.results == [result, "paid"]  # nothing guards the second one any more


def test_a_call_that_waits_is_not_run_undecided_where_its_handler_is_no_longer_there() -> None:
    with pytest.raises(Paused) as paused:
        Shop(guarded=True, parallel=2).agent.input("Go")
    first, second = (wait.id for wait in paused.value.waiting)
    other = Shop(guarded=False, parallel=2)
    with pytest.raises(Paused) as again:
        other.agent.resume(paused.value.record, approve=first)
    assert [wait.id for wait in again.value.waiting] == [second] and other.paid == [1]
    assert other.agent.resume(again.value.record, reject="no") == "Done."
    assert other.paid == [1] and other.results[0] == "paid" and other.results[1].startswith("rejected")


def test_a_guard_that_is_new_is_asked_though_another_one_was_approved() -> None:
    with pytest.raises(Paused) as paused:
        Shop(guarded=True).agent.input("Go")
    other = Shop(guarded=True)

    @before_each_tool(tryfirst=True)
    def fence() -> None:
        raise ToolRejected("closed")

    other.agent.hooks.register(fence)
    assert other.agent.resume(paused.value.record, approve=True) == "Done."
    assert other.paid == [] and other.results == ["rejected: closed"] * 2


@pytest.mark.parametrize("hook", ["before_llm", "after_llm", "before_tools", "after_each_tool", "on_complete"])
def test_what_a_handler_decided_that_is_no_longer_there_counts(hook: str) -> None:
    stops = [True]

    def decide() -> str:
        if hook == "before_tools":
            raise ToolRejected("closed")
        return "Enough."

    names = ", ".join(PARAMETERS[hook])
    scope: dict[str, Any] = {"decide": decide}
    exec(f"def deciding({names}):\n    return decide()", scope)

    @hooks.around_turn
    def last() -> Any:
        result = yield
        if stops:
            raise OSError(stops.pop())
        return result

    def made(*plugins: Any) -> Agent:
        return Agent("a", [Case().work], llm=Model(), quiet=True, plugins=[last, *plugins])

    first = made(getattr(hooks, hook)(scope["deciding"]))
    with pytest.raises(OSError):
        first.input("Go")
    messages, result = list(first.session["messages"]), first.session["result"]
    other = made()
    assert other.resume(first.record) == result
    assert other.session["messages"] == messages
    assert history_of(Path(str(first.record))).messages == messages
