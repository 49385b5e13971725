"""The tutorial for plugin authors, run from first to last; and a new package, from nothing to installed and listed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from fresh_environment import OFFLINE, Environment

from connectagent.hooks.specs import HOOKS

TUTORIAL = Path(__file__).parents[2] / "plugins" / "README.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"[Ii]n\s+`([^`]+\.(?:py|toml))`:\s*\Z")
QUIET = {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
WIDTH = 80  # of the terminal that the tutorial shows


class Step(NamedTuple):
    """A file to be written, or a command and what it prints."""

    line: int
    path: str
    text: str


def steps() -> list[Step]:
    """What the tutorial does, in its order: `sh` blocks are shown only."""
    text, found = TUTORIAL.read_text("utf-8"), []
    for block in BLOCK.finditer(text):
        line, kind, body = text[: block.start()].count("\n") + 1, block[1], block[2]
        if kind in ("python", "toml"):
            named = NAMED.search(text[: block.start()])
            assert named, f"line {line}: which file is this block? End the text before it with: In `name.py`:"
            found.append(Step(line, named[1], body))
        elif kind == "console":
            for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                found.append(Step(line, "", part))
    return found


def plain(text: str, folder: Path) -> list[str]:
    """Lines without what differs from run to run: times, places, the version of Python."""
    text = text.replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")
    text = re.sub(r"python3[.\d]*/", "python3/", text)
    text = re.sub(r"_\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\S*", "_WHEN", text)
    text = re.sub(r" +\d+(\.\d+)?(ms|s)$", " TIME", text, flags=re.MULTILINE)
    text = re.sub(r" +(\d+ calls?) TIME$", r" \1 TIME", text, flags=re.MULTILINE)
    text = re.sub(r"\d+\.\d+ ms$|\d+(\.\d+)?s$", "TIME", text, flags=re.MULTILINE)
    text = re.sub(r"(^|[^\S\n])0\.1\.0\b", r"\1VERSION", text)
    return [line.rstrip() for line in text.rstrip("\n").split("\n")] if text.strip() else []


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = Environment(tmp_path_factory.mktemp("tutorial"), checkout=False)
    made.install_checkout()
    return made


def variables(environment: Environment, home: Path) -> dict[str, str]:
    path = f"{environment.bin}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(home), "COLUMNS": str(WIDTH), "LC_ALL": "C.UTF-8", **QUIET, **OFFLINE}


def test_every_step_of_the_tutorial_does_what_it_shows(environment: Environment) -> None:
    folder = here = environment.folder
    (folder / "agent.py").unlink(missing_ok=True)
    for step in steps():
        if step.path:
            (folder / step.path).write_text(step.text, "utf-8")
            continue
        command, _, shown = step.text.partition("\n")
        if command.startswith("cd "):
            here = (here / command[3:]).resolve()
            continue
        done = subprocess.run(
            command,
            shell=True,
            cwd=here,
            env=variables(environment, folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert plain(done.stdout, folder) == plain(shown, folder), f"{TUTORIAL}:{step.line}: $ {command}\n{done.stdout}"


def test_the_first_plugin_of_the_tutorial_has_eleven_lines() -> None:
    (first,) = [step.text for step in steps() if step.path == "limit.py"]
    assert len(first.splitlines()) == 11


def test_the_tutorial_names_only_hooks_that_there_are() -> None:
    named = re.findall(r"@(\w+)", TUTORIAL.read_text("utf-8"))
    assert named and set(named) <= set(HOOKS)


def test_two_commands_make_a_plugin_that_is_installed_listed_and_tested(
    environment: Environment, tmp_path: Path
) -> None:
    def run(*command: str) -> str:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=variables(environment, tmp_path),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    new = run("connectagent", "plugins", "new", "night-owl", "--hooks", "after_llm,around_tool,on_complete")
    install = new.splitlines()[-1].removeprefix("now: ").split()  # what it says is what is to be done
    assert run(*install) == "night-owl 0.1.0  ok  after_llm, on_complete, around_tool\n"
    row = environment.listed()["connectagent-night-owl"]
    assert (row["name"], row["status"], row["error"]) == ("night-owl", "ok", None)
    offline = {"no_proxy": "", "https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    tests = subprocess.run(
        [environment.python, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / "connectagent-night-owl",
        env={**variables(environment, tmp_path), **offline},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert tests.returncode == 0 and " passed" in tests.stdout, tests.stdout
    assert run("connectagent", "plugins", "plan").count("night_owl") == 0  # installed is not named
    (tmp_path / "pyproject.toml").write_text('[tool.connectagent]\nplugins = ["night-owl"]\n')
    assert run("connectagent", "plugins", "plan").count("of 'night-owl' 0.1.0") == 3
    assert run("connectagent", "plugins", "uninstall", "night-owl") == "uninstalled: connectagent-night-owl\n"
