"""Options of agents inside of another option: `--variant '-p budget --model NAME'`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from connectagent.commands.plugin_options import AgentCommand, options_of, with_given
from connectagent.commands.script import plugin_from_text
from connectagent.commands.usage import refuse_repeats
from connectagent.settings import override, overrides


class OptionSet(NamedTuple):
    """What a person changes of an agent.

    Args:
        plugins: added ones, and those that are left out.
        model: of all agents; None for their own.
    """

    plugins: tuple[Any, ...] = ()
    model: str | None = None

    @contextmanager
    def agent(self, agent: Any) -> Iterator[Any]:
        """An agent of the same definition with these options, and none other while it is in use."""
        before: dict[str, Any] = {name: overrides[name] for name in ("model", "agent_options") if name in overrides}
        if self.model is not None:
            overrides["model"] = self.model
        own = options_of({"model": self.model, "plugins": self.plugins})
        overrides["agent_options"] = f"{before.get('agent_options', '')} {own}".strip()
        try:
            with agent.again(plugins=list(self.plugins)) as chosen:
                yield chosen
        finally:
            overrides.pop("model", None)
            overrides.pop("agent_options", None)
            overrides.update(before)


def option_set(text: str) -> OptionSet:
    """The options in a text: `-p`, `--model`, and options of plugins.

    Raises:
        click.UsageError: it has others, or one is not whole.
    """
    try:
        context = _OPTIONS.make_context("options", shlex.split(text))
    except ValueError as error:  # a quote that is not closed
        raise click.UsageError(str(error)) from error
    return OptionSet(tuple(map(plugin_from_text, context.params["plugins"])), context.params["model"])


@contextmanager
def plugins_added(plugins: list[Any]) -> Iterator[None]:
    """Meanwhile each agent that is made gets these plugins too.

    Args:
        plugins: as `plugin_from_text` gives them.
    """
    with override("plugins", [*overrides.get("plugins", []), *plugins]):
        yield


_OPTIONS = AgentCommand(
    "options",
    params=[
        click.Option(["-p", "plugins"], multiple=True, callback=with_given),
        click.Option(["--model"]),
    ],
    add_help_option=False,
)
refuse_repeats(_OPTIONS)
