"""The tests' folders: what a test may import, and that what is said of them in tests/README.md is so."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

from test_house import FLOOR, imports

import connectagent

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
FILES = sorted(TESTS.rglob("*.py"))
# Besides these, docs/api.md says what is public; `connectagent.cli.main` is the console script of pyproject.toml.
ALSO = ("__all__", "__version__", "cli.main", "hooks", "testing", "testing.evals", "records.read_record")
PUBLIC = {
    *re.findall(r"^::: (connectagent[\w.]*)", (ROOT / "docs" / "api.md").read_text("utf-8"), re.MULTILINE),
    *(f"connectagent.{name}" for name in (*connectagent.__all__, *ALSO)),
}
ROOM_OF = {"commands": "cli"}  # the others have the name of their room
# How many files do not keep to the rule yet: whoever mends one lowers the number.
REACHING = 57
# Variables of the machine, and those that tests give to programs of their own.
OTHERS = {"PATH", "PYTHONPATH", "TZ", "SEED", "STUB", "CHANGED", "CONNECTAGENT_NODE", "CONNECTAGENT_TINY_MODEL"}


@cache
def imported() -> list[tuple[Path, list[str]]]:
    """What each file of tests imports."""
    return [(path.relative_to(TESTS), list(imports(ast.parse(path.read_text("utf-8"))))) for path in FILES]


def reaches_in(path: Path, name: str) -> bool:
    """Whether a name is neither public nor of the room that a test stands in, or of one below."""
    if not name.startswith("connectagent.") or name in PUBLIC:
        return False
    own = FLOOR.get(ROOM_OF.get(path.parts[0], path.parts[0]))
    room = name.split(".")[1]
    return own is None or not (room == ROOM_OF.get(path.parts[0], path.parts[0]) or FLOOR.get(room, own) < own)


def test_only_tests_of_a_room_import_what_is_inside_of_it() -> None:
    found = {path: [name for name in names if reaches_in(path, name)] for path, names in imported()}
    told = [f"{path}: {', '.join(names)}" for path, names in found.items() if names]
    assert len(told) <= REACHING, "\n".join(told)


def test_no_test_imports_a_test_of_another_folder() -> None:
    folders = {path.stem: path.parent for path, _ in imported()}
    names = [(path, name.split(".")[0]) for path, given in imported() for name in given]
    across = [f"{path}: {name}" for path, name in names if re.match("test_", name) and folders.get(name) != path.parent]
    assert [one for one in across if not one.startswith("test_testing.py: ")] == []


def test_each_file_of_tests_has_a_name_of_its_own() -> None:
    """Pytest imports them by their names alone, those of the plugins too."""
    files = [*FILES, *ROOT.glob("plugins/*/tests/*.py")]
    names = Counter(path.stem for path in files if path.stem not in ("conftest", "__init__"))
    assert [name for name, count in names.items() if count > 1] == []


def test_the_page_lists_each_folder_and_each_variable_for_longer_runs() -> None:
    page = (TESTS / "README.md").read_text("utf-8")
    folders = {path.name for path in TESTS.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert [name for name in sorted(folders) if f"`{name}`" not in page.split("## Where")[0]] == []
    sources = [path.read_text("utf-8") for path in [*FILES, *ROOT.glob("plugins/*/tests/*.py"), ROOT / "conftest.py"]]
    asked = {name for text in sources for name in re.findall(r'environ\.get\("([A-Z_]+)"', text)}
    machine = set(re.findall(r"CONNECTAGENT_[A-Z_]+", (ROOT / "CONTRIBUTING.md").read_text("utf-8")))
    assert sorted(name for name in asked - machine - OTHERS if f"`{name}" not in page) == []
