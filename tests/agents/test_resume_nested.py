"""Going on with turns whose parts look alike: handlers of one name, one agent asked twice, agents of no tree."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from connectagent import (
    Agent,
    LLMResponse,
    Pause,
    Paused,
    Sequential,
    ToolCall,
    after_tools,
    after_user_input,
    before_each_tool,
    before_llm,
    on_trace,
    tool,
)
from connectagent.data import TraceEntry
from connectagent.records.history import history_of
from connectagent.records.read import read_record
from connectagent.testing import ScriptedLLM, call


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


def work() -> str:
    """Work."""
    return "worked"


class Guard:
    """Asks a person before each call; two objects of it are two handlers of one name."""

    def __init__(self, role: str) -> None:
        self.role = role

    @before_each_tool
    def ask(self) -> None:
        raise Pause(f"ask the {self.role}")


def test_each_of_two_guards_of_one_class_asks() -> None:
    llm = ScriptedLLM(call("work"), "Done.")
    agent = Agent("clerk", [work], llm=llm, quiet=True, plugins=[Guard("manager"), Guard("owner")])
    with pytest.raises(Paused, match="ask the manager") as first:
        agent.input("Go")
    with pytest.raises(Paused, match="ask the owner") as second:
        agent.resume(first.value.record, approve=True)
    assert first.value.waiting[0].id != second.value.waiting[0].id
    assert agent.resume(second.value.record, approve=True) == "Done."


def test_what_an_agent_was_given_to_read_is_still_there_when_its_sequence_is_resumed() -> None:
    @before_each_tool
    def guard() -> None:
        raise Pause("may I?")

    def made(*last: Any) -> Agent:
        first = Agent("first", llm=ScriptedLLM("One."), quiet=True)
        second = Agent("second", llm=ScriptedLLM("Two."), quiet=True)
        third = Agent("third", [work], llm=ScriptedLLM(*last), quiet=True, on_events=[guard])
        return Sequential("row", [first, second, third], quiet=True)

    with pytest.raises(Paused) as paused:
        made(call("work")).input("Go")
    resumed = made("Three.")
    assert resumed.resume(paused.value.record, approve=True) == "Three."
    read = [str(one["content"]) for one in resumed.find("second").session["messages"]]
    assert read == ["What was said in this conversation:\nfirst: One.", "Go", "Two."]


def test_handlers_of_one_name_have_numbers_that_stay() -> None:
    agent = Agent("clerk", quiet=True, log=False, llm=ScriptedLLM("Hi"), plugins=[Guard("a"), Guard("b"), Guard("c")])

    def names() -> list[Any]:
        return [handler.by["handler"] for handler in agent.hooks.handlers("before_each_tool")]

    assert names() == ["Guard.ask", "Guard.ask#2", "Guard.ask#3"]
    with agent.hooks.without([agent.hooks.handlers("before_each_tool")[0]]):
        assert names() == ["Guard.ask#2", "Guard.ask#3"]
    agent.hooks.register(Guard("d"))
    assert sorted(names()) == ["Guard.ask", "Guard.ask#2", "Guard.ask#3", "Guard.ask#4"]


# -- in the process in which a turn was paused, without a record ------------------------------------


def pay(n: int) -> str:
    """Pay."""
    return f"paid {n}"


@before_each_tool
def ask_about_payments(agent: Agent, tool_call: ToolCall) -> None:
    if tool_call.name == "pay":
        agent.current_session["state"].setdefault("asked", []).append(tool_call.arguments["n"])  # type: ignore[index]
        raise Pause("may I?")


def payer(name: str, *script: Any, **options: Any) -> Agent:
    events = [ask_about_payments]
    return Agent(name, [pay], llm=ScriptedLLM(*script), quiet=True, on_events=events, **{"log": False, **options})


def roles(agent: Agent) -> list[str]:
    return [message["role"] for message in agent.current_session["messages"]]  # type: ignore[index]


def contents(agent: Agent) -> str:
    return str([message["content"] for message in agent.current_session["messages"]])  # type: ignore[index]


def finished(agent: Agent, paused: Paused) -> str | None:
    """Approve what waits, until nothing does."""
    while True:
        try:
            return agent.resume(approve=paused.waiting[0].id)
        except Paused as again:
            paused = again


@pytest.mark.parametrize("kind", ["tool", "handoff", "outside"])
def test_an_agent_inside_goes_on_from_where_its_turn_began(kind: str) -> None:
    child = payer("child", call("pay", n=1), "One.", call("pay", n=2), "Two.")
    script: list[Any] = [call("child", prompt="Go"), call("child", prompt="Go on"), "Done."]
    options: dict[str, Any] = {"tools": [child]}
    if kind == "handoff":
        options, script = {"sub_agents": [child]}, [call("transfer_to_agent", agent_name="child", message="Go")]
    if kind == "outside":

        def ask(prompt: str) -> str:
            """Ask."""
            return child.input(prompt)

        script = [call("ask", prompt="Go"), call("ask", prompt="Go on"), "Done."]
        options = {"tools": [tool(idempotent=True)(ask)]}
    root = Agent("root", llm=ScriptedLLM(*script), log=False, quiet=True, **options)
    for prompt in ("Hi", "Again")[: 2 if kind == "handoff" else 1]:
        with pytest.raises(Paused) as paused:
            root.input(prompt)
        finished(root, paused.value)
    told = 1 if kind == "handoff" else 0  # what the user said before it was asked
    assert roles(child).count("tool") == 2 and roles(child).count("user") == 2 + told
    assert "paid 1" in contents(child) and "paid 2" in contents(child) and "paused" not in contents(child)
    assert "paused" not in contents(root)


def test_a_later_turn_that_pauses_twice_has_each_message_once() -> None:
    agent = payer("clerk", "Hello.", call("pay", n=1), call("pay", n=2), "Done.")
    agent.input("Hi")
    with pytest.raises(Paused) as paused:
        agent.input("Pay")
    assert finished(agent, paused.value) == "Done."
    assert roles(agent) == ["user", "assistant", "user", "assistant", "tool", "assistant", "tool", "assistant"]


def test_an_agent_of_no_tree_goes_on_in_another_process_with_its_conversation_and_state() -> None:
    def asked_by(child: Agent, *script: Any) -> Agent:
        @tool(idempotent=True)
        def ask(prompt: str) -> str:
            """Ask."""
            return child.input(prompt)

        return Agent("root", [ask], llm=ScriptedLLM(*script), quiet=True)

    child = payer("child", "Hello.", "Zero.", call("pay", n=1), state={"given": 1}, log=None)
    child.input("By myself")
    child.current_session["state"]["mine"] = 2  # type: ignore[index]
    with pytest.raises(Paused) as paused:
        asked_by(child, call("ask", prompt="First"), call("ask", prompt="Second")).input("Hi")
    other = payer("child", "One.", state={"given": 1}, log=None)
    assert asked_by(other, "Done.").resume(paused.value.record, approve=True) == "Done."
    said = [message["content"] for message in other.current_session["messages"] if message["role"] != "tool"]  # type: ignore[index]
    assert said == ["By myself", "Hello.", "First", "Zero.", "Second", None, "One."]
    assert other.current_session["state"] == {"given": 1, "mine": 2, "asked": [1]}  # type: ignore[index]


# -- several that wait -----------------------------------------------------------------------------


def test_a_decision_need_not_name_what_waits_where_the_pause_told_of_one_only() -> None:
    agents = [payer(name, call("pay", n=1), f"{name} paid.") for name in "ab"]

    def run(agent: Agent) -> str:
        with ThreadPoolExecutor(2) as pool:
            return " ".join(pool.map(lambda one: one.input("Go"), agents))

    root = Agent("root", run=run, sub_agents=agents, log=False, quiet=True)
    with pytest.raises(Paused) as paused:
        root.input("Go")
    assert len(paused.value.waiting) == 1
    with pytest.raises(Paused):
        root.resume(approve=True)
    assert root.resume(approve=True) == "a paid. b paid."


# -- names that hold what ids are made of -------------------------------------------------------------


def asking_for(child: Agent, *script: Any, key: str | None = None, log: Any = None) -> Agent:
    """An agent with a tool that asks another one, which is in no tree."""

    @tool(idempotent=True)
    def ask(prompt: str) -> str:
        """Ask."""
        return child.input(prompt, key=key)

    return Agent("root", [ask], llm=ScriptedLLM(*script), quiet=True, log=log)


@pytest.mark.parametrize(("name", "key"), [("tax/EU~2#1", None), ("tax", "a/b~c#2")])
def test_a_name_or_key_may_hold_what_ids_are_made_of(name: str, key: str | None) -> None:
    child = payer(name, call("pay", n=1), "One.", log=None)
    root = asking_for(child, call("ask", prompt="First"), "Something else.", key=key)
    with pytest.raises(Paused) as paused:
        root.input("Hi")
    root.input("Never mind")
    record = paused.value.record
    assert record is not None
    lines = [line for item in read_record(record)["turns"] for line in item["lines"]]
    asked = [line["id"] for line in lines if line["type"] == "began" and "/turn:" in line["id"]]
    assert asked[0].count("/") == 4 and asked[0].count("~") == 1 and asked[0].count("#") == 1
    assert [line["id"] for line in lines if line.get("outcome") == "abandoned"] == asked[:1]


def test_keys_that_look_alike_are_told_apart() -> None:
    child = Agent("child", llm=ScriptedLLM("A.", "B."), quiet=True, log=False)

    def run() -> str:
        return child.input("Go", key="a b") + child.input("Go", key="a/b")

    root = Agent("root", run=run, quiet=True)
    root.input("Hi")
    assert root.record is not None
    ids = [line["id"] for line in read_record(root.record)["turns"][0]["lines"] if line["type"] == "agent_turn"]
    assert ids == ["T1/1/run/turn:child~a b#1", "T1/1/run/turn:child~a%2Fb#1"]


# -- agents below one that is in no tree ------------------------------------------------------------


@pytest.mark.parametrize("recorded", [True, False])
def test_agents_below_one_of_no_tree_go_on_too(recorded: bool) -> None:
    log: Any = None if recorded else False

    def family() -> list[Agent]:
        grand = payer("grand", "Hello.", call("pay", n=1), "Paid.", log=log)
        child = Agent("child", [grand], llm=ScriptedLLM(*asked), quiet=True, log=log)
        return [asking_for(child, call("ask", prompt="Hi"), call("ask", prompt="Go"), "Done.", log=log), child, grand]

    asked = [call("grand", prompt="Hi"), "Hello.", call("grand", prompt="Pay"), "Paid."]
    root, child, grand = family()
    with pytest.raises(Paused) as paused:
        root.input("Hi")
    if recorded:  # as another process would
        before = [root, child, grand]
        root, child, grand = family()
        for agent, other in zip((root, child, grand), before, strict=True):
            del agent.llm.responses[: len(other.llm.requests)]  # type: ignore[attr-defined]
    root.resume(paused.value.record, approve=True)
    assert roles(grand) == ["user", "assistant", "user", "assistant", "tool", "assistant"]


def _names_with_separators() -> tuple[Agent, Agent]:
    """An agent that asks one with a dot in its name, which asks another, in no tree; and the second."""
    leaf = Agent("leaf.b", llm=ScriptedLLM("Leaf.", "Leaf again."), quiet=True)

    def ask_leaf() -> str:
        """Ask."""
        return str(leaf.input("x"))

    middle = Agent("v1.2", [ask_leaf], llm=ScriptedLLM(call("ask_leaf"), "Middle.", "Again."), quiet=True)

    def ask_middle() -> str:
        """Ask."""
        return str(middle.input("x"))

    script = [call("ask_middle"), "Top.", call("ask_middle"), "Top again."]
    return Agent("top.1", [ask_middle], llm=ScriptedLLM(*script), quiet=True), middle


def test_agents_of_no_tree_with_dots_in_their_names_take_up_their_own_turns() -> None:
    first, middle = _names_with_separators()
    first.input("Go.")
    assert first.record is not None and middle.current_session is not None
    kinds = [entry["type"] for entry in middle.current_session["trace"]]
    assert kinds.count("agent_turn") == 1
    again, resumed = _names_with_separators()
    again.resume(first.record)
    again.llm = ScriptedLLM(call("ask_middle"), "Top again.")
    resumed.llm = ScriptedLLM("Again.")
    again.input("More.")
    assert resumed.current_session is not None
    taken = [entry["type"] for entry in resumed.current_session["trace"]]
    assert taken == [*kinds, "user_input", "llm_call"]


class Odd:
    """A plugin whose name looks like a place."""

    name = "a/turn:x~1#1"

    @after_tools
    def think(self, agent: Any) -> None:
        agent.ask("Hm?")


def test_names_of_plugins_are_escaped_in_places() -> None:
    agent = Agent("a", [work], llm=ScriptedLLM(call("work"), "Thought.", "Done."), plugins=[Odd()], quiet=True)
    agent.input("Go.")
    assert agent.record is not None
    lines = read_record(agent.record)["turns"][0]["lines"]
    (asked,) = [line["id"] for line in lines if line["type"] == "llm_call" and "/ask:" in line["id"]]
    assert asked.startswith("T1/1/after_tools/a%2Fturn:x%7E1%231.Odd.think/ask:scripted~")
    cut = agent.record.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(cut) if asked in line and '"llm_call"' in line)
    Path("cut.yaml").write_text("".join(cut[: at + 1]))
    goes_on = Agent("a", [work], llm=ScriptedLLM("Done."), plugins=[Odd()], quiet=True)
    assert goes_on.resume("cut.yaml") == "Done."  # what the handler asked is not asked again


def test_a_result_that_ctrl_c_kept_from_its_round_is_there_while_another_call_of_it_waits() -> None:
    presses = ["once"]

    @on_trace
    def press(entry: TraceEntry) -> None:
        if entry["type"] == "agent_turn" and entry.get("result") == "left is done" and presses:
            presses.pop()
            raise KeyboardInterrupt

    def below(name: str) -> Agent:
        llm = ScriptedLLM(call("work"), f"{name} is done")
        return Agent(name, [work], llm=llm, on_events=[Guard("owner")], quiet=True, description="Works.")

    asked = [ToolCall("l", "left", {"prompt": "Go"}), ToolCall("r", "right", {"prompt": "Go"})]
    tools = [below("left"), below("right")]
    root = Agent("root", tools, llm=ScriptedLLM(LLMResponse(None, asked), "End."), on_events=[press], quiet=True)
    with pytest.raises(Paused) as paused:
        root.input("Go")
    record, (first, second) = paused.value.record, paused.value.waiting
    with pytest.raises(KeyboardInterrupt):
        root.resume(record, approve=first.id)
    with pytest.raises(Paused):
        root.resume(record)
    results = [message["content"] for message in root.session["messages"] if message["role"] == "tool"]
    assert results == ["left is done", "not run: the turn was paused"]
    assert root.resume(record, approve=second.id) == "End."
    messages = history_of(Path(str(record))).messages
    assert messages == root.session["messages"]
    assert [one["content"] for one in messages if one["role"] == "tool"] == ["left is done", "right is done"]


@pytest.mark.parametrize("where", ["handler", "tool"])
def test_what_is_changed_before_an_operation_that_one_asks_for_is_changed_once_where_it_begins_again(
    where: str,
) -> None:
    fails = [True]

    def forget(agent: Agent) -> None:
        del agent.session["messages"][1]  # type: ignore[index]
        agent.state["forgot"] = [*agent.state.get("forgot", []), 1]
        agent.execute_tool("work")
        if fails:
            raise KeyboardInterrupt(fails.pop())

    @before_llm
    def begin(agent: Agent) -> None:
        if where == "handler" and agent.session["iteration"] == 1:
            forget(agent)

    @before_each_tool
    def look(agent: Agent) -> None: ...

    @tool(idempotent=True)
    def tidy(agent: Agent) -> str:
        """Tidy up."""
        forget(agent)
        return "tidied"

    @after_user_input
    def more(agent: Agent) -> None:
        agent.session["messages"] += [{"role": "user", "content": text} for text in "bcd"]  # type: ignore[index]

    script: list[Any] = ["Done."] if where == "handler" else [call("tidy"), "Done."]
    agent = Agent("clerk", [work, tidy], llm=ScriptedLLM(*script), plugins=[begin, look, more], quiet=True)
    with pytest.raises(KeyboardInterrupt):
        agent.input("a")
    agent.resume(agent.record)
    history = history_of(Path(str(agent.record)))
    assert history.messages == agent.session["messages"] and history.state == agent.state
    texts = [message["content"] for message in agent.session["messages"] if message["role"] == "user"]
    assert (texts, agent.state) == (["a", "c", "d"], {"forgot": [1]})
