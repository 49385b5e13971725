"""Every exception that connectagent raises, drawn as one tree.

ConnectAgentError
|- ConfigError (ValueError)         a setting, a model name, a system prompt, a tree of agents
|  `- SessionBusy                   a session that another agent or process is writing
|- HandlerError (TypeError)         a function that cannot be a handler
|- HookResultError (TypeError)      a handler returned or left something that its hook does not accept
|- PluginError                      a plugin that cannot be found, loaded or registered
|- ToolDefinitionError (TypeError)  a function or schema that cannot be a tool
|- ToolNotFound (LookupError)       the model asked for a tool that does not exist
|- ToolArgumentsError (ValueError)  the model's arguments do not fit the tool
|- ToolRejected                     raised by handlers to refuse a tool call
|- Pause                            raised by handlers and tools to stop the turn until somebody decides
|- Paused                           raised by `input()` after a Pause
|- DivergenceError                  a resumed turn asks for other things than its record has
|- BatchStopped                     `map()` has reached a limit
|- OutputError (ValueError)         a structured answer that does not fit its model
`- ProviderError                    a model call that failed, whichever SDK it went through
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from connectagent.data import TokenUsage, ToolCall, Wait


class ConnectAgentError(Exception):
    """The root of all errors of this package. They can be pickled, with their attributes: workers send them back."""

    def __reduce__(self) -> Any:
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[ConnectAgentError], args: tuple[Any, ...], attributes: dict[str, Any]) -> ConnectAgentError:
    """An error from its pickle, without its `__init__`, whose arguments are not kept."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class ConfigError(ConnectAgentError, ValueError):
    """A setting, a model name, a system prompt or an agent's name cannot be used."""


class SessionBusy(ConfigError):
    """Another agent, thread or process has the session: one turn of it runs at a time."""


class HandlerError(ConnectAgentError, TypeError):
    """A function cannot be a handler of the hook that it is marked for."""


class HookResultError(ConnectAgentError, TypeError):
    """A handler returned, or left in the session, something that its hook does not accept."""


class PluginError(ConnectAgentError):
    """A plugin cannot be found, loaded or registered."""


class PluginWarning(UserWarning):
    """A plugin failed, and the program goes on.

    Its observing handler raised under `plugin_errors="warn"`, or its resource could not be torn down. Plugins warn of
    other failures with it too.
    """


class ConnectAgentDeprecationWarning(UserWarning):
    """A plugin uses a hook or a parameter that a later version removes; the message says which, and what replaces it.

    It is no DeprecationWarning, which Python does not show outside of `__main__`.
    """


class ToolDefinitionError(ConnectAgentError, TypeError):
    """A function, class or schema cannot be made into a tool."""


class ToolNotFound(ConnectAgentError, LookupError):
    """The model asked for a tool that the agent does not have."""


class ToolArgumentsError(ConnectAgentError, ValueError):
    """The arguments that the model sent do not fit the tool's parameters."""


class ToolRejected(ConnectAgentError):
    """Raise it in `before_tools` or `before_each_tool` to refuse a call; the model reads the reason."""


class Pause(ConnectAgentError):
    """Raise it in a `before_` handler or in a tool to stop the turn until somebody decides, maybe days later.

    `around_tool` handlers of that tool see the Pause pass; `around_turn` handlers see the `Paused` that `input()`
    raises. A handler that returns a value instead ends the wait. Outside of a turn there is nothing to stop, so the
    program gets the Pause itself.

    Attributes:
        reason: what is to be decided.
        call: the tool call that waits, or None.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.call: Any = None


class Waiting(BaseException):
    """What `around_` handlers see where an agent inside, or a tool that asked for another call, waits for a person.

    A tool's own `Pause` reaches them as a `Pause`: `except (Pause, Waiting):` catches both. Raise it again, since the
    wait ends where it is swallowed. It is not an Exception, so `except Exception` lets it pass.

    Attributes:
        waits: the `data.Wait` objects, in the order of the calls.
        call: the agent's outermost tool call that the wait has left, or None.
        by: the handler or tool that waits.
    """

    def __init__(
        self, waits: list[Wait], call: ToolCall | dict[str, Any] | None = None, by: dict[str, Any] | None = None
    ) -> None:
        super().__init__(", ".join(wait.id for wait in waits))
        self.waits = waits
        self.call = call
        self.by = by or {}


class Diverged(BaseException):
    """A `DivergenceError` on its way out of a turn's operations. Not an Exception, so that nobody swallows it."""


