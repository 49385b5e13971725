"""Who may switch off a guard: what code names, only the code and the person at the command line."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import forked
import pytest
from test_discovery import PROVIDER, site  # noqa: F401  a fixture

from connectagent import Agent, PluginError, ToolRejected, before_each_tool, settings, shadow, use
from connectagent.agents.decisions import waiting_in
from connectagent.cli import main
from connectagent.records import read_record
from connectagent.settings import overrides
from connectagent.testing import ScriptedLLM, call

ROOT = Path(__file__).parents[2]
GUARD = """
from connectagent import ToolRejected, before_each_tool

class Guard:
    name = "fence"

    def __init__(self, safe: tuple = ()):
        self.safe = safe

    @before_each_tool
    def refuse(self, tool_call):
        if tool_call.name not in self.safe:
            raise ToolRejected("fenced")
"""


def wipe() -> str:
    """Wipe everything."""
    return "wiped"


@before_each_tool
def my_own(tool_call: Any) -> None:
    raise ToolRejected("mine")


@pytest.fixture
def fence(site: Any) -> Any:  # noqa: F811
    """An installed guard by the name `fence`, and an object of it."""
    site("fence", GUARD, "{module}:Guard")
    scope: dict[str, Any] = {}
    exec(GUARD, scope)
    return scope["Guard"]


def result_of(**arguments: Any) -> str:
    """What the model reads of its call of `wipe`."""
    llm = ScriptedLLM([call("wipe")], "Done.")
    Agent("a", [wipe], llm=llm, log=False, quiet=True, **arguments).input("Go.")
    return str(llm.requests[-1].messages[-1]["content"])


def in_project(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = ", ".join(f'"{name}"' for name in names.split(","))
    Path("pyproject.toml").write_text(f"[tool.connectagent]\nplugins = [{listed}]\n")


def in_folder_above(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_project(names, monkeypatch)
    Path("deeper/still").mkdir(parents=True)
    monkeypatch.chdir("deeper/still")


def in_environment(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_PLUGINS", names)


def on_command_line(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings.overrides, "plugins", names.split(","))


SETTINGS = [in_project, in_folder_above, in_environment]
NAMED_IN_CODE = {
    "trust": lambda fence: {"trust": "strict"},
    "by name": lambda fence: {"plugins": ["fence"]},
    "as an object": lambda fence: {"plugins": [fence()]},
    "a function": lambda fence: {"on_events": [my_own]},
}


@pytest.mark.parametrize("named", NAMED_IN_CODE)
@pytest.mark.parametrize("place", SETTINGS)
def test_settings_do_not_remove_what_code_names(place: Any, named: str, fence: Any, monkeypatch: Any) -> None:
    place("no:trust,no:fence,no:connectagent-fence,no:my-own", monkeypatch) if named == "a function" else place(
        "no:trust,no:fence,no:connectagent-fence", monkeypatch
    )
    assert result_of(**NAMED_IN_CODE[named](fence)).startswith("rejected")


@pytest.mark.parametrize("named", NAMED_IN_CODE)
def test_the_person_at_the_command_line_may_switch_off_what_code_names(
    named: str, fence: Any, monkeypatch: Any
) -> None:
    off = {"trust": "no:trust", "a function": "no:my_own"}.get(named, "no:fence")
    on_command_line(off, monkeypatch)
    assert result_of(**NAMED_IN_CODE[named](fence)) == "wiped"


@pytest.mark.parametrize("place", SETTINGS)
def test_settings_do_not_remove_what_use_names(place: Any, fence: Any, monkeypatch: Any) -> None:
    place("fence,no:fence", monkeypatch)
    with use("fence"):
        assert result_of().startswith("rejected")


@pytest.mark.parametrize("place", SETTINGS)
def test_settings_remove_what_settings_brought(place: Any, fence: Any, monkeypatch: Any) -> None:
    in_project("fence", monkeypatch)
    assert result_of().startswith("rejected")
    Path("pyproject.toml").unlink()
    place("fence,no:fence", monkeypatch)
    assert result_of() == "wiped"


def test_the_environment_removes_what_the_project_brought(fence: Any, monkeypatch: Any) -> None:
    in_project("fence", monkeypatch)
    in_environment("no:fence", monkeypatch)
    assert result_of() == "wiped"


@pytest.mark.parametrize("place", [in_project, in_folder_above])
@pytest.mark.parametrize("named", ["fence", "connectagent-fence"])
def test_a_project_removes_nothing_that_the_environment_brought(
    place: Any, named: str, fence: Any, monkeypatch: Any
) -> None:
    place("no:fence,no:connectagent-fence", monkeypatch)
    in_environment(named, monkeypatch)
    assert result_of().startswith("rejected")
    in_environment(f"{named},no:fence", monkeypatch)
    assert result_of() == "wiped"


@pytest.mark.parametrize("also", ["", "plugins = ['fence']\n"])
def test_a_project_widens_no_guard_that_the_environment_brought(also: str, fence: Any, monkeypatch: Any) -> None:
    Path("pyproject.toml").write_text(f"[tool.connectagent]\n{also}[tool.connectagent.fence]\nsafe = ['wipe']\n")
    in_environment("fence", monkeypatch)
    with pytest.raises(PluginError, match="'fence', which the variable CONNECTAGENT_PLUGINS names"):
        result_of()


@pytest.mark.parametrize("place", SETTINGS)
def test_what_the_command_line_names_stays_too(place: Any, fence: Any, monkeypatch: Any) -> None:
    place("fence,no:fence", monkeypatch)
    on_command_line("fence", monkeypatch)
    assert result_of().startswith("rejected")


@pytest.mark.parametrize("place", SETTINGS)
def test_settings_may_leave_out_built_in_plugins_that_code_does_not_name(
    place: Any, fence: Any, monkeypatch: Any, capsys: Any, tmp_path: Path
) -> None:
    place("no:record,no:textlog,no:console,no:xray", monkeypatch)
    Agent("a", llm=ScriptedLLM("Hi."), trust="strict").input("Go.")
    assert not list(tmp_path.rglob(".co/*"))
    assert capsys.readouterr().err == ""
    Agent("b", llm=ScriptedLLM("Hi."), log="b.log").input("Go.")
    assert Path("b.log").is_file()


@pytest.mark.parametrize("place", SETTINGS)
def test_settings_cannot_turn_a_guard_of_the_code_into_a_shadow(place: Any, fence: Any, monkeypatch: Any) -> None:
    place("shadow:fence", monkeypatch)
    with pytest.raises(PluginError, match="both named and shadowed"):
        result_of(plugins=["fence"])
    assert result_of(plugins=[fence()]).startswith("rejected")


@pytest.mark.parametrize("way", ["plugins", "use"])
def test_options_in_settings_do_not_widen_a_guard_that_code_names(way: str, fence: Any) -> None:
    Path("pyproject.toml").write_text("[tool.connectagent.fence]\nsafe = ['wipe']\n")
    with pytest.raises(PluginError, match=r"\[tool.connectagent.fence\] gives options to plugin 'fence'"):
        if way == "plugins":
            result_of(plugins=["fence"])
        with use("fence"):
            result_of()
    assert result_of(plugins=[fence()]).startswith("rejected")
    assert result_of(plugins=[shadow("fence")]) == "wiped"


def test_options_in_settings_are_for_the_guards_of_settings(fence: Any) -> None:
    Path("pyproject.toml").write_text(
        "[tool.connectagent]\nplugins = ['fence']\n[tool.connectagent.fence]\nsafe = ['wipe']\n"
    )
    assert result_of() == "wiped"


SCRIPT = """
from connectagent import Agent, ToolRejected, before_each_tool
from connectagent.testing import ScriptedLLM, call

