import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["pytest_connectagent.fixtures"]  # which brings those of connectagent.testing
PLUGINS = Path(__file__).parent / "plugins"
# Files whose tests share what takes seconds to make: installed packages, built distributions, a browser. One process of
# pytest-xdist runs all of a file, and begins with them.
TOGETHER = frozenset(
    {
        "test_all_plugins.py",
        "test_chat_page.py",
        "test_installed_plugins.py",
        "test_packages.py",
        "test_tutorial.py",
        "test_view_browser.py",
        "test_view_page.py",
    }
)
ON_WINDOWS = sys.platform == "win32" or "stand_in" in sys.modules  # or on its stand-in: see tests/windows


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker here, not to the settings: the plugins' tests run with this file and other settings too."""
    config.addinivalue_line("markers", "posix(reason): skipped on Windows; the reason ends a sentence about Windows")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what Windows does not have, each with its reason."""
    for item in items if ON_WINDOWS else ():
        if (mark := item.get_closest_marker("posix")) is not None:
            item.add_marker(pytest.mark.skip(reason=f"Windows {mark.args[0]}"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run each test of `pytest -n 3` wherever there is time, but those of some files together.

    pytest-xdist's own groups add to the names of tests, which the newest pytest does not let them do.
    """
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if file.rpartition("/")[2] in TOGETHER else nodeid

        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            super().mark_test_complete(node, item_index, duration)
            scope = self._split_scope(self.registered_collections[node][item_index])
            if all(self.assigned_work[node][scope].values()):  # else each test looks through all before it
                del self.assigned_work[node][scope]

    return Together(config, log)


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
