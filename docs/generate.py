"""Update the generated parts of README.md and the pages of docs/: `python docs/generate.py`.

A generated part stands between two comments, `<!-- settings -->` and `<!-- end of settings -->`, and comes from the
code itself. `tests/project/test_readme.py` fails where one is not up to date.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from connectagent import Agent, errors
from connectagent.cli.commands import COMMANDS
from connectagent.cli.hooks import TITLES, markdown_table
from connectagent.cli.plugin_commands import OpenGroup
from connectagent.hooks import specs
from connectagent.models.names import PROVIDERS
from connectagent.settings import SETTINGS
from connectagent.stop_reasons import REASONS
from connectagent.testing.plugin_tester.faults import CHANGES, RULES

ROOT = Path(__file__).parents[1]


def pages() -> list[Path]:
    """The README and the pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def updated(text: str) -> str:
    """A page with its generated parts as the code has them now."""
    for name, make in PARTS.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        if begin in text:
            before, rest = text.split(begin)
            text = f"{before}{begin}{make()}\n{end}{rest.split(end)[1]}"
    return text


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def described(doc: str) -> str:
    """A docstring in Google's style as Markdown."""
    parts = []
    for paragraph in inspect.cleandoc(doc).split("\n\n"):
        title, _, body = paragraph.partition(":")
        if title == "Fires":
            parts.append(f"Fires {_line(body)}")
        elif title not in SECTIONS:
            parts.append(_line(paragraph))
        elif body.strip() == "none.":
            continue
        elif body.strip() == "None.":
            parts.append(f"{SECTIONS[title]}: `None`.")
        elif not _NAMED.match(body.strip()):  # a sentence
            parts.append(f"{SECTIONS[title]}: {_line(body)}")
        else:
            entries = [_line(entry) for entry in re.split(r"\n    (?=\S)", body) if entry.strip()]
            listed = "\n".join(f"- {_entry(entry)}" for entry in entries)
            parts.append(f"{SECTIONS[title]}:\n\n{listed}")
    return "\n\n".join(parts)


_NAMED = re.compile(r"(\w+(?:, \w+)*): ")
SECTIONS = {"Args": "Parameters"} | {name: name for name in ("Attributes", "Returns", "Yields", "Raises")}


def _line(text: str) -> str:
    return " ".join(text.split())


def _entry(entry: str) -> str:
    """`name: what it means` with the names as code."""
    found = _NAMED.match(entry)
    if found is None:
        return entry
    return ", ".join(f"`{name}`" for name in found[1].split(", ")) + f": {entry[found.end() :]}"


# -- hooks and the agent -------------------------------------------------------------------------


def contracts() -> str:
    """The contract of each hook, from its docstring in `connectagent/hooks/specs.py`."""
    parts = []
    for group, title in TITLES.items():
        parts.append(f"## {title}")
        for name in getattr(specs, group):
            parts.append(f"### `{name}({', '.join(specs.PARAMETERS[name])})`")
            parts.append(described(specs.SPECS[name].__doc__ or ""))
    return "\n\n".join(parts)


MEMBERS = {
    "Turns": ("input", "stream", "resume", "resume_stream", "ainput", "astream", "aresume", "aresume_stream"),
    "Many sessions": ("again", "for_session", "map"),
    "In handlers and tools": ("ask", "execute_tool", "end_turn", "trace", "plugin", "replaying", "create_llm"),
    "Tools": ("add_tool", "remove_tool", "list_tools"),
    "The session": ("session", "state", "record", "reset_conversation"),
    "Time, tokens and cost": ("total_cost", "ledger", "slow_handlers", "context_window", "context_percent"),
    "The tree, and the end": ("find", "root", "branch", "close"),
}
"""The methods and properties of `Agent` for users, by what they are for."""

INTERNAL = ("answer", "by", "call_options", "ended")
"""What `Agent` has without an underscore for other modules of the package, and not for users."""


def agent() -> str:
    """What `Agent` takes and has, from its docstrings."""
    parts = ["## `Agent(...)`", described(Agent.__doc__ or "")]
    for title, names in MEMBERS.items():
        parts.append(f"## {title}")
        for name in names:
            member = getattr(Agent, name)
            parts += [f"### `agent.{name}{_signature(member)}`", described(member.__doc__ or "")]
    return "\n\n".join(parts)


