"""What is public: the names of docs/api.md, as they are, and that plugins and examples need no others.

`python tests/project/test_public_api.py` writes `public_api.txt` anew.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import connectagent

griffe = pytest.importorskip("griffe", reason="not installed: pip install -e '.[test]'")

ROOT = Path(__file__).parents[2]
SNAPSHOT = ROOT / "tests" / "project" / "public_api.txt"
NAMES = re.findall(r"^::: (connectagent[\w.]*)", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)


def found() -> list[str]:
    """Each public name with its signature, one a line."""
    package = griffe.load("connectagent", search_paths=[str(ROOT)], allow_inspection=False)
    return sorted({line for name in NAMES for line in lines_of(name, target(package, name))})


def target(package: Any, name: str) -> Any:
    """What a public name means; names of the package itself are imported under TYPE_CHECKING."""
    one = package[name.removeprefix("connectagent.")]
    return one.final_target if one.is_alias else one


def lines_of(name: str, one: Any) -> Iterator[str]:
    if one.is_function:
        kinds = [parameter.kind.value for parameter in one.parameters]
        shown_ones = [shown(parameter) for parameter in one.parameters]
        if "keyword-only" in kinds and "variadic positional" not in kinds:
            shown_ones.insert(kinds.index("keyword-only"), "*")
        yield f"{name}({', '.join(shown_ones)}) -> {one.returns}"
    elif one.is_class:
        bases = ", ".join(str(base) for base in one.bases)
        yield f"class {name}({bases})"
        for member, value in one.all_members.items():
            value = value.final_target if value.is_alias else value
            if member.startswith("_") and member != "__init__":
                continue
            if value.is_attribute:
                yield f"{name}.{member}: {value.annotation}"
            else:
                yield from lines_of(f"{name}.{member}", value)
    else:
        yield f"{name}: {getattr(one, 'annotation', None)}"


def shown(parameter: Any) -> str:
    stars = {"variadic positional": "*", "variadic keyword": "**"}.get(parameter.kind.value, "")
    default = "" if parameter.default is None or stars else f"={parameter.default}"
    return f"{stars}{parameter.name}{default}"


def unnamed(before: list[str], now: list[str]) -> list[str]:
    """What was removed or changed without a word in the changelog's `Unreleased`."""
    changelog = (ROOT / "CHANGELOG.md").read_text()
    unreleased = re.split(r"^## ", changelog, flags=re.MULTILINE)[1]
    gone = [line for line in before if line not in now]
    names = {line: re.split(r"[(:]", line.removeprefix("class "))[0].removesuffix(".__init__") for line in gone}
    return [line for line in gone if names[line].rpartition(".")[2] not in unreleased]


def test_what_is_public_is_as_it_was() -> None:
    before = SNAPSHOT.read_text().splitlines()
    now = found()
    assert unnamed(before, now) == [], "removed or changed: name it under Unreleased in CHANGELOG.md"
    assert now == before, "write it anew: python tests/project/test_public_api.py"


def test_a_removed_name_and_a_changed_signature_are_noticed() -> None:
    now = found()
    (resume,) = (line for line in now if line.startswith("connectagent.Agent.resume("))
    assert "record=None, *, place=None" in resume
    zebra = "connectagent.zebra_of_old(agent) -> None"
    assert unnamed([*now, zebra], now) == [zebra]
    assert unnamed([zebra], [zebra.replace("agent", "agent, more")]) == [zebra]


def test_no_module_has_the_name_of_a_public_function_which_tools_then_take_for_the_function() -> None:
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in ROOT.glob("connectagent/**/*.py")}
    assert modules & set(NAMES) == set()


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "connectagent":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("connectagent."))


OURS = [
    *(path for path in (ROOT / "plugins").rglob("*.py") if "tests" not in path.parts and "build" not in path.parts),
    *(ROOT / "examples").rglob("*.py"),
]
ALSO = {"connectagent.hooks", "connectagent.testing", "connectagent.records.read_record", "connectagent.testing.evals"}


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(ROOT)))
def test_our_plugins_and_examples_need_public_names_only(path: Path) -> None:
    public = {*NAMES, *ALSO, *(f"connectagent.{name}" for name in connectagent.__all__)}
    assert [name for name in imported(path) if name not in public] == []


if __name__ == "__main__":
    lines = found()
    if SNAPSHOT.exists() and (lost := unnamed(SNAPSHOT.read_text().splitlines(), lines)):
        sys.exit("name these under Unreleased in CHANGELOG.md first:\n" + "\n".join(lost))
    SNAPSHOT.write_text("\n".join(lines) + "\n")
