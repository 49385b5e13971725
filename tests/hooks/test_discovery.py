"""Plugins by name: where they are named, what a name means, and the options that they are given."""

import subprocess
import sys
from pathlib import Path

import pytest
from allowing import allow_here

from connectagent import Agent, ConfigError, PluginError, Retry, on_complete, on_error, use
from connectagent.settings import overrides
from connectagent.testing import ScriptedLLM

ROOT = Path(__file__).parents[2]
MARK = "from connectagent import on_complete\n\n@on_complete\ndef mark(result):\n    return result + '!'\n"
ENDING = """
from connectagent import on_complete

class Ending:
    def __init__(self, text: str = '.', times: int = 1):
        self.ending = text * times

    @on_complete
    def end(self, result):
        return result + self.ending
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed distributions: `site(name, text, value)` adds one; it is the current folder too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_PLUGINS", raising=False)
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    modules = set(sys.modules)

    def add(name, text, value="{module}", distribution=None, group="connectagent"):
        module = f"plugin_{tmp_path.name.replace('-', '_')}_{name.replace('-', '_').replace('.', '_')}"
        (folder / f"{module}.py").write_text(text)
        distribution = distribution or f"connectagent-{name}"
        info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value.format(module=module)}\n")
        monkeypatch.syspath_prepend(str(folder))  # a path of its own: what was read of it before is not asked again
        return module

    yield add
    for name in set(sys.modules) - modules:
        if name.startswith("plugin_"):
            del sys.modules[name]


def said(**arguments):
    return Agent("a", llm=ScriptedLLM("hello"), log=False, quiet=True, **arguments).input("x")


@pytest.mark.parametrize("name", ["my-mark", "My_Mark", "my.mark", "connectagent-my-mark", "ConnectAgent_My--Mark"])
def test_a_name_is_the_entry_point_s_or_the_distribution_s_in_any_spelling(name, site):
    site("my-mark", MARK)
    assert said(plugins=[name]) == "hello!"


def test_installing_makes_available_and_naming_makes_it_act(site):
    module = site("mark", MARK)
    assert said() == "hello"
    assert module not in sys.modules


def test_an_unknown_name_is_an_error_with_a_suggestion(site):
    site("approve", MARK)
    with pytest.raises(PluginError, match=r"no plugin 'aprove' is installed .*Did you mean 'approve'\?"):
        said(plugins=["aprove"])


def test_the_project_and_the_environment_name_plugins_for_every_agent(site, monkeypatch):
    site("mark", MARK)
    site("ending", ENDING, "{module}:Ending")
    Path("pyproject.toml").write_text("[tool.connectagent]\nplugins = ['mark']\n")
    monkeypatch.setenv("CONNECTAGENT_PLUGINS", " ending , connectagent-mark")
    assert said() == "hello!."
    assert said(plugins=["no:mark"]) == "hello."
    assert said(plugins=["mark"]) == "hello.!"


def test_a_file_that_the_project_names_is_found_from_the_project_s_folder(site, monkeypatch, tmp_path):
    Path("pyproject.toml").write_text("[tool.connectagent]\nplugins = ['./marks.py']\n")
    Path("marks.py").write_text(MARK)
    allow_here(monkeypatch, tmp_path / "state")
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    assert said() == "hello!"


@pytest.mark.parametrize("value", ["'mark'", "[1]", "['']"])
def test_plugins_of_a_project_are_a_list_of_names(value, site):
    Path("pyproject.toml").write_text(f"[tool.connectagent]\nplugins = {value}\n")
    with pytest.raises(ConfigError, match=r"pyproject.toml: .* plugins is a list of names"):
        said()


@on_complete
def shout(result):
    return result.upper()


def test_use_is_for_every_agent_until_it_is_taken_back(site):
    site("mark", MARK)
    with use(shout), use("mark"):
        assert said() == "HELLO!"
        assert said(on_events=[shout]) == "HELLO!"
    assert said() == "hello"
    used = use(shout)
    try:
        assert said() == "HELLO"
    finally:
        used.stop()
    assert said() == "hello"


def test_naming_a_plugin_twice_for_one_agent_is_an_error(site):
    site("ending", ENDING, "{module}:Ending")
    with pytest.raises(PluginError, match="named twice"):
        said(plugins=["ending", "connectagent-ending"])


def test_a_class_is_made_for_each_agent_with_its_options(site):
    site("ending", ENDING, "{module}:Ending")
    assert said(plugins=["ending"]) == "hello."
    Path("pyproject.toml").write_text("[tool.connectagent.ending]\ntext = '?'\ntimes = 3\n")
    assert said(plugins=["ending"]) == "hello???"
    assert said() == "hello"
    agents = [Agent("a", plugins=["ending"], log=False, quiet=True) for _ in range(2)]
    first, second = (agent.hooks.handlers("on_complete")[0].function.__self__ for agent in agents)
    assert first is not second


def test_an_unknown_option_is_told_with_its_file_and_the_one_that_was_meant(site, tmp_path):
    site("ending", ENDING, "{module}:Ending")
    site("mark", MARK)
    Path("pyproject.toml").write_text("[tool.connectagent.ending]\ntxt = '?'\n[tool.connectagent.mark]\na = 1\n")
    with pytest.raises(PluginError, match=r"pyproject.toml: .*unknown option 'txt'. Did you mean 'text'\?") as told:
        said(plugins=["ending"])
    assert str(tmp_path) in str(told.value)
    assert str(told.value).endswith("takes: text, times\nCorrect it there, or leave the plugin out: -p no:ending")
    with pytest.raises(PluginError, match=r"takes no options: .*\nRemove them, or leave the plugin out: -p no:mark$"):
        said(plugins=["mark"])


def test_an_option_that_is_needed_and_missing_is_told(site):
    site("ending", ENDING.replace("text: str = '.'", "text: str"), "{module}:Ending")
    with pytest.raises(PluginError, match="needs the option 'text'"):
        said(plugins=["ending"])


PROVIDER = (
    "from connectagent import register_models\nfrom connectagent.testing import ScriptedLLM\n\n"
    "@register_models\ndef bring():\n    return {'PREFIX': lambda name: ScriptedLLM(name)}\n"
)


def test_a_model_is_found_without_naming_the_plugin_and_nothing_else_is_loaded(site):
    declared = site("told", PROVIDER.replace("PREFIX", "told"), group="connectagent.models")
    other = site("other", PROVIDER.replace("PREFIX", "other"))
    assert Agent("a", model="told/x", log=False, quiet=True).input("?") == "told/x"
    assert declared in sys.modules
    assert other not in sys.modules
    assert Agent("a", model="other/x", log=False, quiet=True).input("?") == "other/x"


def test_a_retry_finds_the_model_of_an_installed_plugin(site):
    site("spare", PROVIDER.replace("PREFIX", "spare").replace("ScriptedLLM(name)", "ScriptedLLM('saved', model=name)"),
         group="connectagent.models")  # fmt: skip

    @on_error
    def elsewhere():
        return Retry(model="spare/one")

    llm = ScriptedLLM(OSError("no wire"))
    agent = Agent("a", llm=llm, plugins=[elsewhere], log=False, quiet=True)
    assert agent.input("x") == "saved"
    assert [entry["model"] for entry in agent.current_session["trace"] if entry["type"] == "llm_call"] == [
        "scripted",
        "spare/one",
    ]


def test_a_broken_plugin_does_not_change_what_is_said_of_an_unknown_model(site):
    site("broken", "raise OSError('no disk')")
    with pytest.raises(ConfigError, match="unknown provider 'nobody'"):
        Agent("a", model="nobody/x", log=False)


def test_a_broken_plugin_whose_model_is_used_is_told(site):
    site("mine", "raise OSError('no disk')", group="connectagent.models")
    with pytest.raises(PluginError, match=r"'mine' \(connectagent-mine 1.0\) cannot be loaded: OSError: no disk"):
        Agent("a", model="mine/x", log=False)


def test_an_option_that_a_plugin_refuses_is_told_without_advice_to_install_it(site):
    text = "from connectagent import ConfigError\ndef made(much=1):\n    raise ConfigError('less than 9, not 10')"
    site("mine", text, "{module}:made")
    with pytest.raises(PluginError) as refused:
        Agent("a", model="offline", plugins=[("mine", {"much": 10})], log=False)
    assert str(refused.value) == (
        "plugin 'mine' (connectagent-mine 1.0): less than 9, not 10; without it: -p no:mine"
    )


def test_without_a_plugin_named_an_agent_reads_no_entry_points():
    code = (
        "import importlib.metadata as m\n"
        "def refuse(*a, **k): raise SystemExit('entry points were read')\n"
        "m.entry_points = refuse\n"
        "from connectagent import Agent\n"
        "Agent('a', model='offline', log=False)\nAgent('b', model='gpt-5', plugins=['no:console'], log=False)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, cwd="/", capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_line_names_plugins_too(site):
    site("mark", MARK)
    overrides["plugins"] = ["mark"]
    try:
        assert said() == "hello!"
    finally:
        del overrides["plugins"]