def _signature(member: Any) -> str:
    """The parameters of a method, without types; nothing for a property."""
    if isinstance(member, property):
        return ""
    taken = [one.replace(annotation=one.empty) for one in inspect.signature(member).parameters.values()]
    return str(inspect.Signature(taken[1:]))


# -- commands ------------------------------------------------------------------------------------


def commands() -> str:
    """Each command with its arguments and options, as in `--help`."""
    return "\n\n".join(part for name, module in COMMANDS.items() for part in command(name, _loaded(name, module)))


def _loaded(name: str, module: str) -> click.Command:
    found: click.Command = getattr(import_module(module), name)
    return found


def command(name: str, current: click.Command, parent: click.Context | None = None) -> Iterator[str]:
    """One command, and those below it."""
    context = click.Context(current, info_name=name if parent else f"connectagent {name}", parent=parent)
    level = "##" if parent is None else "###"
    yield f"{level} `{context.command_path}`"
    yield f"```text\n{context.command_path} {' '.join(current.collect_usage_pieces(context))}\n```"
    yield inspect.cleandoc(current.help or "").replace("\n\n\b\n", "\n\n")
    listed = (one.get_help_record(context) for one in current.params if isinstance(one, click.Option))
    options = [one for one in listed if one is not None]  # a hidden option has none
    if options:
        rows = [[f"`{names}`", _line(text).replace("[", "\\[")] for names, text in options]  # `[10] [x>=0]` is no link
        yield table(["option", "does"], rows)
    if isinstance(current, click.Group):
        # Commands of plugins are described by their plugins, whichever are installed here.
        own = current.own_commands(context) if isinstance(current, OpenGroup) else current.list_commands(context)
        for below in own:
            found = current.get_command(context, below)
            assert found is not None
            yield from command(below, found, context)


# -- tables --------------------------------------------------------------------------------------


def settings() -> str:
    """The settings, from `connectagent/settings/values.py`."""
    rows = [[f"`{name}`", f"`CONNECTAGENT_{name.upper()}`", means] for name, means in SETTINGS.items()]
    return table(["setting", "environment variable", "means"], rows)


def changes() -> str:
    """What a plugin may change, as the plugin tester names it."""
    return table(["kind", "the plugin"], [[f"`{kind}`", means] for kind, means in CHANGES.items()])


def rules() -> str:
    """The rules that the plugin tester checks."""
    return table(["rule", "is broken where the plugin"], [[f"`{rule}`", means] for rule, means in RULES.items()])


def providers() -> str:
    """The providers, from `connectagent/models/names.py`."""
    rows = []
    for name, one in PROVIDERS.items():
        key = f"`{one.key_variable}`" if one.key_variable else "none"
        names = ", ".join(f"`{start}...`" for start in one.models)
        address = "`CONNECTAGENT_GATEWAY_URL`" if name == "co" else one.base_url or "the SDK's own"
        rows.append([f"`{name}/<model>`", names, key, address])
    return table(["model", "also without the prefix", "key", "address"], rows)


def stop_reasons() -> str:
    """Why answers stop, from `connectagent/stop_reasons.py`."""
    words: dict[tuple[str, str, str], list[str]] = {}
    for word, one in REASONS.items():
        words.setdefault((one.end, one.kind, one.source), []).append(f"`{word}`")
    rows = [[", ".join(same), end, f"`{kind}`" if kind else "", source] for (end, kind, source), same in words.items()]
    return table(["reason", "the answer is", "`kind` of its error", "source"], rows)


def exceptions() -> str:
    """The errors, from `connectagent/errors.py`."""
    rows = []
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.ConnectAgentError):
            others = [base.__name__ for base in kind.__bases__ if base not in (errors.ConnectAgentError, Exception)]
            rows.append([f"`{name}`{f' ({others[0]})' if others else ''}", (kind.__doc__ or "").splitlines()[0]])
    return table(["error", "means"], rows)


PARTS: dict[str, Callable[[], str]] = {
    "hooks": markdown_table,
    "contracts": contracts,
    "agent": agent,
    "commands": commands,
    "settings": settings,
    "changes": changes,
    "rules": rules,
    "providers": providers,
    "stop reasons": stop_reasons,
    "errors": exceptions,
}


def main() -> None:
    """Write the pages that are not up to date."""
    for page in pages():
        before = page.read_text(encoding="utf-8")
        if (text := updated(before)) != before:
            page.write_text(text, encoding="utf-8")
            print(f"written: {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
