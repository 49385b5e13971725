"""Handing over: the part of a turn that is not the agent's own model's, but another agent's or a function's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from connectagent.attribution import By
from connectagent.delegation import ask
from connectagent.messages import text_of
from connectagent.parts import CONNECTAGENT, Handed, Part, Transfer, handed_over
from connectagent.session import Message
from connectagent.tree import parameters_of

if TYPE_CHECKING:
    from connectagent.agent import Agent

_SAID = "What was said in this conversation:"


def answered_elsewhere(agent: Agent) -> tuple[str, str] | None:
    """The result and the outcome of a turn that goes on elsewhere; None where the agent's own model is to be asked.

    It goes on in the agent's function, with the agent that its model handed over to in the last round, or
    with the one that answered last.
    """
    part = agent.part
    if part is None or (not agent.marks and agent.body is None):
        return None
    if agent.body is not None:
        return _run_body(agent, part)
    if part.transfer is None and part.handed is None:
        part.transfer = _active(agent)
        if part.transfer is not None:
            agent.conversation.session["iteration"] += 1
    if part.transfer is None:
        return None
    if part.handed is not None:
        return last_text(agent), "transferred"
    first, part.transfer = part.transfer, None
    return run_parts(part, first)


def _active(agent: Agent) -> Transfer | None:
    """The agent that answers since an earlier hand-over."""
    name: Any = agent.conversation.session.get("active_agent")
    target = agent.root.find(name) if isinstance(name, str) else None
    if target is None or target is agent or target.in_turn:
        return None
    return Transfer(target)


def run_parts(leader: Part, transfer: Transfer) -> tuple[str, str] | None:
    """Let other agents answer, until one does not hand over to the next.

    Returns:
        Its result and outcome; None where the leading agent itself is to go on, or its turn was ended.
    """
    agent = leader.agent
    talk = agent.conversation
    while agent.ended is None:
        stays = transfer.target is not agent and transfer.target.body is None  # a function cannot hand back
        if agent.body is None:
            _now_answers(agent, transfer.target.name if stays else None)
        if transfer.target is agent:
            return None
        handed = Handed(transfer.target, _context(leader, transfer), leader)
        result = _part_of(handed)
        if agent.ended is not None:
            break
        by = _by(handed.target)
        if handed.transfer is None:
            message: Message = {"role": "assistant", "content": result, "author": handed.target.name}
            if result:
                talk.append(message, by=by)
            return result, handed.outcome
        transfer = handed.transfer
        note = _note(handed.target.name, result, transfer, agent.name)
        talk.append({"role": "user", "content": note, "author": handed.target.name}, by=by)
    return None


def _now_answers(agent: Agent, name: str | None) -> None:
    """Note who answers in later turns, so that a session that was stored can go on with it."""
    talk = agent.conversation
    if talk.session.get("active_agent") != name:
        talk.session["active_agent"] = name
        talk.trace({"type": "session_delta", "by": _by(agent), "delta": {"active_agent": name}})


def _part_of(handed: Handed) -> str:
    """Run the part of the agent that is to answer: a whole turn of its own."""
    leader, name = handed.leader, handed.target.name
    prompt: Any = users_message(leader)["content"]
    if name in leader.told and handed.context:  # it knows the user's message; what it does not know is new
        prompt, handed.context = handed.context, ""
    leader.told.add(name)
    token = handed_over.set(handed)
    try:
        return ask(handed.target, prompt)
    finally:
        handed_over.reset(token)


def users_message(leader: Part) -> Message:
    """The user's message of the turn as it is now: guards may have changed it, or put another in its place."""
    messages = leader.agent.conversation.session["messages"]
    if leader.message is not None and any(message is leader.message for message in messages):
        return leader.message
    users = (message for message in reversed(messages) if message["role"] == "user" and not message.get("author"))
    return next(users, leader.message or {"role": "user", "content": leader.prompt})


def _context(leader: Part, transfer: Transfer) -> str:
    """What the next agent does not know yet of what was said in the conversation; "" for nothing."""
    agent, target = leader.agent, transfer.target
    messages, prompt = agent.conversation.session["messages"], users_message(leader)
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
    if transfer.by == agent.name:
        lines.append(_passed_on(transfer, "you"))
    return "\n".join([_SAID, *lines]) if lines else ""


def _note(name: str, text: str, transfer: Transfer, leader: str) -> str:
    """What an agent that hands over has said, for the others."""
    target = "you" if transfer.target.name == leader else transfer.target.name
    return "\n".join(filter(None, [text and f"{name}: {text}", _passed_on(transfer, target)]))


def _passed_on(transfer: Transfer, target: str) -> str:
    return f"[{transfer.by} handed over to {target}{': ' if transfer.message else ''}{transfer.message}]"


def _by(agent: Agent) -> By:
    return {"plugin": CONNECTAGENT, "agent": agent.name, "branch": agent.branch}


def last_text(agent: Agent) -> str:
    """The text of the model's last message; "" where it has said nothing."""
    messages = agent.conversation.session["messages"]
    return next((text_of(one.get("content")) for one in reversed(messages) if one["role"] == "assistant"), "")


def _run_body(agent: Agent, part: Part) -> tuple[str, str] | None:
    """Run the function that an agent has in place of a model."""
    assert agent.body is not None
    talk, given = agent.conversation, {"agent": agent, "prompt": part.prompt}
    talk.session["iteration"] += 1
    value = agent.hooks.run_tool(agent.body, {name: given[name] for name in parameters_of(agent.body.function)})
    if agent.ended is not None:
        return None
    if not isinstance(value, str | None):
        raise TypeError(
            f"the function that agent {agent.name!r} runs ({agent.body.origin}) returned {type(value).__name__} "
            f"{value!r:.80}; it returns the result as a str, or None"
        )
    messages = talk.session["messages"]
    if value and not (messages and messages[-1]["role"] == "assistant" and messages[-1]["content"] == value):
        talk.append({"role": "assistant", "content": value}, by=_by(agent))
    return value or "", "answered"
