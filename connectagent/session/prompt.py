"""System prompts: text or a file, with placeholders filled from the state."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from connectagent.errors import ConfigError
from connectagent.session.observers import OWN
from connectagent.session.snapshot import By
from connectagent.session.state import is_temporary

_PLACEHOLDER = re.compile(r"(\{+)((?:(?:app|user|temp):)?[^\W\d]\w*)(\??)(\}+)")
_SUFFIXES = (".md", ".txt", ".prompt")

_MOST_CHANGES = 20  # of a system prompt


def read_prompt(source: str | Path | None) -> str:
    """The text of a system prompt.

    Args:
        source: the text, a path to a file, or the name of a file in `prompts/`, with or without its ending. A
            `Path` is always a file.

    Raises:
        ConfigError: the file is missing, empty or not UTF-8, or a text of several words is a file's name too. A
            missing `str` counts only if it looks like a file name.
    """
    if source is None:
        return ""
    if isinstance(source, Path):
        return read_text(source, "system prompt")
    if not isinstance(source, str):
        raise ConfigError(f"system_prompt must be a str or a Path, not {type(source).__name__}")
    if "\n" in source or len(source) > 255 or not source.strip():
        return source
    for path in (Path(source), *(Path("prompts") / f"{source}{suffix}" for suffix in ("", *_SUFFIXES))):
        if is_file(path):
            refuse_words(source, path, "system prompt")
            return read_text(path, "system prompt")
    if source.endswith(_SUFFIXES) and " " not in source:
        raise ConfigError(f"system prompt {source!r}: no such file in {Path.cwd()} or its folder prompts/")
    return source


def is_file(path: Path) -> bool:
    """Whether a text is the path of a file."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # no possible file name
        return False


def refuse_words(text: str, path: Path, what: str) -> None:
    """Refuse a text of several words that is a file's name too: whose folder this is must not decide what it means.

    Raises:
        ConfigError: it is.
    """
    if re.search(r"\s", text) and not os.path.isabs(text):
        raise ConfigError(
            f"{what} {text!r} is a text of several words, and there is a file of that name too: {str(path)!r}.\n"
            f"Give it as Path({str(path)!r}) if the file is meant; otherwise rename the file"
        )


def read_text(path: Path, what: str) -> str:
    """The text of a file that the user named.

    Raises:
        ConfigError: it is missing, empty or not UTF-8. `what` names it in the message.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} {str(path)!r} is not UTF-8 text: {error}") from error
    except (OSError, ValueError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else str(error)
        raise ConfigError(f"{what} {str(path)!r} cannot be read: {reason}") from error
    if not text.strip():
        raise ConfigError(f"{what} {str(path)!r} is empty")
    return text


@dataclass(slots=True)
class Prompt:
    """A system prompt with placeholders for the state: `{name}`, `{user:name}`, `{name?}`; `{{name}}` is text.

    Only names in braces are placeholders, so that JSON and code in a prompt stay as they are.

    Args:
        template: the prompt.
        strict: whether the state must have each name; otherwise the placeholder of a missing name stays.
    """

    template: str
    strict: bool

    def fill(self, state: dict[str, Any], agent: str) -> str:
        """The prompt filled with the values of the state as text; None becomes "".

        Raises:
            ConfigError: the state has no value for a placeholder, or the value cannot be turned into text.
        """
        return _PLACEHOLDER.sub(lambda match: self._value(match, state, agent), self.template)

    def as_data(self, state: dict[str, Any]) -> str:
        """The filled prompt for the trace: `{temp:name}` stays, since its value is never recorded."""
        return _PLACEHOLDER.sub(
            lambda match: match[0] if is_temporary(match[2]) else self._value(match, state, ""), self.template
        )

    def _value(self, match: re.Match[str], state: dict[str, Any], agent: str) -> str:
        opening, name, optional, closing = match.groups()
        braces = min(len(opening), len(closing))  # the others belong to the text around it: {"user": {name}}
        if name not in state and not self.strict:
            return match[0]
        if braces > 1:
            return match[0][1:-1] if braces == 2 else match[0]
        if name not in state and not optional:
            raise self._missing(match, state, agent)
        return opening[1:] + _written(name, state.get(name)) + closing[1:]

    def _missing(self, match: re.Match[str], state: dict[str, Any], agent: str) -> ConfigError:
        name = match[2]
        near = self.template[max(0, match.start() - 30) : match.end() + 30]
        keys = ", ".join(repr(key) for key in state) or "nothing"
        return ConfigError(
            f"the system prompt of agent {agent!r} needs {name!r} for {{{name}}} in {near!r}; the state has {keys}.\n"
            f"Give it a value, by Agent(state={{{name!r}: ...}}) or agent.current_session['state'][{name!r}] = ...; or "
            f"write {{{name}?}}, which is empty without one. {{{{{name}}}}} is the text {{{name}}}."
        )


def _written(name: str, value: object) -> str:
    try:
        return "" if value is None else str(value)
    except Exception as error:
        problem = f"state {name!r} cannot be written into the system prompt: its str() raised {type(error).__name__}"
        raise ConfigError(f"{problem}: {error}") from error


class SystemPrompt:
    """A system prompt, and how handlers changed it before the session began.

    Attributes:
        text: as it is now.
        changes: `{"by", "before"}` each: who, and the text before.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.changes: list[dict[str, Any]] = []

    def change(self, text: str, by: By | None) -> None:
        """Change it; `by`: the handler, or None for the program."""
        if by is None and not self.changes:
            self.text = text
            return
        by = dict(by or {"agent": "its beginning"})
        if not self.changes or self.changes[-1]["by"] != by:
            self.changes.append({"by": by, "before": self.text})
        del self.changes[:-_MOST_CHANGES]
        self.text = text


def prompt_changes(recorded: object) -> list[dict[str, Any]]:
    """The changes of a system prompt that a record has; [] where they are not such."""
    if not isinstance(recorded, list):
        return []
    fits = all(
        isinstance(one, dict) and isinstance(one.get("by"), dict) and isinstance(one.get("before"), str)
        for one in recorded
    )
    return recorded if fits else []


def last_filled(trace: list[Any], system_prompt: str) -> Any:
    """The system prompt as its placeholders were filled in last."""
    entries = (entry for entry in reversed(trace) if isinstance(entry, dict))
    last = next((entry for entry in entries if entry.get("index") == 0 and entry.get("by") == OWN), {})
    return last.get("message", {}).get("content", system_prompt)
