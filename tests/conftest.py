"""Every test also checks that the entries of its turns fit their types."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from entry_types import checked


@pytest.fixture(autouse=True)
def entries_fit_their_types() -> Iterator[None]:
    with checked() as misfits:
        yield
    assert not misfits, "\n".join(misfits[:5])
