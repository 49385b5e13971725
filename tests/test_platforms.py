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

ROOT = Path(__file__).parents[1]
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