def wipe() -> str:
    '''Wipe.'''
    return 'wiped'

@before_each_tool
def my_own(tool_call):
    raise ToolRejected('mine')

agent = Agent('a', [wipe], llm=ScriptedLLM([call('wipe')], 'Done.'), trust='strict', plugins=[my_own])
"""


def co(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return forked.run(
        "-m", "connectagent", *arguments,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(folder), **variables},
        timeout=60,
    )


def test_what_the_command_line_switches_off_is_shown_in_one_line_and_recorded(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(SCRIPT)
    done = co(tmp_path, "run", "--quiet", "-p", "no:trust", "-p", "no:my_own", "agent.py", "Go.")
    assert done.stderr == "connectagent: -p no:my-own -p no:trust switches off what code names: my-own, trust\n"
    (path,) = tmp_path.glob(".co/evals/*.yaml")
    assert read_record(path)["switched_off"] == ["my-own", "trust"]
    assert '"result": "wiped"' in path.read_text()
    done = co(tmp_path, "resume", "--quiet", "-p", "no:trust", str(path), "Again.")
    assert done.stderr == "connectagent: -p no:trust switches off what code names: trust\n"
    (entry,) = [entry for turn in read_record(path)["turns"] for entry in turn["trace"] if entry["type"] == "resumed"]
    assert entry["switched_off"] == ["trust"]


def test_settings_switch_nothing_off_and_nothing_is_shown(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(SCRIPT)
    done = co(tmp_path, "run", "--quiet", "agent.py", "Go.", CONNECTAGENT_PLUGINS="no:trust,no:my_own")
    assert done.stderr == ""
    (path,) = tmp_path.glob(".co/evals/*.yaml")
    assert "switched_off" not in read_record(path)
    assert '"status": "rejected"' in path.read_text()


# -- where settings are read from ------------------------------------------------------------------


def test_the_search_for_settings_ends_at_the_root_of_the_repository(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.connectagent]\nmodel = 'above'\n")
    deep = tmp_path / "repository" / "package"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert settings.project_file() == tmp_path / "pyproject.toml"
    (tmp_path / "repository" / ".git").write_text("gitdir: elsewhere\n")
    assert settings.project_file() is None
    (tmp_path / "repository" / "pyproject.toml").write_text("")
    assert settings.project_file() == tmp_path / "repository" / "pyproject.toml"


@pytest.mark.posix("tells no owner by a number")
@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives folders away")
@pytest.mark.parametrize("strange", ["above", "above/mine", "above/pyproject.toml"])
def test_the_search_for_settings_ends_where_another_owner_begins(
    strange: str, tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "above" / "mine").mkdir(parents=True)
    (tmp_path / "above" / "pyproject.toml").write_text("[tool.connectagent]\nmodel = 'theirs'\n")
    monkeypatch.chdir(tmp_path / "above" / "mine")
    assert settings.setting("model") == "theirs"
    os.chown(tmp_path / strange, 12345, 12345)
    assert settings.project_file() is None and settings.setting("model") is None


# -- what is said of a name that is unknown --------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (in_project, r"\(named by .*pyproject\.toml\)"),
        (in_environment, r"\(named by the environment variable CONNECTAGENT_PLUGINS\)"),
        (on_command_line, r"\(named on the command line\)"),
        (None, r"\(named in code\)"),
    ],
)
def test_an_unknown_plugin_is_told_with_where_it_is_named_and_what_was_meant(
    place: Any, told: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    if place is not None:
        place("aprove", monkeypatch)
    said = rf"no plugin 'aprove' is installed {told}\. Did you mean 'approve'\?"
    with pytest.raises(PluginError, match=said) as error:
        result_of(**({} if place is not None else {"plugins": ["aprove"]}))
    assert "pip install connectagent-aprove" not in str(error.value)


def test_only_plugins_of_this_project_are_advised_to_be_installed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PluginError) as error:
        result_of(plugins=["wether"])
    assert "pip install" not in str(error.value)


SEVERAL = """
from connectagent import Agent, before_llm
class Clock:
    name = "clock"
    @before_llm
    def tell(self): print("tick")
