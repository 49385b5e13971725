"""How a list of plugins names those that are files, for whoever loads them and whoever must allow them."""

from __future__ import annotations

SHADOW = "shadow:"


def plugin_file(name: str) -> tuple[str, str] | None:
    """Whether a plugin is shadowed, as `shadow:` or an empty text, and its file; None for a name that is no file."""
    name = name.strip()
    mode = SHADOW if name.startswith(SHADOW) else ""
    file = name.removeprefix(mode).strip()
    return (mode, file) if file.endswith(".py") and not name.startswith("no:") else None
