"""Checks by name: finding them in a module, and scoring a trial with each."""

from __future__ import annotations

import inspect
import linecache
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from connectagent.errors import INTERRUPTS, ConfigError, did_you_mean, short_path
from connectagent.testing.evals.trial import Score, Trial
from connectagent.tools.loops import run_async

PREFIX = "check_"
PARAMETERS = (
    *("case", "trial", "prompt", "expected", "result", "trace", "record"),
    *("cost", "tokens", "steps", "tools_called"),
)


@dataclass(frozen=True)
class Check:
    """A check with its name.

    Args:
        name: without `check_`.
        function: what scores a trial.
        parameters: those that the function takes.
    """

    name: str
    function: Callable[..., Any]
    parameters: tuple[str, ...]

    @classmethod
    def of(cls, name: str, function: Any, place: str) -> Check:
        """The check that a function is.

        Args:
            name: its name, without `check_`.
            function: the function.
            place: where it is, for errors.

        Raises:
            ConfigError: it is no function, or has a parameter that no check gets.
        """
        if not callable(function) or inspect.isclass(function):
            raise ConfigError(f"{place}: {PREFIX}{name} is no function but {function!r:.80}")
        try:
            parameters = inspect.signature(function).parameters.values()
        except ValueError:
            text = f"{place}: the parameters of {PREFIX}{name} are not known; write a function that calls it"
            raise ConfigError(text) from None
        for one in parameters:
            if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) or one.name in PARAMETERS:
                continue
            if one.default is one.empty or one.kind is one.POSITIONAL_ONLY:
                raise ConfigError(
                    f"{place}: {PREFIX}{name}() has the parameter {one.name!r}, which no check gets."
                    f"{did_you_mean(one.name, PARAMETERS, 0.7)} A check may have {', '.join(PARAMETERS)}"
                )
        return cls(name, function, tuple(one.name for one in parameters if one.name in PARAMETERS))

    def score(self, trial: Trial) -> Score:
        """Score a trial; whatever the check raises is a score of 0."""
        try:
            given = {name: trial if name == "trial" else getattr(trial, name) for name in self.parameters}
            value = self.function(**given)
            if inspect.iscoroutine(value):
                value = run_async(value)
            return _score(value)
        except INTERRUPTS:
            raise
        except BaseException as error:  # `sys.exit()`, and pytest.fail(), which is no Exception
            return Score(0, _said(error, self.function))


def checks_in(module: ModuleType, place: str) -> list[Check]:
    """The checks of a module: what its names that begin with `check_` stand for, in their order.

    Args:
        module: the module.
        place: its file, for errors.

    Raises:
        ConfigError: there are none, or one cannot be used.
    """
    found = [(name, value) for name, value in vars(module).items() if name.startswith(PREFIX) and name != PREFIX]
    if not found:
        own = [name for name, one in vars(module).items() if getattr(one, "__module__", None) == module.__name__]
        named = f"; call one of these so: {', '.join(own)}" if own else ", for example: def check_answer(result): ..."
        raise ConfigError(f"{place} has no function whose name begins with {PREFIX}{named}")
    return [Check.of(name.removeprefix(PREFIX), value, place) for name, value in found]


def scored(trial: Trial, checks: Sequence[Check]) -> float:
    """Score a trial whose turn has ended with each check; what that cost now (USD)."""
    if trial.item.error is not None:
        return 0.0
    scores = {check.name: check.score(trial) for check in checks}
    trial.scores = scores
    trial.__dict__.pop("trace", None)  # of some thousands of trials they would fill the memory
    return sum(score.spent for score in scores.values())


def _score(value: Any) -> Score:
    if isinstance(value, Score):
        return value
    if value is None:  # a function that asserts
        return Score(1.0)
    return Score(value)


def _said(error: BaseException, function: Callable[..., Any]) -> str:
    """What an exception says, with the place in the check's own file."""
    frames = traceback.extract_tb(error.__traceback__)
    code = getattr(inspect.unwrap(function), "__code__", None)
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    if code is not None and not own:  # what it returned cannot be used
        own = [traceback.FrameSummary(code.co_filename, code.co_firstlineno, code.co_name)]
    frame = (own or frames)[-1]
    text = str(error)
    if isinstance(error, AssertionError):
        text = text or linecache.getline(frame.filename, frame.lineno or 0).strip()
    else:
        text = f"{type(error).__name__}: {text}".removesuffix(": ")
    if str(getattr(function, "__module__", "")).startswith("connectagent."):  # a built-in check: its lines tell nothing
        return text
    return f"{text} ({short_path(frame.filename)}:{frame.lineno})"
