"""`connectagent hooks`: the contract of the hooks, printed from their specs."""

from __future__ import annotations

import inspect
import re

import click

from connectagent.commands.failure import plain, usage_error
from connectagent.commands.plugin_options import plugin_option
from connectagent.errors import did_you_mean

TITLES = {
    "EVENTS": "The nine events",
    "AROUND": "Around an operation: a generator that yields once",
    "OBSERVING": "Observing and joining",
    "BRINGING": "Bringing things",
}


@click.command(short_help="Print the hooks and their contracts.")
@click.argument("name", required=False)
@click.option("--markdown", is_flag=True, help="Print the table as Markdown, as it is in the README.")
@plugin_option("Load an installed plugin, or a file, for its own hooks. Repeatable.")
def hooks(name: str | None, markdown: bool, plugins: tuple[str, ...]) -> None:
    """Print all hooks, or the contract of the hook NAME.

    Hooks that installed plugins declare are among them; NAME and -p load the plugin that defines it.
    """
    from connectagent.hooks.discovery import handlers_of

    for plugin in plugins:
        list(handlers_of(plugin))
    if markdown:
        click.echo(markdown_table())
    elif name is None:
        click.echo(table())
    else:
        click.echo(contract(name))


def table() -> str:
    """All hooks with their parameters and what they mean, in groups."""
    from connectagent.hooks import specs

    lines = []
    for group, title in TITLES.items():
        lines += [title, ""]
        for name in getattr(specs, group):
            doc = inspect.getdoc(specs.SPECS[name]) or ""
            lines += [f"  {name}({', '.join(specs.PARAMETERS[name])})", f"      {doc.splitlines()[0]}"]
        lines.append("")
    if own := _own():
        lines += ["Of plugins", "", *own, ""]
    return "\n".join([*lines, "A handler takes any of these parameters, by name: connectagent hooks NAME"])


def _own() -> list[str]:
    """The hooks that plugins define: those that are loaded with their parameters, the others as declared."""
    from connectagent.hooks import specs
    from connectagent.hooks.entry_points import OWN_HOOKS, installed
    from connectagent.hooks.own import own_hooks

    lines = []
    for name in own_hooks():
        doc = inspect.getdoc(specs.SPECS[name]) or specs.SPECS[name].__module__
        lines += [plain(f"  {name}({', '.join(specs.PARAMETERS[name])})"), plain(f"      {doc.splitlines()[0]}")]
    for plugin in installed(OWN_HOOKS):
        if plugin.name not in specs.SPECS:
            lines += [plain(f"  {plugin.name}"), plain(f"      Of {plugin}: connectagent hooks {plugin.name}")]
    return lines


def contract(name: str) -> str:
    """The contract of one hook: the signature of a handler, and the spec's docstring.

    Raises:
        click.UsageError: there is no such hook.
    """
    from connectagent.hooks.entry_points import OWN_HOOKS, installed
    from connectagent.hooks.own import find_hook
    from connectagent.hooks.specs import CONTRACTS, PARAMETERS, SPECS

    name = name.replace("-", "_").removeprefix("@")
    if not find_hook(name):
        known = list(dict.fromkeys([*SPECS, *(plugin.name for plugin in installed(OWN_HOOKS))]))
        raise usage_error(f"no hook {name!r}.{did_you_mean(name, known, 0.5)}\nHooks: {', '.join(known)}")
    body = "    outcome = yield" if CONTRACTS[name].kind == "around" else "    ..."
    head = [f"@{name}", f"def handler({', '.join(PARAMETERS[name])}):", body, ""]
    return "\n".join([*head, inspect.getdoc(SPECS[name]) or ""])


def markdown_table() -> str:
    """The hook table of the README."""
    from connectagent.hooks.specs import HOOKS, PARAMETERS, SPECS

    rows = ["| hook | fires | parameters | a value that is returned |", "| --- | --- | --- | --- |"]
    for name in HOOKS:
        doc = inspect.getdoc(SPECS[name]) or ""
        fires = _entries(doc, "Fires")[0].removesuffix(".")
        values = [value for value in _entries(doc, "Returns") if not value.startswith("None")]
        parameters = ", ".join(f"`{parameter}`" for parameter in PARAMETERS[name])
        rows.append(f"| `{name}` | {fires} | {parameters} | {'; '.join(values) or 'nothing'} |")
    return "\n".join(rows)


def _entries(doc: str, title: str) -> list[str]:
    """The entries of one section of a docstring, each on one line without its full stop."""
    found = re.search(rf"^{title}:(.*?)(?:\n\n|\Z)", doc, re.MULTILINE | re.DOTALL)
    entries = re.split(r"\n    (?=\S)", found.group(1)) if found else []
    lines = [" ".join(entry.split()).removesuffix(".") for entry in entries]
    return [line for line in lines if line]
