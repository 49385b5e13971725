"""What a report says of the machine: Python, the platform, the versions of the packages that matter."""

from __future__ import annotations

import platform
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_PACKAGES = ("pluggy", "pydantic", "openai", "anthropic", "google-genai", "mcp", "httpx")


def environment() -> dict[str, Any]:
    """The keys `connectagent`, `python`, `platform` and `packages` of a report."""
    packages = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    system = f"{platform.system()} {platform.machine()}".strip()
    own = vars(sys.modules["connectagent"])["__version__"]  # the package is above this room and is not imported
    return {"connectagent": own, "python": python, "platform": system, "packages": packages}