class Unrecorded(BaseException):
    """A turn on its way out, as it cannot be recorded: another writer was faster, or its disk or store failed.

    Not an Exception, so that nobody takes it for a tool's failure and goes on.

    Attributes:
        error: what the caller gets in its place.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class DivergenceError(ConnectAgentError):
    """A resumed turn asks for other things than its record has: one is new, and one that is finished is not asked for.

    The code, or something that it depends on, has changed. Nothing was run. `agent.resume(record, place=...)` goes
    back to before that step.
    """


class TurnEnded(BaseException):
    """The turn was ended before a model or tool was called. Not an Exception, as nothing has failed."""


class Cancelled(BaseException):
    """Whoever awaits the turn has cancelled it. It ends the turn as Ctrl-C does; `ainput()` raises `CancelledError`."""


INTERRUPTS = (KeyboardInterrupt, Cancelled)


class Abandoned(BaseException):
    """Nothing waits for this turn any more, since Ctrl-C came twice. It must not touch the turns around it."""


_NOT_RECORDED = "it is not recorded, so only this process can go on with it"


class BatchStopped(ConnectAgentError):
    """`agent.map()` has reached a limit: of failures, cost or time. It comes after all items that ran."""


class Paused(ConnectAgentError):
    """The turn waits for decisions; `agent.resume(record, approve=True)` goes on with it.

    Attributes:
        waiting: the `Wait` objects; if there are several, `approve=wait.id` decides one.
        reason: what is to be decided, of the first.
        record: the path of the session's record, or None if nothing is recorded.
        call: the tool call of the first, or None.
    """

    def __init__(
        self, waiting: list[Any], record: Path | None = None, call: ToolCall | dict[str, Any] | None = None
    ) -> None:
        where = f"its record is {short_path(record)}" if record else _NOT_RECORDED
        self.waiting = waiting
        self.reason = waiting[0].reason
        ids = f" ({len(waiting)} wait: {', '.join(wait.id for wait in waiting)})" if len(waiting) > 1 else ""
        super().__init__(f"paused: {self.reason or 'no reason was given'}{ids}; {where}")
        self.record = record
        self.call = call


_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PLUGGY = f"{os.sep}pluggy{os.sep}"
_LIBRARIES = (f"{os.sep}site-packages{os.sep}", os.path.dirname(os.__file__) + os.sep)


def raised_at(error: BaseException) -> str | None:
    """Where the user's code raised an error, as `file.py:12 in name`; else where a library did; None for neither."""
    theirs = [step for step in _steps(error.__traceback__) if not _is_own(step)]
    users = [step for step in theirs if not any(part in step.tb_frame.f_code.co_filename for part in _LIBRARIES)]
    for step in reversed(users or theirs):
        code = step.tb_frame.f_code
        return f"{code.co_filename}:{step.tb_lineno} in {code.co_name}"
    return None


def hide_own_frames(error: BaseException) -> None:
    """Take this package's and pluggy's frames out of the traceback of an error, and of the errors behind it.

    Behind a `ProviderError` are the errors of an SDK, whose frames are all left out: each is told by its line.
    """
    seen: dict[int, BaseException] = {}
    found: list[tuple[BaseException | None, bool]] = [(error, False)]
    while found:
        one, of_sdk = found.pop()
        if one is None or id(one) in seen:
            continue
        seen[id(one)] = one
        kept: TracebackType | None = None
        for step in reversed([step for step in _steps(one.__traceback__) if not (of_sdk or _is_own(step))]):
            line: int | None = step.tb_lineno  # None in code without lines, as dataclasses make it
            kept = TracebackType(kept, step.tb_frame, step.tb_lasti, line or step.tb_frame.f_code.co_firstlineno)
        one.with_traceback(kept)  # a class of the user may refuse to set attributes
        found += [(inner, False) for inner in (one.exceptions if isinstance(one, BaseExceptionGroup) else ())]
        found += [(one.__context__, False), (one.__cause__, of_sdk or isinstance(one, ProviderError))]


def _steps(step: TracebackType | None) -> Iterator[TracebackType]:
    while step is not None:
        yield step
        step = step.tb_next


def _is_own(step: TracebackType) -> bool:
    file = step.tb_frame.f_code.co_filename
    return file.startswith(_OWN) or _PLUGGY in file


