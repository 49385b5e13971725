"""The house: which module may import which, what importing costs, how long files are."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import connectagent
from connectagent import hooks, hookspecs

PACKAGE = Path(connectagent.__file__).parent
# A module (or package) imports only from those that stand before it.
ORDER = [
    "errors",
    "session",
    "settings",
    "masking",
    "blobs",
    "messages",
    "state",
    "hookspecs",
    "ledger",
    "hooks",
    "llm",
    "tools",
    "attribution",
    "watching",
    "shadowing",
    "host",
    "installed",
    "discovery",
    "prompts",
    "providers",
    "conversation",
    "records",
    "history",
    "streaming",
    "builtin",
    "pausing",
    "resume",
    "asking",
    "calls",
    "parts",
    "delegation",
    "tree",
    "holdings",
    "rounds",
    "handover",
    "agent",
    "workflows",
    "replay",
    "testing",
    "view",
    "cli",
    "__main__",
]
HEAVY = ("openai", "anthropic", "pydantic", "rich", "yaml", "click")


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def unit(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> set[str]:
    """The units that a module imports at run time; what stands under TYPE_CHECKING does not count."""
    found = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("connectagent."):
            found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "connectagent":
            found.update(alias.name for alias in node.names if alias.name in ORDER)
        elif isinstance(node, ast.Import):
            found.update(alias.name.split(".")[1] for alias in node.names if alias.name.startswith("connectagent."))
        found |= imported(node)
    return found


def test_a_module_imports_from_lower_floors_only() -> None:
    for path in sources():
        here = unit(path)
        if here == "__init__":  # the public names, loaded when they are first used
            continue
        for other in imported(ast.parse(path.read_text("utf-8"))) - {here}:
            assert ORDER.index(other) < ORDER.index(here), f"{path} imports {other}, which stands above it"


def test_every_module_has_its_floor() -> None:
    assert {unit(path) for path in sources()} == {*ORDER, "__init__"}


def test_no_file_is_longer_than_400_lines() -> None:
    for path in sources():
        assert len(path.read_text("utf-8").splitlines()) <= 400, path


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = f"import sys, connectagent; print([name for name in {HEAVY} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_importing_the_agent_loads_nothing_heavy() -> None:
    code = f"import sys\nfrom connectagent import Agent\nprint([name for name in {HEAVY} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_every_public_name_can_be_loaded() -> None:
    for name in connectagent.__all__:
        assert getattr(connectagent, name) is not None
    assert set(connectagent.__all__) == set(connectagent._MODULES)


def test_every_hook_has_a_marker_a_contract_and_a_docstring_of_one_form() -> None:
    for name in hookspecs.HOOKS:
        assert getattr(hooks, name).__name__ == name
        assert name in connectagent.__all__
        parts = hookspecs.SPECS[name].__doc__ or ""
        sections = ["Fires:", "Args:", "Yields:" if name in hookspecs.AROUND else "Returns:"]
        places = [parts.index(section) for section in sections]
        assert places == sorted(places), f"{name}: {sections} stand in this order"
        for parameter in hookspecs.PARAMETERS[name]:
            assert f"        {parameter}: " in parts, f"{name} does not document {parameter}"
