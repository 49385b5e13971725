"""The tester of plugins: every path of a turn, and what the plugin does wrong on it."""

from __future__ import annotations

import contextlib
import contextvars
import copy
import io
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from connectagent import HandlerError, PluginError, ToolDefinitionError
from connectagent.plugins import did_you_mean, handlers_of, is_factory, missing_options, module_from_path
from connectagent.settings import override
from pytest_connectagent.effects import Effects
from pytest_connectagent.faults import CHANGES, RULES, Fault, report
from pytest_connectagent.paths import PATHS, PLAIN, Path
from pytest_connectagent.turns import Check, Run, Stopped
from pytest_connectagent.ways import Ways, same_time_zone


class PluginFaults(AssertionError):
    """A plugin breaks the rules.

    Attributes:
        faults: each fault on each path.
    """

    def __init__(self, text: str, faults: list[Fault]) -> None:
        super().__init__(text)
        self.faults = faults


class Checked(NamedTuple):
    """What a check did.

    Attributes:
        turns: how many turns the plugin went through.
        interrupts: at how many lines of its code Ctrl-C was pressed.
        hooks: the hooks of which its handlers were called.
    """

    turns: int
    interrupts: int
    hooks: set[str]


class Declared(NamedTuple):
    """What plugins declare about themselves.

    Attributes:
        changes: the kinds of change, optional ones with `?`.
        shares_state: whether agents that have one of them see each other.
    """

    changes: frozenset[str]
    shares_state: bool


def declared_by(plugin: Any) -> Declared:
    """What a plugin, or each of a list, declares in its attributes `changes` and `shares_state`."""
    if isinstance(plugin, (list, tuple)):
        each = [declared_by(one) for one in plugin]
        kinds = (f"{kind.removesuffix('?')}?" for own in each for kind in own.changes)
        return Declared(frozenset(kinds), any(own.shares_state for own in each))
    given = getattr(plugin, "changes", ())
    if not isinstance(given, (set, frozenset, tuple, list)) or not all(isinstance(kind, str) for kind in given):
        given = ()  # an attribute that means something else
    return Declared(frozenset(given), getattr(plugin, "shares_state", False) is True)


class AgentTester:
    """Drives plugins along every path of a turn, with models that follow a script."""

    def check(
        self,
        plugin: Any,
        *,
        changes: Iterable[str] | None = None,
        raises: Iterable[type[BaseException]] = (),
        shares_state: bool | None = None,
        tools: Any = None,
        responses: Iterable[Any] = (),
        answers: Iterable[Any] = ("Noted.",),
        prompt: Any = "Go.",
        limit_s: float | None = 10,
        leave_out: Iterable[str] = (),
        **agent_options: Any,
    ) -> Checked:
        """Take a plugin through a few hundred turns, and fail where it breaks a rule.

        Success, failing and unknown tools, bad arguments, images, rejections, stand-ins, errors of the model,
        recoveries, early ends, the limit, pauses, agents inside agents, errors and Ctrl-C at each hook and at each line
        of the plugin, a turn after each, and the end of each agent; plain and streamed, the plugin listed first and
        last, in a dry run, resumed, replayed, and with the calls of a round at once. `.co` is a temporary folder
        meanwhile.

        Args:
            plugin: what `plugins=` takes, or a class or a function without parameters that makes it: then each agent is
                given one of its own, as it is with an installed plugin.
            changes: what it may change: `messages`, `state`, `session`, `trace`, `request`, `response`, `arguments`,
                `result`, `rejection`, `retry`, `pause`, `turn`, `tools`, `agent`, `terminal` (it prints), `outside` (it
                writes files, runs programs or opens connections), `interrupts` (it deals with Ctrl-C itself). A change
                that no turn sees is a fault, unless it is optional: `pause?`. None takes what the plugin itself
                declares, as `changes = {"messages"}` in its class, module or object; in a list of plugins each
                declared change is optional, since one plugin may leave another nothing to do.
            raises: the exceptions that it raises on purpose.
            shares_state: whether agents that have the plugin shall see each other, as with a cache. None takes what
                the plugin declares: `shares_state = True`.
            tools: tools of your own, called by `responses` only.
            responses: one more path: what the model answers, as `ScriptedLLM` takes it.
            answers: what the model answers, over and over, when the plugin itself asks it.
            prompt: what the user says.
            limit_s: how many seconds a handler may run; None for any time.
            leave_out: rules that are not checked, such as `replay`; `PluginFaults` names the rule of each fault.
            agent_options: the rest goes to `Agent`.

        Raises:
            PluginFaults: with handler, file and line, path and what is wrong.
            PluginError, HandlerError: it cannot be used at all: it takes a resource that is not there, for example.
            ToolDefinitionError: a tool of it cannot be used.
        """
        __tracebackhide__ = True
        make = _maker(plugin)
        if changes is None or shares_state is None:
            own = declared_by(make())
            changes = own.changes if changes is None else changes
            shares_state = own.shares_state if shares_state is None else shares_state
        rules = {*_known(leave_out, RULES, "leave_out", "rule"), *(["shares state"] if shares_state else [])}
        kinds = [changes] if isinstance(changes, str) else list(changes)
        optional = frozenset(kind.removesuffix("?") for kind in kinds if kind.endswith("?"))
        declared = _known((kind.removesuffix("?") for kind in kinds), CHANGES, "changes", "kind of change")
        check = Check(make, declared, tuple(raises), agent_options, Effects(limit_s))
        check.optional = optional
        check.tools, check.answers, check.prompt = tools, list(answers), prompt
        given = list(responses)
        _run(check, [Path("your own responses", lambda: list(given))] if given else [])
        faults = [fault for fault in check.faults if fault.rule not in rules]
        if faults:
            raise PluginFaults(report(faults, check.turns, len(PATHS)), faults)
        return Checked(check.turns, check.interrupts, check.called)


