"""Plugins that are hostile or broken: what is listed is not imported, and the doctor tries each in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import forked
import pytest

from connectagent import Agent, PluginError
from connectagent.cli import main
from connectagent.hooks import entry_points
from connectagent.testing import ScriptedLLM

ROOT = Path(__file__).parents[2]
GOOD = "from connectagent import on_complete\n\n@on_complete\ndef sign(result):\n    return result + '!'\n"
COMMAND = """
from connectagent import register_commands

@register_commands
def bring(cli):
    import click
    cli.add_command(click.Command("hello", callback=lambda: click.echo("hello")))
"""
SUBCOMMAND = """
from connectagent import register_commands

@register_commands
def bring(cli):
    import click
    cli.add_command(click.Command("shout", callback=lambda: click.echo("HELLO")))
    cli.add_command(click.Command("loudest", callback=lambda: click.echo("loud")), "log loudest")
    cli.add_command(click.Command("log", callback=lambda: click.echo("not this one")))
"""
# What each does when it is imported, and what the doctor says of it.
IMPORTED = {
    "stops": ("class Stop(BaseException):\n    pass\nraise Stop('no more')", "Stop: no more"),
    "generator": ("raise GeneratorExit", "GeneratorExit"),
    "interrupt": ("raise KeyboardInterrupt", "it ended the process"),
    "loops": ("while True:\n    pass", "it took longer than 3 s"),
    "sleeps": ("import signal, time\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(999)", "longer than 3 s"),
    "crashes": ("import ctypes\nctypes.string_at(0)", "it ended the process, by SIGSEGV"),
    "exits": ("import os\nos._exit(0)", "it ended the process, with exit code 0"),
    "recurses": ("def f():\n    f()\nf()", "RecursionError"),
    "talks": ("import os\nos.write(1, b'all well: 1 plugin\\n' * 1000)\nraise OSError('tired')", "OSError: tired"),
    "steers": ("raise OSError('\\x1b[2Jgone')", "OSError: \\x1b[2Jgone"),
}
# What is wrong with the files of each distribution, and what is said of it.
DECLARED = {
    "empty": ({"entry_points.txt": "[connectagent]\nempty =\n"}, "empty = '' names no module"),
    "nonsense": ({"entry_points.txt": "[connectagent]\nnonsense = a b:c!\n"}, "nonsense = 'a b:c!' names no module"),
    "latin": ({"entry_points.txt": b"[connectagent]\nlatin = caf\xe9\n"}, "UnicodeDecodeError"),
    "wordless": ({"entry_points.txt": "[connectagent]\njust a line\n"}, "its entry_points.txt cannot be read"),
    "nameless": ({"METADATA": None}, "nameless-1.0.dist-info has no METADATA"),
    "unnamed": ({"METADATA": "Metadata-Version: 2.1\n"}, "unnamed-1.0.dist-info has no METADATA"),
    "garbled": ({"METADATA": b"Metadata-Version: 2.1\nName: caf\xe9\nVersion: 1\n"}, "has no METADATA"),
}


def install(folder: Path, name: str, text: str, files: dict[str, Any] | None = None, more: str = "") -> None:
    """A distribution with a plugin of one module, which leaves a file when it is imported."""
    ran = folder / f"{name}.imported"
    (folder / f"{name}_plugin.py").write_text(f"open({str(ran)!r}, 'w').close()\n{text}\n")
    info = folder / f"connectagent_{name}-1.0.dist-info"
    info.mkdir()
    whole: dict[str, Any] = {
        "METADATA": f"Metadata-Version: 2.1\nName: connectagent-{name}\nVersion: 1.0\n",
        "entry_points.txt": f"[connectagent]\n{name} = {name}_plugin\n{more}",
        **(files or {}),
    }
    for file, content in whole.items():
        if content is not None:
            (info / file).write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("site")
    install(made, "good", GOOD)
    install(made, "greets", COMMAND, more="[connectagent.commands]\nhello = greets_plugin\n")
    install(made, "kills", IMPORTED["crashes"][0], more="[connectagent.commands]\nboom = kills_plugin\n")
    lines = "shout: Print it in capitals; twice.", "log loudest: The loudest answer."
    group = "".join(f"{line} = shouts_plugin\n" for line in lines)
    install(made, "shouts", SUBCOMMAND, more=f"[connectagent.commands.records]\n{group}")
    group = "[connectagent.commands.loud_things]\nfall: Fall. = falls_plugin\n"
    install(made, "falls", "raise OSError('no disk')", more=group)
    for name, (text, _) in IMPORTED.items():
        install(made, name, text)
    for name, (files, _) in DECLARED.items():
        install(made, name, GOOD, files)
    return made


def co(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    for path in folder.glob("*.imported"):
        path.unlink()
    path = f"{ROOT}{os.pathsep}{folder}"
    return forked.run(
        "-P", "-m", "connectagent", *arguments,
        cwd=folder.parent,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path, "HOME": str(folder.parent), **variables},
        timeout=120,
    )


def imported(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.imported")}


LISTING = [
    ["--help"],
    ["--version"],
    ["plugins", "--help"],
    ["plugins", "list"],
    ["plugins", "list", "--json"],
    ["plugins", "plan"],
    ["hooks"],
    ["log", "--help"],
    ["allow", "--list"],
    ["plugins", "uninstall", "nobody"],
]


@pytest.mark.parametrize("arguments", LISTING, ids=" ".join)
def test_no_command_imports_a_plugin_that_it_does_not_need(arguments: list[str], folder: Path) -> None:
    done = co(folder, *arguments)
    assert done.returncode == (1 if "nobody" in arguments else 0), done.stderr
    assert "Traceback" not in done.stderr
    assert imported(folder) == set()


def test_help_tells_the_commands_that_are_declared(folder: Path) -> None:
    lines = co(folder, "--help").stdout.splitlines()
    assert [line.split(maxsplit=1) for line in lines[-2:]] == [
        ["boom", "Of connectagent-kills 1.0."],
        ["hello", "Of connectagent-greets 1.0."],
    ]
    assert co(folder, "hello").stdout == "hello\n"
    assert imported(folder) == {"greets"}


def test_help_tells_the_lines_of_commands_in_the_sections_that_distributions_name(folder: Path) -> None:
    told = co(folder, "--help").stdout
    records = told.partition("\nRecords:\n")[2].partition("\n\n")[0].splitlines()
    assert records[-1].split(maxsplit=1) == ["shout", "Print it in capitals; twice."]
    assert told.partition("\nLoud things:\n")[2].split("\n")[0].split() == ["fall", "Fall."]
    assert "loudest" not in told
    assert co(folder, "log", "--help").stdout.splitlines()[-1].split(maxsplit=1) == ["loudest", "The loudest answer."]
    assert imported(folder) == set()


def test_a_plugin_adds_commands_to_groups_and_replaces_none(folder: Path) -> None:
    assert co(folder, "shout").stdout == "HELLO\n"
    assert co(folder, "log", "loudest").stdout == "loud\n"
    assert imported(folder) == {"shouts"}
    assert "no command 'loudest'. Did you mean 'connectagent log loudest'?" in co(folder, "loudest").stderr
    assert "not this one" not in co(folder, "log", "--help").stdout


@pytest.mark.parametrize(
    ("typed", "meant"), [("chta", "chat"), ("hlelo", "hello"), ("log loudst", "loudest"), ("plugins tset", "test")]
)
def test_a_mistyped_command_imports_no_plugin(typed: str, meant: str, folder: Path) -> None:
    done = co(folder, *typed.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: no command {typed.split()[-1]!r}. Did you mean {meant!r}?")
    assert imported(folder) == set() and "disk" not in done.stderr


def test_a_plugin_that_cannot_be_imported_is_named_where_its_command_is_asked_for(folder: Path) -> None:
    done = co(folder, "fall")
    assert (done.returncode, done.stdout) == (1, "")
    assert "plugin 'falls' (connectagent-falls 1.0) cannot be loaded: OSError: no disk" in done.stderr


def test_completion_lists_commands_of_plugins_without_importing_them(folder: Path) -> None:
    variables = {"_CONNECTAGENT_COMPLETE": "bash_complete", "COMP_WORDS": "connectagent log lo", "COMP_CWORD": "2"}
    done = co(folder, **variables)
    assert done.stdout == "plain,loudest\n"
    assert imported(folder) == set()


def test_the_list_tells_what_is_wrong_with_the_files(folder: Path) -> None:
    rows = {row["name"]: row for row in json.loads(co(folder, "plugins", "list", "--json").stdout)}
    assert {"good", "greets", "kills", *IMPORTED, *DECLARED} <= set(rows)
    assert {rows[name]["status"] for name in ("good", *IMPORTED)} == {"installed"}
    for name, (_, told) in DECLARED.items():
        assert rows[name]["status"] == "broken" and told in rows[name]["error"], rows[name]
        assert "connectagent plugins uninstall" in rows[name]["way_out"]
    assert (rows["nameless"]["distribution"], rows["nameless"]["version"]) == ("connectagent_nameless", "1.0")


def test_the_doctor_tells_what_becomes_of_each(folder: Path) -> None:
    started = time.monotonic()
    done = co(folder, "plugins", "doctor", "--timeout", "3")
    assert time.monotonic() - started < 60
    assert done.returncode == 1 and done.stderr == ""
    found = {part.split()[0]: part for part in done.stdout.replace("\n    ", " | ").splitlines()}
    assert found["good"] == "good (connectagent-good 1.0): ok" and found["greets"].endswith("): ok")
    for name, (_, told) in {**IMPORTED, **DECLARED, "kills": IMPORTED["crashes"]}.items():
        assert "): broken | " in found[name] and told in found[name], found[name]
    assert "\x1b" not in done.stdout
    last = done.stdout.splitlines()[-1]
    broken = len(IMPORTED) + len(DECLARED) + 2  # kills, falls
    assert last.startswith(f"not well: {broken + 3} plugins, {broken} broken: ")


@pytest.mark.posix("has no groups of processes: what a killed command has started goes on")
def test_no_process_of_the_doctor_is_left(tmp_path: Path) -> None:
    child = "import os, time\nif os.fork() == 0:\n    open({!r}, 'w').write(str(os.getpid()))\n    time.sleep(99)\n"
    note = tmp_path / "child"
    install(tmp_path, "forks", child.format(str(note)) + "time.sleep(99)")
    assert "longer than 1 s" in co(tmp_path, "plugins", "doctor", "--timeout", "1").stdout
    process = int(note.read_text())
    for _ in range(100):
        state = Path(f"/proc/{process}/stat")
        if not state.exists() or state.read_text().split(") ")[1][0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError(f"process {process} is still there")


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.mark.parametrize("name", ["stops", "generator", "recurses", *DECLARED])
def test_a_plugin_that_is_named_and_cannot_be_loaded_is_an_error_of_its_own(name: str, here: Path) -> None:
    with pytest.raises(PluginError, match=rf"plugin '{name}' \(.*1.0\) cannot be loaded: "):
        Agent("a", llm=ScriptedLLM("Hi."), plugins=[name], log=False, quiet=True)


def test_the_others_work_beside_them(here: Path) -> None:
    assert Agent("a", llm=ScriptedLLM("Hi."), plugins=["good"], log=False, quiet=True).input("x") == "Hi.!"


@pytest.mark.parametrize("raised", ["BaseException('no')", "SystemExit(3)"])
def test_a_file_that_raises_anything_is_told_as_its_error(raised: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(f"raise {raised}")
    with pytest.raises(PluginError, match="cannot be loaded: "):
        Agent("a", llm=ScriptedLLM("Hi."), plugins=[str(tmp_path / "bad.py")], log=False, quiet=True)


def test_ctrl_c_while_a_plugin_is_loaded_is_no_error_of_the_plugin(here: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        Agent("a", llm=ScriptedLLM("Hi."), plugins=["interrupt"], log=False, quiet=True)


def test_of_two_distributions_of_one_name_the_first_on_the_path_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in ("one", "two"):
        (tmp_path / number).mkdir()
        install(tmp_path / number, "same", GOOD)
        monkeypatch.syspath_prepend(str(tmp_path / number))
    (plugin,) = entry_points.named("same")
    assert plugin.rivals == () and str(plugin.entry.dist.locate_file("")) == str(tmp_path / "two")  # type: ignore


def test_an_unknown_command_beside_a_plugin_that_raises_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, "stops", IMPORTED["stops"][0])
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["nothing"]) == 2
    told = capsys.readouterr().err
    assert "no command 'nothing'" in told and "stops" not in told
