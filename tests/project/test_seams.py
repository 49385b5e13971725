"""Who may know whom is said by types: what the rooms of agents and of the loop take of each other is not `Any`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import connectagent

PACKAGE = Path(connectagent.__file__).parent
SEAMS = ("agent", "turn", "host", "log", "conversation", "session", "boundary", "runtime", "call", "body")
FILES = sorted([*PACKAGE.glob("agents/*.py"), *PACKAGE.glob("loop/*.py"), PACKAGE / "frame.py"])


def untyped(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The parameters and attributes at the seams whose type is `Any`: line and name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.arg in SEAMS and _is_any(node.annotation):
            yield node.lineno, node.arg
        if isinstance(node, ast.AnnAssign) and _is_any(node.annotation):
            name = ast.unparse(node.target).rpartition(".")[2]
            if name in SEAMS:
                yield node.lineno, name


def _is_any(annotation: ast.expr | None) -> bool:
    return annotation is not None and ast.unparse(annotation) == "Any"


def test_agents_turns_and_what_they_have_are_not_typed_any_in_the_loop_and_above() -> None:
    found = [(path.name, *one) for path in FILES for one in untyped(ast.parse(path.read_text("utf-8")))]
    assert found == []


def test_a_seam_that_is_typed_any_is_found() -> None:
    method = "    def f(self, agent: Any, value: Any, host: Host) -> None:\n        self.log: Any = 1\n"
    text = f"class A:\n    turn: Any\n{method}"
    assert sorted(untyped(ast.parse(text))) == [(2, "turn"), (3, "agent"), (4, "log")]
