"""Options of plugins, in code and on the command line, and plugins that require others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from connectagent import Agent, PluginError, shadow, use
from connectagent.cli.group import cli
from connectagent.hooks.entry_points import OFFICIAL, installed
from connectagent.settings import overrides
from connectagent.testing import ScriptedLLM

BUDGET = """
from connectagent import on_complete

class Budget:
    def __init__(self, model_calls: int = 10, usd: float = 1.0, strict: bool = False, note="", names=()):
        self.text = f"{model_calls!r} {usd!r} {strict!r} {note!r} {names!r}"

    @on_complete
    def show(self, result):
        return f"{result} | {self.text}"
"""
DEFAULTS = "10 1.0 False '' ()"
SCRIPT = """
from connectagent import Agent
from connectagent.testing import ScriptedLLM
agent = Agent("a", llm=ScriptedLLM("Done."), log=False, quiet=True, plugins={plugins})
"""


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """`site(name, text)` installs a plugin; what the command line sets ends with the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_PLUGINS", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = dict(overrides)
    folder = tmp_path / "site"
    folder.mkdir()

    def add(name: str, text: str, value: str = "") -> None:
        (folder / f"plugin_{name}.py").write_text(text)
        info = folder / f"connectagent_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: connectagent-{name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[connectagent]\n{name} = plugin_{name}{value}\n")
        sys.path.insert(0, str(folder))  # anew, so that it is read again

    add("budget", BUDGET, ":Budget")
    yield add
    overrides.clear()
    overrides.update(before)
    for name in [name for name in sys.modules if name.startswith("plugin_")]:
        del sys.modules[name]


def said(*plugins: Any, **options: Any) -> str:
    agent = Agent("a", llm=ScriptedLLM("Done."), log=False, quiet=True, plugins=list(plugins), **options)
    return agent.input("Hi").removeprefix("Done. | ")


def run(*arguments: str, plugins: str = "[]") -> Result:
    Path("script.py").write_text(SCRIPT.format(plugins=plugins))
    return CliRunner().invoke(cli, ["run", "script.py", "Hi", *arguments])


def printed(*arguments: str, plugins: str = "[]") -> str:
    done = run(*arguments, plugins=plugins)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output.strip().removeprefix("Done. | ")


# -- in code -------------------------------------------------------------------------------------


def test_code_gives_a_plugin_options() -> None:
    assert said("budget") == DEFAULTS
    assert said(("budget", {"model_calls": 3, "names": ["a"]})) == "3 1.0 False '' ['a']"
    assert said([("budget", {"usd": 2.0})]) == "10 2.0 False '' ()"
    with use(("budget", {"strict": True})):
        assert said() == "10 1.0 True '' ()"


def test_options_of_code_come_before_those_of_the_project() -> None:
    Path("pyproject.toml").write_text("[tool.connectagent.budget]\nmodel_calls = 5\nusd = 5.0\n")
    assert said("budget") == "5 5.0 False '' ()"
    assert said(("budget", {"model_calls": 3})) == "3 5.0 False '' ()"


def test_a_plugin_with_options_is_shadowed_and_left_out_by_its_name() -> None:
    assert said(("shadow:budget", {"usd": 3.0})) == "Done."
    assert said(shadow(("budget", {"usd": 3.0}))) == "Done."
    assert said(("budget", {"usd": 3.0}), "no:budget") == "Done."
    with pytest.raises(PluginError, match="'budget' is named twice"):
        said(("budget", {"usd": 3.0}), "budget")


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (("budget", {"model_cals": 3}), r"has no option 'model_cals'\. Did you mean 'model_calls'\? It takes: m"),
        (("budgt", {"usd": 3}), r"no plugin 'budgt' is installed .*Did you mean 'budget'"),
        (("no:budget", {"usd": 3}), "a plugin with options is"),
        (("budget", {3: 3}), "a plugin with options is"),
        (("./budget.py", {"usd": 3}), "is a file, and takes no options"),
        (("module", {"usd": 3}), "takes no options: it is a module"),
    ],
)
def test_wrong_options_are_refused(item: Any, problem: str, site: Callable[..., None]) -> None:
    site("module", "from connectagent import on_complete\n@on_complete\ndef show(): ...\n")
    with pytest.raises(PluginError, match=problem):
        said(item)


