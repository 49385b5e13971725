"""All plugins of this project: one command installs them, they cost nothing unnamed, and they go together.

The plugins are found by folder. `CONNECTAGENT_ORDERS` says in how many random orders they are listed, each for a few
conversations; with `CONNECTAGENT_ORDERS_ALL=1`, for all of them.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fresh_environment import OFFLINE, ROOT, Environment
from test_wire_agent import agent_for
from wire_driver import ERROR_KINDS, MODES, RETRIED, WIRE, Recording, load, recordings, replay_server
from wire_server import FIXTURES, WireServer, answers_of, conversation

from connectagent import Agent, ConfigError, PluginError, Tool
from connectagent.hooks.entry_points import OFFICIAL

FOLDERS = sorted((ROOT / "plugins").glob("connectagent-*/"))
PROJECTS = {folder.name: tomllib.loads((folder / "pyproject.toml").read_text("utf-8")) for folder in FOLDERS}
NAMED = [folder for folder in FOLDERS if "entry-points" in PROJECTS[folder.name]["project"]]
"""Those that an agent names; the others are libraries, such as engines."""

HEAVY = re.compile(r"xllamacpp|ray|dbos|docker|presidio", re.IGNORECASE)
"""Libraries that `connectagent[all]` does not bring."""

ORDERS = int(os.environ.get("CONNECTAGENT_ORDERS", "5"))
ALL = bool(os.environ.get("CONNECTAGENT_ORDERS_ALL"))

# How a plugin is made where its defaults are not for this test; None leaves it out.
MADE: dict[str, Callable[[Any], Any] | None] = {
    "adk": lambda module: module.adk_callbacks(before_model_callback=lambda **given: None),
    "approve": lambda module: module.Approve(risky=()),  # there is nobody to ask
    "budget": lambda module: module.Budget(model_calls=100),
    "policy": lambda module: module.Policy(text="rules:\n  - allow: '*'\n"),
    "ray": None,  # no plugin of an agent, and its library is large
    "reflect": None,  # it makes model calls of its own, which were not recorded
    "verify": lambda module: module.Verify(lambda agent: None),
}


def modules_of(folder: Path) -> list[str]:
    """The modules and packages that a plugin's distribution installs."""
    tool = PROJECTS[folder.name]["tool"]["setuptools"]
    return [*tool.get("py-modules", ()), *(name.partition(".")[0] for name in tool.get("packages", ()))]


def libraries_of(folder: Path) -> list[str]:
    """The libraries that a plugin requires, by distribution."""
    required = [re.split(r"[^\w.-]", one)[0] for one in PROJECTS[folder.name]["project"]["dependencies"]]
    return [name for name in required if name != "connectagent"]


# -- installing -----------------------------------------------------------------------------------


def test_the_extra_all_names_every_plugin_that_is_not_heavy() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    light = [folder.name for folder in FOLDERS if not any(map(HEAVY.fullmatch, libraries_of(folder)))]
    assert project["optional-dependencies"]["all"] == light
    *others, last = (f"`{folder.name.removeprefix('connectagent-')}`" for folder in FOLDERS if folder.name not in light)
    assert f"all but {', '.join(others)} and {last}." in (ROOT / "docs" / "plugins.md").read_text("utf-8")


def test_a_name_that_is_not_installed_is_known_for_every_plugin() -> None:
    assert [f"connectagent-{name}" for name in OFFICIAL] == [folder.name for folder in FOLDERS]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A fresh environment into which one command has put connectagent and its plugins."""
    folder = tmp_path_factory.mktemp("all")
    made = Environment(folder, checkout=False)
    unused = shutil.ignore_patterns("tests", "examples", "build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "plugins", folder / "plugins", ignore=unused)
    shutil.copytree(ROOT / "connectagent", folder / "connectagent", ignore=unused)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    names = [f"./plugins/{path.name}" for path in FOLDERS]
    done = made.run("-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", ".", *names, **OFFLINE)
    assert done.returncode == 0, done.stderr
    for path in (folder / "connectagent", folder / "plugins", folder / "pyproject.toml"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return made


def test_after_one_command_every_plugin_is_well(installed: Environment) -> None:
    done = installed.co("plugins", "doctor", "--json")
    told = json.loads(done.stdout)
    found = {row["distribution"]: row for row in told["plugins"]}
    named = {folder.name for folder in NAMED}
    assert set(found) == named
    assert {name: row for name, row in found.items() if row["status"] not in ("ok", "needs options")} == {}
    assert found["connectagent-notify"]["error"].startswith("notify: no address; set APPRISE_URLS")
    assert (done.returncode, told["problems"]) == (0, [])


def test_what_is_installed_and_not_named_is_not_imported(installed: Environment) -> None:
    modules = [name for folder in FOLDERS for name in modules_of(folder)]
    code = f"""