first = Agent("first", llm=None, model="offline", quiet=True, log=False)
second = Agent("second", model="offline", plugins=[Clock()], quiet=True, log=False)
agent = second
def main():
    Agent("third", model="offline", quiet=True, log=False)
    print(second.input("Hi"))
"""


def test_what_the_person_leaves_out_is_of_one_of_the_agents_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(SEVERAL)
    assert "tick" in co(tmp_path, "run", "agents.py").stdout
    done = co(tmp_path, "run", "agents.py", "-p", "no:clock")
    assert done.returncode == 0 and "tick" not in done.stdout, done.stderr
    done = co(tmp_path, "run", "agents.py", "-p", "no:clok")
    assert done.returncode != 0 and "there is no plugin 'clok'" in done.stderr and "Known: " in done.stderr
    assert len(done.stderr.splitlines()) <= 5, done.stderr


PAYS = """
from connectagent import Agent
from connectagent.testing import ScriptedLLM, call

def pay(amount: int) -> str:
    "Pay."
    return f"paid {amount}"

agent = Agent("payer", [pay], llm=ScriptedLLM(*[lambda messages, tools: (
    "Done." if len(messages) > 4 else call("pay", amount=len(messages)))] * 4))
"""
ASKS = """
from connectagent import Pause, before_each_tool

