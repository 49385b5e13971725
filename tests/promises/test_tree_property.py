"""Promise 1 for trees: whatever an agent's handlers do while others work for it, requests and next turns are good."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_conversation_property import FAULTS, IDS, Session, Turn

from connectagent import Agent, LLMResponse, ToolCall
from connectagent.testing import conversation_problems as problems


class Down(Exception):
    """What the model of another agent raises now and then."""


class OtherLLM:
    """The model of the other agents: it answers, fails, and hands over, in a fixed order."""

    model = "other"

    def __init__(self, found: list[str]) -> None:
        self.calls, self.found = 0, found

    def complete(self, messages: list[Any], tools: Any = None) -> Any:
        self.calls += 1
        self.found += problems(messages)
        if self.calls % 5 == 0:
            raise Down("down")
        if self.calls % 3 == 0 and tools:
            names = tools[-1]["function"]["parameters"]["properties"]["agent_name"]["enum"]
            arguments = {"agent_name": names[self.calls % len(names)]}
            return LLMResponse(None, [ToolCall(f"t{self.calls}", "transfer_to_agent", arguments)])
        return LLMResponse(f"answer {self.calls}")


class Tree(Session):
    """The mean agent of the other test, with agents as tools and agents to hand over to."""

    def __init__(self) -> None:
        super().__init__()
        self.agent.sub_agents = (self._other("sub1"), self._other("sub2"))
        self.agent.add_tool([self._other(name) for name in ("asked1", "asked2", "asked3")])
        assert "transfer_to_agent" in self.agent.tools

    def _other(self, name: str) -> Agent:
        return Agent(name, llm=OtherLLM(self.found), log=False, quiet=True, inherit_plugins=False)

    def check_error(self, error: BaseException) -> None:
        if not isinstance(error, Down):
            super().check_error(error)

    def good_turn(self) -> None:
        if self.agent.current_session is not None:
            self.agent.current_session["active_agent"] = None
        for other in self.agent.children:
            assert not other.in_turn and other.turn is None
            if other.current_session is not None:
                self.found += problems(other.current_session["messages"]) if other.current_session["messages"] else []
        super().good_turn()


CALLS = st.tuples(
    st.sampled_from(("good", "bad", "asked1", "asked2", "asked3", "asked1", "asked2", "transfer_to_agent")),
    st.sampled_from(IDS),
    st.sampled_from(
        ({"prompt": "Go."},) * 6 + ({"agent_name": "sub1", "prompt": "Go."}, {"agent_name": "x"}, {"x": 1})
    ),
)
ROUNDS = st.tuples(st.sampled_from((None, "text")), st.lists(CALLS, min_size=1, max_size=8))
RESPONSES = st.one_of(ROUNDS, ROUNDS, ROUNDS, ROUNDS, st.sampled_from(("answer", "error", "interrupt")))
TURNS = st.builds(
    Turn, st.lists(RESPONSES, min_size=1, max_size=4), st.lists(FAULTS, min_size=0, max_size=6), st.just([])
)


@settings(
    max_examples=int(os.environ.get("PROPERTY_CASES", "800")) // 10,
    deadline=None,
    database=None,
    derandomize="PROPERTY_CASES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(TURNS, min_size=1, max_size=3))
def test_whatever_handlers_do_while_other_agents_work_all_conversations_stay_valid(turns: list[Turn]) -> None:
    tree = Tree()
    for turn in turns:
        tree.turn(turn)
