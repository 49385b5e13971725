"""What a user does first, with what is installed: `python tests/project/installed.py` in an empty folder.

It is a script, since the tests themselves run with the checkout.
"""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.parse
import urllib.request
from importlib.metadata import distribution
from pathlib import Path

import connectagent

COMMAND = [sys.executable, "-P", "-m", "connectagent"]


def ran(*arguments: str, last: str = "") -> str:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False)
    print(f"connectagent {' '.join(arguments)}: exit code {done.returncode}")
    assert done.returncode == 0, done.stdout + done.stderr
    line = done.stdout.strip().splitlines()[-1]
    assert re.search(last, line), line
    return done.stdout


def viewed() -> None:
    """The page of the newest session, from the server of `view`."""
    server = subprocess.Popen([*COMMAND, "view", "last", "--no-open"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        address = server.stdout.readline().strip()
        with urllib.request.urlopen(address, timeout=30) as answer:
            page = answer.read().decode()
        assets = re.findall(r'(?:src|href)="([^":]+\.(?:js|css))"', page)
        for asset in assets:
            with urllib.request.urlopen(urllib.parse.urljoin(address, asset), timeout=30) as answer:
                assert answer.read()
        print(f"connectagent view: {len(page)} characters, {len(assets)} files of code and style")
        assert "<html" in page and assets
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    place = Path(connectagent.__file__)
    assert "site-packages" in place.parts, f"connectagent is that of {place}, not what is installed"
    assert distribution("connectagent").version == connectagent.__version__
    assert (place.parent / "py.typed").is_file()
    ran("demo")
    ran("plugins", "doctor", last="^all well: ")
    ran("log", "list")
    ran("replay", "last", last="^same: ")
    viewed()


if __name__ == "__main__":
    main()
