"""Which hooks the settings files have, and for what each of them runs."""

from __future__ import annotations

import fnmatch
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from connectagent import ConfigError
from connectagent.settings import read_allowed

# The events that have a moment here; others are not run.
EVENTS = (
    *("SessionStart", "SessionEnd", "UserPromptSubmit", "PreToolUse", "PermissionRequest", "PostToolUse"),
    *("PostToolUseFailure", "PostToolBatch", "Notification", "SubagentStart", "SubagentStop", "Stop", "StopFailure"),
    *("PreCompact", "PostCompact"),
)
GUARDS = ("PreToolUse", "PermissionRequest", "UserPromptSubmit")  # where a hook that fails refuses
_TIMEOUTS_S = {"UserPromptSubmit": 30.0, "SessionEnd": 60.0}
_KINDS = {"command": "command", "http": "url", "prompt": "prompt"}  # and the key of what is run
_NAMES = re.compile(r"[\w ,|-]*")  # matchers without any other character are names, not patterns


@dataclass(frozen=True)
class Hook:
    """One hook of a settings file.

    Args:
        event: the event's name.
        matcher: what it is for, by the name of a tool, an agent or a kind of the event; "" for everything.
        run: the command for the shell, the words of one without a shell, the prompt, or the address.
        kind: `command`, `http` or `prompt`.
        timeout_s: after how many seconds it is killed.
        only_if: a rule such as `Bash(git *)` that the call must fit as well.
        in_background: whether nobody waits for it.
        model: of a prompt: the name of the model.
        headers: of an address: what is sent with it, by name.
        variables: the names of environment variables that headers may have.
    """

    event: str
    matcher: str
    run: str | tuple[str, ...]
    kind: str
    timeout_s: float
    only_if: str = ""
    in_background: bool = False
    model: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    variables: tuple[str, ...] = ()

    def is_for(self, name: str, tool_input: Any = None) -> bool:
        """Whether it runs for a tool, an agent or a kind of the event; "" for events without any."""
        if not matches(self.matcher, name):
            return False
        return not self.only_if or not isinstance(tool_input, dict) or _fits(self.only_if, name, tool_input)


def read_hooks(folder: Path, user: bool = True, project: bool = True) -> list[Hook]:
    """The hooks for a project: those of the user's, the project's and the local settings.

    Args:
        folder: the project's folder.
        user: whether those of the user's settings are read.
        project: whether those in the project's folder are read.

    Raises:
        ConfigError: a file cannot be read or used, or the person has not allowed what the project's files run.
    """
    home = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")
    own, inside = home / "settings.json", folder / ".claude"
    paths = [own] if user else []
    paths += [inside / "settings.json", inside / "settings.local.json"] if project else []
    hooks: dict[bool, list[Hook]] = {True: [], False: []}  # by whether they are the user's own
    for path in dict.fromkeys(paths):
        try:
            if path.exists() and not path.is_file():  # a pipe or a device, which need not end
                raise ConfigError(f"shellhooks: {path} is no regular file")
            data = _parsed(path, path.read_text("utf-8-sig"))
            if path != own and data.get("hooks"):
                data = _parsed(path, read_allowed(path))
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"shellhooks: {path} cannot be read: {error}") from error
        if data.get("disableAllHooks") is True:  # a project cannot switch off hooks of the user
            return [] if path == own else hooks[True]
        hooks[path == own] += _hooks(path, data.get("hooks") or {})
    return list(dict.fromkeys([*hooks[True], *hooks[False]]))  # what two files say alike runs once


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"shellhooks: {path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"shellhooks: {path} holds no object")
    return data


def _hooks(path: Path, events: Any) -> list[Hook]:
    """The hooks of one file's `hooks`, without those of events that have no moment here."""
    try:
        for event in events:
            _refuse_misspelt(event)
        return [
            _hook(event, str(group.get("matcher") or ""), one)
            for event, groups in events.items()
            for group in groups
            for one in group["hooks"]
            if event in EVENTS
        ]
    except (AttributeError, KeyError, TypeError, ValueError, re.error) as error:
        raise ConfigError(f"shellhooks: {path} has hooks that cannot be used: {error}") from error


