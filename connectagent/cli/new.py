"""`connectagent plugins new`: writes a package that can be tested and installed at once."""

from __future__ import annotations

import re
from pathlib import Path

import click

from connectagent.commands.failure import usage_error
from connectagent.errors import did_you_mean

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "connectagent-{name}"
version = "0.1.0"
description = "A connectagent plugin."
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["connectagent>=0.1,<0.2"]

[project.entry-points.connectagent]
{name} = "{module}"
{brings}
[tool.setuptools]
packages = ["{module}"]

[tool.setuptools.package-data]
{module} = ["py.typed"]

[tool.pytest.ini_options]
pythonpath = ["."]
testpaths = ["tests"]
"""
README = """\
# connectagent-{name}

A plugin for connectagent. It sees: {hooks}.

```sh
pip install connectagent-{name}
```

```python
from connectagent import Agent

agent = Agent("helper", plugins=["{name}"])
```

Run its tests: `pytest`. See it at work: `connectagent plugins inspect {name}`.
"""
CONFTEST = 'pytest_plugins = ["connectagent.testing"]\n'
TESTS = '''\
"""The plugin on every path of a turn, with models that follow scripts: no key, no network."""

import {module}
from connectagent.testing import run_agent


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_it_keeps_the_rules_on_every_path(agenttester, no_network):
    # Name what the plugin may change: {{"messages", "state"}}, for example.
    checked = agenttester.check({module}, changes=set())
    assert checked.hooks == {called}


def test_the_turn_goes_its_way(no_network):
    turn = run_agent(("add", {{"a": 2, "b": 2}}), "It is 4.", tools=[add], plugins=[{module}])
    assert turn.result == "It is 4."
'''


@click.command(short_help="Write a new plugin: a package with tests that pass.")
@click.argument("name")
@click.option("--hooks", metavar="NAMES", default="after_tools", show_default=True, help="Its first hooks, by commas.")
def new(name: str, hooks: str) -> None:
    """Write a new package, connectagent-NAME, into the current folder: pyproject, package, README and tests."""
    name = re.sub(r"[-_.]+", "-", name).lower().removeprefix("connectagent-")
    if not re.fullmatch(r"[a-z][a-z0-9-]*[a-z0-9]|[a-z]", name):
        raise usage_error(f"a plugin's name is letters, digits and dashes, beginning with a letter, not {name!r}")
    listed = _hooks(hooks)
    folder = Path(f"connectagent-{name}")
    if folder.exists():
        raise usage_error(f"{str(folder)!r} is there already; take another name, or remove it")
    module = f"connectagent_{name.replace('-', '_')}"
    words = {"name": name, "module": module, "hooks": ", ".join(listed), "brings": _brings(name, module, listed)}
    called = sorted(hook for hook in listed if not hook.startswith("register_"))
    words["called"] = "{" + ", ".join(f'"{hook}"' for hook in called) + "}" if called else "set()"
    files = {
        "pyproject.toml": PYPROJECT.format(**words),
        "README.md": README.format(**words),
        "conftest.py": CONFTEST,
        f"{module}/__init__.py": _module(name, listed),
        f"{module}/py.typed": "",
        f"tests/test_{name.replace('-', '_')}.py": TESTS.format(**words),
    }
    try:
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
            click.echo(f"{folder}/{path}")
    except OSError as error:
        raise usage_error(f"{str(folder)!r} cannot be written: {error.strerror}; try another folder") from error
    click.echo(f"now: connectagent plugins install ./{folder}")


def _hooks(text: str) -> list[str]:
    from connectagent.hooks.specs import HOOKS

    listed = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for hook in listed:
        if hook not in HOOKS:
            raise usage_error(f"no hook {hook!r}.{did_you_mean(hook, HOOKS, 0.5)} Hooks: {', '.join(HOOKS)}")
    if not listed:
        raise usage_error(f"--hooks names at least one hook: {', '.join(HOOKS)}")
    return listed


def _brings(name: str, module: str, hooks: list[str]) -> str:
    """The entry points for models and commands."""
    told = ""
    if "register_models" in hooks:
        told += f'\n[project.entry-points."connectagent.models"]\n{name} = "{module}"\n'
    if "register_commands" in hooks:  # with its line for `connectagent --help`
        told += f'\n[project.entry-points."connectagent.commands"]\n"{name}: Print its name." = "{module}"\n'
    return told


def _module(name: str, hooks: list[str]) -> str:
    from connectagent.hooks.specs import PARAMETERS, SPECS

    lines = [f'"""The plugin {name}."""', "", f"from connectagent import {', '.join(sorted(hooks))}"]
    for hook in hooks:
        doc = (SPECS[hook].__doc__ or "").strip().splitlines()[0]
        lines += ["", "", f"@{hook}", f"def {hook}_of_{name.replace('-', '_')}({', '.join(PARAMETERS[hook])}):"]
        lines += [f'    """{doc} See: connectagent hooks {hook}"""', *_body(name, hook)]
    return "\n".join([*lines, ""])


def _body(name: str, hook: str) -> list[str]:
    if hook.startswith("around_"):
        return ["    outcome = yield", "    return outcome"]
    if hook == "register_models":
        return ["    return {}  # from a prefix to a function that makes an LLM from a model's name"]
    if hook == "register_commands":
        add = f'    cli.add_command(click.Command("{name}", callback=lambda: click.echo("{name}")))'
        return ["    import click", "", add]
    return []
