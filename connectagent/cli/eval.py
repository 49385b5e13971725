"""`connectagent eval`: a script's agent over cases, scored by checks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import click

from connectagent.agents.batch import BatchLimits
from connectagent.cli.eval_table import show
from connectagent.cli.eval_variants import CHECKS, Variant, state_name, variants_of
from connectagent.commands import prompts, script
from connectagent.commands.failure import usage_error
from connectagent.commands.plugin_options import AgentCommand
from connectagent.commands.progress import Progress
from connectagent.commands.written import check_written, write_text
from connectagent.errors import BatchStopped, cut, did_you_mean
from connectagent.testing import evals
from connectagent.testing.evals.changes import Compared, comparisons
from connectagent.testing.evals.report import as_data, junit, saved
from connectagent.testing.evals.scoring import Check, checks_in
from connectagent.testing.evals.sums import Scores, Taken, mean_of
from connectagent.testing.evals.taking import digest_of, trials
from connectagent.testing.evals.trial import total

BUILT_IN = ("exact", "contains")  # checks that need no more than the field `expected`
_LONGEST = 40  # of a prompt that is the id of its case


@click.command("eval", cls=AgentCommand, short_help="Score the agent of a script on many cases.")
@click.argument("path", metavar="SCRIPT")
@click.argument("cases", metavar="CASES")
@click.option(
    "--check",
    "files",
    metavar="FILE",
    multiple=True,
    required=True,
    help=f"A file with functions check_...(result, ...), or {' or '.join(BUILT_IN)}. Repeatable.",
)
@click.option("--repeat", metavar="N", type=click.IntRange(min=1), default=1, help="Take each case N times. [1]")
@click.option(
    "--variant",
    "variants",
    metavar="[NAME=]OPTIONS",
    multiple=True,
    help="Take the cases with these options too, side by side: '-p new', 'cheap=--model gpt-5-mini'. Repeatable.",
)
@click.option("--against", metavar="FILE", help="Say what changed since results that -o wrote.")
@click.option("--min-score", metavar="S", type=prompts.Number(0, 1), help="The mean that each check needs. [1]")
@click.option("-o", "--output", metavar="FILE", help="Write the results there, as JSON.")
@click.option("--junit", "xml", metavar="FILE", help="Write them there in JUnit's form, for a CI server.")
@click.option("--name", metavar="NAME", help="Go on with records of this name. [that of CASES and what the agent is]")
@prompts.prompt_options
@script.agent_options
def eval(path: str, cases: str, files: tuple[str, ...], variants: tuple[str, ...], **options: Any) -> None:
    """Run the agent of SCRIPT over cases, score each answer with checks, and print a table.

    CASES is a file as map takes it; its fields `id` and `expected` are optional, and checks get all
    fields. A check returns True, False or a number from 0 to 1, or asserts.

    The same command again takes what is missing, and scores all. If the agent was changed, all cases run again. Exits
    with 0 where each check passes everywhere, or reaches --min-score; with 1 otherwise; with 130 after Ctrl-C.
    """
    taking = _cases(prompts.read_prompts(cases, options["template"], options["sample"]))
    chosen = variants_of(variants)
    before = None if options["against"] is None else saved(options["against"])
    check_written({"-o": options["output"], "--junit": options["xml"]}, [path, cases, *files])
    # Agents show nothing; the line and the table do.
    script.apply_options(options["model"], True, options["plugins"], trust=options["trust"])
    module = script.load(path, options["traceback"])
    if (agent := script.agent_of(module)) is None:
        raise usage_error(f"{script.shown(module)} has no 'agent'")
    stem = "stdin" if cases == "-" else Path(cases).stem
    names = state_name(options["name"], stem, module, options["plugins"], options["trust"])
    evaluation = Evaluation(taking, _checks(files), chosen, options)
    evaluation.take(agent, names)
    head = {"name": stem, "script": path, "cases": cases, "complete": evaluation.progress.stopped is None}
    compared = comparisons(evaluation.taken, [check.name for check in evaluation.checks], before)
    evaluation.write(compared, **head)
    show(evaluation.taken, [check.name for check in evaluation.checks], before, compared)
    if not evaluation.passed(options["min_score"]):
        raise SystemExit(1)


class Evaluation:
    """The trials of all variants.

    Args:
        cases, checks, variants: what is taken.
        options: those of the command.
    """

    def __init__(
        self, cases: list[evals.Case], checks: list[Check], variants: list[Variant], options: dict[str, Any]
    ) -> None:
        self.cases, self.checks, self.variants, self.options = cases, checks, variants, options
        self.progress = Progress(len(cases) * options["repeat"] * len(variants))
        self.taken: list[Taken] = []

    def take(self, agent: Any, names: Any) -> None:
        """Take all cases with each variant; `names` gives the name of a variant's records."""
        options = self.options
        for variant in self.variants:  # what is wrong with one is said before another one has cost something
            with variant.options.agent(agent):
                pass
        limits = BatchLimits(options["max_failures"], options["max_usd"])
        with self.progress.shown(options["quiet"]):
            for variant in self.variants:
                found: list[evals.Trial] = []
                self.taken.append(Taken(variant.name, found))
                with variant.options.agent(agent) as chosen:
                    run = names(variant, chosen)
                    taken = trials(
                        chosen, self.cases, self.checks, run=run, limits=limits,
                        repeat=options["repeat"], concurrency=options["concurrency"], watch=self.progress.follow,
                    )  # fmt: skip
                    self._collect(taken, found)
                if self.progress.stopped is not None:
                    break
        self.taken = [one for one in self.taken if one.trials] or self.taken[:1]

    def _collect(self, taken: Iterator[evals.Trial], found: list[evals.Trial]) -> None:
        try:
            for trial in taken:
                found.append(trial)
                self.progress.count(trial.item)
                self.progress.failures.clear()  # the table lists them
                self.progress.add(total(trial.checks_costs))
        except BatchStopped as stopped:
            self.progress.stopped = str(stopped)
        order = {case.id: number for number, case in enumerate(self.cases)}
        found.sort(key=lambda trial: (order[trial.case.id], trial.number))

    def write(self, compared: Sequence[Compared], **head: Any) -> None:
        """Write the results, and what they are compared with, into the files that were asked for."""
        options = self.options
        if (path := options["output"]) is not None:
            data = as_data(self.taken, compared, **head, repeat=options["repeat"], stopped=self.progress.stopped)
            write_text("-o", path, json.dumps(data, ensure_ascii=False, indent=1, default=str) + "\n")
        if (path := options["xml"]) is not None:
            write_text("--junit", path, junit(self.taken, compared, head["name"], options["min_score"]))

    def passed(self, least: float | None) -> bool:
        """Whether all trials were taken, and each check has the mean that it needs."""
        if self.progress.stopped is not None or self.progress.failed or self.progress.waiting:
            return False
        least = 1.0 if least is None else least
        return all(_reached(taken.scores, self.checks, least) for taken in self.taken)


