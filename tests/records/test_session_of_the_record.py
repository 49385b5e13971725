"""Whatever handlers do, whoever reads the record has the session of the process, also after turns that went on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_conversation_property import MEAN, TURNS, Fault, Session, Turn, good

from connectagent.records.history import history_of

CASES = int(os.environ.get("SESSION_CASES", "25"))  # set it for a longer run


def plain(value: Any) -> Any:
    """A value as a record can have it; None for what it cannot."""
    if isinstance(value, dict):
        return {
            plain(key if isinstance(key, str) else json.dumps(key, default=str)): plain(value[key]) for key in value
        }
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    return value if value is None or isinstance(value, bool | int) else None


def sure(recorded: Any, value: Any) -> Any:
    """A recorded value without what no record can have."""
    if isinstance(value, dict) and isinstance(recorded, dict):
        return {key: sure(recorded.get(key), value.get(key)) for key in {*recorded, *value}}
    if isinstance(value, list) and isinstance(recorded, list) and len(value) == len(recorded):
        return [sure(one, other) for one, other in zip(recorded, value, strict=True)]
    return None if value is None else recorded


def check(session: Session) -> None:
    """The messages and the state are those of the record."""
    current, record = session.agent.current_session, session.agent.record
    if current is None or record is None or not record.exists():
        return
    history = history_of(record)
    messages = plain(current["messages"])
    assert sure(plain(history.messages), messages) == messages
    state = plain({key: one for key, one in current["state"].items() if not str(key).startswith("temp:")})
    assert sure(plain(history.state), state) == state


def again(session: Session, turn: Turn, other: bool) -> Session:
    """Resume a turn up to three times; by another agent, as in another process, or by the same."""
    kept = [fault for fault in turn.faults if fault.place.startswith("around_turn")]  # its handlers run anew
    for _ in range(3):
        record, one = session.agent.record, session
        if other:
            session.agent.close()
            one = Session(log=None)
            one.llm.script = session.llm.script
            if "good" in session.agent.tools:
                one.agent.add_tool(good)
        one.faults, session = kept, one
        session.seen.clear()
        ended = False
        with contextlib.suppress(BaseException):
            session.agent.resume(record)
            ended = True
        check(session)
        if ended:
            break
    return session


def relevant(faults: list[Fault]) -> list[Fault]:
    around = any(fault.place.startswith("around_turn") for fault in faults)
    runs = any(fault.act == "use_agent" and fault.n % 9 == 5 for fault in faults)  # a tool, not asked for again
    faults = [one for one in faults if not (runs and one.place == "bad")]  # what it changes is in the record only
    return [one for one in faults if not (around and one.place == "on_trace")]


OBSERVED = Turn(  # the hooks that only observed are closed behind the error
    [(None, [("good", "c1", {"x": 1})])],
    [Fault("after_user_input", 0, "append_message", 0), Fault("on_trace", 3, "raise_error", 0)],
    [],
)
USED_AGAIN = Turn(  # a handler removes a result, and a later round has a call of the same id
    [("", [("bad", "c1", {}), ("bad", "c2", {})]), (None, [("good", "c1", {"x": 1})]), "error"],
    [Fault("around_tool:after", 1, "delete_message", 0)],
    [],
)
LEFT_OUT = Turn(  # the turn is ended before a round, and goes on with another one of the same id
    [("", [("good", "c1", {"x": 1})]), ("", [("bad", "c1", {})]), "error"],
    [Fault("after_llm", 0, "use_agent", 0), Fault("on_complete", 0, "return_value", 73)],
    [],
)
ASKED = Turn(  # a handler behind the answer runs a tool, and the answer never comes into the conversation
    [], [Fault("after_llm", 0, "use_agent", 6), Fault("after_each_tool", 0, "raise_error", 2)], []
)
CHANGED = Turn(  # a handler changes messages before it runs a tool, and fails
    [],
    [Fault("before_llm", 0, act, n) for act, n in (("clear_messages", 1), ("use_agent", 4), ("return_value", 73))],
    [],
)
BEGUN_ANEW = Turn(  # handlers around the turn change messages, and it fails before the user's message
    [], [Fault("around_turn:caught", 0, "append_message", 2), Fault("around_turn:before", 0, "replace_list", 20)], []
)
CUT_OFF = Turn(  # a handler of a tool that another handler runs adds a result, and fails
    [],
    [
        Fault("after_user_input", 0, "use_agent", 5),
        Fault("before_each_tool", 0, "append_to_last_round", 1),
        Fault("before_each_tool", 0, "edit_given", 1),
    ],
    [],
)


@settings(MEAN, max_examples=CASES, derandomize="SESSION_CASES" not in os.environ)
@given(turns=st.lists(TURNS, min_size=1, max_size=2), others=st.lists(st.booleans(), min_size=2, max_size=2))
@example(turns=[OBSERVED], others=[False, False])
@example(turns=[USED_AGAIN], others=[True, True])
@example(turns=[LEFT_OUT], others=[True, True])
@example(turns=[BEGUN_ANEW], others=[False, False])
@example(turns=[Turn([], [], []), CUT_OFF], others=[True, True])
@example(turns=[ASKED], others=[False, False])
@example(turns=[CHANGED], others=[False, False])
def test_the_record_has_the_session_of_the_process(
    turns: list[Turn], others: list[bool], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder: Path = tmp_path_factory.mktemp("co")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("CONNECTAGENT_DIR", str(folder))
        session = Session(log=None)
        for turn, other in zip(turns, others, strict=False):
            faults = relevant(turn.faults)
            session.faults, session.llm.script = faults, list(turn.rounds)
            session.seen.clear()
            ended = False
            with contextlib.suppress(BaseException):
                session.agent.input("Go.")
                ended = True
            check(session)
            if not ended and session.agent.record is not None:
                session = again(session, turn._replace(faults=faults), other)
            session.faults, session.llm.script = [], []
            session.good_turn()
            check(session)
