"""A library of connectagent that is missing, too old or broken is told with the command that repairs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
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

ROOT = Path(__file__).parents[2]


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


MEETS = """
import pathlib, time
here = pathlib.Path(__file__).parents[2]
(here / "{own}.there").touch()
for _ in range(1200):
    if (here / "{other}.there").exists():
        break
    time.sleep(0.05)
else:
    raise TimeoutError("the other one is not imported meanwhile")
"""


def test_the_doctor_imports_the_slowest_library_beside_the_others(tmp_path: Path) -> None:
    environment = broken(tmp_path, "anthropic", MEETS.format(own="anthropic", other="openai"))
    broken(tmp_path, "openai", MEETS.format(own="openai", other="anthropic"))
    done = ran(tmp_path, environment, "-m", "connectagent", "plugins", "doctor")
    assert done.returncode == 0, done.stdout


def test_a_library_that_hangs_is_named_and_all_share_one_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("pluggy", "yaml", "rich"):
        broken(tmp_path, module, "import time; time.sleep(600)")
    monkeypatch.syspath_prepend(tmp_path / "stubs")
    monkeypatch.setattr(core_check, "LIMIT_S", 3.0)
    began = time.monotonic()
    told = core_check.core_problems()
    assert time.monotonic() - began < 30
    assert any("pluggy cannot be imported: connectagent's libraries took longer than 3 s" in line for line in told)


@pytest.mark.posix("has no pipes among its files")
@pytest.mark.parametrize("kind", ["pipe", "loop", "huge", "folder", "deep", "sleeps"])
def test_the_doctor_ends_in_any_folder(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "hostile"
    folder.mkdir()
    file = folder / "pyproject.toml"
    if kind == "pipe":
        os.mkfifo(file)
        os.mkfifo(folder / ".co")
    elif kind == "loop":
        file.symlink_to("pyproject.toml")
    elif kind == "huge":
        file.touch()
        os.truncate(file, 1 << 32)
    elif kind == "folder":
        file.mkdir()
    elif kind == "deep":
        deepest = folder.joinpath(*["d" * 100] * 30)
        deepest.mkdir(parents=True)
        folder = deepest
    else:
        for module in ("openai", "anthropic", "yaml", "sitecustomize"):
            (folder / f"{module}.py").write_text("import time; time.sleep(600)")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = ran(folder, environment, "-P", "-m", "connectagent", "plugins", "doctor")  # which ends it after a minute
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr
    assert re.search(r"all well: \d+ plugins?|not well: \d+ plugins?, 1 wrong in the setup", done.stdout)


def test_the_doctor_finds_what_is_missing_or_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"click": "8.1.8", "rich": "13.7rc1", "pluggy": None}

    def version(name: str) -> str:
        if there.get(name, "99") is None:
            raise PackageNotFoundError(name)
        return str(there.get(name, "99"))

    monkeypatch.setattr(core_check, "version", version)
    monkeypatch.setattr(core_check, "_first_broken", lambda modules, until: ("", ""))
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