class Asks:
    name = "asks"

    @before_each_tool
    def ask(self, tool_call):
        raise Pause("may I?")
"""


@pytest.mark.parametrize("command", [["resume", "payer"], ["chat", "agent.py", "--resume", "payer"]])
def test_a_session_does_not_go_on_without_the_guard_that_the_command_line_named(
    command: list[str], site: Any, tmp_path: Path  # noqa: F811
) -> None:
    site("asks", ASKS, "{module}:Asks")
    (tmp_path / "agent.py").write_text(PAYS)
    path = os.pathsep.join([str(ROOT), str(tmp_path / "site")])
    asked = co(tmp_path, "run", "agent.py", "Pay.", "-p", "asks", PYTHONPATH=path)
    assert "may I?" in asked.stderr and "paid" not in asked.stdout
    done = co(tmp_path, *command, PYTHONPATH=path)
    assert done.returncode == 2 and "paid" not in done.stdout + done.stderr
    assert "add -p asks, with its options, or go on without it by -p no:asks" in done.stderr
    [record] = (tmp_path / ".co" / "evals").iterdir()

    def approve() -> list[str]:
        return ["--approve", waiting_in(record)[0].id]

    again = co(tmp_path, "resume", "payer", "-p", "asks", *approve(), PYTHONPATH=path)
    assert "paid 1" in again.stdout + again.stderr and "may I?" in again.stderr and "paid 3" not in again.stdout
    over = co(tmp_path, "resume", "payer", "-p", "no:asks", *approve(), PYTHONPATH=path)
    assert "paid 3" in over.stdout + over.stderr


def test_a_session_goes_on_with_another_model_without_the_plugin_that_brought_the_first(
    site: Any, tmp_path: Path  # noqa: F811
) -> None:
    site("told", PROVIDER.replace("PREFIX", "told"), group="connectagent.models")
    (tmp_path / "agent.py").write_text("from connectagent import Agent\nagent = Agent('a')\n")
    path = os.pathsep.join([str(ROOT), str(tmp_path / "site")])
    co(tmp_path, "run", "agent.py", "Hello.", "--model", "told/x", PYTHONPATH=path)
    done = co(tmp_path, "resume", "a", "Again.", "--model", "offline", PYTHONPATH=path)
    assert done.returncode == 0 and "[offline]" in done.stdout, done.stderr


def test_what_one_command_says_is_forgotten_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = dict(overrides)
    (tmp_path / "agents.py").write_text(SEVERAL)
    assert main(["run", "agents.py", "-p", "no:clock", "--model", "offline"]) == 0
    assert overrides == before
