"""Handing over: who may take over, what each agent knows, who answers later, and every hook of each part once."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from connectagent import Agent, ConfigError, Continue, ProviderError, after_user_input, before_llm, on_complete
from connectagent.agents.agent_tool import MAX_TRANSFERS
from connectagent.testing import HookRecorder, ScriptedLLM, call
from connectagent.testing import conversation_problems as problems


def to(name: str, message: str = "") -> Any:
    arguments = {"agent_name": name, "message": message} if message else {"agent_name": name}
    return ("transfer_to_agent", arguments)


def made(name: str, *script: Any, **options: Any) -> Agent:
    return Agent(name, llm=ScriptedLLM(*script), log=False, quiet=True, **options)


def requests(agent: Agent) -> list[Any]:
    assert isinstance(agent.llm, ScriptedLLM)
    return [request.messages for request in agent.llm.requests]


def session(agent: Agent) -> dict[str, Any]:
    assert agent.current_session is not None
    return agent.current_session  # type: ignore[return-value]


def texts(messages: Any) -> list[tuple[str, Any]]:
    return [(message["role"], message["content"]) for message in messages]


def check(*agents: Agent) -> None:
    """Every request of these agents is one that both wires take."""
    for agent in agents:
        for messages in [*requests(agent), session(agent)["messages"] if agent.current_session else []]:
            assert not messages or problems(messages) == []


def team(root: Any, billing: Any = (), refunds: Any = (), **options: Any) -> tuple[Agent, Agent, Agent]:
    children = [
        made("billing", *billing, description="Knows the bills.", system_prompt="You know the bills."),
        made("refunds", *refunds, description="Pays back."),
    ]
    return made("root", *root, sub_agents=children, system_prompt="You greet.", **options), children[0], children[1]


# -- the tool ------------------------------------------------------------------------------------


def schema_of(agent: Agent) -> dict[str, Any]:
    return agent.tools["transfer_to_agent"].schema["function"]["parameters"]["properties"]["agent_name"]


def test_the_tool_lists_children_parent_and_siblings_with_their_descriptions() -> None:
    root, billing, refunds = team([])
    assert schema_of(root)["enum"] == ["billing", "refunds"]
    assert schema_of(billing)["enum"] == ["root", "refunds"]
    assert "- billing: Knows the bills." in schema_of(root)["description"]
    assert "- root: You greet." in schema_of(refunds)["description"]


@pytest.mark.parametrize(
    ("transfer_to", "names"),
    [
        ("children", ["below"]),
        (("parent",), ["root"]),
        (["siblings"], ["beside"]),
        (("parent", "children"), ["below", "root"]),
    ],
)
def test_each_direction_can_be_forbidden(transfer_to: Any, names: list[str]) -> None:
    middle = made("middle", sub_agents=[made("below")], transfer_to=transfer_to)
    made("root", sub_agents=[middle, made("beside")])
    assert schema_of(middle)["enum"] == names


def test_an_agent_that_may_hand_over_to_nobody_has_no_tool_for_it() -> None:
    child = made("child", transfer_to=())
    asked = made("asked")
    root = made("root", sub_agents=[child], tools=[asked], transfer_to="parent")
    assert "transfer_to_agent" not in child.tools and "transfer_to_agent" not in asked.tools
    assert root.list_tools() == ["asked"]
    with pytest.raises(ConfigError, match="'children', 'parent', 'siblings'"):
        made("x", transfer_to=("peers",))


@pytest.mark.parametrize("name", ["nobody", "root", "refunds"])
def test_an_unknown_or_forbidden_target_is_an_error_that_lists_the_valid_ones(name: str) -> None:
    billing = made("billing", to(name), "I stay.", transfer_to="children", sub_agents=[made("invoices")])
    root = made("root", to("billing"), sub_agents=[billing, made("refunds")])
    assert root.input("Hi") == "I stay."
    result = session(billing)["messages"][-2]["content"]
    assert "invoices" in result and name in result
    assert [entry["status"] for entry in session(billing)["trace"] if entry["type"] == "tool_execution"] == ["error"]
    check(root, billing)


def test_of_two_transfers_the_first_wins_and_other_calls_of_the_round_run() -> None:
    ran = []

    def note() -> str:
        """Note."""
        ran.append(1)
        return "noted"

    root, billing, refunds = team([[to("billing"), ("note", {}), to("refunds")]], ["Billing."], tools=[note])
    assert root.input("Hi") == "Billing."
    results = [message["content"] for message in session(root)["messages"] if message["role"] == "tool"]
    assert results[:2] == ["The conversation goes to billing.", "noted"] and "goes to 'billing' already" in results[2]
    assert ran == [1] and refunds.current_session is None
    check(root, billing)


def test_a_transfer_outside_a_turn_is_an_error() -> None:
    root, _, _ = team([])
    entry = root.execute_tool("transfer_to_agent", {"agent_name": "billing"})
    assert entry["status"] == "error" and "no turn is running" in entry["result"]


# -- who answers, and what they know ---------------------------------------------------------------


def test_the_other_agents_result_is_the_turns_and_stands_in_both_conversations() -> None:
    root, billing, _ = team([to("billing", "A regular.")], ["You owe 3."])
    assert root.input("What do I owe?") == "You owe 3."
    assert session(root)["outcome"] == "answered" and session(root)["result"] == "You owe 3."
    assert session(root)["messages"][-1] == {"role": "assistant", "content": "You owe 3.", "author": "billing"}
    assert texts(requests(billing)[0]) == [
        ("system", "You know the bills."),
        ("user", "What was said in this conversation:\n[root handed over to you: A regular.]"),
        ("user", "What do I owe?"),
    ]
    told = [entry for entry in session(root)["trace"] if entry["type"] == "message"]
    assert told[0]["by"] == {"plugin": "connectagent", "agent": "billing", "branch": "root.billing"}
    told = [entry for entry in session(billing)["trace"] if entry["type"] == "message"]
    assert told[0]["by"]["agent"] == "root"
    check(root, billing)


def test_in_later_turns_that_agent_answers_until_it_hands_back() -> None:
    root, billing, _ = team([to("billing"), "Root again."], ["One.", "Two.", to("root", "Wants a greeting.")])
    assert [root.input(text) for text in ("A", "B", "C")] == ["One.", "Two.", "Root again."]
    assert len(requests(root)) == 2 and session(root)["turn"] == 3
    assert texts(requests(root)[1]) == [
        ("system", "You greet."),
        ("user", "A"),
        ("assistant", None),
        ("tool", "The conversation goes to billing."),
        ("assistant", "One."),
        ("user", "B"),
        ("assistant", "Two."),
        ("user", "C"),
        ("user", "[billing handed over to you: Wants a greeting.]"),
    ]
    assert session(root)["active_agent"] is None
    changes = [entry["delta"]["active_agent"] for entry in session(root)["trace"] if entry["type"] == "session_delta"]
    assert changes == ["billing", None]
    check(root, billing)


def test_an_agent_that_hands_over_stores_no_result() -> None:
    from connectagent import LLMResponse, ToolCall

    passing = LLMResponse("Not mine.", [ToolCall("t", *to("root"))])
    child = made("billing", passing, output_key="bill", description="Knows the bills.")
    root = made("root", [to("billing")], "Yours.", sub_agents=[child])
    assert root.input("Hi") == "Yours."
    assert session(child)["outcome"] == "transferred" and "bill" not in session(root)["state"]


def test_siblings_hand_over_to_each_other_and_hear_what_was_said() -> None:
    from connectagent import LLMResponse, ToolCall

    passing = LLMResponse("That is not mine.", [ToolCall("t", *to("refunds", "Order 7."))])
    root, billing, refunds = team([to("billing")], [passing], ["Paid back.", "Still me."])
    assert root.input("My money!") == "Paid back."
    assert session(billing)["outcome"] == "transferred" and session(billing)["result"] == "That is not mine."
    heard = texts(requests(refunds)[0])[0][1]
    assert heard.splitlines()[1:] == ["billing: That is not mine.", "[billing handed over to refunds: Order 7.]"]
    assert texts(requests(refunds)[0])[1] == ("user", "My money!")
    assert root.input("And?") == "Still me."
    assert texts(requests(refunds)[1])[-2:] == [("assistant", "Paid back."), ("user", "And?")]
    check(root, billing, refunds)


def test_an_agent_that_gets_the_word_twice_in_a_turn_is_told_only_what_is_new() -> None:
    root, billing, refunds = team([to("billing")], [to("refunds"), "Mine after all."], [to("billing", "Yours.")])
    assert root.input("Hi") == "Mine after all."
    last = texts(requests(billing)[1])[-1]
    assert last == ("user", "What was said in this conversation:\n[refunds handed over to billing: Yours.]")
    assert [text for role, text in texts(requests(billing)[1]) if text == "Hi"] == ["Hi"]
    check(root, billing, refunds)


def test_an_agent_hears_what_is_left_where_messages_that_it_had_heard_were_removed() -> None:
    @before_llm
    def shorten(agent: Agent, request: Any) -> None:
        if agent.session["user_prompt"] == "Shorter":
            request.messages[:] = [{"role": "user", "content": "(Summary: plums.)"}, request.messages[-1]]

    child = made("child", "One.", to("front"), "Two.")
    script = (to("child"), "Back.", "Of plums.", "Short.", to("child"))
    front = made("front", *script, sub_agents=[child], on_events=[shorten])
    for prompt in ("Hi", "Back", "Speak of plums", "Shorter", "To the child"):
        front.input(prompt)
    said = str(requests(child)[-1][-2]["content"])
    assert "(Summary: plums.)" in said and "front: Short." in said
    check(front, child)


def test_a_guard_of_the_root_acts_before_another_agent_hears_of_the_turn() -> None:
    @after_user_input
    def guard(agent: Agent, prompt: str) -> str | None:
        assert agent.current_session is not None
        message = agent.current_session["messages"][-1]
        agent.current_session["messages"][-1] = {
            "role": "user",
            "content": str(message["content"]).replace("tulip", "*"),
        }
        return "Refused." if "bomb" in prompt else None

    root, billing, _ = team([to("billing")], ["One.", "Two."], on_events=[guard])
    billing.hooks.load([one for one in billing.hooks.loaded if one.plugin != "guard"])  # the root's alone
    root.input("Word tulip")
    assert root.input("A bomb") == "Refused."
    assert root.input("Again tulip") == "Two."
    assert "tulip" not in str(requests(billing)) and "bomb" not in str(session(billing)["user_prompt"])
    assert "user: A bomb" in str(requests(billing)[1])
    check(root, billing)


def test_the_state_goes_along_and_comes_back() -> None:
    def mark(agent: Any) -> str:
        """Mark."""
        state = agent.current_session["state"]
        assert state["who"] == "Ada" and state["temp:x"] == 1
        state["marked"], state["temp:y"] = True, 2
        del state["old"]
        state["list"].append(2)
        return "ok"

    @before_llm
    def begin(agent: Agent) -> None:
        if agent.name == "root":
            session(agent)["state"].update({"who": "Ada", "old": 1, "list": [1], "temp:x": 1})

    @on_complete
    def end(agent: Agent) -> None:
        if agent.name == "root":
            assert session(agent)["state"]["temp:y"] == 2

    child = made("child", ("mark", {}), "Done.", tools=[mark], inherit_plugins=False)
    root = made("root", to("child"), sub_agents=[child], plugins=[begin, end])
    root.input("go")
    assert session(root)["state"] == {"who": "Ada", "marked": True, "list": [1, 2]}
    assert session(root)["state"]["list"] is not session(child)["state"]["list"]
    (turn,) = [entry for entry in session(root)["trace"] if entry["type"] == "agent_turn"]
    assert (turn["delta"], turn["appended"], turn["removed"]) == ({"marked": True}, {"list": [2]}, ["old"])


def test_each_part_is_linked_with_its_record_its_cost_and_its_outcome(tmp_path: Any, monkeypatch: Any) -> None:
    from connectagent import LLMResponse, TokenUsage
    from connectagent.records.read import read_record

    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path))
    usage = TokenUsage(10, 5, cost=0.5)
    child = Agent("child", llm=ScriptedLLM(LLMResponse("Done.", usage=usage)), quiet=True)
    root = Agent("root", llm=ScriptedLLM(to("child")), sub_agents=[child], quiet=True)
    root.input("go")
    (link,) = [entry for entry in session(root)["trace"] if entry["type"] == "agent_turn"]
    assert (link["agent"], link["branch"], link["turn"], link["outcome"]) == ("child", "root.child", 1, "answered")
    assert link["usage"] == usage and link["duration_ms"] > 0
    assert read_record(link["record"])["turns"][0]["result"] == "Done."
    assert root.total_cost == child.total_cost == 0.5
    (record,) = tmp_path.glob("evals/root_*.yaml")
    entries = read_record(record)["turns"][0]["trace"]
    assert [entry["record"] for entry in entries if entry["type"] == "agent_turn"] == [link["record"]]


def test_a_stored_session_goes_on_with_the_agent_that_answered() -> None:
    root, _, _ = team([to("billing")], ["One."])
    root.input("A")
    stored = dict(session(root))
    other, billing, _ = team([], ["Two."])
    other.current_session = stored  # type: ignore[assignment]
    assert other.input("B") == "Two."
    assert "billing: One." not in str(requests(billing)) and "user: A" in str(requests(billing))
    gone, _, _ = team(["Me."])
    gone.current_session = {**stored, "active_agent": "nobody"}  # type: ignore[typeddict-item]
    assert gone.input("C") == "Me."


# -- ends ------------------------------------------------------------------------------------------


def test_there_is_a_limit_for_the_hand_overs_of_a_turn() -> None:
    def ping(messages: Any, tools: Any) -> Any:
        name = tools[-1]["function"]["parameters"]["properties"]["agent_name"]["enum"][-1]
        return "I answer." if "which is the limit" in str(messages[-1]["content"]) else to(name)

    root, billing, refunds = team([to("billing")], [ping] * 20, [ping] * 20)
    assert root.input("Hi") == "I answer."
    parts = [entry["agent"] for entry in session(root)["trace"] if entry["type"] == "agent_turn"]
    assert len(parts) == MAX_TRANSFERS and set(parts) == {"billing", "refunds"}
    check(root, billing, refunds)


def test_a_transfer_in_the_last_iteration_takes_place() -> None:
    root, _, _ = team([to("billing")], ["Mine."], max_iterations=1)
    assert root.input("Hi") == "Mine."


def test_a_handler_that_always_continues_comes_to_an_end() -> None:
    @on_complete
    def more(agent: Agent) -> Any:
        return Continue("More!") if agent.name == "root" else None

    root, billing, _ = team([to("billing")], [str(n) for n in range(9)], max_iterations=4, plugins=[more])
    assert root.input("Hi") == "3"
    assert [message["content"] for message in session(billing)["messages"] if message["role"] == "user"][1:] == [
        "Hi", "More!", "More!", "More!",
    ]  # fmt: skip
    check(root, billing)


def test_a_handler_that_continues_keeps_the_word_where_it_is() -> None:
    @on_complete
    def stay(agent: Agent, outcome: str) -> Any:
        return Continue("Answer yourself.") if outcome == "transferred" else None

    root, billing, refunds = team([to("billing")], [to("refunds"), "All right."], plugins=[stay])
    assert root.input("Hi") == "All right." and refunds.current_session is None
    check(root, billing)


def test_the_other_agents_failing_model_ends_the_turn_and_the_next_one_works() -> None:
    down = ProviderError("down", kind="server", provider="x")
    root, billing, _ = team([to("billing")], [down, "Up again."])
    with pytest.raises(ProviderError, match="down"):
        root.input("Hi")
    (link,) = [entry for entry in session(root)["trace"] if entry["type"] == "agent_turn"]
    assert link["outcome"] == "error"
    assert root.input("Now?") == "Up again."
    check(root, billing)


def test_a_broken_handler_of_another_agent_is_named_in_both_conversations() -> None:
    @before_llm
    def broken(agent: Agent) -> None:
        if agent.name == "billing":
            raise OSError("no disk")

    root, billing, _ = team([to("billing")], ["x"], plugins=[broken])
    with pytest.raises(OSError) as raised:
        root.input("Hi")
    assert "before_llm handler" in raised.value.__notes__[0] and len(raised.value.__notes__) == 1
    for agent in (root, billing):
        assert session(agent)["trace"][-1]["by"]["handler"].endswith("broken")


@pytest.mark.parametrize("scope", ["agent", "turn"])
def test_the_end_of_an_agents_part_is_its_result(scope: str) -> None:
    def stop(agent: Any) -> str:
        """Stop."""
        agent.end_turn("Stopped.", scope=scope)
        return "ok"

    recorder = HookRecorder()
    child = made("child", ("stop", {}), tools=[stop])
    root = made("root", to("child"), sub_agents=[child], plugins=[recorder])
    assert root.input("Hi") == "Stopped."
    assert [given["outcome"] for given in recorder.of("on_complete")] == ["ended", "ended"]
    check(root, child)


# -- every hook of each part, once, in order ---------------------------------------------------------

BEGIN = "{0}>turn {0}+user_input {0}after_user_input"
START = "{0}>turn {0}on_session {0}+user_input {0}after_user_input"
TOLD = "{0}>turn {0}on_session {0}+message {0}+user_input {0}after_user_input"
ASK = "{0}before_llm {0}>llm {0}<llm {0}+llm_call {0}after_llm"
PASS = f"{ASK} {{0}}before_tools {{0}}before_each_tool {{0}}>tool {{0}}<tool {{0}}+tool_execution {{0}}after_each_tool"
PASS += " {0}after_tools"
END = "{0}on_complete {0}<turn"
NOTED = "root:+agent_turn root:+message"
NOW = "root:+session_delta"


def part(agent: str, *pieces: str) -> str:
    return " ".join(pieces).format(f"{agent}:")


class Path(NamedTuple):
    name: str
    turns: int
    scripts: tuple[list[Any], list[Any], list[Any]]
    hooks: str
    result: str


ROOT_PASSES = part("root", START, PASS, "{0}+session_delta")
PATHS = [
    Path("to a child", 1, ([to("billing")], ["B."], []),
         f"{ROOT_PASSES} {part('billing', TOLD, ASK, END)} {NOTED} {part('root', END)}", "B."),
    Path("to a child and a sibling", 1, ([to("billing")], [to("refunds")], ["R."]),
         f"{ROOT_PASSES} {part('billing', TOLD, PASS, END)} {NOTED} {NOW} {part('refunds', TOLD, ASK, END)} {NOTED} "
         f"{part('root', END)}", "R."),
    Path("there and back", 1, ([to("billing"), "Root."], [to("root")], []),
         f"{ROOT_PASSES} {part('billing', TOLD, PASS, END)} {NOTED} {NOW} {part('root', ASK, END)}", "Root."),
    Path("a later turn", 2, ([to("billing")], ["B.", "C."], []),
         f"{part('root', BEGIN)} {part('billing', BEGIN, ASK, END)} {NOTED} {part('root', END)}", "C."),
    Path("back in a later turn", 2, ([to("billing"), "Root."], ["B.", to("root")], []),
         f"{part('root', BEGIN)} {part('billing', BEGIN, PASS, END)} {NOTED} {NOW} {part('root', ASK, END)}", "Root."),
]  # fmt: skip

_SIGNS = {">": "around_{}:enter", "<": "around_{}:exit", "+": "on_trace:{}"}


def spelled_out(path: str) -> list[str]:
    words = [word.partition(":") for word in path.split()]
    return [f"{agent}:{_SIGNS.get(hook[0], '{}').format(hook.lstrip('><+'))}" for agent, _, hook in words]


@pytest.mark.parametrize("path", PATHS, ids=[path.name.replace(" ", "_") for path in PATHS])
def test_each_part_fires_exactly_these_hooks_in_this_order(path: Path) -> None:
    seen: list[str] = []

    class Noting(HookRecorder):
        """Each agent has its own, as it has to tell whose hook it is."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.agent_name = name

        def _note(self, name: str, **arguments: Any) -> None:
            seen.append(f"{self.agent_name}:{name}")

    agents = [
        made(name, *script, plugins=[Noting(name)], inherit_plugins=False)
        for name, script in zip(("billing", "refunds"), path.scripts[1:], strict=True)
    ]
    root = made("root", *path.scripts[0], sub_agents=agents, plugins=[Noting("root")])
    for _ in range(path.turns):
        seen.clear()
        result = root.input("Hi")
    assert result == path.result
    assert seen == spelled_out(path.hooks)
    check(root, *agents)


def test_who_answers_reads_the_prompt_with_which_a_handler_goes_on() -> None:
    @on_complete
    def more(agent: Agent) -> Continue | None:
        if agent.state.setdefault("more", 0):
            return None
        agent.state["more"] = 1
        agent.session["messages"].append({"role": "user", "content": "By the way."})
        return Continue("Do more.")

    below = Agent("below", llm=ScriptedLLM("One.", "Two."), log=False, quiet=True, transfer_to=())
    llm = ScriptedLLM(call("transfer_to_agent", agent_name="below"))
    top = Agent("top", llm=llm, sub_agents=[below], log=False, quiet=True, on_events=[more])
    assert top.input("Do it.") == "Two."
    assert "Do more." in str(below.llm.requests[1].messages[-1]["content"])  # type: ignore[attr-defined]