def test_a_required_option_may_be_given_in_code(site: Callable[..., None]) -> None:
    site("needy", BUDGET.replace("model_calls: int = 10", "model_calls: int"), ":Budget")
    assert said(("needy", {"model_calls": 3})).startswith("3 ")
    with pytest.raises(PluginError, match=r"needs the option 'model_calls': .*plugins=\[\('needy', \{'model_calls': "):
        said("needy")


def test_the_project_does_not_set_options_of_a_guard_that_code_names(site: Callable[..., None]) -> None:
    guard = "from connectagent import before_each_tool\nclass Guard:\n    def __init__(self, allow=()): ...\n"
    site("guard", guard + "    @before_each_tool\n    def guard(self): ...\n", ":Guard")
    Path("pyproject.toml").write_text('[tool.connectagent.guard]\nallow = ["rm"]\n')
    for item in ("guard", ("guard", {"allow": []})):
        with pytest.raises(PluginError, match=r"options to plugin 'guard', .*plugins=\[\('guard', \{\.\.\.\}\)\]"):
            said(item)
    assert "gives options to plugin 'guard'" in str(run("-p", "guard:allow=[]", plugins='["guard"]').exception)


def test_the_project_does_not_set_options_of_a_guard_that_the_command_line_names(site: Callable[..., None]) -> None:
    for name, hook, body in (("guard", "before_each_tool", "..."), ("meter", "around_tool", "yield")):
        text = f"from connectagent import {hook}\nclass Plugin:\n    def __init__(self, allow=()): ...\n"
        site(name, f"{text}    @{hook}\n    def each(self): {body}\n", ":Plugin")
    options = "[tool.connectagent.guard]\nallow = ['rm']\n[tool.connectagent.meter]\nallow = [1]\n"
    Path("pyproject.toml").write_text(options)
    for given in ("guard", "guard:allow=[]"):
        error = str(run("-p", given).exception)
        assert "gives options to plugin 'guard', which the command line names" in error and "-p guard:OPTION=" in error
    for given in ("shadow:guard", "meter"):
        overrides.pop("plugins")
        assert run("-p", given).exception is None


# -- on the command line -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["-p", "budget"], DEFAULTS),
        (["-p", "budget:model_calls=3,usd=2"], "3 2.0 False '' ()"),
        (["-p", "budget:strict=true,note=3"], "10 1.0 True '3' ()"),
        (["-p", 'budget:names=["a","b"],note=a,b=c'], None),
        (["-p", 'budget:names=["a","b"],note=x: y, z'], "10 1.0 False 'x: y, z' ['a', 'b']"),
        (["-p", "budget:usd=2", "-p", "budget:model_calls=3"], "3 2.0 False '' ()"),
        (["--budget-usd", "2"], "10 2.0 False '' ()"),
        (["--budget-model-calls=3", "--budget-strict", "--quiet"], "3 1.0 True '' ()"),
        (["-p", "budget:usd=5", "--budget-model-calls", "3"], "3 5.0 False '' ()"),
        (["-p", "budget:note=--x", "--budget-usd", "3"], "10 3.0 False '--x' ()"),
        (["--budget-note", "a,b=c", "--"], "10 1.0 False 'a,b=c' ()"),
    ],
)
def test_the_command_line_gives_options(arguments: list[str], wanted: str | None) -> None:
    if wanted is None:
        assert "has no option 'b'" in str(run(*arguments).exception)
    else:
        assert printed(*arguments) == wanted


