"""Other agents as tools: one to ask, and one to hand the conversation over to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from connectagent.agents.handoff import HandoffRequest, leader_of
from connectagent.data import AgentBase
from connectagent.errors import ToolArgumentsError
from connectagent.tools.tool import Tool

TRANSFER = "transfer_to_agent"
MAX_TRANSFERS = 10  # in one turn: it stops two agents that hand over to each other


def core_of(agent: AgentBase) -> Any:
    """What an agent is made of that a program, a handler or a tool has."""
    return agent._core  # type: ignore[attr-defined]  # of `Agent`, which is above this module


class AskAgent:
    """The function of a tool that asks an agent: a prompt in, its result out."""

    def __init__(self, agent: AgentBase) -> None:
        self.agent = agent
        self.__name__ = agent.name

    def __call__(self, prompt: str) -> str:
        core = core_of(self.agent)
        return str(core.answer(prompt, form=core.form))


def agent_tool(face: AgentBase) -> Tool:
    """An agent as a tool of another one. It is idempotent: asking again goes on with the turn that was begun."""
    agent = core_of(face)
    parameters = {
        "type": "object",
        "properties": {"prompt": {"type": "string", "description": "What the agent is to do."}},
        "required": ["prompt"],
    }
    description = agent.description or f"Ask the agent {agent.name!r}. {agent.system_prompt[:500]}"
    return Tool(agent.name, description.strip(), parameters, AskAgent(face), idempotent=True)


class CandidatePlace(Protocol):
    """Where an agent stands among those that it may hand over to."""

    @property
    def parent(self) -> Candidate | None: ...
    @property
    def sub_agents(self) -> Sequence[Candidate]: ...
    @property
    def transfer_to(self) -> Sequence[str]: ...


class Candidate(Protocol):
    """An agent that may be handed over to."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str | None: ...
    @property
    def system_prompt(self) -> str: ...
    @property
    def body(self) -> Tool | None: ...
    @property
    def tree(self) -> CandidatePlace: ...


def targets(agent: Candidate) -> list[Any]:
    """The agents that this one may hand over to."""
    place = agent.tree
    found: list[Any] = list(place.sub_agents) if "children" in place.transfer_to else []
    parent = place.parent
    # A workflow decides who is next, and an agent that is a tool returns its result to its caller.
    if parent is not None and parent.body is None and any(agent is sub for sub in parent.tree.sub_agents):
        if "parent" in place.transfer_to:
            found.append(parent)
        if "siblings" in place.transfer_to:
            found += [sibling for sibling in parent.tree.sub_agents if sibling is not agent]
    return found


def transfer_tool(found: list[Any]) -> Tool:
    """The tool with which a model hands the conversation over."""
    agents = "\n".join(f"- {one.name}: {_describe(one)}" for one in found)
    parameters = {
        "type": "object",
        "properties": {
            "agent_name": {
                "type": "string",
                "enum": [one.name for one in found],
                "description": f"Who is to answer the user from now on:\n{agents}",
            },
            "message": {
                "type": "string",
                "description": "What the other agent should know; it reads the conversation.",
            },
        },
        "required": ["agent_name"],
    }
    description = "Hand the conversation over to another agent, who then answers the user in your place."
    return Tool(TRANSFER, description, parameters, TransferTool(), read_only=True, idempotent=True, alone=True)


def _describe(agent: Candidate) -> str:
    text = agent.description or agent.system_prompt
    return " ".join(text.split())[:300] or "(no description)"


class TransferTool:
    """The function of `transfer_to_agent`; the hand-off takes place when the round of tools is over."""

    __name__ = TRANSFER

    def __call__(self, agent: AgentBase, agent_name: str, message: str = "") -> str:
        core = core_of(agent)
        turn = core.turn
        found = {one.name: one for one in targets(core)}
        if agent_name not in found:
            raise ToolArgumentsError(f"{agent_name!r} is no agent to hand over to; there are {', '.join(found)}")
        if turn is None:
            raise ToolArgumentsError("no turn is running; an agent hands over within its turn")
        if turn.request is not None:
            raise ToolArgumentsError(f"the conversation goes to {turn.request.target.name!r} already; one at a time")
        target, leader = found[agent_name], leader_of(turn)
        if target.turning.locked() and target is not leader.agent:
            raise ToolArgumentsError(
                f"{agent_name!r} waits for an answer itself; answer in its place, or choose another"
            )
        if leader.handoffs >= MAX_TRANSFERS:
            raise ToolArgumentsError(
                f"the conversation was handed over {MAX_TRANSFERS} times in this turn, which is the limit; "
                "answer the user yourself"
            )
        turn.request = HandoffRequest(target, str(message), agent.name)
        return f"The conversation goes to {agent_name}."
