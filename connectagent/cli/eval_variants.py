"""Variants of the agent that `connectagent eval` takes side by side, and the names of their records."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import click

import connectagent
from connectagent.commands.failure import usage_error
from connectagent.commands.option_sets import OptionSet, option_set

_NAMED = re.compile(r"([^\s=-][^=]*)=(.*)", re.DOTALL)
CHECKS = "connectagent_checks"  # how the modules of checks begin
_PACKAGE = Path(connectagent.__file__).resolve().parent


class Variant(NamedTuple):
    """The agent with other options.

    Args:
        name: as the table shows it; "" for the agent as it is, where nothing else is taken.
        options: its plugins, and the model of all agents but judges.
    """

    name: str = ""
    options: OptionSet = OptionSet()


def variants_of(texts: Iterable[str]) -> list[Variant]:
    """The variants of the command line; one without options where there are none.

    Raises:
        click.UsageError: one cannot be read, or two have the same name.
    """
    found: dict[str, Variant] = {}
    for text in texts:
        variant = _variant(text)
        if variant.name in found:
            raise usage_error(f"two variants are called {variant.name!r}; name them, as in --variant 'NAME=-p PLUGIN'")
        found[variant.name] = variant
    return list(found.values()) or [Variant()]


def _variant(text: str) -> Variant:
    named = _NAMED.fullmatch(text.strip())
    name, options = (named[1], named[2]) if named else (text.strip(), text)
    if not named and not name.startswith("-"):
        given = f"-p {text.strip() or 'PLUGIN'}"
        raise usage_error(f"--variant {text!r} has no options; write, for example, '{given}' or 'NAME={given}'")
    try:
        return Variant(name, option_set(options))
    except click.UsageError as error:
        wrong = f"--variant {text!r}: {error.format_message().rstrip('.')}; it takes -p, --model and options of plugins"
        raise usage_error(wrong) from None


# -- the names of their records --------------------------------------------------------------------


def state_name(
    given: str | None, stem: str, module: ModuleType, plugins: tuple[Any, ...], trust: str | None
) -> Callable[[Variant, Any], str]:
    """A function that names the records of a variant and its agent.

    Args:
        given: the name that the person gave: records of that name are continued, whatever the agent is.
        stem: the name of the cases; behind it comes a digest of what makes the agent answer as it does.
        module: the script.
        plugins: those of the command line.
        trust: the policy of the command line.
    """
    sources = _sources(module)

    def name(variant: Variant, agent: Any) -> str:
        if given is not None:
            return f"eval.{given}.{variant.name}" if variant.name else f"eval.{given}"
        makes = [plugins, *variant.options, trust, _described(agent)]
        files = sources | {Path(str(one.by["file"])) for one in agent.hooks.loaded if not one.builtin}
        digest = sha256(repr(makes).encode("utf-8", "surrogatepass"))
        for file in sorted(file for file in files if _is_own(file)):
            digest.update(file.read_bytes())
        return f"eval.{stem}.{digest.hexdigest()[:10]}"

    return name


def _described(agent: Any) -> list[Any]:
    """What makes an agent, and those below it, answer as they do."""
    tools = [(tool.name, tool.description) for tool in agent.tools]
    plugins = sorted({(one.plugin, str(one.version)) for one in agent.hooks.loaded if not one.builtin})
    return [agent.llm.model, agent.system_prompt, tools, plugins, [_described(child) for child in agent.children]]


def _sources(module: ModuleType) -> set[Path]:
    """The script, and the modules of its folder that it has imported."""
    folder = os.path.join(os.path.realpath(os.path.dirname(str(module.__file__))), "")
    modules = [one for name, one in list(sys.modules.items()) if not name.startswith(CHECKS)]
    files = [file for one in modules if isinstance(file := getattr(one, "__file__", None), str)]
    places = {place for place in set(map(os.path.dirname, files)) if _is_below(place, folder)}
    return {Path(file).resolve() for file in files if os.path.dirname(file) in places}


def _is_below(place: str, folder: str) -> bool:
    return os.path.join(os.path.realpath(place), "").startswith(folder)


def _is_own(path: Path) -> bool:
    """Whether a file is of the person's program, not of an installed package."""
    return "site-packages" not in path.parts and _PACKAGE not in path.resolve().parents and path.is_file()
