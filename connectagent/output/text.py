"""Text as eyes and files may have it: without secrets, harmless to a terminal, not too long."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from connectagent.output.masking import current

# Control characters, what turns the direction of text round, line separators, and lone surrogates.
_UNREADABLE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def clean(text: str) -> str:
    """Text in which only newlines are left of what a terminal would act upon; the rest is shown as escapes."""
    text = text.replace("\r\n", "\n").replace("\t", "    ")
    return _UNREADABLE.sub(lambda match: ascii(match[0])[1:-1], text)


def describe(how: Callable[[Any], str], value: Any) -> str:
    """The `str` or `repr` of a value, or that it has none."""
    try:
        return str(how(value))
    except Exception as error:
        return f"<{type(value).__name__}, whose {how.__name__}() raised {type(error).__name__}>"


def shortened(value: Any, length: int) -> str:
    """A value as text without secrets, of at most `length` characters, and a mark that tells how much is left out."""
    value = current().text(value if isinstance(value, str) else describe(str, value))
    left_out = len(value) - length
    return clean(value[:length]) + (f"... ({left_out} more characters)" if left_out > 0 else "")



