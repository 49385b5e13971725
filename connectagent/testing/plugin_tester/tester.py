"""The tester of plugins: every path of a turn, and what the plugin does wrong on it."""

from __future__ import annotations

import contextlib
import contextvars
import io
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from connectagent.agents.agent import Agent
from connectagent.errors import PluginError, did_you_mean
from connectagent.hooks.discovery import handlers_of
from connectagent.hooks.entry_points import is_factory, missing_options
from connectagent.hooks.files import module_from_path
from connectagent.testing.plugin_tester.lines import Lines
from connectagent.testing.plugin_tester.observer import CHANGES, Fault, Observer
from connectagent.testing.plugin_tester.paths import PATHS, PLAIN, TOOLS, Path, PathError, PathModel
from connectagent.testing.plugin_tester.shared_state import Keeping
from connectagent.testing.turn import crash_at


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

    Args:
        turns: how many turns the plugin went through.
        interrupts: at how many lines of its code Ctrl-C was pressed.
        hooks: the hooks of which its handlers were called.
    """

    turns: int
    interrupts: int
    hooks: set[str]


class AgentTester:
    """Drives plugins along every path of a turn, with models that follow a script."""

    def check(
        self,
        plugin: Any,
        *,
        changes: Iterable[str] = (),
        raises: Iterable[type[BaseException]] = (),
        shares_state: bool = False,
        tools: Any = None,
        responses: Iterable[Any] = (),
        answers: Iterable[Any] = ("Noted.",),
        prompt: Any = "Go.",
        **agent_options: Any,
    ) -> Checked:
        """Take a plugin through a few hundred turns, and fail where it breaks a rule.

        Success, failing and unknown tools, bad arguments, rejections, stand-ins, errors of the model, recoveries, early
        ends, the limit, errors and Ctrl-C at each hook and at each line of the plugin, a turn after each, and the
        end of each agent; plain and streamed, the plugin listed first and last.

        Args:
            plugin: what `plugins=` takes, or a class or a function without parameters that makes it: then each agent is
                given one of its own, as it is with an installed plugin.
            changes: what it may change: `messages`, `state`, `session`, `trace`, `request`, `response`, `arguments`,
                `result`, `rejection`, `retry`, `turn`, `tools`, `agent`, `interrupts` (it deals with Ctrl-C itself).
            raises: the exceptions that it raises on purpose.
            shares_state: whether agents that have the plugin shall see each other, as with a cache.
            tools: tools of your own, called by `responses` only.
            responses: one more path: what the model answers, as `ScriptedLLM` takes it.
            answers: what the model answers, over and over, when the plugin itself asks it.
            prompt: what the user says.
            agent_options: the rest goes to `Agent`.

        Raises:
            PluginFaults: with handler, file and line, path and what is wrong.
            PluginError, HandlerError: it cannot be used at all.
        """
        __tracebackhide__ = True
        check = _Check(_maker(plugin), _kinds(changes), tuple(raises), agent_options)
        check.tools, check.answers, check.prompt = tools, list(answers), prompt
        own = Path("your own responses", lambda: list(responses))
        with _nobody_at_the_terminal():
            check.every_path([*PATHS, *([own] if own.script() else [])])
            # In a thread of its own, so that the tracing of a debugger or of coverage goes on undisturbed, and since
            # Python 3.11 forgets to leave an `except` block in which a trace function raises.
            _in_thread(lambda: check.every_line([*PLAIN, *([own] if own.script() else [])]))
        faults = [*check.faults, *([] if shares_state else check.shared())]
        if faults:
            raise PluginFaults(_report(faults, check.turns), faults)
        return Checked(check.turns, check.interrupts, check.called)


@dataclass
class _Check:
    """One check: the turns, and what was found in them."""

    make: Callable[[], Any]
    declared: frozenset[str]
    raises: tuple[type[BaseException], ...]
    options: dict[str, Any]
    tools: Any = None
    answers: list[Any] = field(default_factory=list)
    prompt: Any = "Go."
    turns: int = 0
    agents: int = 0
    interrupts: int = 0
    called: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    keeping: Keeping = field(default_factory=Keeping)

    def every_path(self, paths: list[Path]) -> None:
        """Each path twice: plain with the plugin first, streamed with the plugin last; each with a turn after it."""
        for path in paths:
            for last in (False, True):
                run = _Run(self, path, last)
                run.turn(self.prompt)
                run.next_turn()
                self._take(run)

    def every_line(self, paths: list[Path]) -> None:
        """Ctrl-C at each line of the plugin, the first time that one of the paths comes to it."""
        points: dict[tuple[str, int], tuple[Path, int]] = {}
        for path in paths:
            run = _Run(self, path, last=False)
            with Lines(self._files()) as lines:
                run.turn(self.prompt)
            self._take(run)
            for number, place in enumerate(lines.seen, start=1):
                points.setdefault(place, (path, number))
        for path, number in points.values():
            run = _Run(self, path, last=False)
            with Lines(self._files(), number, run.press) as lines:
                run.turn(self.prompt)
            if lines.pressed:
                self.interrupts += 1
                run.judge_press("{}:{}".format(*lines.seen[-1]))
            self._take(run)

    def shared(self) -> list[Fault]:
        """What agents see of each other."""
        found = []
        for what, seen in self.keeping.shared():
            (by, path), (_, other) = seen[:2]
            also = f" and {other!r}" if other != path else ""
            problem = (
                f"changed {what} for {len(seen)} agents: they see each other. Keep it in "
                "agent.current_session['state']; or, if each agent is to have an object of its own, give check() "
                "the class or a factory; or, if they are to share it: check(..., shares_state=True)"
            )
            found.append(Fault("shares state", by, f"{path}{also}", problem))
        return found

    def _take(self, run: _Run) -> None:
        run.close()
        self.called |= run.watch.called
        for fault in run.watch.faults:
            if fault not in self.faults:
                self.faults.append(fault)

    def _files(self) -> set[str]:
        return {handler.by["file"] for handler in handlers_of(self.make())}


class _Run:
    """One agent on one path."""

    def __init__(self, check: _Check, path: Path, last: bool) -> None:
        self.check, self.path = check, path
        self.llm = PathModel(path, check.answers)
        self.drivers = path.drivers()
        self.agent: Agent | None = None
        self.error: BaseException | None = None
        self.result: str | None = None
        self.pressed_in: Any = None
        plugin = check.make()
        check.agents += 1
        self.plugins = [*self.drivers, plugin] if last else [plugin, *self.drivers]
        self.stream = last
        where = f"{path.name} (streamed, the plugin listed last)" if last else path.name
        bys = [handler.by for handler in handlers_of(plugin)]
        self.watch = Observer(bys, where, self.llm, check.declared, check.raises, check.keeping, check.agents)

    def turn(self, prompt: Any) -> None:
        """One turn along the path."""
        self.check.turns += 1
        self._do(lambda: (self.agent or self._agent()).input(prompt))

    def close(self) -> None:
        """End the agent's life."""
        if self.agent is not None:
            self.watch.path += ", its end"
            self._do(self.agent.close)

    def _do(self, action: Callable[[], Any]) -> None:
        self.result = self.error = None
        try:
            self.result = action()
        except PluginError:
            raise
        except BaseException as error:
            self.error = error
        self._judge()

    def next_turn(self) -> None:
        """A turn after the path, which must be a whole one."""
        if self.agent is None:
            return
        self.watch.path += ", the turn after it"
        for driver in self.drivers:
            if isinstance(driver, crash_at):
                driver.fired, driver.nth = False, 0
        self.llm.aside = self.llm.interrupted = None
        self.llm.requests.clear()
        self.llm.responses[:] = [("do_work", {"x": 2}), "Done."]
        self.turn("Go on.")

    def press(self) -> None:
        """Note whose code runs when Ctrl-C is pressed."""
        self.pressed_in = self.watch.running or {}

    def judge_press(self, place: str) -> None:
        """The Ctrl-C at a line of the plugin must have reached the caller."""
        if not isinstance(self.error, KeyboardInterrupt) and "interrupts" not in self.check.declared:
            problem = f"swallowed a Ctrl-C at {place}: {self._instead()}; catch Exception only"
            self.watch.fault("interrupts", self.pressed_in or None, problem)

    def _agent(self) -> Agent:
        self.agent = Agent(
            **{"name": "tested", **self.check.options},
            tools=[*TOOLS, *([] if self.check.tools is None else [self.check.tools])],
            llm=self.llm,
            plugins=[self.watch, *self.plugins],
            max_iterations=self.path.limit,
            stream=self.stream,
            log=False,
            quiet=True,
        )
        return self.agent

    def _judge(self) -> None:
        """Compare the outcome of the turn with the path's."""
        watch, error = self.watch, self.error
        watch.check_conversation()
        if self.pressed_in is not None or any(fault.rule in ("interrupts", "raises") for fault in watch.faults):
            return  # `judge_press` does that, or the cause is noted already
        if self._interrupted():
            if not isinstance(error, KeyboardInterrupt) and "interrupts" not in self.check.declared:
                problem = f"swallowed Ctrl-C: {self._instead()}; catch Exception only"
                watch.fault("interrupts", self.llm.interrupted, problem)
        elif error is not None and not isinstance(error, (PathError, KeyboardInterrupt, *self.check.raises)):
            watch.fault("raises", watch.running, f"raised {type(error).__name__}: {error}")

    def _interrupted(self) -> bool:
        """Whether the path came to its Ctrl-C."""
        crashes = [driver for driver in self.drivers if isinstance(driver, crash_at) and driver.fired]
        return self.llm.interrupted is not None or any(crash.error is KeyboardInterrupt for crash in crashes)

    def _instead(self) -> str:
        if self.error is not None:
            return f"input() raised {type(self.error).__name__}"
        return f"input() returned {self.result!r:.80}"


