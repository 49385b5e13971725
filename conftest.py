import signal
from collections.abc import Iterator

import pytest

pytest_plugins = ["connectagent.testing"]


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
