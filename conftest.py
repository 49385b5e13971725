import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ["pytest_connectagent.fixtures"]  # which brings those of connectagent.testing
PLUGINS = Path(__file__).parent / "plugins"
ON_WINDOWS = sys.platform == "win32" or "stand_in" in sys.modules  # or on its stand-in: see tests/windows


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker here, not to the settings: the plugins' tests run with this file and other settings too."""
    config.addinivalue_line("markers", "posix(reason): skipped on Windows; the reason ends a sentence about Windows")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what Windows does not have, each with its reason."""
    for item in items if ON_WINDOWS else ():
        if (mark := item.get_closest_marker("posix")) is not None:
            item.add_marker(pytest.mark.skip(reason=f"Windows {mark.args[0]}"))


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT acts meanwhile, in this process and in those that it starts.

    A job in the background inherits it as ignored. A handler of this process becomes the default one in a child.
    """
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    if ignored:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.fixture(autouse=True)
def _fewer_paths(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a plugin's check takes every third path, and all with CONNECTAGENT_TESTER=all."""
    if os.environ.get("CONNECTAGENT_TESTER") == "all" or not request.path.is_relative_to(PLUGINS):
        return
    if request.path.is_relative_to(PLUGINS / "pytest-connectagent"):  # the tester's own tests
        return
    from pytest_connectagent import tester

    for name in ("PATHS", "PLAIN"):
        monkeypatch.setattr(tester, name, getattr(tester, name)[::3])
