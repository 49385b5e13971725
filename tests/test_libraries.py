"""A library of connectagent that is missing, too old or broken is told with the command that repairs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from connectagent import Agent, ConfigError
from connectagent.cli import core_check
from connectagent.errors import LIBRARIES, library_problem
from connectagent.hooks.distributions import way_out
from connectagent.hooks.entry_points import Installed

ROOT = Path(__file__).parents[1]


def broken(folder: Path, module: str, code: str = "from pydantic_core import no_such_name") -> dict[str, str]:
    """The environment of a process in which a module cannot be imported."""
    (folder / "stubs" / module).mkdir(parents=True)
    (folder / "stubs" / module / "__init__.py").write_text(code)
    path = f"{folder / 'stubs'}{os.pathsep}{ROOT}"
    return {**os.environ, "PYTHONPATH": path, "CONNECTAGENT_DIR": str(folder / ".co")}


def ran(folder: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def test_the_libraries_are_those_that_the_project_requires() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert sorted(LIBRARIES.values()) == project["dependencies"]


@pytest.mark.parametrize(("model", "module"), [("openai/gpt-5", "openai"), ("anthropic/claude", "anthropic")])
def test_a_model_call_without_its_sdk_says_what_to_install(
    model: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    agent = Agent("a", model=model, api_key="another-key", log=False, quiet=True)
    with pytest.raises(ConfigError, match=f"{module} cannot be imported: .*pip install --force-reinstall '{module}>="):
        agent.input("Hello")


def test_tools_and_types_without_pydantic_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(a: int) -> int:
        """Add."""
        return a

    for module in ("pydantic", "docstring_parser"):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ConfigError, match=f"{module} cannot be imported"):
            Agent("a", tools=[add], model="offline", log=False, quiet=True)
        monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(ConfigError, match="pydantic cannot be imported"):
        Agent("a", output=list[int], model="offline", log=False, quiet=True).input("Hello")


def test_an_import_that_fails_inside_a_library_is_of_that_library() -> None:
    try:
        from pydantic_core import no_such_name  # noqa: F401
    except ImportError as error:
        assert library_problem(error) is None  # a name that no library of this package has, from a test
    assert "Install it again" in str(library_problem(ModuleNotFoundError("no", name="rich.console")))
    assert library_problem(ModuleNotFoundError("no", name="somebody")) is None


@pytest.mark.parametrize("module", ["click", "pluggy", "rich", "pydantic"])
def test_a_command_with_a_broken_library_says_so_in_a_line(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / ".co"))
    Agent("a", model="offline", log=True, quiet=True).input("Hello")
    command = ["log", "show", "last"] if module == "rich" else ["demo"]  # which does without rich
    done = ran(tmp_path, broken(tmp_path, module), "-m", "connectagent", *command)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    told = done.stderr.splitlines()[0]
    assert told.startswith(f"error: {module} cannot be imported: cannot import name 'no_such_name'")
    assert told.endswith(f"Install it again: pip install --force-reinstall '{LIBRARIES[module]}'")


def test_a_program_without_pluggy_is_told_at_its_import(tmp_path: Path) -> None:
    done = ran(tmp_path, broken(tmp_path, "pluggy"), "-c", "from connectagent import Agent")
    assert done.stderr.splitlines()[-1].startswith("ImportError: pluggy cannot be imported: cannot import name")


def test_the_doctor_finds_what_cannot_be_imported_and_goes_on(tmp_path: Path) -> None:
    environment = broken(tmp_path, "openai", "import os; os._exit(3)")
    broken(tmp_path, "genai_prices", "1 / 0")
    done = ran(tmp_path, environment, "-m", "connectagent", "plugins", "doctor", "--json")
    lines = json.loads(done.stdout)["problems"]
    assert done.returncode == 1 and len(lines) == 2
    assert any("openai cannot be imported: exit code 3. Install it again: pip install" in line for line in lines)
    assert any("genai_prices cannot be imported: ZeroDivisionError" in line for line in lines)


def test_the_doctor_finds_what_is_missing_or_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"click": "8.1.8", "rich": "13.7rc1", "pluggy": None}

    def version(name: str) -> str:
        if there.get(name, "99") is None:
            raise PackageNotFoundError(name)
        return str(there.get(name, "99"))

    monkeypatch.setattr(core_check, "version", version)
    monkeypatch.setattr(core_check, "_first_broken", lambda modules: ("", ""))
    again = "Install it again: pip install --force-reinstall"
    assert core_check.core_problems() == [
        f"connectagent needs click>=8.2, and 8.1.8 is installed. {again} 'click>=8.2'",
        f"connectagent needs pluggy>=1.7, which is not installed. {again} 'pluggy>=1.7'",
    ]
    assert core_check._order("2.10.1") > core_check._order("2.9.9") and core_check._order("8.2") == [8, 2, 0, 0]


def test_a_hint_names_only_what_the_distribution_of_a_plugin_requires() -> None:
    def told(module: str, requires: list[str] | None) -> str:
        entry: Any = SimpleNamespace(value="my_plugin:thing", name="mine")
        entry.dist = SimpleNamespace(requires=requires, name="connectagent-mine")
        plugin = Installed(entry, "connectagent-mine", "1.0")
        return way_out(plugin, ModuleNotFoundError("no", name=module))

    assert "pip install 'Some.Thing<3,>=2'; or" in told("some_thing.part", ["connectagent", "Some.Thing<3,>=2 ; x"])
    for requires in (["connectagent"], None):
        hint = told("somethingelse", requires)
        assert "pip install" not in hint and hint.startswith("connectagent-mine requires nothing named somethingelse")