def _run(check: Check, own: list[Path]) -> None:
    """Take every turn of a check."""
    make, effects = check.make, check.effects
    effects.files = {handler.by["file"] for handler in handlers_of(make())}
    with _co_folder(), same_time_zone(), effects, _nobody_at_the_terminal():
        # Each in a thread of its own: the main one watches how long handlers run, the tracing of a debugger or of
        # coverage goes on, and Python 3.11 forgets to leave an `except` block in which a trace function raises.
        _guarded(check, lambda: _require_usable(check))
        _guarded(check, lambda: Ways(check, lambda: _untouched(make())).every_way(own))
        _guarded(check, lambda: check.every_path([*PATHS, *own]))
        _guarded(check, lambda: check.dry([*PLAIN, *own]))
        _guarded(check, lambda: check.every_line([*PLAIN, *own]))
        check.faults += [] if check.stopped else [*effects.left_behind(), *check.shared(), *check.unused()]


def _require_usable(check: Check) -> None:
    """Make one agent.

    Raises:
        HandlerError, ToolDefinitionError: nobody can make one, as where a handler takes a resource that is not there.
    """
    try:
        Run(check, PLAIN[0]).make().close()
    except Exception as error:
        if isinstance(error, HandlerError | ToolDefinitionError) and not isinstance(error, check.raises):
            raise
        # each path tells what else it raises


def _guarded(check: Check, work: Callable[[], None]) -> None:
    """Do a part of the check in a thread, until a handler hangs."""
    if check.stopped:
        return
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True)
    thread.start()
    try:
        while thread.is_alive() and not check.stopped:
            thread.join(0.1)
            if (hanging := check.effects.hanging()) is not None:
                check.stopped = True
                check.faults.append(hanging)
    except BaseException:
        check.stopped = True
        raise
    if raised and not isinstance(raised[0], Stopped):
        raise raised[0]


@contextlib.contextmanager
def _nobody_at_the_terminal() -> Iterator[None]:
    """A plugin that asks the user finds nobody, also where tests run at a terminal."""
    before, sys.stdin = sys.stdin, io.StringIO()
    try:
        yield
    finally:
        sys.stdin = before


@contextlib.contextmanager
def _co_folder() -> Iterator[None]:
    """A `.co` of the check's own: plugins that keep files there find none, and leave none."""
    made = tempfile.TemporaryDirectory(prefix="connectagent-check-", ignore_cleanup_errors=True)
    with made as folder, override("dir", folder):
        yield


def _untouched(plugin: Any) -> Any:
    """A copy of a plugin that has had no turn yet, as another process would have it; itself, if it cannot be copied."""
    if isinstance(plugin, (list, tuple)):
        return [_untouched(item) for item in plugin]
    with contextlib.suppress(Exception):  # a lock, a connection
        return copy.deepcopy(plugin)
    return plugin


def _known(given: Iterable[str], known: dict[str, str], argument: str, what: str) -> frozenset[str]:
    names = frozenset([given] if isinstance(given, str) else given)
    for name in sorted(names - known.keys()):
        hint = did_you_mean(name, known, 0.5)
        raise ValueError(f"{argument}={{{name!r}}}: there is no such {what}.{hint} Known: {', '.join(known)}")
    return names


def _maker(plugin: Any) -> Callable[[], Any]:
    """A function that gives the plugin of the next agent: the same one, or one that a factory makes.

    Raises:
        PluginError: a factory needs arguments, or what it makes is no plugin.
    """
    if isinstance(plugin, (list, tuple)):
        makers = [_maker(item) for item in plugin]
        return lambda: [make() for make in makers]
    if isinstance(plugin, str) and plugin.endswith(".py"):
        module = module_from_path(plugin)
        return lambda: module
    if not is_factory(plugin):
        return lambda: plugin
    if missing := missing_options(plugin, {}):
        raise PluginError(
            f"{plugin.__qualname__!r} needs {', '.join(map(repr, missing))}. If it is a handler, mark it; if it makes "
            f"the plugin: check(lambda: {plugin.__name__}({missing[0]}=...))"
        )
    made = plugin()
    if made is None or isinstance(made, type):
        raise PluginError(f"{plugin.__qualname__!r} is not marked for a hook, and called it gave {made!r}, no plugin")
    list(handlers_of(made))
    return lambda: plugin()