import json, sys
from importlib.metadata import packages_distributions
from connectagent import Agent
Agent("a", model="offline", log=False, quiet=True).input("Hello")
brought = packages_distributions()
loaded = {{name.partition(".")[0] for name in sys.modules}}
print(json.dumps([sorted(loaded & set({modules!r})), sorted(one for name in loaded for one in brought.get(name, []))]))
"""
    done = installed.run("-c", code)
    assert done.returncode == 0, done.stderr
    plugins, libraries = json.loads(done.stdout)
    own = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    also_ours = {re.split(r"[^\w.-]", one)[0] for one in own}
    wanted = {name for folder in FOLDERS for name in libraries_of(folder)} - also_ours
    assert plugins == [] and wanted & set(libraries) == set()


def test_a_model_of_a_plugin_is_found_by_its_name(installed: Environment) -> None:
    code = "from connectagent import Agent\nAgent('a', model='local/none.gguf')"
    done = installed.run("-c", code)
    assert "none.gguf cannot be read: No such file" in done.stderr.splitlines()[-1]


# -- together -------------------------------------------------------------------------------------


def plugin_of(folder: Path) -> Any:
    """A plugin as it is made for an agent with all of them; None where it does not go with the others."""
    name = folder.name.removeprefix("connectagent-")
    if name in MADE and MADE[name] is None:
        return None
    module = importlib.import_module(modules_of(folder)[0])
    if make := MADE.get(name):
        return make(module)
    entries = PROJECTS[folder.name]["project"].get("entry-points", {}).get("connectagent", {})
    names = [value.partition(":")[2] for value in entries.values()]
    try:
        return getattr(module, names[0])() if names and names[0] else module
    except (TypeError, ConfigError, PluginError):  # it needs options: give them in `MADE`
        return None


def all_plugins(seed: int) -> list[Any]:
    made = [plugin for folder in NAMED if (plugin := plugin_of(folder)) is not None]
    random.Random(seed).shuffle(made)
    return made


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where plugins keep what they keep."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / ".co"))


def test_most_plugins_are_in_the_orders() -> None:
    assert len(all_plugins(0)) >= len(NAMED) - len([one for one in MADE.values() if one is None]) - 4


@pytest.mark.parametrize("seed", range(ORDERS))
def test_all_plugins_on_one_agent_say_what_was_said_and_send_what_is_taken(seed: int) -> None:
    names = sorted(path.stem for path in FIXTURES.glob("*.json"))
    found = conversation(names[seed % len(names)])

    def result(agent: Any, **_: Any) -> Any:
        return found["results"][agent.current_session["pending_tool"]["id"]]

    with WireServer(*answers_of(found)) as server:
        tools = [Tool(tool["name"], tool["description"], tool["parameters"], result) for tool in found["tools"]]
        address = server.url if found["wire"] == "anthropic" else server.openai_url
        model = f"{found['provider']}/{found['model']}"
        more = {"options": found.get("options"), "plugins": all_plugins(seed), "stream": found["stream"]}
        with Agent("own", tools, model=model, api_key="k", base_url=address, log=False, quiet=True, **more) as agent:
            assert agent.input(found["prompt"]) == found["expect"]["text"]
        assert len(server.requests) == len(found["answers"])


@pytest.mark.skipif(not WIRE.is_dir(), reason=f"the recordings are not here: {WIRE}")
@pytest.mark.parametrize("seed", range(ORDERS))
def test_all_plugins_on_one_agent_run_the_recordings_without_a_refused_request(seed: int) -> None:
    chosen = random.Random(seed)
    paths = [path for path in recordings() if path.stem not in ERROR_KINDS and path.stem not in RETRIED]
    for path in paths if ALL else chosen.sample(paths, 2):
        recording, mode = Recording(load(path)), chosen.choice(MODES)
        with replay_server(path, mode) as server:
            agent = agent_for(recording, server.base_url, mode, [], plugins=all_plugins(seed))
            for turn in recording.data["drive"]["turns"]:
                if turn.get("new_conversation"):
                    agent.reset_conversation()
                agent.input(recording.prompt(turn), max_iterations=len(turn["exchanges"]))
            agent.close()
        assert server.n == len(recording.data["exchanges"]) and server.errors == [], path.stem