def test_options_of_the_command_line_come_before_those_of_code_and_of_the_project() -> None:
    Path("pyproject.toml").write_text("[tool.connectagent.budget]\nmodel_calls = 5\nnote = 'project'\n")
    code = '[("budget", {"model_calls": 4, "usd": 4.0})]'
    assert printed("--budget-model-calls", "3", plugins=code) == "3 4.0 False 'project' ()"


def test_a_plan_is_given_options_too() -> None:
    done = CliRunner().invoke(cli, ["plugins", "plan", "--budget-usd", "3"])
    assert "on_complete\n  1. Budget.show of 'budget' 1.0" in done.output and "named by command line" in done.output


def test_the_environment_and_the_project_name_no_options_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_PLUGINS", "budget:usd=100")
    with pytest.raises(PluginError, match="no plugin 'budget:usd=100' is installed"):
        said()
    monkeypatch.delenv("CONNECTAGENT_PLUGINS")
    Path("pyproject.toml").write_text('[tool.connectagent]\nplugins = ["budget:usd=100"]\n')
    with pytest.raises(PluginError, match="no plugin 'budget:usd=100' is installed"):
        said()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-p", "budget:model_cals=3"], "has no option 'model_cals'. Did you mean 'model_calls'?"),
        (["-p", "budget:model_calls=three"], "option 'model_calls' of plugin 'budget' (connectagent-budget 1.0): 't"),
        (["--budget-usdd", "3"], "Did you mean '--budget-usd'?"),
        (["--budgt-usd", "3"], "no option '--budgt-usd'. Did you mean '--budget-usd'?"),
        (["--budget-usd"], "needs a value"),
        (["-p", "./plugin.py:x=3"], "is a file, and takes no options"),
    ],
)
def test_wrong_options_on_the_command_line_are_refused(arguments: list[str], problem: str) -> None:
    done = run(*arguments)
    assert done.exit_code != 0 and problem in f"{done.output} {done.exception}"


def test_an_option_of_a_plugin_of_this_project_that_is_missing_says_how_to_get_the_plugin() -> None:
    name = next((one for one in OFFICIAL if one not in {plugin.name for plugin in installed()}), None)
    if name is None:
        pytest.skip("all plugins of this project are installed")
    done = run(f"--{name}-x", "3")
    assert done.exit_code == 2
    assert f"no option '--{name}-x': the plugin {name} is not installed." in done.output
    assert f"pip install ./plugins/connectagent-{name}" in done.output


# -- required plugins ----------------------------------------------------------------------------


def test_a_plugin_that_requires_another_says_so_when_it_is_missing(site: Callable[..., None]) -> None:
    needs = "from connectagent import on_complete\nrequires = ('budget',)\n@on_complete\ndef costs(): ...\n"
    site("costs", needs)
    assert said("costs", "budget") == said("budget", "costs") == DEFAULTS
    with pytest.raises(PluginError, match=r"'costs' requires plugin 'budget', .*Name it too: plugins=\['budget', "):
        said("costs")
    with pytest.raises(PluginError, match="'costs' requires plugin 'budget'"):
        said("costs", "budget", "no:budget")
    site("far", needs.replace("budget", "otel"))
    with pytest.raises(PluginError, match=r"pip install \./plugins/connectagent-otel"):
        said("far")


def test_an_object_may_require_a_plugin_too() -> None:
    from connectagent import on_complete

    class Costs:
        requires = "budget"

        @on_complete
        def costs(self) -> None: ...

    assert said(Costs(), "budget") == DEFAULTS
    with pytest.raises(PluginError, match="'Costs' requires plugin 'budget'"):
        said(Costs())


def test_one_plugin_twice_is_an_error() -> None:
    from connectagent import on_complete

    class Costs:
        @on_complete
        def costs(self) -> None: ...

    one = Costs()
    with pytest.raises(PluginError, match="is listed twice"):
        said(one, one)
    with pytest.raises(PluginError, match="named twice"):
        said("budget", "connectagent-budget")
