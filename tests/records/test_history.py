"""A record tells the conversation again, message by message, and whose each of them is."""

from __future__ import annotations

import json
import os
import re
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_conversation_property import MEAN, TURNS, Session, Turn

from connectagent.records.blobs import blob_folder
from connectagent.records.history import read_history
from connectagent.records.read import read_record


def plain(messages: Any) -> Any:
    """Messages as a file can hold them."""
    text = json.dumps(messages, default=repr, skipkeys=True, ensure_ascii=False)
    return json.loads(re.sub("[\ud800-\udfff]", "\ufffd", text))


class Watched(Session):
    """A session whose record is held against the conversation after each of its turns."""

    settled = True

    def good_turn(self) -> None:
        super().good_turn()
        assert self.agent.current_session is not None
        path = self.agent.record
        assert path is not None
        record = read_record(path)
        if not self.settled:
            for turn in record["turns"]:
                turn.pop("messages", None)
        history = read_history(record, blob_folder(path))
        assert plain(history.messages) == plain(self.agent.current_session["messages"])


@settings(MEAN, max_examples=int(os.environ.get("PROPERTY_CASES", "120")))
@given(turns=st.lists(TURNS, min_size=1, max_size=2))
def test_the_changes_that_a_record_lists_give_exactly_the_conversation(
    turns: list[Turn], tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("co")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("CONNECTAGENT_DIR", str(folder))
        Watched.settled = False
        session = Watched(log=None)
        for turn in turns:
            session.turn(turn)
