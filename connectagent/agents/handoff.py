"""Handing over: turns that another agent, or a function, answers in place of the agent's own model."""

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
    """A request to hand over: the target, a message for it, and the name of the agent that asks."""

    def __init__(self, target: Any, message: str = "", by: str = "") -> None:
        self.target, self.message, self.by = target, message, by

    def as_data(self) -> dict[str, Any]:
        """The request as it is recorded."""
        return {"target": self.target.name, "message": self.message, "by": self.by}


class Handoff:
    """What the agent that leads a turn passes to the one that answers.

    Args:
        leader: the leading agent's turn.
        context: what was said since the answering agent's last turn; "" for nothing.
    """

    def __init__(self, leader: Turn, context: str) -> None:
        self.leader, self.context = leader, context

    def begin(self, turn: Turn) -> None:
        """Add what was said since the agent's last turn to its conversation."""
        conversation, leader = turn.conversation, self.leader.agent
        if self.context:
            message: Message = {"role": "user", "content": self.context, "author": leader.name}
            conversation.append(message, by=leader.by)
        conversation.heard[turn.id] = dict(conversation.session.get("heard") or {})
        conversation.session["heard"] = {**(conversation.session.get("heard") or {}), **self.heard()}

    def heard(self) -> dict[str, int]:
        """How many of the leader's messages the agent has read."""
        leader = self.leader.agent
        return {leader.name: len(leader.conversation.session["messages"])}


def leader_of(turn: Turn) -> Turn:
    """The turn that leads a handoff: the leader's, or this one."""
    return turn if turn.handoff is None else turn.handoff.leader


def delegate(turn: Turn) -> Ending | None:
    """The ending of a turn that another agent, or the agent's function, answers; None where its own model is to answer.

    Another agent answers where the model handed over in the last round, or in an earlier turn.
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
    """A request to the agent that has answered since an earlier handoff; None where there is none."""
    name: Any = agent.conversation.session.get("active_agent")
    target = agent.root.find(name) if isinstance(name, str) else None
    if target is None or target is agent or target.in_turn:
        return None
    return HandoffRequest(target)


def run_hops(leader: Turn, request: HandoffRequest) -> Ending | None:
    """Let other agents answer, until one does not hand over.

    Returns:
        How its turn ended; None where the leading agent is to go on, or its turn was ended.
    """
    agent, conversation = leader.agent, leader.conversation
    while leader.ended is None:
        if request.by:  # counted here, which a resumed turn does again, and not in the tool, which it does not
            leader.handoffs += 1
        target = request.target
        stays = target is not agent and target.body is None  # a function cannot hand back
        if agent.body is None:
            _now_answers(leader, target.name if stays else None)
        if target is agent:
            return None
        line = _hop(leader, request)
        if leader.ended is not None:
            break
        result, handoff = line["result"], line.get("handoff")
        if handoff is None:
            if result:
                conversation.append({"role": "assistant", "content": result, "author": target.name}, by=target.by)
            return Ending(result, line["outcome"], target.by)
        request = HandoffRequest(agent.root.find(handoff["target"]), handoff["message"], handoff["by"])
        note = _note(target.name, result, request, agent.name)
        conversation.append({"role": "user", "content": note, "author": target.name}, by=target.by)
    return None


def _now_answers(leader: Turn, name: str | None) -> None:
    """Record who answers in later turns, so that a resumed session goes on with that agent."""
    conversation = leader.conversation
    if conversation.session.get("active_agent") != name:
        conversation.session["active_agent"] = name
        delta = {"active_agent": name}
        conversation.trace({"type": "session_delta", "by": leader.agent.by, "delta": delta})


def _hop(leader: Turn, request: HandoffRequest) -> TraceEntry:
    """Let the target take a turn of its own; its closing entry."""
    agent, target = leader.agent, request.target
    content: Any = users_message(leader)["content"]
    context = _context(leader, request)
    if target.name in leader.heard and context:  # it has read the user's message; the context is what is new
        content, context = context, ""
    leader.heard.add(target.name)
    message: Message = {"role": "user", "content": content}
    form = leader.output if agent.body is None else None  # the answer must fit the output of the leader
    given = Given(message, text_of(content), target.max_iterations, form or target.form)
    if agent.body is not None:
        asked = frame.current()
        return ask_inside(target, given, asked or leader.frame, handoff=Handoff(leader, context))
    leader.hops += 1
    with leader.frame.inside(f"{leader.place}/hop{leader.hops}"):
        asked = frame.current()
        assert asked is not None
        return ask_inside(target, given, asked, handoff=Handoff(leader, context))


def users_message(leader: Turn) -> Message:
    """The turn's user message as it is now: guards may have changed or replaced it."""
    messages: list[Message] = leader.conversation.session["messages"]
    if any(message is leader.message for message in messages):
        return leader.message
    users = (message for message in reversed(messages) if message["role"] == "user" and not message.get("author"))
    return next(users, leader.message)


def _context(leader: Turn, request: HandoffRequest) -> str:
    """The part of the conversation that the next agent has not read; "" for nothing."""
    agent, target = leader.agent, request.target
    messages, prompt = leader.conversation.session["messages"], users_message(leader)
    heard = ((target.current_session or {}).get("heard") or {}).get(agent.name, 0)
    if _was_shortened(leader.conversation.session["trace"], target.name):
        heard = 0  # the count is that of another conversation, of which a summary may be left
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


def _was_shortened(trace: list[TraceEntry], name: str) -> bool:
    """Whether messages were removed from the conversation since an agent's last turn in it."""
    for entry in reversed(trace):
        if entry["type"] == "message_removed":
            return True
        if entry["type"] == "agent_turn" and entry.get("agent") == name:
            return False
    return False


def _note(name: str, text: str, request: HandoffRequest, leader: str) -> str:
    """What an agent said when it handed over, for the others."""
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
    with turn.frame.inside(id):
        value = turn.boundary.run_tool(agent.body, {name: given[name] for name in agent.body_parameters})
        if turn.ended is not None:
            return None
        if turn.resumed:
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
