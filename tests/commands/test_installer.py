"""`plugins install` and `uninstall` without pip: by uv, or by telling what to run."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from fresh_environment import Environment, wheel

HOOK = "from connectagent import on_complete\n\n@on_complete\ndef sign(result):\n    return result + ' (signed)'\n"
ENTRY = ["connectagent", "sign = sign_plugin"]
# Notes how it was called, and does what uv would do.
UV = """#!{python}
import json, os, shutil, sys, zipfile
from pathlib import Path

with open({notes!r}, "a") as file:
    file.write(json.dumps({{"arguments": sys.argv[1:], "stdin": sys.stdin.read()}}) + "\\n")
if (failure := Path({notes!r}).with_name("failure")).exists():
    print("resolving\\n\\nerror: no solution\\nhint: another version", file=sys.stderr)
    sys.exit(int(failure.read_text()))
site = Path({site!r})
action, names = sys.argv[2], sys.argv[sys.argv.index("--") + 1 :]
for name in names:
    if action == "install":
        zipfile.ZipFile(name).extractall(site)
    else:
        for path in site.glob(name.replace("-", "_") + "-*.dist-info"):
            shutil.rmtree(path)
"""


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """An environment without pip, with a `tools` folder that may be on PATH."""
    made = Environment(tmp_path, pip=False)
    (tmp_path / "tools").mkdir()
    return made


def put_uv(environment: Environment) -> Path:
    notes = environment.folder / "notes.jsonl"
    script = environment.folder / "tools" / "uv"
    script.write_text(UV.format(python=sys.executable, notes=str(notes), site=str(environment.site)))
    script.chmod(0o755)
    return notes


def path_of(environment: Environment) -> str:
    """A PATH on which no real uv is."""
    usual = [folder for folder in os.environ["PATH"].split(os.pathsep) if not (Path(folder) / "uv").exists()]
    return os.pathsep.join([str(environment.folder / "tools"), *usual])


def test_uv_installs_and_uninstalls_into_this_environment(environment: Environment) -> None:
    notes, path = put_uv(environment), path_of(environment)
    made = wheel(environment.folder, "sign", HOOK, ENTRY)
    done = environment.co("plugins", "install", str(made), PATH=path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "sign 1.0  ok  on_complete\n", "")
    done = environment.co("plugins", "uninstall", "sign", PATH=path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "uninstalled: connectagent-sign\n", "")
    calls = [json.loads(line) for line in notes.read_text().splitlines()]
    python = str(environment.python)
    assert [call["arguments"] for call in calls] == [
        ["pip", "install", "--quiet", "--python", python, "--", str(made)],
        ["pip", "uninstall", "--quiet", "--python", python, "--", "connectagent-sign"],
    ]
    assert [call["stdin"] for call in calls] == ["", ""]  # it can ask nobody


def test_a_requirement_that_looks_like_an_option_is_none(environment: Environment) -> None:
    notes = put_uv(environment)
    (environment.folder / "failure").write_text("2")
    done = environment.co("plugins", "install", "--", "--index-url=http://127.0.0.1:9", PATH=path_of(environment))
    assert done.returncode == 1
    assert json.loads(notes.read_text())["arguments"][-2:] == ["--", "--index-url=http://127.0.0.1:9"]


def test_a_uv_that_fails_is_told_with_its_last_lines_and_exit_code(environment: Environment) -> None:
    put_uv(environment)
    (environment.folder / "failure").write_text("7")
    done = environment.co("plugins", "install", "connectagent-nothing", PATH=path_of(environment))
    assert done.returncode == 1 and done.stdout == ""
    assert "failed with exit code 7" in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.rstrip().endswith("error: no solution\nhint: another version")


def test_an_uninstall_that_leaves_the_distribution_is_no_success(environment: Environment) -> None:
    put_uv(environment)
    path = path_of(environment)
    made = wheel(environment.folder, "sign", HOOK, ENTRY)
    assert environment.co("plugins", "install", str(made), PATH=path).returncode == 0
    (environment.folder / "tools" / "uv").write_text("#!/bin/sh\nexit 0\n")
    done = environment.co("plugins", "uninstall", "sign", PATH=path)
    assert done.returncode == 1 and "connectagent-sign is still there" in done.stderr


def test_without_an_installer_the_command_to_run_is_told(environment: Environment) -> None:
    folder = environment.folder / "a place"
    folder.mkdir()
    done = environment.co("plugins", "install", "connectagent-x>=1", "./a place", PATH=path_of(environment))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "neither pip nor uv can be called" in done.stderr
    python = str(environment.python)
    assert f"pip --python {python} install 'connectagent-x>=1' './a place'" in done.stderr  # as a shell reads it


def test_without_an_installer_an_uninstall_tells_its_command_too(environment: Environment) -> None:
    made = wheel(environment.folder, "sign", HOOK, ENTRY)
    shutil.unpack_archive(made, environment.site, "zip")
    done = environment.co("plugins", "uninstall", "sign", PATH=path_of(environment))
    assert done.returncode == 1
    assert f"pip --python {environment.python} uninstall connectagent-sign" in done.stderr
    assert "connectagent-sign" in environment.listed()


def test_a_uv_that_cannot_be_started_is_told(environment: Environment) -> None:
    script = environment.folder / "tools" / "uv"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    done = environment.co("plugins", "install", "connectagent-x", PATH=path_of(environment))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "cannot be started" in done.stderr
