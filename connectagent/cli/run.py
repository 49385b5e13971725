"""`connectagent run`: one turn of a script's agent, or its function `main`."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from connectagent.commands import script
from connectagent.commands.failure import answer, usage_error
from connectagent.commands.plugin_options import AgentCommand
from connectagent.commands.usage import WholeNumber
from connectagent.settings import enabled, overrides

if TYPE_CHECKING:
    from connectagent.agents.agent import Agent

_GIVE_IT = "give it in quotes after the script, or pipe it in"
MOST_SLOW = 10  # calls and handlers that `--durations` shows


class _Run(AgentCommand):
    """The command, whose `--durations` takes a number or none: the prompt may come after it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give `--durations` without a number its usual one."""
        end = args.index("--") if "--" in args else len(args)
        for at in [at for at, arg in enumerate(args[:end]) if arg == "--durations"]:
            if not "".join(args[at + 1 : at + 2]).isdecimal():
                args[at] = f"--durations={MOST_SLOW}"
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if "extra argument" not in error.message:
                raise
            raise click.UsageError(f"{error.message}: put a prompt of several words in quotes", ctx) from error


@click.command(cls=_Run, short_help="Run the agent or the main function of a script.")
@click.argument("path", metavar="SCRIPT")
@click.argument("prompt", required=False)
@click.option(
    "--durations", metavar="[N]", type=WholeNumber(min=0), help="Show the N slowest calls and handlers; 0: all. [10]"
)
@click.option("--json", "as_json", is_flag=True, help="Print result, outcome, cost and record as one JSON object.")
@click.option("--stream", is_flag=True, help="Show the answer as it arrives.")
@click.option("--max-iterations", metavar="N", type=WholeNumber(min=1), help="Model calls that a turn may take.")
@click.option("--trust", metavar="POLICY", help="The policy for tool calls of agents that have none in the script.")
@script.agent_options
def run(
    path: str,
    prompt: str | None,
    plugins: tuple[str, ...],
    model: str | None,
    quiet: bool,
    traceback: bool,
    durations: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Run SCRIPT, a Python file with an `agent` or a function `main`, and print the result.

    PROMPT is the prompt for the agent, or the argument of `main`. With `-`, or where it is needed and missing, it
    is read from standard input.
    """
    from connectagent.cli.summary import Summary

    overrides.update({name: value for name, value in options.items() if value})
    summary = None if quiet and durations is None else Summary(durations)
    script.apply_options(model, quiet, plugins, {summary.name: summary} if summary else None)
    module = script.load(path, traceback)
    agent, turn = _turn(module, prompt)
    try:
        if as_json:
            _print_json(agent, turn)
        elif (result := turn()) is not None and not _was_streamed(agent, result):
            click.echo(answer(str(result)))
    except BaseException:
        if durations is None:  # the error comes next, in five lines
            summary = None
        raise
    finally:
        if summary is not None:
            summary.show()


def _print_json(agent: Agent | None, turn: Callable[[], Any]) -> None:
    result, failed = None, {}
    try:
        result = turn()
    except Exception as error:
        failed = {"error": {"type": type(error).__name__, "message": str(error)}}
        raise
    finally:
        click.echo(json.dumps({**_outcome(agent, result), **failed}, ensure_ascii=False, default=str))


def _outcome(agent: Agent | None, result: object) -> dict[str, Any]:
    """What came of a run, for programs."""
    if agent is None:
        return {"result": result}
    session: Mapping[str, Any] = agent.current_session or {}
    kept = {key: session.get(key) for key in ("outcome", "turn", "iteration")}
    path, spent = agent.log.path, agent.spent
    record = None if path is None else str(path)
    sums = {"tokens": spent.tokens, "cost": spent.cost, "known_cost": spent.known_cost}
    return {"result": result, "agent": agent.name, **kept, **sums, "record": record}


def _was_streamed(agent: Agent | None, result: object) -> bool:
    """Whether the terminal shows the whole result already, as it arrived."""
    if agent is None or not agent.streaming or enabled("quiet"):
        return False
    shows = any(handler.plugin == "console" for handler in agent.hooks.loaded)
    whole = result == agent.session["messages"][-1].get("content")
    return shows and whole and sys.stdout.isatty() and sys.stderr.isatty()


def _turn(module: ModuleType, prompt: str | None) -> tuple[Any, Callable[[], Any]]:
    """What to run: the script's `main` if it takes the given arguments, else its agent, which comes first."""
    main = getattr(module, "main", None)
    wants = _prompts(main) if callable(main) else None
    agent = None
    if wants is None or (wants == "none" and prompt is not None):
        agent = script.agent_of(module)
    if agent is not None:
        text = _read(prompt, "the agent")
        return agent, lambda: agent.input(text)
    if wants is None or main is None:
        missing = f"{script.shown(module)} has neither an 'agent' nor a function 'main'"
        raise usage_error(f"{missing}; write, for example: agent = Agent('helper')")
    if wants == "none":
        if prompt is not None:
            raise usage_error(f"main() in {script.shown(module)} takes no prompt; run it without one")
        return None, lambda: _awaited(main())
    if wants == "optional" and prompt is None:
        return None, lambda: _awaited(main())
    text = _read(prompt, "main()")
    return None, lambda: _awaited(main(text))


def _prompts(main: Callable[..., Any]) -> str:
    """Whether `main` takes a prompt: `none`, `optional`, or `one`."""
    parameters = [
        parameter
        for parameter in inspect.signature(main).parameters.values()
        if parameter.kind is not parameter.KEYWORD_ONLY and parameter.kind is not parameter.VAR_KEYWORD
    ]
    if not parameters:
        return "none"
    first = parameters[0]
    return "optional" if first.default is not first.empty or first.kind is first.VAR_POSITIONAL else "one"


def _awaited(value: object) -> Any:
    if not inspect.iscoroutine(value):
        return value
    import asyncio

    return asyncio.run(value)


def _read(prompt: str | None, who: str) -> str:
    """The prompt: the argument, else standard input."""
    if prompt is None or prompt == "-":
        if prompt is None and (sys.stdin is None or sys.stdin.isatty()):
            raise usage_error(f"{who} needs a prompt: {_GIVE_IT}")
        prompt = sys.stdin.read().strip() if sys.stdin is not None else ""
        if not prompt:
            raise usage_error(f"{who} needs a prompt, and standard input was empty: {_GIVE_IT}")
    if not prompt.strip():
        raise usage_error(f"{who} needs a prompt that is not empty: {_GIVE_IT}")
    return prompt