@contextlib.contextmanager
def _nobody_at_the_terminal() -> Iterator[None]:
    """A plugin that asks the user finds nobody, also where tests run at a terminal."""
    before, sys.stdin = sys.stdin, io.StringIO()
    try:
        yield
    finally:
        sys.stdin = before


def _in_thread(work: Callable[[], None]) -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def _kinds(changes: Iterable[str]) -> frozenset[str]:
    kinds = frozenset([changes] if isinstance(changes, str) else changes)
    for kind in sorted(kinds - CHANGES.keys()):
        hint = did_you_mean(kind, CHANGES, 0.5)
        raise ValueError(f"changes={{{kind!r}}}: there is no such kind of change.{hint} Known: {', '.join(CHANGES)}")
    return kinds


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


def _report(faults: list[Fault], turns: int) -> str:
    """The faults, each once with its first path and the number of others."""
    groups: dict[tuple[Any, ...], list[Fault]] = {}
    for fault in faults:
        by = fault.by or {}
        problem = fault.problem if fault.rule == "changes" else fault.problem.partition(":")[0]
        # Of undeclared changes the kind counts, and not each value.
        what = problem.rpartition("If it is meant")[2] if fault.rule == "changes" else problem
        groups.setdefault((fault.rule, by.get("file"), by.get("line"), by.get("hook"), what), []).append(fault)
    plugin = next((fault.by["plugin"] for fault in faults if fault.by), "?")
    number = f"{len(groups)} faults" if len(groups) > 1 else "1 fault"
    lines = [f"plugin {plugin!r} has {number}, in {turns} turns along {len(PATHS)} paths"]
    for number_of, group in enumerate(groups.values(), start=1):
        lines += ["", f"{number_of}. {_fault_text(group[0])}"]
        if others := sorted({fault.path.partition(",")[0].partition(" (")[0] for fault in group[1:]} - {group[0].path}):
            more = f" and {len(others) - 3} others" if len(others) > 3 else ""
            lines.append(f"   as well on: {'; '.join(others[:3])}{more}")
    return "\n".join(lines)


def _fault_text(fault: Fault) -> str:
    by = fault.by
    whose = f"{by['hook']} handler {by['handler']!r} ({by['file']}:{by['line']})" if by else "no handler of it"
    return f"{fault.rule}: {whose}\n   on the path: {fault.path}\n   {fault.problem}"
