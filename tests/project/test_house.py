"""The house: which module may import which, and what importing costs."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import pytest

import connectagent
from connectagent import hooks
from connectagent.hooks import specs

PACKAGE = Path(connectagent.__file__).parent
PLUGINS = sorted(path.parent for path in PACKAGE.parent.glob("plugins/*/connectagent_*/__init__.py"))
# The floors, from the ground up: a room imports only from rooms below it, also for types and inside functions.
FLOORS = [
    ["stop_reasons", "lazy"],
    ["data"],
    ["errors", "frame"],
    ["session", "tools", "settings"],
    ["hooks", "output"],
    ["records", "models"],
    ["loop"],
    ["agents"],
    ["replay"],
    ["builtin", "testing", "__init__"],
    ["commands"],
    ["cli"],
    ["__main__"],
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
# How many imports do not keep to the floors yet. The numbers are exact: whoever cuts an import lowers its number.
UPWARD: dict[tuple[str, str], int] = {}
HEAVY = ("openai", "anthropic", "pydantic", "rich", "yaml", "click", "prompt_toolkit")
# What `from connectagent import Agent` leaves for those who need it: see benchmarks/imports.py.
LATER = (
    *HEAVY,
    *("asyncio", "csv", "datetime", "difflib", "email", "hashlib", "importlib.metadata", "mimetypes", "platform"),
    *("random", "secrets", "shutil", "socket", "sqlite3", "tempfile", "textwrap", "tomllib", "uuid", "zipfile"),
    *(f"connectagent.{name}" for name in ("agents.resume", "agents.workflows", "builtin", "cli", "commands")),
    *(f"connectagent.{name}" for name in ("replay", "testing")),
    *("connectagent.hooks.distributions", "connectagent.settings.allowed"),
    *(f"connectagent.models.{name}" for name in ("anthropic", "content", "failures", "offline", "openai", "sdk")),
    *(f"connectagent.models.{name}" for name in ("anthropic_cache", "attempts", "files", "openai_stream", "responses")),
    *(f"connectagent.records.{name}" for name in ("find", "follow", "history", "lines", "read", "retention")),
    *(f"connectagent.{name}" for name in ("agents.awaited", "loop.caller", "loop.threads", "tools.loops")),
    "connectagent.records.summary",
    "connectagent.session.entries",
)

Graph = dict[str, set[str]]


def sources() -> dict[str, Path]:
    """The modules of the package by name: "agent", "cli.log.show", and "" for the package itself."""
    names = {path: path.relative_to(PACKAGE).with_suffix("").parts for path in sorted(PACKAGE.rglob("*.py"))}
    return {".".join(part for part in parts if part != "__init__"): path for path, parts in names.items()}


def room(module: str) -> str:
    return module.split(".")[0] or "__init__"


def home(name: str, modules: Collection[str]) -> str:
    """The module that "agent.Agent", "agent" or the public name "Agent" belongs to."""
    if name in modules:
        return name
    parent, _, last = name.rpartition(".")
    return parent or connectagent._MODULES.get(last, "")


def imports(tree: ast.AST) -> Iterator[str]:
    """What a module imports anywhere, for types only and inside functions too: modules, and names in them."""
    for node in ast.iter_child_nodes(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            names = [f"{node.module}.{name}" for name in names]
        yield from names
        yield from imports(node)


def imported(tree: ast.AST, modules: Collection[str]) -> set[str]:
    """The modules of this package that a module imports."""
    return {home(name.partition(".")[2], modules) for name in imports(tree) if name.split(".")[0] == "connectagent"}


def graph_of(package: Path) -> Graph:
    """The modules of a plugin's package that each of them imports."""
    files = {path: path.relative_to(package.parent).with_suffix("").parts for path in sorted(package.rglob("*.py"))}
    modules = {".".join(parts).removesuffix(".__init__"): path for path, parts in files.items()}
    edges: Graph = {}
    for module, path in modules.items():
        names = imports(ast.parse(path.read_text("utf-8")))
        found = {name if name in modules else name.rpartition(".")[0] for name in names}
        edges[module] = found & set(modules) - {module}
    return edges


@cache
def graph() -> Graph:
    """The modules that each module imports. What the package itself hands on are names, which nothing is built on."""
    modules = sources()
    trees = {module: ast.parse(path.read_text("utf-8")) for module, path in modules.items()}
    edges = {module: imported(tree, modules) - {module} for module, tree in trees.items()}
    return {**edges, "": set()}


def reachable(module: str, edges: Graph) -> set[str]:
    found: set[str] = set()
    ahead = [module]
    while ahead:
        new = edges[ahead.pop()] - found
        found |= new
        ahead += new
    return found


def circles(edges: Graph) -> list[set[str]]:
    """The groups of modules in which each reaches each other by imports; the largest first."""
    ways = {module: reachable(module, edges) for module in edges}
    groups = {frozenset(other for other in ways[module] if module in ways[other]) for module in edges}
    return sorted((set(group) for group in groups if group), key=len, reverse=True)


def test_every_room_has_its_floor() -> None:
    assert {room(module) for module in sources()} == set(FLOOR)


def test_a_room_imports_from_rooms_below_it_only() -> None:
    edges = [(module, other) for module, others in graph().items() for other in others]
    upward = [(a, b) for a, b in edges if room(a) != room(b) and FLOOR[room(a)] <= FLOOR[room(b)]]
    count = Counter((room(a), room(b)) for a, b in upward)
    assert count == UPWARD, "\n".join(sorted(f"{room(a)} -> {room(b)}: {a} imports {b}" for a, b in upward))


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(graph()) == []


@pytest.mark.parametrize("package", PLUGINS, ids=lambda package: package.name)
def test_no_modules_of_a_plugin_import_each_other_in_a_circle(package: Path) -> None:
    assert circles(graph_of(package)) == []


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = f"import sys, connectagent; print([name for name in {HEAVY} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_importing_the_agent_loads_no_module_that_only_some_programs_need() -> None:
    code = f"import sys\nfrom connectagent import Agent\nprint([name for name in {LATER} if name in sys.modules])"
    # Without `site`, which loads some of them itself where this package is installed to be edited.
    command, path = [sys.executable, "-S", "-c", code], os.pathsep.join([str(PACKAGE.parent), *sys.path])
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert ended.stdout.strip() == "[]", ended.stderr


def test_every_public_name_can_be_loaded() -> None:
    for name in connectagent.__all__:
        assert getattr(connectagent, name) is not None
    assert set(connectagent.__all__) == set(connectagent._MODULES)


def test_every_hook_has_a_marker_a_contract_and_a_docstring_of_one_form() -> None:
    for name in specs.HOOKS:
        assert getattr(hooks, name).__name__ == name
        assert name in connectagent.__all__
        parts = inspect.cleandoc(specs.SPECS[name].__doc__ or "")  # Python 3.13 strips the indentation itself
        sections = ["Fires:", "Args:", "Yields:" if name in specs.AROUND else "Returns:"]
        places = [parts.index(section) for section in sections]
        assert places == sorted(places), f"{name}: {sections} stand in this order"
        for parameter in specs.PARAMETERS[name]:
            assert f"\n    {parameter}: " in parts, f"{name} does not document {parameter}"
