"""Handing over: the part of a turn that is not the agent's own model's, but another agent's or a function's."""

from __future__ import annotations

from typing import Any

from connectagent import frame
from connectagent.data import Message, TraceEntry
from connectagent.loop.divergence import finish
from connectagent.loop.ending import Ending, Given
from connectagent.loop.nested import ask_inside
from connectagent.loop.turn import Turn
from connectagent.session.messages import text_of

_SAID = "What was said in this conversation:"


class HandoffRequest:
    """A wish to hand over: to whom, what to tell, and whose wish it is."""

    def __init__(self, target: Any, message: str = "", by: str = "") -> None:
        self.target, self.message, self.by = target, message, by

    def as_data(self) -> dict[str, Any]:
        """The wish as a line has it."""
        return {"target": self.target.name, "message": self.message, "by": self.by}


class Handoff:
    """What an agent that leads a turn gives to the one that is to answer.

    Args:
        leader: the turn in which the agents hand over to each other.
        context: what was said meanwhile; "" for nothing.
    """

    def __init__(self, leader: Turn, context: str) -> None:
        self.leader, self.context = leader, context

    def begin(self, turn: Turn) -> None:
        """Let the agent hear what was said since its last turn."""
        conversation, leader = turn.conversation, self.leader.agent
        if self.context:
            message: Message = {"role": "user", "content": self.context, "author": leader.name}
            conversation.append(message, by=leader.by)
        conversation.heard[turn.id] = dict(conversation.session.get("heard") or {})
        conversation.session["heard"] = {**(conversation.session.get("heard") or {}), **self.heard()}

    def heard(self) -> dict[str, int]:
        """How many of the leader's messages the agent knows from now on."""
        leader = self.leader.agent
        return {leader.name: len(leader.conversation.session["messages"])}


def leader_of(turn: Turn) -> Turn:
    """The turn in which an agent hands over."""
    return turn if turn.handoff is None else turn.handoff.leader


def delegate(turn: Turn) -> Ending | None:
    """The ending of a turn that goes on elsewhere; None where the agent's own model is to be asked.

    It goes on in the agent's function, with the agent that its model handed over to in the last round, or
    with the one that answered last.
    """
    agent = turn.agent
    if agent.body is not None:
        return _run_body(turn)
    if turn.request is None and turn.handoff is None:
        turn.request = _active(agent)
        if turn.request is not None:
            turn.conversation.session["iteration"] += 1
    if turn.request is None:
        return None
    if turn.handoff is not None:
        return Ending(last_text(agent), "transferred", agent.by)
    first, turn.request = turn.request, None
    return run_hops(turn, first)


def _active(agent: Any) -> HandoffRequest | None:
    """The agent that answers since an earlier hand-off."""
    name: Any = agent.conversation.session.get("active_agent")
    target = agent.root.find(name) if isinstance(name, str) else None
    if target is None or target is agent or target.in_turn:
        return None
    return HandoffRequest(target)


def run_hops(leader: Turn, request: HandoffRequest) -> Ending | None:
    """Let other agents answer, until one does not hand over to the next.

    Returns:
        How its turn ended; None where the leading agent itself is to go on, or its turn was ended.
    """
    agent, conversation = leader.agent, leader.conversation
    while leader.ended is None:
        target = request.target
        stays = target is not agent and target.body is None  # a function cannot hand back
        if agent.body is None:
            _now_answers(leader, target.name if stays else None)
        if target is agent:
            return None
        line = _hop(leader, request)
        if leader.ended is not None:
            break
        result, wish = line["result"], line.get("handoff")
        if wish is None:
            if result:
                conversation.append({"role": "assistant", "content": result, "author": target.name}, by=target.by)
            return Ending(result, line["outcome"], target.by)
        request = HandoffRequest(agent.root.find(wish["target"]), wish["message"], wish["by"])
        note = _note(target.name, result, request, agent.name)
        conversation.append({"role": "user", "content": note, "author": target.name}, by=target.by)
    return None


