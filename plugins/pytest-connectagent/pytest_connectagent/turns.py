"""The turns of one check: each path plain, streamed and in a dry run, and Ctrl-C at each line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from connectagent import Agent, Paused, PluginError, shadow
from connectagent.plugins import handlers_of
from connectagent.testing import crash_at
from pytest_connectagent.effects import Effects
from pytest_connectagent.faults import Fault
from pytest_connectagent.lines import Lines
from pytest_connectagent.observer import Observer
from pytest_connectagent.paths import OTHERS, RAN, TOOLS, Path, PathError, PathModel
from pytest_connectagent.shared_state import Keeping

_MOST_PAUSES = 20  # of one turn


class Stopped(BaseException):
    """The check is over: a handler hangs, or the user pressed Ctrl-C. Its thread makes no more turns."""


@dataclass
class Check:
    """One check: what it was given, the turns, and what was found in them."""

    make: Callable[[], Any]
    declared: frozenset[str]
    raises: tuple[type[BaseException], ...]
    options: dict[str, Any]
    effects: Effects
    tools: Any = None
    answers: list[Any] = field(default_factory=list)
    prompt: Any = "Go."
    turns: int = 0
    agents: int = 0
    interrupts: int = 0
    called: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    optional: frozenset[str] = frozenset()
    faults: list[Fault] = field(default_factory=list)
    keeping: Keeping = field(default_factory=Keeping)
    stopped: bool = False

    def every_path(self, paths: list[Path]) -> None:
        """Each path twice: plain with the plugin first, streamed with the plugin last; each with a turn after it."""
        for path in paths:
            for last in (False, True):
                run = Run(self, path, last)
                run.turn()
                run.next_turn()
                self.take(run)

    def dry(self, paths: list[Path]) -> None:
        """Each path in a dry run."""
        for path in paths:
            run = Run(self, path, dry=True)
            run.turn()
            self.take(run)

    def every_line(self, paths: list[Path]) -> None:
        """Ctrl-C at each line of the plugin, the first time that one of the paths comes to it."""
        points: dict[tuple[str, int], tuple[Path, int]] = {}
        for path in paths:
            run = Run(self, path)
            with Lines(self.effects.files) as lines:
                run.turn()
            run.judge_rejections(lines)
            self.take(run)
            for number, place in enumerate(lines.seen, start=1):
                points.setdefault(place, (path, number))
        for path, number in points.values():
            run = Run(self, path)
            with Lines(self.effects.files, number, run.press) as lines:
                run.turn()
            if lines.pressed:
                self.interrupts += 1
                run.judge_press("{}:{}".format(*lines.seen[-1]))
            self.take(run)

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

    def unused(self) -> list[Fault]:
        """The declared changes that no turn has seen; how a plugin deals with Ctrl-C itself is seen by its effect."""
        missing = self.declared - self.optional - self.changed - {"interrupts"}
        problem = (
            "declared changes={{{0!r}}}, and no turn saw it. Take it out, bring it about with tools= and responses=, "
            "or declare it as optional: changes={{{1!r}}}"
        )
        return [Fault("declared", None, "every path", problem.format(kind, f"{kind}?")) for kind in sorted(missing)]

    def take(self, run: Run) -> None:
        """End a run, and take over what was found in it."""
        run.close()
        self.called |= run.watch.called
        self.changed |= run.watch.changed
        for fault in run.watch.faults:
            if fault not in self.faults:
                self.faults.append(fault)


class Run:
    """One agent on one path.

    Args:
        check: whose run it is.
        path: the path.
        last: whether the plugin is listed last and the model's text is streamed.
        dry: whether the plugin is shadowed.
        way: what else is special about it, for the report.
        options: what else `Agent` takes.
    """

    def __init__(
        self, check: Check, path: Path, last: bool = False, dry: bool = False, way: str = "", **options: Any
    ) -> None:
        self.check, self.path = check, path
        self.llm = PathModel(path, check.answers)
        self.drivers = path.drivers()
        self.agent: Agent | None = None
        self.error: BaseException | None = None
        self.result: str | None = None
        self.pressed_in: Any = None
        plugin = check.make()
        bys = [handler.by for handler in handlers_of(plugin)]
        check.agents += 1
        plugins = [shadow(plugin)] if dry else [plugin]
        self.plugins = [*self.drivers, *plugins] if last else [*plugins, *self.drivers]
        self.options = {"stream": last, "log": False, **options}
        ways = "streamed, the plugin listed last" if last else "a dry run" if dry else way
        where = f"{path.name} ({ways})" if ways else path.name
        self.watch = Observer(
            bys, where, self.llm, check.declared, check.raises, check.keeping, check.effects, check.agents
        )

    def turn(self, prompt: Any = None) -> None:
        """One turn along the path; where it pauses, everything is approved."""
        prompt = prompt or self.path.prompt or self.check.prompt
        self.do(lambda: (self.agent or self.make()).input(prompt))
        self.approve()

    def approve(self) -> None:
        """Approve what waits, until nothing does."""
        for _ in range(_MOST_PAUSES):
            if isinstance(self.error, Paused) and self.agent is not None:
                decided = self.error.waiting[0].id
                agent = self.agent
                self.do(lambda: agent.resume(approve=decided))  # noqa: B023  it is called at once

    def close(self) -> None:
        """End the agent's life."""
        if self.agent is not None:
            self.watch.path += ", its end"
            self.do(self.agent.close)

    def do(self, action: Callable[[], Any]) -> None:
        """Do something with the agent, and judge what becomes of it."""
        if self.check.stopped:
            raise Stopped
        self.check.turns += 1
        self.check.effects.turn(self.watch.path)
        self.result = self.error = None
        RAN.clear()
        try:
            self.result = action()
        except PluginError:
            raise
        except BaseException as error:
            self.error = error
        self.check.effects.turn(None)
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

    def judge_rejections(self, lines: Lines) -> None:
        """Each `ToolRejected` that the plugin raised must have rejected a call."""
        if len(lines.rejected) > self.watch.rejections:
            _, file, line = next(iter(lines.rejected.values()))
            problem = f"raised ToolRejected at {file}:{line} and caught it itself: the call runs"
            self.watch.fault("rejections", self.watch.running, problem)

    def make(self) -> Agent:
        """The agent of this run."""
        own = self.path.options()
        tools = [*TOOLS, *own.pop("tools", ()), *([] if self.check.tools is None else [self.check.tools])]
        given = {"name": "tested", **self.check.options, **own}
        if "system_prompt" not in given:  # a state would be filled into it
            names = OTHERS.keys() - {by["plugin"] for by in self.watch.handlers}
            given.setdefault("state", {name: OTHERS[name] for name in names})
        self.agent = Agent(
            **{**given, **self.options},
            tools=tools,
            llm=self.llm,
            plugins=[self.watch, *self.plugins],
            max_iterations=self.path.limit,
            quiet=True,
        )
        for child in self.agent.below:
            child.llm.answers = self.check.answers  # type: ignore[attr-defined]
        return self.agent

    def _judge(self) -> None:
        """Compare the outcome of the turn with the path's."""
        watch, error = self.watch, self.error
        watch.check_conversation()
        watch.check_rejected()
        if self.pressed_in is not None or any(fault.rule in ("interrupts", "raises") for fault in watch.faults):
            return  # `judge_press` does that, or the cause is noted already
        if self._interrupted():
            if not isinstance(error, KeyboardInterrupt) and "interrupts" not in self.check.declared:
                problem = f"swallowed Ctrl-C: {self._instead()}; catch Exception only"
                watch.fault("interrupts", self.llm.interrupted, problem)
        elif error is not None and not isinstance(error, (PathError, KeyboardInterrupt, Paused, *self.check.raises)):
            watch.fault("raises", watch.running, f"raised {type(error).__name__}: {error}")

    def _interrupted(self) -> bool:
        """Whether the path came to its Ctrl-C."""
        crashes = [driver for driver in self.drivers if isinstance(driver, crash_at) and driver.fired]
        return self.llm.interrupted is not None or any(crash.error is KeyboardInterrupt for crash in crashes)

    def _instead(self) -> str:
        if self.error is not None:
            return f"input() raised {type(self.error).__name__}"
        return f"input() returned {self.result!r:.80}"
