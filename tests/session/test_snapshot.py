"""A trace that is followed and restored, wherever Ctrl-C cuts a write off."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

from ctrl_c import CtrlC

from connectagent.session import snapshot as snapshot_module
from connectagent.session.snapshot import FollowedTrace


def test_an_entry_whose_writing_ctrl_c_cut_off_is_not_taken_for_the_next_one() -> None:
    for at in itertools.count(1):
        trace: list[dict[str, Any]] = []
        followed = FollowedTrace(trace, 0)
        with CtrlC(at, (snapshot_module.__file__,)) as ctrl_c, contextlib.suppress(KeyboardInterrupt):
            followed.append({"type": "first"})
        if not ctrl_c.where:
            break
        followed.append({"type": "second"})
        followed.restore()
        assert trace[-1] == {"type": "second"} and trace[:-1] in ([], [{"type": "first"}]), ctrl_c.where
    assert at > 5
