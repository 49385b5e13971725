"""What a person decides, as each protocol says it."""

from __future__ import annotations

from typing import Any

from connectagent_serve.refusals import Refused

_ONE = {"approve", "reject", "answer"}


def decision_of(given: Any) -> dict[str, Any]:
    """A decision from an object with approve, reject or answer, and perhaps wait; `approve: false` rejects.

    Raises:
        Refused: it is none.
    """
    decides = isinstance(given, dict) and set(given) <= _ONE | {"wait"} and len(set(given) & _ONE) == 1
    if not decides or None in given.values():
        forms = '{"approve": true}, {"reject": "why"} or {"answer": ...}'
        raise Refused(400, f"a decision has approve, reject or answer, and perhaps wait: {forms}")
    if given.get("approve") is False:
        return {"reject": "rejected", **{key: given[key] for key in given if key == "wait"}}
    return dict(given)


def decision_of_agui(entry: Any) -> dict[str, Any]:
    """The decision in an answer to an interrupt of AG-UI.

    Raises:
        Refused: there is none.
    """
    given = entry.payload
    if entry.status == "cancelled":
        given = {"reject": "cancelled"}
    elif isinstance(given, str) and given.strip():
        given = {"answer": given}
    elif isinstance(given, bool):
        given = {"approve": given}
    if not isinstance(given, dict) or "wait" in given or len(given) != 1:
        raise Refused(400, "an interrupt is answered with a text, true, false, or one of approve, reject, answer")
    return {**decision_of(given), "wait": entry.interrupt_id}
