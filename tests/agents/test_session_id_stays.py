"""The id of a session is not a handler's to change: the record is found by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent, after_each_tool, after_llm, after_user_input, before_each_tool, before_llm
from connectagent.errors import HookResultError
from connectagent.testing import ScriptedLLM, call


def work() -> str:
    """Work."""
    return "done"


@pytest.mark.parametrize("marker", [after_user_input, before_llm, after_llm, before_each_tool, after_each_tool])
@pytest.mark.parametrize("new", [5, None, "other", "(gone)"])
def test_a_handler_that_changes_the_id_is_named_and_the_record_goes_on(
    marker: Any, new: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def renames(agent: Agent) -> None:
        agent.session.pop("id", None)  # type: ignore[misc]
        if new != "(gone)":
            agent.session["id"] = new

    stopped = Agent("odd", [work], llm=ScriptedLLM([call("work")], "Done."), on_events=[marker(renames)], quiet=True)
    with pytest.raises(HookResultError, match=r"renames .* left current_session\['id'\]"):
        stopped.input("Go.")
    assert isinstance(stopped.session["id"], str)
    again = Agent("odd", [work], llm=ScriptedLLM([call("work")], "Done.", "Done.", "Done."), quiet=True)
    assert again.resume(stopped.record) == "Done."
