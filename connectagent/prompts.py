"""System prompts: text, or a file that holds it."""

from __future__ import annotations

from pathlib import Path

from connectagent.errors import ConfigError

_SUFFIXES = (".md", ".txt", ".prompt")


def read_prompt(source: str | Path | None) -> str:
    """The text of a system prompt.

    Args:
        source: the text; a path to a file that holds it; or the name of a file in `prompts/`, with or
            without its ending. A `Path` is always a file.

    Raises:
        ConfigError: a `Path`, or a text that can only be a file's name, is missing, empty or not UTF-8.
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
        try:
            if path.is_file():
                return read_text(path, "system prompt")
        except (OSError, ValueError):  # a text that no file system takes as a name
            return source
    if source.endswith(_SUFFIXES) and " " not in source:
        raise ConfigError(f"system prompt {source!r}: no such file in {Path.cwd()} or its folder prompts/")
    return source


def read_text(path: Path, what: str) -> str:
    """The text of a file that the user named.

    Raises:
        ConfigError: it is missing, empty or not UTF-8; `what` says what it was to be.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} {str(path)!r} is not UTF-8 text: {error}") from error
    except (OSError, ValueError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else str(error)
        raise ConfigError(f"{what} {str(path)!r} cannot be read: {reason}") from error
    if not text.strip():
        raise ConfigError(f"{what} {str(path)!r} is empty")
    return text