def short_path(path: str | os.PathLike[str]) -> str:
    """A path, relative if it is below the current folder."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # the folder is gone, or on another drive
        return str(path)
    return str(path) if relative.startswith(os.pardir) else relative


def cut(text: str, limit: int = 80) -> str:
    """A text cut to at most `limit` characters, with "..." at the end if it was longer."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def short(value: object) -> str:
    """A value in error messages: its type and its beginning."""
    return cut(f"{type(value).__name__} {value!r}")


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that somebody probably meant, or None.

    Args:
        name: what was written.
        known: what would be accepted.
        cutoff: how alike the two must be, from 0 to 1.
    """
    from difflib import get_close_matches  # imported only after a typing error

    return next(iter(get_close_matches(name, list(known), 1, cutoff)), None)


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of an error message that suggests a known name, with a space before; "" if none is near."""
    near = nearest(name, known, cutoff)
    return f" Did you mean {near!r}?" if near else ""


class ResourceError(PluginError):
    """A resource that a tool or handler takes cannot be made; the message names it."""


class OutputError(ConnectAgentError, ValueError):
    """A structured answer does not fit what `output=` asks for."""


class ProviderError(ConnectAgentError):
    """A model call failed. One class for every provider, so that handlers need to know one.

    Attributes:
        kind: `auth`, `permission`, `not_found`, `rate_limit`, `overloaded`, `context_length`,
            `bad_request`, `tool_use_failed`, `content_filter`, `refusal`, `length`, `empty`, `connection`,
            `timeout`, `stream`, `server`, `bad_response`, `turn_ended`.
        provider: the provider's name, for example `openai`.
        model: the model that was asked, if known.
        status: the HTTP status of the failed response, or None.
        retry_after_s: seconds that the provider asked to wait, or None.
        body: the provider's parsed response, with more details than the message.
        retries: the attempts that the SDK made before it gave up, one dict each.
        usage: the tokens that the failed answer took, as a `TokenUsage`; None if no answer had begun.
        finish_reason: why the answer stopped, in the provider's own word, if that is why it cannot be used.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        provider: str,
        model: str | None = None,
        status: int | None = None,
        retry_after_s: float | None = None,
        body: object = None,
        retries: list[dict[str, object]] | None = None,
        usage: TokenUsage | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.provider = provider
        self.model = model
        self.status = status
        self.retry_after_s = retry_after_s
        self.body = body
        self.retries = retries or []
        self.usage = usage
        self.finish_reason: str | None = None


class TurnEndedError(ProviderError, RuntimeError):
    """A handler or tool could not ask a model, since `end_turn()` had ended the turn; `kind` is `turn_ended`."""

    def __init__(self, message: str, *, model: str | None = None) -> None:
        super().__init__(message, kind="turn_ended", provider="", model=model)


LIBRARIES = {
    "anthropic": "anthropic>=0.76",
    "click": "click>=8.2",
    "docstring_parser": "docstring-parser>=0.16",
    "genai_prices": "genai-prices>=0.1.0",
    "openai": "openai>=2.20",
    "pluggy": "pluggy>=1.7",
    "prompt_toolkit": "prompt_toolkit>=3.0.50",
    "pydantic": "pydantic>=2.10.1",
    "rich": "rich>=13.7",
    "yaml": "pyyaml>=6.0.2",
}
"""The libraries of this package: for each module, what pyproject.toml requires."""


def install_again(module: str) -> str:
    """The command that repairs the installation of a library, which may lack files or be too old."""
    return f"pip install --force-reinstall '{LIBRARIES[module]}'"


def library_problem(error: ImportError) -> str | None:
    """What to do about a library of this package that cannot be imported; None for any other import that failed.

    The library is the one that was looked for, else the first one that this package, or a script, was importing.
    """
    sought, trace = (error.name or "").partition(".")[0], error.__traceback__
    importing: list[str] = []
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0]
        importing = [] if module == "connectagent" else [*importing, module]  # a library may have called this package
        trace = trace.tb_next
    for module in [sought, *importing]:
        if module in LIBRARIES:
            return f"{module} cannot be imported: {error}. Install it again: {install_again(module)}"
    return None


@contextmanager
def libraries() -> Iterator[None]:
    """Say how to repair a library of this package that cannot be imported.

    Raises:
        ConfigError: one could not be imported.
    """
    try:
        yield
    except ImportError as error:
        if problem := library_problem(error):
            raise ConfigError(problem) from error
        raise
