"""What is said of a turn whose answer is not known to be good: no client may take it for a good one."""

from __future__ import annotations

from typing import Any

FAULTS = {
    "truncated": "the answer is cut off, or it is not known that it is whole",
    "refused": "the model refused to answer",
    "max_iterations": "the turn has reached its limit of iterations",
}
"""By the outcome of a turn whose result is no good answer: why."""


def number_of(session: Any, given: int | None) -> int:
    """The number of the turn that a session has taken or read just now.

    Args:
        session: the session.
        given: the number that was asked for; a turn without one was taken here.
    """
    number: int = session.agent.current_session["turn"] if given is None else given
    return number


def choice_of(text: str, outcome: str) -> tuple[dict[str, Any], str]:
    """The message of a chat completion, without its role, and its `finish_reason`.

    A refusal is `message.refusal` beside `stop`, and there is no content then:
    https://platform.openai.com/docs/guides/structured-outputs#refusals
    """
    if outcome == "refused":
        return {"content": None, "refusal": text}, "stop"
    return {"content": text}, "length" if outcome in FAULTS else "stop"
