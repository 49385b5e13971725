"""How far a run of many prompts is, as one line on stderr."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import click

from connectagent.agents.batch import Batch, Item
from connectagent.commands.failure import commands_to_decide, plain
from connectagent.errors import Paused, short_path
from connectagent.output.rows import Row, duration, many, price, tokens

MOST_FAILURES = 5  # that are listed at the end
SAID_FROM_S = 2.0  # how long a provider asks to wait
STOPPING_AFTER_S = 0.5  # what stops sooner needs no word


class Progress:
    """How far a run is, as one line on stderr.

    Args:
        total: how many prompts there are.
        batch: what takes them, once that is known.
    """

    def __init__(self, total: int, batch: Batch | None = None) -> None:
        self.total, self.batch = total, batch
        self.done = self.known = self.failed = self.waiting = self.tokens = 0
        self.cost = 0.0
        self.priced = True
        self.failures: list[str] = []
        self.waits: list[str] = []
        self.stopped: str | None = None
        self.stopping = 0  # ticks since the turns were told to stop
        self.began = time.monotonic()

    def follow(self, batch: Batch) -> None:
        """Say how many of a batch run."""
        self.batch = batch

    def count(self, item: Item) -> None:
        """Count an item that has ended."""
        self.done += 1
        self.known += item.known
        self.waiting += item.status == "paused"
        self.tokens += item.tokens or 0
        self.priced = self.priced and item.cost is not None
        self.cost += item.cost or 0.0
        if isinstance(item.error, Paused) and item.record is not None:
            for wait, command in zip(item.error.waiting, commands_to_decide(item.error), strict=True):
                self.waits.append(f"{item.id}: waits: {wait.reason}; {command}")
        elif item.error is not None and item.status != "paused":
            self.failed += 1
            record = "" if item.record is None else f"; see connectagent log show {short_path(item.record)}"
            said = " ".join(f"{type(item.error).__name__}: {item.error}".split())
            self.failures.append(f"{item.id}: {said}{record}")

    def add(self, cost: float | None) -> None:
        """Count what was spent on an item afterwards; None where a price is not known."""
        self.priced = self.priced and cost is not None
        self.cost += cost or 0.0

    def text(self) -> str:
        """The line; what matters least comes last, since a narrow terminal cuts it."""
        seconds, taken = time.monotonic() - self.began, self.done - self.known
        running, wait_s = (0, 0.0) if self.batch is None else (self.batch.running, self.batch.gate.wait_s)
        parts = [f"{self.done}/{self.total} done"]
        parts += [f"{self.known} of them before"] if self.known else []
        parts += [f"{running} running"] if running else []
        parts += [f"waits {duration(wait_s * 1000)} for the provider"] if running and wait_s > SAID_FROM_S else []
        parts += [f"{self.failed} failed"] if self.failed else []
        parts += [f"{self.waiting} waiting"] if self.waiting else []
        parts += [price(self.cost) if self.priced else f"{price(self.cost)}+?"] if self.cost else []
        parts += [f"{taken / seconds:.1f}/s"] if taken and seconds else []
        parts += [f"{tokens(self.tokens)} tokens"] if self.tokens else []
        return " · ".join(parts)

    def row(self, mark: str, seconds: float) -> Row:
        """The line while it runs, with the time that is left, as far as one can tell."""
        taken, left = self.done - self.known, self.total - self.done
        left_s = left * (time.monotonic() - self.began) / taken if taken else 0.0
        return Row(0, ((f"{mark}{self.text()}", ""),), f"{duration(left_s * 1000)} left" if left_s else "")

    def tick(self) -> None:
        """Say how to end at once where turns that were stopped take their time, such as one that asks a person."""
        from connectagent.output.live import TICK_S, live

        if self.batch is None or not self.batch.running or not self.batch.gate.stopped.is_set():
            return
        self.stopping += 1
        if self.stopping == STOPPING_AFTER_S // TICK_S:
            text = f"stopping: waits for the steps of {many(self.batch.running, 'turn')}; Ctrl-C again ends at once"
            click.echo("\n" * live.is_asking + text, err=True)

    @contextlib.contextmanager
    def shown(self, quiet: bool) -> Iterator[None]:
        """Show the line while it runs; at the end the failures, and how to decide what waits."""
        from connectagent.output.live import live, running

        show: Callable[[str], None] = (lambda text: None) if quiet else (lambda text: click.echo(plain(text), err=True))
        if not quiet:
            live.begin()
            live.ticking.append(self.tick)
        try:
            with running(self.row):
                yield
        finally:
            if not quiet:
                live.ticking.remove(self.tick)
                live.end()
            show(self.text())
            for lines, more in ((self.failures, "failures"), (self.waits, "that wait")):
                for line in lines[:MOST_FAILURES]:
                    show(f"  {line}")
                if len(lines) > MOST_FAILURES:
                    show(f"  and {len(lines) - MOST_FAILURES} more {more}")
            if self.stopped is not None:
                show(self.stopped)
