"""Every test checks that the entries of its turns fit their types, and begins without what others set or learnt."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from entry_types import checked

from connectagent.commands.script import NAME
from connectagent.models.output_forms import forget
from connectagent.settings import overrides


@pytest.fixture(autouse=True)
def entries_fit_their_types() -> Iterator[None]:
    with checked() as misfits:
        yield
    assert not misfits, "\n".join(misfits[:5])


@pytest.fixture(autouse=True)
def no_endpoint_is_known() -> None:
    forget()  # a port may come again


@pytest.fixture(autouse=True)
def the_command_line_is_forgotten() -> Iterator[None]:
    before, argv = dict(overrides), sys.argv
    yield
    sys.argv = argv  # a script that a command loads gets its own
    sys.modules.pop(NAME, None)
    overrides.clear()
    overrides.update(before)
