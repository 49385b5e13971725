"""What leaves the server, in each format: as JSON, without secrets, and as UTF-8 can have it."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic_core import to_jsonable_python

from connectagent import mask

_HALVES = re.compile("[\ud800-\udfff]")


def told(value: Any) -> Any:
    """A value as a client may see it; a turn that is asked for again, from its record, has the same.

    Args:
        value: an answer, an error's text, what waits, or a value of the state. It is not changed.
    """
    return whole(mask(to_jsonable_python(value, fallback=str)))


def told_text(value: Any) -> str:
    """The same of a turn's result as text: JSON, where the agent has `output=`."""
    shown = told(value)
    return shown if isinstance(shown, str) else json.dumps(shown)


def whole(value: Any) -> Any:
    """A value of JSON without halves of surrogate pairs, which a record does not have either."""
    if isinstance(value, str) and value.isascii():
        return value
    # The mark that records have: the answer is the same when it is read from there.
    return json.loads(_HALVES.sub("\ufffd", json.dumps(value, ensure_ascii=False)))
