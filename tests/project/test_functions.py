"""How long and how branched the functions of the package and its plugins are."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_COMPLEXITY = 15
MAX_LINES = 45  # a fence, not a goal

# The functions above the bounds today, by their numbers, which are exact: mend a function, and take it out here.
COMPLEX: dict[int, str] = {}
LONG = {
    63: "Agent.__init__",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> list[Path]:
    plugins = (path for path in (ROOT / "plugins").glob("*/connectagent_*/**/*.py"))
    modules = (ROOT / "plugins").glob("*/connectagent_*.py")
    return sorted([*(ROOT / "connectagent").rglob("*.py"), *plugins, *modules])


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, Function]]:
    """Every function under a node by its name, with the name of its class before it: "Agent.input"."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield f"{within}{node.name}", node
        yield from functions(node, f"{node.name}." if isinstance(node, ast.ClassDef) else within)


def branches(node: ast.AST) -> int:
    """The decisions that a node itself makes; its children's do not count."""
    match node:
        case ast.BoolOp():
            return len(node.values) - 1
        case ast.comprehension():
            return 1 + len(node.ifs)
        case ast.If() | ast.IfExp() | ast.For() | ast.AsyncFor() | ast.While():
            return 1
        case ast.ExceptHandler() | ast.Assert() | ast.match_case():
            return 1
    return 0


def complexity(function: Function) -> int:
    """McCabe's number of paths, where each operand of `and` and `or` decides too."""
    return 1 + sum(branches(node) for node in ast.walk(function))


def length(function: Function) -> int:
    """Lines from `def` to the end, without the docstring."""
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


@pytest.mark.parametrize(
    ("measure", "bound", "known"),
    [(complexity, MAX_COMPLEXITY, COMPLEX), (length, MAX_LINES, LONG)],
    ids=["complexity", "lines"],
)
def test_no_function_is_above_its_bound(measure: Callable[[Function], int], bound: int, known: dict[int, str]) -> None:
    above = [
        (name, measure(function), f"{path}:{function.lineno}")
        for path in sources()
        for name, function in functions(ast.parse(path.read_text("utf-8")))
        if measure(function) > bound
    ]
    found = sorted((number, name) for name, number, _ in above)
    listed = sorted((number, name) for number, names in known.items() for name in names.split())
    assert found == listed, "\n".join(f"{place} {name}: {number}" for name, number, place in above)


def test_no_file_is_longer_than_600_lines() -> None:
    paths = sources()
    assert len(paths) > 100
    for path in paths:
        assert len(path.read_text("utf-8").splitlines()) <= 600, path


def test_the_complexity_of_a_function_is_one_more_than_its_decisions() -> None:
    source = """
def f(a, b):
    for x in a or b:
        if x and a and b:
            return [y if y else 0 for y in x if y if a]
    try:
        assert a
    except OSError:
        pass
"""
    [(_, function)] = functions(ast.parse(source))
    assert complexity(function) == 1 + 2 + 3 + 4 + 2
