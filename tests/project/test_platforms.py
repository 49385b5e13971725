"""What Windows and macOS lack or do otherwise: nothing is used without a check that it is there."""

from __future__ import annotations

import ast
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from windows.stand_in import LACKING, MODULES

from connectagent.cli import main
from connectagent.records import disk

ROOT = Path(__file__).parents[2]
LINUX_ONLY = {"connectagent_sandbox"}  # it says so where it cannot run
SOURCES = sorted(
    path
    for folder in (ROOT / "connectagent", *(ROOT / "plugins").glob("*/connectagent_*"))
    for path in folder.rglob("*.py")
    if not LINUX_ONLY & set(path.parts)
)


def unguarded(path: Path) -> Iterator[str]:
    """The lines that use what Windows lacks where nothing has asked whether it is there."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if (name := lacking(node)) and not any(asks(one, node, name) for one in above(node, parents)):
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {name}"  # type: ignore[attr-defined]


def lacking(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}" if node.attr in LACKING.get(node.value.id, ()) else None
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return next((name for name in names if name in MODULES), None)


def above(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    while node in parents:
        node = parents[node]
        yield node


def asks(node: ast.AST, used: ast.AST, name: str) -> bool:
    """Whether this node around a use asks whether it is there."""
    if isinstance(node, ast.If | ast.IfExp | ast.BoolOp):
        test = ast.unparse(node if isinstance(node, ast.BoolOp) else node.test)
        return "hasattr" in test or "platform" in test or "os.name" in test
    if isinstance(node, ast.Try):
        caught = " ".join(ast.unparse(handler.type) for handler in node.handlers if handler.type is not None)
        return "ImportError" in caught or "AttributeError" in caught
    if isinstance(node, ast.With):
        entered = " ".join(ast.unparse(item.context_expr) for item in node.items)
        return "suppress" in entered and ("ImportError" in entered or "AttributeError" in entered)
    if isinstance(node, ast.FunctionDef):
        earlier = [one for one in node.body if one.lineno < used.lineno]  # type: ignore[attr-defined]
        leaves = any(isinstance(one, ast.If) and "hasattr" in ast.unparse(one.test) for one in earlier)
        return leaves or "posix" in node.name
    return False


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_that_windows_lacks_is_used_without_asking(path: Path) -> None:
    assert list(unguarded(path)) == []


def test_an_unguarded_use_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    file = tmp_path / "bad.py"
    file.write_text("import os\nimport fcntl\n\n\ndef f(fd):\n    return os.pread(fd, 1, 0)\n")
    assert list(unguarded(file)) == ["bad.py:2: fcntl", "bad.py:6: os.pread"]
    file.write_text("import os\n\n\ndef f(fd):\n    return os.pread(fd, 1, 0) if hasattr(os, 'pread') else b''\n")
    assert list(unguarded(file)) == []


def test_a_file_is_read_from_a_place_where_there_is_no_pread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pread")
    (tmp_path / "file").write_bytes(b"0123456789")
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        assert os.read(fd, 2) == b"01"
        assert disk.read_at(fd, 3, 5) == b"567" and os.read(fd, 2) == b"23"
    finally:
        os.close(fd)


@pytest.mark.posix("has no fcntl")
def test_macos_writes_through_the_drives_own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    called: list[Any] = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, what: called.append(what))
    with (tmp_path / "file").open("w") as file:
        disk.to_disk(file.fileno())
    assert called == [51]


def test_the_view_server_never_asks_for_the_hosts_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from connectagent.cli.view.server import _Handler, _Http

    def slow(name: str = "") -> str:
        raise AssertionError("it asks for the host's name")

    monkeypatch.setattr(socket, "getfqdn", slow)
    _Http(("127.0.0.1", 0), _Handler).server_close()


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/usr/bin/chattr").exists(), reason="root may remove everything")
def test_prune_fails_where_a_record_may_not_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from connectagent import Agent
    from connectagent.testing import ScriptedLLM

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    for _ in range(2):
        Agent("x", llm=ScriptedLLM("Hi."), quiet=True).input("Hello.")
    real = os.unlink

    def unlink(path: Any, **more: Any) -> None:
        if str(path).endswith(".yaml"):
            raise PermissionError(13, "in use", str(path))
        real(path, **more)

    monkeypatch.setattr(os, "unlink", unlink)
    assert main(["log", "prune", "--keep", "1"]) == 1
    assert "stays: it may not be removed" in capsys.readouterr().err


# -- files that were written on Windows, names and paths ------------------------------------------------

BOM = "\ufeff"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a file as editors on Windows do: with a mark in front, and both letters at the end of each line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)

    def write(name: str, text: str) -> Path:
        (tmp_path / name).write_bytes((BOM + text).replace("\n", "\r\n").encode())
        return tmp_path / name

    return write


def test_a_prompt_and_settings_that_were_written_on_windows(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from connectagent import Agent
    from connectagent.settings import setting
    from connectagent.testing import ScriptedLLM

    written("prompt.md", "Be kind.\nBe short.\n")
    written("pyproject.toml", '[tool.connectagent]\nmax_records = 7\n\n[tool.connectagent.approve]\nrisky = ["a"]\n')
    assert Agent("x", llm=ScriptedLLM("Hi."), system_prompt="prompt.md", log=False).system_prompt == (
        "Be kind.\nBe short.\n"
    )
    monkeypatch.delenv("CONNECTAGENT_MAX_RECORDS", raising=False)
    assert setting("max_records") == 7


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "One é\nTwo\n"),
        ("a.jsonl", '{"prompt": "One é"}\n{"prompt": "Two"}\n'),
        ("a.csv", "prompt,x\nOne é,1\nTwo,2\n"),
    ],
)
def test_prompts_that_were_written_on_windows(written: Any, name: str, text: str) -> None:
    from connectagent.commands.prompts import read

    assert [line.prompt for line in read(str(written(name, text)), None)] == ["One é", "Two"]


def test_prompts_from_a_pipe_that_were_written_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from connectagent.commands.prompts import read

    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{BOM}One\r\n{BOM}Two\r\n"))
    assert [line.prompt for line in read("-", None)] == ["One", f"{BOM}Two"]


NAMES = ["CON", "con.txt", "Aux.x", "nul", "COM1", "com¹.a", "LPT9.yaml", "a:b", "a b. ", "a/b\\c", "..", "?*<>|", "é."]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_an_agent_or_a_session_is_one_that_windows_takes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)

    from windows.stand_in import _BAD_NAME

    from connectagent.records.paths import keyed_record, new_record, safe_name

    stem = safe_name(name)
    made = [f"{stem}.log", keyed_record(name, name).name, keyed_record("a", name).name]
    assert not [one for one in made if _BAD_NAME.search(one) or "¹." in one.lower()[:5]], made
    assert safe_name(stem) == stem  # records are found by it
    assert new_record(name, time.gmtime()).name.startswith(f"{stem}_")


def test_sessions_that_differ_in_agent_or_key_have_files_that_differ_where_case_does_not_count() -> None:
    from itertools import product

    from connectagent.records.paths import keyed_record

    long = ("x" * length for length in (99, 120, 130))
    names = ["bot", "Bot", "BOT", "b_t", "b t", "B_T", "böt", "bo\u0308t", "con", "_con", *long]
    keys = ["k", "K", "k.", "k ", "k_", "straße", "STRASSE", "aux", "nul.txt", "y" * 60, "y" * 61, "Y" * 61]
    found = [keyed_record(agent, key).name.casefold() for agent, key in product(names, keys)]
    assert len(set(found)) == len(names) * len(keys)
    assert keyed_record("bot", "k").name == "bot@k.yaml"


@pytest.mark.parametrize("drives", [False, True])
def test_a_script_on_another_drive_is_named_whole(monkeypatch: pytest.MonkeyPatch, drives: bool) -> None:
    from types import ModuleType

    from connectagent.commands.script import shown
    from connectagent.errors import short_path

    def relpath(path: Any, start: Any = None) -> str:
        raise ValueError("path is on mount 'D:', start on mount 'C:'")

    module = ModuleType("agent")
    module.__file__ = os.path.abspath("folder/agent.py")
    if drives:
        monkeypatch.setattr(os.path, "relpath", relpath)
    named = module.__file__ if drives else os.path.join("folder", "agent.py")
    assert (shown(module), short_path(module.__file__)) == (repr(named), named)


def test_a_kept_record_names_a_file_on_another_drive_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import json

    from connectagent.testing.recorded_sessions import _kept_line

    line = '  - {"type": "x", "by": {"plugin": "p", "file": "/d/p.py"}}'

    def relpath(path: Any, start: Any = None) -> str:
        raise ValueError("path is on mount 'D:', start on mount 'C:'")

    monkeypatch.setattr(os.path, "relpath", relpath)
    kept = _kept_line(line, tmp_path, tmp_path)
    assert kept is not None and json.loads(kept[4:])["by"]["file"] == "/d/p.py"


@pytest.mark.parametrize(
    ("system", "gone"), [("nt", True), pytest.param("posix", False, marks=pytest.mark.posix("is no other system"))]
)
def test_a_pipe_without_a_reader_is_an_invalid_argument_on_windows(
    monkeypatch: pytest.MonkeyPatch, system: str, gone: bool
) -> None:
    import errno

    from connectagent.output.terminal import is_gone

    monkeypatch.setattr(os, "name", system)
    assert is_gone(OSError(errno.EINVAL, "Invalid argument")) is gone
    assert not is_gone(OSError(errno.EINVAL, "Invalid argument", "a:b")) and not is_gone(ValueError())
    assert is_gone(BrokenPipeError())