def _reached(scores: Scores, checks: Sequence[Check], least: float) -> bool:
    found = [scores.get(check.name, {}) for check in checks]
    return all(cases and mean_of(cases).score >= least for cases in found)


def _cases(lines: list[prompts.Prompt]) -> list[evals.Case]:
    """The cases of a file; without ids, the prompts are their ids."""
    found: dict[str, evals.Case] = {}
    named = {line.id for line in lines}
    for line in lines:
        id = line.id
        if id is None:
            own = _id_of(line.prompt)
            names = (f"{own} ({number})" if number > 1 else own for number in count(1))
            id = next(name for name in names if name not in found and name not in named)
        expected = line.fields.get("expected")
        found[id] = evals.Case(id, line.prompt, None if expected == "" else expected, line.fields)
    return list(found.values())


def _id_of(prompt: str) -> str:
    if len(prompt) <= _LONGEST and prompt.isprintable():
        return prompt
    return f"{cut(' '.join(prompt.split()), _LONGEST - 9)} {digest_of(prompt)}"


def _checks(files: Sequence[str]) -> list[Check]:
    """The checks of files, and built-in ones by name.

    Raises:
        click.UsageError: a file cannot be read, or two checks have one name.
        ConfigError: a file has no checks, or one cannot be used.
    """
    found: dict[str, Check] = {}
    for number, file in enumerate(files):
        if file in BUILT_IN:
            checks = [Check.of(file, getattr(evals, file)(), file)]
        elif not file.endswith(".py"):
            near = did_you_mean(file, BUILT_IN)
            raise usage_error(f"--check {file!r} is neither a Python file nor {' or '.join(BUILT_IN)}.{near}")
        else:
            checks = checks_in(script.load_beside(file, f"{CHECKS}{number or ''}"), file)
        for check in checks:
            if check.name in found:
                raise usage_error(f"{file}: there is another check called {check.name!r}; name it otherwise")
            found[check.name] = check
    return list(found.values())
