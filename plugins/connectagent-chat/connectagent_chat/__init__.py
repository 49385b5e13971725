"""The command `connectagent chat`: a conversation with an agent at the terminal."""

from __future__ import annotations

from typing import Any

from connectagent import register_commands


@register_commands
def chat_command(cli: Any) -> None:
    """Add the command `chat`."""
    from connectagent_chat.command import chat

    cli.add_command(chat)
