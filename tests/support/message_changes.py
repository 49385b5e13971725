"""What a thread may do to the messages of a session, at places that chance chooses."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any


def append(messages: list[Any], chance: random.Random) -> None:
    messages.append({"role": "user", "content": "(from a thread)"})


def insert(messages: list[Any], chance: random.Random) -> None:
    messages.insert(chance.randrange(len(messages) + 1), {"role": "user", "content": "(from a thread)"})


def delete(messages: list[Any], chance: random.Random) -> None:
    del messages[chance.randrange(len(messages))]


def take_calls(messages: list[Any], chance: random.Random) -> None:
    del messages[chance.randrange(len(messages))]["tool_calls"]


def take_one_call(messages: list[Any], chance: random.Random) -> None:
    messages[chance.randrange(len(messages))]["tool_calls"].pop()


def rename(messages: list[Any], chance: random.Random) -> None:
    messages[chance.randrange(len(messages))]["tool_call_id"] += "x"


def swap(messages: list[Any], chance: random.Random) -> None:
    one = messages.pop()
    messages.insert(chance.randrange(len(messages) + 1), one)


def edit(messages: list[Any], chance: random.Random) -> None:
    messages[chance.randrange(len(messages))]["content"] = "(edited by a thread)"


def spoil(messages: list[Any], chance: random.Random) -> None:
    messages[chance.randrange(len(messages))]["content"] = 7


def unroll(messages: list[Any], chance: random.Random) -> None:
    messages[chance.randrange(len(messages))].pop("role")


def no_message(messages: list[Any], chance: random.Random) -> None:
    messages.append(7)


Change = Callable[[list[Any], random.Random], None]
CHANGES: list[Change] = [append, insert, delete, rename, swap, edit]
SPOILING: list[Change] = [take_calls, take_one_call, spoil, unroll, no_message]
"""What leaves no message: a handler that does so ends its turn, and so does a thread while a handler runs."""