def _refuse_misspelt(event: str) -> None:
    """Raise `ValueError` for an event such as `preToolUse`, whose guards would be missing unnoticed."""
    likely = next((one for one in EVENTS if one.casefold() == event.casefold()), event)
    if likely != event:
        raise ValueError(f"there is no event {event!r}; did you mean {likely!r}?")


def _hook(event: str, matcher: str, one: dict[str, Any]) -> Hook:
    kind = one.get("type", "command")
    if kind not in _KINDS:
        raise ValueError(
            f"{event}: a hook of type {kind!r} is not supported, only 'command', 'http' and 'prompt'; a command can "
            "start an agent, and a handler of your own can call a tool"
        )
    run = _run(event, kind, one)
    timeout_s = float(one.get("timeout") or _TIMEOUTS_S.get(event, 600.0))
    if not 0 < timeout_s < 86_400:
        raise ValueError(f"{event}: timeout is a number of seconds, not {timeout_s}")
    if _NAMES.fullmatch(matcher) is None and matcher != "*":
        re.compile(matcher)
    if kind == "command" and one.get("shell", "bash") != "bash" and one.get("args") is None:
        raise ValueError(f"{event}: shell is 'bash', not {one['shell']!r:.80}")
    rule, model = str(one.get("if") or ""), one.get("model")
    in_background = one.get("async") is True or one.get("asyncRewake") is True
    headers = tuple((str(name), str(value)) for name, value in (one.get("headers") or {}).items())
    return Hook(
        event, matcher, run, kind, timeout_s, rule, in_background, model and str(model), headers,
        tuple(map(str, one.get("allowedEnvVars") or ())),
    )  # fmt: skip


def _run(event: str, kind: str, one: dict[str, Any]) -> str | tuple[str, ...]:
    """What is run: the command, its words, the prompt or the address."""
    run, words = one[_KINDS[kind]], one.get("args")
    if not isinstance(run, str) or not run.strip() or not isinstance(words, list | None):
        raise ValueError(f"{event}: {_KINDS[kind]} is a text, args a list of texts")
    if not all(isinstance(word, str) for word in words or ()):
        raise ValueError(f"{event}: args is a list of texts, not {words!r:.80}")
    if kind == "http" and not run.startswith(("http://", "https://")):
        raise ValueError(f"{event}: url is an address that begins with http:// or https://, not {run!r:.80}")
    return (run, *words) if words is not None and kind == "command" else run


def matches(matcher: str, name: str) -> bool:
    """Whether a matcher is for a name: everything, one of some names, or a pattern that is found in it."""
    if matcher in ("", "*"):
        return True
    if _NAMES.fullmatch(matcher):
        return name in (one.strip() for one in re.split(r"[|,]", matcher))
    return re.search(matcher, name) is not None


def _fits(rule: str, name: str, tool_input: dict[str, Any]) -> bool:
    """Whether a call fits a rule `Tool` or `Tool(pattern)`; what cannot be told for sure does."""
    found = re.fullmatch(r"([^()]+)(?:\((.*)\))?", rule.strip(), re.DOTALL)
    if found is None:
        return True
    if not matches(found[1].strip(), name):
        return False
    texts = [value for value in tool_input.values() if isinstance(value, str)]
    if found[2] is None or not texts:
        return True
    pattern = re.sub(r":\*$", "*", found[2])
    parts = [part.strip() for text in texts for part in re.split(r"&&|\|\||[;&|\n]", text)]
    hidden = any(mark in text for text in texts for mark in ("$(", "`", "<(", "eval ", "${"))
    return hidden or any(fnmatch.fnmatchcase(part, pattern) for part in [*texts, *parts])
