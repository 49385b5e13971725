"""Links that open a file of this machine in the person's editor."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from connectagent.errors import ConfigError
from connectagent.settings import setting

_FORMS = {
    "vscode": "vscode://file{path}:{line}",
    "cursor": "cursor://file{path}:{line}",
    "zed": "zed://file{path}:{line}",
    "idea": "idea://open?file={path}&line={line}",
    "editor": "editor://open/?file={path}&line={line}",
}


def editor_link(by: Any) -> str | None:
    """The link to the code that made a change; None if links are off, or the file is not on this machine.

    A record may come from a stranger: only existing Python files are linked.

    Args:
        by: the `by` of an entry.
    """
    if not isinstance(by, dict) or not isinstance(by.get("file"), str):
        return None
    line = str(by.get("line"))
    form = _FORMS.get(_editor())
    if form is None or not line.isdecimal() or not _is_code(by["file"]):
        return None
    path = by["file"].replace(os.sep, "/")
    return form.format(path=quote(path if path.startswith("/") else f"/{path}"), line=line)


def check_editor() -> None:
    """Refuse an editor that is not known.

    Raises:
        ConfigError: the setting names none of them.
    """
    if (name := _editor()) != "off" and name not in _FORMS:
        raise ConfigError(f"the setting editor is {name!r}: it is one of {', '.join(_FORMS)}, or off")


def _editor() -> str:
    return str(setting("editor") or "vscode")


@lru_cache(1000)
def _is_code(path: str) -> bool:
    return os.path.isabs(path) and path.endswith(".py") and os.path.isfile(path)
