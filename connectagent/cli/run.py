"""`connectagent run`: one turn of a script's agent, or its function `main`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import click

from connectagent.cli import script
from connectagent.cli.failure import answer, usage_error


@click.command(short_help="Run the agent or the main function of a script.")
@click.argument("path", metavar="SCRIPT")
@click.argument("prompt", required=False)
@click.option("--durations", is_flag=True, help="Show time and cost of each handler at the end.")
@script.agent_options
def run(
    path: str,
    prompt: str | None,
    plugins: tuple[str, ...],
    model: str | None,
    quiet: bool,
    traceback: bool,
    durations: bool,
) -> None:
    """Run SCRIPT, a Python file with an `agent` or a function `main`, and print the result.

    PROMPT is the prompt for the agent, or the argument of `main`. With `-`, or where it is needed and missing, it
    is read from standard input.
    """
    from connectagent.cli.durations import Durations

    costs = Durations()
    script.apply(model, quiet, (*plugins, costs) if durations else plugins)
    module = script.load(path, traceback)
    try:
        result = _turn(module, prompt)()
    finally:
        costs.show()
    if result is not None:
        click.echo(answer(str(result)))


def _turn(module: ModuleType, prompt: str | None) -> Callable[[], Any]:
    """What to run: the script's `main` if it takes the given arguments, else its agent."""
    main = getattr(module, "main", None)
    wants = _prompts(main) if callable(main) else None
    agent = None
    if wants is None or (wants == "none" and prompt is not None):
        agent = script.agent_of(module)
    if agent is not None:
        text = _read(prompt, "the agent")
        return lambda: agent.input(text)
    if wants is None or main is None:
        raise usage_error(f"{script.shown(module)} has neither an 'agent' nor a function 'main'")
    if wants == "none":
        if prompt is not None:
            raise usage_error(f"main() in {script.shown(module)} takes no prompt; run it without one")
        return lambda: _awaited(main())
    if wants == "optional" and prompt is None:
        return lambda: _awaited(main())
    text = _read(prompt, "main()")
    return lambda: _awaited(main(text))


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


def _awaited(value: Any) -> Any:
    if not inspect.iscoroutine(value):
        return value
    import asyncio

    return asyncio.run(value)


def _read(prompt: str | None, who: str) -> str:
    """The prompt: the argument, else standard input."""
    if prompt is None or prompt == "-":
        if prompt is None and (sys.stdin is None or sys.stdin.isatty()):
            raise usage_error(f"{who} needs a prompt: give it after the script, or pipe it in")
        prompt = sys.stdin.read().strip() if sys.stdin is not None else ""
        if not prompt:
            raise usage_error(f"{who} needs a prompt, and standard input was empty")
    if not prompt.strip():
        raise usage_error(f"{who} needs a prompt that is not empty")
    return prompt
