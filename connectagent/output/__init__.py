"""What may leave for eyes and files: masked, harmless, in rows, on a terminal. Public is what `__all__` lists.
"""

from __future__ import annotations

from connectagent.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from connectagent.errors import cut, did_you_mean, short_path
    from connectagent.output.masking import add_secret, mask
    from connectagent.output.rows import (
        Row,
        argument_rows,
        call_text,
        change_text,
        duration,
        first_line,
        many,
        price,
        rows_of,
        tokens,
    )
    from connectagent.output.terminal import Terminal
    from connectagent.output.text import actor, actor_with_place, arguments_text, as_json, clean, describe, visible
    from connectagent.output.typed import can_ask, forget_typed, one_question, unattended
    from connectagent.output.words import Piece, word_diff

_HOMES = {
    "errors": "cut did_you_mean short_path",
    "output.masking": "add_secret mask",
    "output.rows": "Row argument_rows call_text change_text duration first_line many price rows_of tokens",
    "output.terminal": "Terminal",
    "output.text": "actor actor_with_place arguments_text as_json clean describe visible",
    "output.typed": "can_ask forget_typed one_question unattended",
    "output.words": "Piece word_diff",
}

__all__ = [
    "Piece",
    "Row",
    "Terminal",
    "actor",
    "actor_with_place",
    "add_secret",
    "argument_rows",
    "arguments_text",
    "as_json",
    "call_text",
    "can_ask",
    "change_text",
    "clean",
    "cut",
    "describe",
    "did_you_mean",
    "duration",
    "first_line",
    "forget_typed",
    "many",
    "mask",
    "one_question",
    "price",
    "rows_of",
    "short_path",
    "tokens",
    "unattended",
    "visible",
    "word_diff",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
