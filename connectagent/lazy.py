"""Names of a package that are loaded when they are first used, so that importing the package costs next to nothing."""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` would cost more than a package that loads nothing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def lazy_names(package: str, homes: dict[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package.

    Args:
        package: its whole name.
        homes: the modules that have its public names, without `connectagent.`, each with names separated by spaces.
    """
    modules = {name: module for module, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        from importlib import import_module

        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"connectagent.{modules[name]}"), name)
        vars(import_module(package))[name] = value
        return value

    def listed() -> list[str]:
        return sorted(modules)

    return load, listed
