"""Figures of the house, measured on the source alone.

As a script it prints the table: `python tests/support/house_figures.py`.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "connectagent"
SEAMS = frozenset(("agent", "turn", "host", "log", "conversation", "session"))
"""Parameters of these names are objects of the house, whose types are known."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source:
    """One file of the package."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text("utf-8")
        self.tree = ast.parse(self.text)

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def module(self) -> str:
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return ".".join(part for part in parts if part != "__init__")

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def functions(self) -> Iterator[Function]:
        return (node for node in self.nodes if isinstance(node, Function))

    @property
    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in self.nodes if isinstance(node, ast.ClassDef))


@cache
def sources() -> list[Source]:
    return [Source(path) for path in sorted(PACKAGE.rglob("*.py"))]


def lines() -> int:
    """Lines of Python in the package."""
    return sum(source.lines for source in sources())


def lines_without_commands() -> int:
    """The same without `cli/`."""
    return sum(source.lines for source in sources() if not source.path.is_relative_to(PACKAGE / "cli"))


# -- types -------------------------------------------------------------------------------------


def typed_parameters() -> Iterator[tuple[str, str]]:
    """The name and the type of each parameter that has a type."""
    for source in sources():
        for function in source.functions:
            given = function.args
            for parameter in [*given.posonlyargs, *given.args, *given.kwonlyargs]:
                if parameter.annotation is not None:
                    yield parameter.arg, ast.unparse(parameter.annotation)


def any_share() -> float:
    """Per cent of parameters whose type is `Any`."""
    types = [kind for _, kind in typed_parameters()]
    return 100 * types.count("Any") / len(types)


def any_seams() -> int:
    """Parameters whose type is `Any` although their names tell what they are."""
    return sum(kind in ("Any", "Any | None") and name in SEAMS for name, kind in typed_parameters())


# -- classes -----------------------------------------------------------------------------------


def class_names_used_twice() -> list[str]:
    """Names that several classes of the package have."""
    count = Counter(node.name for source in sources() for node in source.classes)
    return sorted(name for name, times in count.items() if times > 1)


@cache
def bases() -> dict[tuple[str, str], list[tuple[str, str]]]:
    """By module and name of a class: its base classes that are the package's own."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for source in sources():
        known: dict[str, tuple[str, str]] = {}
        for node in source.nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("connectagent"):
                known |= {alias.asname or alias.name: (str(node.module), alias.name) for alias in node.names}
        known |= {node.name: (source.module, node.name) for node in source.classes}
        for node in source.classes:
            own = [known[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in known]
            found[source.module, node.name] = [base for base in own if base != (source.module, node.name)]
    return found


@cache
def depth(name: tuple[str, str]) -> int:
    """How many base classes of the package's own are above a class, on the longest way."""
    return max((1 + depth(base) for base in bases().get(name, [])), default=0)


def longest_chain() -> tuple[int, str]:
    """The class with the longest chain of own base classes, itself counted, and how long that is."""
    return max((1 + depth(name), name[1]) for name in bases())


# -- the names of an agent ---------------------------------------------------------------------


def names_of_agent() -> set[str]:
    """The public names that an `Agent` shows: methods, properties and attributes, those of its bases too."""
    todo = [("connectagent.agents.agent", "Agent")]
    found: set[str] = set()
    trees = {source.module: source for source in sources()}
    while todo:
        module, name = todo.pop()
        todo += bases().get((module, name), [])
        (node,) = (node for node in trees[module].classes if node.name == name)
        found |= set(_names_in(node))
    return {name for name in found if not name.startswith("_")}


def _names_in(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
    for inner in ast.walk(node):
        match inner:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


@cache
def pages() -> str:
    """The text of all pages."""
    return "\n".join(path.read_text("utf-8") for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))])


def names_in_no_page() -> list[str]:
    """The names of an agent that no page has as `.name` or as code."""
    said = set(re.findall(r"[.`]([a-z_]\w*)", pages()))
    return sorted(names_of_agent() - said)


# -- statements --------------------------------------------------------------------------------


def parallel_assignments() -> float:
    """Statements like `a, b = x, y` per 1,000 lines."""
    count = sum(
        isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
        for source in sources()
        for node in source.nodes
    )
    return 1000 * count / lines()


def ternaries() -> float:
    """Expressions like `a if x else b` per 1,000 lines."""
    return 1000 * sum(isinstance(node, ast.IfExp) for source in sources() for node in source.nodes) / lines()


def comment_share() -> float:
    """Per cent of lines with a comment."""
    count = 0
    for source in sources():
        tokens = tokenize.generate_tokens(io.StringIO(source.text).readline)
        count += sum(token.type == tokenize.COMMENT for token in tokens)
    return 100 * count / lines()


def letters_of_a_local_name() -> float:
    """The mean length of the names that functions give to values, each name once for a function."""
    names: dict[int, set[str]] = defaultdict(set)
    for source in sources():
        for function in source.functions:
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    names[id(function)].add(node.id)
    return statistics.mean(len(name) for own in names.values() for name in own)


def table() -> dict[str, float]:
    """All figures that are bound, by what they measure."""
    return {
        "lines of Python": lines(),
        "lines of Python without cli/": lines_without_commands(),
        "parameters of type Any, per cent": any_share(),
        "parameters of type Any named as a seam": any_seams(),
        "names of an Agent": len(names_of_agent()),
        "names of an Agent in no page": len(names_in_no_page()),
        "longest chain of own base classes": longest_chain()[0],
        "class names used twice": len(class_names_used_twice()),
        "parallel assignments per 1,000 lines": parallel_assignments(),
        "ternaries per 1,000 lines": ternaries(),
    }


def report() -> str:
    """The table as text, with figures that are reported only: quotas of them would breed filler."""
    reported = {"comments, per cent of lines": comment_share(), "letters of a local name": letters_of_a_local_name()}
    rows = [f"{value:>10,.1f}  {name}" for name, value in (table() | reported).items()]
    rows += [f"{'':10}  the longest chain: {longest_chain()[1]}"]
    rows += [f"{'':10}  names in no page: {', '.join(names_in_no_page())}"]
    rows += [f"{'':10}  names used twice: {', '.join(class_names_used_twice())}"]
    return "\n".join(rows)


if __name__ == "__main__":
    print(report())