def _now_answers(leader: Turn, name: str | None) -> None:
    """Note who answers in later turns, so that a session that was stored can go on with it."""
    conversation = leader.conversation
    if conversation.session.get("active_agent") != name:
        conversation.session["active_agent"] = name
        delta = {"active_agent": name}
        conversation.trace({"type": "session_delta", "by": leader.agent.by, "delta": delta})


def _hop(leader: Turn, request: HandoffRequest) -> TraceEntry:
    """Let the agent that is to answer take a whole turn of its own; its closing entry."""
    agent, target = leader.agent, request.target
    content: Any = users_message(leader)["content"]
    context = _context(leader, request)
    if target.name in leader.heard and context:  # it knows the user's message; what it does not know is new
        content, context = context, ""
    leader.heard.add(target.name)
    message: Message = {"role": "user", "content": content}
    form = leader.output if agent.body is None else None  # who answers in place of another gives what that one owes
    given = Given(message, text_of(content), target.max_iterations, form or target.form)
    if agent.body is not None:
        asked = frame.current()
        return ask_inside(target, given, asked or leader.frame, handoff=Handoff(leader, context))
    leader.hops += 1
    with leader.within(f"{leader.place}/hop{leader.hops}"):
        asked = frame.current()
        assert asked is not None
        return ask_inside(target, given, asked, handoff=Handoff(leader, context))


def users_message(leader: Turn) -> Message:
    """The user's message of the turn as it is now: guards may have changed it, or put another in its place."""
    messages: list[Message] = leader.conversation.session["messages"]
    if any(message is leader.message for message in messages):
        return leader.message
    users = (message for message in reversed(messages) if message["role"] == "user" and not message.get("author"))
    return next(users, leader.message)


def _context(leader: Turn, request: HandoffRequest) -> str:
    """What the next agent does not know yet of what was said in the conversation; "" for nothing."""
    agent, target = leader.agent, request.target
    messages, prompt = leader.conversation.session["messages"], users_message(leader)
    heard = ((target.current_session or {}).get("heard") or {}).get(agent.name, 0)
    lines = []
    for message in messages[heard:]:
        text, author = text_of(message.get("content")).strip(), message.get("author")
        if message is prompt or not text or message["role"] not in ("user", "assistant") or author == target.name:
            continue
        if message["role"] == "user":
            lines.append(text.removeprefix(_SAID).strip() if author else f"user: {text}")
        else:
            lines.append(f"{author or agent.name}: {text}")
    if request.by == agent.name:
        lines.append(_passed_on(request, "you"))
    return "\n".join([_SAID, *lines]) if lines else ""


def _note(name: str, text: str, request: HandoffRequest, leader: str) -> str:
    """What an agent that hands over has said, for the others."""
    target = "you" if request.target.name == leader else request.target.name
    return "\n".join(filter(None, [text and f"{name}: {text}", _passed_on(request, target)]))


def _passed_on(request: HandoffRequest, target: str) -> str:
    return f"[{request.by} handed over to {target}{': ' if request.message else ''}{request.message}]"


def last_text(agent: Any) -> str:
    """The text of the model's last message; "" where it has said nothing."""
    messages = agent.conversation.session["messages"]
    return next((text_of(one.get("content")) for one in reversed(messages) if one["role"] == "assistant"), "")


def _run_body(turn: Turn) -> Ending | None:
    """Run the function that an agent has in place of a model."""
    agent, conversation = turn.agent, turn.conversation
    given = {"agent": agent, "prompt": turn.prompt}
    conversation.session["iteration"] += 1
    id = f"{turn.place}/run"
    turn.began(id)
    with turn.within(id):
        value = turn.boundary.run_tool(agent.body, {name: given[name] for name in agent.body_parameters})
        if turn.ended is not None:
            return None
        if turn.past is not None:
            finish(turn, id)
        if not isinstance(value, str | None):
            raise TypeError(
                f"the function that agent {agent.name!r} runs ({agent.body.origin}) returned {type(value).__name__} "
                f"{value!r:.80}; it returns the result as a str, or None"
            )
        messages = conversation.session["messages"]
        if value and not (messages and messages[-1]["role"] == "assistant" and messages[-1]["content"] == value):
            conversation.append({"role": "assistant", "content": value}, by=agent.by)
    return Ending(value or "", "answered", agent.by)
